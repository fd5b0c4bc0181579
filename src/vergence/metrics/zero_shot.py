"""Zero-shot scores over seen and unseen classes, every class counting once; and ESZSL.

Used by `tasks.zero_shot`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def class_accuracy(
    scores: Float[Tensor, "n classes"],
    label: Int[Tensor, " n"],
    among: Sequence[int] | None = None,
) -> Float[Tensor, " classes"]:
    """Return the accuracy of every class; NaN for a class without samples.

    The answer is the highest score, of equal ones the lowest class. A score of minus infinity is no
    answer: a network that does not know a class cannot guess it.

    Args:
        scores: score of every sample and class.
        label: the right class, from 0.
        among: the classes that may be answered; None: all.
    """
    classes = scores.shape[1]
    allowed = torch.arange(classes) if among is None else torch.tensor(list(among))
    best, at = scores[:, allowed].max(1)
    answer = torch.where(best > -torch.inf, allowed[at], -1)
    every = label.bincount(minlength=classes)
    right = label[answer == label].bincount(minlength=classes)
    # A class without samples has 0 / 0, which is NaN.
    return right.double() / every


def harmonic(u: float, s: float) -> float:
    """Return the harmonic mean 2us / (u + s); 0 where both are 0.

    `zero_shot_scores` calls it; the papers' checks recompute printed tables with it.

    Examples:
        >>> harmonic(0.5, 0.25)
        0.3333333333333333
        >>> harmonic(0.0, 0.0)
        0.0
    """
    return 2 * u * s / (u + s) if u + s else 0.0


def zero_shot_scores(
    scores: Float[Tensor, "n classes"], label: Int[Tensor, " n"], unseen: Sequence[int]
) -> dict[str, float]:
    """Return `T1`, `u`, `s` and `H` of a classifier, as far as the samples determine them.

    `u` and `s` are the mean accuracies of unseen and of seen classes where every class may be
    answered, `H` is their harmonic mean, and `T1` is that of unseen classes where only those may be
    answered. A class without samples does not count.

    Source: Xian, Lampert, Schiele, Akata, "Zero-shot learning: a comprehensive evaluation of the
    good, the bad and the ugly", TPAMI 2019, section 4.
    """
    hidden = torch.zeros(scores.shape[1], dtype=torch.bool)
    hidden[list(unseen)] = True
    free = class_accuracy(scores, label)
    found = {
        "T1": class_accuracy(scores, label, unseen)[hidden].nanmean(),
        "u": free[hidden].nanmean(),
        "s": free[~hidden].nanmean(),
    }
    known = {name: float(value) for name, value in found.items() if not value.isnan()}
    if "u" in known and "s" in known:
        known["H"] = harmonic(known["u"], known["s"])
    return known


def eszsl(
    x: Float[Tensor, "n d"],
    label: Int[Tensor, " n"],
    meaning: Float[Tensor, "classes a"],
    lamda: float = 1.0,
    gamma: float | None = None,
) -> Float[Tensor, "d a"]:
    """Return the closed-form map V of ESZSL: samples score x V meaning^T.

    Benchmarks compute reference scores by it.

    V = (X^T X + gamma I)^-1 X^T Y S (S^T S + lamda I)^-1, where Y is 1 for a sample's own class and
    -1 for the other classes of `label`, and S are the meanings of these classes. Without a sample
    of a class its meaning plays no part.

    Args:
        x: features of the samples to learn from.
        label: their classes, from 0, rows of `meaning`.
        meaning: one row per class, learned or not.
        lamda: regularisation of the meanings.
        gamma: regularisation of the features; None: as `lamda`.

    Source: Romera-Paredes, Torr, "An embarrassingly simple approach to zero-shot learning", ICML
    2015, equation 6.
    """
    seen = label.unique()
    x, s = x.double(), meaning[seen].double()
    y = 2.0 * (label[:, None] == seen).double() - 1
    left = x.T @ x + (lamda if gamma is None else gamma) * torch.eye(x.shape[1]).double()
    right = s.T @ s + lamda * torch.eye(s.shape[1]).double()
    half = torch.linalg.solve(left, x.T @ y @ s)
    return torch.linalg.solve(right, half.T).T.float()
