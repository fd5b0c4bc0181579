"""Detection of the format of a folder of gaze recordings, by its files and their columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from types import MappingProxyType
from typing import Any

import numpy as np

from vergence.data.gaze_video.gaze_columns import SECONDS, TICKS, GazeColumns, iso_ns, read_header
from vergence.data.gaze_video.gaze_files import (
    NO_GAZE,
    NO_TABLE,
    PICTURES,
    TABLES,
    no_gaze,
    person_pattern,
)
from vergence.data.gaze_video.gaze_presets import PRESETS, GazePreset, read_preset
from vergence.data.gaze_video.gaze_table import SAMPLING_S
from vergence.data.io.delimited_text import MISSING, DelimitedTable, read_table
from vergence.data.io.path_patterns import files_below, matching
from vergence.data.io.video import VIDEOS
from vergence.errors import DataError

PLAIN, PLAIN_STIMULI = "gaze table with video", "table of gaze on stimuli"
LOOKED_AT = 2000
"""Rows of a table that are looked at."""
TIME = re.compile(r"(^|[^a-z])(t|time|timestamps?|time_?stamp)([^a-z]|$)")
PERSON = re.compile(
    r"^((person|participant|subject|viewer|observer|user|wearer)s?([ _]?(id|name|no))?|names?)$"
)
STIMULUS = re.compile(
    r"^(stimulus|stimuli|stim|image|img|picture|media|video|scene|trial image)s?"
    r"([ _]?(file)?[ _]?(name)?)$"
)
VALID = re.compile(r"^(valid|validity|confidence|tracked)$")
UNIT_WORD = re.compile(r"(?:^|[^a-z])(ms|us|µs|μs|ns)(?:[^a-z]|$)")
SIDE = re.compile(r"(?<![A-Za-z])[xX](?![A-Za-z])|(?<=[a-z])X(?![a-z])")
BESIDE = re.compile(
    r"(^|[^a-z])(calib|valid|mouse|click|key|event|saccade|blink|message|log|trigger|aoi)",
    re.IGNORECASE,
)
"""Names of tables that recorders write beside those of gaze, perhaps with the same columns."""


@dataclass(frozen=True)
class FoundFormat:
    """The format of a folder.

    Attributes:
        title: the format, in words.
        data: the data set that reads it.
        sure: certain (files and columns that no other format has), likely, or a guess.
        why: what was found.
        options: of the data set.
        notes: what was taken for granted, to be looked at, by the options that settle it.
    """

    title: str
    data: str
    sure: str
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def find_format(root: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> FoundFormat:
    """The one format of gaze recordings in a folder.

    Args:
        root: the folder.
        settings: options that are known already: with a preset, or columns of time, x and y,
            nothing is guessed.

    Raises:
        DataError: there is none, there are several, or a table does not say enough.
        ConfigError: the preset is none.
    """
    columns = settings.get("columns", {})
    columns = columns if isinstance(columns, Mapping) else {}
    preset = str(settings.get("preset", ""))
    tables = [path for path in files_below(root) if path.suffix.lower() in TABLES]
    if files := settings.get("files"):
        # Where none fits, the reader says so.
        tables = [path for path, _ in matching(root, files, "files")] or tables
    unread = {
        path for one in settings.get("without", ()) for path, _ in matching(root, one, "without")
    }
    headers: dict[Path, list[str]] = {}
    for path in tables:
        with suppress(DataError):  # no table at all; where there is nothing else, that is said
            headers |= {} if path in unread else {path: read_header(path, "table")}
    if preset in PRESETS or preset.endswith(".toml"):
        made = PRESETS[preset] if preset in PRESETS else read_preset(Path(preset))
        said = [path for path, header in headers.items() if made.matches(header)]
        return _preset(
            preset, made, root, settings, said if made.known_by else [], "as said", "--set"
        )
    if {"t", "x", "y"} <= columns.keys():
        said = FoundFormat(PLAIN, "gaze_table", "as said", "--set")
        if "stimulus" in columns:
            said = replace(
                said, title=PLAIN_STIMULI, data="stimuli", options=_shown(root, settings)
            )
        return _grouped(said, root, settings)
    if found := _by_presets(root, settings, headers):
        return found
    if not tables:
        kinds = Counter(path.suffix or path.name for path in files_below(root)).most_common(5)
        raise DataError(
            f"{root} holds no gaze: no table ({', '.join(TABLES)}) and no file of a known tracker; "
            f"found {', '.join(f'{count} {kind}' for kind, count in kinds) or 'nothing'}"
        )
    return _grouped(_guess(root, tables, headers, settings), root, settings)


def _by_presets(
    root: Path, settings: Mapping[str, Any], headers: Mapping[Path, list[str]]
) -> FoundFormat | None:
    """The preset with a file or columns that no other has.

    Raises:
        DataError: there are several.
    """
    tables: dict[str, list[Path]] = {}
    # Of two with the same columns, the one that asks for more of them.
    order = sorted(PRESETS, key=lambda name: -len(PRESETS[name].known_by))
    for path, header in headers.items():
        known = [n for n in order if PRESETS[n].known_by and PRESETS[n].matches(header)]
        tables.setdefault(known[0] if known else "", []).append(path)
    tables.pop("", None)
    by_name = {
        name: [path for pattern in preset.files for path, _ in matching(root, pattern, "files")]
        for name, preset in PRESETS.items()
        if not preset.known_by
    }
    # A reader takes all its formats; one with a file of its own comes first.
    found: dict[str, str] = {}
    for name in [n for n, paths in by_name.items() if paths] + sorted(tables):
        preset = PRESETS[name]
        found.setdefault(preset.reader or preset.data + (name if preset.columns else ""), name)
    if len(found) > 1:
        listed = "; ".join(f"{PRESETS[name].title} ({name})" for name in found.values())
        raise DataError(
            f"{root} holds several formats: {listed}: give each a folder of its own, or name the "
            f"one to read: --set federation.preset={next(iter(found.values()))}"
        )
    if not found:
        return None
    (name,) = found.values()
    paths, preset = tables.get(name, []), PRESETS[name]
    why = f"{len(paths)} tables with {', '.join(preset.known_by)}"
    if not paths:
        why = f"{len(by_name[name])} {by_name[name][0].name}"
    return _preset(name, preset, root, settings, paths, "", why)


def _preset(
    name: str,
    preset: GazePreset,
    root: Path,
    settings: Mapping[str, Any],
    tables: Sequence[Path],
    sure: str,
    why: str,
) -> FoundFormat:
    """The format of a preset, with the options that its files do not tell.

    `tables` are those with its columns; `sure` "" is decided by their names.
    """
    if preset.data not in ("stimuli", "gaze_table"):
        return FoundFormat(preset.title, preset.data, sure or "certain", why)
    options, notes = {"preset": name, **preset.options}, dict(preset.notes)
    if preset.data == "stimuli":
        options |= _shown(root, settings)
    fitting = [matching(root, pattern, "files") for pattern in preset.files]
    known = {path: parts for found in fitting for path, parts in found if path in tables}
    if tables and not known:
        endings = {path.suffix for path in tables}
        options["files"] = f"**/*{endings.pop() if len(endings) == 1 else ''}"
        fitting = [matching(root, options["files"], "files")]
    read = {path for path, _ in next(filter(None, fitting), [])}
    if tables and (others := [path for path in sorted(read) if path not in tables]):
        options["without"] = _relative(root, others)
    people = {known[path].get("person") for path in known if path in read}
    lost = [p for p in tables if p not in read and known.get(p, {}).get("person") not in people]
    if lost and "files" not in settings:
        notes["files"] = (
            f"{', '.join(_relative(root, lost))}: not read, because of the name; say "
            "--set federation.files='PATTERN' if it should be"
        )
    if preset.data == "stimuli" and tables and not any(c.stimulus for c in preset.columns):
        options["columns"] = {"stimulus": _picture_column(root, tables[0], settings)}
    if name == "aria_mps" and not any(path.suffix == ".vrs" for path in files_below(root)):
        options |= {"start": "first", "lens": "equidistant"}
        notes["fov_deg start lens"] = (
            "no VRS: gaze is placed by its angles as if the eyes were at the camera, and the first "
            "sample is taken for the first frame"
        )
    sure = sure or ("certain" if known or not tables else "likely")
    return FoundFormat(preset.title, preset.data, sure, why, options, notes)


def _picture_column(root: Path, path: Path, settings: Mapping[str, Any]) -> str:
    """The column of a table that names the pictures, where a maker leaves that to the user.

    Raises:
        DataError: none does.
    """
    if stimulus := _stimulus_column(_sample(path), root, settings):
        return stimulus
    raise DataError(
        f"{path}: no column names the pictures in {root}: add the trial variable with the "
        "picture's file name to the report"
    )


def _relative(root: Path, paths: Iterable[Path]) -> list[str]:
    """Paths below root, as patterns."""
    return [re.sub("[{}]", "*", path.relative_to(root).as_posix()) for path in paths]


def _grouped(found: FoundFormat, root: Path, settings: Mapping[str, Any]) -> FoundFormat:
    """The format, with the pattern that says whose each table is, and tables that are not read.

    It stays as it is where `files` is set.
    """
    columns = {**found.options.get("columns", {}), **settings.get("columns", {})}
    if "files" in settings:
        return found
    sets = [GazeColumns(**columns)]
    paths = [path for path in files_below(root) if path.suffix.lower() in TABLES]
    why = {path: no_gaze(path, sets) for path in paths}
    tables = [path for path in paths if why[path] not in (NO_GAZE, NO_TABLE)]
    whole = [path for path in tables if not why[path]]
    gaze = [path for path in whole if not BESIDE.search(path.stem)] or whole
    pattern = "" if columns.get("person") else person_pattern(root, gaze)
    if found.data == "stimuli" and not (pattern or columns.get("person")):
        # Tables in one folder are of one person each, as they are in root itself.
        one_folder = len({path.parent for path in gaze}) == 1 and gaze[0].parent != root
        pattern = person_pattern(root, gaze, numbers=True) if one_folder else ""
    options: dict[str, Any] = {}
    notes = dict(found.notes)
    if not pattern and not columns.get("person") and found.data == "gaze_table" and len(paths) > 1:
        videos = {path.stem for path in root.iterdir() if path.suffix.lower() in VIDEOS}
        if all(path.parent == root for path in gaze) and videos & {path.stem for path in gaze}:
            endings = {path.suffix for path in gaze}
            pattern = f"{{person}}{endings.pop() if len(endings) == 1 else '.*'}"
            names = [path.stem for path in gaze]
            notes["files"] = (
                f"each file is taken for a person, by its name: {len(names)} people "
                f"({', '.join(names[:4])}{', ...' if len(names) > 4 else ''}); if all are "
                f"recordings of one person, say --set federation.files='*{gaze[0].suffix}'; if "
                "names are such as anna_1, say --set "
                f"federation.files='{{person}}_{{recording}}{gaze[0].suffix}'"
            )
    if pattern:
        options["files"] = pattern
    fitting = [path for path, _ in matching(root, pattern, "files")] if pattern else tables
    if others := [p for p in fitting if p not in gaze and p.suffix.lower() in TABLES]:
        options["without"] = _relative(root, others)
    if beside := [path for path in tables if path not in gaze]:
        notes["without"] = (
            f"{', '.join(_relative(root, beside))} not read, because of the name or for lack of a "
            "column; if it is gaze, say --set federation.without=[]"
        )
    return replace(found, options={**found.options, **options}, notes=notes)


def _shown(root: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The folder below root that holds the pictures or videos shown, if none is given."""
    if "stimuli" in settings:
        return {}
    files = files_below(root)
    folders = Counter(p.parent for p in files if p.suffix.lower() in PICTURES)
    folders = folders or Counter(p.parent for p in files if p.suffix.lower() in VIDEOS)
    if not folders:
        raise DataError(
            f"{root} holds gaze on a screen and no pictures or videos: put those that were shown "
            "into a folder 'stimuli' in it"
        )
    folder = max(folders, key=lambda path: (folders[path], -len(path.parts)))
    return {"stimuli": folder.relative_to(root).as_posix()}


def _sample(path: Path, rows: int = LOOKED_AT) -> DelimitedTable:
    return read_table(path, [], "table", most=rows)


def _stimulus_column(table: DelimitedTable, root: Path, settings: Mapping[str, Any]) -> str:
    """The column that is given, or most of whose cells name a picture or video in the folder."""
    if stimulus := settings.get("columns", {}).get("stimulus"):
        return str(stimulus)
    shown = files_below(root / str(settings.get("stimuli", "")))
    known = {p.name.lower() for p in shown if p.suffix.lower() in PICTURES + VIDEOS}
    known |= {PureWindowsPath(name).stem for name in known}
    best = ("", 0.5)
    for name, cells in table.columns.items():
        full = [cell for cell in cells if cell.strip().lower() not in MISSING]
        hits = sum(PureWindowsPath(cell.strip().lower()).name in known for cell in full)
        # Numbers name a picture by accident, where pictures are numbered.
        if full and hits / len(full) > best[1] and not _numeric(full):
            best = (name, hits / len(full))
    named = [name for name in table.columns if STIMULUS.match(_spaced(name))]
    return best[0] or (named[0] if len(named) == 1 else "")


def _numeric(cells: Iterable[str]) -> bool:
    return all(re.fullmatch(r"-?[\d.,]+", cell.strip()) for cell in cells)


def _guess(
    root: Path,
    tables: Sequence[Path],
    headers: Mapping[Path, list[str]],
    settings: Mapping[str, Any],
) -> FoundFormat:
    """Columns of plain tables, by their names and numbers, but for those that are given.

    Raises:
        DataError: one cannot be told; names the file and its columns.
    """
    path, table, roles, others = _first_with_gaze(root, tables, headers)
    columns: dict[str, Any] = dict(roles)
    columns["t_unit"] = _time_unit(table, roles["t"])
    columns["unit"] = _unit(table, roles)
    notes = {
        "columns.t columns.x columns.y": f"columns of {path.name} were chosen by their names: "
        "check that they are the right ones",
        "columns.t_unit columns.unit": f"t_unit = '{columns['t_unit']}' and unit = "
        f"'{columns['unit']}' were guessed from a unit in the column's name, or from the size of "
        "the numbers and their steps: check them, above all if the table holds fixations only",
    }
    if others:
        notes["files"] = (
            f"{', '.join(_relative(root, others))}: gaze in other columns than {path.name}, which "
            "is not read; give it a folder of its own, or the same names of columns"
        )
    stimulus = _stimulus_column(table, root, settings)
    for role, rule in (("person", PERSON), ("valid", VALID)):
        named = [n for n in table.columns if rule.match(_spaced(n)) and n != stimulus]
        if len(named) > 1:
            notes[f"columns.{role}"] = f"{role} = '{named[0]}', the first of {', '.join(named)}"
        columns |= {role: named[0]} if named else {}
    why = f"{path.name} has {', '.join(roles.values())}"
    if stimulus:
        columns["stimulus"] = stimulus
        shown = {**_shown(root, settings), "place": "picture", "columns": columns}
        notes["place"] = (
            "x and y are taken to count in the picture (place = 'picture'); where they count on "
            "the screen, say screen = [width, height] and place = 'fill', 'fit' or 'centre'"
        )
        if not columns.get("person") and len(tables) == 1:
            notes["columns.person"] = (
                f"{path.name} is taken for one person's; if it holds several people, name their "
                "column: --set 'federation.columns={person=\"...\"}'"
            )
        return FoundFormat(PLAIN_STIMULI, "stimuli", "a guess", why, shown, notes)
    options: dict[str, Any] = {"columns": columns}
    start = _numbers(table, roles["t"])[:1]
    if columns["t_unit"] == "datetime" or start[0] * SECONDS[columns["t_unit"]] > 60:
        options["start"] = "first"
        notes["start"] = "the first sample is taken for the video's first frame (start = 'first')"
    return FoundFormat(PLAIN, "gaze_table", "a guess", why, options, notes)


def _first_with_gaze(
    root: Path, tables: Sequence[Path], headers: Mapping[Path, list[str]]
) -> tuple[Path, DelimitedTable, dict[str, str], list[Path]]:
    """The first table with the columns of gaze that most tables have, and tables with others."""
    roles = {path: found for path, header in headers.items() if (found := _roles(header))}
    usual = Counter(tuple(found.values()) for found in roles.values()).most_common(1)
    for path, found in roles.items():
        if tuple(found.values()) == usual[0][0]:
            with suppress(DataError):
                if len(table := _sample(path)):
                    return path, table, found, [p for p, other in roles.items() if other != found]
    path = max(headers or tables, key=lambda path: len(headers.get(path, [])))
    header = list(_sample(path).columns)
    times = [name for name in header if TIME.search(_spaced(name))]
    unit = next(filter(None, map(_named_unit, times or header)), "s")
    pictures = any(path.suffix.lower() in PICTURES for path in files_below(root))
    shown = ', stimulus="..."' if pictures else ""
    raise DataError(
        f"{path}: no columns of time, x and y can be told from its header: "
        f'{", ".join(header)[:300]}; name them: --set \'federation.columns={{t="...", '
        f'x="...", y="...", unit="px", t_unit="{unit}"{shown}}}\''
    )


def _named_unit(name: str) -> str:
    """The unit of time that a column's name has as a word, such as `time_ms`; else ""."""
    hit = UNIT_WORD.search(name.lower())
    return hit.group(1).replace("µ", "u").replace("μ", "u") if hit else ""


def _roles(names: Collection[str]) -> dict[str, str]:
    """Columns of time, x and y; none where one cannot be told."""
    times = [name for name in names if TIME.search(_spaced(name))]
    across = [name for name in names if SIDE.search(name) and _partner(name) in names]
    gaze = [name for name in across if "gaze" in name.lower()] or across
    gaze = [name for name in gaze if not re.search("left|right|pupil", name.lower())] or gaze
    if not times or not gaze:
        return {}
    times = [name for name in times if "gaze" in name.lower()] or times
    return {"t": times[0], "x": gaze[0], "y": _partner(gaze[0])}


def _spaced(name: str) -> str:
    """A name in small letters, with spaces between words such as `GazePointX`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _partner(name: str) -> str:
    """The name of the column of y that belongs to one of x."""
    return SIDE.sub(lambda x: "Y" if x.group() == "X" else "y", name, count=1)


def _time_unit(table: DelimitedTable, name: str) -> str:
    cells = [cell.strip() for cell in table.text(name)]
    if cells and all(iso_ns(cell) is not None for cell in cells[:5]) and not _numeric(cells[:5]):
        return "datetime"
    if told := _named_unit(name):
        return told
    steps = np.diff(_numbers(table, name))
    step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    for unit in TICKS:
        if SAMPLING_S[0] <= step * SECONDS[unit] < SAMPLING_S[1]:
            return unit
    raise DataError(
        f"{table.path}: '{name}' rises by {step:g} from row to row, which is no sampling of a "
        "tracker in s, ms, us or ns: name the column and unit: --set federation.columns.t_unit=..."
    )


def _numbers(table: DelimitedTable, name: str) -> np.ndarray:
    return np.zeros(1) if not len(table) or iso_ns(table.text(name)[0]) else table.floats(name)


def _unit(table: DelimitedTable, roles: Mapping[str, str]) -> str:
    sides = np.concatenate([table.floats(roles[role]) for role in ("x", "y")])
    sides = sides[np.isfinite(sides)]
    if "deg" in roles["x"].lower():
        return "deg"
    if not len(sides):
        raise DataError(f"{table.path}: '{roles['x']}' and '{roles['y']}' hold no number at all")
    return "fraction" if np.quantile(np.abs(sides), 0.9) <= 1.5 else "px"
