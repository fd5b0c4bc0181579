"""Re-identification of people by the few numbers that a method has each of them disclose.

The server received numbers from one of N people, or about one of N videos, and names which. It
knows everybody's numbers from a copy of the data (`closest`), or estimates them from other data of
the same people (linkage: `closest` for distances, `likeliest` for counts of classes). Chance is one
in N. Counts also say whether somebody has samples of a class at all (`has_class`).

Source of the question: Nasr, Shokri and Houmansadr, "Comprehensive privacy analysis of deep
learning", IEEE S&P 2019 (a server that looks), for numbers beside the updates.

Used by `audit.disclosed_statistics`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vergence.errors import ConfigError

# Added to every known count: a class without a sample in the known data would have probability 0,
# and one sample of it would rule the person out.
SMOOTH = 0.5


def closest(known: Tensor, asked: Tensor) -> Tensor:
    """Return the candidate that is nearest to each disclosure by L1 distance, int64 `[asked]`.

    The audit of disclosed statistics guesses by it who disclosed numbers.

    Args:
        known: `[candidates, numbers]`, the numbers of each candidate; in a tie the first is named.
        asked: `[asked, numbers]`, the disclosed numbers, with noise or without.

    Raises:
        ConfigError: fewer than two candidates, or other numbers than theirs.
    """
    _refuse(known, asked)
    # Under Laplace noise of one scale, the nearest candidate by L1 is the one of largest
    # likelihood.
    return torch.cdist(asked.double(), known.double(), p=1).argmin(1)


def likeliest(known: Tensor, asked: Tensor) -> Tensor:
    """Return the candidate whose classes make the disclosed counts likeliest, int64 `[asked]`.

    The audit of disclosed statistics guesses by it who disclosed class counts.

    The log-likelihood is multinomial: sum_y asked_y log p_y, where p are the shares of the known
    counts with half a sample added to each.

    Args:
        known: `[candidates, classes]`, counts in other data of the same people.
        asked: `[asked, classes]`, the disclosed counts; negative ones, from noise, count as 0.

    Raises:
        ConfigError: see `closest`.
    """
    _refuse(known, asked)
    smooth = known.double().clamp(min=0) + SMOOTH
    shares = (smooth / smooth.sum(1, keepdim=True)).log()
    return (asked.double().clamp(min=0) @ shares.T).argmax(1)


def has_class(counts: Tensor) -> Tensor:
    """True where a person has a class, by counts `[people, classes]`: half a sample or more."""
    return counts >= 0.5


def _refuse(known: Tensor, asked: Tensor) -> None:
    if len(known) < 2 or known.shape[1:] != asked.shape[1:]:
        raise ConfigError(
            "shared numbers: at least two candidates are needed, each with as many numbers as were "
            f"disclosed; got {list(known.shape)} known and {list(asked.shape)} asked"
        )
