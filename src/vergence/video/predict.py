"""Gaze prediction on somebody's video with a trained model: overlay video and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import isgeneratorfunction
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vergence import profiling
from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.naming import called
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.data.gaze_video.aria import read as read_recording
from vergence.data.io.video import Video
from vergence.errors import ConfigError, DataError
from vergence.experiment.trained_run import NEWCOMER, TrainedRun, read_run
from vergence.metrics.personal_priors import whole_prior
from vergence.metrics.saliency import centre_of_mass
from vergence.model_tools.streaming import StreamingModel, stream
from vergence.models.glc.glc_causal import GlcCausal, GlcCausalNet
from vergence.results.read import read
from vergence.tasks.gaze_map import GazeMap
from vergence.training.pruning import built
from vergence.video.overlay import OverlayFiles, contact_sheet, write_overlay

Point = tuple[float, float]


def predict(folder: Path, video: Path, out: Path, person: str | None = None) -> OverlayFiles:
    """Write the overlay `out` (mp4), a CSV and a contact sheet (PNG) beside it.

    True gaze is drawn as a ring where a `gaze_2d.csv` lies beside the video.

    Args:
        folder: run directory of one method.
        video: any video PyAV can read.
        out: where the overlay goes.
        person: predict as this participant; default: as a newcomer, with the shared model, and of
            an adapted run as its person.

    Raises:
        ConfigError: another task's run, an unknown person, or a newcomer without a shared model.
        DataError: the video is unreadable or shorter than the model's window.
    """
    with profiling.phase("checkpoints"):
        trained = read_run(folder)
    if not isinstance(trained.task, GazeMap):
        raise ConfigError(f"{folder} was trained on another task; predict draws gaze maps only")
    run = read(folder).runs[0]
    person = person or trained.owner
    trained.refuse_stranger(person, run.people)
    with profiling.phase("data"):
        footage = Video.open(video)
    heats = predicted(trained, footage, run.results["input"], person)
    points = [(float(x), float(y)) for x, y in centre_of_mass(torch.from_numpy(heats))]
    truth = true_gaze(video, footage)
    with profiling.phase("report"):
        written = write_overlay(
            out, footage.frames(), footage.times_s.tolist(), heats, points, truth, slow=True
        )
        contact_sheet(out.with_suffix(".png"), footage.frames(), heats, points, truth)
    return written


def predicted(
    trained: TrainedRun, footage: Video, wanted: Mapping[str, int], person: str | None
) -> NDArray[np.float64]:
    """Return one map per frame, from windows of frames, or from a stream of them.

    `wanted` says the `frames` of a window, and their `width` and `height`.

    Raises:
        DataError: the video is shorter than the window.
    """
    width, height = wanted["width"], wanted["height"]
    if isinstance(trained.task.network, GlcCausal):
        return streamed(trained, footage.frames(width=width, height=height), person)
    window = wanted["frames"]
    if len(footage.times_s) < window:
        raise DataError(
            f"{footage.path} has {len(footage.times_s)} frames, the model's window is {window}: "
            "give a longer video"
        )
    with profiling.phase("data"):
        small = footage.read(width=width, height=height)
    return heat_maps(trained, samples(small, window), person)[: len(small)]


def samples(frames: NDArray[np.uint8], window: int) -> Samples:
    """Cut frames `[n, H, W, 3]` into windows; the last one repeats the last frame."""
    count = -(-len(frames) // window)
    rows = torch.arange(count * window).clamp(max=len(frames) - 1).view(count, window)
    points = torch.full((count, window, 1, 2), torch.nan)
    return Samples(
        {"frame_ids": rows, "points": points},
        {"frames": SharedRows(torch.from_numpy(frames), "frame_ids")},
    )


def heat_maps(trained: TrainedRun, data: Samples, person: str | None) -> NDArray[np.float64]:
    """Return one map per frame `[frames, h, w]` of windows, each summing to 1.

    Raises:
        ConfigError: there is no shared model for a newcomer.
    """
    shown, params = model_for(trained, data, person)
    task, test = trained.task, next(iter(shown.ready.people.values())).test
    with profiling.phase("forward"):
        logits = shown.outputs(params, test)
    assert isinstance(task, GazeMap)
    heat = (logits.double() / task.temperature).flatten(2).softmax(-1)
    return heat.view(-1, *logits.shape[2:]).numpy()


def streamed(
    trained: TrainedRun, frames: Iterator[NDArray[np.uint8]], person: str | None
) -> NDArray[np.float64]:
    """Return one map per frame, each made as its frame comes: only the state is kept.

    Raises:
        ConfigError: there is no shared model for a newcomer.
    """
    first = next(frames)
    shown, params = model_for(trained, samples(first[None], 1), person)
    task, test = trained.task, next(iter(shown.ready.people.values())).test
    network = built(task.module(), params)
    assert isinstance(task, GazeMap)
    assert isinstance(network, GlcCausalNet)
    prior = whole_prior(test)[None] if task.own_prior else None
    model = StreamingModel(task, network, prior).eval()
    with profiling.phase("forward"):
        heats = [heat.double().numpy() for heat in stream(model, chain([first], frames))]
    return np.stack(heats)


def model_for(trained: TrainedRun, data: Samples, person: str | None) -> tuple[TrainedRun, Params]:
    """Return the run on new data of a participant, or of a newcomer, and the parameters for it.

    Raises:
        ConfigError: there is no shared model for a newcomer.
    """
    who, task = person or NEWCOMER, trained.task
    if person is None and not trained.shares():
        raise ConfigError(
            f"{trained.folder} has no shared model for a newcomer; choose --person among "
            f"{', '.join(trained.clients)}"
        )
    with profiling.phase("features"):
        ready = task.network.prepare(Federation("video", {who: Splits(data, data, data)}))
        new = trained.lent(ready.people[who].test, person)
        ready = replace(ready, people={who: Splits(new, new, new)})
    shown = trained.on(ready, stream=RandomStream("predict"))
    # What a method predicts with is made from data, which a video has no labels for.
    if isgeneratorfunction(type(trained.method).model_on):
        return shown, own_model(trained, shown, person)
    return shown, shown.model(who)


def own_model(trained: TrainedRun, shown: TrainedRun, person: str | None) -> Params:
    """Parameters made from a participant's own data of the run; a newcomer's are those sent.

    Raises:
        ConfigError: a newcomer is sent no model, but several to choose from by labels.
    """
    if person is not None:
        return trained.model(person)
    if "model" not in trained.method.predicting(trained.server, NEWCOMER):
        raise ConfigError(
            f"'{called(trained.method)}' chooses a newcomer's model by labelled samples, and a "
            "video has none; choose --person, one who took part"
        )
    return shown.newcomer()


def true_gaze(video: Path, footage: Video) -> list[Point | None] | None:
    """Return recorded gaze per frame from a `gaze_2d.csv` beside the video, if there is one."""
    if not video.with_name("gaze_2d.csv").is_file():
        return None
    gaze = read_recording(video.parent).gaze_per_frame(footage)
    return [
        (float(x), float(y)) if ok else None
        for x, y, ok in zip(gaze.x, gaze.y, gaze.valid, strict=True)
    ]
