"""Gaze tables of any maker: which column holds what, read into numbers with one clock and one unit.

Faults name file, row, column and value. Nothing is mended silently: samples with a time that was
there before are dropped and counted, and a clock that goes back is refused unless it is said that
samples are to be put in order.
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
from vergence.data.io.delimited_text import FARTHEST, DelimitedTable, read_table
from vergence.errors import ConfigError, DataError, meant

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "datetime": 1e-9}
TICKS = ("s", "ms", "us", "ns")
"""Units of times that are numbers."""
UNITS_IN_NAMES = {"[s]": "s", "[ms]": "ms", "[us]": "us", "[μs]": "us", "[µs]": "us", "[ns]": "ns"}
TICKS_OF_US = 400
"""Where a format has ms or us, a median step from here up is in us."""
KIND = "gaze table"
EVENT = "Event"
STARTS, ENDS = (
    tuple(f"{kind}{edge}" for kind in ("ImageStimulus", "VideoStimulus", "WebStimulus", "Media"))
    for edge in ("Start", "End")
)
"""What Tobii Pro Lab writes there when a stimulus comes and goes."""
LONGEST = 1000
"""Characters of a name in a cell: a column takes its longest one's memory for every row."""


@dataclass(frozen=True)
class GazeColumns(NamedOptions, label="columns"):
    """Columns of a gaze table, by the names in its header; empty: there is none.

    A name may be given without what stands in brackets behind it: `Recording timestamp` also means
    `Recording timestamp [ms]`.

    Attributes:
        t: the time; its unit is `t_unit`.
        x: to the right. Several columns (both eyes): the mean of those that have a number.
        y: downwards, or as `origin` of the data set says. Several: as for x.
        unit: of x and y: px (pixels), fraction (of the picture's or screen's sides), deg (degrees).
        t_unit: s, ms, us, ns; datetime (ISO 8601, with or without a time zone); auto (ms or us, by
            the median step: for formats that were in both).
        valid: a number, valid from `valid_from` up (1, a confidence), or a word such as Valid.
        valid_from: see `valid`.
        event: the kind of eye movement, in words: a fixation begins with "fix".
        fixation: a number of the fixation that a row belongs to.
        kind: what x and y of a row are: sample; running mean (of the fixation so far, whose place
            is its last valid row; needs `fixation`); fixation (the place of a whole fixation).
        person: whose row it is.
        stimulus: the file name of the picture or video that was shown.
        trial: a number of the showing; time may begin anew with it.
        media: left and top edge, width and height of the picture as shown on the screen, in pixels.
        rows: a column and a text: only rows that have it there are looked at.
        missing: numbers that stand for no gaze, such as -1.
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
    missing: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, count in (("media", 4), ("rows", 2)):
            given = getattr(self, name)
            if given and len(given) != count:
                raise ConfigError(f"columns: {name} must be {count} texts, got {list(given)}")

        if self.kind == "running mean" and not self.fixation:
            raise ConfigError(
                "columns: kind = 'running mean' needs fixation, the column of the fixation's number"
            )

    def over(self, other: GazeColumns) -> GazeColumns:
        """These columns, and those of another record where none is given here."""
        usual = GazeColumns()
        given = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != getattr(usual, f.name)
        }
        return replace(other, **given)

    def check_needed(self, needed: Sequence[str], hint: str) -> None:
        """Accept columns of which these are given.

        Raises:
            ConfigError: one is not.
        """
        for name in needed:
            if not getattr(self, name):
                raise ConfigError(f"columns: {name} must be given; {hint}")

    def listed(self, role: str) -> list[str]:
        """Names that are given for a role."""
        given = getattr(self, role)
        wanted = [given] if isinstance(given, str) else list(given)[: 1 if role == "rows" else 4]
        return [name for name in wanted if name]

    def lacking(self, header: Collection[str]) -> list[str]:
        """Names that a file must have, whatever a preset leaves to it, and that a header lacks."""
        return [n for role in NEEDED for n in self.listed(role) if not column(header, n)]

    def names(self, header: Collection[str], path: Path, optional: bool) -> dict[str, list[str]]:
        """Columns of a file for each role; roles that a preset gave may be `optional`.

        Raises:
            DataError: a column is not in the header, or two are meant.
        """
        found: dict[str, list[str]] = {}
        for role in ROLES:
            wanted = self.listed(role)
            told = [column(header, name) for name in wanted]
            if optional and role not in NEEDED and not all(told):
                continue
            for name, there in zip(wanted, told, strict=True):
                if not there:
                    raise DataError(
                        f"{path}: no column '{name}' (columns.{role}){meant(name, header)}; its "
                        f"header has {', '.join(header)[:300]}: write the name as it stands "
                        "there, or leave the table out with without = ['...'] if it is no gaze"
                    )
            found[role] = told
        return found


ROLES = (
    *("t", "x", "y", "valid", "event", "fixation", "person", "stimulus", "trial", "media", "rows"),
)
NEEDED = ("t", "x", "y", "stimulus", "media")


def column(header: Collection[str], name: str) -> str:
    """The column that a name means: itself, or the only one with brackets behind it; else ""."""
    if name in header:
        return name
    begun = re.compile(rf"{re.escape(name)}\s*[\[(][^\])]*[\])]")
    found = [there for there in header if begun.fullmatch(there)]
    return found[0] if len(found) == 1 else ""


def read_header(path: Path, kind: str = KIND) -> list[str]:
    """The names of a table's columns.

    Raises:
        DataError: it is no table.
    """
    return list(read_table(path, [], kind, most=0).columns)


@dataclass(frozen=True, eq=False)
class GazeRows:
    """Rows of one gaze table in the file's order; all arrays have their length.

    `line` int64 is the line in the file; `ticks` the time, in the file's own unit, of which one is
    `scale` seconds; `x`, `y` float64 in `unit`, NaN where missing; `valid` bool; `event`
    int8 (`Event`); `fixation` float64, NaN = none; `media` float64 `[rows, 4]`, NaN = not told.
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
    names: Mapping[str, list[str]]
    unit: str = field(default="px", kw_only=True)

    def __len__(self) -> int:
        return len(self.line)

    def select(self, rows: NDArray[Any]) -> GazeRows:
        """The rows with these numbers, or where this is true."""
        arrays = {
            f.name: getattr(self, f.name)[rows]
            for f in fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }
        return replace(self, **arrays)

    def seconds(self, start: float | str = "first") -> NDArray[np.float64]:
        """Times in seconds from `start`: a time in the file's unit, "first", or a date and time.

        Raises:
            ConfigError: `start` is no time of this file's kind.
        """
        if not len(self):
            return np.zeros(0)
        origin: Any = self.ticks[0]
        if start != "first":
            origin = iso_ns(start) if isinstance(start, str) else start
            if origin is None:
                raise ConfigError(
                    f"start must be a number, 'first', or a date and time as "
                    f"2026-01-31T12:00:00+01:00; got '{start}'"
                )
            if not abs(origin) <= FARTHEST:
                raise ConfigError(f"start must lie within 2^62 of 0; got {start}")
            if isinstance(origin, float) and origin.is_integer() and self.ticks.dtype.kind == "i":
                origin = int(origin)
        return (self.ticks - origin) * self.scale


def read_rows(
    path: Path, columns: GazeColumns, optional: bool = False, kind: str = KIND
) -> GazeRows:
    """Read a gaze table in any encoding and with any sign between cells, see `text_form`.

    Args:
        path: the file.
        columns: what is where.
        optional: columns other than time, place and stimulus may be absent, as for a preset.
        kind: what the file should be.

    Raises:
        DataError: the file cannot be read, lacks a column, or has a cell that cannot be used.
    """
    found: dict[str, list[str]] = {}

    def keep(header: list[str]) -> list[str]:
        found.update(columns.names(header, path, optional))
        used = [name for names in found.values() for name in names]
        return [*used, EVENT] if EVENT in header else used

    table = read_table(path, [], kind, keep)
    shown = _shown(table, found)
    if found.get("rows"):
        shown &= np.array([cell == columns.rows[1] for cell in table.text(found["rows"][0])], bool)
    table = table if shown.all() else table.select(np.flatnonzero(shown).tolist())
    ticks, scale = read_ticks(table, found["t"][0], columns.t_unit)
    x, y = (_place(table, found[role], columns.missing) for role in ("x", "y"))
    valid = np.isfinite(x) & np.isfinite(y)
    if found.get("valid"):
        valid &= table.flags(found["valid"][0], columns.valid_from)

    def words(role: str) -> NDArray[np.str_]:
        names = found.get(role)
        return _words(table, names[0]) if names else np.full(len(table), "")

    person = words("person")
    if found.get("person") and (person == "").any():
        row = int(np.argmax(person == ""))
        raise DataError(
            f"{path}: row {table.line(row)}: '{found['person'][0]}' is empty: whose row is it? "
            "fill it in, or remove the row"
        )
    event = np.full(len(table), Event.UNKNOWN, np.int8)
    if found.get("event"):
        fixating = np.char.startswith(np.char.lower(words("event")), "fix")
        event = np.where(fixating, Event.FIXATION, Event.SACCADE).astype(np.int8)
    nothing = np.full(len(table), np.nan)
    fixation = table.floats(found["fixation"][0]) if found.get("fixation") else nothing
    media = np.full((len(table), 4), np.nan)
    if found.get("media"):
        media = np.stack([table.floats(name) for name in found["media"]], 1)
    line = np.array([table.line(i) for i in range(len(table))], np.int64)
    texts = (person, words("stimulus"), words("trial"))
    if columns.kind == "running mean":
        x, y = _last_of_fixations(x, y, valid, ticks, fixation, *texts)
    if columns.kind == "fixation" and not found.get("fixation"):
        fixation = np.arange(len(table), dtype=np.float64)
    places = (x, y, valid, event, fixation)
    return GazeRows(path, line, ticks, scale, *places, *texts, media, found, unit=columns.unit)


def _last_of_fixations(
    x: NDArray[np.float64], y: NDArray[np.float64], valid: NDArray[np.bool_], *keys: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places of rows, each replaced by the last valid one of its fixation.

    `keys` are the times and what tells one fixation from the next; numbers and times may begin
    anew with a stimulus.
    """
    ticks, *marks = keys
    begins = np.diff(ticks, prepend=ticks[:1]) < 0
    for mark in marks:
        begins[1:] |= mark[1:] != mark[:-1]
    number, rows = np.cumsum(begins), np.arange(len(x))
    ends = np.full(len(x), -1)
    ends[number[valid]] = rows[valid]  # of several rows of one fixation, the last one stays
    last = np.where(ends[number] >= 0, ends[number], rows)
    return x[last], y[last]


def _shown(table: DelimitedTable, found: Mapping[str, list[str]]) -> NDArray[np.bool_]:
    """False for rows after an event that ends a stimulus, until another one or an event begins it.

    Tobii Pro Lab writes events such as ImageStimulusEnd into a column of their own.
    """
    shown = np.ones(len(table), bool)
    if EVENT not in table or not found.get("stimulus"):
        return shown
    over, last = False, ""
    for i, (event, name) in enumerate(
        zip(table.text(EVENT), table.text(found["stimulus"][0]), strict=True)
    ):
        if event in ENDS:
            over = True
        elif event in STARTS or (name and name != last):
            over = False
        last = name or last
        shown[i] = not over
    return shown


def _words(table: DelimitedTable, name: str) -> NDArray[np.str_]:
    """A column of names, without spaces around them."""
    cells = [cell.strip() for cell in table.text(name)]
    long = next((i for i, cell in enumerate(cells) if len(cell) > LONGEST), None)
    if long is not None:
        raise DataError(
            f"{table.path}: row {table.line(long)}: '{name}' has {len(cells[long]):,} characters, "
            f"at most {LONGEST:,} are read: shorten it"
        )
    return np.array(cells, str)


def read_ticks(table: DelimitedTable, name: str, unit: str) -> tuple[NDArray[Any], float]:
    """Times of a column, exact: whole numbers as int64; and the seconds that one of them is.

    Raises:
        DataError: a cell holds no time.
    """
    told = re.search(r"\[\w+\]$", name)
    unit = UNITS_IN_NAMES.get(told.group(), unit) if told else unit
    cells = table.text(name)
    ticks: NDArray[Any]
    if unit == "datetime":
        ticks = np.array(table.convert(name, _moment, MOMENT), np.int64)
        # Refuse times of which only some name their zone: what lies between them is not known.
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
    return ticks, SECONDS[unit]


MOMENT = (
    "needs a date and time as 2026-01-31T12:00:00.000+01:00; correct t_unit, or export the file "
    "again"
)


def _moment(cell: str) -> int:
    found = iso_ns(cell.strip())
    if found is None or abs(found) > FARTHEST:
        raise ValueError
    return found


def iso_ns(text: str) -> int | None:
    """Nanoseconds since 1970 of a date and time (UTC without a zone), None if it is none."""
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 1000


def _place(
    table: DelimitedTable, names: Sequence[str], missing: Sequence[float]
) -> NDArray[np.float64]:
    sides = np.stack([table.floats(name) for name in names])
    sides[~np.isfinite(sides) | np.isin(sides, missing)] = np.nan
    there = np.isfinite(sides)
    total = np.where(there, sides, 0).sum(0)
    return np.where(there.any(0), total / np.maximum(there.sum(0), 1), np.nan)


def in_time_order(rows: GazeRows, clock: str, what: str) -> tuple[GazeRows, int]:
    """Rows with rising times, and how many were dropped because their time was there before.

    Args:
        rows: of one recording, or of one showing of a stimulus.
        clock: "refuse" where time goes back, or "sort".
        what: whose rows these are.

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
    """Places as fractions of a picture from its top-left corner.

    Args:
        x: places to the right.
        y: places downwards; upwards for the origins `bottom_left` and `centre_up`.
        unit: px or fraction.
        size: width and height in pixels; not looked at for fractions.
        origin: where x and y are 0.
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
    """Directions from a camera's axis as fractions of its picture from the top-left corner.

    A pinhole maps the tangent of an angle, an equidistant (fisheye) lens the angle itself.

    Args:
        right_deg: degrees to the right of the middle.
        down_deg: degrees below it.
        fov_deg: the camera's field of view, horizontal and vertical.
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
