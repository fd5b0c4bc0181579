"""Ego4D gaze: social settings, Pupil Invisible glasses, 30 frames a second, one wearer per video.

Layout of `root` (as GLC arranges it): `gaze/UID.csv` and either `full_scale.gaze/UID.mp4` or the
5 s clips `clips.gaze/UID/UID_tSTART_tEND.mp4`; `ego4d_gaze_untracked.csv` (video, start, end,
reason) is applied where it lies at `root`. The client is the video uid. Gaze has its origin at the
bottom left and is placed by time, never by frame number.

Source: Grauman et al., "Ego4D: around the world in 3,000 hours of egocentric video", CVPR 2022;
the saccade rule (more than 40 px between frames) is that of BolinLai/GLC.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vergence.core.site import Dataset, Federation
from vergence.data.checks import Check, compare, data_folder
from vergence.data.gaze import Event, Gaze
from vergence.data.recording import Recording, WindowOptions, federation
from vergence.data.table import read_table
from vergence.errors import DataError

WIDTH, HEIGHT, FRAME_S = 1088, 1080, 1 / 30
SACCADE_PX = 40
MIN_CONFIDENCE = 0.6
TRAIN_CLIPS, TEST_CLIPS, TRAIN_VIDEOS, TEST_VIDEOS = 15_310, 5202, 20, 7
UNTRACKED, UNTRACKED_S = 73, 3158
CLIP = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_t(\d+)_t(\d+)(?:\.mp4)?")
UNTRACKED_LIST = "ego4d_gaze_untracked.csv"
WHERE = (
    "holders of the signed licence get videos (full_scale.gaze/UID.mp4) and gaze (gaze/UID.csv) "
    "with the Ego4D command line tool, see https://ego4d-data.org/docs/data/gaze/"
)
ABOUT = {
    "licence": "Ego4D licence, signed individually; not redistributable",
    "citation": "Grauman et al.: Ego4D: around the world in 3,000 hours of egocentric video. "
    "CVPR 2022",
}
Intervals = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Clip:
    """One official clip: video uid, start and end in seconds of the video."""

    video: str
    start_s: int
    end_s: int

    @staticmethod
    def parse(name: str) -> Clip:
        """Read a clip name, with or without folder and `.mp4`.

        Raises:
            DataError: not the name of an Ego4D gaze clip.
        """
        match = CLIP.fullmatch(name.strip().rsplit("/", 1)[-1])
        if not match:
            raise DataError(f"'{name}' is not an Ego4D gaze clip name (UID_tSTART_tEND.mp4)")
        return Clip(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True)
class Ego4d(WindowOptions, Dataset):
    """Windows of Ego4D gaze videos; a video (one wearer) is a client."""

    short: str = "skip"

    def load(self, root: str | None = None) -> Federation:
        """Read, cut and split per video in time.

        Raises:
            ConfigError: an option is out of range.
            DataError: files are missing (says where a licence holder gets them) or damaged, or a
                video is too short for the split.
        """
        self.validate()
        folder = data_folder(root, "ego4d", WHERE)
        found = self.choose(recordings(folder, self.people), str(folder))
        listed = (folder / UNTRACKED_LIST).is_file()
        said = f"intervals of {UNTRACKED_LIST} left out" if listed else f"no {UNTRACKED_LIST}"
        return federation("ego4d", found, self, {**ABOUT, "untracked": said})


def recordings(root: Path, people: Sequence[str] = ()) -> list[Recording]:
    """Return one recording per video, or per clip where only clips are there.

    Raises:
        DataError: there is no video at all, or a video has no gaze or gaze no video.
    """
    whole = {p.stem: p for p in sorted((root / "full_scale.gaze").glob("*.mp4"))}
    clips: dict[str, list[Path]] = {}
    for path in sorted((root / "clips.gaze").rglob("*.mp4")):
        clips.setdefault(Clip.parse(path.name).video, []).append(path)
    uids = sorted({*whole, *clips, *(p.stem for p in (root / "gaze").glob("*.csv"))})
    if not uids:
        raise DataError(f"no videos or gaze in {root}: {WHERE}")
    listed = root / UNTRACKED_LIST
    away = read_untracked(listed) if listed.is_file() else {}
    out = []
    for uid in uids:
        if people and uid not in people:
            continue
        if uid not in whole and uid not in clips:
            raise DataError(f"gaze/{uid}.csv in {root} is gaze without video: {WHERE}")
        source = root / "gaze" / f"{uid}.csv"
        if not source.is_file():
            raise DataError(f"video {uid} in {root} is video without gaze: {WHERE}")
        gaze = read_gaze(source, away.get(uid, []))
        if uid in whole:
            out.append(Recording(uid, uid, gaze, whole[uid], session=uid))
            continue
        for path in clips[uid]:
            start = float(Clip.parse(path.name).start_s)
            own = gaze.select(np.ones(len(gaze), bool), start)
            out.append(Recording(path.stem, uid, own, path, session=uid, start_s=start))
    return out


def read_gaze(path: Path, untracked: Sequence[tuple[float, float]] = ()) -> Gaze:
    """Read the gaze of one video; `t_s` is its canonical time, `untracked` its intervals (s).

    A sample is SACCADE where gaze moved more than 40 px (1088 x 1080) within one frame (1/30 s).

    Raises:
        DataError: another version of the format, or NaN in a sample that counts as tracked.
    """
    needed = ["canonical_timestamp_s", "confidence", "norm_pos_x", "norm_pos_y"]
    table = read_table(path, needed, "Ego4D gaze CSV")
    t, confidence = table.floats("canonical_timestamp_s"), table.floats("confidence")
    x, y = table.floats("norm_pos_x"), 1 - table.floats("norm_pos_y")
    tracked = confidence >= MIN_CONFIDENCE
    for start, end in untracked:
        tracked &= (t < start) | (t > end)
    frames = table.integers("world_index", empty=-1) if "world_index" in table else -1
    return Gaze.build(
        str(path),
        t,
        x,
        y,
        tracked=tracked,
        event=_events(t, x, y),
        confidence=confidence,
        source_frame=frames,
        sort=True,
    )


def _events(
    t: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> NDArray[np.int8]:
    if not len(t):
        return np.zeros(0, np.int8)
    order = np.argsort(t, kind="stable")
    times = t[order]
    before = np.maximum(np.searchsorted(times, times - FRAME_S - 1e-6, "left"), 0)
    px = np.stack([x[order] * WIDTH, y[order] * HEIGHT], 1)
    moved = np.linalg.norm(px - px[before], axis=1)
    # A comparison with NaN is False: what cannot be told to have moved stays a fixation.
    events = np.empty(len(t), np.int8)
    events[order] = np.where(moved > SACCADE_PX, Event.SACCADE, Event.FIXATION)
    return events


def read_clip_list(path: Path) -> list[Clip]:
    """Read a list of `UID/UID_tSTART_tEND.mp4` lines.

    Raises:
        DataError: the list is missing, or a line is not a clip.
    """
    if not path.is_file():
        raise DataError(f"clip list {path} is missing")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Clip.parse(line) for line in lines if line.strip()]


def read_untracked(path: Path) -> Intervals:
    """Read the untracked intervals (video, hh:mm:ss, hh:mm:ss, reason): uid -> [(start, end)] s.

    Raises:
        DataError: the list is missing or a row is damaged.
    """
    out: Intervals = {}
    if not path.is_file():
        raise DataError(f"list of untracked intervals {path} is missing")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    for number, row in enumerate(rows, 1):
        try:
            start, end = (_seconds(cell) for cell in row[1:3])
        except ValueError:
            raise DataError(
                f"{path}: row {number} is not video, hh:mm:ss, hh:mm:ss, reason; copy it again"
            ) from None
        out.setdefault(row[0], []).append((start, end))
    return out


def _seconds(clock: str) -> float:
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return float((hours * 60 + minutes) * 60 + seconds)


def check(root: Path) -> list[Check]:
    """Compare clip lists (where there are any), videos and gaze files with the published totals."""
    out = []
    published = {"train": (TRAIN_CLIPS, TRAIN_VIDEOS), "test": (TEST_CLIPS, TEST_VIDEOS)}
    for part, (clips, videos) in published.items():
        path = root / f"{part}_ego4d_gaze.csv"
        if path.is_file():
            listed = read_clip_list(path)
            out.append(compare(f"clips in {path.name}", len(listed), clips, WHERE))
            out.append(
                compare(f"videos in {path.name}", len({c.video for c in listed}), videos, WHERE)
            )
    if (root / UNTRACKED_LIST).is_file():
        spans = [s for row in read_untracked(root / UNTRACKED_LIST).values() for s in row]
        out.append(compare("untracked intervals", len(spans), UNTRACKED))
        seconds = int(sum(end - start for start, end in spans))
        out.append(compare("untracked seconds", seconds, UNTRACKED_S))
    whole = {p.stem for p in (root / "full_scale.gaze").glob("*.mp4")}
    cut = {Clip.parse(p.name).video for p in (root / "clips.gaze").rglob("*.mp4")}
    both = TRAIN_VIDEOS + TEST_VIDEOS
    out.append(compare("videos", len(whole | cut), both, WHERE))
    out.append(compare("gaze files", len(list((root / "gaze").glob("*.csv"))), both, WHERE))
    return out
