"""Run folders that somebody changed: a table of changes, tried with every command that reads them.

    python -m tests.adversary.files.run_folders OUT_OF_A_TOY_RUN

prints a line for each change and command that ends with a traceback, with several lines, or with
exit 0 and no result. Nothing is changed but a copy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cli.commands import Said, vergence

Change = Callable[[Path], object]
"""Changes a finished OUT with runs `fedavg` and `local_only`."""
COMMANDS = (
    "status OUT",
    "status OUT --json",
    "report OUT",
    "compare OUT",
    "verify OUT",
    "resume OUT",
)
RUN = "fedavg"
TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 3 }
methods    = ["fedavg", "local_only"]
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 2, evaluate_every = 1, workers = 1 }
"""


def text(name: str, said: str | bytes) -> Change:
    """Write another content."""
    data = said.encode() if isinstance(said, str) else said
    return lambda out: (out / name).write_bytes(data)


def table(name: str, **changes: Any) -> Change:
    """Change keys of a JSON table; `...` takes one out."""

    def change(out: Path) -> None:
        found = {**json.loads((out / name).read_text()), **changes}
        kept = {key: value for key, value in found.items() if value is not ...}
        (out / name).write_text(json.dumps(kept))

    return change


def line(name: str, change: Callable[[list[str]], list[str]]) -> Change:
    """Change the lines of a table."""
    return lambda out: (out / name).write_text(
        "\n".join(change((out / name).read_text().splitlines())) + "\n"
    )


def gone(name: str) -> Change:
    """Take a file away."""
    return lambda out: (out / name).unlink()


def instead(name: str, target: str) -> Change:
    """Put a link in a file's place."""

    def change(out: Path) -> None:
        (out / name).unlink()
        (out / name).symlink_to(target)

    return change


def pipe(out: Path) -> None:
    """Put a pipe in a table's place, of which nobody writes the other end."""
    (out / RUN / "people.csv").unlink()
    os.mkfifo(out / RUN / "people.csv")


def vast(out: Path) -> None:
    """Make a table larger than a run could write, which takes no room on the disk."""
    with (out / RUN / "people.csv").open("r+b") as file:
        file.truncate(2**31 + 1)


DEEP = "[" * 100_000 + "]" * 100_000
P, W, T = (f"{RUN}/{name}.csv" for name in ("people", "rounds", "turns"))
R, V = f"{RUN}/results.json", f"{RUN}/provenance.json"
CHANGES: dict[str, Change] = {
    "results is a list": text(R, "[1, 2]"),
    "results is nested": text(R, DEEP),
    "results is a number": text(R, "3"),
    "results is empty": text(R, ""),
    "results is not text": text(R, b"\xff\xfe\x00"),
    "results is missing": gone(R),
    "results has text for numbers": table(R, seconds="12", rounds="2", bytes={"up": "a"}),
    "results has text for a metric": table(
        R, metrics={"error": {"mean": "0.1", "std": 0, "worst": 0, "ci95": [0, 1]}}
    ),
    "results has no interval": table(
        R, metrics={"error": {"mean": 0.1, "std": 0, "worst": 0, "ci95": []}}
    ),
    "results has a number for its task": table(R, task=3),
    "results has another headline": table(R, headline="nothing"),
    "results has text for people": table(R, people="p00"),
    "results has a table for seeds": table(R, seeds={"0": 1}),
    "results has no seeds": table(R, seeds=[]),
    "results has no method": table(R, method=...),
    "results has a list of privacy": table(R, privacy=[1]),
    "results has other people": table(R, people=["somebody", "nobody"]),
    "provenance is a list": text(V, "[]"),
    "provenance is text": text(V, '"p"'),
    "provenance is nested": text(V, DEEP),
    "provenance has text for data": table(V, data="toy"),
    "provenance is missing": gone(V),
    "index is a list": text("index.json", "[]"),
    "index is a number": text("index.json", "1"),
    "index is nested": text("index.json", DEEP),
    "index has text for runs": table("index.json", runs="fedavg"),
    "index has a run without a folder": table("index.json", runs=[{"label": "fedavg"}]),
    "rounds is missing": gone(W),
    "rounds is empty": text(W, ""),
    "rounds ends in zeros": lambda out: (out / W).write_bytes(
        (out / W).read_bytes()[:-40] + bytes(40)
    ),
    "rounds has text for a number": line(W, lambda rows: [*rows[:-1], rows[-1].replace(".", "x")]),
    "turns is missing": gone(T),
    "turns has a short row": line(T, lambda rows: [*rows, "0,1"]),
    "people has a field of 300,000 characters": line(
        P, lambda rows: [*rows, f"0,{'x' * 300_000},P0,error,0.1"]
    ),
    "people has every row twice": line(P, lambda rows: [*rows, *rows[1:]]),
    "people has another value": line(
        P, lambda rows: [*rows[:-1], rows[-1].rpartition(",")[0] + ",0.5"]
    ),
    "people is a device without an end": instead(P, "/dev/zero"),
    "people is a pipe": pipe,
    "people is nothing but a device": instead(P, "/dev/null"),
    "people is vast": vast,
    "people is a folder": lambda out: ((out / P).unlink(), (out / P).mkdir()),
    "config is a device": instead(f"{RUN}/config.toml", "/dev/zero"),
    "config has a list for its run": lambda out: (out / "config.toml").write_text(
        (out / "config.toml").read_text().replace("[run]", "[[run]]")
    ),
    "config is nested": text("config.toml", f"methods = {DEEP}\n"),
    "sums are text": text(f"{RUN}/SHA256SUMS", "nothing\n"),
    "priors has text for a number": line("priors.csv", lambda rows: [*rows, "x,p00,error,much"]),
    "classes is a device": lambda out: (out / "classes.csv").symlink_to("/dev/zero"),
    "index leads upwards": table("index.json", runs=[{"label": "a", "dir": "../a", "method": "m"}]),
    "index leads to a table of devices": table("index.json", priors="/dev/zero"),
    "index leads to nothing": table("index.json", runs=[{"label": "a", "dir": "a", "method": "m"}]),
}


def wrong(said: Said | Exception) -> str:
    """Say what is wrong with how a command ended, "" if nothing is."""
    if isinstance(said, Exception):
        return f"a traceback: {type(said).__name__}: {str(said)[:80]}"
    lines = said.err.strip().splitlines()
    if said.code == 0 and not said.out.strip():
        return "exit 0 without a result"
    if said.code and (len(lines) != 1 or not lines[0].startswith("vergence: ")):
        return f"exit {said.code} with {len(lines)} lines: {said.err[:200]}"
    if len(lines) > 1 or any(not each.startswith("vergence: ") for each in lines):
        return f"exit {said.code}, and on stderr {said.err[:200]}"
    return ""


def tried(command: str, out: Path) -> Said | Exception:
    """Return how a command ended, or what it raised."""
    try:
        return vergence(*command.replace("OUT", str(out)).split())
    except Exception as error:
        return error


def faults(change: Change, made: Path, commands: tuple[str, ...] = COMMANDS) -> Iterator[str]:
    """Yield what is wrong with how commands end on a changed copy of a run, a new one for each."""
    for command in commands:
        with tempfile.TemporaryDirectory() as home:
            out = Path(home) / "out"
            shutil.copytree(made, out)
            change(out)
            if found := wrong(tried(command, out)):
                yield f"{command}: {found}"


def main(made: Path) -> int:
    """Try all changes, and print what is wrong."""
    count = 0
    for name, change in CHANGES.items():
        for found in faults(change, made):
            count += 1
            print(f"{name}: {found}")
    print(f"{len(CHANGES)} changes x {len(COMMANDS)} commands, {count} not as wanted")
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
