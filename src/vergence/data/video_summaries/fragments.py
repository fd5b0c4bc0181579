"""Clips: sequences of frame features with people's ratings, cut and turned into samples.

A sampled frame is called a step. A clip has a feature vector, a target and people's ratings at
every step, shots, and the frames that each person chose for a summary. Samples keep only counts of
chosen frames, which is all that the F score needs.

Used by `data.synthetic.clip_synthetic`, `data.video_summaries.clients`,
`data.video_summaries.tvsum` and `video.shot_scores`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from vergence.core.arrays import PARTS
from vergence.core.data import Samples, SharedRows, Splits
from vergence.errors import ConfigError

SHARE = 0.15
"""Largest length of a person's summary, as a fraction of the clip's frames."""


@dataclass(frozen=True, eq=False)
class RatedClip:
    """A clip, or a fragment of a video, with people's ratings.

    Attributes:
        features: feature vector of each step.
        picks: frame number of each step, from the clip's first frame; the first pick is 0.
        target: the score to predict for each step, in [0, 1].
        ratings: every person's rating of every step; larger is better.
        choices: whether a frame is in a person's summary.
        shots: first and last frame of each shot, both included; the shots cover all frames.
    """

    features: Float[np.ndarray, "steps d"]
    picks: Int[np.ndarray, " steps"]
    target: Float[np.ndarray, " steps"]
    ratings: Float[np.ndarray, "people steps"]
    choices: Bool[np.ndarray, "people frames"]
    shots: Int[np.ndarray, "shots 2"]

    def __len__(self) -> int:
        return len(self.picks)

    def cut(self, start: int, stop: int) -> RatedClip:
        """Return the fragment from step `start` to before step `stop`.

        A shot that reaches beyond the fragment is cut at its border.
        """
        first = int(self.picks[start])
        end = int(self.picks[stop]) if stop < len(self) else self.choices.shape[1]
        # Shots that reach into the fragment; those across its border are clipped below.
        inside = self.shots[(self.shots[:, 1] >= first) & (self.shots[:, 0] < end)]
        return replace(
            self,
            features=self.features[start:stop],
            picks=self.picks[start:stop] - first,
            target=self.target[start:stop],
            ratings=self.ratings[:, start:stop],
            choices=self.choices[:, first:end],
            shots=inside.clip(first, end - 1) - first,
        )


def favourites(
    ratings: Float[np.ndarray, "people frames"], shots: Int[np.ndarray, "shots 2"]
) -> Bool[np.ndarray, "people frames"]:
    """Return whether each frame is in each person's summary.

    A summary has the person's best shots by mean rating. A shot is skipped if the summary would
    become longer than `SHARE` of the frames.
    """
    lengths = shots[:, 1] - shots[:, 0] + 1
    summaries = np.zeros(ratings.shape, bool)
    for row, rating in zip(summaries, ratings, strict=True):
        values = np.add.reduceat(rating, shots[:, 0]) / lengths
        # Stable, so that equal ratings give the same summary on every machine.
        for shot in np.argsort(-values, kind="stable"):
            if row.sum() + lengths[shot] <= int(SHARE * len(row)):
                row[shots[shot, 0] : shots[shot, 1] + 1] = True
    return summaries


def fragments(clip: RatedClip, lengths: Sequence[int]) -> list[RatedClip]:
    """Return a clip cut into consecutive fragments; `lengths` are their numbers of steps."""
    ends = np.cumsum(lengths).tolist()
    return [clip.cut(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def urns(balls: int, count: int, least: int, rng: np.random.Generator) -> list[int]:
    """Return random numbers of balls in `count` urns, with at least `least` balls in each.

    All possible divisions of the balls are equally likely.

    Raises:
        ConfigError: there are too few balls.

    Source: stars and bars, Feller, "An introduction to probability theory and its applications",
    volume 1, section II.5.
    """
    free = balls - count * least
    if free < 0:
        raise ConfigError(
            f"{balls} steps cannot be cut into {count} fragments of at least {least}: ask for "
            "fewer samples"
        )
    bars = np.sort(rng.choice(free + count - 1, count - 1, replace=False))
    edges = np.concatenate([[-1], bars, [free + count - 1]])
    return (np.diff(edges) - 1 + least).tolist()


def deal_items(
    kinds: Sequence[int], holders: Mapping[int, Sequence[int]], people: int
) -> list[list[int]]:
    """Return the numbers of each person's items; `kinds` holds the class of each item.

    An item goes to a person in `holders[kind]`, the one with fewest items so far.
    """
    hands: list[list[int]] = [[] for _ in range(people)]
    for item, kind in enumerate(kinds):
        hands[min(holders[kind], key=lambda person: (len(hands[person]), person))].append(item)
    return hands


def samples_of(people: Mapping[str, Mapping[str, Sequence[RatedClip]]]) -> dict[str, Splits]:
    """Return person -> samples for training, validation and test.

    `people` maps a person and a part to clips. Arrays are padded, so that all samples have the same
    widths. Columns:

    * `steps` int64 [n], number of steps of the clip.
    * `rows` int64 [n, longest], row numbers of the clip's steps in the shared arrays; beyond the
      clip's end, its first row again.
    * `shots` int32 [n, most, 2], first and last frame; (0, -1) beyond the last shot.
    * `inside` int32 [n, most, people], number of frames that each person chose in each shot.
    * `both` int32 [n, people, people], number of frames that two people both chose.

    Shared arrays (banks), to whose rows `rows` refers: `features` float32 [rows, d]; `target`
    float32 [rows]; `pick` int32 [rows], the frame number; `ratings` float32 [rows, people], NaN if
    a clip has fewer people.
    """
    every = [clip for parts in people.values() for part in PARTS for clip in parts[part]]
    room = _Room(
        max(map(len, every)),
        max(len(clip.shots) for clip in every),
        max(len(clip.ratings) for clip in every),
    )
    return {
        name: Splits(*(room.samples(parts[part]) for part in PARTS))
        for name, parts in people.items()
    }


@dataclass(frozen=True)
class _Room:
    """Widths to which columns are padded: most steps, most shots and most people of a clip."""

    steps: int
    shots: int
    people: int

    def samples(self, clips: Sequence[RatedClip]) -> Samples:
        starts = np.cumsum([0, *map(len, clips)])
        # Beyond a clip's end its first row is repeated, as an index must be valid.
        rows = np.stack(
            [
                start + np.where(np.arange(self.steps) < len(clip), np.arange(self.steps), 0)
                for start, clip in zip(starts, clips, strict=False)
            ]
        )
        choices = [clip.choices.astype(np.int32) for clip in clips]
        inside = [
            np.add.reduceat(choice, clip.shots[:, 0], axis=1).T
            for choice, clip in zip(choices, clips, strict=True)
        ]
        shots = [self._padded(clip.shots, -1) for clip in clips]
        for row, clip in zip(shots, clips, strict=True):
            row[len(clip.shots) :, 0] = 0
        columns = {
            "steps": np.array([len(clip) for clip in clips]),
            "rows": rows,
            "shots": np.stack(shots).astype(np.int32),
            "inside": np.stack([self._wide(self._padded(counts, 0)) for counts in inside]),
            "both": np.stack([self._square(choice @ choice.T) for choice in choices]),
        }
        ratings = [self._wide(clip.ratings.T.astype(np.float32), np.nan) for clip in clips]
        banks = {
            "features": np.concatenate([clip.features for clip in clips]).astype(np.float32),
            "target": np.concatenate([clip.target for clip in clips]).astype(np.float32),
            "pick": np.concatenate([clip.picks for clip in clips]).astype(np.int32),
            "ratings": np.concatenate(ratings),
        }
        return Samples(
            {name: torch.from_numpy(column) for name, column in columns.items()},
            {name: SharedRows(torch.from_numpy(bank), "rows") for name, bank in banks.items()},
        )

    def _padded(self, table: NDArray, fill: int) -> NDArray:
        return np.pad(table, ((0, self.shots - len(table)), (0, 0)), constant_values=fill)

    def _wide(self, table: NDArray, fill: float = 0) -> NDArray:
        return np.pad(table, ((0, 0), (0, self.people - table.shape[1])), constant_values=fill)

    def _square(self, table: NDArray) -> NDArray:
        return np.pad(table, ((0, self.people - len(table)),) * 2)
