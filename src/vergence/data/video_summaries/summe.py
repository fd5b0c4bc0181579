"""SumMe: 25 videos that 15 to 18 people summarised, cut into fragments and dealt to people.

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
"""SumMe has no classes: the thesis flags them by hand and does not print them. These are ours."""


@dataclass(frozen=True)
class SumMe(Dataset):
    """Fragments of videos with the frames that people chose.

    Attributes:
        people: number of simulated clients.
        classes: number of classes of each client, out of holidays, events and sports; with all
            three, clients are nearly alike.
        samples: fragments that the videos are cut into.
        least: fewest steps of a fragment, two a second.
        split_seed: fixes the cuts and who gets what.
    """

    people: Annotated[int, Ge(1)] = 10
    classes: Annotated[int, Ge(1)] = 1
    samples: Annotated[int, Ge(1)] = 100
    least: Annotated[int, Ge(2)] = 10
    split_seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Read, verify, cut and deal; columns as in `fragments.samples_of`.

        Raises:
            DataError: the file is missing or damaged, lacks features, or holds unknown videos.
            ConfigError: what is asked for cannot be dealt.
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
    """Return a video's class.

    Raises:
        DataError: SumMe has no such video.
    """
    # Copies of the file write names with underscores or with spaces.
    plain = name.lower().replace("_", " ").strip()
    for kind, names in CLASSES.items():
        if plain in names:
            return kind
    raise DataError(f"SumMe has no video '{name}': give its 25 videos under their names")
