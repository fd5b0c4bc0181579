"""SumMe: 25 videos with summaries by 15 to 18 people, cut into fragments for made-up clients.

Layout of `root`: the usual file `eccv16_dataset_summe_google_pool5.h5`, with features (extra
`hdf5`).

Licence: research only, not packaged. Source: Gygli et al., "Creating summaries from user videos",
ECCV 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from vergence.core.federation import Dataset, Federation
from vergence.data.io.checks import data_folder
from vergence.data.video_summaries.clients import Deal, clip_of
from vergence.data.video_summaries.h5_files import WHERE, file_of, read_videos
from vergence.errors import DataError

CLASSES = {
    "holidays": (
        "bearpark climbing",
        "cockpit landing",
        "eiffel tower",
        "kids playing in leaves",
        "notre dame",
        "playing on water slide",
        "playing ball",
        "statue of liberty",
        "uncut evening flight",
    ),
    "events": (
        "air force one",
        "bus in rock tunnel",
        "car railcrossing",
        "car over camera",
        "cooking",
        "excavators river crossing",
        "fire domino",
        "st maarten landing",
    ),
    "sports": (
        "base jumping",
        "bike polo",
        "jumps",
        "paintball",
        "paluma jump",
        "saving dolphines",
        "scuba",
        "valparaiso downhill",
    ),
}
"""Classes of the videos, chosen by this project.

SumMe has no classes, and the Durham thesis does not print those that it chose.
"""


@dataclass(frozen=True)
class SumMe(Dataset):
    """Fragments of videos, with the frames that people chose for summaries.

    Attributes:
        people: number of made-up clients.
        classes: number of classes of each client, among holidays, events and sports; with 3,
            clients are nearly alike.
        samples: number of fragments into which all videos together are cut.
        least: fewest steps of a fragment; a second has two steps.
        split_seed: seed of the cuts and of the division among clients.
    """

    people: Annotated[int, Ge(1)] = 10
    classes: Annotated[int, Ge(1)] = 1
    samples: Annotated[int, Ge(1)] = 100
    least: Annotated[int, Ge(2)] = 10
    split_seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the videos, cut them into fragments, and divide these among clients.

        The columns of the samples are those of `fragments.samples_of`.

        Raises:
            DataError: the file is missing or damaged, lacks features, or holds unknown videos.
            ConfigError: there are too few videos or fragments for the options.
        """
        path = file_of(data_folder(root, "summe", WHERE), "summe")
        videos = {
            key: (clip_of(video, str(path)), class_of(video.name))
            for key, video in read_videos(path).items()
        }
        deal = Deal("summe", self.samples, self.people, self.classes, self.least, self.split_seed)
        about = {
            "licence": "research only",
            "citation": "Gygli et al., Creating summaries from user videos, ECCV 2014",
            "split": f"{self.samples} fragments, {self.classes} classes of ours a person; test and "
            "validation by video, a fifth of each class",
            "judged": "summe",
            "features": f"of {path.name}",
        }
        return Federation("summe", deal.splits(videos), about)


def class_of(name: str) -> str:
    """Return the class of a video of SumMe.

    Raises:
        DataError: SumMe has no video of this name.
    """
    # Copies of the file write names with underscores or with spaces.
    plain = name.lower().replace("_", " ").strip()
    for kind, names in CLASSES.items():
        if plain in names:
            return kind
    raise DataError(f"SumMe has no video '{name}': give its 25 videos under their names")
