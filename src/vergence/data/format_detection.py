"""Detection of the format of gaze recordings, from a folder's files and their columns.

Used by `cli.data_import`.
"""

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

from vergence.core.naming import by_key, plural
from vergence.data.gaze_video.gaze_columns import SECONDS, TICKS, GazeColumns, iso_ns, read_header
from vergence.data.gaze_video.gaze_files import (
    NO_GAZE,
    NO_TABLE,
    PICTURES,
    TABLES,
    person_pattern,
    why_no_gaze,
)
from vergence.data.gaze_video.gaze_presets import PRESETS, GazePreset, read_preset
from vergence.data.gaze_video.gaze_table import SAMPLING_S
from vergence.data.io.delimited_text import MISSING, DelimitedTable, read_table
from vergence.data.io.path_patterns import files_below, matching_files
from vergence.data.io.video import VIDEOS
from vergence.errors import DataError

PLAIN, PLAIN_STIMULI = "gaze table with video", "table of gaze on stimuli"
SAMPLE_ROWS = 2000
"""Number of a table's first rows that are read to detect its format."""
TIME = re.compile(r"(^|[^a-z])(t|time|timestamps?|time_?stamp)([^a-z]|$)")
PERSON = re.compile(
    r"^((person|participant|subject|viewer|observer|user|wearer)s?([ _]?(id|name|no))?|names?)$"
)
STIMULUS = re.compile(
    r"^(stimulus|stimuli|stim|image|img|picture|media|video|scene|trial image)s?"
    r"([ _]?(file)?[ _]?(name)?)$"
)
CONDITION = re.compile(r"^(condition|cond|session|block|task|lighting|group)([ _]?(id|name|no))?$")
VALID = re.compile(r"^(valid|validity|confidence|tracked)$")
UNIT_WORD = re.compile(r"(?:^|[^a-z])(ms|us|µs|μs|ns)(?:[^a-z]|$)")
SIDE = re.compile(r"(?<![A-Za-z])[xX](?![A-Za-z])|(?<=[a-z])X(?![a-z])")
EYES = {
    "left": "right",
    "Left": "Right",
    "LEFT": "RIGHT",
    "right": "left",
    "Right": "Left",
    "RIGHT": "LEFT",
}
EYE = re.compile("|".join(EYES))
OTHER_UNIT = re.compile(r"(?:^|[^a-z])(mm|cm|percent|pct|rad|radians?)(?:[^a-z]|$)|(%)")
NOT_GAZE = re.compile(
    r"(^|[^a-z])(calib|valid|mouse|click|key|event|saccade|blink|message|log|trigger|aoi)",
    re.IGNORECASE,
)
"""Parts of file names of tables that trackers write, and that hold no gaze."""


@dataclass(frozen=True)
class GazeFormat:
    """Format of the gaze recordings in a folder.

    Attributes:
        title: the format's name in messages to the user.
        data: name of the data set that reads the recordings.
        certainty: "certain": no other format has these files or columns. "likely": the columns fit,
            the file names do not. "a guess": columns are guessed by name. "as said": the user named
            preset or columns.
        evidence: the files or columns by which the format was recognised.
        options: values for options of the data set.
        notes: names of options -> an assumption behind their values that the user should check.
    """

    title: str
    data: str
    certainty: str
    evidence: str
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def find_format(root: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> GazeFormat:
    """Detect the format of the gaze recordings in a folder, which must all have the same one.

    Args:
        root: the folder.
        settings: options that the user has set. If they name a preset, or the columns of time, x
            and y, no format is guessed.

    Raises:
        DataError: the folder has no known format, or several; or a table's columns or units are
            unclear.
        ConfigError: the preset in `settings` does not exist.
    """
    # Columns that are no table are refused by the data set's reader.
    columns = settings["columns"] if isinstance(settings.get("columns"), Mapping) else {}
    settings = {**settings, "columns": columns}
    preset = str(settings.get("preset", ""))
    tables = [path for path in files_below(root) if path.suffix.lower() in TABLES]
    if files := settings.get("files"):
        # Where no file fits the pattern, the data set's reader refuses it later.
        tables = [path for path, _ in matching_files(root, files, "files")] or tables
    unread = {
        path for p in settings.get("without", ()) for path, _ in matching_files(root, p, "without")
    }
    headers: dict[Path, list[str]] = {}
    for path in tables:
        # A file that is no table; where there are no others, the message below tells it.
        with suppress(DataError):
            headers |= {} if path in unread else {path: read_header(path, "table")}
    if preset in PRESETS or preset.endswith(".toml"):
        export = PRESETS[preset] if preset in PRESETS else read_preset(Path(preset))
        fitting = [path for path, header in headers.items() if export.matches(header)]
        return _preset_format(
            preset, export, root, settings, fitting if export.known_by else [], "as said", "--set"
        )
    if {"t", "x", "y"} <= columns.keys():
        plain = GazeFormat(PLAIN, "gaze_table", "as said", "--set")
        if "stimulus" in columns:
            plain = replace(
                plain, title=PLAIN_STIMULI, data="stimuli", options=_stimulus_folder(root, settings)
            )
        return _with_files(plain, root, settings)
    if known := _known_format(root, settings, headers):
        return known
    if not tables:
        kinds = Counter(path.suffix or path.name for path in files_below(root)).most_common(5)
        raise DataError(
            f"{root} holds no gaze: no table ({', '.join(TABLES)}) and no file of a known tracker; "
            f"found {', '.join(f'{count} {kind}' for kind, count in kinds) or 'nothing'}"
        )
    return _with_files(_guess_format(root, tables, headers, settings), root, settings)


def _known_format(
    root: Path, settings: Mapping[str, Any], headers: Mapping[Path, list[str]]
) -> GazeFormat | None:
    """Return the format of the preset whose files or typical columns are in the folder.

    `headers` holds the column names of each table. If no preset fits, the result is None.

    Raises:
        DataError: presets with different readers fit.
    """
    # Where two presets fit, the one that asks for more columns is the more specific one.
    order = sorted(PRESETS, key=lambda name: -len(PRESETS[name].known_by))
    tables = by_key(
        (name, path)
        for path, header in headers.items()
        for name in [n for n in order if PRESETS[n].known_by and PRESETS[n].matches(header)][:1]
    )
    by_name = {
        name: [
            path for pattern in preset.files for path, _ in matching_files(root, pattern, "files")
        ]
        for name, preset in PRESETS.items()
        if not preset.known_by
    }
    # One reader may serve several presets; those with files of their own come first.
    by_reader = by_key(
        (preset.reader or preset.data + (name if preset.columns else ""), name)
        for name in [n for n, paths in by_name.items() if paths] + sorted(tables)
        for preset in [PRESETS[name]]
    )
    if len(by_reader) > 1:
        first = [names[0] for names in by_reader.values()]
        listed = "; ".join(f"{PRESETS[name].title} ({name})" for name in first)
        raise DataError(
            f"{root} holds several formats: {listed}: give each a folder of its own, or name the "
            f"one to read: --set federation.preset={first[0]}"
        )
    if not by_reader:
        return None
    (names,) = by_reader.values()
    # What lies beside or below the files of the first kind is of the same recordings.
    paths = {name: tables.get(name) or by_name[name] for name in names}
    first = {path.parent for path in paths[names[0]]}
    others = [n for n in names[1:] if any(first.isdisjoint(path.parents) for path in paths[n])]
    names = [names[0], *others]
    evidence = "; ".join(
        f"{plural(len(tables[name]), 'table')} with {', '.join(PRESETS[name].known_by)}"
        if name in tables
        else f"{len(by_name[name])} {by_name[name][0].name}"
        for name in names
    )
    name = names[0]
    found = _preset_format(name, PRESETS[name], root, settings, tables.get(name, []), "", evidence)
    return replace(found, title=", ".join(PRESETS[name].title for name in names))


def _preset_format(
    name: str,
    preset: GazePreset,
    root: Path,
    settings: Mapping[str, Any],
    tables: Sequence[Path],
    certainty: str,
    evidence: str,
) -> GazeFormat:
    """Return the format of a preset, with values for options that the files do not state.

    `tables` are the tables with the preset's typical columns. If `certainty` is "", it is "certain"
    or "likely", depending on whether the tables' names fit the preset too.
    """
    if preset.data not in ("stimuli", "gaze_table"):
        return GazeFormat(preset.title, preset.data, certainty or "certain", evidence)
    options, notes = {"preset": name, **preset.options}, dict(preset.notes)
    if preset.data == "stimuli":
        options |= _stimulus_folder(root, settings)
    fitting = [matching_files(root, pattern, "files") for pattern in preset.files]
    known = {path: parts for files in fitting for path, parts in files if path in tables}
    if tables and not known:
        endings = {path.suffix for path in tables}
        options["files"] = f"**/*{endings.pop() if len(endings) == 1 else ''}"
        fitting = [matching_files(root, options["files"], "files")]
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
    certainty = certainty or ("certain" if known or not tables else "likely")
    return GazeFormat(preset.title, preset.data, certainty, evidence, options, notes)


def _picture_column(root: Path, path: Path, settings: Mapping[str, Any]) -> str:
    """Return the name of the table column that names the pictures.

    Some makers leave this column's name to the user, so its cells are compared with file names.

    Raises:
        DataError: no column names the pictures.
    """
    if stimulus := _stimulus_column(_first_rows(path), root, settings):
        return stimulus
    raise DataError(
        f"{path}: no column names the pictures in {root}: add the trial variable with the "
        "picture's file name to the report"
    )


def _relative(root: Path, paths: Iterable[Path]) -> list[str]:
    """Return paths relative to root as patterns; braces become `*`."""
    # Braces in a name would be read as a named part.
    return [re.sub("[{}]", "*", path.relative_to(root).as_posix()) for path in paths]


def _with_files(gaze_format: GazeFormat, root: Path, settings: Mapping[str, Any]) -> GazeFormat:
    """Return the format with the options `files` and `without`, and notes on both.

    `files` is the pattern that tells a table's person, and `without` names tables that are not
    read. The format is unchanged if the user has set `files`.
    """
    columns = {**gaze_format.options.get("columns", {}), **settings.get("columns", {})}
    if "files" in settings:
        return gaze_format
    sets = [GazeColumns(**columns)]
    paths = [path for path in files_below(root) if path.suffix.lower() in TABLES]
    why = {path: why_no_gaze(path, sets) for path in paths}
    tables = [path for path in paths if why[path] not in (NO_GAZE, NO_TABLE)]
    whole = [path for path in tables if not why[path]]
    gaze = [path for path in whole if not NOT_GAZE.search(path.stem)] or whole
    pattern = "" if columns.get("person") else person_pattern(root, gaze)
    if gaze_format.data == "stimuli" and not (pattern or columns.get("person")):
        # Each table in a folder belongs to one person, as in root itself.
        one_folder = len({path.parent for path in gaze}) == 1 and gaze[0].parent != root
        pattern = person_pattern(root, gaze, numbers=True) if one_folder else ""
    options: dict[str, Any] = {}
    notes = dict(gaze_format.notes)
    if (
        not pattern
        and not columns.get("person")
        and gaze_format.data == "gaze_table"
        and len(paths) > 1
    ):
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
        # A part of the path says it already.
        named = [n for n in columns.get("conditions", ()) if f"{{{n}}}" not in pattern]
        if "conditions" in gaze_format.options.get("columns", {}):
            options["columns"] = {**gaze_format.options["columns"], "conditions": named}
    fitting = [path for path, _ in matching_files(root, pattern, "files")] if pattern else tables
    if others := [p for p in fitting if p not in gaze and p.suffix.lower() in TABLES]:
        options["without"] = _relative(root, others)
    if unread := [path for path in tables if path not in gaze]:
        notes["without"] = (
            f"{', '.join(_relative(root, unread))} not read, because of the name or for lack of a "
            "column; if it is gaze, say --set federation.without=[]"
        )
    return replace(gaze_format, options={**gaze_format.options, **options}, notes=notes)


def _stimulus_folder(root: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `stimuli`: the folder with the pictures or videos that were shown.

    The result is empty if the user has set the option.

    Raises:
        DataError: there are no pictures and no videos.
    """
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
    # The folder with most of them; of equal ones, the one nearest to root.
    folder = max(folders, key=lambda path: (folders[path], -len(path.parts)))
    return {"stimuli": folder.relative_to(root).as_posix()}


def _first_rows(path: Path, rows: int = SAMPLE_ROWS) -> DelimitedTable:
    return read_table(path, [], "table", max_rows=rows)


def _stimulus_column(table: DelimitedTable, root: Path, settings: Mapping[str, Any]) -> str:
    """Return the column that names the pictures or videos shown; "" if none does.

    It is the user's setting, or else the column in which most cells name such a file. If there is
    none, it is the only column with a usual name such as `stimulus`.
    """
    if stimulus := settings.get("columns", {}).get("stimulus"):
        return str(stimulus)
    shown = files_below(root / str(settings.get("stimuli", "")))
    known = {p.name.lower() for p in shown if p.suffix.lower() in PICTURES + VIDEOS}
    known |= {PureWindowsPath(name).stem for name in known}
    best = ("", 0.5)
    for name, cells in table.columns.items():
        full = [cell for cell in cells if cell.strip().lower() not in MISSING]
        hits = sum(PureWindowsPath(cell.strip().lower()).name in known for cell in full)
        # Where pictures are numbered, any column of numbers would seem to name them.
        if full and hits / len(full) > best[1] and not _numeric(full):
            best = (name, hits / len(full))
    named = [name for name in table.columns if STIMULUS.match(_lower_words(name))]
    return best[0] or (named[0] if len(named) == 1 else "")


def _numeric(cells: Iterable[str]) -> bool:
    return all(re.fullmatch(r"-?[\d.,]+", cell.strip()) for cell in cells)


def _guess_format(
    root: Path,
    tables: Sequence[Path],
    headers: Mapping[Path, list[str]],
    settings: Mapping[str, Any],
) -> GazeFormat:
    """Return a format whose columns and units are guessed from names and numbers in the tables.

    Raises:
        DataError: a column or unit is unclear; the message names the file and its columns.
    """
    path, table, roles, others = _first_with_gaze(root, tables, headers)
    columns: dict[str, Any] = {**roles, **_both_eyes(table, roles)}
    columns["t_unit"] = _time_unit(table, roles["t"])
    columns["unit"] = _place_unit(table, roles)
    notes = {
        "columns.t columns.x columns.y": f"columns of {path.name} were chosen by their names: "
        "check that they are the right ones",
        "columns.t_unit columns.unit": f"t_unit = '{columns['t_unit']}' and unit = "
        f"'{columns['unit']}' were guessed from a unit in the column's name, or from the size of "
        "the numbers and their steps: check them, above all if the table holds fixations only; y "
        "is taken to count downwards: if it does not, say --set federation.origin=bottom_left",
    }
    if columns["x"] != roles["x"]:
        notes["columns.x columns.y"] = "gaze is the mean of both eyes, or of the one that was seen"
    if others:
        notes["files"] = (
            f"{', '.join(_relative(root, others))}: gaze in other columns than {path.name}, which "
            "is not read; give it a folder of its own, or the same names of columns"
        )
    stimulus = _stimulus_column(table, root, settings)
    for role, rule in (("person", PERSON), ("valid", VALID)):
        named = [n for n in table.columns if rule.match(_lower_words(n)) and n != stimulus]
        if len(named) > 1:
            notes[f"columns.{role}"] = f"{role} = '{named[0]}', the first of {', '.join(named)}"
        columns |= {role: named[0]} if named else {}
    if named := [n for n in table.columns if CONDITION.match(_lower_words(n)) and n != stimulus]:
        columns["conditions"] = named
        notes["columns.conditions"] = (
            f"scores can be compared by {', '.join(named)} (`vergence study evaluate conditions`); "
            "what was recorded under different conditions makes different samples"
        )
    evidence = f"{path.name} has {', '.join(roles.values())}"
    if stimulus:
        columns["stimulus"] = stimulus
        shown = {**_stimulus_folder(root, settings), "place": "picture", "columns": columns}
        notes |= _notes_on_pictures(path, not columns.get("person") and len(tables) == 1)
        return GazeFormat(PLAIN_STIMULI, "stimuli", "a guess", evidence, shown, notes)
    options: dict[str, Any] = {"columns": columns}
    # A time of more than a minute at the first row is a clock that started before the video.
    start = _numbers(table, roles["t"])[:1]
    if columns["t_unit"] == "datetime" or start[0] * SECONDS[columns["t_unit"]] > 60:
        options["start"] = "first"
        notes["start"] = "the first sample is taken for the video's first frame (start = 'first')"
    return GazeFormat(PLAIN, "gaze_table", "a guess", evidence, options, notes)


def _notes_on_pictures(path: Path, one_person: bool) -> dict[str, str]:
    """Return what is assumed of gaze on pictures: where it counts, and whose it is."""
    notes = {
        "place": "x and y are taken to count in the picture (place = 'picture'); where they count "
        "on the screen, say screen = [width, height] and place = 'fill', 'fit' or 'centre'"
    }
    if one_person:
        notes["columns.person"] = (
            f"{path.name} is taken for one person's; if it holds several people, name their "
            "column: --set 'federation.columns={person=\"...\"}'"
        )
    return notes


def _first_with_gaze(
    root: Path, tables: Sequence[Path], headers: Mapping[Path, list[str]]
) -> tuple[Path, DelimitedTable, dict[str, str], list[Path]]:
    """Return a table's path, first rows and gaze columns, and the paths of differing tables.

    The table is the first readable one whose columns of time, x and y have the names that most
    tables use. Differing tables have other names for these columns.

    Raises:
        DataError: no readable table has such columns.
    """
    roles = {path: own for path, header in headers.items() if (own := _gaze_columns(header))}
    usual = Counter(tuple(own.values()) for own in roles.values()).most_common(1)
    for path, own in roles.items():
        if tuple(own.values()) == usual[0][0]:
            # A damaged table is refused when it is read; another one shows the columns too.
            with suppress(DataError):
                if len(table := _first_rows(path)):
                    return path, table, own, [p for p, other in roles.items() if other != own]
    path = max(headers or tables, key=lambda path: len(headers.get(path, [])))
    header = list(_first_rows(path).columns)
    times = [name for name in header if TIME.search(_lower_words(name))]
    unit = next(filter(None, map(_named_unit, times or header)), "s")
    pictures = any(path.suffix.lower() in PICTURES for path in files_below(root))
    shown = ', stimulus="..."' if pictures else ""
    raise DataError(
        f"{path}: no columns of time, x and y are recognised in its header: "
        f'{", ".join(header)[:300]}; name them: --set \'federation.columns={{t="...", '
        f'x="...", y="...", unit="px", t_unit="{unit}"{shown}}}\''
    )


def _named_unit(name: str) -> str:
    """Return the time unit that a column's name states, such as ms in `time_ms`; else ""."""
    match = UNIT_WORD.search(name.lower())
    # The micro sign and the Greek letter look alike and are two characters.
    return match.group(1).replace("µ", "u").replace("μ", "u") if match else ""


def _gaze_columns(names: Collection[str]) -> dict[str, str]:
    """Return the columns of time, x and y, with keys t, x and y, recognised by their names.

    The result is empty if one of the three is not recognised.
    """
    times = [name for name in names if TIME.search(_lower_words(name))]
    across = [name for name in names if SIDE.search(name) and _y_name(name) in names]
    # Gaze before other places, such as the mouse's; both eyes before one of them.
    gaze = [name for name in across if "gaze" in name.lower()] or across
    gaze = [name for name in gaze if not re.search("left|right|pupil", name.lower())] or gaze
    if not times or not gaze:
        return {}
    times = [name for name in times if "gaze" in name.lower()] or times
    return {"t": times[0], "x": gaze[0], "y": _y_name(gaze[0])}


def _lower_words(name: str) -> str:
    """Return a name such as `GazePointX` in small letters, with spaces between its words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _both_eyes(table: DelimitedTable, roles: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the columns of both eyes for x and y, where a table has both; else nothing."""
    eyes = {role: [roles[role], _other_eye(roles[role])] for role in ("x", "y")}
    return eyes if all(one != other and other in table for one, other in eyes.values()) else {}


def _other_eye(name: str) -> str:
    """Return the name that a column of one eye has for the other eye; else the name itself."""
    return EYE.sub(lambda word: EYES[word.group()], name)


def _y_name(name: str) -> str:
    """Return the name of the y column that belongs to the x column `name`."""
    return SIDE.sub(lambda x: "Y" if x.group() == "X" else "y", name, count=1)


def _time_unit(table: DelimitedTable, name: str) -> str:
    cells = [cell.strip() for cell in table.text(name)]
    if cells and all(iso_ns(cell) is not None for cell in cells[:5]) and not _numeric(cells[:5]):
        return "datetime"
    if unit := _named_unit(name):
        return unit
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


def _place_unit(table: DelimitedTable, roles: Mapping[str, str]) -> str:
    sides = np.concatenate([table.floats(roles[role]) for role in ("x", "y")])
    sides = sides[np.isfinite(sides)]
    if "deg" in roles["x"].lower():
        return "deg"
    if other := OTHER_UNIT.search(_lower_words(roles["x"])):
        raise DataError(
            f"{table.path}: '{roles['x']}' is in {other.group(1) or '%'} by its name: px, fraction "
            "and deg are read, so convert it, or name columns and unit with --set"
        )
    if not len(sides):
        raise DataError(f"{table.path}: '{roles['x']}' and '{roles['y']}' hold no number at all")
    # A tenth may be outliers; fractions lie a little outside [0, 1] where gaze left the picture.
    return "fraction" if np.quantile(np.abs(sides), 0.9) <= 1.5 else "px"
