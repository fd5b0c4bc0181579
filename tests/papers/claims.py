"""Claims as tests state them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from vergence_papers.claims import Claim, Pair


def better(text: str, where: str, these: str, *rivals: str, **more: Any) -> Claim:
    """Return the claim that one row is better than each rival."""
    return Claim(text, where, tuple(Pair((these,), rival) for rival in rivals), **more)


def alike(text: str, where: str, within: float, these: str, *rivals: str, **more: Any) -> Claim:
    """Return the claim that one row is like each rival, to within so much."""
    return better(text, where, these, *rivals, within=within, **more)


def order(text: str, where: str, *labels: str, **more: Any) -> Claim:
    """Return the claim that rows stand in this order, worst first."""
    return Claim(text, where, tuple(Pair((high,), low) for low, high in pairwise(labels)), **more)


def peak(text: str, where: str, these: Sequence[str], others: Sequence[str], **more: Any) -> Claim:
    """Return the claim that some settings, on average, are better than every other one."""
    return Claim(text, where, tuple(Pair(tuple(these), other) for other in others), **more)
