"""Clips as sequences of frame features with people's ratings, cut and made into samples.

A clip has a feature vector, a target and people's ratings at every sampled frame (step), shots, and
the frames that people chose. Of choices only counts are kept, which is all that F needs.

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

from vergence.core.data import Samples, SharedRows, Splits
from vergence.errors import ConfigError

PARTS = ("train", "val", "test")
SHARE = 0.15
"""Share of a clip's frames in a person's summary."""


@dataclass(frozen=True, eq=False)
class RatedClip:
    """A clip, or a fragment of a video.

    Attributes:
        features: one row per step.
        picks: the step's frame; the first is 0.
        target: what is to be predicted, in [0, 1].
        ratings: what every person thinks of every step, larger is better.
        choices: the frames in every person's summary.
        shots: first and last frame of each, both included; they cover all frames.
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
        """Return the fragment of these steps; a shot across its border is cut there."""
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
    """Return the frames in every person's summary: their best shots, as long as they fit."""
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
    """Return a clip cut into fragments of these numbers of steps."""
    ends = np.cumsum(lengths).tolist()
    return [clip.cut(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def urns(balls: int, count: int, least: int, rng: np.random.Generator) -> list[int]:
    """Draw numbers of balls in urns; all ways with at least `least` in each are equally likely.

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
    """Deal each item to the person who holds its kind and has fewest items so far."""
    hands: list[list[int]] = [[] for _ in range(people)]
    for item, kind in enumerate(kinds):
        hands[min(holders[kind], key=lambda person: (len(hands[person]), person))].append(item)
    return hands


def samples_of(people: Mapping[str, Mapping[str, Sequence[RatedClip]]]) -> dict[str, Splits]:
    """Return everybody's clips, by part, as samples whose columns are equally wide for all.

    Columns: `steps` int64 [n]; `rows` int64 [n, longest], the clip's rows in the banks, its first
    one again beyond its end; `shots` int32 [n, most, 2], (0, -1) beyond the last; `inside` int32
    [n, most, people], the frames that each person chose in each shot; `both` int32
    [n, people, people], the frames that two people chose. Banks by `rows`: `features` float32
    [rows, d]; `target` float32 and `pick` int32 [rows]; `ratings` float32 [rows, people], NaN for
    people whom only other clips have.
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
    """Widths of columns."""

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
        pad = ((0, 0), (0, self.people - table.shape[1]))
        return np.pad(table, pad, constant_values=fill)

    def _square(self, table: NDArray) -> NDArray:
        return np.pad(table, ((0, self.people - len(table)),) * 2)
