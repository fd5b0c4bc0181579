"""Readers of the usual h5 files of SumMe and TVSum, with people's ratings, and of files of splits.

Each data set is one h5 file. It has a group for each video (`video_1`, `video_2`), with these
arrays:

    n_frames       scalar             frames of the video
    picks          [steps]            the sampled frames, every 15th, from frame 0 on
    gtscore        [steps]            mean of the people's choices or ratings, scaled to [0, 1]
    user_summary   [users, n_frames]  0/1, or instead
    user_anno      [users, n_frames]  ratings 1 to 5
    change_points  [shots, 2]         first and last frame of each shot, both included; optional
    features       [steps, d]         of the sampled frames; optional
    video_name     text               the video's name, as data set or attribute; optional
    category       text               the video's category, as data set or attribute; optional
    gtsummary, n_frame_per_seg, n_steps: not read

The files known as eccv16_dataset_summe_google_pool5.h5 and eccv16_dataset_tvsum_google_pool5.h5
have this layout. The annotations as the authors published them are read too
(`video_summaries.annotations`); they have neither features nor shots. A file of splits is a JSON
list of `{"train_keys": [...], "test_keys": [...]}`. In the usual five splits, test sets overlap and
some videos are never tested. In files of non-overlapping splits, every video is tested once.

Licence: SumMe's annotations are for research only, TVSum's videos are CC BY 3.0; none is packaged.
Used by `data.video_summaries.clients`, `data.video_summaries.summe`, `data.video_summaries.tvsum`
and `tasks.summary`.

Source: Gygli et al., "Creating summaries from user videos", ECCV 2014; Song et al., "TVSum:
summarizing web videos using titles", CVPR 2015; layout of Zhang et al., ECCV 2016.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from vergence.core.files import parse_json
from vergence.data.io.checks import need_file
from vergence.data.io.hdf5_files import Hdf5Reader, open_hdf5
from vergence.data.video_summaries.annotations import PLACES, Original, originals
from vergence.errors import DataError

# Two sampled frames a second of videos with about 30 frames a second.
EVERY, RATINGS = 15, (1, 5)
"""The usual step between sampled frames, in frames, and the range of TVSum's ratings."""
WHERE = "give the h5 of SumMe or TVSum in the usual layout (docs/how-to/summaries.md)"


@dataclass(frozen=True, eq=False)
class Summarised:
    """A video's annotations and features.

    Attributes:
        name: the video's name, or its key in the file if the file has no name.
        picks: frame numbers of the sampled frames.
        mean_score: mean over people of their scores for each sampled frame, in [0, 1].
        users: for each person and frame, whether it is in the summary (0 or 1), or a rating (1 to
            5).
        rated: whether `users` holds ratings.
        shots: first and last frame of each shot; None if the file has no shots.
        features: feature vector of each sampled frame; None if the file has no features.
        category: TVSum's category; "" if the file has none.
    """

    name: str
    picks: Int[np.ndarray, " steps"]
    mean_score: Float[np.ndarray, " steps"]
    users: UInt8[np.ndarray, "users frames"]
    rated: bool
    shots: Int[np.ndarray, "shots 2"] | None
    features: Float[np.ndarray, "steps d"] | None
    category: str

    @property
    def frames(self) -> int:
        """Number of frames of the video."""
        return self.users.shape[1]


@dataclass(frozen=True)
class SplitLists:
    """Keys of the videos for training and for test in one split."""

    train: tuple[str, ...]
    test: tuple[str, ...]


def read_videos(path: Path) -> dict[str, Summarised]:
    """Return key -> video of an h5 file, in the order of the numbers in the keys.

    `path` may also be annotations as the authors published them. Their keys are then video_1,
    video_2 and so on, in the annotations' order, and every 15th frame is a pick.

    Raises:
        ConfigError: h5py is not installed.
        DataError: the file is missing or damaged, or a video lacks an array or has arrays that do
            not fit.
    """
    if path.is_dir() or path.suffix in (".tsv", ".mat"):
        return {f"video_{i}": _sampled(video) for i, video in enumerate(originals(path), 1)}
    with open_hdf5(path, "reading annotations", WHERE) as reader:
        # By number, as video_10 follows video_9 and not video_1.
        keys = sorted(sorted(reader.file), key=key_number)
        groups = {key: reader.group(reader.file, key) for key in keys}
        videos = {key: _video(reader, key, group) for key, group in groups.items() if group}
    if not videos:
        raise DataError(f"{path} holds no videos (groups such as video_1): {WHERE}")
    return videos


def file_of(root: Path, name: str) -> Path:
    """Return the path of the data of `summe` or `tvsum` in a folder.

    It is the h5 file or, if there is none, the annotations as the authors published them.

    Raises:
        DataError: the folder has neither.
    """
    names = [f"{name}_annotations.h5", f"eccv16_dataset_{name}_google_pool5.h5", *PLACES[name]]
    for path in (root / file for file in names):
        if path.exists():
            return path
    raise DataError(f"{root} has neither {' nor '.join(names[:3])}: {WHERE}")


def read_splits(path: Path, known: Collection[str]) -> list[SplitLists]:
    """Return the splits of a JSON file; `known` are the keys of all videos.

    Raises:
        DataError: the file is missing or of another kind. A split names a video that is not in
            `known`, tests on nothing, or tests on a video on which it trains.
    """
    hint = 'give a JSON list of {"train_keys": [...], "test_keys": [...]}'
    need_file(path, hint)
    try:
        splits = [
            SplitLists(tuple(row["train_keys"]), tuple(row["test_keys"]))
            for row in parse_json(path.read_text(encoding="utf-8"))
        ]
    except (ValueError, KeyError, TypeError) as fault:
        raise DataError(f"{path} is no file of splits ({fault}): {hint}") from fault
    for i, split in enumerate(splits):
        if unknown := sorted({*split.train, *split.test} - set(known)):
            raise DataError(f"{path}: split {i} names {unknown[0]}, which the h5 file lacks")
        both = sorted(set(split.train) & set(split.test))
        if both or not split.test:
            what = f"trains and tests on {both[0]}" if both else "tests on nothing"
            raise DataError(f"{path}: split {i} {what}; {hint}, without common videos")
    return splits


def _sampled(original: Original) -> Summarised:
    low, high = RATINGS if original.rated else (0, 1)
    picks = np.arange(0, original.users.shape[1], EVERY)
    return Summarised(
        original.name,
        picks,
        (original.users[:, picks].mean(0) - low) / (high - low),
        original.users,
        original.rated,
        None,
        None,
        original.category,
    )


def _video(reader: Hdf5Reader, key: str, group: Any) -> Summarised:
    there = set(group)
    lacking = [name for name in ("n_frames", "picks", "gtscore") if name not in there]
    kinds = [name for name in ("user_summary", "user_anno") if name in there]
    if lacking or not kinds:
        missing = ", ".join([*lacking, *([] if kinds else ["user_summary or user_anno"])])
        raise reader.fault(f"{key} lacks {missing}")
    shots, features = (
        np.asarray(reader.array(group, name), kind) if name in there else None
        for name, kind in (("change_points", np.int64), ("features", np.float32))
    )
    video = Summarised(
        reader.text(group, "video_name") or key,
        np.asarray(reader.array(group, "picks"), np.int64),
        np.asarray(reader.array(group, "gtscore"), np.float64).ravel(),
        np.asarray(reader.array(group, kinds[0]), np.uint8),
        kinds[0] == "user_anno",
        shots,
        features,
        reader.text(group, "category"),
    )
    _agree(f"{reader.path}: {key}", video, int(reader.array(group, "n_frames")))
    return video


def _agree(where: str, video: Summarised, frames: int) -> None:
    """Check that a video's arrays fit each other and its number of frames.

    Raises:
        DataError: the arrays do not fit; the message begins with `where`.
    """
    picks, shots = video.picks, video.shots
    if video.users.ndim != 2 or not len(video.users) or video.frames != frames:
        raise DataError(f"{where} has n_frames {frames}, its people's rows are {video.users.shape}")
    if picks.ndim != 1 or not len(picks) or len(video.mean_score) != len(picks):
        raise DataError(
            f"{where} has picks {picks.shape} and gtscore {video.mean_score.shape}, needs one of "
            "each for every sampled frame"
        )
    # Frames before the first pick would be in no fragment, and in no shot where shots are found.
    bad = np.append(picks[0] != 0, np.diff(picks) < 1) | (picks >= frames)
    if bad.any():
        i = int(bad.argmax())
        place = f"after {picks[i - 1]}" if i else "first"
        raise DataError(
            f"{where} has in picks {picks[i]} {place}, must ascend from 0 to at most {frames - 1}"
        )
    if video.features is not None and (video.features.ndim, len(video.features)) != (2, len(picks)):
        raise DataError(f"{where} has {len(picks)} picks and features {video.features.shape}")
    if shots is not None:
        if shots.ndim != 2 or shots.shape[1] != 2 or not len(shots):
            raise DataError(
                f"{where} has change_points {shots.shape}, needs [shots, 2] with one shot or more"
            )
        first, last = shots.T
        bad = (first != np.append(0, last[:-1] + 1)) | (last < first)
        bad[-1] |= last[-1] != frames - 1
        if bad.any():
            i = int(bad.argmax())
            raise DataError(
                f"{where}: change_points row {i} is {first[i]} to {last[i]}, must cover frames 0 "
                f"to {frames - 1} without gap or overlap; both ends of a shot are included"
            )


def key_number(key: str) -> int:
    """Return the number at the end of a video's key, such as 7 of video_7; 0 if it has none."""
    return int("".join(re.findall(r"(?:^|_)(\d+)$", key)) or 0)
