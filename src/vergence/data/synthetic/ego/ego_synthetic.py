"""Synthetic egocentric video with gaze: people who differ in what they see and how they look.

Source: this project. Numbers such as clip length and gaze spread follow FedCPF, GLC and recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval
from numpy.random import Generator
from numpy.typing import NDArray

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.data.gaze_video.gaze import Event
from vergence.data.io.generated_cache import Arrays, cached
from vergence.data.splits import Shares, check_shares, part_sizes
from vergence.data.synthetic.ego.gaze_behavior import ClipGaze, look
from vergence.data.synthetic.ego.people import PRESETS, SyntheticWearer, clip_stream, person
from vergence.data.synthetic.ego.rendering import WearerView, render
from vergence.data.synthetic.ego.scene import Lens, SyntheticScene, build_scene
from vergence.errors import ConfigError

VERSION = 1
"""Version number of the generator, part of the cache's key; raise it with every change."""
GLC_WINDOW = 64
"""Frames that a clip spans in GLC (a gaze model), however many of them are in a sample."""
FEWEST_CLIPS = 10


@dataclass(frozen=True)
class EgoClip:
    """One generated clip: scene, gaze, and all that is needed to draw any of its frames."""

    person: SyntheticWearer
    lens: Lens
    scene: SyntheticScene
    gaze: ClipGaze
    size: int
    rng: Generator

    @property
    def scored(self) -> NDArray:
        """Which frames have a usable gaze point (fixation or pursuit), bool `[frames]`."""
        return self.gaze.event == Event.FIXATION

    def draw(self, index: NDArray) -> NDArray:
        """Draw the frames with the numbers `index`, uint8 `[len(index), size, size, 3]`."""
        view = WearerView.of(self.gaze.head, index)
        return render(self.person.looks, self.lens, self.scene, view, self.rng, self.size)


@dataclass(frozen=True)
class EgoSynthetic(Dataset):
    """Generated clips of 5 seconds from head cameras, with gaze; wearers work on a counter.

    Attributes:
        people: number of people; person i is the same, whatever this number is.
        preset: how people differ. "iid": not at all. "mild": in light and slightly in gaze.
            "default": as recorded people do. "strong": more than recorded people.
        clips: mean number of clips per person; nobody has fewer than 10.
        seconds: length of a clip in seconds.
        fps: frames per second.
        size: width and height of a frame in pixels, even.
        window: number of frames in a sample.
        windows: number of samples from each clip; their frames are interleaved.
        span: "clip": a sample's frames spread over the whole clip. "glc": over 64 frames, as in
            the gaze model GLC.
        shares: fractions of a person's clips for training, validation and test, in order of time.
        seed: seed of all random numbers.
    """

    people: Annotated[int, Interval(ge=1, le=256)] = 5
    preset: Literal["iid", "mild", "default", "strong"] = "default"
    clips: Annotated[int, Interval(ge=FEWEST_CLIPS, le=2000)] = 40
    seconds: Annotated[float, Interval(ge=1, le=60)] = 5.0
    fps: Annotated[int, Interval(ge=12, le=60)] = 24
    size: Annotated[int, Interval(ge=32, le=256)] = 64
    window: Annotated[int, Interval(ge=1, le=32)] = 4
    windows: Annotated[int, Interval(ge=1, le=16)] = 4
    span: Literal["clip", "glc"] = "clip"
    shares: Shares = (0.6, 0.2, 0.2)
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.shares)
        if self.size % 2:
            raise ConfigError(f"ego_synthetic: size must be even; got {self.size}")
        frames = round(self.seconds * self.fps)
        needed = GLC_WINDOW if self.span == "glc" else self.window * self.windows
        if frames < needed:
            raise ConfigError(
                f"ego_synthetic: clips of {frames} frames (seconds = {self.seconds:g}, fps = "
                f"{self.fps}) are shorter than the window, which needs {needed}; take longer clips"
            )

    @property
    def frame_step_s(self) -> float | None:
        """Mean seconds between neighbouring frames of a sample: its span divided by `window`."""
        frames = GLC_WINDOW if self.span == "glc" else round(self.seconds * self.fps)
        return frames / self.fps / self.window

    def load(self, root: str | None = None) -> Federation:
        """Generate everybody's clips, or take them from the cache; needs no files.

        Columns of the samples: `frame_ids` int64 `[n, window]`, row numbers in the shared array
        `frames` uint8 `[frames, size, size, 3]`; `points` float32 `[n, window, 1, 2]`, gaze (x, y)
        as fractions of the frame, NaN without a usable point; `scene` int64 `[n]`, always -1.

        Raises:
            DataError: a person has too few clips for the option `shares`.
        """
        return Federation(
            name="ego_synthetic",
            people={f"p{i:02d}": self._splits(i) for i in range(self.people)},
            about={
                "licence": "generated by vergence, Apache-2.0",
                "citation": "none: synthetic; proportions from published egocentric recordings",
                "split": "within person, by clip in order of recording, shares (train, val, test) "
                f"{self.shares}; clips are separate recordings, so no window crosses a border",
                "points": "fixation and pursuit frames; saccades, blinks, dropouts and gaze "
                "outside the frame have none",
                "preset": self.preset,
            },
        )

    def clip_count(self, index: int) -> int:
        """Return the number of clips of person `index`."""
        quantity = person(self.seed, index, PRESETS[self.preset]).quantity
        return max(FEWEST_CLIPS, round(self.clips * quantity))

    def simulate(self, index: int, clip: int) -> EgoClip:
        """Return clip number `clip` of person `index`, with gaze; frames are not yet drawn."""
        who = person(self.seed, index, PRESETS[self.preset])
        rng = clip_stream(self.seed, index, clip)
        lens = Lens.of(who.looks)
        frames = round(self.seconds * self.fps)
        scene = build_scene(who.looks, rng, frames, self.fps)
        gaze = look(who.habits, who.looks, lens, scene, rng, self.fps)
        return EgoClip(who, lens, scene, gaze, self.size, rng)

    def render_clip(self, index: int, clip: int) -> tuple[NDArray, ClipGaze]:
        """Return every frame of one clip, uint8 `[frames, size, size, 3]`, and its gaze."""
        recording = self.simulate(index, clip)
        return recording.draw(np.arange(len(recording.gaze.event))), recording.gaze

    def _windows(self, frames: int) -> NDArray:
        """Return the numbers of the frames in each sample of a clip, `[windows, window]`.

        `frames` is the clip's number of frames.
        """
        order = np.arange(self.windows)[:, None]
        step = np.arange(self.window)[None, :]
        if self.span == "glc":
            room = frames - GLC_WINDOW
            return order * room // max(self.windows - 1, 1) + step * GLC_WINDOW // self.window
        total = self.windows * self.window
        return ((step * self.windows + order) * frames + frames // 2) // total

    def _generate(self, index: int) -> Arrays:
        """Return `frames` and `points` of person `index`.

        `frames` is uint8 `[clips, windows * window, size, size, 3]`. `points` is float32
        `[clips, windows * window, 2]`.
        """
        frames = round(self.seconds * self.fps)
        frame_numbers = self._windows(frames).ravel()
        pictures, points = [], []
        for number in range(self.clip_count(index)):
            clip = self.simulate(index, number)
            pictures.append(clip.draw(frame_numbers))
            seen = np.where(clip.scored[:, None], clip.gaze.point, np.nan)
            points.append(seen[frame_numbers].astype(np.float32))
        return {"frames": np.stack(pictures), "points": np.stack(points)}

    def _splits(self, index: int) -> Splits:
        key = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            # Who person `index` is does not depend on how many others there are.
            if name not in ("people", "shares")
        }
        made = cached(
            "ego_synthetic",
            {**key, "person": index, "version": VERSION},
            lambda: self._generate(index),
        )
        return Splits(**dict(self._parts(made, f"ego_synthetic: clips of p{index:02d}")))

    def _parts(self, made: Arrays, what: str) -> Iterator[tuple[str, Samples]]:
        stop = 0
        sizes = part_sizes(len(made["frames"]), self.shares, what)
        for part, size in zip(("train", "val", "test"), sizes, strict=True):
            start, stop = stop, stop + size
            pictures = torch.from_numpy(made["frames"][start:stop]).flatten(0, 1)
            points = torch.from_numpy(made["points"][start:stop])
            shape = ((stop - start) * self.windows, self.window)
            columns = {
                "frame_ids": torch.arange(len(pictures)).reshape(shape),
                "points": points.reshape(*shape, 1, 2),
                "scene": torch.full(shape[:1], -1, dtype=torch.int64),
            }
            yield part, Samples(columns, {"frames": SharedRows(pictures, "frame_ids")})
