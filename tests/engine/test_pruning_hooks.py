"""What the hooks of pruning compute with, round by round, on a network of known numbers."""

from types import SimpleNamespace

import pytest
import torch

from tests.engine.learners import INPUTS, Mlp
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.requests import Compute, Fit, Forward, Step, StepResult
from vergence.engine.pruning_hooks import PruningHooks
from vergence.tasks.toy import ToyTask
from vergence.training.pruning import Gradual

TASK = ToyTask(Mlp(hidden=16))
"""Weights 16 x 6 and 1 x 16, 16 biases between."""
RAMP = Gradual(0.75, from_round=2, until_round=4)
"""Of 96 and 16 weights: none in round 1, then .75 (1 - (2/3)^3), .75 (1 - (1/3)^3), .75."""
GONE = {1: 0, 2: 51 + 8, 3: 69 + 12, 4: 72 + 12, 5: 72 + 12}


def whole(task):
    """The network that is not cut."""
    return task


def numbers():
    """Return 128 different parameters, none of them zero."""
    start = TASK.init()
    return start.like(torch.linspace(1.0, 2.0, len(start.flat)) * (-1) ** torch.arange(128))


def hooks(pruning=RAMP):
    made = PruningHooks(pruning, TASK)
    made.attach(TASK.module())
    return made


def zeros(params):
    return int((params.flat == 0).sum())


@pytest.mark.parametrize(("round", "gone"), GONE.items())
def test_every_kind_of_work_in_a_round_has_the_zeros_of_that_round(round, gone):
    start, seen = numbers(), []
    fit = hooks().training(Fit(start, Samples({}), LocalTraining(optimizer="sgd")), round)
    assert zeros(fit.params) == gone
    left = int((fit.params.flat != 0).sum()) if gone else 0
    assert (fit.trainable.count if fit.trainable else 0) == left
    assert zeros(hooks().predicting(start, round)) == gone

    def forward(ask):
        seen.append((ask.params, ask.batch))
        return "answer"

    turn = SimpleNamespace(message=SimpleNamespace(round=round - 1))
    batch = {"x": torch.zeros(1, INPUTS)}
    assert hooks().answer(Forward(start, batch, whole), turn, forward) == "answer"
    assert hooks().computing(Forward(start, batch, whole), round, forward) == "answer"
    assert [(zeros(params), given is batch) for params, given in seen] == [(gone, True)] * 2
    assert zeros(start) == 0  # a forward pass changes no parameters


@pytest.mark.parametrize("by_answer", [True, False])
def test_a_step_begins_and_ends_with_the_same_zeros_in_its_own_memory(by_answer):
    start, began = numbers(), []

    def step(ask):
        began.append((ask.params.flat == 0).nonzero().flatten().tolist())
        ask.params.flat.add_(1.0)
        return StepResult(ask.params, ask.optimiser, 0.5)

    ask = Step(start, "state", {}, LocalTraining(optimizer="sgd"), whole)
    turn = SimpleNamespace(message=SimpleNamespace(round=1))
    done = hooks().answer(ask, turn, step) if by_answer else hooks().computing(ask, 2, step)
    assert len(began[0]) == GONE[2]
    assert (start.flat == 0).nonzero().flatten().tolist() == began[0]
    assert done.params.flat.data_ptr() == start.flat.data_ptr()
    assert done.optimiser == "state"


def test_what_is_not_pruned_is_left_as_it_is():
    """Before the first round, other requests, and a network without such a layer."""
    start, seen = numbers(), []
    made = hooks()
    fit = Fit(start, Samples({}), LocalTraining(optimizer="sgd"))
    assert made.training(fit, 1) is fit
    assert made.predicting(start, 1) is start
    asks = [Compute(start, Samples({}), "loss"), Forward(start, {}, whole)]
    for ask in asks:
        made.computing(ask, 1, seen.append)
    assert all(given is ask for given, ask in zip(seen, asks, strict=True))
    made.computing(asks[0], 4, seen.append)
    assert seen[2] is asks[0]
    conv = hooks(Gradual(0.5, layers="conv"))
    conv.computing(asks[1], 4, seen.append)
    assert seen[3] is asks[1]


def test_a_model_is_pruned_again_for_other_parameters_and_other_rounds():
    made, start, other = hooks(), numbers(), numbers()
    first = made.predicting(start, 3)
    assert made.predicting(start, 3) is first
    assert zeros(made.predicting(start, 4)) == GONE[4]
    assert made.predicting(other, 4) is not made.predicting(start, 4)
    assert zeros(made.predicting(start, 2)) == GONE[2]


def test_the_score_is_the_share_of_zeros():
    start = numbers()
    assert hooks().scores(start) == {"zeros": 0.0}
    start.flat[:32] = 0
    assert hooks().scores(start) == {"zeros": 0.25}
