"""Tables of a folder: which of them hold gaze and are read, and whose they are.

The data sets `gaze_table` and `stimuli` and the command `vergence data import` share these rules.
Tables are told from other files by their kind and not by their place: they may lie beside pictures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath

import numpy as np

from vergence.data.gaze_video.gaze_columns import GazeColumns, GazeRows, column, read_header
from vergence.data.io.path_patterns import files_below, matching
from vergence.data.io.video import VIDEOS
from vergence.errors import DataError

TABLES = (".csv", ".tsv", ".txt")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
NO_GAZE, NO_TABLE = "no gaze", "no table"
LISTED = 6
"""Files that a line names for each reason."""
REPEATED, FEWEST = 0.9, 20
"""A table of so many samples or more, of which this share stands in other tables, is a copy."""
PERSON = re.compile(
    r"(?:sub|subj|subject|s|p|pp|ppt|vp|vpn|part|participant|user|id|person|proband|obs|observer)"
    r"[- ]?\d+",
    re.IGNORECASE,
)
"""Parts of names that tell a person, such as S01; a number alone may tell anything."""
OTHER = re.compile(
    r"(?:ses|session|run|trial|block|day|task|rec|recording|t|r|b|set|cond|condition|img|image)?"
    r"[- ]?\d*",
    re.IGNORECASE,
)
"""Parts of names that tell a session, a trial or a number."""


@dataclass(frozen=True, eq=False)
class GazeFiles:
    """Tables below `root`: those that are read, with the parts of their names; others, with why."""

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
        """The tables that fit the first pattern that any fits; without patterns, all tables.

        Args:
            root: the folder.
            patterns: of paths below it; see `path_patterns.matching`.
            without: patterns of tables that are not read.
            sets: sets of columns, of which a table of gaze has one.
            exact: what fits is read even without these columns, so that it is an error.
            pictures: a folder below which tables are read with these columns alone.

        Raises:
            DataError: none is left.
        """
        below = [path for path in files_below(root) if path.suffix.lower() in TABLES]
        fitting: dict[Path, dict[str, str]] = {path: {} for path in below}
        pattern = ""
        for pattern in patterns:
            fitting = {
                path: parts
                for path, parts in matching(root, pattern, "files")
                if path.suffix.lower() not in PICTURES + VIDEOS
            }
            if fitting:
                break
        unread = {path for one in without for path, _ in matching(root, one, "without")}
        left_out: dict[Path, str] = {}
        for path in dict.fromkeys((*below, *fitting)):
            fits = path in fitting
            if path in unread:
                left_out[path] = no_gaze(path, sets) or "without"
            elif not fits:
                left_out[path] = no_gaze(path, sets) or f"name is not '{pattern}'"
            elif path in below and (not exact or pictures in path.parents):
                why = no_gaze(path, sets, strict=True)
                left_out |= {path: why} if why in (NO_GAZE, NO_TABLE) else {}
        tables = {path: parts for path, parts in fitting.items() if path not in left_out}
        # Where none has the columns, the first one's own error says which it lacks.
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
        """These files without those whose samples stand in other tables, and the other tables."""
        copies = dict.fromkeys(_copies(tables), "the same samples as other tables")
        stay = [(path, rows) for path, rows in tables if path not in copies]
        return replace(self, left_out={**self.left_out, **copies}), stay

    def summary(self, people: Collection[str]) -> str:
        """A sentence on how many tables were read, of how many people, and which were left out."""
        read = len(self.tables.keys() - self.left_out.keys())
        # Notes are no tables.
        notes = {p for p, why in self.left_out.items() if why == NO_TABLE and p.suffix == ".txt"}
        total = read + len(self.left_out) - len(notes)
        by_reason: dict[str, list[str]] = {}
        for path, why in sorted((p, why) for p, why in self.left_out.items() if p not in notes):
            by_reason.setdefault(why, []).append(path.relative_to(self.root).as_posix())
        out = [
            f"{', '.join(names[:LISTED])}{', ...' if len(names) > LISTED else ''} ({why})"
            for why, names in by_reason.items()
        ]
        return (
            f"{read} of {total} {'table' if total == 1 else 'tables'} read, {len(people)} "
            f"{'person' if len(people) == 1 else 'people'}; left out: {', '.join(out) or 'none'}"
        )


def no_gaze(path: Path, sets: Sequence[GazeColumns], strict: bool = False) -> str:
    """Reason why a table is not one of gaze with one of these sets of columns; else "".

    Raises:
        DataError: it is damaged, where this is `strict`; a .txt may be any text.
    """
    try:
        header = read_header(path)
    except DataError:
        if strict and path.suffix.lower() != ".txt":
            raise
        return NO_TABLE
    if len(header) < 2:
        return NO_TABLE
    lacking = [columns.lacking(header) for columns in sets if columns.x]
    if not all(lacking):
        return ""
    has_place = any(column(header, name) for s in sets for name in (*s.listed("x"), *s.listed("y")))
    return f"no column '{lacking[0][0]}'" if has_place else NO_GAZE


def _copies(tables: Sequence[tuple[Path, GazeRows]]) -> list[Path]:
    """Tables whose samples stand in one other table, or that hold whole other tables alone.

    Coarse gaze of many people has the same samples by accident, so that the other tables together
    say nothing. Large tables go first (one of all people beside theirs), then long names
    ("P01 (1).csv").
    """
    samples: dict[Path, set[tuple[str, float]]] = {}
    for path, table in tables:
        # One number of a sample; another sample has the same one by accident alone.
        sample = table.ticks * table.scale + np.e * table.x + np.pi * table.y
        valid = table.valid & np.isfinite(sample)
        pictures, numbers = table.stimulus[valid], np.round(sample[valid], 9)
        samples[path] = set(zip(pictures.tolist(), numbers.tolist(), strict=True))
    held = Counter(each for own in samples.values() for each in own)
    copies = []
    for path in sorted(samples, key=lambda p: (len(samples[p]), len(str(p))), reverse=True):
        own = samples[path]
        need = REPEATED * len(own)
        if len(own) < FEWEST or sum(held[each] > 1 for each in own) <= need:
            continue
        others = [part for other, part in samples.items() if other != path and len(part & own)]
        inside = [part for part in others if len(part & own) > REPEATED * len(part)]
        if max(len(part & own) for part in others) > need or len(own & set().union(*inside)) > need:
            copies.append(path)
            held.subtract(samples.pop(path))
    return copies


def usual_person(root: Path, path: Path) -> str:
    """The person of a table where no pattern or column says it: the first folder, or its name."""
    below = path.relative_to(root).parts
    return below[0] if len(below) > 1 else path.stem


def people_of_paths(paths: Sequence[str]) -> list[str]:
    """The person of each path: its first folder, or the first one that differs; else "".

    Folders of sessions, days and numbers are no people.
    """
    folders = [PureWindowsPath(path).parts[:-1] for path in paths]
    levels = enumerate(zip(*folders, strict=False))
    shared = min(map(len, folders), default=0)
    depth = next((i for i, names in levels if len(set(names)) > 1), shared)
    differing = {parts[depth] if len(parts) > depth else "" for parts in folders}
    depth = 0 if any(map(OTHER.fullmatch, differing)) else depth
    return [parts[depth] if len(parts) > depth else "" for parts in folders]


def person_pattern(root: Path, paths: Sequence[Path], numbers: bool = False) -> str:
    """The pattern of paths whose part `{person}` is shared by several tables; "" if there is none.

    Names such as `S01_free.csv` and `S01_search.csv`, or `free/S01.csv` and `search/S01.csv`, are
    two recordings of one person. A part such as S01 is the person, else the one with most values
    that are no numbers or sessions; with `numbers`, those too.
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
        # A word that all names have, such as "sub" or "trial", tells what follows it.
        same = i > 0 and len(set(parts[i - 2])) == 1 and parts[i - 2][0].isalpha()
        word = [f"{parts[i - 2][0]}0"] if same else []
        if all(map(PERSON.fullmatch, parts[i])) or any(map(PERSON.fullmatch, word)):
            return 2, 0, -i
        if all(map(OTHER.fullmatch, parts[i])) or any(map(OTHER.fullmatch, word)):
            return 0, 0, -i
        return 1, len(set(parts[i])), -i

    if not varying:
        return ""
    person = max(varying, key=rank)
    people, usual = len(set(parts[person])), {usual_person(root, path) for path in paths}
    if not (numbers or rank(person)[0]) or people == len(usual) in (len(paths), len(set(parts[0]))):
        return ""
    pattern = ["*" if len(set(part)) > 1 else part[0] for part in parts]
    pattern[person] = "{person}"
    return "".join(pattern)


def _parts(path: Path, split: str) -> list[str]:
    """Folders and pieces of a name, with the signs between them, and its ending."""
    stem = re.split(f"({split})", path.stem)
    return [*(x for folder in path.parent.parts for x in (folder, "/")), *stem, "", path.suffix]
