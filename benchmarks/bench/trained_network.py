"""A finished run's model and images, for private inference."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench.mpc import Subject, subject
from vergence.core.data import Samples
from vergence.core.stages import Staged
from vergence.errors import ConfigError
from vergence.model_tools.onnx_export import opened, params_and_probe
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.pruning import bind_parameters


def finished(folder: Path) -> Subject:
    """Return what a newcomer to a run predicts with, and everybody's images, tests first.

    Raises:
        ConfigError: another task, no row of stages, or no model for newcomers.
        StateError: the run is unfinished.
    """
    trained, run = opened(folder, None, None)
    params, _ = params_and_probe(trained, None)
    task = trained.task
    network = bind_parameters(task.module(), params)
    if not isinstance(task, GazeAngle) or not isinstance(network, Staged):
        raise ConfigError(f"{folder}: private inference takes task gaze_angle with model lenet")
    people = trained.loaded.raw.people.values()
    images = [*(s.test for s in people), *(s.val for s in people), *(s.train for s in people)]
    return subject(task, network, Samples.concatenate(images), f"{run.method} of {folder}")
