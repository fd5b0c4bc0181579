"""Rated videos cut into fragments, and divided among made-up people with few classes each.

Used by `data.video_summaries.summe` and `data.video_summaries.tvsum`.

Source: the Durham thesis, section 4.4.1 (ball and urn, then the pathological split of Zhao et al.,
"Federated learning with non-iid data", arXiv:1806.00582, 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from vergence.core.data import Splits
from vergence.core.naming import by_key
from vergence.core.randomness import RandomStream
from vergence.data.video_summaries.fragments import (
    PARTS,
    RatedClip,
    deal_items,
    fragments,
    samples_of,
    urns,
)
from vergence.data.video_summaries.h5_files import Summarised
from vergence.data.video_summaries.shots import segments
from vergence.errors import ConfigError, DataError

# 1.5 to 5 seconds at two steps a second.
SHORTEST, LONGEST = 3, 10
"""Fewest and most steps of a shot, if shots must be found because the file has none."""
FOLDS = 5
Labelled = Mapping[str, tuple[RatedClip, str]]
"""Key of a video -> its clip and its class."""


@dataclass(frozen=True)
class Deal:
    """Division of videos into fragments, which are the samples of made-up people.

    Whole videos are for training, validation or test: a fifth of each class, at least one video,
    for validation, and as many for test. With `fold`, each class is cut into `FOLDS` parts that no
    seed changes: part `fold` is for test and the next one for validation, so that every video is
    tested in one fold. Each video is then cut into fragments at random; all cuts
    with at least `least` steps in each fragment are equally likely. A fragment goes to a person who
    has its class, the one with fewest fragments so far. Fragments of classes that nobody has are
    left out.

    Attributes:
        name: name of the data set, on which the random numbers depend.
        samples: number of fragments of all videos together.
        people: number of people.
        classes: number of classes of each person; person i and person i + 1 share all but one.
        least: fewest steps of a fragment.
        seed: seed of the cuts and of the division among people.
        fold: which part of each class is for test; None: drawn at random from `seed`.
        whole: whether videos for validation and test stay whole, and belong to everybody who has
            their class: of short videos a fragment is too short for a summary.
    """

    name: str
    samples: int
    people: int
    classes: int
    least: int
    seed: int
    fold: int | None = None
    whole: bool = False

    def splits(self, videos: Labelled) -> dict[str, Splits]:
        """Return person -> samples for training, validation and test.

        Raises:
            ConfigError: there are too few videos or fragments for the numbers of samples, classes
                or people.
        """
        kinds = sorted({kind for _, kind in videos.values()})
        self._check_counts(videos, kinds)
        rng = RandomStream(self.name, self.seed, "deal").numpy()
        # Which classes are neighbours is drawn anew for every seed.
        order = rng.permutation(len(kinds))
        people = product(range(self.people), range(self.classes))
        own = by_key((int(order[(person + n) % len(kinds)]), person) for person, n in people)
        holders = {int(kind): own.get(int(kind), []) for kind in order}
        counts = self._fragments(list(videos), rng)
        hands: dict[str, list[list[RatedClip]]] = {}
        for part, keys in self._parts(videos, kinds, rng).items():
            if self.whole and part != "train":
                hands[part] = [
                    [
                        clip
                        for clip, kind in map(videos.__getitem__, keys)
                        if person in holders[kinds.index(kind)]
                    ]
                    for person in range(self.people)
                ]
                continue
            cuts = [
                (kinds.index(videos[key][1]), fragment)
                for key in keys
                if holders[kinds.index(videos[key][1])]
                for fragment in self._cut(videos[key][0], counts[key], rng)
            ]
            items_by_person = deal_items([kind for kind, _ in cuts], holders, self.people)
            hands[part] = [[cuts[item][1] for item in items] for items in items_by_person]
            short = next((person for person, own in enumerate(items_by_person) if not own), None)
            if short is not None:
                raise ConfigError(
                    f"{self.name}: person {short} gets nothing for {part} of {len(cuts)} "
                    "fragments; set people to fewer, or samples or classes to more"
                )
        digits = max(2, len(str(self.people - 1)))
        return samples_of(
            {
                f"p{person:0{digits}d}": {part: hands[part][person] for part in PARTS}
                for person in range(self.people)
            }
        )

    def _check_counts(self, videos: Labelled, kinds: Sequence[str]) -> None:
        if self.classes > len(kinds):
            raise ConfigError(
                f"{self.name}: {self.classes} classes for each person, there are {len(kinds)}; set "
                "classes to fewer"
            )
        if self.samples < len(videos):
            raise ConfigError(
                f"{self.name}: {len(videos)} videos make that many samples at least, got samples = "
                f"{self.samples}"
            )
        for kind in kinds:
            if sum(own == kind for _, own in videos.values()) < len(PARTS):
                raise ConfigError(
                    f"{self.name}: class '{kind}' has fewer than {len(PARTS)} videos, one for each "
                    "part is needed"
                )

    def _fragments(self, keys: Sequence[str], rng: np.random.Generator) -> dict[str, int]:
        """Return video -> number of its fragments; the numbers differ by at most one."""
        share, extra = divmod(self.samples, len(keys))
        order = rng.permutation(len(keys)).tolist()
        return {key: share + (place < extra) for key, place in zip(keys, order, strict=True)}

    def _parts(
        self, videos: Labelled, kinds: Sequence[str], rng: np.random.Generator
    ) -> dict[str, list[str]]:
        parts: dict[str, list[str]] = {part: [] for part in PARTS}
        for kind in kinds:
            own = [key for key, (_, class_name) in videos.items() if class_name == kind]
            if self.fold is not None:
                order = RandomStream(self.name, "folds", kind).numpy().permutation(len(own))
                for rank, place in enumerate(order):
                    part = {0: "test", 1: "val"}.get((rank - self.fold) % FOLDS, "train")
                    parts[part].append(own[place])
                continue
            own = [own[place] for place in rng.permutation(len(own))]
            # A class with few videos still needs one for validation and one for test.
            few = max(1, len(own) // 5)
            parts["train"] += own[2 * few :]
            parts["val"] += own[:few]
            parts["test"] += own[few : 2 * few]
        return parts

    def _cut(self, clip: RatedClip, count: int, rng: np.random.Generator) -> list[RatedClip]:
        return fragments(clip, urns(len(clip), count, self.least, rng))


def clip_of(video: Summarised, where: str) -> RatedClip:
    """Return an annotated video as a clip; `where` names its file in messages.

    If the file has no shots, they are found by kernel temporal segmentation (KTS) of the features.

    Raises:
        DataError: the video has no features, or has ratings instead of people's summaries.
    """
    if video.features is None:
        raise DataError(
            f"{where}: {video.name} has no features, which models are trained on: give the h5 file "
            "with them (docs/how-to/summaries.md)"
        )
    if video.rated:
        raise DataError(
            f"{where}: {video.name} has user_anno and no user_summary, which F needs: give the h5 "
            "file with people's summaries (docs/how-to/summaries.md)"
        )
    shots = video.shots
    if shots is None:
        starts = video.picks[segments(video.features, LONGEST, SHORTEST)]
        shots = np.stack([starts, np.append(starts[1:], video.frames) - 1], 1)
    choices = video.users > 0
    return RatedClip(
        video.features,
        video.picks,
        video.mean_score.clip(0, 1),
        choices[:, video.picks].astype(float),
        choices,
        shots,
    )
