"""The zero-shot task: its classes, its scores on samples of both kinds, and what it refuses."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.task import Model
from vergence.data.synthetic.zsl_synthetic import NAMES, UNSEEN, ZslSynthetic
from vergence.errors import ConfigError, DataError
from vergence.tasks.zero_shot import ZeroShot


@dataclass(frozen=True)
class Same(Model):
    """Features are the scores."""

    inputs: int = 3

    def build(self):
        return nn.Identity()


TASK = ZeroShot(Same(), names=("cat", "dog", "elk"), unseen=("dog",))


def samples(*labels):
    return Samples({"x": torch.eye(3)[list(labels)], "y": torch.tensor(labels)})


def test_loss_and_scores():
    """Loss: ln(2 + e) - 1 each. A cat is told as cat, an elk as elk, one of two dogs as elk."""
    some = samples(0, 1, 1, 2)
    assert float(TASK.loss(some.columns["x"], some.columns)) == pytest.approx(
        math.log(2 + math.e) - 1
    )
    outputs = some.columns["x"].clone()
    outputs[2] = torch.tensor([0.0, 1.0, 2.0])
    found = TASK.metrics(outputs, some)
    assert found == pytest.approx({"T1": 1, "u": 0.5, "s": 1, "H": 2 / 3, "score": 2 / 3})
    assert TASK.per_class(outputs, some) == {"cat": 1.0, "dog": 0.5, "elk": 1.0}
    assert TASK.score(outputs[[0, 3]], samples(0, 2)) == 1.0  # a teacher's validation data


def test_classes():
    assert TASK.class_names() == ("cat", "dog", "elk")
    assert TASK.classes == 3
    assert replace(TASK, unseen=(1, "elk")).unseen_classes == (1, 2)
    assert TASK.class_of(samples(2, 0).columns).tolist() == [2, 0]
    bare = ZeroShot(Same())
    assert bare.class_names() == NAMES
    assert tuple(NAMES[i] for i in bare.unseen_classes) == UNSEEN


@pytest.mark.parametrize(
    ("unseen", "what"),
    [
        (("dgo",), r"'dgo', which is no class \(did you mean 'dog'"),
        ((3,), "'3', which is no class; give names, or numbers from 0 to 2"),
        ((), "some of the 3 classes but not all"),
        ((0, 1, 2), "some of the 3 classes but not all"),
        ((1, "dog"), "each once"),
    ],
)
def test_unseen_classes_that_cannot_be(unseen, what):
    with pytest.raises(ConfigError, match=what):
        _ = replace(TASK, unseen=unseen).unseen_classes


def test_a_network_of_other_classes_is_refused():
    with pytest.raises(ConfigError, match=r"returned \[2, 5\] for 2 samples.*\[2, 3\]"):
        TASK.forward(nn.Identity(), {"x": torch.zeros(2, 5)})


def test_data_must_have_the_task_s_classes_and_test_both_kinds():
    ZeroShot(Same()).check(ZslSynthetic(features=2).load())
    with pytest.raises(DataError, match=r"classes of 'zsl_synthetic' are tiny red.*cat, dog, elk"):
        TASK.check(ZslSynthetic(features=2).load())
    seen = samples(0, 2)
    with pytest.raises(DataError, match=r"test samples of owner are of classes \[0, 2\]"):
        TASK.check(Federation("toy", {"owner": Splits(seen, seen, seen)}))


def test_priors_look_at_nothing():
    some = Splits(samples(0, 0, 2), samples(0), samples(0, 1, 2, 2))
    found = TASK.priors(Federation("toy", {"owner": some}))
    always_cat = {"T1": 1.0, "u": 0.0, "s": 0.5, "H": 0.0, "score": 0.0}
    assert found["most frequent class"]["owner"] == always_cat
    chance = {"T1": 1, "u": 1 / 3, "s": 1 / 3, "H": 1 / 3, "score": 1 / 3}
    assert found["chance"]["owner"] == pytest.approx(chance)
