"""Recordings (video and gaze on one clock), and the windows of frames that become samples.

Used in `data` and `video`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.naming import by_key, registry_name
from vergence.core.options import NamedOptions
from vergence.data.gaze_video.clip_cache import ClipWindow, load_clips, open_video
from vergence.data.gaze_video.conditions import Words, with_conditions
from vergence.data.gaze_video.gaze import Gaze
from vergence.data.gaze_video.temporal_splits import (
    TEST,
    TRAIN,
    VAL,
    join_sessions,
    temporal_split,
    too_few,
)
from vergence.data.gaze_video.vrs import VrsFootage
from vergence.data.io.checks import Check, Checks, compare, with_progress
from vergence.data.io.path_patterns import files_below
from vergence.data.io.video import Footage, Video, rows_at
from vergence.data.splits import FrameSize, Shares, check_shares
from vergence.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class Recording:
    """Recording of one person's scene video and gaze.

    `frame_times_s` holds the time of each frame in seconds, and gaze is on the same clock. If
    `frame_times_s` is None, gaze is on the video's clock. This clock's 0 is the first frame or,
    with `container_clock`, the video file's own zero, which may be before the first frame.
    `start_s` is the recording's start in its `session`, in seconds; a split in time keeps gaps
    between recordings of one session, too. `fov_deg` is the scene camera's horizontal field of
    view, or None if the files do not state it. `conditions` `[gaze samples, conditions]` holds the
    words of conditions (see `data.gaze_video.conditions`), or is None. `fixations` `[n, 2]` are
    start and end of the fixations that the maker's software found, on the clock of the gaze; None:
    only the events of the gaze tell them.
    """

    id: str
    person: str
    gaze: Gaze
    video: Path | None = None
    frame_times_s: NDArray[np.float64] | None = None
    session: str = ""
    start_s: float = 0.0
    fov_deg: float | None = None
    container_clock: bool = False
    conditions: NDArray[np.str_] | None = None
    fixations: NDArray[np.float64] | None = None

    def words_at(self, time_s: float) -> tuple[str, ...]:
        """Return the conditions at a time: those of the last gaze sample before, or the first."""
        if self.conditions is None:
            return ()
        at = int(np.searchsorted(self.gaze.t_s, time_s, "right")) - 1
        return tuple(self.conditions[max(at, 0)].tolist())

    def footage(self) -> Footage:
        """Open the video and put its frames on the clock of the gaze.

        Raises:
            DataError: there is gaze but no video, the video cannot be read, or its number of frames
                differs from the number of `frame_times_s`.
        """
        if self.video is None:
            raise DataError(
                f"recording '{self.id}' has gaze without video: put the scene video of "
                f"{self.gaze.source} beside it"
            )
        read = VrsFootage.open if self.video.suffix == ".vrs" else open_video
        footage = read(self.video)
        times_s = self.frame_times_s
        if times_s is None:
            shift = footage.start_s if self.container_clock else 0.0
            return replace(footage, times_s=footage.times_s + shift)
        # A video that was cut or encoded again would show other frames than those looked at.
        if len(times_s) != len(footage.times_s):
            raise DataError(
                f"{self.video} has {len(footage.times_s)} frames, the recorder noted "
                f"{len(times_s)} frame times: video and gaze belong to different exports, export "
                "both again"
            )
        return replace(footage, times_s=times_s)

    def gaze_per_frame(self, footage: Footage, max_gap_ms: float = 40.0) -> Gaze:
        """Return a gaze record with one sample for every frame; see `Gaze.at`."""
        return self.gaze.at(footage.times_s, max_gap_ms)


@dataclass(frozen=True)
class GazeWindow:
    """Frames of one recording that make one sample, and the gaze in each frame.

    `rows` int64 `[T]` are the frames' numbers. `points` float32 `[T, 1, 2]` is gaze (x, y), NaN if
    metrics do not use it. `start_s` and `end_s` are seconds on the clock of the session.
    `conditions` are those of the first frame.
    """

    recording: Recording
    rows: NDArray[np.int64]
    points: NDArray[np.float32]
    start_s: float
    end_s: float
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class WindowOptions(NamedOptions):
    """Options of all data sets of recordings: how recordings are cut into samples and split.

    Attributes:
        size: (width, height) of the frames in pixels; frames are resized to it without cropping.
        window: number of frames in a sample.
        step_s: seconds between the frames of a sample.
        stride_s: seconds between the starts of samples.
        gap_s: least seconds between a person's windows for training, validation and test; 5 or
            more.
        shares: fractions of a person's windows for training, validation and test.
        max_gap_ms: metrics do not use frames without a gaze measurement within this time.
        short: what to do with a recording shorter than one sample: "error", or "skip" and count it.
        people: names of the people to load; empty: everybody.
        clip_s: length of a clip in seconds, for papers that count clips. A recording is cut into
            consecutive whole clips; each is a sample of `window` evenly spaced frames. 0: the
            recording is cut by step_s and stride_s instead.
    """

    size: FrameSize = (64, 64)
    window: Annotated[int, Ge(1)] = 4
    step_s: Annotated[float, Ge(1e-3)] = 0.25
    stride_s: Annotated[float, Ge(1e-3)] = 1.0
    gap_s: Annotated[float, Ge(5)] = 5.0
    shares: Shares = (0.70, 0.15, 0.15)
    max_gap_ms: Annotated[float, Ge(0)] = 40.0
    short: Literal["error", "skip"] = "error"
    people: tuple[str, ...] = ()
    clip_s: float = 0.0

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last frame of a sample."""
        return (self.window - 1) * self.pace_s[0]

    @property
    def frame_step_s(self) -> float | None:
        """Seconds between neighbouring frames of a sample."""
        return self.pace_s[0]

    @property
    def pace_s(self) -> tuple[float, float]:
        """Seconds between neighbouring frames of a sample, and between the starts of samples."""
        if self.clip_s:
            return self.clip_s / self.window, self.clip_s
        return self.step_s, self.stride_s

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.shares)
        if not (self.clip_s == 0 or 1e-3 <= self.clip_s < np.inf):
            raise ConfigError(
                f"clip_s must be 0 (cut by step_s and stride_s) or 0.001 or more, got {self.clip_s}"
            )
        usual = WindowOptions.step_s, WindowOptions.stride_s
        if self.clip_s and (self.step_s, self.stride_s) != usual:
            raise ConfigError(
                f"clip_s = {self.clip_s:g} sets the frames and starts of samples by itself: leave "
                "step_s and stride_s out, or leave clip_s out"
            )

    def recordings(self, root: Path) -> Sequence[Recording]:
        """Return the recordings in a folder. Data sets override this method; by default, none.

        Predictions for a video call this to find the video's true gaze.

        Raises:
            DataError: a file is missing or cannot be used.
        """
        return ()

    def choose(self, recordings: Sequence[Recording], where: str) -> list[Recording]:
        """Return the recordings of the people to load; `where` is their folder, for messages.

        Raises:
            DataError: there are no recordings, or one of `people` has none.
        """
        if not recordings:
            raise DataError(
                f"no recordings found in {where}; 'vergence data check' says what is missing"
            )
        known = sorted({r.person for r in recordings})
        if unknown := [p for p in self.people if p not in known]:
            raise DataError(
                f"{where} has no recordings of {', '.join(unknown)}; people there: "
                f"{', '.join(known)}"
            )
        return [r for r in recordings if not self.people or r.person in self.people]


def cut_windows(recording: Recording, footage: Footage, options: WindowOptions) -> list[GazeWindow]:
    """Cut a recording into windows of frames.

    A window is left out if none of its frames has gaze that metrics use.

    Raises:
        DataError: the recording is shorter than one window, and `options.short` is "error".
    """
    times = footage.times_s
    length, need = float(times[-1] - times[0]), options.span_s
    step, stride = options.pace_s
    if options.clip_s and len(times) > 1:
        # The last frame lasts as long as the others: 120 frames at 24 a second are 5 s.
        length, need = length + float(np.median(np.diff(times))), options.clip_s
    # Half a millisecond: frame times are rounded to the ticks of the file.
    count = int(np.floor((length - need + 5e-4) / stride)) + 1
    if len(times) < options.window or count < 1:
        if options.short == "skip":
            return []
        raise DataError(
            f"clip '{recording.id}' is shorter than the window: {len(times)} frames, "
            f"{length:.2f} s, and a window takes {options.window} frames, {need:.2f} s; "
            f"lower {'clip_s' if options.clip_s else 'window or step_s'}, or set short = 'skip'"
        )
    gaze = recording.gaze_per_frame(footage, options.max_gap_ms)
    xy = np.stack([gaze.x, gaze.y], 1).astype(np.float32)
    xy[~gaze.scored] = np.nan
    out = []
    for k in range(count):
        at = times[0] + k * stride + np.arange(options.window) * step
        rows = rows_at(times, at, recording.id)
        if len(np.unique(rows)) < len(rows):
            option = "clip_s / window" if options.clip_s else "step_s"
            raise ConfigError(
                f"{option} = {step:g} is shorter than the frame interval of "
                f"'{recording.id}'; use {float(np.median(np.diff(times))):.3f} or more"
            )
        if np.isfinite(xy[rows]).all(1).any():
            start, end = (recording.start_s + float(times[rows[i]] - times[0]) for i in (0, -1))
            words = recording.words_at(float(times[rows[0]]))
            out.append(GazeWindow(recording, rows, xy[rows][:, None], start, end, words))
    return out


def decode_samples(
    parts: Sequence[Sequence[GazeWindow]], opened: Mapping[int, Footage], size: tuple[int, int]
) -> list[Samples]:
    """Decode frames, and return the samples of each part.

    A part is a list of windows, such as those of one client for training. Its samples share one
    array of frames, resized to `size` (width, height), and refer to its rows. `opened` maps the
    `id()` of each recording to its footage.
    """
    cuts, numbers = zip(*(_frames_needed(part, opened) for part in parts), strict=True)
    out = []
    for part, frame_ids, frames in zip(parts, numbers, load_clips(cuts, size), strict=True):
        columns = {
            "frame_ids": torch.from_numpy(frame_ids),
            "points": torch.from_numpy(np.stack([w.points for w in part])),
            # A recording is no scene that several people saw: -1 means none.
            "scene": torch.full((len(part),), -1, dtype=torch.int64),
        }
        out.append(Samples(columns, {"frames": SharedRows(frames, "frame_ids")}))
    return out


def _frames_needed(
    part: Sequence[GazeWindow], opened: Mapping[int, Footage]
) -> tuple[list[ClipWindow], NDArray[np.int64]]:
    """Return the frames to decode for these windows, and each window's row numbers among them."""
    used = by_key((id(w.recording), w) for w in part)
    cuts: list[ClipWindow] = []
    frame_ids: dict[int, NDArray[np.int64]] = {}
    before = 0
    for key, group in used.items():
        # Windows overlap: a frame of several of them is decoded once.
        rows = np.unique(np.concatenate([w.rows for w in group]))
        for w in group:
            frame_ids[id(w)] = before + np.searchsorted(rows, w.rows)
        before += len(rows)
        cuts.append(ClipWindow(group[0].recording.video or Path(), opened[key], rows))
    return cuts, np.stack([frame_ids[id(w)] for w in part])


def federation(
    options: WindowOptions,
    recordings: Sequence[Recording],
    where: Path,
    about: Mapping[str, str],
    conditions: Words = (),
) -> Federation:
    """Make a federation of recordings, in which each person is a client.

    Recordings are cut into windows, each person's windows are split in time, and frames are
    decoded. The samples fit the task `gaze_map`. `where` is the folder of the recordings, for
    messages. `about` has entries for `Federation.about`. `conditions` names the conditions of the
    recordings.

    Raises:
        DataError: there are no recordings, one of `people` has none, a recording cannot be read,
            or a person has too few windows for the split.
    """
    cut = CutRecordings.of(options, recordings, where)
    split = {person: split_in_time(person, own, options) for person, own in cut.windows.items()}
    made = cut.federation(split, {**about, "split": time_split(options)}, "in the gaps")
    words = {p: [[w.conditions for w in part] for part in parts] for p, parts in split.items()}
    return with_conditions(made, conditions, words)


def time_split(options: WindowOptions) -> str:
    """Return a phrase that describes the split by `split_in_time`, for `Federation.about`."""
    return f"per person, in time, shares {options.shares}, gaps of >= {options.gap_s:g} s"


@dataclass(frozen=True, eq=False)
class CutRecordings:
    """Recordings cut into windows, before their frames are decoded.

    Attributes:
        options: how the recordings were cut.
        windows: person -> windows, sorted by names.
        footage: `id()` of a recording -> its footage.
        skipped: number of recordings without a usable window.
    """

    options: WindowOptions
    windows: Mapping[str, list[GazeWindow]]
    footage: Mapping[int, Footage]
    skipped: int

    @staticmethod
    def of(options: WindowOptions, recordings: Sequence[Recording], where: Path) -> CutRecordings:
        """Cut the recordings of the people to load; `where` is their folder, for messages.

        Raises:
            DataError: there are no recordings, one of `people` has none, or a recording cannot be
                read.
        """
        recordings = options.choose(recordings, str(where))
        by_person: dict[str, list[GazeWindow]] = {
            p: [] for p in sorted({r.person for r in recordings})
        }
        opened: dict[int, Footage] = {}
        skipped = 0
        paths = [r.video or Path() for r in recordings]
        for recording, _ in zip(recordings, with_progress(paths, "frame times"), strict=True):
            footage = opened[id(recording)] = recording.footage()
            own = cut_windows(recording, footage, options)
            skipped += not own
            by_person[recording.person] += own
        return CutRecordings(options, by_person, opened, skipped)

    def federation(
        self, clients: Mapping[str, Sequence[list[GazeWindow]]], about: Mapping[str, str], why: str
    ) -> Federation:
        """Decode frames, and return the federation of the given clients.

        `clients` maps each client to its windows for training, validation and test. `about` has
        entries for `Federation.about`. `why` completes a text on the windows that no
        client has, such as "in the gaps".
        """
        options = self.options
        # The frames of all clients in one call, so that one progress bar covers them.
        every = [part for parts in clients.values() for part in parts]
        made = iter(decode_samples(every, self.footage, options.size))
        people = {client: Splits(next(made), next(made), next(made)) for client in clients}
        dropped = sum(map(len, self.windows.values())) - sum(map(len, every))
        notes = {
            "left_out": f"{self.skipped} clips without a usable window, {dropped} windows {why}",
            "frames": f"squeezed to {options.size[0]} x {options.size[1]}, nothing cropped",
            "scored": "fixations (all valid gaze where unlabelled) within "
            f"{options.max_gap_ms:g} ms",
        }
        if options.clip_s:
            notes["clips"] = (
                f"whole ones of {options.clip_s:g} s, {options.window} frames evenly in each"
            )
        return Federation(registry_name(options), people, {**about, **notes})


def split_in_time(
    person: str, cut: Sequence[GazeWindow], options: WindowOptions
) -> list[list[GazeWindow]]:
    """Return a person's windows for training, validation and test.

    Windows in the gaps between these three parts are left out.

    Raises:
        DataError: there are too few windows.
    """
    if not cut:
        raise DataError(too_few(person, 0, 0.0, options.gap_s))
    start, end = windows_on_one_clock(cut, options.gap_s)
    part = temporal_split(person, start, end, options.gap_s, options.shares)
    return [[w for w, p in zip(cut, part, strict=True) if p == k] for k in (TRAIN, VAL, TEST)]


def windows_on_one_clock(
    cut: Sequence[GazeWindow], gap_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return starts and ends of a person's windows in seconds, on one clock for all sessions.

    Sessions follow one another with gaps of `gap_s`.
    """
    session = [w.recording.session or w.recording.id for w in cut]
    return join_sessions(session, [w.start_s for w in cut], [w.end_s for w in cut], gap_s)


def recording_folders(root: Path, *patterns: str) -> list[Path]:
    """Return the folders in or below `root` that hold a file of one of these patterns, sorted."""
    return sorted({path.parent for path in files_below(root) if any(map(path.match, patterns))})


def id_and_person(folder: Path, root: Path | None) -> tuple[str, str]:
    """Return a recording's id and person: its path below `root`, and that path's first folder.

    If the folder is `root` itself, or `root` is None, both are the folder's name.
    """
    below = folder.relative_to(root or folder)
    name = folder.resolve().name
    return (below.as_posix(), below.parts[0]) if below.parts else (name, name)


def check_videos(paths: Sequence[Path]) -> list[Check]:
    """Return lines of `vergence data check` on video files: each fault, and how many files open."""
    out = Checks()
    for path in with_progress(paths, "videos"):
        with out.reading(path.name):
            Video.check_header(path)
    return [*out, compare("videos that open", len(paths) - len(out), len(paths))]


def check_recordings(
    read: Callable[[Path], list[Recording]],
    root: Path,
    hint: str,
    what: str = "recordings",
    frames: Mapping[str, int] = MappingProxyType({}),
) -> list[Check]:
    """Return lines of `vergence data check`: whether each recording has valid gaze and a video.

    Args:
        read: function that returns the recordings below a folder.
        root: the folder to check.
        hint: what the user can do if there are no recordings.
        what: the lines' word for recordings.
        frames: id of a recording -> expected number of frames, for recordings where it is known.
    """
    out = Checks()
    with out.reading(what, ConfigError):
        every = read(root)
        out.append(Check(what, str(len(every)), "1 or more", bool(every), "" if every else hint))
        for recording in every:
            name, valid = recording.id, recording.gaze.valid
            count = f"{int(valid.sum()):,} of {len(valid):,}"
            out.append(Check(f"{name}: valid gaze", count, "1 or more", bool(valid.any())))
            with out.reading(f"{name}: video", ConfigError):
                length = len(recording.footage().times_s)
                out.append(compare(f"{name}: frames", length, frames.get(name, length)))
    return out
