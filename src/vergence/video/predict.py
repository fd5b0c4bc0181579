"""Gaze prediction on somebody's video with a trained model: overlay video and CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vergence.core.client import ClientContext
from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.data.gaze_video.aria import read as read_recording
from vergence.data.io.video import Video
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.errors import ConfigError, DataError, nearest
from vergence.experiment.saved_run import SavedRun, read_saved
from vergence.metrics.saliency import centre_of_mass
from vergence.results.read import read
from vergence.tasks.gaze_map import GazeMap
from vergence.video.overlay import OverlayFiles, contact_sheet, write_overlay

NEWCOMER = "newcomer"
Point = tuple[float, float]


def predict(folder: Path, video: Path, out: Path, person: str | None = None) -> OverlayFiles:
    """Write the overlay `out` (mp4), a CSV and a contact sheet (PNG) beside it.

    True gaze is drawn as a ring where a `gaze_2d.csv` lies beside the video.

    Args:
        folder: run directory of one method.
        video: any video PyAV can read.
        out: where the overlay goes.
        person: predict as this participant; default: as a newcomer, with the shared model.

    Raises:
        ConfigError: another task's run, an unknown person, or a newcomer without a shared model.
        DataError: the video is unreadable or shorter than the model's window.
    """
    saved = read_saved(folder)
    if not isinstance(saved.task, GazeMap):
        raise ConfigError(f"{folder} was trained on another task; predict draws gaze maps only")
    run = read(folder).runs[0]
    if person is not None and person not in run.people:
        raise ConfigError(f"{folder}: no person '{person}'{nearest(person, run.people)}")
    wanted = run.results["input"]
    footage = Video.open(video)
    window = wanted["frames"]
    if len(footage.times_s) < window:
        raise DataError(
            f"{video} has {len(footage.times_s)} frames, the model's window is {window}: "
            "give a longer video"
        )
    small = footage.read(width=wanted["width"], height=wanted["height"])
    heats = heat_maps(saved, samples(small, window), person)[: len(small)]
    points = [(float(x), float(y)) for x, y in centre_of_mass(torch.from_numpy(heats))]
    truth = true_gaze(video, footage)
    written = write_overlay(
        out, footage.frames(), footage.times_s.tolist(), heats, points, truth, slow=True
    )
    contact_sheet(out.with_suffix(".png"), footage.frames(), heats, points, truth)
    return written


def samples(frames: NDArray[np.uint8], window: int) -> Samples:
    """Cut frames `[n, H, W, 3]` into windows; the last one repeats the last frame."""
    count = -(-len(frames) // window)
    rows = torch.arange(count * window).clamp(max=len(frames) - 1).view(count, window)
    points = torch.full((count, window, 1, 2), torch.nan)
    return Samples(
        {"frame_ids": rows, "points": points},
        {"frames": SharedRows(torch.from_numpy(frames), "frame_ids")},
    )


def heat_maps(saved: SavedRun, data: Samples, person: str | None) -> NDArray[np.float64]:
    """Return one map per frame `[frames, h, w]`, each summing to 1."""
    raw = Federation("video", {person or NEWCOMER: Splits(data, data, data)})
    ready = saved.task.network.prepare(raw)
    how = Computation(pruning=saved.experiment.plan.pruning)
    local, stream = LocalData(ready, ready), RandomStream("predict")
    worker = ClientExecutor(saved.method, saved.task, local, stream, how)
    test = ready.people[person or NEWCOMER].test
    logits = worker.solver.outputs(model_of(saved, worker, person), test)
    assert isinstance(saved.task, GazeMap)
    heat = (logits.double() / saved.task.temperature).flatten(2).softmax(-1)
    return heat.view(-1, *logits.shape[2:]).numpy()


def model_of(saved: SavedRun, worker: ClientExecutor, person: str | None) -> Params:
    """Parameters that a participant, or a newcomer, predicts with."""
    offered = saved.method.predicting(saved.server, person or NEWCOMER)
    if person is None and not offered:
        people = ", ".join(saved.clients)
        raise ConfigError(
            f"{saved.folder} has no shared model for a newcomer; choose --person among {people}"
        )
    # Who never took part predicts as a newcomer does.
    state = saved.clients.get(person or NEWCOMER, saved.method.client(saved.task))
    who = person or NEWCOMER
    data = worker.people.people[who]
    site = ClientContext(who, data.train, data.val, saved.task, 0, RandomStream("predict"))
    message = Message("evaluate", offered, round=saved.experiment.plan.rounds)
    return worker.predicting(state, message, site)


def true_gaze(video: Path, footage: Video) -> list[Point | None] | None:
    """Return recorded gaze per frame from a `gaze_2d.csv` beside the video, if there is one."""
    if not video.with_name("gaze_2d.csv").is_file():
        return None
    gaze = read_recording(video.parent).gaze_per_frame(footage)
    return [
        (float(x), float(y)) if ok else None
        for x, y, ok in zip(gaze.x, gaze.y, gaze.valid, strict=True)
    ]
