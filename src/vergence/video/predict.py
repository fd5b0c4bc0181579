"""Gaze prediction with a finished run: maps on a video or pictures, or angles of eye images."""

from __future__ import annotations

from pathlib import Path

from vergence import profiling
from vergence.errors import ConfigError
from vergence.experiment.trained_run import read_run
from vergence.results.read import read
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap
from vergence.video.eye_patches import PICTURES
from vergence.video.overlay import OverlayFiles
from vergence.video.predict_angles import AngleFile, predict_angles
from vergence.video.predict_maps import predict_maps


def predict(
    folder: Path,
    source: Path,
    out: Path | None = None,
    person: str | None = None,
    maps: Path | None = None,
) -> OverlayFiles | AngleFile:
    """Draw predicted gaze on a video or pictures, or write the gaze angles of eye images.

    True gaze is drawn as a ring where the run's own reader finds a recording of this video, or a
    `gaze_2d.csv` lies beside it.

    Args:
        folder: run directory of one method.
        source: of a run of gaze maps a video that PyAV can read, a picture or a folder of them; of
            a run of gaze angles what `predict_angles` takes.
        out: where the overlay goes: mp4 of a video, PNG of a picture, a folder of PNG of a folder;
            a CSV and, of a video, a contact sheet lie beside it. Of gaze angles, the CSV. Default:
            a name made of the source's, in the working directory.
        person: predict as this participant; default: as a newcomer, with the shared model, and of
            an adapted run as its person.
        maps: a new npz for the maps: `maps` float32 `[frames, h, w]`, each summing to 1, `time_s`
            float64 `[frames]`, and `name`, of the picture or the number of the frame.

    Raises:
        ConfigError: another task's run, an unknown person, a newcomer without a shared model, or
            maps are asked of a run that predicts angles.
        DataError: the video is unreadable or shorter than the model's window.
    """
    with profiling.phase("checkpoints"):
        trained = read_run(folder)
    person = person or trained.owner
    trained.refuse_stranger(person, read(folder).runs[0].people)
    if isinstance(trained.task, GazeAngle):
        if maps is not None:
            raise ConfigError(f"{folder} predicts angles, and no maps: leave --maps out")
        return predict_angles(trained, source, out or Path(f"{source.stem}_gaze.csv"), person)
    if not isinstance(trained.task, GazeMap):
        name = trained.experiment.table["task"]["name"]
        raise ConfigError(
            f"{folder} was trained on the task '{name}'; predict takes runs of gaze_map and "
            "gaze_angle; in Python, vergence.open_run(...).predict takes any"
        )
    ending = ".png" if source.suffix.lower() in PICTURES else ".mp4"
    usual = f"{source.name}_overlay" if source.is_dir() else f"{source.stem}_overlay{ending}"
    return predict_maps(trained, source, out or Path(usual), person, maps)
