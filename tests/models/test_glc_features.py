"""The head on frozen features: shapes, the global token, and the data it asks for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.models import pretrained
from vergence.models.glc.glc_features import GlcFeatures, GlcFeaturesNet


def build(seed: int = 0, **options: object) -> GlcFeaturesNet:
    torch.manual_seed(seed)
    return GlcFeatures(grid=(4, 6), **options).build()  # pyright: ignore[reportArgumentType]


def features(clips: int = 2, frames: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(clips, frames, 432, 2, 3, generator=torch.Generator().manual_seed(seed))


def awake(net: GlcFeaturesNet) -> GlcFeaturesNet:
    """Give the block, which starts as the identity, something to say."""
    with torch.no_grad():
        for block in net.blocks:
            for parameter in block.parameters():
                parameter.normal_(std=0.3)
    return net


def test_parameter_count() -> None:
    """Head: 27,712 + 18,464 + 4,624 + 17 + 1,200 = 52,017, that of the OSIE reference head.

    Global token 384 * 32 + 32 = 12,320; GLC attention at width 32: 3,168 + 1,056, norm 64.
    """
    assert Layout.of(GlcFeatures(blocks=0).build()).n == 52_017
    assert Layout.of(GlcFeatures().build()).n == 52_017 + 12_320 + 4_288


def test_shapes_and_half_precision() -> None:
    net, x = awake(build()), features().half()
    with torch.no_grad():
        out = net(x)
        assert out.shape == (2, 3, 4, 6)
        assert out.dtype == torch.float32
        assert torch.equal(out, net(x.float()))


def test_the_storage_order_of_the_features_changes_nothing() -> None:
    net, x = awake(build()), features()
    stored = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape)
    assert stored.stride() != x.stride()
    with torch.no_grad():
        torch.testing.assert_close(net(stored), net(x), rtol=1e-4, atol=1e-5)


def test_frames_of_a_clip_meet_in_the_global_token_and_clips_do_not() -> None:
    net, x = awake(build()), features()
    changed = x.clone()
    changed[0, 2] += 1
    with torch.no_grad():
        moved = (net(changed) - net(x)).abs().amax((2, 3))
    assert moved[0, 0] > 1e-4
    assert moved[1].max() == 0


def test_a_fresh_block_changes_nothing_and_learns() -> None:
    net, plain, x = build(), build(blocks=0), features()
    plain.load_state_dict(net.state_dict(), strict=False)
    out = net(x)
    torch.testing.assert_close(out, plain(x), rtol=1e-5, atol=1e-6)
    out.flatten(2).logsumexp(-1).sum().backward()
    gradient = net.blocks[0].attention.proj.weight.grad
    assert gradient is not None
    assert gradient.abs().max() > 0


def test_the_seed_decides_the_parameters() -> None:
    first, same, other = (Params.of(build(seed)).flat for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 30}, "width 30"),
        ({"heads": 5}, r"heads \(5\)"),
        ({"blocks": -1}, "blocks .* got -1"),
        ({"grid": (30, 41)}, r"grid \(30, 41\)"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GlcFeatures(**options).build()  # pyright: ignore[reportArgumentType]


def test_features_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set grid = \[30, 40\]"):
        build()(torch.zeros(1, 1, 432, 15, 20))


def federation(bank: Tensor) -> Federation:
    """Two people who share three frames."""

    def samples(*rows: int) -> Samples:
        ids = torch.tensor(rows)[:, None]
        return Samples({"frame_ids": ids}, {"frames": SharedRows(bank, "frame_ids")})

    people = {name: Splits(samples(0, 1), samples(2), samples(1)) for name in ("ann", "bob")}
    return Federation("pair", people)


def frames() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, 32, 48, 3), generator=generator, dtype=torch.uint8)


def test_prepare_computes_once_shares_and_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    model = GlcFeatures(grid=(4, 6))
    ready = model.prepare(federation(frames()))
    rows = ready.people["ann"].train.banks["frames"].rows
    assert rows.shape == (3, 432, 2, 3)
    assert rows.dtype == torch.float16
    assert all(
        part.banks["frames"].rows is rows
        for person in ready.people.values()
        for part in (person.train, person.val, person.test)
    )
    batch = ready.people["bob"].train.take(torch.tensor([0, 1]))
    assert build()(batch["frames"]).shape == (2, 1, 4, 6)

    def refuse() -> None:
        raise AssertionError("the features were cached")

    monkeypatch.setattr(pretrained, "load", refuse)
    again = model.prepare(federation(frames())).people["ann"].train.banks["frames"].rows
    assert torch.equal(again, rows)


def test_prepare_names_the_grid_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"set grid = \[4, 6\]"):
        GlcFeatures().prepare(federation(frames()))


def test_prepare_needs_frames() -> None:
    bare = Samples({"x": torch.zeros(1)})
    with pytest.raises(ConfigError, match="'bare' has none"):
        GlcFeatures().prepare(Federation("bare", {"ann": Splits(bare, bare, bare)}))


def test_standardise_uses_the_packaged_statistics() -> None:
    """Frames at the packaged mean become 0; one deviation above it becomes (nearly) 1."""
    kept = load(pretrained.STATISTICS.read_bytes())
    mean, deviation = kept["mean"], kept["deviation"]
    features = torch.stack([mean, mean + deviation]).view(2, 432, 1, 1).half()
    pretrained.standardise(features)
    assert features[0].abs().max() < 0.02
    assert (features[1] - 1).abs().median() < 0.02
