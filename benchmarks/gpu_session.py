"""Everything that waits for a GPU, in one command of at most eight minutes: `make gpu`.

python -m benchmarks.gpu_session [--minutes N] [--only NAME...] [--out FOLDER] runs the rows of
benchmarks/gpu_rows.toml one after the other, as long as there is time, and writes what each printed
to gpu_session.json and gpu_session.md in docs/results, or in FOLDER. A row that went well on the
same code and the same kind of GPU is not run again, so a second call goes on where the first
stopped. Without a GPU it says so, writes nothing and ends well.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
ROWS = Path(__file__).with_name("gpu_rows.toml")
RESULTS = ROOT / "docs" / "results"
LEAST_S = 20
"""A row is not started with less time than this: importing torch takes half of it."""
LINES = 60
"""Lines of a row's output that are stored; the first ones are cut."""
Record = dict[str, Any]


def rows(file: Path = ROWS) -> list[Record]:
    """Read the registered rows.

    Raises:
        ValueError: a row lacks a key, or two rows have one name.
    """
    plan = tomllib.loads(file.read_text(encoding="utf-8"))["row"]
    for row in plan:
        if lacking := {"name", "about", "command", "limit_s"} - row.keys():
            raise ValueError(f"{file.name}: row {row} lacks {', '.join(sorted(lacking))}")
    if len({row["name"] for row in plan}) < len(plan):
        raise ValueError(f"{file.name}: two rows have one name")
    return plan


def code() -> str:
    """Digest of all Python code and settings that a row may run."""
    whole = hashlib.sha256()
    for folder in ("src", "benchmarks", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".toml"):
                whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def due(plan: Sequence[Record], before: Mapping[str, Record], machine: Record) -> list[Record]:
    """Rows to run: those that did not go well on this code and this kind of GPU."""
    return [
        row
        for row in plan
        if before.get(row["name"], {}).get("exit") != 0
        or any(before[row["name"]].get(key) != machine[key] for key in ("gpu", "code"))
    ]


def run(row: Record, limit_s: float) -> Record:
    """Run one row; its exit code is None where it was ended at the limit."""
    began = time.monotonic()
    command = [sys.executable, *row["command"]]
    places = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output, code = late.stdout or b"", None
    lines = output.decode("utf-8", "replace").splitlines()[-LINES:]
    return {"exit": code, "seconds": round(time.monotonic() - began, 1), "output": lines}


def page(records: Mapping[str, Record], plan: Sequence[Record]) -> str:
    """The page: a table of all rows, then what each printed."""
    parts = [
        "# What ran on a GPU\n",
        "<!-- Written by `make gpu`; change benchmarks/gpu_rows.toml instead. -->\n",
        "`make gpu` runs these rows where torch sees a GPU, at most eight minutes in one go, and "
        "goes on where it stopped. A row that was not reached waits for the next GPU.\n",
        "| row | what | result | seconds | GPU, torch | date | code |",
        "|---|---|---|---:|---|---|---|",
    ]
    for row in plan:
        record = records.get(row["name"])
        cells = ["not run yet", "", "", "", ""]
        if record:
            word = {0: "went well", None: f"ended after {record['limit_s']} s"}
            state = word.get(record["exit"], f"failed with exit code {record['exit']}")
            machine = f"{record['gpu']}, {record['torch']}"
            cells = [state, str(record["seconds"]), machine, record["date"], record["code"]]
        parts.append("| " + " | ".join([row["name"], row["about"], *cells]) + " |")
    for row in plan:
        if record := records.get(row["name"]):
            shown = "python " + " ".join(row["command"])
            printed = "\n".join(record["output"])
            parts.append(f"\n## {row['name'].capitalize()}\n\n```text\n$ {shown}\n{printed}\n```")
    return "\n".join(parts) + "\n"


def read(file: Path) -> dict[str, Record]:
    """Records of earlier sessions, by row; none where there is no file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def session(minutes: float, only: Sequence[str], out: Path) -> int:
    """Run what is due within the time; return 1 where a row failed."""
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "code": code(),
    }
    plan, records = rows(), read(RESULTS / "gpu_session.json") | read(out / "gpu_session.json")
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    waiting = [row for row in due(plan, records, machine) if not only or row["name"] in only]
    print(f"{machine['gpu']}, torch {machine['torch']}: {len(waiting)} rows to run", flush=True)
    failed = False
    for row in waiting:
        limit_s = min(row["limit_s"], int(end - time.monotonic()))
        if limit_s < LEAST_S:
            print(f"{row['name']}: no time left; the next `make gpu` begins here", flush=True)
            break
        print(f"{row['name']}: at most {limit_s} s ...", flush=True)
        record = run(row, limit_s) | machine | {"limit_s": limit_s}
        print("\n".join(record["output"]), flush=True)
        records[row["name"]] = record
        failed |= record["exit"] != 0
        text = json.dumps(records, indent=1) + "\n"
        (out / "gpu_session.json").write_text(text, encoding="utf-8")
        (out / "gpu_session.md").write_text(page(records, plan), encoding="utf-8")
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the session, or say that there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="time for all rows together")
    parser.add_argument("--only", nargs="+", default=[], help="names of rows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"make gpu: torch {torch.__version__} sees no GPU here; nothing was run or written")
        return 0
    return session(options.minutes, options.only, options.out)


if __name__ == "__main__":
    sys.exit(main())
