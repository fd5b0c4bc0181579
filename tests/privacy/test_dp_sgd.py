"""Clipped sums against gradients taken one by one, on networks as they lie in memory here."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from vergence.core.fitting import Solver
from vergence.errors import ConfigError
from vergence.models.lenet import LeNet
from vergence.models.small_eye import SmallEye
from vergence.privacy.dp_sgd import Clipper, each, noised, poisson, refuse
from vergence.privacy.keyed import Secret
from vergence.tasks.gaze_angle import GazeAngle

SECRET = Secret(bytes(range(3, 35)))


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


@pytest.mark.parametrize(("model", "size"), [(LeNet(), (36, 60)), (SmallEye(), (9, 15))])
@pytest.mark.parametrize("clip", [1e-3, 0.3, 1e3])
def test_clipped_sums_are_those_of_gradients_taken_one_by_one(model, size, clip):
    pytest.importorskip("opacus")
    solver, data = Solver(GazeAngle(model)), batch(5, *size)
    solver.module.train()
    want, norms = one_by_one(solver, data, clip)
    clipper = Clipper(solver.module, clip)
    for _ in range(2):  # nothing is left over from the pass before
        losses = each(solver.task, solver.task.forward(solver.module, data), data)
        found = dict(zip([n for n, _ in solver.module.named_parameters()],
                         clipper.gradients(losses), strict=True))  # fmt: skip
        np.testing.assert_allclose(clipper.watched.per_sample_gradient_norms, norms, rtol=1e-3)
        for name, gradient in zip(solver.layout.names, want, strict=True):
            scale = float(gradient.abs().max())
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=2e-3 * scale + 1e-9)
    clipper.close()
    assert all(not layer._forward_pre_hooks for layer in solver.module.modules())


def test_no_sample_pulls_further_than_the_clip():
    """A sample with a target far away, gradients of 1e6: alone in a batch, its pull is the clip."""
    pytest.importorskip("opacus")
    solver, data = Solver(GazeAngle(LeNet(), criterion="mse")), batch(1)
    solver.module.train()
    data["gaze"] *= 1e6
    clipper = Clipper(solver.module, 0.5)
    losses = each(solver.task, solver.task.forward(solver.module, data), data)
    pull = math.sqrt(sum(float(g.square().sum()) for g in clipper.gradients(losses)))
    assert pull == pytest.approx(0.5, rel=1e-3)
    assert pull <= 0.5 * (1 + 1e-4)


def test_losses_one_by_one_have_the_tasks_mean():
    task = GazeAngle(SmallEye())
    data, output = batch(6), torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(each(task, output, data).mean(), task.loss(output, data))


def test_layers_that_mix_samples_are_refused_with_the_repair():
    with pytest.raises(ConfigError, match=r"'1' is a BatchNorm2d, .*; use GroupNorm or LayerNorm"):
        refuse(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    with pytest.raises(ConfigError, match="build attention from Linear layers"):
        refuse(nn.ModuleDict({"a": nn.MultiheadAttention(4, 2)}))
    refuse(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)))


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.grad_sample", None)
    with pytest.raises(ConfigError, match=r"pip install 'vergence\[dp\]'"):
        Clipper(nn.Linear(2, 2), 1.0)


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
    gradients = [torch.zeros(100, 50), torch.zeros(3000)]
    noised(gradients, 2.0, 32.0, SECRET.child("p01", 3, 0).draws())
    flat = torch.cat([g.flatten() for g in gradients]) * 32 / 2
    assert kstest(flat, "norm").pvalue > 0.01
    again = [torch.zeros(100, 50), torch.zeros(3000)]
    noised(again, 2.0, 32.0, SECRET.child("p01", 3, 0).draws())
    assert torch.equal(again[1], gradients[1])
    other = [torch.zeros(100, 50), torch.zeros(3000)]
    noised(other, 2.0, 32.0, SECRET.child("p01", 3, 1).draws())
    assert not torch.equal(other[1], gradients[1])
