"""Drills: a client's or the server's machine gets another version in the middle of a run."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import vergence
from tests.drills.deployment import CLIENTS, deployed, fedcpf, simulated
from tests.drills.drilling import Row

ROUNDS = 12


def ahead(folder: Path) -> str:
    """Return the search path of Python before which a folder comes."""
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def renumbered(folder: Path) -> str:
    """Return a path on which the package calls itself 9.9.9, with the same code."""
    info = folder / "vergence-9.9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vergence\nVersion: 9.9.9\n")
    return ahead(folder)


def raised(folder: Path) -> str:
    """Return a path with a copy of the package in which one line of one file is new."""
    shutil.copytree(Path(vergence.__file__).parent, folder / "vergence")
    with (folder / "vergence" / "live" / "__init__.py").open("a") as file:
        file.write('\nNEXT = "9.9.9"\n')
    return ahead(folder)


def one_line(said: str, *words: str) -> str:
    """Return the line that has all these words; "" if there is none."""
    return next((line for line in said.splitlines() if all(w in line for w in words)), "")


def upgraded(folder: Path) -> list[Row]:
    """Start ends of a run with other versions, one after the other; then with the old one again."""
    began, table = time.monotonic(), fedcpf(ROUNDS)
    with deployed(folder, table, absent_s=200.0) as made:
        number, code = renumbered(folder / "number"), raised(folder / "code")
        served = made.serve()
        joined = {name: made.join(name) for name in CLIENTS[:2]}
        joined["p02"] = made.join("p02", PYTHONPATH=number)
        made.until("round 1 of", 300)
        made.kill(made.client("p01"))
        client = made.join("p01", PYTHONPATH=code)
        made.until("refuses this client", 120, made.client("p01"))
        told = one_line(made.events(made.client("p01")), "its vergence code is", "use the same")
        made.kill(made.client("p01"))
        client.wait()
        made.kill(made.server)
        served.wait()
        served = made.serve(PYTHONPATH=code)
        refused = served.wait(120)
        line = one_line(made.events(), "stopped:", "other code", "run with that code again")
        served, joined["p01"] = made.serve(), made.join("p01")
        ended = served.wait(300) == 0 and [each.wait(60) for each in joined.values()] == [0] * 3
        lost = [row for row in made.table("turns.csv") if row["status"] != "ok"]
        same = ended and made.fingerprints() == simulated(table, folder / "here")
    return [
        Row(
            "a client's code changed in mid-run",
            "one line at the client, which names both; not asked",
            f"{told[20:] or 'SILENT'}",
            bool(told) and not lost,
        ),
        Row(
            "the server's code changed in mid-run",
            "exit code not 0, one line that names both; nothing lost",
            f"exit {refused}: {line[20:] or 'SILENT'}",
            refused != 0 and bool(line) and not lost,
        ),
        Row(
            "a client has the same code under another version number, then all have the old code",
            "the simulator's fingerprint",
            f"fingerprint {'equal' if same else 'DIFFERENT'}; {time.monotonic() - began:.0f} s",
            same,
        ),
    ]


def upgrades() -> Iterator[Row]:
    """Change versions in the middle of a run."""
    with tempfile.TemporaryDirectory() as here:
        yield from upgraded(Path(here))
