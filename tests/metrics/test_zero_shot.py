"""Per-class accuracies, their harmonic mean, and ESZSL, by hand."""

import pytest
import torch

from vergence.metrics.zero_shot import class_accuracy, eszsl, harmonic, zero_shot_scores

INF = float("inf")
LABEL = torch.tensor([0, 0, 0, 0, 1, 1, 2])
SCORES = torch.tensor(
    [
        [9.0, 1, 2, 0],
        [9, 1, 2, 0],
        [9, 1, 2, 0],
        [1, 2, 9, 0],  # class 0: three of four
        [5, 4, 3, 9],
        [5, 6, 3, 0],  # class 1: the second; the third class's 3 is below 4 and 6
        [9, 1, 2, 0],  # class 2: not among all, right among the unseen
    ]
)


def test_every_class_counts_once():
    """Accuracies 3/4, 1/2 and 0; class 3 has no sample. Over samples it would be 4/7."""
    found = class_accuracy(SCORES, LABEL)
    assert found[:3].tolist() == [0.75, 0.5, 0.0]
    assert found[3].isnan()


def test_the_four_scores():
    """Seen are 0 and 3: s = 3/4, as 3 has no sample. Unseen are 1 and 2.

    Among all: 1/2 and 0, u = 1/4. Among 1 and 2 alone: both right of 1, one of 2, T1 = 1.
    H = 2 * 1/4 * 3/4 / 1 = 3/8.
    """
    told = {"T1": 1.0, "u": 0.25, "s": 0.75, "H": 0.375}
    assert zero_shot_scores(SCORES, LABEL, [1, 2]) == pytest.approx(told)


def test_only_what_samples_tell_is_told():
    assert set(zero_shot_scores(SCORES[:4], LABEL[:4], [1, 2])) == {"s"}
    assert set(zero_shot_scores(SCORES[4:], LABEL[4:], [1, 2])) == {"T1", "u"}


def test_a_class_that_a_teacher_does_not_know_is_never_answered():
    """A quasi-omniscient teacher: of equal scores the first class would win, so T1 would be 1/2."""
    scores = SCORES.clone()
    scores[:, 1:3] = -INF
    found = zero_shot_scores(scores, LABEL, [1, 2])
    assert found == {"T1": 0.0, "u": 0.0, "s": 1.0, "H": 0.0}


def test_harmonic_mean():
    assert harmonic(0.779, 0.818) == pytest.approx(0.798, abs=5e-4)  # Table 5.2, AWA1
    assert harmonic(0.0, 0.9) == harmonic(0.0, 0.0) == 0.0


def test_eszsl_by_hand():
    """x = (1, 2, -1) of classes 0, 0, 1 with meanings 1 and 3; class 2 has no sample.

    X'Y = (1+2+1, -1-2-1) = (4, -4), times S = (1, 3)': 4 - 12 = -8; X'X = 6, S'S = 10.
    V = -8 / (6 + 2) / (10 + 1) = -1 / 11.
    """
    x, meaning = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([[1.0], [3.0], [50.0]])
    found = eszsl(x, torch.tensor([0, 0, 1]), meaning, lamda=1.0, gamma=2.0)
    assert found.tolist() == [[pytest.approx(-1 / 11)]]
