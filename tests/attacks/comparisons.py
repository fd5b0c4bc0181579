"""Reconstruction of real samples from the comparison gradients that a PE-ZSL owner answers.

In a black box an owner of PE-ZSL answers the gradient of  alpha KL(softmax(real) || softmax(made)),
the mean over as many real samples as made-up ones. Of a row that is

    alpha (softmax(made) - softmax(real)) / rows

so whoever asked knows softmax(real), of one sample in every row. In a white box the teacher's
gradient is added; asked twice about the same samples it is the same, and the real ones are others.

Source: derived from Equations 5.2 and 5.5 of the Durham thesis.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

FLOOR = 1e-12
"""The least share of an entry: what is rounded may come out below 0."""
Rows = Float[Tensor, "rows entries"]


def compared(made: Rows, gradients: Rows, alpha: float) -> Rows:
    """Return softmax(real) of the real sample that each made-up one was compared with.

    Args:
        made: what was asked about.
        gradients: of the distance alone, as answered.
        alpha: its weight, which the provider chose.
    """
    return made.softmax(1) - gradients * len(made) / alpha


def exchanged(first: Rows, second: Rows, alpha: float) -> Rows:
    """Return softmax(real) of a first answer less that of a second to the same made-up samples."""
    return (second - first) * len(first) / alpha


def rebuilt(shares: Rows) -> Rows:
    """Return samples of these shares whose least entry is 0: real ones, up to a constant each."""
    found = shares.clamp(min=FLOOR).log()
    return found - found.amin(1, keepdim=True)
