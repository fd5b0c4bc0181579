"""Drills: disks that may only be read from some moment on, and clocks that jump by years.

unshare -rm python -m tests.drills.disks HOME MOMENT  # what a drill runs: a real mount
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.cli.commands import ONE
from tests.drills.deaths import Mortal, command, served
from tests.drills.drilling import METHOD, Row, Sizes, scratch, spread
from tests.engine.toys import STAMP, table
from vergence.core.serialization import unpack
from vergence.data.synthetic.toy import Toy as People
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage import run_directory
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import VergenceError
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

MOMENTS: dict[str, tuple[type, str, int]] = {
    "before a table": (RunDirectory, "append", 20),
    "before a client's state": (ClientStateStore, "write", 25),
    "before a checkpoint": (RunDirectory, "save", 9),
}
"""What is called when a disk becomes read-only, and how often before that."""
CLIENT = "a client's"
AWAY = (3, 6)
"""The rounds in which a client cannot write: from, and before."""


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def lock(folder: Path) -> None:
    """Let nobody write below a folder, by a mount over it."""
    mount("--bind", str(folder), str(folder))
    mount("-o", "remount,bind,ro", str(folder))


def unlock(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def at(moment: str, do: Callable[[], None]) -> Iterator[None]:
    """Do something before the n-th call of a method."""
    kind, name, left = MOMENTS[moment]
    honest, calls = getattr(kind, name), iter(range(left - 1, -1, -1))

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(calls, -1) == 0:
            do()
        return honest(*arguments, **options)

    with patch.object(kind, name, counted):
        yield


def stopped(home: Path, moment: str) -> dict[str, Any]:
    """Run and resume on a disk that becomes read-only; return what both said."""
    out = home / "out"
    with at(moment, lambda: lock(out)):
        first = command("run", home / "toy.toml", "--out", out)
    return {"first": first, "second": command("resume", out)}


class Closed(Mortal):
    """A line to homes of which one may only be read for some rounds, or is not reached in them."""

    def __init__(self, *arguments: Any, plan: Plan, silent: bool) -> None:
        super().__init__(*arguments, rate=0.0, plan=plan)
        self.silent, self.shut = silent, False

    def ask(self, client: str, request: bytes) -> bytes:
        what = unpack(request, ClientRequest)
        if what.kind != "turn" or client != "p01":
            return super().ask(client, request)
        away = AWAY[0] <= what.message.round < AWAY[1]
        if away and self.silent:
            raise ClientLost("silent")
        if away != self.shut and not self.silent:
            self.shut = away
            (lock if away else unlock)(self.folder / client)
        try:
            return super().ask(client, request)
        except VergenceError as error:
            raise ClientLost(str(error)) from None


def told(home: Path, silent: bool) -> tuple[str, list[str]]:
    """Return the fingerprint of a run in which p01 cannot write for a while, and what is said."""
    federation, task = People(people=3).load(), ToyTask(Linear())
    folder = RunDirectory(home / "server", STAMP, elsewhere=True)
    folder.open()
    counts = {client: len(s.train) for client, s in federation.people.items()}
    plan = Plan(rounds=8, evaluate_every=0, solver="sequential")
    line = Closed(federation, task, home / "homes", plan=plan, silent=silent)
    outcome = run_rounds(
        METHOD,
        task,
        federation=remote_people("toy", counts),
        plan=plan,
        folder=folder,
        pool_factory=remote_pool(line),
    )
    rows = table(home / "server", "turns.csv")
    return outcome.fingerprint, [r["status"] for r in rows if r["status"] != "ok"]


def apart(home: Path, moment: str) -> dict[str, Any]:
    """Do it in a process that mounts for itself alone."""
    found = subprocess.run(
        ["unshare", "-rm", sys.executable, "-m", "tests.drills.disks", str(home), moment],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(found.stdout.splitlines()[-1])


def one_line(said: str, folder: Path) -> bool:
    """Tell whether a run said in one line where it could not write, why, and what to do."""
    lines = said.strip().splitlines()
    words = (str(folder), "Read-only file system", "make it writable", "vergence resume")
    return len(lines) == 1 and all(word in lines[0] for word in words)


def unwritable(moment: str) -> Row:
    """Make a run's folder read-only at a moment of the run; go on when it is writable again."""
    with scratch() as home:
        (home / "toy.toml").write_text(ONE.replace("rounds = 3", "rounds = 10"))
        command("run", home / "toy.toml", "--out", home / "whole")
        out, said = home / "out", apart(home, moment)
        kept = run_directory.read_manifest(out)["round"]
        again, _ = command("resume", out)
        prints = [
            json.loads((home / n / "results.json").read_text())["fingerprint"]
            for n in ("whole", "out")
        ]
        clear = all(one_line(text, out) for _, text in said.values())
        codes = [code for code, _ in said.values()]
        same = prints[0] == prints[1]
        return Row(
            f"run folder read-only {moment}",
            "one line, exit code not 0, previous checkpoint loads",
            f"{'one line' if clear else said}, exit {codes[0]}, resumed while it is so with exit "
            f"{codes[1]}, round {kept} of 10 kept, then exit {again}, fingerprint "
            f"{'equal' if same else 'DIFFERENT'}",
            clear and codes == [5, 5] and kept > 0 and again == 0 and same,
        )


def closed() -> Row:
    """Let a client's folder be read-only for three rounds."""
    with scratch() as home:
        quiet, _ = told(home / "quiet", silent=True)
        found = apart(home, CLIENT)
        words = (
            "lost: 'p01' cannot save: Read-only file system",
            "make it writable in",
            str(home / "shut" / "homes" / "p01"),
        )
        clear = all(word in status for status in found["said"] for word in words)
        return Row(
            "client's folder read-only, rounds 4 to 6",
            "said by the client, as silence",
            f"{len(found['said'])} turns {'lost, with the reason' if clear else found['said']}, "
            f"fingerprint {'equal' if found['print'] == quiet else 'DIFFERENT'}",
            clear and len(found["said"]) == 3 and found["print"] == quiet,
        )


def readonly(_: Sizes) -> Iterator[Row]:
    """Let folders be read-only for a while, by real mounts."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        yield Row(
            "folders read-only",
            "one line, the same bits afterwards",
            "not drilled: this machine lets nobody mount",
            good=True,
        )
        return
    yield from spread(unwritable, [(moment,) for moment in MOMENTS])
    yield from spread(closed, [()])


# --- clocks

JUMPS = (-20, 0, 30, -3, 100)
"""Years by which the clock is wrong, one after the other."""


@contextmanager
def jumping() -> Iterator[None]:
    """Let the wall clock jump by years whenever it is read; monotonic clocks go on."""
    honest, reads = time.time, iter(range(10**9))

    def wrong() -> float:
        return honest() + JUMPS[next(reads) % len(JUMPS)] * 365.25 * 86400

    with (
        patch.object(time, "time", wrong),
        patch.object(time, "time_ns", lambda: int(wrong() * 1e9)),
    ):
        yield


def jumped() -> tuple[bool, bool]:
    """Return whether a run under a jumping clock has the same bits, and the same tables."""
    with scratch() as home:
        whole = served(home / "whole")
        with jumping():
            found = served(home / "out")
        names = ("rounds.csv", "turns.csv", "people.csv")
        tables = [
            [{**row, "seconds": ""} for n in names for row in table(home / p, n)]
            for p in ("whole", "out")
        ]
        honest = all(float(r["seconds"]) >= 0 for r in table(home / "out", "rounds.csv"))
        return found == whole, tables[0] == tables[1] and honest


def clocks(_: Sizes) -> Iterator[Row]:
    """Let the wall clock jump back and forth by years whenever it is read."""
    ((bits, tables),) = spread(jumped, [()])
    yield Row(
        "clock jumps by -20 to +100 years",
        "same bits, same tables",
        f"fingerprint {'equal' if bits else 'DIFFERENT'}, tables "
        f"{'equal' if tables else 'DIFFERENT'}",
        bits and tables,
    )


if __name__ == "__main__":
    where, what = Path(sys.argv[1]), sys.argv[2]
    if what == CLIENT:
        print_, said_ = told(where / "shut", silent=False)
        print(json.dumps({"print": print_, "said": said_}))
    else:
        print(json.dumps(stopped(where, what)))
