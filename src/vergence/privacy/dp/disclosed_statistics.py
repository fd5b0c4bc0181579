"""Laplace mechanism for a few numbers, such as class counts, that a method has people disclose.

Nothing bounds a distance or a count by itself, so they are cut first, to bounds that must be known
before anybody's data are seen.

Used by `audit.disclosed_statistics`.

Source: Dwork, McSherry, Nissim and Smith, "Calibrating noise to sensitivity in private data
analysis", TCC 2006.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from torch import Tensor

from vergence.core.options import NamedOptions
from vergence.privacy.keyed_noise import NoiseStream, hidden


@dataclass(frozen=True)
class DisclosedStatistics(NamedOptions, label="told numbers"):
    """Laplace noise on a few numbers of one person, disclosed once.

    Attributes:
        bound: each number is cut to [0, bound], where the bound is not learned from the data. If a
            number is a mean, every sample's value must have been cut in the same way, or one sample
            could move the mean by more than `change`.
        change: L1 distance, over all numbers, by which the protected sample or person can move them
            (`of_mean`, `of_counts`).
        epsilon: epsilon of one disclosure, with delta 0. Every further disclosure costs as much
            again.
    """

    bound: Annotated[float, Gt(0)]
    change: Annotated[float, Gt(0)]
    epsilon: Annotated[float, Gt(0)]

    @property
    def scale(self) -> float:
        """Scale of the noise; its standard deviation is sqrt(2) times that."""
        return self.change / self.epsilon

    def privatize(self, numbers: Tensor, draws: NoiseStream) -> Tensor:
        """Return numbers of any shape, cut to the bound and with noise, in float64."""
        # Without the cut a single outlier could move a number further than the noise hides.
        bounded = numbers.double().clamp(0, self.bound)
        return hidden(bounded, self.scale, draws.laplace(bounded.numel()))


@dataclass(frozen=True)
class Changes:
    """L1 changes of numbers when one of a person's samples is replaced, and when all are."""

    sample: Annotated[float, Gt(0)]
    person: Annotated[float, Ge(0)]


def of_mean(bound: float, numbers: int, samples: int) -> Changes:
    """Return the changes of means over `samples` samples whose values are in [0, bound].

    Examples:
        >>> of_mean(100.0, numbers=1, samples=20)
        Changes(sample=5.0, person=100.0)
    """
    return Changes(bound * numbers / samples, bound * numbers)


def of_counts(most: float) -> Changes:
    """Return the changes of class counts over at most `most` samples.

    Examples:
        >>> of_counts(300)
        Changes(sample=2.0, person=600.0)
    """
    return Changes(2.0, 2.0 * most)
