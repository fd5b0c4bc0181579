"""`vergence data import`: recognises a folder of recordings and writes an experiment for it.

Used by `cli.data` and `cli.data_look`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.core.federation import Dataset, Federation
from vergence.core.files import write_text
from vergence.core.naming import by_key
from vergence.data.format_detection import GazeFormat, find_format
from vergence.data.gaze_quality import GazeQuality, few_notes, outside_notes, quality_of_people
from vergence.data.gaze_tracks import GazeTrack, read_tracks
from vergence.data.io.checks import missing_folder
from vergence.data.saliency.stimuli import Stimuli
from vergence.errors import ConfigError, DataError, printable
from vergence.experiment.registry import find
from vergence.experiment.schema import merge, override
from vergence.experiment.table_binding import record_from_table
from vergence.results.layout import DASH, number

# Width and height in pixels. Small frames keep the first run of a newcomer short.
SIZE = [320, 240]
# Samples of video follow one another, with four frames a second. Each begins without a memory, that
# of the causal network being four frames; a short recording must still fill three parts.
WINDOW, STRIDE = {"window": 8}, {"stride_s": 2.0}
EXPERIMENT = """
# A small head on frozen features. For video it is causal: a frame's map needs no later frame.
# grid is the map's rows and columns: an eighth of the frames' height and width.
task       = { name = "gaze_map", criterion = "kl", sigma = 0.02, score_from = "f1_best" }
model      = { name = "NETWORK", grid = GRID, width = 32 }
methods    = [
    "local_only",
    "fedavg",
    { name = "fedcpf", rate = 0.1 },
]
local      = { epochs = 1, batch = BATCH, optimizer = "adamw", lr = 1e-3 }
# Without `rounds`: until scores on validation samples stop gaining. Short: --set run.rounds=2
run        = { seeds = [0] }
"""


def import_folder(root: Path, out: Path, sets: Sequence[str], console: Console) -> None:
    """Print the format and every person's recordings, and write an experiment file for them.

    The data are loaded as a run loads them, so that the written experiment runs; decoded video is
    cached for that run.

    Raises:
        ConfigError: `out` is there already, or an option is missing or unfit.
        DataError: the format is not known, or a file cannot be used; the error names its place.
    """
    if out.exists():
        raise ConfigError(f"{out} is there already; choose a new file")
    if out.suffix != ".toml":
        raise ConfigError(f"--out must be a new .toml file, got {out}")
    found, dataset, options, tracks, left_out = read_folder(root, sets, console)
    people = quality_of_people(tracks)
    sizes: dict[str, tuple[int, int, int]] = {}
    try:
        federation = dataset.load(str(root))
        sizes = {p: (len(s.train), len(s.val), len(s.test)) for p, s in federation.people.items()}
    # The table is printed after an error, too: it often shows what the error is about.
    finally:
        console.print(people_table(people, sizes))
        print_plain(console, left_out)
        for note in found.notes.values():
            print_plain(console, f"look at this: {note}")
    for note in few_notes(sizes, found.data):
        print_plain(console, f"warning: {note}")
    # Gaze over videos also loses the windows in the gaps between training and test parts, which
    # only the loaded federation can count.
    if not isinstance(dataset, Stimuli):
        print_plain(console, f"left out: {federation.about['left_out'].rpartition('; ')[2]}")
    write_text(out, _experiment_text(found, options, root, people, sizes, federation))
    print_plain(
        console,
        f"wrote {out}; it holds the people's names and the full path of their folder: look at it "
        "before you give it away",
    )
    print_plain(
        console, f"next: vergence data check {out}; vergence run {out} --out runs/{out.stem}"
    )


def read_folder(
    root: Path, sets: Sequence[str], console: Console
) -> tuple[GazeFormat, Dataset, dict[str, Any], list[GazeTrack], str]:
    """Detect the format of a folder's recordings, print it, and read everybody's gaze.

    Returns:
        The format, whose notes are what the user should check; the data set and its options;
        everybody's gaze; and a sentence on what was left out.

    Raises:
        ConfigError: an option is missing or unfit.
        DataError: the format is not known, or a file cannot be used.
    """
    if not root.is_dir():
        raise DataError(f"{missing_folder(root)}: give the folder of the recordings")
    given = _federation_options(sets)
    found = find_format(root, given)
    print_plain(console, f"format: {found.title}, {found.certainty} ({found.evidence})")
    if (name := given.pop("name", found.data)) != found.data or "root" in given:
        raise ConfigError(
            f"{root} is read as '{found.data}' ({found.title}), not as '{name}': leave "
            "federation.name and federation.root out; columns or a preset decide how it is read"
        )
    # With clip_s, samples begin where clips do.
    stride = {} if "clip_s" in given else STRIDE
    options = merge({"size": SIZE, **WINDOW, **stride, **found.options}, given)
    dataset = record_from_table(find("data", found.data, Dataset), options, "federation")
    tracks, left_out = read_tracks(dataset, root) or ([], "")
    notes = {keys: note for keys, note in found.notes.items() if not _all_set(given, keys)}
    shown = _whose_notes({(t.gaze.source, t.person) for t in tracks}, root)
    shown += outside_notes(quality_of_people(tracks), found.data)
    found = replace(found, notes={**notes, **{note: note for note in shown}})
    return found, dataset, options, tracks, left_out


def print_plain(console: Console, text: str) -> None:
    """Print one line without markup, with control characters escaped."""
    # Names of files are untrusted text: neither markup nor control characters may act.
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _federation_options(sets: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"federation": {}}
    for item in sets:
        if not item.startswith("federation."):
            raise ConfigError(f"--set takes federation.KEY=VALUE here, got '{item}'")
        override(table, item)
    return table["federation"]


def _all_set(options: Mapping[str, Any], keys: str) -> bool:
    """Return whether all options of a text such as "columns.unit rate" are set."""
    flat = {f"columns.{key}" for key in options.get("columns", {})} | set(options)
    return all(key in flat for key in keys.split())


def _whose_notes(whose: Collection[tuple[str, str]], root: Path) -> list[str]:
    """Return notes on tables that may be attributed to the wrong person."""
    own = [(person, Path(at).relative_to(root).as_posix()) for at, person in sorted(whose)]
    tables, people = by_key(own), by_key((path, person) for person, path in own)
    shared = [f"{who} ({', '.join(own)})" for who, own in tables.items() if len(own) > 1]
    listed = "; ".join(shared[:3]) + ("; ..." if len(shared) > 3 else "")
    single = {path: own[0] for path, own in people.items() if len(own) == 1}
    # A table named for another person than its column says is most often an exchanged file.
    other = [
        path for path, who in single.items() if _normalised_name(who) not in _normalised_name(path)
    ]
    swapped = ", ".join(f"{path} is of '{single[path]}'" for path in other[:3])
    who = next(iter(tables), "")
    below = f"; if people are its folders, import {root / who}" if (root / who).is_dir() else ""
    notes = (
        (
            shared and len(tables) > 1,
            f"{len(people)} tables are of {len(tables)} people: {listed}; if that is wrong, say "
            "whose each is with federation.files or federation.columns.person: "
            "docs/how-to/own_recordings.md, 'Whose table is whose'",
        ),
        # Where no table's name holds its person's, files are named by another scheme: no note.
        (
            0 < len(other) < len(single),
            f"{swapped}: the column of people and the name of the table differ",
        ),
        (
            len(tables) == 1,
            f"only one person ({who}), and methods are compared over people{below}",
        ),
    )
    return [text for holds, text in notes if holds]


def _normalised_name(name: str) -> str:
    """Return a name in small letters and digits, without zeros before numbers: P_01 as p1."""
    return re.sub(r"[^a-z0-9]|(?<!\d)0+(?=\d)", "", name.lower())


def people_table(
    people: Sequence[GazeQuality], sizes: Mapping[str, tuple[int, int, int]] | None = None
) -> Table:
    """Return the table of people; `sizes` has their numbers of samples, None: without them."""
    names = ["person", "recordings", "minutes", "samples", "valid", "outside", "gaps > 0.5 s"]
    table = Table(*names, "longest", "Hz" if sizes is None else "train/val/test")
    for column in table.columns[1:]:
        column.justify = "right"
    for p in people:
        cells = (f"{p.recordings}", number(p.minutes, 1), f"{p.samples:,}", f"{p.valid:.1%}")
        gaps = (f"{p.outside:.1%}", f"{p.gaps}", f"{p.longest_gap_s:.1f} s")
        # Published fixations have no clock, so gaps between them are not known.
        gaps = gaps if math.isfinite(p.minutes) else (gaps[0], DASH, DASH)
        parts = number(p.rate_hz, 0)
        if sizes is not None:
            parts = "/".join(map(str, sizes.get(p.person, "-")))
        table.add_row(Text(printable(p.person)), *cells, *gaps, parts)
    return table


def _experiment_text(
    source: GazeFormat,
    options: Mapping[str, Any],
    root: Path,
    people: Sequence[GazeQuality],
    sizes: Mapping[str, tuple[int, int, int]],
    federation: Federation,
) -> str:
    """Return the text of the experiment file: findings as comments, then the TOML tables."""
    lines = [
        f"Written by `vergence data import`: {source.title}, "
        f"{source.certainty} ({source.evidence}).",
        *(
            f"{p.person}: {p.minutes:.1f} min, {p.samples:,} samples, {p.valid:.1%} valid, "
            f"{p.outside:.1%} outside the picture, {p.gaps} gaps of more than 0.5 s"
            for p in people
        ),
        f"Samples for training, validation and test: {sizes}".replace("'", ""),
        *(f"{key}: {federation.about[key]}" for key in ("split", "left_out")),
        *(f"LOOK AT THIS: {note}" for note in source.notes.values()),
        *(f"WARNING: {note}" for note in few_notes(sizes, source.data)),
    ]
    # A line break in a person's name would end the comment and smuggle TOML into the file.
    comments = "".join(f"# {printable(' '.join(line.split()))}\n" for line in lines)
    frames = next(iter(federation.people.values())).train.columns["points"].shape[1]
    # A step of training sees 80 frames of video, or 20 pictures, which have no windows.
    network, batch, without = (
        ("glc_causal", "10", {}) if frames > 1 else ("glc_features", "20", WINDOW | STRIDE)
    )
    used = {key: value for key, value in options.items() if key not in without}
    width, height = options["size"]
    # The gaze map has twice the rows and columns of the frozen features, one per 16 pixels.
    grid = [2 * -(-height // 16), 2 * -(-width // 16)]
    text = EXPERIMENT.replace("GRID", str(grid)).replace("NETWORK", network)
    table = {"name": source.data, "root": str(root.resolve()), **used}
    return f"{comments}{text.replace('BATCH', batch)}\n{tomli_w.dumps({'federation': table})}"
