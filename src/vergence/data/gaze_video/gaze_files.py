"""Rules for the tables of a folder: which of them hold gaze, and to which person each belongs.

The data sets `gaze_table` and `stimuli` and the command `vergence data import` share these rules.
Tables are recognised by their endings and columns, not by their folder: pictures may be in the same
folder.

Used by `data.eye_images.face_pictures`, `data.format_detection`, `data.gaze_video.gaze_table` and
`data.saliency.stimuli`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath

import numpy as np

from vergence.core.naming import by_key
from vergence.data.gaze_video.gaze_columns import GazeColumns, GazeRows, column, read_header
from vergence.data.io.path_patterns import files_below, matching_files
from vergence.data.io.video import VIDEOS
from vergence.errors import DataError

TABLES = (".csv", ".tsv", ".txt")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
NO_GAZE, NO_TABLE = "no gaze", "no table"
LISTED = 6
"""Most files that a summary names for each reason."""
REPEATED, FEWEST = 0.9, 20
"""A table of at least `FEWEST` samples is a copy if over `REPEATED` of them are in other tables."""
PERSON = re.compile(
    r"(?:sub|subj|subject|s|p|pp|ppt|vp|vpn|part|participant|user|id|person|proband|obs|observer)"
    r"[- ]?\d+",
    re.IGNORECASE,
)
"""Parts of names that mean a person, such as S01; a number alone does not."""
OTHER = re.compile(
    r"(?:ses|session|run|trial|block|day|task|rec|recording|t|r|b|set|cond|condition|img|image)?"
    r"[- ]?\d*",
    re.IGNORECASE,
)
"""Parts of names that mean a session, a trial or a number, and not a person."""
SESSION = re.compile(r"(?:ses|session|day|t)[- ]?\d+", re.IGNORECASE)
"""Parts of names that mean a session, such as ses-01 or day2."""


@dataclass(frozen=True, eq=False)
class GazeFiles:
    """Tables of gaze below `root`, and tables that are left out.

    `tables` maps the path of each table to read to the texts of the pattern's named parts, such as
    `person`. `left_out` maps the path of each other table to the reason.
    """

    root: Path
    tables: Mapping[Path, Mapping[str, str]]
    left_out: Mapping[Path, str]

    @staticmethod
    def of(
        root: Path,
        patterns: Sequence[str],
        without: Sequence[str],
        sets: Sequence[GazeColumns],
        exact: bool,
        pictures: Path | None = None,
    ) -> GazeFiles:
        """Choose the tables of gaze below a folder.

        The first pattern that fits any file decides; without patterns, all tables fit.

        Args:
            root: the folder.
            patterns: patterns of paths below the folder; see `path_patterns.matching_files`.
            without: patterns of tables that are not read.
            sets: possible sets of columns; a table holds gaze if it has all columns of one set.
            exact: if true, tables that fit a pattern are read even without these columns, so that a
                missing column is an error.
            pictures: a folder of pictures; tables below it must have the columns even if `exact`.

        Raises:
            DataError: no table is left to read.
        """
        below = [path for path in files_below(root) if path.suffix.lower() in TABLES]
        fitting: dict[Path, dict[str, str]] = {path: {} for path in below}
        pattern = ""
        for pattern in patterns:
            fitting = {
                path: parts
                for path, parts in matching_files(root, pattern, "files")
                if path.suffix.lower() not in PICTURES + VIDEOS
            }
            if fitting:
                break
        unread = {path for p in without for path, _ in matching_files(root, p, "without")}
        left_out: dict[Path, str] = {}
        for path in dict.fromkeys((*below, *fitting)):
            fits = path in fitting
            if path in unread:
                left_out[path] = why_no_gaze(path, sets) or "without"
            elif not fits:
                left_out[path] = why_no_gaze(path, sets) or f"name is not '{pattern}'"
            elif path in below and (not exact or pictures in path.parents):
                # A table with gaze that lacks a column is read, so that its user learns of it.
                why = why_no_gaze(path, sets, strict=True)
                left_out |= {path: why} if why in (NO_GAZE, NO_TABLE) else {}
        tables = {path: parts for path, parts in fitting.items() if path not in left_out}
        # Where no table has the columns, reading the first one names those it lacks.
        tables = tables or {path: parts for path, parts in fitting.items() if path not in unread}
        if not tables:
            named = "' or '".join(patterns) or "**/*.csv"
            raise DataError(
                f"no gaze table in {root} fits files = '{named}': correct files; see 'vergence "
                "data import', which finds them, and docs/how-to/own_recordings.md"
            )
        return GazeFiles(root, tables, {p: why for p, why in left_out.items() if p not in tables})

    def without_copies(
        self, tables: Sequence[tuple[Path, GazeRows]]
    ) -> tuple[GazeFiles, list[tuple[Path, GazeRows]]]:
        """Return the files and the tables, without tables whose samples other tables repeat."""
        copies = dict.fromkeys(_copies(tables), "the same samples as other tables")
        unique = [(path, rows) for path, rows in tables if path not in copies]
        return replace(self, left_out={**self.left_out, **copies}), unique

    def summary(self, people: Collection[str]) -> str:
        """Return a sentence: how many tables and people were read, and which tables were not."""
        read = len(self.tables.keys() - self.left_out.keys())
        # A readme.txt is no table that a user would miss.
        notes = {p for p, why in self.left_out.items() if why == NO_TABLE and p.suffix == ".txt"}
        total = read + len(self.left_out) - len(notes)
        listed = sorted((p, why) for p, why in self.left_out.items() if p not in notes)
        by_reason = by_key((why, p.relative_to(self.root).as_posix()) for p, why in listed)
        out = [
            f"{', '.join(names[:LISTED])}{', ...' if len(names) > LISTED else ''} ({why})"
            for why, names in by_reason.items()
        ]
        return (
            f"{read} of {total} {'table' if total == 1 else 'tables'} read, {len(people)} "
            f"{'person' if len(people) == 1 else 'people'}; left out: {', '.join(out) or 'none'}"
        )


def why_no_gaze(path: Path, sets: Sequence[GazeColumns], strict: bool = False) -> str:
    """Return why a table has no gaze; "" if it has all columns of one of these sets.

    Raises:
        DataError: `strict` is true, and a table is damaged. A damaged .txt is no error, since it
            may be any text.
    """
    try:
        header = read_header(path)
    except DataError:
        if strict and path.suffix.lower() != ".txt":
            raise
        return NO_TABLE
    if len(header) < 2:
        return NO_TABLE
    lacking = [columns.missing_in(header) for columns in sets if columns.x]
    if not all(lacking):
        return ""
    has_place = any(
        column(header, name) for s in sets for name in (*s.names_for("x"), *s.names_for("y"))
    )
    return f"no column '{lacking[0][0]}'" if has_place and lacking else NO_GAZE


def _copies(tables: Sequence[tuple[Path, GazeRows]]) -> list[Path]:
    """Return the tables that repeat another table, or that consist of other tables."""
    samples: dict[Path, set[tuple[str, float]]] = {}
    for path, table in tables:
        # One number for each sample: by these factors, two samples share one only by accident.
        sample = table.ticks * table.scale + np.e * table.x + np.pi * table.y
        valid = table.valid & np.isfinite(sample)
        pictures, numbers = table.stimulus[valid], np.round(sample[valid], 9)
        samples[path] = set(zip(pictures.tolist(), numbers.tolist(), strict=True))
    counts = Counter(sample for own in samples.values() for sample in own)
    copies = []
    # The largest first: a table of everybody goes, and those of single people stay. Of equal ones
    # the longest name goes, such as "P01 (1).csv".
    for path in sorted(samples, key=lambda p: (len(samples[p]), len(str(p))), reverse=True):
        own = samples[path]
        need = REPEATED * len(own)
        if len(own) < FEWEST or sum(counts[sample] > 1 for sample in own) <= need:
            continue
        others = [part for other, part in samples.items() if other != path and len(part & own)]
        # Not all others together: coarse gaze of many people repeats samples by accident.
        inside = [part for part in others if len(part & own) > REPEATED * len(part)]
        if max(len(part & own) for part in others) > need or len(own & set().union(*inside)) > need:
            copies.append(path)
            counts.subtract(samples.pop(path))
    return copies


def default_person(root: Path, path: Path) -> str:
    """Return a table's person if no pattern states it: first folder below root, or file name."""
    below = path.relative_to(root).parts
    return below[0] if len(below) > 1 else path.stem


def people_of_paths(paths: Sequence[str]) -> list[str]:
    """Return the person of each path: the name of the first folder in which the paths differ.

    If one of these names means a session, a day or a number, the very first folder is the person
    instead. A path without such a folder gets "".
    """
    folders = [PureWindowsPath(path).parts[:-1] for path in paths]
    levels = enumerate(zip(*folders, strict=False))
    shared = min(map(len, folders), default=0)
    depth = next((i for i, names in levels if len(set(names)) > 1), shared)
    differing = {parts[depth] if len(parts) > depth else "" for parts in folders}
    depth = 0 if any(map(OTHER.fullmatch, differing)) else depth
    return [parts[depth] if len(parts) > depth else "" for parts in folders]


def person_pattern(root: Path, paths: Sequence[Path], numbers: bool = False) -> str:
    """Return the pattern in which `{person}` gives several tables the same person; "" if none.

    For example, `S01_free.csv` and `S01_search.csv`, or `free/S01.csv` and `search/S01.csv`, are
    two recordings of the person S01. Paths are split into parts, and one varying part is the
    person. It is a part such as S01, or else the part with most different values. A part whose
    values are all numbers or sessions is chosen only if `numbers` is true.
    """
    for split in (r"[_ .-]", "_", "-", " "):
        names = [_parts(path.relative_to(root), split) for path in paths]
        if len({tuple(name[1::2]) for name in names}) == 1:
            break
    else:
        return ""
    parts = list(zip(*names, strict=True))
    varying = [i for i in range(0, len(parts) - 2, 2) if len(set(parts[i])) > 1]

    def rank(i: int) -> tuple[int, int, int]:
        # A word in all names, such as "sub" or "trial", tells the meaning of the part after it.
        same = i > 0 and len(set(parts[i - 2])) == 1 and parts[i - 2][0].isalpha()
        word = [f"{parts[i - 2][0]}0"] if same else []
        person, other = (
            all(map(form.fullmatch, parts[i])) or any(map(form.fullmatch, word))
            for form in (PERSON, OTHER)
        )
        kind = 2 if person else int(not other)
        return kind, len(set(parts[i])) * (kind == 1), -i

    if not varying:
        return ""
    person = max(varying, key=rank)
    usual = [default_person(root, path) for path in paths]
    # Folders or whole names that tell the same people apart need no pattern.
    known = len({*zip(parts[person], usual, strict=True)}) == len({*parts[person]}) == len({*usual})
    if known or not (numbers or rank(person)[0]):
        return ""
    pattern = ["*" if len(set(part)) > 1 else part[0] for part in parts]
    pattern[person] = "{person}"
    if others := [i for i in varying if i != person][:1]:
        before = parts[others[0] - 2][0] if others[0] else ""
        pattern[others[0]] = _condition_part(parts[person], parts[others[0]], before)
    return "".join(pattern)


def _condition_part(people: Sequence[str], words: Sequence[str], before: str) -> str:
    """Return what stands in a pattern for these parts of names: a condition, a session, or any.

    They are conditions if they are words, and each is in the names of two people or more. A number
    is a session if `before`, the part before it, says so: `ses-01`.
    """
    shared = Counter(word for _, word in {*zip(people, words, strict=True)})
    if min(shared.values()) < 2:
        return "*"
    if all(SESSION.fullmatch(word) or SESSION.fullmatch(before + word) for word in words):
        return "{session}"
    return "{condition}" if all(word.isalpha() for word in words) else "*"


def _parts(path: Path, split: str) -> list[str]:
    """Return folders, pieces of the file name, the separators between them, and the ending."""
    stem = re.split(f"({split})", path.stem)
    return [*(x for folder in path.parent.parts for x in (folder, "/")), *stem, "", path.suffix]
