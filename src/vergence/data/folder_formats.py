"""Formats of gaze recordings, told by the files and columns of a folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from types import MappingProxyType
from typing import Any

import numpy as np

from vergence.data.gaze_video.gaze_columns import SECONDS, TICKS, column, iso_ns
from vergence.data.gaze_video.gaze_presets import PRESETS
from vergence.data.gaze_video.gaze_table import SAMPLING_S
from vergence.data.io.delimited_text import MISSING, DelimitedTable, read_table
from vergence.data.io.path_patterns import matching
from vergence.data.io.video import VIDEOS
from vergence.data.saliency.stimuli import PICTURES
from vergence.errors import DataError

PLAIN, PLAIN_STIMULI = "gaze table with video", "table of gaze on stimuli"
TABLES = (".csv", ".tsv", ".txt")
LOOKED_AT = 2000
"""Rows of a table that are looked at."""
OWN_FILES = {
    "livedata.json.gz": ("tobii", "Tobii Pro Glasses 2 segment"),
    "gaze_2d.csv": ("aria", "upright Aria video with gaze_2d.csv"),
    "gaze ps1.raw": ("pupil", "Neon native recording"),
}
"""Files that only one data set of the package reads: its name, and what they are."""
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
SIDE = re.compile(r"(^|[^a-z])x([^a-z]|$)")


@dataclass(frozen=True)
class FoundFormat:
    """The format of a folder.

    Attributes:
        title: the format, in words.
        data: the data set that reads it.
        sure: certain (files and columns that no other format has), likely, or a guess.
        why: what was found.
        options: of the data set.
        notes: what was taken for granted, to be looked at.
    """

    title: str
    data: str
    sure: str
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def find_format(root: Path, given: Mapping[str, Any] = MappingProxyType({})) -> FoundFormat:
    """The one format of gaze recordings in a folder.

    Args:
        root: the folder.
        given: options that are known already: with a preset, or columns of time, x and y, nothing
            is guessed.

    Raises:
        DataError: there is none, there are several, or a table does not say enough.
    """
    columns = given.get("columns", {})
    if given.get("preset") in PRESETS:
        on_screen = PRESETS[given["preset"]].data == "stimuli"
        options = _shown(root) if on_screen and "stimuli" not in given else {}
        return _preset(given["preset"], "as said", "--set", options)
    if isinstance(columns, Mapping) and {"t", "x", "y"} <= columns.keys():
        if "stimulus" not in columns:
            said = FoundFormat(PLAIN, "gaze_table", "as said", "--set")
            return _people_by_name(said, root, given)
        options = {} if "stimuli" in given else _shown(root)
        return FoundFormat(PLAIN_STIMULI, "stimuli", "as said", "--set", options)
    by_reader: dict[str, FoundFormat] = {}
    for one in (*_by_files(root), *_by_columns(root)):
        preset = PRESETS.get(str(one.options.get("preset")))
        reader = one.data if preset is None else preset.reader or one.title
        by_reader.setdefault(reader, one)  # a reader takes all its formats
    found = list(by_reader.values())
    if len(found) > 1:
        listed = "; ".join(f"{f.title} ({f.why})" for f in found)
        raise DataError(f"{root} holds several formats: {listed}: give each a folder of its own")
    if found:
        return found[0]
    tables = [p for p in _files(root) if p.suffix.lower() in TABLES]
    if not tables:
        kinds = Counter(path.suffix or path.name for path in _files(root)).most_common(5)
        raise DataError(
            f"{root} holds no gaze: no table ({', '.join(TABLES)}) and no file of a known tracker; "
            f"found {', '.join(f'{count} {kind}' for kind, count in kinds) or 'nothing'}"
        )
    own = columns if isinstance(columns, Mapping) else {}
    return _people_by_name(_guess(root, tables, own), root, given)


def _people_by_name(found: FoundFormat, root: Path, given: Mapping[str, Any]) -> FoundFormat:
    """The format; where root holds tables and videos of the same names, each name is a person.

    It stays as it is where `files` or a column of people is given.
    """
    own = given.get("columns", {})
    columns = {**found.options.get("columns", {}), **(own if isinstance(own, Mapping) else {})}
    if found.data != "gaze_table" or "files" in given or columns.get("person"):
        return found
    here = [path for path in sorted(root.iterdir()) if path.is_file()]
    videos = {path.stem: path.suffix for path in here if path.suffix.lower() in VIDEOS}
    tables = [path for path in here if path.suffix.lower() in TABLES]
    pairs = [path for path in tables if path.stem in videos]
    if not pairs or len(tables) < 2:
        return found
    options: dict[str, Any] = {"files": f"{{person}}{pairs[0].suffix}"}
    endings = {videos[path.stem] for path in pairs}
    if len(endings) == 1 and "videos" not in given:
        options["videos"] = f"{{person}}{endings.pop()}"
    alike = [path for path in tables if path.suffix == pairs[0].suffix]
    names = [path.stem for path in alike if path.stem in videos or _has_gaze(path)]
    if len(names) < len(alike):
        options["people"] = names
    note = (
        f"each file is taken for a person, by its name: {len(names)} people "
        f"({', '.join(names[:4])}{', ...' if len(names) > 4 else ''}); if all are recordings of "
        f"one person, say --set federation.files='*{pairs[0].suffix}'; if names are such as "
        f"anna_1, say --set federation.files='{{person}}_{{recording}}{pairs[0].suffix}'"
    )
    return replace(found, options={**found.options, **options}, notes=(*found.notes, note))


def _files(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file()]


def _by_files(root: Path) -> list[FoundFormat]:
    """Formats with a file that no other has."""
    out = []
    for name, (data, title) in OWN_FILES.items():
        if found := [path for path in _files(root) if path.name == name]:
            out.append(FoundFormat(title, data, "certain", f"{len(found)} {name}"))
    if found := matching(root, PRESETS["tobii_glasses3"].files, "files"):
        out.append(_preset("tobii_glasses3", "certain", f"{len(found)} gazedata.gz"))
    asc = [path for path in _files(root) if path.suffix.lower() == ".asc"]
    if asc:
        head = asc[0].read_bytes()[:4096]
        sure = "certain" if b"CONVERTED FROM" in head or b"EYELINK" in head else "likely"
        out.append(_preset("eyelink_asc", sure, f"{len(asc)} .asc files", _shown(root)))
    return out


def _by_columns(root: Path) -> list[FoundFormat]:
    """Formats with columns that no other has."""
    held: dict[str, list[Path]] = {}
    for path in _files(root):
        if path.suffix.lower() not in TABLES:
            continue
        with suppress(DataError):  # no table at all; where there is nothing else it is told later
            _hold(held, path, _sample(path, 0).columns)
    out = []
    for name, paths in held.items():
        usual = [path for path, _ in matching(root, PRESETS[name].files, "files")]
        sure = "certain" if set(paths) <= set(usual) else "likely"
        why = f"{len(paths)} tables with {', '.join(PRESETS[name].known_by)}"
        options: dict[str, Any] = {}
        if PRESETS[name].data == "stimuli" and set(paths) != set(usual):
            one = paths[0].relative_to(root).as_posix()
            options["files"] = one if len(paths) == 1 else f"**/*{paths[0].suffix}"
        if PRESETS[name].data == "stimuli":
            options |= _shown(root)
        notes: list[str] = []
        _complete(name, root, paths, options, notes)
        out.append(_preset(name, sure, why, options, notes))
    return out


def _hold(held: dict[str, list[Path]], path: Path, header: Iterable[str]) -> None:
    for name, preset in PRESETS.items():
        if preset.known_by and all(column(list(header), known) for known in preset.known_by):
            held.setdefault(name, []).append(path)
            return


def _preset(
    name: str,
    sure: str,
    why: str,
    options: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> FoundFormat:
    preset = PRESETS[name]
    return FoundFormat(
        preset.title, preset.data, sure, why, {"preset": name, **(options or {})}, notes
    )


def _complete(
    name: str, root: Path, paths: Sequence[Path], options: dict[str, Any], notes: list[str]
) -> None:
    """Options that a format's files do not tell, with what was taken for granted."""
    if name == "gazepoint":
        options["place"] = "fill"
        notes.append(
            "Gazepoint counts in fractions of the screen: place = 'fill' is right where the "
            "picture filled it; else say screen = [width, height] and place = 'fit' or 'centre'"
        )
    if name == "tobii_pro_lab":
        options["unknown"] = "skip"
        notes.append("stimuli without a file (calibration, instructions) are left out and counted")
    if name == "eyelink_fixation_report":
        table = _sample(paths[0])
        stimulus = _stimulus_column(table, root)
        if not stimulus:
            raise DataError(
                f"{paths[0]}: no column names the pictures in {root / str(options['stimuli'])}: "
                "add the trial variable with the picture's file name to the report"
            )
        options["columns"] = {"stimulus": stimulus}
        options["place"] = "centre"
        notes.append(
            "the report does not say where pictures were: place = 'centre' takes them to have been "
            "shown in their own size in the middle of the screen"
        )
    if name == "aria_mps" and not list(root.rglob("*.vrs")):
        options |= {"start": "first", "lens": "equidistant"}
        notes.append(
            "no VRS: gaze is placed by its angles as if the eyes were at the camera, and the first "
            "sample is taken for the first frame"
        )


def _shown(root: Path) -> dict[str, Any]:
    """The folder below root that holds the pictures or videos shown."""
    held = Counter(p.parent for p in _files(root) if p.suffix.lower() in PICTURES)
    held = held or Counter(p.parent for p in _files(root) if p.suffix.lower() in VIDEOS)
    if not held:
        raise DataError(
            f"{root} holds gaze on a screen and no pictures or videos: put those that were shown "
            "into a folder 'stimuli' in it"
        )
    folder = max(held, key=lambda path: (held[path], -len(path.parts)))
    return {"stimuli": folder.relative_to(root).as_posix()}


def _sample(path: Path, rows: int = LOOKED_AT) -> DelimitedTable:
    return read_table(path, [], "table", most=rows)


def _stimulus_column(table: DelimitedTable, root: Path) -> str:
    """The column most of whose cells name a picture or video in the folder."""
    known = {p.name.lower() for p in _files(root) if p.suffix.lower() in PICTURES + VIDEOS}
    known |= {PureWindowsPath(name).stem for name in known}
    best = ("", 0.5)
    for name, cells in table.columns.items():
        full = [cell for cell in cells if cell.strip().lower() not in MISSING]
        hits = sum(PureWindowsPath(cell.strip().lower()).name in known for cell in full)
        # Numbers name a picture by accident, where pictures are numbered.
        if full and hits / len(full) > best[1] and not _numeric(full):
            best = (name, hits / len(full))
    named = [name for name in table.columns if STIMULUS.match(name.lower())]
    return best[0] or (named[0] if len(named) == 1 else "")


def _numeric(cells: Iterable[str]) -> bool:
    return all(re.fullmatch(r"-?[\d.,]+", cell.strip()) for cell in cells)


def _guess(root: Path, tables: Sequence[Path], own: Mapping[str, Any]) -> FoundFormat:
    """Columns of plain tables, by their names and numbers, but for those that are said.

    Raises:
        DataError: one cannot be told; names the file and its columns.
    """
    path, table, roles = _first_with_gaze(root, tables)
    options: dict[str, Any] = {"files": f"**/*{path.suffix}"}
    others = [p for p in tables if p.suffix == path.suffix and not _has_gaze(p)]
    if others:
        options["files"] = f"**/{path.name}"
    columns: dict[str, Any] = dict(roles)
    notes = [
        f"columns of {path.name} were chosen by their names: check that they are the right ones"
    ]
    columns["t_unit"] = _time_unit(table, roles["t"])
    columns["unit"] = _unit(table, roles)
    notes.append(
        f"t_unit = '{columns['t_unit']}' and unit = '{columns['unit']}' were guessed from a unit "
        "in the column's name, or from the size of the numbers and their steps: check them, above "
        "all if the table holds fixations only"
    )
    stimulus = str(own.get("stimulus") or _stimulus_column(table, root))
    for role, rule in (("person", PERSON), ("valid", VALID)):
        named = [n for n in table.columns if rule.match(n.lower()) and n != stimulus]
        if len(named) > 1 and role not in own:
            notes.append(f"{role} = '{named[0]}', the first of {', '.join(named)}")
        columns |= {role: named[0]} if named else {}
    why = f"{path.name} has {', '.join(roles.values())}"
    if stimulus:
        columns["stimulus"] = stimulus
        options |= {**_shown(root), "place": "picture", "columns": columns}
        notes.append(
            "x and y are taken to count in the picture (place = 'picture'); where they count on "
            "the screen, say screen = [width, height] and place = 'fill', 'fit' or 'centre'"
        )
        if not ({**columns, **own}.get("person") or len(tables) > 1):
            notes.append(
                f"{path.name} is taken for one person's; if it holds several people, name their "
                "column: --set 'federation.columns={person=\"...\"}'"
            )
        return FoundFormat(PLAIN_STIMULI, "stimuli", "a guess", why, options, notes)
    options["columns"] = columns
    start = _numbers(table, roles["t"])[:1]
    if columns["t_unit"] == "datetime" or start[0] * SECONDS[columns["t_unit"]] > 60:
        options["start"] = "first"
        notes.append("the first sample is taken for the video's first frame (start = 'first')")
    return FoundFormat(PLAIN, "gaze_table", "a guess", why, options, notes)


def _first_with_gaze(
    root: Path, tables: Sequence[Path]
) -> tuple[Path, DelimitedTable, dict[str, str]]:
    for path in tables:
        with suppress(DataError):
            table = _sample(path)
            if len(table) and (roles := _roles(table)):
                return path, table, roles
    table = _sample(tables[0])
    times = [name for name in table.columns if TIME.search(name.lower())]
    unit = next(filter(None, map(_named_unit, times or table.columns)), "s")
    pictures = any(path.suffix.lower() in PICTURES for path in _files(root))
    shown = ', stimulus="..."' if pictures else ""
    raise DataError(
        f"{tables[0]}: no columns of time, x and y can be told from its header: "
        f'{", ".join(table.columns)[:300]}; name them: --set \'federation.columns={{t="...", '
        f'x="...", y="...", unit="px", t_unit="{unit}"{shown}}}\''
    )


def _named_unit(name: str) -> str:
    """The unit of time that a column's name has as a word, such as `time_ms`; else ""."""
    hit = UNIT_WORD.search(name.lower())
    return hit.group(1).replace("µ", "u").replace("μ", "u") if hit else ""


def _has_gaze(path: Path) -> bool:
    with suppress(DataError):
        return bool(_roles(_sample(path, 1)))
    return False


def _roles(table: DelimitedTable) -> dict[str, str]:
    """Columns of time, x and y; none where one cannot be told."""
    names = list(table.columns)
    times = [name for name in names if TIME.search(name.lower())]
    across = [name for name in names if SIDE.search(name.lower()) and _partner(name) in names]
    gaze = [name for name in across if "gaze" in name.lower()] or across
    gaze = [name for name in gaze if not re.search("left|right|pupil", name.lower())] or gaze
    if not times or not gaze:
        return {}
    times = [name for name in times if "gaze" in name.lower()] or times
    return {"t": times[0], "x": gaze[0], "y": _partner(gaze[0])}


def _partner(name: str) -> str:
    hit = SIDE.search(name.lower())
    if hit is None:
        return ""
    at = hit.start() + len(hit.group(1))
    return name[:at] + ("Y" if name[at] == "X" else "y") + name[at + 1 :]


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
