"""Gaze of people in recordings and on pictures, in one form for all data sets of gaze.

Used by `cli.data_import`, `cli.data_look`, `data.fixations`, `data.gaze_quality`,
`reports.data_look` and `reports.plots.gaze_pictures`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vergence.core.federation import Dataset, Federation
from vergence.core.naming import plural
from vergence.data.gaze_video.gaze import Gaze, fixation_spans
from vergence.data.gaze_video.gaze_table import GazeTable
from vergence.data.gaze_video.recording import Recording, WindowOptions
from vergence.data.io.checks import missing_folder
from vergence.data.io.video import Footage
from vergence.data.saliency.osie import Osie
from vergence.data.saliency.stimuli import Stimuli, StimulusTrial, stimulus_size
from vergence.errors import DataError


@dataclass(frozen=True, eq=False)
class GazeTrack(Recording):
    """Gaze of one person in one recording, or on one picture that others may have seen, too.

    Attributes:
        lengths_s: length of each fixation in seconds, if every sample is a published fixation.
        picture: file or pixels `[height, width, 3]` of what was shown; None for a recording with a
            scene video of its own. On pictures, `id` is the name of the picture, and `fov_deg` the
            angle that the picture's width covers.
        aspect: height of the picture as it was shown, in widths; None: that of its file.
    """

    lengths_s: NDArray[np.float64] | None = None
    picture: Path | NDArray[np.uint8] | None = None
    aspect: float | None = None

    @functools.cached_property
    def opened(self) -> Footage | None:
        """The scene video; None if there is none."""
        return self.footage() if self.video else None

    @functools.cached_property
    def spans(self) -> NDArray[np.float64]:
        """Start and end in seconds of the fixations that the files state, `[n, 2]`."""
        gaze, none = self.gaze, np.full(len(self.gaze), np.nan)
        if self.fixations is not None:
            return self.fixations
        return fixation_spans(gaze.t_s, gaze.event, gaze.valid, none)

    @property
    def only_fixations(self) -> bool:
        """Whether each sample is a whole fixation, so that there is no sampling rate."""
        return self.lengths_s is not None or 0 < len(self.spans) == int(self.gaze.valid.sum())

    @property
    def key(self) -> str:
        """Text that is the same for all tracks on one picture, and for no two pictures."""
        return str(self.picture) if isinstance(self.picture, Path) else self.id

    @property
    def places(self) -> NDArray[np.float64]:
        """Gaze (x, y) of all samples as fractions of the picture, `[samples, 2]`."""
        return np.stack([self.gaze.x, self.gaze.y], 1)

    @property
    def rate_hz(self) -> float:
        """Samples per second, by the median time between samples; 0 if there are no times."""
        steps = np.diff(self.gaze.t_s)
        step = 0.0 if self.only_fixations or not len(steps) else float(np.median(steps))
        return 1 / step if step > 0 else 0.0

    def size(self) -> tuple[int, int] | None:
        """Return width and height of the picture or video in pixels; None if there is none."""
        if isinstance(self.picture, Path):
            return stimulus_size(self.picture)
        if self.picture is not None:
            return self.picture.shape[1], self.picture.shape[0]
        return (self.opened.width, self.opened.height) if self.opened else None


def read_tracks(dataset: Dataset, root: Path | None) -> tuple[list[GazeTrack], str] | None:
    """Read gaze as a data set's own reader reads it, before samples are cut from it.

    Returns:
        Everybody's gaze, and a sentence on what was left out; None if the data set has no
        recordings, only samples.

    Raises:
        DataError: a file is missing or cannot be used.
        ConfigError: an option is missing or unfit.
    """
    if isinstance(dataset, Osie):
        return _published_fixations(dataset, root or dataset.facts.sample or Path())
    if root is None:
        return None
    if not root.is_dir():
        raise DataError(f"{missing_folder(root)}: correct root")
    if isinstance(dataset, Stimuli):
        trials, left_out = dataset.read(root)
        people = dataset.people_to_load(sorted({trial.person for trial in trials}), "person")
        shown = _shown_angle(dataset)
        return [trial_track(trial, *shown) for trial in trials if trial.person in people], left_out
    if not isinstance(dataset, WindowOptions):
        return None
    if isinstance(dataset, GazeTable):
        recordings, left_out = dataset.read(root)
    else:
        recordings = dataset.recordings(root)
        left_out = f"{plural(len(recordings), 'recording')} read"
    chosen = dataset.choose(recordings, str(root))
    return [GazeTrack(**vars(recording)) for recording in chosen], left_out


def trial_track(
    trial: StimulusTrial, fov_deg: float | None = None, aspect: float | None = None
) -> GazeTrack:
    """Return the gaze of one person on one stimulus.

    Its width covers `fov_deg` degrees, and its height is `aspect` widths; None: not known.
    """
    gaze, rows, picture = trial.gaze(), trial.rows, trial.stimulus
    spans = fixation_spans(gaze.t_s, rows.event, rows.valid, rows.fixation)
    shown = {"fov_deg": fov_deg, "aspect": aspect, "fixations": spans, "picture": picture}
    return GazeTrack(picture.name, trial.person, gaze, conditions=rows.conditions, **shown)


def sample_tracks(federation: Federation, step_s: float | None) -> list[GazeTrack]:
    """Return the gaze of samples that have the column `points` and shared `frames`.

    Each sample is a track on its middle frame. `step_s` is the number of seconds between frames;
    None: there are no times.
    """
    tracks = []
    for person, splits in federation.people.items():
        for part, samples in vars(splits).items():
            frames = samples.banks["frames"].rows
            for i, points in enumerate(samples.columns["points"].numpy().astype(np.float64)):
                frame = frames[int(samples.columns["frame_ids"][i, len(points) // 2])].numpy()
                times = np.repeat(np.arange(len(points)) * (step_s or 0), points.shape[1])
                gaze = Gaze.build(person, times, *points.reshape(-1, 2).T)
                scene = int(samples.columns["scene"][i]) if "scene" in samples.columns else -1
                name = f"scene {scene}" if scene >= 0 else f"{person} {part} {i}"
                tracks.append(GazeTrack(name, person, gaze, picture=frame))
    return tracks


def _published_fixations(dataset: Osie, folder: Path) -> tuple[list[GazeTrack], str]:
    """Return the published fixations of each viewer on each picture, and what was left out."""
    table = dataset.fixations(folder)
    scored = dataset.scored(table)
    if dataset.viewers is not None:
        scored &= np.isin(table["viewer"], dataset.viewers)
    frame: Any = pd.DataFrame({"repeat": 0, **table})
    trials = frame[scored].sort_values("order").groupby(["viewer", "image", "repeat"])
    tracks = []
    for (viewer, image, _), own in trials:
        (picture,) = dataset.picture_files(folder, np.array([image]))
        gaze = Gaze.build(str(folder), np.zeros(len(own)), own["x"], own["y"])
        lengths = own["duration_ms"].to_numpy(np.float64) / 1e3
        shown = {"lengths_s": lengths, "picture": picture}
        tracks.append(GazeTrack(picture.name, f"v{viewer:02d}", gaze, **shown))
    left = int((~scored).sum())
    return tracks, f"left out: {left:,} fixations that runs do not score, by the data set's rules"


def _shown_angle(dataset: Stimuli) -> tuple[float | None, float | None]:
    """Return the angle of a picture's width in degrees, and its height in widths, as shown.

    Both are None unless pictures fill a known screen, whatever their own proportions.
    """
    fills = dataset.place == "fill" and dataset.offset is None
    if not fills or dataset.screen_cm is None or dataset.distance_cm <= 0:
        return None, None
    width, height = dataset.screen_cm
    return float(np.degrees(2 * np.arctan(width / 2 / dataset.distance_cm))), height / width
