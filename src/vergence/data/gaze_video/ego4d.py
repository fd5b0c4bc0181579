"""Ego4D gaze: social scenes, Pupil Invisible glasses, 30 frames a second, one wearer per video.

GLC is the gaze model of Lai et al., whose repository BolinLai/GLC publishes lists of clips. `root`
holds `gaze/UID.csv` beside `gaze/manifest.csv`, and videos in one of two layouts. In the official
tool's layout (`ego4d --output_directory DIR --datasets full_scale gaze`; root is DIR/v2), videos
are `full_scale/UID.mp4`, and videos without gaze are skipped. In GLC's layout, videos are
`full_scale.gaze/UID.mp4`, or 5 s clips `clips.gaze/UID/UID_tSTART_tEND.mp4`. If `root` has
`ego4d_gaze_untracked.csv` (video, start, end, reason), gaze in these intervals is left out. With
`split = "official"`, `root` must hold GLC's lists of clips too. Each video uid is a client. In the
tables, gaze has its origin at the bottom left, and `world_index` is written as a float (`10583.0`).
Gaze is matched to frames by time, never by frame number.

In GLC's list of untracked intervals, row 21 ends before it starts (2:15 to 0:22). This interval
leaves no gaze out, as in GLC's code. It counts -113 s in the published total of 3158 s.

The reader was written from the published description and sample, and not tried on original files.

Licence: signed individually; not redistributable.

Source: Grauman et al., "Ego4D: around the world in 3,000 hours of egocentric video", CVPR 2022; the
sample of a gaze table at https://ego4d-data.org/docs/data/gaze/; the saccade rule (more than 40 px
between frames) and the four videos left out are taken from BolinLai/GLC.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vergence.core.federation import Dataset, Federation
from vergence.core.naming import by_key
from vergence.data.gaze_video.gaze import Event, Gaze
from vergence.data.gaze_video.official_split import (
    ListedClip,
    OfficialClips,
    OfficialOptions,
    check_clients,
    dealt_federation,
    need_list,
)
from vergence.data.gaze_video.published_clip_counts import paper_counts
from vergence.data.gaze_video.recording import Recording, check_videos
from vergence.data.gaze_video.temporal_splits import TEST, TRAIN
from vergence.data.io.checks import (
    Check,
    CheckedFolder,
    Checks,
    compare,
    data_folder,
    unreadable_check,
    with_progress,
)
from vergence.data.io.delimited_text import DelimitedTable, listed_lines, read_table
from vergence.errors import DataError

WIDTH, HEIGHT, FRAME_S = 1088, 1080, 1 / 30
# GLC's rule: more than 40 px from one frame to the next is a saccade.
SACCADE_PX = 40
MIN_CONFIDENCE = 0.6
TRAIN_CLIPS, TEST_CLIPS, TRAIN_VIDEOS, TEST_VIDEOS = 15_310, 5202, 20, 7
UNTRACKED, UNTRACKED_S = 73, 3158
LISTS = "train_ego4d_gaze.csv", "test_ego4d_gaze.csv"
UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CLIP = re.compile(rf"({UID.pattern})_t(\d{{1,6}})_t(\d{{1,6}})(?:\.mp4)?")
UNTRACKED_LIST = "ego4d_gaze_untracked.csv"
AGAIN = "download the table again"
LEFT_OUT = (
    "4e07da0c-450f-4c37-95e9-e793cb5d8f7f",
    "5819e52c-4e12-4f86-ad69-76fc215dfbcb",
    "83081c5a-8456-44d8-af67-280034f8f0a6",
    "a77682da-cae7-4e68-8580-6cb47658b23f",
)
"""Videos with gaze that GLC's lists leave out; they are read only if `people` names them."""
WHERE = (
    "holders of the signed licence get videos (full_scale/UID.mp4) and gaze (gaze/UID.csv) with "
    "the Ego4D tool (ego4d --output_directory DIR --datasets full_scale gaze --video_uids UID "
    "...; root is then DIR/v2), see https://ego4d-data.org/docs/data/gaze/"
)
ABOUT = {
    "licence": "Ego4D licence, signed individually; not redistributable",
    "citation": "Grauman et al.: Ego4D: around the world in 3,000 hours of egocentric video. "
    "CVPR 2022",
}
TRIED = (
    "the paper tests on a fifth of its clips; the lists test on a quarter of theirs, of 7 videos"
)
Intervals = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Ego4DClip:
    """One official clip: uid of its video, start and end in seconds from the video's start."""

    video: str
    start_s: int
    end_s: int

    @staticmethod
    def parse(name: str) -> Ego4DClip:
        """Return the clip of a file name `UID_tSTART_tEND`, with or without folder and `.mp4`.

        Raises:
            DataError: the name is not that of an Ego4D gaze clip.
        """
        if not (match := CLIP.fullmatch(name.strip().rsplit("/", 1)[-1])):
            raise DataError(f"'{name}' is not an Ego4D gaze clip name (UID_tSTART_tEND.mp4)")
        return Ego4DClip(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True)
class Ego4d(OfficialOptions, CheckedFolder, Dataset):
    """Windows of Ego4D gaze videos; a video, which has one wearer, is a client.

    With the option `clients`, several videos together are a client.
    """

    short: Literal["error", "skip"] = "skip"

    unit: ClassVar[str] = "videos"

    def recordings(self, root: Path) -> Sequence[Recording]:
        """Return a folder's recordings of the videos in `people`; see function `recordings`."""
        return recordings(root, self.people)

    def load(self, root: str | None = None) -> Federation:
        """Read the videos, cut them into windows, and split in time or by the official lists.

        The lists have some videos for training and other videos for testing. So with
        `split = "official"`, a client is tested on wearers on whom it did not train.

        Raises:
            ConfigError: an option is out of range.
            DataError: a file is missing or damaged; the message says where a licence holder gets
                it. A video is too short for the split. A client has no windows for a part of the
                split.
        """
        folder = data_folder(root, "ego4d", WHERE)
        official = read_official(folder) if self.split == "official" else None
        read = recordings(folder, self.people)
        listed = (folder / UNTRACKED_LIST).is_file()
        note = f"intervals of {UNTRACKED_LIST} left out" if listed else f"no {UNTRACKED_LIST}"
        about = {**ABOUT, "untracked": note}
        if skipped := sorted(set(LEFT_OUT) & set(gaze_tables(folder)) - set(self.people)):
            about["videos"] = f"as in GLC's lists, without {', '.join(skipped)}"
        return dealt_federation(self, read, folder, about, official)

    def check(self, root: Path) -> list[Check]:
        """Compare a folder with the published numbers; return the lines of `vergence data check`.

        The last lines list the videos of each client.
        """
        videos = {*_gaze_folder(root)[0]} - ({*LEFT_OUT} - {*self.people})
        return [*check(root), *check_clients(self, videos, lambda: read_official(root))]


def gaze_tables(root: Path) -> dict[str, Path]:
    """Return video uid -> gaze table in `root/gaze`, without the download tool's manifest.

    Raises:
        DataError: a table's name is not a video uid, or a table has the ending .mp4.
    """
    tables, misnamed = _gaze_folder(root)
    if misnamed:
        raise DataError(misnamed[0])
    return tables


def _gaze_folder(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Return uid -> gaze table, and an error message for each table with a wrong name."""
    tables, misnamed = {}, []
    for path in sorted((root / "gaze").glob("*")):
        if path.suffix == ".mp4":
            misnamed.append(
                f"{path} is a gaze table under the name of a video, as early versions of the "
                "Ego4D tool saved them: rename it to UID.csv, or download gaze again"
            )
        elif UID.fullmatch(path.stem) and path.suffix == ".csv":
            tables[path.stem] = path
        elif (
            path.suffix == ".csv" and path.name != "manifest.csv" and not path.name.startswith(".")
        ):
            misnamed.append(
                f"{path} is not named by a video uid (8-4-4-4-12 digits 0 to 9, a to f), so its "
                "video cannot be found: give it its name back, or move it out of gaze/"
            )
    return tables, misnamed


def gaze_videos(
    root: Path, tables: Collection[str]
) -> tuple[dict[str, Path], dict[str, list[Path]]]:
    """Return two tables: uid -> whole video, and uid -> list of clips of a video.

    `tables` are the uids with a gaze table; other videos in the folder `full_scale` are ignored.

    Raises:
        DataError: a file name in `clips.gaze` is not that of a clip.
    """
    # The folder full_scale may hold all of Ego4D: only videos with a gaze table count there.
    whole = {p.stem: p for p in (root / "full_scale").glob("*.mp4") if p.stem in tables}
    whole |= {p.stem: p for p in (root / "full_scale.gaze").glob("*.mp4")}
    paths = sorted((root / "clips.gaze").rglob("*.mp4"))
    clips = by_key((Ego4DClip.parse(path.name).video, path) for path in paths)
    return whole, clips


def recordings(root: Path, people: Sequence[str] = ()) -> list[Recording]:
    """Return one recording per video, or one per clip if only clips of the video are there.

    With `people`, only these video uids are read. Without, all are read except the four in
    `LEFT_OUT`.

    Raises:
        DataError: there is no video at all, a video has no gaze table, a gaze table has no video,
            or a uid in `people` has neither.
    """
    tables = gaze_tables(root)
    whole, clips = gaze_videos(root, tables)
    if not (uids := sorted({*whole, *clips, *tables})):
        raise DataError(f"no videos or gaze in {root}{_version_folder_hint(root)}: {WHERE}")
    if unknown := sorted(set(people) - set(uids)):
        raise DataError(
            f"{root} has neither gaze nor video of {', '.join(unknown)}; it has those of "
            f"{', '.join(uids)}"
        )
    untracked = _untracked(root)
    out = []
    for uid in uids:
        if uid not in people if people else uid in LEFT_OUT:
            continue
        if uid not in whole and uid not in clips:
            raise DataError(
                f"gaze/{uid}.csv in {root} is gaze without video: get the video, or name those "
                f"whose videos are there as people; {WHERE}"
            )
        if uid not in tables:
            raise DataError(f"video {uid} in {root} is video without gaze: {WHERE}")
        gaze = read_gaze(tables[uid], untracked.get(uid, []))
        if uid in whole:
            out.append(Recording(uid, uid, gaze, whole[uid], session=uid))
            continue
        for path in clips[uid]:
            start = float(Ego4DClip.parse(path.name).start_s)
            own = gaze.select(np.ones(len(gaze), bool), start)
            out.append(Recording(path.stem, uid, own, path, session=uid, start_s=start))
    return out


def _version_folder_hint(root: Path) -> str:
    """Return a hint for an error message; "" unless the data are in a subfolder v2 or v1."""
    versions = [root / name for name in ("v2", "v1") if (root / name / "gaze").is_dir()]
    return f", but in {versions[0]}, the root to give" if versions else ""


def read_gaze(path: Path, untracked: Sequence[tuple[float, float]] = ()) -> Gaze:
    """Read the gaze of one video; times are seconds on the video's clock.

    `untracked` holds (start, end) in seconds of intervals whose samples count as untracked. A
    sample is a SACCADE if gaze moved more than 40 px within one frame (1/30 s), in a frame of 1088
    x 1080 px.

    Raises:
        DataError: the table is of another version, or a cell is not a number.
    """
    needed = ["canonical_timestamp_s", "confidence", "norm_pos_x", "norm_pos_y"]
    table = read_table(path, needed, "Ego4D gaze CSV")
    t, confidence = table.floats("canonical_timestamp_s"), table.floats("confidence")
    table.refuse("canonical_timestamp_s", ~np.isfinite(t), f"not a time in seconds; {AGAIN}")
    table.refuse("confidence", (confidence < 0) | (confidence > 1), f"not between 0 and 1; {AGAIN}")
    tracked = confidence >= MIN_CONFIDENCE
    for start, end in untracked:
        tracked &= (t < start) | (t > end)
    x, y = table.floats("norm_pos_x"), 1 - table.floats("norm_pos_y")
    for name, values in zip(needed[2:], (x, y), strict=True):
        table.refuse(name, tracked & np.isinf(values), f"not a place, in a tracked sample; {AGAIN}")
    return Gaze.build(
        str(path),
        t,
        x,
        y,
        tracked=tracked,
        event=_events(t, x, y),
        confidence=confidence,
        source_frame=_frames(table),
        sort=True,
    )


def _frames(table: DelimitedTable) -> NDArray[np.int64] | int:
    """Return the world index of every sample, int64, or -1 for all if the column is missing.

    A sample without an index gets -1. The table writes an index as a float, such as `10583.0`.

    Raises:
        DataError: an index is not a whole number of 0 or more.
    """
    if "world_index" not in table:
        return -1
    index = table.floats("world_index")
    none = np.isnan(index)
    # int64 would take a float beyond its range without a fault, and make another number of it.
    whole = (index >= 0) & (index < 2**31) & (np.floor(index) == index)
    table.refuse("world_index", ~(none | whole), f"not the number of a frame; {AGAIN}")
    return np.where(none, -1, index).astype(np.int64)


def _events(
    t: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> NDArray[np.int8]:
    if not len(t):
        return np.zeros(0, np.int8)
    order = np.argsort(t, kind="stable")
    times = t[order]
    # A microsecond more than a frame: times are rounded, and the sample one frame before counts.
    before = np.maximum(np.searchsorted(times, times - FRAME_S - 1e-6, "left"), 0)
    with np.errstate(over="ignore", invalid="ignore"):
        px = np.stack([x[order] * WIDTH, y[order] * HEIGHT], 1)
        moved = np.linalg.norm(px - px[before], axis=1)
    # A comparison with NaN is False: a sample without a place stays a fixation.
    events = np.empty(len(t), np.int8)
    events[order] = np.where(moved > SACCADE_PX, Event.SACCADE, Event.FIXATION)
    return events


def read_clip_list(path: Path) -> list[Ego4DClip]:
    """Return the clips of a list with lines `UID/UID_tSTART_tEND.mp4`.

    Raises:
        DataError: the list is missing or not text, or a line is not a clip.
    """
    return [Ego4DClip.parse(line) for line in listed_lines(path, "clip list") if line]


def read_official(root: Path) -> OfficialClips:
    """Read GLC's two lists of clips in `root`, for training and for testing.

    Raises:
        DataError: a list is missing or damaged; the message says where to get it.
    """
    clips = [
        ListedClip(
            f"{clip.video}_t{clip.start_s}_t{clip.end_s}",
            clip.video,
            clip.video,
            float(clip.start_s),
            float(clip.end_s),
            part,
        )
        for name, part in zip(LISTS, (TRAIN, TEST), strict=True)
        for clip in read_clip_list(need_list(root / name))
    ]
    return OfficialClips(LISTS, clips)


def read_untracked(path: Path) -> Intervals:
    """Return uid -> list of untracked intervals (start, end), in seconds of the video.

    A line of the file is: video, start as hh:mm:ss, end as hh:mm:ss, reason. In the published file,
    row 21 ends before it starts (2:15 to 0:22). This interval stays in the result, and leaves no
    gaze out, as in GLC's code.

    Raises:
        DataError: the list is missing or a row is damaged.
    """
    out: Intervals = {}
    for number, line in enumerate(listed_lines(path, "list of untracked intervals"), 1):
        if not line:
            continue
        try:
            video, start, end = _interval(line)
        except ValueError:
            raise DataError(
                f"{path}: row {number} is not video, hh:mm:ss, hh:mm:ss, reason; copy it again"
            ) from None
        out.setdefault(video, []).append((start, end))
    return out


def _untracked(root: Path) -> Intervals:
    return read_untracked(root / UNTRACKED_LIST) if (root / UNTRACKED_LIST).is_file() else {}


def _interval(line: str) -> tuple[str, float, float]:
    video, start, end, *_ = re.split("[,;\t]", line)
    if not UID.fullmatch(video):
        raise ValueError
    return video, _seconds(start), _seconds(end)


def _seconds(clock: str) -> float:
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return float((hours * 60 + minutes) * 60 + seconds)


def check(root: Path) -> list[Check]:
    """Compare lists, videos and gaze with the published numbers; return the lines of a check.

    Every gaze table is read to its end.
    """
    return [*_check_lists(root), *_check_files(root), *_check_tables(root)]


def _check_lists(root: Path) -> list[Check]:
    out, counts = Checks(), {}
    published = {"train": (TRAIN_CLIPS, TRAIN_VIDEOS), "test": (TEST_CLIPS, TEST_VIDEOS)}
    with out.reading("lists"):
        for name, (part, (clips, videos)) in zip(LISTS, published.items(), strict=True):
            path = root / name
            if path.is_file():
                listed = read_clip_list(path)
                counts[part] = len(listed)
                count = len({c.video for c in listed})
                out.append(compare(f"clips in {path.name}", len(listed), clips, WHERE))
                out.append(compare(f"videos in {path.name}", count, videos, WHERE))
        if spans := [span for row in _untracked(root).values() for span in row]:
            out.append(compare("untracked intervals", len(spans), UNTRACKED))
            seconds = int(sum(end - start for start, end in spans))
            out.append(compare("untracked seconds", seconds, UNTRACKED_S))
    return [*out, paper_counts("ego4d", counts, tried=TRIED)]


def _check_files(root: Path) -> list[Check]:
    tables, misnamed = _gaze_folder(root)
    out = Checks(unreadable_check("gaze file", line) for line in misnamed)
    whole, clips = {}, {}
    with out.reading("clips"):
        whole, clips = gaze_videos(root, tables)
    used, videos = set(tables) - set(LEFT_OUT), {*whole, *clips} - set(LEFT_OUT)
    both, hint = TRAIN_VIDEOS + TEST_VIDEOS, f"{WHERE}{_version_folder_hint(root)}"
    left_out, no_video, no_gaze = len(tables) - len(used), used - videos, videos - used
    return [
        *out,
        compare("videos", len(videos), both, hint),
        compare("gaze files", len(used), both, hint),
        Check("gaze files that GLC leaves out", str(left_out), f"0 to {len(LEFT_OUT)}", True),
        compare(
            "gaze files without video", len(no_video), 0, f"{', '.join(sorted(no_video))}; {WHERE}"
        ),
        compare(
            "videos without gaze file", len(no_gaze), 0, f"{', '.join(sorted(no_gaze))}; {WHERE}"
        ),
        *check_videos([*whole.values(), *chain(*clips.values())]),
    ]


def _check_tables(root: Path) -> list[Check]:
    tables, _ = _gaze_folder(root)
    out, untracked, read, valid, samples = Checks(), {}, 0, 0, 0
    # The check of lists reports a damaged list.
    with suppress(DataError):
        untracked = _untracked(root)
    for path in with_progress(list(tables.values()), "gaze tables"):
        with out.reading(f"gaze/{path.name}"):
            gaze = read_gaze(path, untracked.get(path.stem, []))
            if not gaze.valid.any():
                raise DataError(f"{path}: none of its {len(gaze)} samples is valid gaze; {WHERE}")
            read, valid, samples = read + 1, valid + int(gaze.valid.sum()), samples + len(gaze)
    out.append(compare("gaze files read to the end", read, len(tables)))
    return [*out, Check("valid gaze", f"{valid:,} of {samples:,}", "1 or more", valid > 0)]
