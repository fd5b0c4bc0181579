"""`vergence data import`: looks at a folder of recordings, and writes an experiment for it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.core.federation import Dataset, Federation
from vergence.core.files import write_text
from vergence.data.folder_formats import FoundFormat, find_format
from vergence.data.gaze_quality import (
    GazeQuality,
    few_notes,
    of_recordings,
    of_trials,
    outside_notes,
)
from vergence.data.gaze_video.gaze_table import GazeTable
from vergence.data.saliency.stimuli import Stimuli
from vergence.errors import ConfigError, DataError, printable
from vergence.experiment.registry import bind, find
from vergence.experiment.schema import merge, override

SIZE = [320, 240]
EXPERIMENT = """
# The network of `vergence run quickstart`: a small head on frozen features.
# grid is the map's rows and columns: an eighth of the frames' height and width.
task       = { name = "gaze_map", criterion = "kl", sigma = 0.02, score_from = "f1_best" }
model      = { name = "glc_features", grid = GRID, width = 32 }
methods    = [
    "local_only",
    "fedavg",
    { name = "fedcpf", rate = 0.1 },
]
local      = { epochs = 1, batch = 20, optimizer = "adamw", lr = 1e-3, schedule = "cosine" }
run        = { rounds = 8, seeds = [0], evaluate_every = 2 }
"""


def import_folder(root: Path, out: Path, sets: Sequence[str], console: Console) -> None:
    """Name the format, print what each person has, and write the experiment.

    Everything is read as a run would read it, so that what is written runs; decoded video is
    cached for that run.

    Raises:
        ConfigError: `out` is there already, or an option is missing or unfit.
        DataError: the format is not known, or a file cannot be used: file, row and column.
    """
    if not root.is_dir():
        raise DataError(f"no folder {root}: give the folder of the recordings")
    if out.exists():
        raise ConfigError(f"{out} is there already; choose a new file")
    if out.suffix != ".toml":
        raise ConfigError(f"--out must be a new .toml file, got {out}")
    given = _given(sets)
    found = find_format(root, given)
    _tell(console, f"format: {found.title}, {found.sure} ({found.why})")
    kind = find("data", found.data, Dataset)
    options = merge({"size": SIZE, **found.options}, given)
    dataset = bind(kind, options, "federation")
    chosen = options.get("people")
    people = [p for p in _people(dataset, kind, root) if not chosen or p.person in chosen]
    found = replace(found, notes=[*found.notes, *outside_notes(people, found.data)])
    sizes: dict[str, tuple[int, int, int]] = {}
    try:
        federation = dataset.load(str(root))
        sizes = _sizes(federation)
    finally:  # also where the error is about what the table shows
        console.print(_table(people, sizes))
        for note in found.notes:
            _tell(console, f"look at this: {note}")
    for note in few_notes(sizes, found.data):
        _tell(console, f"warning: {note}")
    _tell(console, f"left out: {federation.about['left_out']}")
    write_text(out, _text(found, options, root, people, sizes, federation))
    _tell(
        console,
        f"wrote {out}; it holds the people's names and the full path of their folder: look at it "
        "before you give it away",
    )
    _tell(console, f"next: vergence data check {out}; vergence run {out} --out runs/{out.stem}")


def _tell(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _given(sets: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"federation": {}}
    for item in sets:
        if not item.startswith("federation."):
            raise ConfigError(f"--set takes federation.KEY=VALUE here, got '{item}'")
        override(table, item)
    return table["federation"]


def _people(dataset: Dataset, kind: type[Dataset], root: Path) -> list[GazeQuality]:
    if isinstance(dataset, Stimuli):
        return of_trials(dataset.read(root)[0])
    if isinstance(dataset, GazeTable):
        return of_recordings(dataset.read(root)[0])
    return of_recordings(importlib.import_module(kind.__module__).recordings(root))


def _sizes(federation: Federation) -> dict[str, tuple[int, int, int]]:
    """Each person's numbers of training, validation and test samples."""
    return {
        person: (len(s.train), len(s.val), len(s.test)) for person, s in federation.people.items()
    }


def _table(people: Sequence[GazeQuality], sizes: Mapping[str, tuple[int, int, int]]) -> Table:
    names = (
        "person",
        "recordings",
        "minutes",
        "samples",
        "valid",
        "outside",
        "gaps > 0.5 s",
        "longest",
        "train/val/test",
    )
    table = Table(*names)
    for column in table.columns[1:]:
        column.justify = "right"
    for p in people:
        cells = (f"{p.recordings}", f"{p.minutes:.1f}", f"{p.samples:,}", f"{p.valid:.1%}")
        gaps = (f"{p.outside:.1%}", f"{p.gaps}", f"{p.longest_gap_s:.1f} s")
        parts = "/".join(map(str, sizes.get(p.person, "-")))
        table.add_row(Text(printable(p.person)), *cells, *gaps, parts)
    return table


def _text(
    found: FoundFormat,
    options: Mapping[str, Any],
    root: Path,
    people: Sequence[GazeQuality],
    sizes: Mapping[str, tuple[int, int, int]],
    federation: Federation,
) -> str:
    """The experiment file: what was found as comments, then the tables."""
    lines = [f"Written by `vergence data import`: {found.title}, {found.sure} ({found.why})."]
    lines += [
        f"{p.person}: {p.minutes:.1f} min, {p.samples:,} samples, {p.valid:.1%} valid, "
        f"{p.outside:.1%} outside the picture, {p.gaps} gaps of more than 0.5 s"
        for p in people
    ]
    lines.append(f"Samples for training, validation and test: {sizes}".replace("'", ""))
    lines += [f"{key}: {federation.about[key]}" for key in ("split", "left_out")]
    lines += [f"LOOK AT THIS: {note}" for note in found.notes]
    lines += [f"WARNING: {note}" for note in few_notes(sizes, found.data)]
    comments = "".join(f"# {printable(' '.join(line.split()))}\n" for line in lines)
    table = {"name": found.data, "root": str(root.resolve()), **options}
    width, height = options["size"]
    grid = [2 * -(-height // 16), 2 * -(-width // 16)]
    parts = EXPERIMENT.replace("GRID", str(grid)), tomli_w.dumps({"federation": table})
    return comments + "\n".join(parts)
