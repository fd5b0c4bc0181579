"""What a deployment over Flower must survive, as a table: `make drills-flower`.

    python -m tests.drills.flower_drills [attacks slow clients server client aggregator joins
        upgrades networks machines] [--row right|wrong]

Real processes on this machine, over TLS with node keys. Exit code 1 if any row fails.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.drills import attacks as attacking
from tests.drills import flower_deaths
from tests.drills.deployment import CLIENTS, deployed, fedcpf, simulated
from tests.drills.drilling import ROWS, Row, asked, printed
from tests.drills.flower_aggregators import aggregator
from tests.drills.joining import joins
from tests.drills.machines import machines
from tests.drills.networks import networks
from tests.drills.upgrades import upgrades

ROUNDS = 240
"""Rounds during which a server is attacked."""


def attacks() -> Iterator[Row]:
    """Attack a server while its clients go on; their run must not be changed by a bit."""
    with tempfile.TemporaryDirectory() as here, deployed(Path(here), fedcpf(ROUNDS)) as made:
        at = attacking.field(made)
        served = made.serve()
        made.until("clients expected", attacking.PATIENCE)
        for name in CLIENTS:
            made.join(name)
        yield from attacking.requests(at)
        yield attacking.announced(at)
        yield from attacking.connections(at)
        yield from attacking.clients(at)
        yield from attacking.impostor(at)
        want = simulated(fedcpf(ROUNDS), Path(here) / "here")
        done = served.wait(900) == 0 and made.fingerprints() == want
        yield Row(
            "the attacked run",
            "the simulator's fingerprint",
            f"{ROUNDS} rounds, {'equal' if done else 'DIFFERENT'}",
            done,
        )
    with tempfile.TemporaryDirectory() as here, deployed(Path(here), fedcpf(1)) as made:
        yield from attacking.undressed(made)
        yield from attacking.old_server(made)


def slow() -> Iterator[Row]:
    """Hold slow sockets open while rounds are timed; then take a client's key away."""
    settings: dict[str, Any] = {"absent_s": 30.0}
    with (
        tempfile.TemporaryDirectory() as here,
        deployed(Path(here), fedcpf(1000), **settings) as made,
    ):
        at = attacking.field(made)
        made.serve()
        joined = [made.join(name) for name in CLIENTS]
        made.until("round 3 of", 300)
        yield attacking.slowed(at, 200, blocks=5, each=6)
        yield attacking.slowed(at, 1000, blocks=3, each=6, most=None)
        yield attacking.flood(at, 1000)
        yield attacking.revoked(at, joined)


DRILLS: dict[str, Callable[[], Iterator[Row]]] = {
    "attacks": attacks,
    "slow": slow,
    "clients": flower_deaths.clients,
    "server": flower_deaths.server,
    "client": flower_deaths.client,
    "aggregator": aggregator,
    "joins": joins,
    "upgrades": upgrades,
    "networks": networks,
    "machines": machines,
}


def drilled(name: str) -> Iterator[Row]:
    """Drill; one that comes to no end is a row too."""
    try:
        yield from DRILLS[name]()
    except AssertionError as error:
        said = " ".join(str(error).split())
        yield Row(f"drill '{name}'", "comes to its end", said[:100] + " ... " + said[-300:], False)


def main() -> None:
    """Drill, print a line as it comes, and the table."""
    given = asked(DRILLS, __doc__ or "")
    rows = (row for name in given.drills for row in drilled(name))
    printed([ROWS[given.row]] if given.row else rows)


if __name__ == "__main__":
    main()
