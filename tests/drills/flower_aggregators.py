"""Drills over Flower with sums on shares: aggregators killed, beside a server and a client."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.drills.deployment import CLIENTS, TABLE, deployed, simulated, sums_opened
from tests.drills.drilling import Row
from tests.drills.test_aggregators import FEDCPF, NAMES, SHARES, ends

WHOLE = 900.0
"""Seconds that a few rounds may take at most."""


def killed() -> Row:
    """Kill an aggregator, then server and client; each comes back at once."""
    table = {**SHARES, "run": {**TABLE["run"], "rounds": 4}}
    with tempfile.TemporaryDirectory() as here, deployed(Path(here), table) as made:
        folders = ends(made)
        served = made.serve()
        joined = [made.run("join", folder) for folder in folders]
        made.until("round 1 of 4", WHOLE)
        made.kill(folders[-1])
        joined[-1] = made.run("join", folders[-1])
        made.until("round 2 of 4", WHOLE)
        made.kill(made.server)
        served.wait()
        made.kill(folders[1])
        joined[1] = made.run("join", folders[1])
        assert made.serve().wait(WHOLE) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0] * len(folders)
        same = made.fingerprints() == simulated(table, Path(here) / "here")
        sums = sums_opened(next((folders[-1] / "state").glob("*/fedcpf/sum.spent")))
    return Row(
        "aggregator, server, client kill -9",
        "same fingerprint, 4 sums of 4 rounds",
        f"{sums} sums; fingerprint {'equal' if same else 'DIFFERENT'}",
        same and sums == 4,
    )


def missing() -> Row:
    """Kill an aggregator who stays away: there is no sum, so the server stops."""
    table = {**FEDCPF, "run": {**TABLE["run"], "rounds": 3}}
    with tempfile.TemporaryDirectory() as here, deployed(Path(here), table, absent_s=5.0) as made:
        south = made.folder / "out" / "aggregators" / NAMES[1]
        joined = [made.run("join", folder) for folder in ends(made)]
        served = made.serve()
        made.until("round 1 of 3", WHOLE)
        made.kill(south)
        stopped = served.wait(WHOLE) != 0
        said = [row for row in made.events().splitlines() if "nobody's reply counted" in row]
        joined[len(CLIENTS) + 1] = made.run("join", south)
        assert made.serve().wait(WHOLE) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0] * len(joined)
        same = made.fingerprints() == simulated(table, Path(here) / "here")
        whole = {row["status"] for row in made.table("turns.csv")} == {"ok"}
    return Row(
        "an aggregator kill -9, away until the server stops",
        "the server stops, says who, goes on when it is back; same fingerprint",
        f"{said[-1] if said else 'SILENT'}; {'stopped' if stopped else 'WENT ON'}; all turns "
        f"{'counted' if whole else 'NOT COUNTED'}; fingerprint {'equal' if same else 'DIFFERENT'}",
        bool(said) and NAMES[1] in said[-1] and stopped and whole and same,
    )


def aggregator() -> Iterator[Row]:
    """Kill aggregators."""
    yield killed()
    yield missing()
