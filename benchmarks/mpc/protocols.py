"""Protocols of private inference: computing parties, and the trust that each one asks for."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.errors import ConfigError, nearest


@dataclass(frozen=True)
class Protocol:
    """A protocol of SPU or MP-SPDZ.

    Attributes:
        parties: fewest and most.
        model: the security model: whom it holds against. Part of every row that is printed.
        source: the paper.
        party: MP-SPDZ's program for a party; none: SPU's protocol.
        options: of MP-SPDZ's compiler: what numbers are, and how their bits are found.
    """

    parties: tuple[int, int]
    model: str
    source: str
    party: str = ""
    options: tuple[str, ...] = ()


ONE_OF_3 = "malicious with abort, honest majority (one of 3 may lie, two see all), no dealer"
PROTOCOLS = {
    "aby3": Protocol(
        (3, 3),
        "semi-honest, honest majority (two of 3 together see all), no dealer",
        "Mohassel and Rindal 2018, ABY3",
    ),
    "cheetah": Protocol(
        (2, 2),
        "semi-honest, dishonest majority (one of 2 learns nothing), no dealer",
        "Huang, Lu, Hong, Ding 2022, Cheetah",
    ),
    "semi2k": Protocol(
        (2, 5),
        "semi-honest, DEALER: the first party makes the triples and could open all",
        "Cramer et al. 2018, SPDZ2k, without its codes",
    ),
    "malicious_sy": Protocol(
        (3, 3),
        ONE_OF_3,
        "Abspoel, Dalskov, Escudero, Nof 2019, SPDZ-wise",
        "sy-rep-ring-party.x",
        ("-R", "64", "-Z", "3"),
    ),
    "malicious_ps": Protocol(
        (3, 3),
        ONE_OF_3,
        "Eerikson et al. 2019, products checked after",
        "ps-rep-ring-party.x",
        ("-R", "64", "-Z", "3"),
    ),
    "malicious_rep": Protocol(
        (3, 3),
        ONE_OF_3,
        "Eerikson et al. 2019, triples checked before",
        "malicious-rep-ring-party.x",
        ("-R", "64", "-Y"),
    ),
    "malicious_rep4": Protocol(
        (4, 4),
        "malicious with abort, honest majority (one of 4 may lie, two see all), no dealer",
        "Dalskov, Escudero, Keller 2020, Fantastic Four",
        "rep4-ring-party.x",
        ("-R", "64", "-Z", "4"),
    ),
    "mascot": Protocol(
        (2, 5),
        "malicious with abort, dishonest majority (all but one may lie), no dealer",
        "Keller, Orsini, Scholl 2016, MASCOT",
        "mascot-party.x",
        ("-F", "64"),
    ),
}


def protocol(name: str, parties: int | None = None) -> Protocol:
    """Return a protocol, for so many parties if that is asked.

    Raises:
        ConfigError: an unknown one, or it takes another number.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"private inference: no protocol '{name}'{nearest(name, PROTOCOLS)}")
    found = PROTOCOLS[name]
    low, high = found.parties
    if parties is not None and not low <= parties <= high:
        allowed = f"{low}" if low == high else f"{low} to {high}"
        raise ConfigError(f"private inference: {name} takes {allowed} parties; got {parties}")
    return found
