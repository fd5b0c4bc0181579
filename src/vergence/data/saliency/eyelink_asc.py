"""EyeLink ASC files, as edf2asc writes them: samples, fixations, trials and the pictures shown.

A line that begins with a number is a sample: time (ms), then x, y and pupil size of each recorded
eye. A dot stands for a missing number. A line `EFIX EYE START END DURATION X Y ...` ends a
fixation. If both eyes were recorded, each fixation is there twice. The reader then uses one eye in
each trial: the eye with more fixations, or the left eye if both have equally many. A file without
samples has only fixations.

Messages for EyeLink's Data Viewer state the rest:

* `TRIALID n` begins a trial; `TRIAL_RESULT` ends it.
* `!V IMGLOAD CENTER|TOP_LEFT|FILL PATH [x y [w h]]` shows a picture, and states its name and its
  place on the screen.
* The picture is shown until the trial's next picture, `!V CLEAR`, `!V DRAW_LIST`, the end of the
  trial, or the end of recording (`END`).
* `!V TRIAL_VAR NAME VALUE` may name the picture at the end of the trial instead.
* `GAZE_COORDS left top right bottom` states the screen.

Used by `data.saliency.stimuli`.

Source: EyeLink 1000 Plus user manual, 4.9 (The ASC File Format); messages:
https://www.sr-research.com/support/thread-168.html. This parser is the project's own. pymovements
0.28 reads samples and messages as well, but needs polars, pyarrow, scikit-learn and eight more
packages (119 MB of wheels). The places of pictures would still have to be read from its messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PureWindowsPath

import numpy as np

from vergence.data.gaze_video.gaze import Event
from vergence.data.gaze_video.gaze_columns import LONGEST, GazeRows
from vergence.data.io.delimited_text import TextForm, text_lines
from vergence.errors import DataError, meant

KIND = "EyeLink ASC file"
PICTURE_NAMES = ("image", "img", "picture", "pic", "stimulus", "stim", "video", "movie", "file")
"""Trial variables that may name the picture, if no message loads one."""
OWN_SIZE = {"CENTER": 0.0, "TOP_LEFT": -1.0}
"""Placement of a picture shown in the size of its file -> mark in place of its width and height."""
NOWHERE = (np.nan, np.nan, np.nan, np.nan)
# Pictures loaded so near to one another are on the screen together; a screen cleared so near to a
# loading was cleared to draw that picture.
AT_ONCE_MS = 20.0
"""Messages that are less than this many milliseconds apart count as simultaneous."""
Fixation = tuple[int, float, float, float, float]
"""A fixation of one eye: line in the file, start and end in ms, mean x and y in pixels."""
NOT_GAZE = {
    "HREF": ("angles of the head-referenced frame", "-sh"),
    "PUPIL": ("positions in the camera's picture", "-sp"),
}
"""Positions that are not places on the screen: what they are, and edf2asc's option."""
CELL = TextForm()
NUMBER = re.compile(r"\d+(\.\d+)?$")


@dataclass(frozen=True)
class _AscPicture:
    """A picture that a message loads: when it came and went in ms, its name, and its place.

    `how` and `numbers` are the words of the message that state the place.
    """

    onset_ms: float
    name: str = ""
    how: str = ""
    numbers: tuple[float, ...] = ()
    end_ms: float = np.inf


@dataclass
class _AscTrial:
    """A trial while it is read.

    `named` is the picture's name in a trial variable. `onset_ms` is when the picture came, if no
    message loads one. `variables` maps the names of trial variables to their values.
    """

    number: str = ""
    named: str = ""
    onset_ms: float = -np.inf
    end_ms: float = np.inf
    eyes: int = 1
    pictures: list[_AscPicture] = field(default_factory=list)
    samples: list[tuple[int, float, float, float]] = field(default_factory=list)
    fixations: dict[str, list[Fixation]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def of_one_eye(self) -> list[Fixation]:
        """Fixations of the eye with more fixations; of the left eye if both have equally many."""
        return max((self.fixations[eye] for eye in sorted(self.fixations)), key=len, default=[])

    def load(self, picture: _AscPicture) -> None:
        """Record a picture that a message loads; the same picture loaded again changes nothing."""
        last = self.pictures[-1] if self.pictures else None
        if last is not None and replace(picture, onset_ms=last.onset_ms) == last:
            return
        if last is not None:
            self.pictures[-1] = replace(last, end_ms=min(last.end_ms, picture.onset_ms))
        self.pictures.append(picture)

    def clear(self, time_ms: float) -> None:
        """End the picture on the screen at this time, if it came at least `AT_ONCE_MS` before."""
        last = self.pictures[-1] if self.pictures else None
        onset = self.onset_ms if last is None else last.onset_ms
        if not AT_ONCE_MS <= time_ms - onset < np.inf:
            return
        if last is None:
            self.end_ms = min(self.end_ms, time_ms)
        else:
            self.pictures[-1] = replace(last, end_ms=min(last.end_ms, time_ms))

    def rows(self, picture: _AscPicture) -> list[tuple[int, float, float, float]]:
        """Return (line, time in ms, x, y) of each sample while a picture is shown.

        In a trial without samples, these are the fixations.
        """
        rows = self.samples or [
            (line, max(start, picture.onset_ms), x, y)
            for line, start, end, x, y in self.of_one_eye
            if end >= picture.onset_ms
        ]
        return [row for row in rows if picture.onset_ms <= row[1] < picture.end_ms]

    def showings(self, path: Path, by_variable: bool) -> list[_AscPicture]:
        """Return the pictures on which gaze is read, in order of time.

        If `by_variable` is true, only the pictures that the trial variable names count. If no
        message loads a picture of that name, the last picture loaded counts, under that name.

        Raises:
            DataError: two pictures are on the screen at once, and no variable names one of them.
        """
        if not self.pictures or (by_variable and not self.named):
            whole = _AscPicture(self.onset_ms, self.named, end_ms=self.end_ms)
            return [whole] if self.named else []
        shown = [p for p in self.pictures if not by_variable or _bare(p.name) == _bare(self.named)]
        for one, other in pairwise(shown or self.pictures):
            if other.onset_ms - one.onset_ms < AT_ONCE_MS:
                raise DataError(
                    f"{path}: trial {self.number or 'without a number'} shows "
                    f"{one.name[:100]} and {other.name[:100]} at once, and gaze is read on one "
                    "picture alone: set columns.stimulus to a trial variable that holds its file's "
                    "name"
                )
        return shown or [replace(self.pictures[-1], name=self.named)]


@dataclass
class _AscReader:
    path: Path
    variable: str
    trial: _AscTrial = field(default_factory=_AscTrial)
    done: list[_AscTrial] = field(default_factory=list)
    eyes: int = 1
    events: tuple[int, list[str]] = (0, ["EVENTS", "GAZE"])
    screen: tuple[float, float] | None = None

    def line(self, number: int, text: str) -> None:
        words = text.split()
        if not words or words[0].startswith(("**", "#", "/", ";")):
            return
        try:
            if len(text) > LONGEST and {"TRIALID", "!V"} & set(words):
                # A name in it would be repeated in every row of its trial and fill the memory.
                raise ValueError
            if NUMBER.match(words[0]):
                self.trial.samples.append((number, *self.sample(words)))
            elif words[0] == "MSG":
                self.message(float(words[1]), words[2:])
            elif words[0] == "EFIX":
                # Where a file has both, places in the head-referenced frame come first.
                kinds = self.events[1]
                cells = (*words[7 if "HREF" in kinds else 5 :], ".", ".")[:2]
                x, y = map(CELL.number, cells if "GAZE" in kinds else "..")
                fixation = number, float(words[2]), float(words[3]), x, y
                self.trial.fixations.setdefault(words[1], []).append(fixation)
            elif words[0] == "END":
                # The last sample may have the time of the end.
                self.trial.clear(float(np.nextafter(float(words[1]), np.inf)))
            elif words[0] == "SAMPLES":
                self.check_kind(number, words)
                self.eyes = max(sum(word in ("LEFT", "RIGHT") for word in words), 1)
            elif words[0] == "EVENTS":
                self.events = number, words
        except (IndexError, ValueError):
            raise DataError(
                f"{self.path}: line {number} is '{text.strip()[:60]}', no line of an {KIND}: make "
                "it again with edf2asc"
            ) from None

    def check_kind(self, number: int, words: list[str]) -> None:
        """Check the kind of positions that a line SAMPLES or EVENTS announces.

        Raises:
            DataError: the positions are no gaze on the screen.
        """
        for kind, (what, option) in NOT_GAZE.items():
            if kind in words and "GAZE" not in words:
                raise DataError(
                    f"{self.path}: line {number}: '{words[0]} {kind}' says that positions are "
                    f"{kind} ({what}) and not GAZE in pixels of the screen: make it again with "
                    f"edf2asc without {option}"
                )

    def sample(self, words: list[str]) -> tuple[float, float, float]:
        numbers = [np.nan if word == "." else float(word) for word in words[1 : 1 + 3 * self.eyes]]
        x, y = np.array(numbers[0::3]), np.array(numbers[1::3])
        if len(x) < self.eyes or len(y) < self.eyes:
            raise ValueError
        both = np.isfinite(x) & np.isfinite(y)
        if not both.any():
            return float(words[0]), np.nan, np.nan
        return float(words[0]), float(x[both].mean()), float(y[both].mean())

    def message(self, time_ms: float, words: list[str]) -> None:
        # A number before the message tells how long ago the event happened.
        if words and re.fullmatch(r"-?\d+", words[0]):
            time_ms, words = time_ms - float(words[0]), words[1:]
        if not words:
            return
        if words[0] == "TRIALID":
            self.end()
            self.trial.number = " ".join(words[1:])
        elif words[0] == "TRIAL_RESULT":
            self.end()
        elif words[0] == "GAZE_COORDS":
            # The coordinates are those of the first and last pixel, hence + 1.
            left, top, right, bottom = map(float, words[1:5])
            self.screen = right - left + 1, bottom - top + 1
        elif words[0] == "SYNCTIME" and not np.isfinite(self.trial.onset_ms):
            self.trial.onset_ms = time_ms
        elif words[:2] == ["!V", "CLEAR"] or (
            words[:2] == ["!V", "DRAW_LIST"] and self.trial.pictures
        ):
            self.trial.clear(time_ms)
        elif words[:2] == ["!V", "IMGLOAD"]:
            self.shown(time_ms, words[2], words[3:])
        elif words[:2] == ["!V", "TRIAL_VAR"] and len(words) > 3:
            self.trial.variables[words[2]] = " ".join(words[3:])
            known = (self.variable,) if self.variable else PICTURE_NAMES
            if words[2].lower() in map(str.lower, known) and (
                self.variable or not self.trial.named
            ):
                self.trial.named = " ".join(words[3:])

    def shown(self, time_ms: float, how: str, rest: list[str]) -> None:
        count = 0
        while count < min(len(rest) - 1, 4) and re.fullmatch(r"-?\d+(\.\d+)?", rest[-1 - count]):
            count += 1
        # A file name may hold spaces: numbers are counted from the end of the line.
        split = len(rest) - count
        numbers = tuple(map(float, rest[split:]))
        self.trial.load(_AscPicture(time_ms, " ".join(rest[:split]), how, numbers))

    def end(self) -> None:
        self.trial.eyes = self.eyes
        # Without samples, gaze comes from fixations: their places must be on the screen.
        if self.trial.fixations and not self.trial.samples:
            self.check_kind(*self.events)
        if self.trial.samples or self.trial.fixations:
            self.done.append(self.trial)
        self.trial = _AscTrial()


def read_asc(
    path: Path, variable: str = "", conditions: Sequence[str] = ()
) -> tuple[GazeRows, tuple[float, float] | None]:
    """Return the gaze rows of all trials that show a picture, and the screen's width and height.

    Rows begin when the picture comes. If the file does not state the screen, its size is None.

    Args:
        path: the file.
        variable: the trial variable that names the picture; default: the picture that a message
            loads, or else a variable in `PICTURE_NAMES`.
        conditions: trial variables that hold the trial's conditions.

    Raises:
        DataError: the file is no ASC file, a line cannot be read, no trial names a picture, or a
            trial lacks a condition.
    """
    reading = _AscReader(path, variable)
    for number, text in enumerate(text_lines(path, KIND), 1):
        reading.line(number, text)
    reading.end()
    shown = [
        (trial, picture)
        for trial in reading.done
        for picture in trial.showings(path, bool(variable))
        if picture.name
    ]
    if not shown:
        named = f"the trial variable '{variable}'" if variable else "'!V IMGLOAD'"
        raise DataError(
            f"{path}: {len(reading.done)} trials, and none names its picture ({named}): set "
            "columns.stimulus to the trial variable that does"
        )
    parts = [_rows(path, trial, picture, reading.screen, conditions) for trial, picture in shown]
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name, value in vars(parts[0]).items()
        if isinstance(value, np.ndarray)
    }
    names = {"t": ["time"], "person": [], "trial": ["TRIALID"]}
    return GazeRows(path, scale=1e-3, names=names, unit="px", t_unit="ms", **joined), reading.screen


def _bare(name: str) -> str:
    return PureWindowsPath(name.lower()).stem


def _rows(
    path: Path,
    trial: _AscTrial,
    picture: _AscPicture,
    screen: tuple[float, float] | None,
    conditions: Sequence[str],
) -> GazeRows:
    if lacking := [name for name in conditions if name not in trial.variables]:
        raise DataError(
            f"{path}: trial '{trial.number}' has no TRIAL_VAR '{lacking[0]}' (columns.conditions)"
            f"{meant(lacking[0], trial.variables)}; it has {', '.join(trial.variables) or 'none'}"
        )
    line, t, x, y = np.array(trial.rows(picture), np.float64).reshape(-1, 4).T
    fixation = np.full(len(t), np.nan)
    for i, (_, start, end, *place) in enumerate(trial.of_one_eye):
        inside = (t >= start) & (t <= end)
        fixation[inside] = i
        if trial.eyes == 2 and np.isfinite(place).all():
            # Samples are means of both eyes, which may look 100 pixels apart.
            inside &= np.isfinite(x) & np.isfinite(y)
            x[inside], y[inside] = place
    event = np.full(len(t), Event.UNKNOWN, np.int8)
    if trial.fixations:
        event = np.where(np.isfinite(fixation), Event.FIXATION, Event.SACCADE).astype(np.int8)
    person, stimulus, number = (np.full(len(t), text) for text in ("", picture.name, trial.number))
    valid = np.isfinite(x) & np.isfinite(y)
    return GazeRows(
        path,
        line.astype(np.int64),
        t,
        1e-3,
        x,
        y,
        valid,
        event,
        fixation,
        person,
        stimulus,
        number,
        np.tile(_media(picture, screen), (len(t), 1)),
        np.tile(np.array([trial.variables[name] for name in conditions], str), (len(t), 1)),
        {},
    )


def _media(
    picture: _AscPicture, screen: tuple[float, float] | None
) -> tuple[float, float, float, float]:
    """Return the picture's left, top, width and height on the screen, in pixels.

    All four are NaN if the message does not state the place. If the picture is shown in the size of
    its file, width and height are a mark from `OWN_SIZE`.
    """
    how, numbers = picture.how, picture.numbers
    if how == "FILL" and screen is not None:
        return 0.0, 0.0, *screen
    if how not in OWN_SIZE or len(numbers) not in (2, 4):
        return NOWHERE
    x, y = numbers[:2]
    if len(numbers) == 2:
        return x, y, OWN_SIZE[how], OWN_SIZE[how]
    width, height = numbers[2:]
    middle = how == "CENTER"
    return x - width / 2 * middle, y - height / 2 * middle, width, height
