"""Drills: a client that nobody thought of joins a federation in the middle of its run."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.drills.deployment import CLIENTS, Deployment, deployed, fedcpf, simulated
from tests.drills.drilling import Row
from vergence.core.files import csv_of
from vergence.deployment.folder_setup import admit, make_key
from vergence.deployment.folders import ServerSide, settings

LATE = "p03"
ROUNDS = 5
FOUR = {**fedcpf(ROUNDS)["federation"], "people": 4}
PLAIN = {**fedcpf(ROUNDS), "federation": FOUR}
SECURE = {
    **PLAIN,
    "methods": ["fedavg"],
    "privacy": {"aggregation": {"name": "pairwise", "clients": 4}},
}
SHARED = {
    **SECURE,
    "privacy": {
        "aggregation": {"name": "additive", "aggregators": ["north", "south"], "clients": 4}
    },
}


def with_late(table: Mapping[str, Any], begins: int, folder: Path) -> dict[str, dict[str, str]]:
    """Return what the simulator says if a person is away until a round, from 0."""
    rows = [(name, begins if name == LATE else 0, 1, 1) for name in (*CLIENTS, LATE)]
    trace = folder / "trace.csv"
    trace.write_text(csv_of([("client", "round", "idle", "charging"), *rows]))
    return simulated({**table, "presence": {"trace": str(trace)}}, folder / "here")


def admitted(made: Deployment, own: Path) -> bool:
    """Let all believe the new client's key; return whether it had to believe theirs first."""
    public = own / "public" / f"{LATE}.pub"
    parties = sorted((made.folder / "out").glob("aggregators/*"))
    others = [*map(made.client, CLIENTS), *parties]
    digests = {folder: admit(folder, public, "") for folder in others}
    said = digests[others[0]]
    for folder in others:
        admit(folder, public, said)
    for folder in parties:
        made.kill(folder)
        made.run("join", folder)
    refused = made.join(LATE).wait(60) != 0 and "deploy admit" in made.said()
    again = made.run("admit", made.client(LATE), "--roster", said).wait(60)
    return refused and again == 0 and set(digests.values()) == {said}


def join_late(folder: Path, table: Mapping[str, Any]) -> tuple[str, bool]:
    """Kill a server in the middle of a run, add a client, go on; say what came out."""
    began, secure, agreed = time.monotonic(), "privacy" in table, True
    with deployed(folder, table) as made:
        served = made.serve()
        made.until("clients expected", 60)
        busy = made.run("add", made.server, LATE, "--out", folder / "busy").wait(60)
        joined = [made.join(name) for name in CLIENTS]
        for party in sorted((folder / "out").glob("aggregators/*")):
            made.run("join", party)
        made.until(f"round 2 of {ROUNDS}", 300)
        # At any moment of a round: its sum may have been opened, and will be asked for again.
        made.kill(made.server)
        served.wait()
        keys: list[object] = []
        if secure:
            make_key(folder / "own" / LATE)
            keys = ["--keys", folder / "own" / LATE / "public"]
        added = made.run("add", made.server, LATE, "--out", made.client(LATE), *keys).wait(60)
        assert added == 0, made.said()
        begins = settings(made.server, ServerSide).joins[LATE]
        if secure:
            shutil.copy(folder / "own" / LATE / "node", made.client(LATE) / "node")
            agreed = admitted(made, folder / "own" / LATE)
        served = made.serve()
        joined.append(made.join(LATE))
        ended = served.wait(300) == 0 and [each.wait(60) for each in joined] == [0] * 4
        turns = {(int(row["round"]), row["client"]) for row in made.table("turns.csv")}
        came = {at - 1 for at, who in turns if who == LATE} == {*range(begins, ROUNDS)}
        lost = [row for row in made.table("turns.csv") if row["status"] != "ok"]
        same = ended and made.fingerprints() == with_late(table, begins, folder)
    said = (
        f"took part from round {begins + 1} of {ROUNDS} on, {len(lost)} turns lost, fingerprint "
        f"{'equal' if same else 'DIFFERENT'}; {time.monotonic() - began:.0f} s"
    )
    return said, busy != 0 and agreed and came and same and not lost


def joins() -> Iterator[Row]:
    """Add a client to a run with plain sums, and to runs with both kinds of secure sums."""
    for what, table in (("plain sums", PLAIN), ("pads", SECURE), ("shares", SHARED)):
        with tempfile.TemporaryDirectory() as here:
            said, good = join_late(Path(here), table)
            yield Row(f"a client is added in mid-run, {what}", "as simulated", said, good)
