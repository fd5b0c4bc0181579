"""Clipped sums against gradients taken one by one, on networks as they lie in memory here."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.masks import Mask
from vergence.core.objectives import loss_per_sample
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.lenet import LeNet
from vergence.models.small_eye import SmallEye
from vergence.privacy.dp.dp_sgd import noised, poisson
from vergence.privacy.dp.dp_sgd_solver import _mark
from vergence.privacy.dp.per_sample_gradients import Clipper, _windows, refuse
from vergence.privacy.keyed_noise import NoiseKey
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.sequential import Solver

SECRET = NoiseKey(bytes(range(3, 35)))


def batch(n, height=36, width=60):
    generator = torch.Generator().manual_seed(0)
    return {
        "image": (255 * torch.rand(n, 1, height, width, generator=generator)).to(torch.uint8),
        "gaze": 0.3 * torch.randn(n, 2, generator=generator),
        "pose": 0.3 * torch.randn(n, 2, generator=generator),
    }


def one_by_one(solver, data, clip):
    """The definition: a backward pass per sample, cut to `clip`, added up; and the norms."""
    total, norms = [torch.zeros_like(p) for p in solver.parameters], []
    for i in range(len(data["gaze"])):
        alone = {name: column[i : i + 1] for name, column in data.items()}
        loss = solver.task.loss(solver.task.forward(solver.module, alone), alone)
        gradients = torch.autograd.grad(loss, solver.parameters)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        norms.append(norm)
        for t, g in zip(total, gradients, strict=True):
            t += g * min(1.0, clip / (norm + 1e-6))
    return total, norms


def clipped(solver, data, clip):
    """The sum by name, and the norms that were found."""
    flat, _ = solver._buffer()
    into = dict(zip(solver.layout.names, solver._views(flat.zero_()), strict=True))
    with Clipper(solver.module, clip) as clipper:
        output = solver.task.forward(solver.module, data)
        clipper.gradients(loss_per_sample(solver.task, output, data), into)
    return into, clipper.norms


@dataclass(frozen=True)
class Odd(Model):
    """Every kind of layer: padding, stride, dilation, groups, norms, rows of a sequence."""

    def build(self):
        return OddNet()


class OddNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.two = nn.Conv2d(6, 6, 3, padding="same", dilation=2, groups=3)
        self.wide = nn.Conv2d(6, 8, (1, 3), dilation=(1, 2), bias=False)
        self.each = nn.Linear(8, 4)
        self.ln = nn.LayerNorm(4)
        self.last = nn.Linear(4, 2, bias=False)
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, x, pose):
        x = self.two(self.norm(self.one(x)).relu())
        rows = self.wide(x).flatten(2).transpose(1, 2)
        return self.last(self.ln(self.each(rows)).tanh()).mean(1) + self.shift + pose


@pytest.mark.parametrize(
    ("model", "size"), [(LeNet(), (36, 60)), (SmallEye(), (9, 15)), (Odd(), (8, 12))]
)
@pytest.mark.parametrize("clip", [1e-3, 0.3, 1e3])
def test_clipped_sums_are_those_of_gradients_taken_one_by_one(model, size, clip):
    solver, data = Solver(GazeAngle(model)), batch(5, *size)
    solver.module.train()
    want, norms = one_by_one(solver, data, clip)
    for _ in range(2):  # nothing is left over from the pass before
        found, seen = clipped(solver, data, clip)
        np.testing.assert_allclose(seen, norms, rtol=1e-3)
        for name, gradient in zip(solver.layout.names, want, strict=True):
            scale = float(gradient.abs().max())
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=2e-3 * scale + 1e-9)
    assert all(not layer._forward_hooks for layer in solver.module.modules())


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_opacus_gives_the_same_sums():
    """An independent implementation, on weights that lie as it expects them."""
    grad_sample = pytest.importorskip("opacus.grad_sample")
    solver, data = Solver(GazeAngle(SmallEye())), batch(6, 9, 15)
    found, norms = clipped(solver, data, 0.1)
    other = solver.task.module()
    other.load_state_dict({n: p.contiguous() for n, p in solver.module.state_dict().items()})
    watched = grad_sample.GradSampleModule(other, loss_reduction="sum")
    output = solver.task.forward(watched, data)
    loss_per_sample(solver.task, output, data).sum().backward()
    samples = {n: p.grad_sample for n, p in other.named_parameters()}
    theirs = torch.stack([g.flatten(1).square().sum(1) for g in samples.values()]).sum(0).sqrt()
    torch.testing.assert_close(norms, theirs, rtol=1e-4, atol=0)
    factors = (0.1 / theirs).clamp(max=1)
    for name, gradients in samples.items():
        want = torch.tensordot(factors, gradients, 1)
        torch.testing.assert_close(found[name], want, rtol=1e-3, atol=1e-6)


def test_no_sample_pulls_further_than_the_clip():
    """A sample with a target far away, gradients of 1e6: alone in a batch, its pull is the clip."""
    solver, data = Solver(GazeAngle(LeNet(), criterion="mse")), batch(1)
    solver.module.train()
    data["gaze"] *= 1e6
    found, _ = clipped(solver, data, 0.5)
    pull = math.sqrt(sum(float(g.double().square().sum()) for g in found.values()))
    assert pull == pytest.approx(0.5, rel=1e-3)
    assert pull <= 0.5


class Twice(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, 4)

    def forward(self, x):
        if self.kind == "twice":
            return self.layer(self.layer(x))
        if self.kind == "in place":
            return self.layer(x).relu_()
        return self.layer(x.reshape(-1, 4)).reshape(-1, 2, 4).mean(1)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("twice", "passed twice"), ("in place", "in place"), ("rows", "takes 6 rows for 3 samples")],
)
def test_networks_whose_samples_cannot_be_told_apart_are_refused(kind, said):
    module = Twice(kind)
    x = torch.randn(3, 8 if kind == "rows" else 4)
    into = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    with Clipper(module, 1.0) as clipper, pytest.raises(ConfigError, match=said):
        clipper.gradients(module(x).sum(1), into)


def test_losses_one_by_one_have_the_tasks_mean():
    task = GazeAngle(SmallEye())
    data, output = batch(6), torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss_per_sample(task, output, data).mean(), task.loss(output, data))


def test_layers_that_mix_samples_are_refused_with_the_repair():
    with pytest.raises(ConfigError, match=r"'1' is a BatchNorm2d, .*; use vergence.group_norm"):
        refuse(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    refuse(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)))


def test_batches_are_drawn_one_sample_at_a_time_and_may_be_empty():
    """Sizes are binomial: of 200 samples at rate 0.02, mean 4, and e^-4 of batches are empty."""
    draws = SECRET.child("batches").draws()
    drawn = [poisson(200, 0.02, draws) for _ in range(2000)]
    sizes = np.array([len(rows) for rows in drawn])
    assert sizes.mean() == pytest.approx(4, rel=0.05)
    assert sizes.var() == pytest.approx(4 * 0.98, rel=0.15)
    assert (sizes == 0).mean() == pytest.approx(0.98**200, abs=0.01)
    often = np.bincount(np.concatenate(drawn), minlength=200)
    assert often.min() > 10
    assert len(poisson(5, 1.0, draws)) == 5


def test_noise_is_on_every_entry_also_of_an_empty_batch():
    """150,001 entries are more than two pieces, and an odd number."""
    secret = SECRET.child("p01", 3, 0)
    flat = noised(torch.zeros(150_001), 2.0, 32.0, secret.draws())
    assert kstest(flat * 32 / 2, "norm").pvalue > 0.01
    again = noised(torch.zeros(150_001), 2.0, 32.0, secret.draws())
    assert torch.equal(again, flat)
    other = noised(torch.zeros(150_001), 2.0, 32.0, SECRET.child("p01", 3, 1).draws())
    assert abs(float(torch.corrcoef(torch.stack([flat, other]))[0, 1])) < 0.02


def test_noise_leaves_no_trace_of_what_it_was_added_to():
    """All sums are multiples of 2^-16 of the noise's scale, whatever the values were."""
    values = torch.rand(5000, generator=torch.Generator().manual_seed(1)) * 1e-3
    found = noised(values.clone(), 0.3, 1.0, SECRET.child("grid").draws()).double()
    steps = found / 2.0 ** (math.floor(math.log2(0.3)) - 16)
    assert torch.equal(steps, steps.round())
    bare = noised(torch.zeros(5000), 0.3, 1.0, SECRET.child("grid").draws()).double()
    assert float((found - bare - values).abs().max()) <= 1.01 * 2.0 ** (
        math.floor(math.log2(0.3)) - 16
    )
    assert torch.equal(noised(values.clone(), 0.0, 1.0, SECRET.draws()), values)


@pytest.mark.parametrize(("kernel", "size"), [((3, 2), (9, 30)), ((2, 3), (8, 4)), (1, (5, 6))])
@pytest.mark.parametrize("options", [{}, {"dilation": (2, 1)}, {"stride": (1, 2), "padding": 1}])
def test_windows_of_a_convolution_are_those_that_torch_unfolds(kernel, size, options):
    """In either order of dimensions: channels last where their rows are the longer ones."""
    layer = nn.Conv2d(4, 5, kernel, **options)
    images = torch.randn(2, 4, *size, generator=torch.Generator().manual_seed(0))
    found, last = _windows(layer, images)
    plain = nn.functional.unfold(
        images, layer.kernel_size, layer.dilation, layer.padding, layer.stride
    )
    high, wide = layer(images).shape[2:]
    plain = plain.view(2, 4, *layer.kernel_size, high, wide)
    assert last is (4 * layer.kernel_size[1] >= size[1] + 2 * layer.padding[1])
    order = (0, 4, 5, 2, 3, 1) if last else (0, 1, 2, 3, 4, 5)
    assert torch.equal(found, plain.permute(order))


def test_a_clipper_takes_one_pass_after_another():
    """Each pass's sums are its own, and another pass beside it leaves nothing."""
    solver = Solver(GazeAngle(Odd()))
    solver.module.train()
    flat, _ = solver._buffer()
    into = dict(zip(solver.layout.names, solver._views(flat), strict=True))
    steps = [batch(count, 8, 12) for count in (5, 3, 5)]
    wanted = [one_by_one(solver, data, 0.3) for data in steps]
    with Clipper(solver.module, 0.3) as clipper:
        for data, (want, norms) in zip(steps, wanted, strict=True):
            flat.fill_(math.nan)
            output = solver.task.forward(solver.module, data)
            clipper.gradients(loss_per_sample(solver.task, output, data), into)
            np.testing.assert_allclose(clipper.norms, norms, rtol=1e-3)
            for name, gradient in zip(solver.layout.names, want, strict=True):
                scale = float(gradient.abs().max())
                torch.testing.assert_close(into[name], gradient, rtol=0, atol=2e-3 * scale + 1e-9)


def test_any_other_training_has_other_noise():
    """A server that asks twice with one thing changed may not find the same noise in both."""
    task = GazeAngle(SmallEye())
    start = task.init()
    other, mask = start + 1.0, Mask.none(start.layout)
    data = Samples(batch(3))
    local = LocalTraining(optimizer="sgd", batch=2)
    slots = {"exp_avg": start * 0.0, "exp_avg_sq": start * 0.0}
    full = Fit(
        start, data, local, mask, (start, 0.5), OptimizerState(slots, 3), correction=start * 0.0
    )
    state = full.optimiser
    changed = {
        "parameters": {"params": other},
        "number of samples": {"data": data.subset(torch.arange(2))},
        "settings": {"local": replace(local, lr=0.01)},
        "mask": {"trainable": ~mask},
        "no mask": {"trainable": None},
        "centre": {"anchor": (other, 0.5)},
        "pull": {"anchor": (start, 0.25)},
        "no pull": {"anchor": None},
        "steps": {"optimiser": replace(state, steps=4)},
        "no state": {"optimiser": None},
        "first buffer": {"optimiser": replace(state, slots={**slots, "exp_avg": other})},
        "second buffer": {"optimiser": replace(state, slots={**slots, "exp_avg_sq": other})},
        "fewer buffers": {"optimiser": replace(state, slots={"exp_avg": start * 0.0})},
        "correction": {"correction": other},
        "no correction": {"correction": None},
    }
    stream = RandomStream("fit", 1)
    marks = {name: _mark(replace(full, **new), stream, 0.5, 1.0) for name, new in changed.items()}
    marks["as it is"] = _mark(full, stream, 0.5, 1.0)
    marks["stream"] = _mark(full, RandomStream("fit", 2), 0.5, 1.0)
    marks["progress"] = _mark(full, stream, 0.25, 1.0)
    marks["noise"] = _mark(full, stream, 0.5, 2.0)
    assert len(set(marks.values())) == len(marks)
    assert marks["as it is"] == _mark(replace(full), RandomStream("fit", 1), 0.5, 1.0)
