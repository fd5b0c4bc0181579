"""The protocols private inference runs with: who computes, and whom one has to trust."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.errors import ConfigError, nearest


@dataclass(frozen=True)
class Protocol:
    """A protocol of SPU.

    Attributes:
        parties: fewest and most.
        model: the security model: whom it holds against. Part of every row that is printed.
        source: the paper.
    """

    parties: tuple[int, int]
    model: str
    source: str


PROTOCOLS = {
    "aby3": Protocol(
        (3, 3), "semi-honest, honest majority (two of 3 together see all), no dealer",
        "Mohassel and Rindal 2018, ABY3",
    ),
    "cheetah": Protocol(
        (2, 2), "semi-honest, dishonest majority (one of 2 learns nothing), no dealer",
        "Huang, Lu, Hong, Ding 2022, Cheetah",
    ),
    "semi2k": Protocol(
        (2, 5), "semi-honest, DEALER: the first party makes the triples and could open all",
        "Cramer et al. 2018, SPDZ2k, without its codes",
    ),
}  # fmt: skip


def protocol(name: str, parties: int) -> Protocol:
    """Return a protocol for so many parties.

    Raises:
        ConfigError: an unknown one, or it takes another number.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"private inference: no protocol '{name}'{nearest(name, PROTOCOLS)}")
    found = PROTOCOLS[name]
    low, high = found.parties
    if not low <= parties <= high:
        allowed = f"{low}" if low == high else f"{low} to {high}"
        raise ConfigError(f"private inference: {name} takes {allowed} parties; got {parties}")
    return found
