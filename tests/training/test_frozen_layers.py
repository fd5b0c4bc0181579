"""Layers of which nothing trains get no gradients, and no number moves for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.engine.learners import eyes
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, FitResult
from vergence.models.resnet18 import ResNet18
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.sequential import Solver

LOCAL = {
    "sgd": LocalTraining(optimizer="sgd", batch=8, momentum=0.9, weight_decay=0.01, clip=0.5),
    "adamw": LocalTraining(batch=8, optimizer="adamw", lr=1e-3),
}


def head_of(params: Params) -> Mask:
    """Return the mask of the two tensors that the network registers last."""
    return Mask.layers(params.layout, *params.layout.names[-2:])


def fit(solver: Solver, local: LocalTraining, trainable: Mask | None) -> FitResult:
    """Return the result of one fit on 32 pictures of eyes."""
    ask = Fit(solver.task.init(), eyes(32, 1), local, trainable=trainable)
    return solver.fit(ask, RandomStream("frozen", 1))


@pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL)
def test_frozen_layers_move_no_bit(monkeypatch: pytest.MonkeyPatch, local: LocalTraining) -> None:
    solver = Solver(GazeAngle(ResNet18(4, 4, 1)))
    head = head_of(solver.task.init())
    fast = fit(solver, local, head)
    monkeypatch.setattr(Solver, "_frozen", lambda *_: [])
    slow = fit(solver, local, head)
    assert torch.equal(fast.params.flat, slow.params.flat)
    assert fast.metrics == slow.metrics
    assert not torch.equal(fast.params.flat, solver.task.init().flat)


def test_the_backward_pass_ends_at_the_first_layer_that_trains() -> None:
    """A hook on the body's weights hears nothing; without a mask it does, after the same fit."""
    solver, heard = Solver(GazeAngle(ResNet18(4, 4, 1))), []
    head = head_of(solver.task.init())
    first = solver.parameters[0]
    first.register_hook(lambda *_: heard.append(1))
    fit(solver, LOCAL["sgd"], head)
    assert heard == []
    fit(solver, LOCAL["sgd"], None)
    assert len(heard) == 4


def test_a_failed_step_leaves_gradients_on(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = Solver(GazeAngle(ResNet18(4, 4, 1)))

    def broken(*_: object) -> Tensor:
        raise RuntimeError("a step failed")

    monkeypatch.setattr("vergence.training.sequential.training_loss", broken)
    with pytest.raises(RuntimeError, match="a step failed"):
        fit(solver, LOCAL["sgd"], head_of(solver.task.init()))
    assert all(parameter.requires_grad for parameter in solver.parameters)


class Unused(nn.Module):
    """A network whose last layer has no part in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = ResNet18(4, 4, 1).build(), nn.Linear(2, 2)

    def forward(self, image: Tensor, pose: Tensor) -> Tensor:
        return self.body(image, pose)


def test_a_head_without_a_part_in_the_output_only_decays(monkeypatch) -> None:
    task = GazeAngle(ResNet18(4, 4, 1))
    monkeypatch.setattr(GazeAngle, "module", lambda *_: Unused())
    solver = Solver(task)
    start = Params.of(solver.module)
    head = Mask.layers(start.layout, "head.*")
    ask = Fit(start, eyes(32, 1), LocalTraining(optimizer="sgd", batch=8), trainable=head)
    done = solver.fit(ask, RandomStream("frozen", 1))
    assert done.steps == 4
    assert bool((done.params.flat.abs() <= start.flat.abs()).all())
