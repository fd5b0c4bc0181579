"""The streaming gaze model: causal, on its own estimates, and its counterpart of single frames."""

import pytest
import torch
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.params import Layout
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.errors import ConfigError
from vergence.models import motion, pretrained
from vergence.models.glc.glc_causal import GlcCausal, GlcCausalNet
from vergence.models.glc.glc_features import GlcFeatures
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.tasks.gaze_map import GazeMap
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked


def build(**options: object) -> GlcCausalNet:
    torch.manual_seed(0)
    return GlcCausal(grid=(4, 6), **options).build()  # pyright: ignore[reportArgumentType]


def features(clips: int = 2, frames: int = 7, channels: int = 432) -> Tensor:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(clips, frames, channels, 2, 3, generator=drawn)


def awake(net: GlcCausalNet) -> GlcCausalNet:
    """Give what starts at zero something to say."""
    with torch.no_grad():
        for part in (net.past, net.blocks):
            for parameter in part.parameters():
                parameter.normal_(std=0.3)
    return net


def test_parameter_count() -> None:
    """The windowed head of width 32, and 16 filters of 5 x 5 over 4 maps: 1,600 more.

    Motion adds four channels to the first layer.
    """
    windowed = Layout.of(GlcFeatures(width=32).build()).n
    assert Layout.of(GlcCausal().build()).n == windowed + 1_600
    more = Layout.of(GlcCausal(motion=True).build()).n - Layout.of(GlcCausal().build()).n
    assert more == motion.CHANNELS * 32
    assert Layout.of(GlcFeatures(width=32, motion=True).build()).n == windowed + more


def test_no_map_depends_on_later_frames_or_other_streams() -> None:
    net, x = awake(build()), features()
    changed = x.clone()
    changed[0, 3] += 1
    with torch.no_grad():
        whole = net(x)
        moved = (net(changed) - whole).abs().amax((2, 3))
        torch.testing.assert_close(net(x[:, :4]), whole[:, :4])
    assert whole.shape == (2, 7, 4, 6)
    assert moved[0, :3].max() == 0
    assert moved[0, 3:].min() > 1e-5
    assert moved[1].max() == 0


def test_streaming_is_what_a_clip_gives() -> None:
    """`step` by `step`, with nothing kept but the context."""
    net, x = awake(build()), features().half()
    with torch.no_grad():
        whole = net(x)
        context = net.start(x)
        for frame in range(x.shape[1]):
            logits, context = net.step(x[:, frame], context)
            torch.testing.assert_close(logits, whole[:, frame], rtol=1e-4, atol=1e-5)
            assert context.maps.shape == (2, 4, 2, 3)
            assert context.summaries.shape == (2, 4, 16)


def test_the_context_holds_its_own_last_maps() -> None:
    """Each map's mean is 1; a place of the context is the mean of its four quarters."""
    net, x = awake(build(context=2)), features(frames=3)
    with torch.no_grad():
        logits, context = net(x), net.start(x)
        assert context.maps.abs().max() == 0
        for frame in range(3):
            _, context = net.step(x[:, frame], context)
    maps = logits[:, 1:].flatten(2).softmax(-1).view(2, 2, 2, 2, 3, 2) * 24
    torch.testing.assert_close(context.maps, maps.mean((3, 5)))
    torch.testing.assert_close(context.maps.mean((2, 3)), torch.ones(2, 2))


def test_a_fresh_network_takes_frames_one_by_one_and_learns_from_its_past() -> None:
    """It starts as the windowed head without blocks, whose frames do not meet."""
    net, x = build(), features()
    single = GlcFeatures(width=32, blocks=0, grid=(4, 6)).build()
    single.load_state_dict(net.state_dict(), strict=False)
    out = net(x)
    torch.testing.assert_close(out, single(x), rtol=1e-4, atol=1e-5)
    out.flatten(2).logsumexp(-1).sum().backward()
    for learned in (net.past.weight, net.blocks[0].attention.proj.weight):
        assert learned.grad is not None
        assert learned.grad.abs().max() > 0


def test_no_gradient_goes_back_through_an_estimate() -> None:
    net, x = awake(build(blocks=0)), features(1)
    x.requires_grad_()
    net(x)[:, -1].square().sum().backward()
    assert x.grad is not None
    assert x.grad[:, :-1].abs().max() == 0
    assert x.grad[:, -1].abs().max() > 0


def test_labels_are_never_looked_at() -> None:
    """Outputs of a task are the same whatever its labels say."""
    task = GazeMap(GlcCausal(grid=(4, 6)))
    net, x = awake(build()), features()
    points = torch.rand(2, 7, 1, 2, generator=torch.Generator().manual_seed(0))
    first = task.forward(net, {"frames": x, "points": points})
    assert torch.equal(task.forward(net, {"frames": x, "points": 1 - points}), first)


def test_features_of_the_head_are_a_mean_over_all_frames() -> None:
    """The head takes frames one by one; each clip's features are the mean of its frames' own."""
    task, net, x = GazeMap(GlcCausal(grid=(4, 6))), awake(build()), features()
    _, found = task.features(net, {"frames": x})
    caught: list[Tensor] = []
    net.head.register_forward_pre_hook(lambda _, given: caught.append(given[0].mean((2, 3))))
    net(x)
    torch.testing.assert_close(found, torch.stack(caught).mean(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 30}, "glc_causal: width 30"),
        ({"heads": 5}, r"heads \(5\)"),
        ({"blocks": -1}, "blocks .* got -1"),
        ({"context": 0}, "context .* got 0"),
        ({"grid": (4, 5)}, r"grid \(4, 5\)"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GlcCausal(**options).build()  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"set grid = \[30, 40\]"):
        build()(torch.zeros(1, 1, 432, 15, 20))


@pytest.mark.parametrize("model", [GlcCausal, GlcFeatures])
def test_motion_enters_behind_the_features(
    model: type[GlcCausal | GlcFeatures], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(frames: Tensor) -> Tensor:
        return torch.ones(len(frames), 432, 2, 3, dtype=torch.float16)

    monkeypatch.setattr(pretrained, "features", plain)
    drawn = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (6, 32, 48, 3), generator=drawn, dtype=torch.uint8)
    columns = {"ids": torch.arange(6).view(2, 3), "points": torch.full((2, 3, 1, 2), 0.5)}
    part = Samples(columns, {"frames": SharedRows(frames, "ids")})
    task = GazeMap(model(grid=(4, 6), motion=True, standardise=False))
    ready = task.network.prepare(Federation("one", {"ann": Splits(part, part, part)}))
    entered: list[Tensor] = []
    net = task.module()
    net.reduce.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    assert task.forward(net, ready.people["ann"].train.take(slice(0, 2))).shape == (2, 3, 4, 6)
    assert torch.equal(torch.cat(entered)[:, :432], torch.ones(6, 432, 2, 3))
    expected = motion.motion_of(frames.view(2, 3, 32, 48, 3)).half().float()
    if model is GlcCausal:  # frame by frame
        expected = expected.transpose(0, 1)
    assert torch.equal(torch.cat(entered)[:, 432:], expected.flatten(0, 1))


def clients() -> tuple[GazeMap, list[Samples]]:
    """Two clients' six clips of three frames' features, with motion."""
    task, found = GazeMap(GlcCausal(width=8, heads=2, grid=(4, 6), motion=True)), []
    for seed in range(2):
        drawn = torch.Generator().manual_seed(seed)
        columns = {
            "ids": torch.arange(18).view(6, 3),
            "points": torch.rand(6, 3, 1, 2, generator=drawn),
            motion.ROW: torch.arange(6),
        }
        rows = torch.randn(18, 432, 2, 3, generator=drawn).half()
        moving = torch.rand(6, 3, 4, 2, 3, generator=drawn).half()
        banks = {"frames": SharedRows(rows, "ids"), motion.BANK: SharedRows(moving, motion.ROW)}
        found.append(Samples(columns, banks))
    return task, found


def test_clients_stack_and_half_precision_trains() -> None:
    """Stacked clients end where single ones do; in bfloat16 the loss falls, too."""
    task, parts = clients()
    local = LocalTraining(optimizer="sgd", steps=6, batch=3, lr=0.5)
    asks = [Fit(task.init(), part, local) for part in parts]
    streams = [RandomStream("causal", number) for number in range(2)]
    stacked = Stacked(task).fit_all(asks, streams)
    for ask, stream, found in zip(asks, streams, stacked, strict=True):
        single = Solver(task).fit(ask, stream)
        torch.testing.assert_close(found.params.flat, single.params.flat, rtol=1e-3, atol=1e-4)
    for precision in ("bf16", "half"):
        solver = Solver(task, precision)
        before, after = (
            task.loss(solver.outputs(params, parts[0]), parts[0].take(slice(0, 6)))
            for params in (task.init(), solver.fit(asks[0], streams[0]).params)
        )
        assert after < before - 0.01


def test_dp_sgd_refuses_it_by_name() -> None:
    """A layer that is passed at every frame has no gradient per sample that the clipper knows."""
    task, parts = clients()
    module = task.module().train()
    with (
        Clipper(module, 1.0) as clipper,
        pytest.raises(ConfigError, match="'reduce' is passed twice in a step"),
    ):
        clipper.gradients(task.forward(module, parts[0].take(slice(0, 2))).flatten(1).sum(1), {})
