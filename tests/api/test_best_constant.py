"""The constant answer of tasks made of functions: by hand, and where none makes sense."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import vergence as vg

TARGETS = {"a": [0.0, 1.0, 2.0, 10.0], "b": [3.0, 4.0, 5.0, 6.0]}
"""Mean 3.875; the middle two of eight are 3 and 4, of which torch's median is the lower."""


def people(targets, kind="float32"):
    """Everybody's samples are all for training but one: half a person's are kept for tests."""
    made = {p: np.array(y, dtype=kind) for p, y in targets.items()}
    return vg.Federation.from_arrays(
        {p: (np.ones((2 * len(y), 1), "float32"), np.concatenate([y, y])) for p, y in made.items()}
    )


def constant(loss, targets=TARGETS, kind="float32", width=1, end=()):
    task = vg.task_from(lambda: nn.Sequential(nn.Linear(1, width), *end), loss)
    federation = people(targets, kind)
    train = [splits.train for splits in federation.people.values()]
    values = torch.cat([part.columns["y"] for part in train]).double()
    return task.best_constant(train), values, task.priors(federation)


def test_squares_want_the_mean_and_distances_the_median():
    found, values, priors = constant(nn.MSELoss())
    assert float(found) == pytest.approx(float(values.mean()), abs=1e-3)
    found, values, _ = constant(nn.L1Loss())
    right = (values - float(found)).abs().mean()
    assert right == pytest.approx(float((values - values.median()).abs().mean()))
    assert list(priors) == ["best constant"]
    assert set(priors["best constant"]) == {"a", "b"}


def test_a_loss_of_ones_own_is_minimised_numerically():
    """Four times as dear below as above wants the 0.8 quantile: of eight numbers the seventh, 6.

    There the loss is (.8 * 4 + .2 * (6 + 5 + 4 + 3 + 2 + 1)) / 8 = .925, at the mean 1.3.
    """
    found, values, _ = constant(lambda o, t: torch.maximum(0.8 * (t - o), 0.2 * (o - t)).mean())
    rest = values - float(found)
    assert float(torch.maximum(0.8 * rest, -0.2 * rest).mean()) == pytest.approx(0.925, rel=0.05)


@pytest.mark.parametrize(
    ("loss", "end"), [(nn.CrossEntropyLoss(), ()), (nn.NLLLoss(), (nn.LogSoftmax(1),))]
)
def test_classes_want_their_shares(loss, end):
    """Losses of logits and of logarithms of probabilities; the latter have no least otherwise."""
    found, values, _ = constant(loss, {"a": [0, 0, 0, 1], "b": [0, 0, 1, 1]}, "int64", 2, end)
    share = float((values == 0).double().mean())
    assert float(torch.softmax(found, -1)[0]) == pytest.approx(share, abs=1e-3)


def test_a_loss_without_a_gradient_takes_the_best_candidate():
    def wrong(outputs, targets):
        return (outputs.argmax(1) != targets).float().mean()

    found, values, _ = constant(wrong, {"a": [1, 1, 1, 0], "b": [1, 1, 0, 1]}, "int64", 2)
    assert int(found.argmax()) == round(float(values.mean())) == 1


def test_probabilities_stay_so():
    found, values, _ = constant(
        nn.BCELoss(), {"a": [0, 0, 1, 1], "b": [1, 1, 1, 1]}, end=(nn.Sigmoid(),)
    )
    assert float(found) == pytest.approx(float(values.mean()), abs=1e-3)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: -(o * t).mean(),  # no least value
        lambda o, t: (o.var() + 1e-12) / (o.var() * 0) + t.sum() * 0,  # compares samples
        lambda o, t: torch.tensor(math.nan) + o.sum() * 0 + t.sum() * 0,
    ],
)
def test_where_no_constant_makes_sense_there_is_no_baseline(loss):
    task = vg.task_from(lambda: nn.Linear(1, 1), loss)
    assert task.priors(people(TARGETS)) == {}
