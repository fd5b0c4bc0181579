"""Predictions of a finished run as a table, its confusion matrix, and what is no such table."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from torch import nn
from torch.nn.functional import cross_entropy

import vergence as vg
from tests.experiment.made_up import arrays, trained


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


@pytest.fixture(scope="module")
def classifier():
    people = {p: {"x": a["x"], "y": (a["y"] > 0) + (a["y"] > 2) * 1} for p, a in arrays().items()}
    task = vg.task_from(lambda: nn.Linear(4, 4), cross_entropy, {"accuracy": accuracy}, False)
    people = vg.Federation.from_arrays(people)
    return trained(method=vg.methods.FedAvg(), task=task, people=people, rounds=3)


def test_predictions_give_the_scores_of_the_run(classifier):
    frame = classifier.predictions()
    assert [*frame] == ["person", "sample", "y", *(f"output_{n}" for n in range(4)), "target",
                        "predicted"]  # fmt: skip
    right = (frame.target == frame.predicted).groupby(frame.person).mean()
    assert right.to_dict() == pytest.approx(classifier.scores["accuracy"].to_dict())
    assert (frame.y == frame.target).all()
    one = frame[frame.person == "p02"]
    tested = classifier.loaded.raw.people["p02"].test.columns["x"].numpy()
    outputs = classifier.predict("p02", tested).numpy()
    assert np.array_equal(one[[f"output_{n}" for n in range(4)]].to_numpy(), outputs)


def test_confusion_and_classes_are_those_of_scikit_learn(classifier):
    """The fourth class is never true, and may never be predicted: its precision is no number."""
    frame, counts = classifier.predictions(), classifier.confusion()
    names = [*counts.index]
    expected = confusion_matrix(frame.target, frame.predicted, labels=names)
    assert np.array_equal(counts.to_numpy(), expected)
    assert [*counts.columns] == names
    table = classifier.classes()
    expected = precision_recall_fscore_support(
        frame.target, frame.predicted, labels=names, zero_division=np.nan
    )
    for column, values in zip(("precision", "recall"), expected, strict=False):
        assert np.allclose(table[column], values, equal_nan=True)
    assert table.samples.tolist() == expected[3].tolist()
    both = 2 * np.diag(counts) / (counts.sum(axis=0) + counts.sum(axis=1)).to_numpy()
    assert np.allclose(table.f1, both, equal_nan=True)


def test_a_regression_has_outputs_and_no_classes():
    run = trained(rounds=1)
    frame = run.predictions()
    assert [*frame] == ["person", "sample", "y", "output"]
    error = ((frame.y - frame.output) ** 2).groupby(frame.person).mean()
    assert error.to_dict() == pytest.approx(run.scores["test_loss"].to_dict(), rel=1e-5)
    with pytest.raises(vg.ConfigError, match="need class numbers as targets"):
        run.confusion()
    with pytest.raises(vg.ConfigError, match="need class numbers as targets"):
        run.classes()


def test_maps_are_refused_with_what_to_use():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 6)

        def forward(self, x):
            return self.line(x).reshape(-1, 2, 3)

    people = {p: {"x": a["x"], "y": np.zeros((40, 2, 3))} for p, a in arrays().items()}
    task = vg.task_from(Rows, nn.functional.mse_loss)
    people = vg.Federation.from_arrays(people)
    run = trained(method=vg.methods.FedAvg(), task=task, people=people, rounds=1)
    with pytest.raises(vg.ConfigError, match=r"use run\.predict\(person, samples\)"):
        run.predictions()
