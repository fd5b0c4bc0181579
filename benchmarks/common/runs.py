"""Folders of runs that nobody wants afterwards, and the experiment of the lies."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vergence.engine.storage.run_directory import RunDirectory
from vergence.experiment import schema

ROBUST = Path(__file__).parents[2] / "experiments" / "robust.toml"


@contextmanager
def run_folder() -> Iterator[RunDirectory]:
    """Give an open run directory that is removed with this block."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunDirectory(Path(place), {"config": "benchmark"})
        folder.open()
        yield folder


def robust(seed: int, rounds: int | None) -> dict[str, Any]:
    """Return experiments/robust.toml without its rule and attack, for one seed."""
    table = {k: v for k, v in schema.read(ROBUST).items() if k not in ("privacy", "poison")}
    once = {"seeds": [seed], "evaluate_every": 0, "workers": 1, "checkpoint_every": 0}
    length = {} if rounds is None else {"rounds": rounds}
    return table | {"run": {**table["run"], **once, **length}}


def people_scores(folder: RunDirectory, metric: str) -> dict[str, float]:
    """Return a metric by person, as a finished run has it."""
    with (folder.path / "people.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == metric]
    return {row["person"]: float(row["value"]) for row in rows}
