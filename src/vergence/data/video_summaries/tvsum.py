"""TVSum: 50 videos in ten categories, rated by 20 people, cut into fragments for made-up clients.

Layout of `root`: the usual file `eccv16_dataset_tvsum_google_pool5.h5`, with features (extra
`hdf5`). With the option `keyframes`, it is `tvsum_keyframes_effnetlite0.npz` instead (features
[frames, d], video, frame, user_anno [frames, people]).

Licence: videos CC BY 3.0, annotations for research; not packaged. Source: Song et al., "TVSum:
summarizing web videos using titles", CVPR 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Interval

from vergence.core.federation import Dataset, Federation
from vergence.data.io.checks import data_folder, read_npz
from vergence.data.video_summaries.clients import FOLDS, Deal, Labelled, clip_of
from vergence.data.video_summaries.fragments import RatedClip, favourites
from vergence.data.video_summaries.h5_files import (
    WHERE,
    Summarised,
    file_of,
    key_number,
    read_videos,
)
from vergence.errors import ConfigError, DataError

CATEGORIES = ("VT", "VU", "GA", "MS", "PK", "PR", "FM", "BK", "BT", "DS")
# The usual files do not name the category, but its videos follow each other.
EACH = 5
"""Number of videos of a category."""
GROUPS = {
    "vehicles": (
        *("98MoyGZKHXc", "XzYM3PfTM4w", "akI8YFjEmUw", "sTEELN-vY30"),
        *("JgHubY5Vw3Y", "iVt07TCkFM0"),
    ),
    "animals and food": (
        *("0tmA_C6XwfM", "xxdtq8mxegs", "37rzWOQsNIw", "Hl-__g2gn_A"),
        *("EE-bNr36nyA", "Se3oxnaPsz0", "-esJrBWj2d8", "kLxoNp-UchI"),
    ),
    "crowds and sport": (
        *("4wU_LUjG5Ic", "91IHQYk1IQM", "GsAD1KT1xo8", "XkqCExn6_Us"),
        *("_xMr-HKMfVA", "byxOvuiIJV0"),
    ),
}
"""Classes of ours of the 20 videos: TVSum's categories VT, VU, BT; GA, MS, BK, DS; PK, PR, FM."""
KEYFRAMES = "tvsum_keyframes_effnetlite0.npz"
KEYFRAME_FEATURES = "efficientnet-lite0 head, 128 px"


@dataclass(frozen=True)
class TVSum(Dataset):
    """Fragments of videos with people's summaries, or key frames of 20 videos with ratings.

    Attributes:
        people: number of made-up clients.
        classes: number of categories of each client, among ten; with 10, clients are nearly alike.
            With `keyframes` a category has only two videos: there is one class, or with `grouped`
            there are three.
        samples: number of fragments into which all videos together are cut.
        least: fewest steps of a fragment; a second has two steps.
        keyframes: whether to use the published key frames of 20 videos instead. Each video is then
            a clip, and each frame a shot. The key frames were chosen at extremes of the ratings, so
            scores must not be compared with those on whole videos.
        grouped: with `keyframes`, whether videos have the classes `GROUPS`. Those for training are
            then cut into fragments of two key frames or more, `samples` of all videos together;
            those for validation and test stay whole, and belong to everybody who has their class.
        fold: which fifth of each class is for test, from 0 to 4; None: drawn by `split_seed`.
        split_seed: seed of the cuts and of the division among clients.
    """

    people: Annotated[int, Ge(1)] = 10
    classes: Annotated[int, Ge(1)] = 1
    samples: Annotated[int, Ge(1)] = 150
    least: Annotated[int, Ge(2)] = 10
    keyframes: bool = False
    grouped: bool = False
    fold: Annotated[int, Interval(ge=0, lt=FOLDS)] | None = None
    split_seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the videos, cut them into fragments, and divide these among clients.

        The columns of the samples are those of `fragments.samples_of`.

        Raises:
            DataError: the file is missing or damaged, or lacks features; or with `grouped` a
                video of unknown class.
            ConfigError: there are too few videos or fragments for the options, or they contradict
                each other.
        """
        if self.grouped and not self.keyframes:
            raise ConfigError(
                "tvsum: grouped = true is for key frames; set keyframes = true, or drop grouped: "
                "whole videos have ten categories"
            )
        folder = data_folder(root, "tvsum", WHERE)
        path = folder / KEYFRAMES if self.keyframes else file_of(folder, "tvsum")
        videos: Labelled
        if self.keyframes:
            videos = {
                name: (clip, group_of(name) if self.grouped else "any")
                for name, clip in keyframes(path).items()
            }
        else:
            videos = {
                key: (clip_of(video, str(path)), category(key, video, str(path)))
                for key, video in read_videos(path).items()
            }
        # A video has few key frames, and stays whole unless it is to be cut: one clip per video.
        least = 2 if self.keyframes else self.least
        samples = len(videos) if self.keyframes and not self.grouped else self.samples
        deal = Deal(
            "tvsum",
            samples,
            self.people,
            self.classes,
            least,
            self.split_seed,
            self.fold,
            self.grouped,
        )
        about = {
            "licence": "videos CC BY 3.0, annotations for research",
            "citation": "Song et al., TVSum, CVPR 2015",
            "split": f"{samples} fragments, {self.classes} classes a person; test and validation "
            "by video, a fifth of each class",
            "judged": "tvsum",
            "features": KEYFRAME_FEATURES if self.keyframes else f"of {path.name}",
        }
        return Federation("tvsum", deal.splits(videos), about)


def group_of(video: str) -> str:
    """Return the class in `GROUPS` of one of the 20 videos with key frames.

    Raises:
        DataError: another video.
    """
    for name, videos in GROUPS.items():
        if video in videos:
            return name
    raise DataError(
        f"tvsum: video '{video}' is none of the 20 whose class is known; set grouped = false"
    )


def category(key: str, video: Summarised, where: str) -> str:
    """Return a video's category, from the file or else by the number in the video's key.

    `where` names the file in messages.

    Raises:
        DataError: the file has no category of the video, and the key has no number of TVSum's.
    """
    number, most = key_number(key), EACH * len(CATEGORIES)
    if not video.category and not 1 <= number <= most:
        raise DataError(
            f"{where}: {key} has no category, and its key is none of video_1 to video_{most}, by "
            "which categories are known: add category, or name the videos by TVSum's numbers"
        )
    return video.category or CATEGORIES[(number - 1) // EACH]


def keyframes(path: Path) -> dict[str, RatedClip]:
    """Return video -> its key frames as a clip, in which each frame is a shot.

    The target is the mean rating, scaled from 1 to 5 to [0, 1]. A person's summary is the best
    rated frames, up to the fraction `SHARE` of all frames.

    Raises:
        DataError: the file is missing or damaged.
    """
    table = read_npz(
        path, {"features": 2, "video": 1, "frame": 1, "user_anno": 2}, WHERE, text=["video"]
    )
    clips = {}
    for name in np.unique(table["video"]):
        rows = np.flatnonzero(table["video"] == name)
        rows = rows[np.argsort(table["frame"][rows], kind="stable")]
        ratings = table["user_anno"][rows].T.astype(float)
        numbers = np.arange(len(rows))
        shots = np.stack([numbers, numbers], 1)
        clips[str(name)] = RatedClip(
            table["features"][rows].astype(np.float32),
            numbers,
            (ratings.mean(0) - 1) / 4,
            ratings,
            favourites(ratings, shots),
            shots,
        )
    return clips
