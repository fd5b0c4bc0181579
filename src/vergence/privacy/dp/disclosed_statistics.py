"""Laplace mechanism for a few numbers, such as class counts, that a method has people disclose.

A distance or a count has no bound of its own. So the numbers are clipped first, to bounds that must
be known before anybody's data are seen.

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
        bound: each number is clipped to [0, bound]. The bound must not be learned from the data. If
            a number is a mean, every sample's value must have been clipped to [0, bound] too;
            otherwise one sample could move the mean by more than `change`.
        change: largest L1 distance by which the protected sample or person can move all numbers
            together; see `of_mean` and `of_counts`.
        epsilon: epsilon of one disclosure, with delta 0. Every further disclosure spends the same
            epsilon again.
    """

    bound: Annotated[float, Gt(0)]
    change: Annotated[float, Gt(0)]
    epsilon: Annotated[float, Gt(0)]

    @property
    def scale(self) -> float:
        """Scale of the Laplace noise; its standard deviation is sqrt(2) times the scale."""
        return self.change / self.epsilon

    def privatize(self, numbers: Tensor, draws: NoiseStream) -> Tensor:
        """Return numbers of any shape, clipped to [0, bound] and with noise, in float64."""
        # Without the cut a single outlier could move a number further than the noise hides.
        bounded = numbers.double().clamp(0, self.bound)
        return hidden(bounded, self.scale, draws.laplace(bounded.numel()))


@dataclass(frozen=True)
class Changes:
    """Largest L1 changes of the numbers that a person discloses.

    Attributes:
        sample: change if one of the person's samples is replaced.
        person: change if all of the person's samples are replaced.
    """

    sample: Annotated[float, Gt(0)]
    person: Annotated[float, Ge(0)]


def of_mean(bound: float, numbers: int, samples: int) -> Changes:
    """Return the largest changes of `numbers` means of values in [0, bound].

    Each mean is over `samples` samples.

    Examples:
        >>> of_mean(100.0, numbers=1, samples=20)
        Changes(sample=5.0, person=100.0)
    """
    return Changes(bound * numbers / samples, bound * numbers)


def of_counts(most: float) -> Changes:
    """Return the largest changes of class counts over at most `most` samples of a person.

    Examples:
        >>> of_counts(300)
        Changes(sample=2.0, person=600.0)
    """
    return Changes(2.0, 2.0 * most)
