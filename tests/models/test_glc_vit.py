"""Sizes, token grid, modes and learning of the video transformer."""

import pytest
import torch
from torch.nn import functional

from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.models.glc.glc_vit import GlcVit, GlcVitNet, convolve

COUNTS = {
    ("tiny64", "last"): 314_081,
    ("tiny64", "all"): 284_177,
    ("cpu64", "last"): 1_201_089,
    ("cpu64", "all"): 1_082_913,
    ("small", "last"): 18_805_633,
    ("small", "all"): 16_956_673,
    ("base", "last"): 70_253_953,
    ("base", "all"): 62_869_633,
}


def build(preset: str = "tiny64", glc_mode: str = "last", seed: int = 0) -> GlcVitNet:
    torch.manual_seed(seed)
    return GlcVit(preset, glc_mode).build()  # pyright: ignore[reportArgumentType]


def clips(count: int = 2, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 4, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("preset", "glc_mode"), list(COUNTS))
def test_parameter_counts_are_those_of_the_table(preset: str, glc_mode: str) -> None:
    """egovideo design note, section 2, last rows of the table."""
    with torch.device("meta"):
        assert Layout.of(build(preset, glc_mode)).n == COUNTS[preset, glc_mode]


def test_alternate_counts_as_all() -> None:
    with torch.device("meta"):
        assert Layout.of(build("tiny64", "alternate")).n == COUNTS["tiny64", "all"]


@pytest.mark.parametrize(
    ("preset", "shape", "out"),
    [
        ("tiny64", (3, 4, 3, 64, 64), (3, 4, 16, 16)),
        ("cpu64", (1, 4, 3, 64, 64), (1, 4, 16, 16)),
        ("small", (2, 8, 3, 256, 256), (2, 8, 64, 64)),
        ("base", (1, 8, 3, 256, 256), (1, 8, 64, 64)),
    ],
)
def test_shapes(preset: str, shape: tuple[int, ...], out: tuple[int, ...]) -> None:
    with torch.device("meta"), torch.no_grad():
        assert build(preset)(torch.empty(shape)).shape == out


@pytest.mark.parametrize(
    ("glc_mode", "expected"),
    [("last", []), ("alternate", [1, 3, 5, 7]), ("all", list(range(8)))],
)
def test_which_blocks_use_glc_attention(glc_mode: str, expected: list[int]) -> None:
    with torch.device("meta"):
        net = build(glc_mode=glc_mode)
    assert [i for i, block in enumerate(net.blocks) if block.attention.glc] == expected
    assert (net.last is not None) == (glc_mode == "last")


@pytest.mark.parametrize(
    ("glc_mode", "sees"), [("all", [0, 5]), ("last", list(range(17))), ("alternate", range(17))]
)
def test_mode_all_is_degenerate(glc_mode: str, sees: list[int]) -> None:
    """egovideo design note, 0.1: with GLC in every block token 5 depends on inputs {0, 5} only."""
    net = build(glc_mode=glc_mode)
    tokens = torch.randn(1, 17, 48, requires_grad=True)
    net.encode(tokens)[0, 5].square().sum().backward()
    assert tokens.grad is not None
    assert tokens.grad[0].abs().sum(-1).nonzero().flatten().tolist() == list(sees)


def test_mode_all_leaves_the_global_token_alone() -> None:
    net = build(glc_mode="all")
    tokens = torch.randn(1, 17, 48, requires_grad=True)
    net.encode(tokens)[0, 0].square().sum().backward()
    assert tokens.grad is not None
    assert tokens.grad[0].abs().sum(-1).nonzero().flatten().tolist() == [0]


def test_tokens_are_the_patches_at_their_place() -> None:
    video = clips(1)
    patches = build().tokens(video)
    assert patches.shape == (1, 2, 8, 8, 2, 3, 8, 8)
    assert torch.equal(patches[0, 1, 3, 6], video[0, 2:4, :, 24:32, 48:56])


def test_embedding_equals_the_convolution_it_stands_for() -> None:
    """Kernel = stride, so conv3d and the matrix product over patches are the same sum."""
    net, video = build(), clips(1)
    conv = functional.conv3d(
        video.transpose(1, 2), net.embed.weight, net.embed.bias, stride=net.embed.stride
    )
    seen = []
    net.glance.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    net(video)
    torch.testing.assert_close(seen[0].permute(0, 4, 1, 2, 3), conv, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("glc_mode", ["last", "all", "alternate"])
def test_every_parameter_gets_a_finite_gradient(glc_mode: str) -> None:
    net = build(glc_mode=glc_mode)
    net(clips()).flatten(2).logsumexp(-1).sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert parameter.grad.abs().max() > 0, name


def test_a_clip_does_not_depend_on_its_batch() -> None:
    net, video = build(), clips(3)
    with torch.no_grad():
        torch.testing.assert_close(net(video)[1], net(video[1:2])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", ["tiny64", "cpu64"])
def test_a_single_clip_without_gradients_takes_the_fast_way_to_the_same_map(preset: str) -> None:
    """The single clip's convolution runs on two copies: other order of sums, 1e-6 at most."""
    net, video = build(preset), clips(1)
    with torch.no_grad():
        fast = net(video)
    assert (fast - net(video)).abs().max() <= 1e-6
    conv, x = net.decoder.stages[0], torch.randn(1, net.decoder.reduce.out_features, 2, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(
            convolve(conv, x), functional.conv3d(x, conv.weight, conv.bias, padding=1)
        )


def test_the_seed_decides_the_parameters() -> None:
    first, same, other = (Params.of(build(seed=seed)).flat for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.slow
def test_it_learns_where_a_bright_patch_is() -> None:
    """One bright patch of 64: the loss starts at ln 256 = 5.55 and must fall by a third."""
    net = build()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(net.parameters(), 2e-3)
    losses = []
    for _ in range(40):
        cell = torch.randint(0, 8, (4, 2), generator=generator)
        video = torch.zeros(4, 4, 3, 64, 64)
        for clip, (row, column) in enumerate(cell.tolist()):
            video[clip, :, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 2.0
        target = (2 * cell[:, 0] * 16 + 2 * cell[:, 1])[:, None].expand(4, 4)
        loss = functional.cross_entropy(net(video).flatten(2).transpose(1, 2), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(5.55, abs=0.3)
    assert sum(losses[-5:]) / 5 < 3.7


def test_bad_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"preset must be .* 'tiny' \(did you mean 'tiny64'"):
        GlcVit("tiny").build()  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"glc_mode must be one of .*; got 'some'"):
        GlcVit(glc_mode="some").build()  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"clips \[B, 4, 3, 64, 64\], got \[1, 8, 3, 64, 64\]"):
        build()(torch.zeros(1, 8, 3, 64, 64))
