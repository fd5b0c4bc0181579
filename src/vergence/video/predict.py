"""`vergence predict`: gaze maps on a video or pictures, or gaze angles of eye images.

Used by `cli.runs`.
"""

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

    True gaze is drawn as a ring where the run's reader has a recording of this video, or a file
    `gaze_2d.csv` is in the video's folder.

    Args:
        folder: run directory of one method.
        source: for a run of gaze maps a video that PyAV can read, a picture, or a folder of
            pictures or of videos; for a run of gaze angles see `predict_angles`.
        out: output: an mp4 for a video, a PNG for a picture, a folder of these for a folder, each
            with a CSV and, for a video, a contact sheet of the same name; for gaze angles the CSV.
            Default: a name made of the source's, in the working directory.
        person: participant whose model predicts; default: the shared model, or the model of an
            adapted run.
        maps: new npz for the maps: `maps` float32 `[frames, h, w]`, each with sum 1, `time_s`
            float64 `[frames]`, and `name`, the picture's name or the frame's number. For a folder
            of videos, a folder with such a file for each.

    Raises:
        ConfigError: the run has another task, the person is unknown, the run has no shared model,
            or `maps` is given for a run that predicts angles.
        DataError: the video cannot be read, or is shorter than the model's window.
    """
    with profiling.phase("checkpoints"):
        trained = read_run(folder)
    person = person or trained.owner
    trained.refuse_unknown_person(person, read(folder).runs[0].people)
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
    default = f"{source.name}_overlay" if source.is_dir() else f"{source.stem}_overlay{ending}"
    return predict_maps(trained, source, out or Path(default), person, maps)
