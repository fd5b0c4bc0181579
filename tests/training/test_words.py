"""What a turn may ask for beyond plain training: a correction, a pull of features, gradients.

By hand on head * body * x with b = 2 and h = 1 (see tests/scripts.py), against autograd on networks
of layers, and in stacks against one client after the other.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.engine.learners import LOCALS, TASKS, Mlp, apart, asks_of, eyes, numbers, streams_of
from tests.scripts import PLAIN, Product, Two, mask, pairs, params, values
from vergence.core.conversation import compute, fit
from vergence.core.data import Batch, Samples
from vergence.core.local_training import OptimizerState
from vergence.core.objectives import FeatureAlignment
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute, Fit
from vergence.core.task import Model, Task
from vergence.errors import ConfigError
from vergence.models.lenet import LeNet
from vergence.models.linear import Linear
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked, Unstackable, groups_of

TASK = Product(Two())
START = TASK.init()
A = pairs((1, 4))


def trained(**extra):
    local = extra.pop("local", PLAIN)
    return values(Solver(TASK).fit(Fit(START, A, local, **extra), RandomStream("t")).params)


def like(*numbers: float) -> Params:
    return START.like(torch.tensor(numbers, dtype=torch.float64))


def test_a_correction_is_added_to_every_gradient():
    """Gradients -2, -4; with (10, -5) added 8, -9: b = 2 - 0.8, h = 1 + 0.9. Then e = 1.2 * 1.9 -
    4 = -1.72, gradients -3.268 + 10 and -2.064 - 5: b = 1.2 - 0.6732, h = 1.9 + 0.7064."""
    assert trained(correction=like(10, -5)) == [1.2, 1.9]
    assert trained(correction=like(10, -5), local=replace(PLAIN, epochs=2)) == [0.5268, 2.6064]
    assert trained(correction=like(0, 0)) == trained() == [2.2, 1.4]


def test_a_correction_comes_after_the_leash_and_before_mask_and_clip():
    """Leash mu = 2 to (0, 0): + (4, 2). (-2 + 4 + 6, -4 + 2 - 10) = (8, -12). The body alone: 8,
    clipped to a norm of 1."""
    extra = {"correction": like(6, -10), "anchor": (like(0, 0), 2.0)}
    assert trained(**extra) == [1.2, 2.2]
    extra["trainable"] = replace_layout(mask(1, 0))
    assert trained(**extra) == [1.2, 1.0]
    assert trained(**extra, local=replace(PLAIN, clip=1.0)) == [1.9, 1.0]


def replace_layout(bits):
    return type(bits)(bits.bits, START.layout)


def test_a_correction_passes_through_momentum():
    """Momentum 0.5, head frozen: velocities 8 and 4 + e h + 10, e = 1.2 - 4 = -2.8: 11.2."""
    local = replace(PLAIN, epochs=2, momentum=0.5)
    extra = {"correction": like(10, 0), "trainable": replace_layout(mask(1, 0))}
    assert trained(**extra, local=local) == [0.08, 1.0]


def test_a_pull_adds_the_mean_squared_distance_of_features():
    """Samples (1, 4), (2, 4), (1, -2), features 2, 4, 2, centres 1 (class 0) and 5: e = -2, 0, 4.

    Body: (-2 + 0 + 4) / 3 + 0.5 * 2/3 ((2 - 5) + 2 (4 - 5) + (2 - 1)) = 2/3 - 4/3; the head, which
    features do not see: (-4 + 0 + 8) / 3.
    """
    data, pull = pairs((1, 4), (2, 4), (1, -2)), FeatureAlignment(torch.tensor([[1.0], [5.0]]), 0.5)
    solver = Solver(TASK)
    found = solver.fit(Fit(START, data, PLAIN, objective=pull), RandomStream("t"))
    assert values(found.params) == [round(2 + 0.2 / 3, 6), round(1 - 0.4 / 3, 6)]
    apart = 0.5 * (9 + 1 + 1) / 3
    assert found.metrics["loss"] == pytest.approx(20 / 6 + apart)
    none = solver.fit(
        Fit(START, data, PLAIN, objective=replace(pull, weight=0.0)), RandomStream("t")
    )
    plain = solver.fit(Fit(START, data, PLAIN), RandomStream("t"))
    assert torch.equal(none.params.flat, plain.params.flat)


def test_a_pull_averages_over_dimensions_too():
    """Two features of a network of layers: half the weight each, against autograd."""
    task, data = ToyTask(Mlp(hidden=2)), numbers(5, 0)
    centres = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    found = Solver(task).fit(
        Fit(task.init(), data, PLAIN, objective=FeatureAlignment(centres, 3.0)), RandomStream("t")
    )
    module = task.module()
    features = torch.relu(module[0](data.columns["x"]))
    goal = centres[(data.columns["y"] > 0).long()]
    loss = 0.5 * (module[2](features).squeeze(1) - data.columns["y"]).square().mean()
    (loss + 3.0 * (features - goal).square().sum() / 10).backward()
    for name, parameter in module.named_parameters():
        assert torch.allclose(found.params[name], parameter - 0.1 * parameter.grad, atol=1e-6)


def asked(want, task, start, data):
    return Solver(task).compute(Compute(start, data, want))


def test_a_gradient_by_hand():
    """e = -2, 0, 4 with x = 1, 2, 1: body (-2 + 0 + 4) / 3, head (-4 + 0 + 8) / 3."""
    found = asked("gradient", TASK, START, pairs((1, 4), (2, 4), (1, -2)))
    assert values(found) == [round(2 / 3, 6), round(4 / 3, 6)]
    assert found.layout == START.layout


@pytest.mark.parametrize("n", [1, 64, 65, 150])
def test_a_gradient_over_several_chunks_is_that_of_the_mean_loss(n):
    """Chunks of 64, the last one smaller, count by their samples."""
    task, data = ToyTask(Mlp()), numbers(n, 1)
    module = task.module()
    task.loss(task.forward(module, dict(data.columns)), dict(data.columns)).backward()
    found = asked("gradient", task, task.init(), data)
    for name, parameter in module.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-6)


def test_gradients_of_a_convolution_lie_as_its_weights_do():
    task, data = GazeAngle(LeNet((3, 4))), eyes(5, 0)
    module = task.module()
    task.loss(task.forward(module, dict(data.columns)), dict(data.columns)).backward()
    found = asked("gradient", task, task.init(), data)
    for name, parameter in module.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-6)


def test_a_gradient_leaves_nothing_behind():
    """Neither in the network nor in what was asked before: a fit afterwards is as it was."""
    solver, ask = Solver(TASK), Fit(START, A, PLAIN)
    before = solver.fit(ask, RandomStream("t")).params
    kept = solver.gradient(START, A)
    first = kept.flat.clone()
    solver.gradient(START * 5.0, A)
    assert torch.equal(kept.flat, first)
    assert torch.equal(solver.fit(ask, RandomStream("t")).params.flat, before.flat)
    assert values(START) == [2.0, 1.0]


def test_a_step_is_the_gradient():
    data = pairs((1, 4), (2, 4), (1, -2))
    stepped = Solver(TASK).fit(Fit(START, data, PLAIN), RandomStream("t")).params
    gradient = asked("gradient", TASK, START, data)
    assert values(START - 0.1 * gradient) == values(stepped)


class Dropped(Model):
    """A layer, dropout, a layer."""

    def build(self):
        return nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1))


def test_features_enter_the_head_and_nothing_is_dropped():
    task, data = ToyTask(Dropped()), numbers(70, 0)
    module = task.module()
    found = asked("features", task, task.init(), data)
    assert found.shape == (70, 4)
    assert torch.allclose(found, module[0](data.columns["x"]), atol=1e-6)
    again = asked("features", task, task.init(), data)
    assert torch.equal(found, again)
    first, second = (asked("gradient", task, task.init(), data) for _ in range(2))
    assert torch.equal(first.flat, second.flat)


def test_features_by_hand():
    assert asked("features", TASK, START, pairs((1, 4), (2, 4), (1, -2))).tolist() == [
        [2],
        [4],
        [2],
    ]


class Frames(ToyTask):
    """x as three frames of two numbers, averaged after the last layer."""

    def forward(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        return module(batch["x"].unflatten(1, (3, 2))).mean((1, 2))


class Pictures(Model):
    """A convolution as head: features are channels."""

    def build(self):
        return nn.Sequential(nn.Conv2d(1, 3, 1), nn.Conv2d(3, 1, 1))


class Maps(ToyTask):
    def forward(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        return module(batch["x"].view(-1, 1, 2, 3)).mean((1, 2, 3))


def test_features_of_several_places_are_averaged_over_them():
    data = numbers(4, 0)
    x = data.columns["x"]
    assert torch.allclose(
        asked("features", Frames(Linear(2)), Frames(Linear(2)).init(), data),
        x.unflatten(1, (3, 2)).mean(1),
    )
    task = Maps(Pictures())
    module = task.module()
    channels = module[0](x.view(-1, 1, 2, 3))
    assert torch.allclose(
        asked("features", task, task.init(), data), channels.mean((2, 3)), atol=1e-6
    )


def test_features_of_an_eye_are_what_its_last_layer_sees():
    """small_eye and lenet join the pose there: the last two of the features are the pose."""
    task, data = GazeAngle(LeNet((3, 4))), eyes(5, 0)
    found = asked("features", task, task.init(), data)
    assert torch.equal(found[:, -2:], data.columns["pose"])


def test_parts_split_at_the_head_and_norms_are_found():
    assert TASK.parts() == (("body.weight",), ("head.weight",))
    assert TASK.parts("body.*") == (("head.weight",), ("body.weight",))
    assert TASK.norms() == ()
    assert ToyTask(Dropped()).parts() == (("0.weight", "0.bias"), ("2.weight", "2.bias"))
    with pytest.raises(ConfigError, match="its body would be empty"):
        TASK.parts("*")
    with pytest.raises(ConfigError, match="test_words:Bare' has no classes"):
        Task.class_of(Bare(Two()), {})


class Bare(Product):
    pass


def corrected(name, local, extra="none"):
    task, make = TASKS[name]
    asks = asks_of(task, make, LOCALS[local], extra)
    return task, [
        replace(
            ask,
            correction=ask.params.like(
                0.1
                * torch.randn(
                    ask.params.flat.shape,
                    generator=torch.Generator().manual_seed(number),
                    dtype=ask.params.flat.dtype,
                )
            ),
        )
        for number, ask in enumerate(asks)
    ]


@pytest.mark.parametrize("name", ["linear", "mlp", "mlp64", "lenet"])
@pytest.mark.parametrize(
    ("local", "extra"), [("plain", "none"), ("clip", "all"), ("momentum", "anchor")]
)
def test_corrected_stacks_are_sequential(name, local, extra):
    """Everybody's own correction, alone and beside leash, mask and clip."""
    task, asks = corrected(name, local, extra)
    streams, solver = streams_of(asks), Solver(task)
    for ask, stream, found in zip(asks, streams, Stacked(task).fit_all(asks, streams), strict=True):
        alone = solver.fit(ask, stream)
        assert apart(found.params, alone.params) <= (1e-12 if name == "mlp64" else 1e-5)
        without = solver.fit(replace(ask, correction=None), stream)
        assert apart(alone.params, without.params) > 1e-3


def test_groups_keep_corrections_together_and_pulls_alone():
    task, asks = corrected("mlp", "plain")
    plain = replace(asks[0], correction=None)
    pulled = replace(plain, objective=FeatureAlignment(torch.zeros(2, 16), 1.0))
    held = replace(asks[0], optimiser=OptimizerState({}, 0))
    mixed = [asks[0], plain, asks[1], pulled, pulled, held, plain]
    assert groups_of(mixed) == [[0, 2], [1, 6], [3], [4], [5]]
    for wrong in ([asks[0], plain], [pulled, pulled]):
        with pytest.raises(Unstackable, match="split them with groups_of"):
            Stacked(task).fit_all(wrong, streams_of(wrong))


def test_the_words_ask_for_what_they_were_told():
    data, pull = Samples(A.columns), FeatureAlignment(torch.zeros(2, 1), 0.1)
    ask = fit(START, data, PLAIN, correction=START, objective=pull).send(None)
    assert (ask.correction, ask.objective, ask.anchor) == (START, pull, None)
    ask = compute(params(1.0), data, "features").send(None)
    assert (ask.want, values(ask.params)) == ("features", [1.0])
