"""The gaze record of every importer: where a person looked, when, and how certain that is.

Used throughout `data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vergence.errors import DataError

HOLE_S = 0.075
"""Longest time without gaze, in seconds, that does not end a fixation; blinks are longer."""
NOTHING = np.zeros((0, 2))


class Event(IntEnum):
    """Type of eye event, the same for all file formats."""

    FIXATION = 0
    SACCADE = 1
    UNTRACKED = 2
    OUT_OF_RANGE = 3
    UNKNOWN = 4


@dataclass(frozen=True, eq=False)
class Gaze:
    """Gaze samples of one recording in time order, as one-dimensional arrays of equal length.

    `t_s` float64 is the time in seconds on the recording's clock; 0 is the first frame, if this is
    known. `x` and `y` float64 are fractions of the frame from its top-left corner; they are in [0,
    1] for `valid` samples. `event` int8 is an `Event`. `confidence` float64 is the tracker's, or 1
    if the file has none. `source_frame` int64 is the frame number in the file, or -1 if it has
    none. `dt_ms` float64 is the time of the eye measurement minus `t_s`. `source` names the file in
    error messages.

    Raises:
        DataError: lengths differ, times go back or are not finite, a valid sample is NaN or lies
            outside the frame.
    """

    t_s: NDArray[np.float64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    valid: NDArray[np.bool_]
    event: NDArray[np.int8]
    confidence: NDArray[np.float64]
    source_frame: NDArray[np.int64]
    dt_ms: NDArray[np.float64]
    source: str = "gaze"

    def __post_init__(self) -> None:
        shapes = {name: getattr(self, name).shape for name in _FIELDS}
        if any(shape != (len(self.t_s),) for shape in shapes.values()):
            raise DataError(
                f"{self.source}: columns differ in length: {shapes}", code="unequal-lengths"
            )
        checks = {
            "the time is not a finite number": ~np.isfinite(self.t_s),
            "the time goes back": np.diff(self.t_s, prepend=self.t_s[:1]) < 0,
            "gaze is NaN although the sample is marked valid": self.valid
            & ~(np.isfinite(self.x) & np.isfinite(self.y)),
            "valid gaze lies outside [0, 1]": self.valid
            & ((self.x < 0) | (self.x > 1) | (self.y < 0) | (self.y > 1)),
        }
        for fault, rows in checks.items():
            if rows.any():
                raise DataError(
                    f"{self.source}: sample {int(np.argmax(rows)) + 1}: {fault}", code="bad-value"
                )

    def __len__(self) -> int:
        return len(self.t_s)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Mask of the samples that metrics use: valid ones whose event is FIXATION or UNKNOWN."""
        return self.valid & np.isin(self.event, (Event.FIXATION, Event.UNKNOWN))

    @classmethod
    def build(
        cls,
        source: str,
        t_s: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        tracked: ArrayLike | bool = True,
        event: ArrayLike = Event.UNKNOWN,
        confidence: ArrayLike = 1.0,
        source_frame: ArrayLike = -1,
        dt_ms: ArrayLike = 0.0,
        sort: bool = False,
        out_of_range: str = "drop",
    ) -> Gaze:
        """Make a gaze record from raw columns.

        `x` and `y` are fractions of the frame from its top-left corner. Samples that are untracked,
        or whose x or y is NaN, get NaN and the event UNTRACKED. A tracked sample outside the frame
        becomes invalid, with the event OUT_OF_RANGE. With `out_of_range="clip"`, such a sample is
        moved to the border and stays valid. `sort` puts samples in time order, for devices whose
        clock can jump back.

        Raises:
            DataError: x or y of a tracked sample is infinite, or times go back and `sort` is off.
        """
        t = np.asarray(t_s, np.float64)

        def column(values: Any, kind: Any) -> NDArray[Any]:
            return np.broadcast_to(np.asarray(values, kind), t.shape).copy()

        tracked_, x_, y_ = column(tracked, bool), column(x, np.float64), column(y, np.float64)
        tracked_ &= ~(np.isnan(x_) | np.isnan(y_))
        # No tracker measures infinity: a cell such as 1e999 is damage and no lost gaze.
        if (endless := tracked_ & (np.isinf(x_) | np.isinf(y_))).any():
            raise DataError(
                f"{source}: sample {int(np.argmax(endless)) + 1}: its place is infinite; remove "
                "the row, or export the file again",
                code="bad-value",
            )
        outside = tracked_ & ((x_ < 0) | (x_ > 1) | (y_ < 0) | (y_ > 1))
        events = column(event, np.int8)
        x_[~tracked_], y_[~tracked_] = np.nan, np.nan
        events[~tracked_] = Event.UNTRACKED
        if out_of_range == "clip":
            x_, y_ = np.clip(x_, 0, 1), np.clip(y_, 0, 1)
            valid = tracked_
        else:
            events[outside] = Event.OUT_OF_RANGE
            valid = tracked_ & ~outside
        sure, frame = column(confidence, np.float64), column(source_frame, np.int64)
        rest = (x_, y_, valid, events, sure, frame, column(dt_ms, np.float64))
        columns = dict(zip(_FIELDS[1:], rest, strict=True))
        if sort:
            order = np.argsort(t, kind="stable")
            t = t[order]
            columns = {name: values[order] for name, values in columns.items()}
        return cls(t_s=t, **cast("dict[str, Any]", columns), source=source)

    def select(self, rows: NDArray[np.bool_], shift_s: float = 0.0) -> Gaze:
        """Return the samples where `rows` is true, with `shift_s` subtracted from their times."""
        columns = {name: getattr(self, name)[rows] for name in _FIELDS}
        columns["t_s"] = columns["t_s"] - shift_s
        return Gaze(**columns, source=self.source)

    def at(self, times_s: ArrayLike, max_gap_ms: float = 40.0) -> Gaze:
        """Return a record with the nearest sample for each frame time, in seconds and ascending.

        Of two equally near samples, the earlier one is taken. `dt_ms` of the result is the time of
        the eye measurement minus the frame time. If a frame has no measurement within `max_gap_ms`,
        its sample is invalid and UNTRACKED; `dt_ms` is kept. The default limit follows public
        reports of gaze that is repeated over frames, up to 100 ms off (hd-epic-annotations #15).
        """
        times = np.asarray(times_s, np.float64)
        if not len(self):
            nothing = np.full(times.shape, np.nan)
            return Gaze.build(
                self.source, times, nothing, nothing, tracked=False, confidence=0.0, dt_ms=np.nan
            )
        right = np.clip(np.searchsorted(self.t_s, times), 0, len(self) - 1)
        left = np.maximum(right - 1, 0)
        nearer_left = np.abs(times - self.t_s[left]) <= np.abs(self.t_s[right] - times)
        pick = np.where(nearer_left, left, right)
        dt = self.dt_ms[pick] + (self.t_s[pick] - times) * 1e3
        near = np.abs(dt) <= max_gap_ms
        return Gaze(
            t_s=times,
            x=np.where(near, self.x[pick], np.nan),
            y=np.where(near, self.y[pick], np.nan),
            valid=self.valid[pick] & near,
            event=np.where(near, self.event[pick], Event.UNTRACKED).astype(np.int8),
            confidence=np.where(near, self.confidence[pick], 0.0),
            source_frame=self.source_frame[pick],
            dt_ms=dt,
            source=self.source,
        )


def fixation_spans(
    t_s: NDArray[np.float64],
    event: NDArray[np.int8],
    tracked: NDArray[np.bool_],
    number: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the start and end of each fixation that a file states, in seconds, `[fixations, 2]`.

    A fixation lasts from its first to its last sample. `number` holds the file's numbers of
    fixations, NaN where it has none. Without numbers, samples of the event FIXATION are of one
    fixation until a saccade comes, or gaze is lost for more than `HOLE_S`.
    """
    numbered = np.isfinite(number)
    rows = np.flatnonzero(
        tracked & ((event == Event.FIXATION) | ((event == Event.UNKNOWN) & numbered))
    )
    saccades = np.cumsum(event == Event.SACCADE)[rows]
    ends = (np.diff(saccades) > 0) | (np.diff(t_s[rows]) > HOLE_S)
    last = np.where(numbered[rows][1:], np.diff(number[rows]) != 0, ends)
    edges = np.concatenate([[-1], np.flatnonzero(last), [len(rows) - 1]])
    return np.stack([t_s[rows[edges[:-1] + 1]], t_s[rows[edges[1:]]]], 1) if len(rows) else NOTHING


_FIELDS = ("t_s", "x", "y", "valid", "event", "confidence", "source_frame", "dt_ms")
