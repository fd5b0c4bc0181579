"""More rounds for a finished run: its checkpoint becomes that of a run which goes on.

A finished seed's manifest entry has the checkpoint after its last round, before the method's
`finish`. From there the seed goes on, with the rows that its tables had then.

Used by `api.more_rounds` and `unlearning.data_footprint`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from vergence.core import files as disk
from vergence.core.files import JsonObject, csv_of, saving
from vergence.core.serialization import digest
from vergence.engine.storage.checkpoint_validation import MEND
from vergence.engine.storage.run_directory import filed_in, read_manifest, sealed_manifest
from vergence.engine.storage.run_tables import OPTIONAL, TABLES, header_marks
from vergence.errors import StateError

NOBODY = -1
"""Seed of a manifest in which no seed is under way."""


def prepare(path: Path, stamp: Mapping[str, str], keeps_p1: bool, restores: bool) -> None:
    """Make the checkpoint of a finished run one that goes on after its last round.

    Nothing is lost if the process is killed: either the old checkpoint stays, or the new one.

    Args:
        path: the run directory of one method.
        stamp: stamp of the run with more rounds.
        keeps_p1: whether the run with more rounds evaluates inside the turns of that round, too.
        restores: whether the run has gone back to its best evaluation. People were evaluated after
            its last round then, before it did so.

    Raises:
        StateError: a seed has no checkpoint from which it could go on.
    """
    manifest, later = read_manifest(path), {}
    if manifest["stamp"] == dict(stamp):
        return
    with saving(path):
        for seed, done in manifest["done"].items():
            last = done.get("last")
            if last is None:
                raise StateError(
                    f"{path}: seed {seed} has no state of its last round, as of runs with "
                    "run.checkpoint_every = 0, with a virtual clock (delivery), of older versions, "
                    "and where somebody was erased; start a new run elsewhere"
                )
            rows = {}
            for name in {*TABLES, *OPTIONAL} & last["tables"].keys():
                data = csv_of(_rows(path / name, seed, last, keeps_p1)).encode()
                rows[name] = [f"seed{seed}.rows.{name}", digest(data)]
                disk.write_whole(path / "state" / rows[name][0], data)
            # A run that was stopped has measured the models of its last round.
            unmeasured = not restores and seed not in manifest.get("stopped", {})
            kept = {key: last[key] for key in ("round", "files", "best") if key in last}
            later[seed] = {**kept, "rows": rows, "unmeasured": unmeasured}
        files = next(iter(later.values()))["files"]
        begun = {"stamp": dict(stamp), "done": {}, "seed": NOBODY, "round": 0, "files": files}
        solving = {"solving": manifest["solving"]}
        new = {**begun, **solving, "later": later, **header_marks()}
        disk.write_whole(path / "state" / "checkpoint.json", sealed_manifest(new))


def _rows(path: Path, seed: str, last: JsonObject, keeps_p1: bool) -> Iterator[list[str]]:
    """Yield the rows that a table had for a seed at its last checkpoint before `finish`."""
    data = path.read_bytes()[: last["tables"][path.name]]
    if digest(data) != last["digests"][path.name]:
        raise StateError(f"{path} is damaged: {MEND}")
    for row in csv.reader(data.decode().splitlines(keepends=True)):
        scored = path.name in ("rounds.csv", "curves.csv")
        p1 = scored and row[1:3] == [str(last["round"]), "P1"]
        if row[0] == seed and (keeps_p1 or not p1):
            yield row


def files_of_last(path: Path, done: JsonObject) -> set[str]:
    """Return the state files that a finished seed has for going on alone."""
    last = done.get("last", done)
    named = [
        {about[0] for about in each["files"].values()}
        | {entry.file for entry in filed_in(path, each["files"]).values()}
        for each in (last, last.get("best", last), done)
    ]
    return (named[0] | named[1]) - named[2]
