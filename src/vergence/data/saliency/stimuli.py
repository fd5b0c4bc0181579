"""Gaze on pictures or videos that were shown on a screen, from tables of any tracker.

The user names the columns (`columns`), or a preset (`tobii_pro_lab`, `gazepoint`, `smi_begaze`,
`eyelink_fixation_report`, `eyelink_asc`; sources: `gaze_presets`). Pictures or videos are in the
folder `stimuli` below `root`, tables anywhere below `root`. The column `stimulus` names the
picture, with or without its extension. The picture's place on the screen is known in one of three
ways: x and y count in the picture itself, the table states the place in every row, or the option
`place` states it.

Licence: that of the recordings.

Used by `cli.data_import` and `data.gaze_tracks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PureWindowsPath
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.naming import by_key
from vergence.data.gaze_video.clip_cache import open_video
from vergence.data.gaze_video.conditions import (
    Words,
    condition_names,
    with_conditions,
    with_path_conditions,
)
from vergence.data.gaze_video.gaze import Event, Gaze
from vergence.data.gaze_video.gaze_columns import (
    GazeRows,
    Origin,
    in_time_order,
    read_rows,
    to_fractions,
)
from vergence.data.gaze_video.gaze_files import PICTURES, GazeFiles, default_person
from vergence.data.gaze_video.gaze_presets import (
    OWN_RECORDINGS,
    GazePreset,
    GazeTableOptions,
    columns_of,
    preset_of,
)
from vergence.data.gaze_video.recording import (
    GazeWindow,
    Recording,
    WindowOptions,
    cut_windows,
    decode_samples,
)
from vergence.data.io.checks import (
    Check,
    CheckedFolder,
    Checks,
    data_folder,
    read_pictures,
)
from vergence.data.io.delimited_text import MISSING
from vergence.data.io.image_files import open_image
from vergence.data.io.path_patterns import files_below
from vergence.data.io.video import VIDEOS
from vergence.data.saliency.eyelink_asc import OWN_SIZE, read_asc
from vergence.data.splits import FrameSize, PeopleOptions, part_sizes
from vergence.errors import ConfigError, DataError

WHERE = "put gaze tables, and a folder of the pictures or videos shown, below root"
FIRST_FRAME = 100_000
"""A video window's `scene` is the stimulus's number times this, plus the window's first frame."""
# People look off a picture now and then, but not most of the time: then its place is wrong.
MOSTLY = 0.9
"""If more than this fraction of valid gaze is outside the pictures, the data are refused."""


@dataclass(frozen=True, eq=False)
class StimulusTrial:
    """Gaze of one person on one stimulus, in order of time.

    `x` and `y` are fractions of the stimulus from its top-left corner, one for each row.
    """

    person: str
    stimulus: Path
    rows: GazeRows
    x: NDArray[np.float64]
    y: NDArray[np.float64]

    @property
    def conditions(self) -> Words:
        """Words of the conditions under which the stimulus was shown, the same in all rows."""
        return tuple(self.rows.conditions[0].tolist())

    @property
    def shown(self) -> NDArray[np.bool_]:
        """Mask of the samples that are valid gaze on the stimulus, bool `[rows]`."""
        inside = (self.x >= 0) & (self.x <= 1) & (self.y >= 0) & (self.y <= 1)
        return self.rows.valid & inside

    def gaze(self) -> Gaze:
        """Return the samples on the video's own clock, which begins with the first row."""
        rows = self.rows
        seen = {"tracked": rows.valid, "event": rows.event}
        return Gaze.build(str(rows.path), rows.seconds("first"), self.x, self.y, **seen)

    def points(self, most: int) -> NDArray[np.float32]:
        """Return the fixations (x, y) `[n, 2]`, each the mean of its rows.

        If the rows have no fixation numbers, at most `most` samples are returned, at even spacing.
        Samples outside the stimulus and during saccades are left out.
        """
        use = self.shown & np.isin(self.rows.event, (Event.FIXATION, Event.UNKNOWN))
        xy = np.stack([self.x[use], self.y[use]], 1)
        number = self.rows.fixation[use]
        if np.isfinite(number).any():
            xy, number = xy[np.isfinite(number)], number[np.isfinite(number)]
            # A number that begins anew is another fixation.
            group = np.cumsum(np.diff(number, prepend=number[0]) != 0)
            count = np.bincount(group)
            sums = [np.bincount(group, side) / count for side in xy.T]
            return np.stack(sums, 1).astype(np.float32)
        if len(xy) > most:
            xy = xy[np.linspace(0, len(xy) - 1, most).round().astype(int)]
        return xy.astype(np.float32)


@dataclass(frozen=True)
class Stimuli(GazeTableOptions, PeopleOptions, CheckedFolder, Dataset):
    """Gaze of the user's own participants on the same pictures or videos, split by stimulus.

    Attributes:
        stimuli: the folder of pictures or videos, below root or absolute.
        unknown: what to do with a trial whose stimulus has no file: "error", or "skip" and count
            it.
        place: to what x and y refer. "picture": to the picture itself. The other values mean the
            screen, and say how the picture was shown. "fill": it filled the screen. "fit": as large
            as fits, in the middle. "centre": in its own size, in the middle. The option is not
            needed with `offset`, or if the table states the picture's place.
        screen: (width, height) of the screen in pixels.
        offset: (left, top) of the picture on the screen in pixels.
        shown_size: (width, height) of the picture on the screen in pixels; default: that of its
            file.
        origin: where x and y are 0: top_left, bottom_left, centre (y down), centre_up (y up).
        screen_cm: (width, height) of the screen in cm, for unit = deg.
        distance_cm: distance from the eyes to the screen in cm, for unit = deg.
        clock: what to do if time goes back within a trial: "refuse" the data, or "sort" the rows.
        points: most points of a trial whose table has no fixations; they are samples at even
            spacing.
        size: (width, height) of the frames in pixels; pictures are resized to it without cropping.
        window: number of frames in a sample of a video.
        step_s: seconds between neighbouring frames of a sample.
        stride_s: seconds between the starts of samples.
        max_gap_ms: metrics do not use video frames without a gaze measurement within this time.
    """

    stimuli: str = "stimuli"
    unknown: Literal["error", "skip"] = "error"
    place: Literal["", "picture", "fill", "fit", "centre"] = ""
    screen: tuple[int, int] | None = None
    offset: tuple[float, float] | None = None
    shown_size: tuple[float, float] | None = None
    origin: Origin = "top_left"
    screen_cm: tuple[float, float] | None = None
    distance_cm: float = 0.0
    clock: Literal["refuse", "sort"] = "refuse"
    points: Annotated[int, Ge(1)] = 50
    size: FrameSize = (320, 240)
    window: int = 4
    step_s: float = 0.25
    stride_s: float = 1.0
    max_gap_ms: float = 40.0
    data: ClassVar[str] = "stimuli"

    @property
    def frame_step_s(self) -> float | None:
        """Seconds between neighbouring frames of a sample of a video."""
        return self.step_s

    def load(self, root: str | None = None) -> Federation:
        """Read the tables, and split by stimulus; all people have the same split.

        Columns of the samples: `frame_ids` int64 `[n, T]`, row numbers in the shared array `frames`
        uint8 `[frames, height, width, 3]`; `points` float32 `[n, T, most points, 2]`, (x, y) in [0,
        1], NaN beyond the last point; `scene` int64 `[n]`, a number for what was shown, the same
        for all people; `conditions`, if there are any. T is 1 for pictures and `window` for videos.
        A sample of a picture has all gaze of a person on it under the same conditions.

        Raises:
            ConfigError: an option is out of range, or the columns or the picture's place are not
                set.
            DataError: a table, picture or video cannot be used, or a person has seen too few
                stimuli.
        """
        folder = data_folder(root, "stimuli", WHERE)
        trials, left_out = self.read(folder)
        persons = self.people_to_load(sorted({trial.person for trial in trials}), "person")
        names = sorted({trial.stimulus for trial in trials})
        # One order for all people: nobody trains on a picture that others are tested on.
        order = np.random.default_rng(self.split_seed).permutation(len(names))
        _, val, test = part_sizes(len(names), self.shares, "stimuli")
        test_stimuli, val_stimuli, train_stimuli = np.split(order, [test, test + val])
        parts = [{names[i] for i in part} for part in (train_stimuli, val_stimuli, test_stimuli)]
        kinds = {path.suffix.lower() in VIDEOS for path in names}
        # A sample has one frame of a picture or several of a video: columns would differ in shape.
        if len(kinds) > 1:
            raise DataError(
                f"{folder}: pictures and videos together: give each a folder of its own"
            )
        # The split covers the stimuli of all people, also where only some people are loaded.
        own = by_key((trial.person, trial) for trial in trials)
        by_person = {person: own.get(person, []) for person in persons}
        make = self._windows if kinds == {True} else self._pictures
        people, words = make(by_person, names, parts)
        counts = [len(part) for part in parts]
        details = {
            "split": f"by stimulus, for all people alike (seed {self.split_seed}): {counts[0]} "
            f"train, {counts[1]} validation, {counts[2]} test",
            "left_out": left_out,
            "frames": f"squeezed to {self.size[0]} x {self.size[1]}, nothing cropped",
            "stimulus": "shown on a screen",
        }
        made = Federation("stimuli", people, {**OWN_RECORDINGS, **details})
        return with_conditions(made, condition_names(self.columns.conditions, self.files), words)

    def read(self, root: Path) -> tuple[list[StimulusTrial], str]:
        """Return all trials below a folder, and a sentence on what was left out."""
        needed = ("t", "x", "y", "unit", "t_unit", "stimulus")
        preset, patterns, sets = columns_of(
            self.preset, "stimuli", self.columns, self.files, needed
        )
        pictures = root / self.stimuli
        files = GazeFiles.of(root, patterns, self.without, sets, bool(self.files), pictures)
        read = {path: self._rows(path, preset) for path in files.tables}
        files, single = files.without_copies([(path, rows) for path, (rows, _) in read.items()])
        tables = [
            (with_path_conditions(table, files.tables[path]), who, read[path][1])
            for path, rows in single
            for person in sorted(set(rows.person.tolist()))
            for table in [rows.select(rows.person == person)]
            for who in [person or files.tables[path].get("person") or default_person(root, path)]
        ]
        find = _StimulusFiles(pictures)
        trials: list[StimulusTrial] = []
        missing: dict[str, int] = {}
        repeated = 0
        for table, person, screen in tables:
            for rows in _showings(table):
                stimulus = str(rows.stimulus[0])
                if (file := find(stimulus)) is None:
                    if self.unknown == "error":
                        raise DataError(
                            f"{rows.path}: row {rows.line[0]}: stimulus '{stimulus}' has no "
                            f"picture or video in {find.folder}: put it there, or set "
                            "unknown = 'skip'"
                        )
                    missing[stimulus] = missing.get(stimulus, 0) + 1
                    continue
                ordered, again = in_time_order(rows, self.clock, f"{person} on {stimulus}")
                repeated += again
                trials.append(
                    StimulusTrial(person, file, ordered, *self._fractions(ordered, file, screen))
                )
        self._check_place(trials)
        if not trials:
            raise DataError(f"no trial in {root} has a picture or video in {find.folder}: {WHERE}")
        skipped = (
            ", ".join(f"{name} ({count})" for name, count in sorted(missing.items())) or "none"
        )
        people = {trial.person for trial in trials}
        return trials, (
            f"{files.summary(people)}; {repeated} samples that repeat an earlier time; stimuli "
            f"without a file: {skipped}"
        )

    def _rows(
        self, path: Path, preset: GazePreset | None
    ) -> tuple[GazeRows, tuple[float, float] | None]:
        if self.preset == "eyelink_asc":
            return read_asc(path, self.columns.stimulus, self.columns.conditions)
        columns = preset.columns_for(self.columns, path) if preset else self.columns
        rows = read_rows(path, columns, optional=bool(preset))
        return rows.select(~np.isin(np.char.lower(rows.stimulus), MISSING)), None

    def _fractions(
        self, rows: GazeRows, file: Path, screen: tuple[float, float] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return x and y of gaze as fractions of the picture from its top-left corner.

        `file` is the picture, and `screen` the screen's size in pixels if the table states it.
        """
        unit, screen = rows.unit, self.screen or screen
        place = self.place or (preset_of(self.preset, "stimuli").place if self.preset else "")
        if self.offset is None and not self.place and np.isfinite(rows.media).all(1).any():
            place = "stated"
            if unit == "px" and self.origin == "top_left":
                left, top, width, height = _whole_media(rows.media, file).T
                return (rows.x - left) / width, (rows.y - top) / height
            if screen is None:
                raise ConfigError(
                    f"{rows.path} states the picture's place in pixels of the screen, and x and y "
                    f"in {unit} from origin = '{self.origin}': set screen = [width, height] in "
                    "pixels, or place = 'picture', if x and y count in the picture"
                )
        elif rows.names.get("media") and self.offset is None and not self.place:
            raise DataError(
                f"{rows.path}: row {rows.line[0]}: '{rows.names['media'][0]}' is empty: where was "
                "the picture on the screen? fill it in, or set place"
            )
        if place == "picture" and unit != "deg" and self.offset is None:
            return to_fractions(rows.x, rows.y, unit, stimulus_size(file), self.origin)
        x, y = rows.x, rows.y
        if unit == "deg":
            if self.screen_cm is None or self.distance_cm <= 0:
                raise ConfigError("unit = 'deg' needs screen_cm = [width, height] and distance_cm")
            x, y = (
                np.tan(np.radians(side)) * self.distance_cm / length
                for side, length in zip((x, y), self.screen_cm, strict=True)
            )
            unit = "fraction"
        x, y = to_fractions(x, y, unit, screen or (1, 1), self.origin)
        if place == "fill" and (screen or unit == "fraction"):
            return x, y
        if screen is None:
            raise ConfigError(
                "gaze counts on the screen: set screen = [width, height] in pixels, and place, or "
                "offset = [left, top] of the picture; or place = 'picture', if x and y count in it"
            )
        left, top, width, height = (
            _whole_media(rows.media, file).T
            if place == "stated"
            else self._box(place, file, screen)
        )
        return (x * screen[0] - left) / width, (y * screen[1] - top) / height

    def _box(
        self, place: str, file: Path, screen: tuple[float, float]
    ) -> tuple[float, float, float, float]:
        """Return left, top, width and height of a picture on the screen, in pixels."""
        width, height = self.shown_size or stimulus_size(file)
        if self.offset is not None:
            return *self.offset, width, height
        if place == "fit":
            scale = min(screen[0] / width, screen[1] / height)
            width, height = width * scale, height * scale
        elif place != "centre":
            raise ConfigError(
                "where was the picture on the screen? set place ('picture', 'fill', 'fit' or "
                "'centre'), or offset = [left, top] in pixels"
            )
        return (screen[0] - width) / 2, (screen[1] - height) / 2, width, height

    def _check_place(self, trials: Sequence[StimulusTrial]) -> None:
        valid = sum(int(trial.rows.valid.sum()) for trial in trials)
        shown = sum(int(trial.shown.sum()) for trial in trials)
        if valid and shown < (1 - MOSTLY) * valid:
            trial = next(t for t in trials if (t.rows.valid & ~t.shown).any())
            i = int(np.argmax(trial.rows.valid & ~trial.shown))
            raise DataError(
                f"{trial.rows.path}: {valid - shown} of {valid} valid samples lie outside the "
                f"pictures, the first in row {trial.rows.line[i]} ({trial.rows.x[i]:g}, "
                f"{trial.rows.y[i]:g}): correct columns.unit, place, offset, screen or origin"
            )

    def _pictures(
        self,
        by_person: Mapping[str, Sequence[StimulusTrial]],
        names: Sequence[Path],
        parts: Sequence[set[Path]],
    ) -> tuple[dict[str, Splits], dict[str, list[list[Words]]]]:
        frames = SharedRows(read_pictures(names, self.size, "pictures", WHERE), "frame_ids")
        looked = {person: self._looked(trials) for person, trials in by_person.items()}
        most = max((len(xy) for own in looked.values() for xy in own.values()), default=0)
        people, words = {}, {}
        for person, points in looked.items():
            keys = [[key for key in sorted(points) if key[0] in part] for part in parts]
            _check_parts(person, [len(rows) for rows in keys], "stimuli with gaze on them")
            made = [
                _picture_samples(
                    [names.index(path) for path, _ in own], [points[k] for k in own], most, frames
                )
                for own in keys
            ]
            people[person] = Splits(*made)
            words[person] = [[conditions for _, conditions in own] for own in keys]
        return people, words

    def _looked(
        self, trials: Sequence[StimulusTrial]
    ) -> dict[tuple[Path, Words], NDArray[np.float32]]:
        """Return picture and conditions -> one person's points, from all trials with both."""
        shown = by_key(((t.stimulus, t.conditions), t.points(self.points)) for t in trials)
        joined = {key: np.concatenate(points) for key, points in shown.items()}
        return {key: points for key, points in joined.items() if len(points)}

    def _windows(
        self,
        by_person: Mapping[str, Sequence[StimulusTrial]],
        names: Sequence[Path],
        parts: Sequence[set[Path]],
    ) -> tuple[dict[str, Splits], dict[str, list[list[Words]]]]:
        options = WindowOptions(
            size=self.size,
            window=self.window,
            step_s=self.step_s,
            stride_s=self.stride_s,
            max_gap_ms=self.max_gap_ms,
            short="skip",
        )
        footage = {path: open_video(path) for path in names}
        cut: list[list[GazeWindow]] = []
        recorded = {}
        for person, trials in by_person.items():
            own: list[list[GazeWindow]] = [[], [], []]
            for trial in trials:
                name = f"{trial.person} on {trial.stimulus.name}"
                own_gaze, words = trial.gaze(), trial.rows.conditions
                recording = Recording(
                    name, trial.person, own_gaze, trial.stimulus, conditions=words
                )
                recorded[id(recording)] = recording
                own_windows = cut_windows(recording, footage[trial.stimulus], options)
                for part, windows_of_part in zip(parts, own, strict=True):
                    windows_of_part += own_windows if trial.stimulus in part else []
            _check_parts(person, [len(part) for part in own], "windows of videos with gaze")
            cut += own
        opened_by = {key: footage[r.video or Path()] for key, r in recorded.items()}
        made = decode_samples(cut, opened_by, self.size)
        numbered = {path: i for i, path in enumerate(names)}
        scenes = [
            torch.tensor(
                [numbered[w.recording.video or Path()] * FIRST_FRAME + int(w.rows[0]) for w in part]
            )
            for part in cut
        ]
        whole = iter(
            Samples({**dict(s.columns), "scene": scene}, dict(s.banks))
            for s, scene in zip(made, scenes, strict=True)
        )
        words_of_parts = ([w.conditions for w in part] for part in cut)
        words = {person: [next(words_of_parts) for _ in parts] for person in by_person}
        people = {person: Splits(next(whole), next(whole), next(whole)) for person in by_person}
        return people, words

    def check(self, root: Path) -> list[Check]:
        """Check gaze, pictures and videos; return the lines of `vergence data check`.

        A line states each person's number of valid samples.
        """
        out = Checks()
        with out.reading("trials", ConfigError):
            trials, left_out = self.read(root)
            out.append(Check("trials", f"{len(trials):,}", "1 or more", True, left_out))
            for person in sorted({trial.person for trial in trials}):
                own = [trial for trial in trials if trial.person == person]
                shown = sum(int(trial.shown.sum()) for trial in own)
                total = sum(len(trial.rows) for trial in own)
                summary = f"{shown:,} of {total:,} on {len(own)} stimuli"
                out.append(Check(f"{person}: valid gaze", summary, "1 or more", shown > 0))
            with out.reading("stimuli"):
                files = sorted({trial.stimulus for trial in trials})
                for path in files:
                    stimulus_size(path)
                out.append(Check("stimuli", f"{len(files):,}", "readable", True))
        return out


def _showings(rows: GazeRows) -> list[GazeRows]:
    """Return the rows of each trial, in which a stimulus is shown once.

    A trial is a run of consecutive rows with the same trial number, stimulus and conditions.
    """
    key = rows.trial
    for column in (rows.stimulus, *rows.conditions.T):
        key = np.char.add(np.char.add(key, "\0"), column)
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(rows) else []
    return [rows.select(part) for part in np.split(np.arange(len(rows)), starts)[1:]]


class _StimulusFiles:
    """Function from a stimulus's name in a table to its picture or video in a folder.

    The name may have folders, an extension or capital letters, or none of these. The function
    returns None if no file fits.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(
                f"no folder {folder} of pictures or videos: set stimuli, or put them there"
            )
        self.folder = folder
        files = [p for p in files_below(folder) if p.suffix.lower() in PICTURES + VIDEOS]
        # Tables name a picture with or without its extension, in either case.
        keys = ((key, p) for p in files for key in {p.name.lower(), p.stem.lower()})
        self.named = by_key(keys)

    def __call__(self, name: str) -> Path | None:
        whole = PureWindowsPath(name.lower())
        files = self.named.get(whole.name) or self.named.get(whole.stem) or []
        if len(files) > 1:
            below = {path: path.relative_to(self.folder).as_posix().lower() for path in files}
            files = [p for p in files if f"/{whole.as_posix()}".endswith(f"/{below[p]}")] or files
        if len(files) > 1:
            raise DataError(
                f"{self.folder}: stimulus '{name}' may be {files[0].relative_to(self.folder)} or "
                f"{files[1].relative_to(self.folder)}: give them different names"
            )
        return files[0] if files else None


@lru_cache(maxsize=4096)
def stimulus_size(path: Path) -> tuple[int, int]:
    """Return width and height of a picture or video file, in pixels."""
    if path.suffix.lower() in VIDEOS:
        footage = open_video(path)
        return footage.width, footage.height
    with open_image(path, str(path), WHERE) as image:
        return image.size


def _whole_media(media: NDArray[np.float64], file: Path) -> NDArray[np.float64]:
    """Return left, top, width and height of the picture in each row, `[rows, 4]`.

    Where `OWN_SIZE` marks a picture as shown in the size of its file, width and height become this
    size, and the place of a centred picture becomes that of its corner.
    """
    own = np.isin(media[:, 2], tuple(OWN_SIZE.values()))
    if not own.any():
        return media
    out, size = media.copy(), np.array(stimulus_size(file), np.float64)
    out[own, 2:] = size
    out[media[:, 2] == OWN_SIZE["CENTER"], :2] -= size / 2
    return out


def _check_parts(person: str, counts: Sequence[int], what: str) -> None:
    if min(counts) < 1:
        raise DataError(
            f"person '{person}' has {list(counts)} {what} (train, val, test), each part needs one: "
            "leave the person out with the option people, or take another split_seed"
        )


def _picture_samples(
    rows: Sequence[int], points: Sequence[NDArray[np.float32]], most: int, frames: SharedRows
) -> Samples:
    padded = np.full((len(rows), 1, most, 2), np.nan, np.float32)
    for row, xy in zip(padded, points, strict=True):
        row[0, : len(xy)] = xy
    numbers = torch.tensor(rows, dtype=torch.int64)
    columns = {
        "frame_ids": numbers[:, None],
        "points": torch.from_numpy(padded),
        "scene": numbers.clone(),
    }
    return Samples(columns, {"frames": frames})
