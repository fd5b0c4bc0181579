"""Gaze tables of any tracker: columns are found by name, and read into one clock and unit.

Error messages name file, row, column and value. Nothing is repaired silently. Samples that repeat
an earlier time are dropped and counted. If the clock goes back, the table is refused, unless an
option asks for sorting.

Used by `data.format_detection`, `data.gaze_video.gaze_files`, `data.gaze_video.gaze_presets`,
`data.gaze_video.gaze_table`, `data.saliency.eyelink_asc` and `data.saliency.stimuli`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vergence.core.options import NamedOptions
from vergence.data.gaze_video.gaze import Event
from vergence.data.io.delimited_text import MAX_TIME, DelimitedTable, read_table
from vergence.errors import ConfigError, DataError, meant

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "datetime": 1e-9}
TICKS = ("s", "ms", "us", "ns")
"""Units of times that are written as numbers."""
UNITS = {SECONDS[unit]: unit for unit in TICKS}
"""Seconds -> the unit of that length."""
UNITS_IN_NAMES = {"[s]": "s", "[ms]": "ms", "[us]": "us", "[μs]": "us", "[µs]": "us", "[ns]": "ns"}
# Trackers take 2.5 to 2,500 samples a second: 0.4 to 400 ms apart, or 400 us and more.
TICKS_OF_US = 400
"""If the median step between times is at least this, the unit "auto" means us, else ms."""
KIND = "gaze table"
EVENT = "Event"
STARTS, ENDS = (
    tuple(f"{kind}{edge}" for kind in ("ImageStimulus", "VideoStimulus", "WebStimulus", "Media"))
    for edge in ("Start", "End")
)
"""Texts in Tobii Pro Lab's column of events when a stimulus appears, and when it disappears."""
# Measurements are never zero to the last digit, or a few times where they are whole numbers.
FEW_ZEROS, MOST_ZEROS = 5, 0.01
"""More exact zeros than this number, and this share of a table's samples, are refused."""
# NumPy gives every row of a column the memory of its longest text.
LONGEST = 1000
"""Most characters of a name in a cell."""


@dataclass(frozen=True)
class GazeColumns(NamedOptions, label="columns"):
    """Names of a gaze table's columns, as in its header; empty: the table has no such column.

    A name may leave out the brackets at its end: `Recording timestamp` also means `Recording
    timestamp [ms]`.

    Attributes:
        t: the time; its unit is `t_unit`.
        x: horizontal place of gaze, rightwards. Several columns (of both eyes) are averaged,
            without those that have no number in the row.
        y: vertical place of gaze, downwards, or as the data set's option `origin` says. Several
            columns are averaged as for x.
        unit: unit of x and y: px (pixels), fraction (of the picture's or screen's sides), deg
            (degrees).
        t_unit: unit of t. "s", "ms", "us" or "ns"; "datetime": ISO 8601, with or without a time
            zone; "auto": ms or us, by the median step between rows, for formats that have used
            both.
        valid: whether gaze is valid: a word such as Valid, or a number. Numbers from `valid_from`
            up, such as a 1 or a high confidence, mean valid gaze.
        valid_from: smallest number of `valid` that means valid gaze.
        event: the kind of eye movement, in words; words that begin with "fix" mean a fixation.
        fixation: the number of the fixation to which a row belongs.
        kind: what x and y of a row are. "sample": one measurement. "running mean": the mean of the
            fixation so far. The last valid row of a fixation then gives the place of the whole
            fixation; needs `fixation`. "fixation": the place of a whole fixation.
        person: the person to whom a row belongs.
        stimulus: the file name of the picture or video that was shown.
        trial: the number of the trial, in which a stimulus is shown once; each trial may have its
            own time 0.
        media: four columns: left edge, top edge, width and height of the picture on the screen, in
            pixels from the screen's top-left corner.
        rows: a column and a text; only rows with this text in this column are read.
        conditions: columns that say under which condition a row was recorded, such as session or
            lighting. Scores are compared by them (`vergence study evaluate conditions`).
        missing: numbers in x and y that mean that there was no gaze, such as -1.
    """

    t: str = ""
    x: str | tuple[str, ...] = ""
    y: str | tuple[str, ...] = ""
    unit: Literal["", "px", "fraction", "deg"] = ""
    t_unit: Literal["", "s", "ms", "us", "ns", "datetime", "auto"] = ""
    valid: str = ""
    valid_from: float = 0.5
    event: str = ""
    fixation: str = ""
    kind: Literal["sample", "running mean", "fixation"] = "sample"
    person: str = ""
    stimulus: str = ""
    trial: str = ""
    media: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    missing: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, count in (("media", 4), ("rows", 2)):
            texts = getattr(self, name)
            if texts and len(texts) != count:
                raise ConfigError(f"columns: {name} must be {count} texts, got {list(texts)}")
        if self.kind == "running mean" and not self.fixation:
            raise ConfigError(
                "columns: kind = 'running mean' needs fixation, the column of the fixation's number"
            )

    def or_from(self, other: GazeColumns) -> GazeColumns:
        """Return these columns, with values of `other` in place of those that were not set."""
        usual = GazeColumns()
        own = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != getattr(usual, f.name)
        }
        return replace(other, **own)

    def check_needed(self, needed: Sequence[str], hint: str) -> None:
        """Check that all of these columns are set.

        Raises:
            ConfigError: a column is not set; the message ends with `hint`.
        """
        for name in needed:
            if not getattr(self, name):
                raise ConfigError(f"columns: {name} must be given; {hint}")

    def names_for(self, role: str) -> list[str]:
        """Return the column names set for a role; a role is an attribute's name, such as x."""
        value = getattr(self, role)
        # The second text of `rows` is a cell's content and no column.
        wanted = [value] if isinstance(value, str) else list(value)[: 1 if role == "rows" else None]
        return [name for name in wanted if name]

    def missing_in(self, header: Collection[str]) -> list[str]:
        """Return the needed column names that a header lacks.

        Needed are the columns of time, x, y, stimulus, media and conditions, if they are set.
        """
        return [n for role in NEEDED for n in self.names_for(role) if not column(header, n)]

    def names(self, header: Collection[str], path: Path, optional: bool) -> dict[str, list[str]]:
        """Return role -> names of the columns in a file with this header.

        A role is the name of an attribute, such as x. With `optional`, which presets use, a role
        other than time, x, y, stimulus, media and conditions is left out if the header lacks its
        columns.

        Raises:
            DataError: a column is not in the header, or a name fits two columns.
        """
        by_role: dict[str, list[str]] = {}
        for role in ROLES:
            wanted = self.names_for(role)
            in_header = [column(header, name) for name in wanted]
            if optional and role not in NEEDED and not all(in_header):
                continue
            for name, match in zip(wanted, in_header, strict=True):
                if not match:
                    raise DataError(
                        f"{path}: no column '{name}' (columns.{role}){meant(name, header)}; its "
                        f"header has {', '.join(header)[:300]}: write the name as it stands "
                        "there, or leave the table out with without = ['...'] if it is no gaze"
                    )
            by_role[role] = in_header
        return by_role


ROLES = (
    *("t", "x", "y", "valid", "event", "fixation", "person", "stimulus", "trial", "media", "rows"),
    "conditions",
)
NEEDED = ("t", "x", "y", "stimulus", "media", "conditions")


def column(header: Collection[str], name: str) -> str:
    """Return the column of this name, or the only one with this name and then brackets.

    For example, the name "t" also finds a column "t [ms]". The result is "" if there is none, or if
    there are several.
    """
    if name in header:
        return name
    begun = re.compile(rf"{re.escape(name)}\s*[\[(][^\])]*[\])]")
    fitting = [name for name in header if begun.fullmatch(name)]
    return fitting[0] if len(fitting) == 1 else ""


def read_header(path: Path, kind: str = KIND) -> list[str]:
    """Return the names of a table's columns; `kind` says in messages what the file should be.

    Raises:
        DataError: the file is not a table.
    """
    return list(read_table(path, [], kind, max_rows=0).columns)


@dataclass(frozen=True, eq=False)
class GazeRows:
    """Rows of one gaze table, as arrays of equal length.

    `line` int64 is the line number in the file. `ticks` is the time in the file's own unit, which
    is `scale` seconds. `t_unit` is the option of this name, which the column's name may overrule.
    `x` and `y` float64 are in `unit`; NaN means no gaze. `valid` bool says whether gaze is valid.
    `event` int8 is an `Event`. `fixation` float64 is the number of the fixation; NaN means none.
    `media` float64 `[rows, 4]` is left, top, width and height of the picture on the screen; NaN
    means unknown. `conditions` `[rows, conditions]` holds the words of the columns that say under
    which conditions a row was recorded. `names` maps a role, such as t, to the file's columns.
    """

    path: Path
    line: NDArray[np.int64]
    ticks: NDArray[Any]
    scale: float
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    valid: NDArray[np.bool_]
    event: NDArray[np.int8]
    fixation: NDArray[np.float64]
    person: NDArray[np.str_]
    stimulus: NDArray[np.str_]
    trial: NDArray[np.str_]
    media: NDArray[np.float64]
    conditions: NDArray[np.str_]
    names: Mapping[str, list[str]]
    unit: str = field(default="px", kw_only=True)
    t_unit: str = field(default="ms", kw_only=True)

    def __len__(self) -> int:
        return len(self.line)

    def select(self, rows: NDArray[Any]) -> GazeRows:
        """Return some rows, given by their numbers or by a mask."""
        arrays = {
            f.name: getattr(self, f.name)[rows]
            for f in fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }
        return replace(self, **arrays)

    def seconds(
        self, start: float | str = "first", start_scale: float | None = None
    ) -> NDArray[np.float64]:
        """Return the times of the rows in seconds from `start`, float64 `[rows]`.

        `start` is "first" (the first row), a date and time, or a number in units of `start_scale`
        seconds; default: the file's unit. Of two units, all times are brought to the finer one.

        Raises:
            ConfigError: `start` is none of these.
            DataError: a time is too large for the finer unit.
        """
        if not len(self):
            return np.zeros(0)
        origin, scale = self.ticks[0].item(), self.scale
        if start != "first":
            origin, scale = (
                (iso_ns(start), 1e-9) if isinstance(start, str) else (start, start_scale or scale)
            )
            if origin is None:
                raise ConfigError(
                    f"start must be a number, 'first', or a date and time as "
                    f"2026-01-31T12:00:00+01:00; got '{start}'"
                )
            if not abs(origin) <= MAX_TIME:
                raise ConfigError(f"start must lie within 2^62 of 0; got {start}")
            # A float would round ticks of nanoseconds since 1970, which have 19 digits.
            if isinstance(origin, float) and origin.is_integer() and self.ticks.dtype.kind == "i":
                origin = int(origin)
        finer = min(scale, self.scale)
        # Whole numbers, so that integers stay exact.
        own, other = round(self.scale / finer), round(scale / finer)
        if max(np.abs(self.ticks).max().item() * own, abs(origin) * other) > MAX_TIME:
            raise DataError(
                f"{self.path}: the first frame is at {origin} {UNITS[scale]}, gaze begins at "
                f"{self.ticks[0]} {UNITS[self.scale]}: at most 2^62 of 1 {UNITS[finer]} can be "
                "counted; correct the units of both times"
            )
        return (self.ticks * own - origin * other) * finer


def _events(words: NDArray[np.str_], stated: bool) -> NDArray[np.int8]:
    """Return the event of each row by its word; unknown events if the table states none."""
    if not stated:
        return np.full(len(words), Event.UNKNOWN, np.int8)
    fixating = np.char.startswith(np.char.lower(words), "fix")
    return np.where(fixating, Event.FIXATION, Event.SACCADE).astype(np.int8)


def read_rows(
    path: Path, columns: GazeColumns, optional: bool = False, kind: str = KIND
) -> GazeRows:
    """Read a gaze table; encoding and cell separator are detected (`detect_form`).

    Args:
        path: the file.
        columns: the names of its columns.
        optional: whether only time, x, y, stimulus and media must be there, as for presets.
        kind: what the file should be, for error messages.

    Raises:
        DataError: the file cannot be read, lacks a column, or has a cell that cannot be used.
    """
    by_role = dict[str, list[str]]()

    def choose_columns(header: list[str]) -> list[str]:
        by_role.update(columns.names(header, path, optional))
        used = [name for names in by_role.values() for name in names]
        return [*used, EVENT] if EVENT in header else used

    table = read_table(path, [], kind, choose_columns)
    shown = _while_stimulus_shown(table, by_role)
    if by_role.get("rows"):
        shown &= np.array(table.text(by_role["rows"][0]), str) == columns.rows[1]
    table = table if shown.all() else table.select(np.flatnonzero(shown).tolist())
    ticks, scale = read_ticks(table, by_role["t"][0], columns.t_unit)
    x, y = (_mean_coordinate(table, by_role[role], columns.missing) for role in ("x", "y"))
    valid = np.isfinite(x) & np.isfinite(y)
    if by_role.get("valid"):
        valid &= table.flags(by_role["valid"][0], columns.valid_from)
    _refuse_corner(table, columns, valid & (x == 0) & (y == 0), int(valid.sum()))
    empty = np.full(len(table), "")

    def words(role: str) -> NDArray[np.str_]:
        return _stripped_text(table, by_role[role][0]) if by_role.get(role) else empty

    person = words("person")
    _refuse_nobody(table, by_role, person)
    event = _events(words("event"), bool(by_role.get("event")))
    stated = by_role.get("fixation")
    fixation = table.floats(stated[0]) if stated else np.full(len(table), np.nan)
    media = _media(table, by_role.get("media", []))
    texts = (person, words("stimulus"), words("trial"))
    conditions = _words(table, by_role.get("conditions", []))
    if columns.kind == "running mean":
        x, y = _last_of_fixations(x, y, valid, ticks, fixation, *texts)
    if columns.kind == "fixation" and not stated:
        fixation = np.arange(len(table), dtype=np.float64)
    places = (ticks, scale, x, y, valid, event, fixation)
    return GazeRows(
        *(path, np.array(table.lines, np.int64), *places, *texts, media, conditions),
        by_role,
        unit=columns.unit,
        t_unit=columns.t_unit,
    )


def _refuse_corner(
    table: DelimitedTable, columns: GazeColumns, corner: NDArray[np.bool_], count: int
) -> None:
    """Refuse a table of which more than a few of `count` valid samples are in the corner (0, 0)."""
    if not columns.missing and corner.sum() > max(FEW_ZEROS, MOST_ZEROS * count):
        raise DataError(
            f"{table.path}: gaze is exactly (0, 0) in {corner.sum()} of {count} samples, first in "
            f"row {table.line(int(np.argmax(corner)))}, which many trackers write where they lost "
            "it: set columns.missing = [0], or [-1] if somebody looked there"
        )


def _refuse_nobody(
    table: DelimitedTable, by_role: Mapping[str, Sequence[str]], person: NDArray[np.str_]
) -> None:
    """Refuse a table with a column of people, in which a row has nobody."""
    if by_role.get("person") and (person == "").any():
        row = int(np.argmax(person == ""))
        raise DataError(
            f"{table.path}: row {table.line(row)}: '{by_role['person'][0]}' is empty: whose row is "
            "it? fill it in, or remove the row"
        )


def _media(table: DelimitedTable, names: Sequence[str]) -> NDArray[np.float64]:
    """Return the picture's place in each row, `[rows, 4]`; NaN without these columns."""
    if not names:
        return np.full((len(table), 4), np.nan)
    return np.stack([table.floats(name) for name in names], 1)


def _words(table: DelimitedTable, names: Sequence[str]) -> NDArray[np.str_]:
    """Return the words of these columns, `[rows, columns]`."""
    cells = [_stripped_text(table, name) for name in names]
    return np.array(cells, str).reshape(len(cells), len(table)).T


def _last_of_fixations(
    x: NDArray[np.float64], y: NDArray[np.float64], valid: NDArray[np.bool_], *keys: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x and y of all rows, where each row gets the place of its fixation's last valid row.

    The rows of a fixation are consecutive. `keys` are the times, and columns such as fixation and
    trial. A new fixation begins if one of these columns changes or time goes back.
    """
    # The place is the mean of the fixation so far, so that its last row has the whole mean.
    ticks, *marks = keys
    begins = np.diff(ticks, prepend=ticks[:1]) < 0
    for mark in marks:
        begins[1:] |= mark[1:] != mark[:-1]
    number, rows = np.cumsum(begins), np.arange(len(x))
    ends = np.full(len(x), -1)
    # Of several rows of one fixation NumPy keeps the last assignment.
    ends[number[valid]] = rows[valid]
    last = np.where(ends[number] >= 0, ends[number], rows)
    return x[last], y[last]


def _while_stimulus_shown(
    table: DelimitedTable, columns: Mapping[str, list[str]]
) -> NDArray[np.bool_]:
    """Return which rows were recorded while a stimulus was shown, bool `[rows]`.

    Tobii Pro Lab writes events such as ImageStimulusEnd into a column of events. Rows from such an
    end until the next stimulus starts are False.
    """
    shown = np.ones(len(table), bool)
    if EVENT not in table or not columns.get("stimulus"):
        return shown
    over, last = False, ""
    for i, (event, name) in enumerate(
        zip(table.text(EVENT), table.text(columns["stimulus"][0]), strict=True)
    ):
        if event in ENDS:
            over = True
        elif event in STARTS or (name and name != last):
            over = False
        last = name or last
        shown[i] = not over
    return shown


def _stripped_text(table: DelimitedTable, name: str) -> NDArray[np.str_]:
    """Return a column of names, without spaces at their ends."""
    cells = [cell.strip() for cell in table.text(name)]
    long = next((i for i, cell in enumerate(cells) if len(cell) > LONGEST), None)
    if long is not None:
        raise DataError(
            f"{table.path}: row {table.line(long)}: '{name}' has {len(cells[long]):,} characters, "
            f"at most {LONGEST:,} are read: shorten it"
        )
    return np.array(cells, str)


def read_ticks(table: DelimitedTable, name: str, unit: str) -> tuple[NDArray[Any], float]:
    """Return the times of a column, and their unit in seconds.

    Times are exact int64 if all cells are integers or dates, else float64. A unit in brackets at
    the end of the column's name takes precedence over `unit`.

    Raises:
        ConfigError: neither `unit` nor the column's name states the unit.
        DataError: a cell holds no time, or only some times have a time zone.
    """
    # A unit in the column's own name wins over that of a preset or an option.
    bracket = re.search(r"\[\w+\]$", name)
    unit = UNITS_IN_NAMES.get(bracket.group(), unit) if bracket else unit
    cells = table.text(name)
    ticks: NDArray[Any]
    if unit == "datetime":
        ticks = np.array(table.convert(name, _nanoseconds, MOMENT), np.int64)
        # Refuse times of which only some name a zone: their distance is unknown.
        zoned = np.array(
            [bool(re.search(r"(Z|[+-]\d\d:?\d\d)$", cell.strip())) for cell in cells], bool
        )
        if len(zoned) and zoned.any() != zoned.all():
            row = int(np.argmax(zoned != zoned[0]))
            raise DataError(
                f"{table.path}: row {table.line(row)}: '{name}' is '{cells[row]}': some times name "
                f"a time zone and others do not ('{cells[0]}'); write all of them with one"
            )
    else:
        ticks = table.ticks(name)
    if unit == "auto":
        steps = np.diff(ticks)
        rising = steps[steps > 0]
        unit = "us" if len(rising) and np.median(rising) >= TICKS_OF_US else "ms"
    if not unit:
        raise ConfigError(
            f"columns: t_unit must be given: '{name}' of {table.path} has no unit in brackets; set "
            f"it to one of {', '.join(SECONDS)}, auto"
        )
    return ticks, SECONDS[unit]


MOMENT = (
    "needs a date and time as 2026-01-31T12:00:00.000+01:00; correct t_unit, or export the file "
    "again"
)


def _nanoseconds(cell: str) -> int:
    moment = iso_ns(cell.strip())
    if moment is None or abs(moment) > MAX_TIME:
        raise ValueError
    return moment


def iso_ns(text: str) -> int | None:
    """Return the nanoseconds from 1970 to a date, or to a date and time, in ISO 8601.

    A text without a time zone is in UTC. For other texts the result is None.
    """
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    # In integers: float64 seconds since 1970 have steps of 0.24 us.
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 1000


def _mean_coordinate(
    table: DelimitedTable, names: Sequence[str], missing: Sequence[float]
) -> NDArray[np.float64]:
    # One eye alone counts where the other one was lost.
    sides = np.stack([table.floats(name) for name in names])
    sides[~np.isfinite(sides) | np.isin(sides, missing)] = np.nan
    measured = np.isfinite(sides)
    total = np.where(measured, sides, 0).sum(0)
    return np.where(measured.any(0), total / np.maximum(measured.sum(0), 1), np.nan)


def in_time_order(rows: GazeRows, clock: str, what: str) -> tuple[GazeRows, int]:
    """Return the rows in order of time, and how many rows were dropped.

    A row is dropped if it has the same time as the row before.

    Args:
        rows: rows of one recording, or of one trial.
        clock: what to do if time goes back: "refuse" or "sort".
        what: the recording or trial, for the error message.

    Raises:
        DataError: the time goes back, and `clock` is "refuse".
    """
    back = np.diff(rows.ticks) < 0
    if back.any() and clock == "refuse":
        i = int(np.argmax(back)) + 1
        raise DataError(
            f"{rows.path}: row {rows.line[i]}: '{rows.names['t'][0]}' goes back from "
            f"{rows.ticks[i - 1]} to {rows.ticks[i]} ({what}): set clock = 'sort' to put the "
            "samples in order of time, or give each recording a file of its own"
        )
    order = np.argsort(rows.ticks, kind="stable")
    ticks = rows.ticks[order]
    first = np.diff(ticks, prepend=ticks[:1] - 1) != 0
    return rows.select(order[first]), int((~first).sum())


Origin = Literal["top_left", "bottom_left", "centre", "centre_up"]
Lens = Literal["pinhole", "equidistant"]


def to_fractions(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    unit: str,
    size: tuple[float, float],
    origin: Origin = "top_left",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x and y as fractions of a picture's width and height, from its top-left corner.

    Args:
        x: horizontal coordinates, rightwards.
        y: vertical coordinates, downwards; upwards for the origins `bottom_left` and `centre_up`.
        unit: unit of x and y, px or fraction.
        size: width and height of the picture in pixels; not used for fractions.
        origin: the place where x and y are 0.
    """
    width, height = size if unit == "px" else (1.0, 1.0)
    across, down = x / width, y / height
    if origin in ("bottom_left", "centre_up"):
        down = -down
    shift = {"top_left": (0.0, 0.0), "bottom_left": (0.0, 1.0)}.get(origin, (0.5, 0.5))
    return across + shift[0], down + shift[1]


def angles_to_fractions(
    right_deg: NDArray[np.float64],
    down_deg: NDArray[np.float64],
    fov_deg: tuple[float, float],
    lens: Lens = "pinhole",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where a camera sees directions, as x and y in fractions of its picture.

    Fractions count from the picture's top-left corner. In a pinhole camera, the distance from the
    middle grows with the tangent of the angle; in an equidistant (fisheye) camera, with the angle
    itself.

    Args:
        right_deg: angles to the right of the camera's axis, in degrees.
        down_deg: angles below the camera's axis, in degrees.
        fov_deg: the camera's horizontal and vertical field of view, in degrees.
        lens: the kind of camera.
    """
    if lens == "pinhole":
        sides = [
            np.tan(np.radians(angle)) / np.tan(np.radians(fov / 2)) / 2
            for angle, fov in zip((right_deg, down_deg), fov_deg, strict=True)
        ]
    else:
        across, down = (np.tan(np.radians(angle)) for angle in (right_deg, down_deg))
        from_axis = np.hypot(across, down)
        stretch = np.degrees(np.arctan(from_axis)) / np.where(from_axis > 0, from_axis, 1)
        sides = [across * stretch / fov_deg[0], down * stretch / fov_deg[1]]
    return sides[0] + 0.5, sides[1] + 0.5
