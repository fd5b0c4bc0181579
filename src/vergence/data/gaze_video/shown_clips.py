"""Clips that several people watched on a screen, split by clip for all viewers alike.

Used by `data.gaze_video.gazecom` and `data.gaze_video.hevc_video`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.naming import registry_name
from vergence.core.options import Positive
from vergence.data.io.checks import data_folder
from vergence.data.splits import FrameSize
from vergence.errors import ConfigError, DataError, nearest

SHUFFLES = 1000
"""Most shuffles that are tried for a split in which every viewer has enough clips."""


class Clips(NamedTuple):
    """The clips of a data set and everybody's gaze on them, before frames are decoded.

    Attributes:
        names: the clips' names; a clip's number is its place in this list.
        lengths: number of frames of each clip.
        gaze: person -> clip number -> gaze (x, y) in the clip's frames, `[frames, 2]`; NaN: none.
        read_frames: function that returns the frames of all clips, one clip after the other, uint8
            `[all frames, height, width, 3]`.
        unused: pairs (person, clip name) of recordings to leave out. They count in the choice of
            the split.
        why_unused: phrase on them, for `Federation.about`.
    """

    names: list[str]
    lengths: Sequence[int]
    gaze: dict[str, dict[int, np.ndarray]]
    read_frames: Callable[[], Tensor]
    unused: Collection[tuple[str, str]] = ()
    why_unused: str = ""


@dataclass(frozen=True)
class ShownClips(Dataset):
    """Gaze of several viewers on the same clips; a viewer is a client, a window a sample.

    Attributes:
        people: viewers to load; by default all who have enough clips.
        window: number of frames in a sample.
        every_s: seconds between neighbouring frames of a window.
        hop: number of frames from one window's start to the next; default: windows do not overlap.
        size: (width, height) to which frames are resized, in pixels.
        clips: numbers of clips for training, validation and test, the same for all viewers.
        min_clips: fewest clips of a viewer in each of training, validation and test.
        split_seed: seed of the split of the clips.
    """

    people: tuple[str, ...] | None = None
    window: Positive = 8
    every_s: float = 0.2
    hop: Positive | None = None
    size: FrameSize = (320, 180)
    clips: tuple[Positive, Positive, Positive] = (12, 2, 4)
    min_clips: int = 1
    split_seed: int = 0
    where: ClassVar[str] = ""
    """What the user can do if a file is missing."""
    facts: ClassVar[Mapping[str, str]] = {}
    """Entries of `Federation.about` that are the same for every split."""

    @property
    def frame_step_s(self) -> float | None:
        """Seconds between the frames of a sample."""
        return self.every_s

    @abstractmethod
    def read(self, folder: Path) -> Clips:
        """Read and verify the clips and everybody's gaze in a folder; frames are decoded later.

        Raises:
            DataError: a file is missing, damaged or of another version.
        """

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the data, and split by clip; all viewers have the same split.

        Columns of the samples: `frame_ids` int64 `[n, window]`, row numbers in the shared array
        `frames` uint8 `[all frames, height, width, 3]`; `points` float32 `[n, window, 1, 2]`, gaze
        (x, y) in [0, 1], NaN if gaze was lost; `scene` int64 `[n]`, 1000 x clip number + first
        frame.

        Raises:
            DataError: a file is missing, truncated or of another version. A person is unknown or
                has too few clips for the split. A clip is shorter than the window.
            ConfigError: an option is out of range.
        """
        stride = self._stride()
        clips = self.read(data_folder(root, registry_name(self), self.where))
        self._check_span(stride, min(clips.lengths))
        dealt = self._deal(clips.gaze, len(clips.names))
        gaze = {
            person: {c: own[c] for c in own if (person, clips.names[c]) not in clips.unused}
            for person, own in clips.gaze.items()
        }
        viewers, few = self._people_to_load(gaze, dealt)
        frames = SharedRows(clips.read_frames(), "frame_ids")
        people, lost = {}, 0
        for person in viewers:
            parts = []
            for part in dealt:
                own = {c: gaze[person][c] for c in sorted(part) if c in gaze[person]}
                columns, tracked = self._windows(own, stride, clips.lengths)
                if not tracked.any():
                    raise DataError(
                        f"{person} has no window with valid gaze in clips "
                        f"{', '.join(clips.names[c] for c in own)}: leave this person out (people)"
                    )
                usable = {n: torch.from_numpy(column[tracked]) for n, column in columns.items()}
                parts.append(Samples(usable, {"frames": frames}))
                lost += int((~tracked).sum())
            people[person] = Splits(*parts)
        return Federation(registry_name(self), people, self._about(clips, dealt, few, lost))

    def _stride(self) -> int:
        """Return how many of the clips' frames lie between neighbouring frames of a window."""
        if not 1 <= self.min_clips <= min(self.clips):
            raise ConfigError(
                f"min_clips must be 1 to {min(self.clips)} (the smallest of clips), "
                f"got {self.min_clips}"
            )
        return 1

    def _check_span(self, stride: int, shortest: int) -> None:
        """Check that the shortest clip, which has so many frames, has a window."""
        span = (self.window - 1) * stride + 1
        if span > shortest:
            raise DataError(
                f"clips of {shortest} frames are shorter than a window of {self.window} frames "
                f"every {self.every_s} s ({span} frames): lower window or every_s"
            )

    def _deal(self, gaze: dict[str, dict[int, np.ndarray]], count: int) -> list[set[int]]:
        """Return the numbers of the clips for training, validation and test.

        Clips are shuffled again and again with one seed. The first shuffle is taken in which every
        viewer with at least 3 `min_clips` clips has at least `min_clips` clips in each part. The
        choice depends on who has seen which clip in the whole file, and not on the gaze.

        Raises:
            DataError: no shuffle has this property, or there are too few clips.
        """
        # Nor on the options that leave people out, so that these move no clip to another part.
        if sum(self.clips) > count:
            raise DataError(
                f"clips = {self.clips} asks for {sum(self.clips)} clips, the data hold {count}"
            )
        able = [set(own) for own in gaze.values() if len(own) >= 3 * self.min_clips]
        rng = np.random.default_rng(self.split_seed)
        train, val, test = self.clips
        for _ in range(SHUFFLES):
            order = rng.permutation(count)
            # Test clips come first: other numbers of clips for training leave them the same.
            *later, _ = np.split(order, np.cumsum([test, val, train]))
            parts = [set(part.tolist()) for part in later[::-1]]
            if all(len(own & part) >= self.min_clips for own in able for part in parts):
                return parts
        fewest = min(len(own) for own in able)
        raise DataError(
            f"no split of {count} clips into {self.clips} found that gives everybody "
            f"{self.min_clips} in every part (somebody has only {fewest} clips): lower min_clips "
            "or change clips"
        )

    def _people_to_load(
        self, gaze: dict[str, dict[int, np.ndarray]], dealt: list[set[int]]
    ) -> tuple[list[str], dict[str, list[int]]]:
        """Return the viewers to load, and the clips per part of viewers who have too few clips.

        Raises:
            DataError: a viewer in `people` is unknown or has too few clips, or nobody has enough.
        """
        counts = {p: [len(part & set(own)) for part in dealt] for p, own in gaze.items()}
        for person in self.people or ():
            if person not in counts:
                raise DataError(f"unknown person '{person}'{nearest(person, counts)}")
            if min(counts[person]) < self.min_clips:
                raise DataError(
                    f"{person} has {counts[person]} clips (train, val, test), each part needs "
                    f"{self.min_clips}: leave this person out (people) or take another split_seed"
                )
        if self.people is not None:
            return list(self.people), {}
        few = {person: parts for person, parts in counts.items() if min(parts) < self.min_clips}
        if not (viewers := [person for person in counts if person not in few]):
            raise DataError(f"nobody has {self.min_clips} clips in every part {self.clips}: {few}")
        return viewers, few

    def _windows(
        self, own: dict[int, np.ndarray], stride: int, lengths: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the columns of all windows of some clips, and which windows have any gaze.

        `own` maps a clip's number to the gaze `[frames, 2]`; `stride` is the step between frames,
        and `lengths` are the numbers of frames of all clips.
        """
        span = (self.window - 1) * stride + 1
        hop = self.window * stride if self.hop is None else self.hop
        first = np.cumsum([0, *lengths])
        starts = {clip: np.arange(0, lengths[clip] - span + 1, hop) for clip in own}
        steps = stride * np.arange(self.window)
        inside = {clip: begin[:, None] + steps for clip, begin in starts.items()}
        points = np.concatenate([clip_gaze[inside[clip]] for clip, clip_gaze in own.items()])
        columns = {
            "frame_ids": np.concatenate([first[clip] + inside[clip] for clip in own]),
            "points": points[:, :, None],
            "scene": np.concatenate([clip * 1000 + starts[clip] for clip in own]),
        }
        return columns, np.asarray(np.isfinite(points).any(axis=(1, 2)))

    def _about(
        self, clips: Clips, dealt: list[set[int]], clip_counts: dict[str, list[int]], lost: int
    ) -> dict[str, str]:
        who = ", ".join(f"{p} {parts}" for p, parts in clip_counts.items()) or "nobody"
        listed = [", ".join(clips.names[c] for c in sorted(part)) for part in dealt]
        return dict(self.facts) | {
            "split": f"by clip, for all viewers alike (seed {self.split_seed}): {len(dealt[0])} "
            f"train, {len(dealt[1])} validation ({listed[1]}), {len(dealt[2])} test ({listed[2]})",
            "left_out": f"with too few clips [train, val, test]: {who}; {lost} windows without "
            f"any valid gaze{clips.why_unused}",
        }
