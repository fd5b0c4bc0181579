"""Re-identification of people by the few numbers that a method has each of them disclose.

A game: the server was told numbers by one of N people, or knows which N videos there are, and names
one. It knows what each of them would tell, by a copy of the data (`closest`), or by other data of
the same people (linkage: `closest` for distances, `likeliest` for counts of classes). Chance is one
in N. A class is somebody's if its count says so (`held`).

Source of the question: Nasr, Shokri and Houmansadr, "Comprehensive privacy analysis of deep
learning", IEEE S&P 2019 (a server that looks), for numbers beside the updates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vergence.errors import ConfigError

SMOOTH = 0.5
"""Added to every known count: a person may have a class without a sample of it in known data."""


def closest(known: Tensor, asked: Tensor) -> Tensor:
    """Return the candidate that is nearest to each disclosure by L1 distance, int64 `[asked]`.

    Args:
        known: `[candidates, numbers]`, the numbers of each candidate; of equals the first is named.
        asked: `[asked, numbers]`, with noise or without. Laplace noise alike in all numbers makes
            the nearest by L1 the likeliest.

    Raises:
        ConfigError: fewer than two candidates, or other numbers than theirs.
    """
    _refuse(known, asked)
    return torch.cdist(asked.double(), known.double(), p=1).argmin(1)


def likeliest(known: Tensor, asked: Tensor) -> Tensor:
    """Return the candidate whose classes make the disclosed counts likeliest, int64 `[asked]`.

    Multinomial: sum_y asked_y log p_y, p the known counts' shares, half a sample added to each.

    Args:
        known: `[candidates, classes]`, counts in other data of the same people.
        asked: `[asked, classes]`; what noise made negative counts as 0.

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
            f"shared numbers: two candidates at least, with as many numbers as are told; got "
            f"{list(known.shape)} known and {list(asked.shape)} asked"
        )
