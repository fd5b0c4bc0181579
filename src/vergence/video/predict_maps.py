"""Gaze maps on a video or pictures, predicted by a finished run: overlays, tables, arrays.

Used by `video.predict` and `video.predict_angles`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import isgeneratorfunction
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vergence import profiling
from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.files import csv_of, replacing, write_text
from vergence.core.naming import registry_name
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.data.gaze_video.aria import read as read_recording
from vergence.data.gaze_video.recording import Recording, WindowOptions
from vergence.data.io.checks import with_progress
from vergence.data.io.video import Video, videos_in
from vergence.errors import ConfigError, DataError, VergenceError
from vergence.experiment.trained_run import NEWCOMER, TrainedRun
from vergence.metrics.personal_priors import whole_prior
from vergence.metrics.saliency import peak
from vergence.models.glc.glc_causal import GlcCausal, GlcCausalNet
from vergence.results.read import read
from vergence.tasks.gaze_map import GazeMap
from vergence.training.pruning import bind_parameters
from vergence.video.eye_patches import PICTURES, opened_source
from vergence.video.overlay import (
    COLUMNS,
    OverlayFiles,
    contact_sheet,
    write_overlay,
    write_pictures,
)
from vergence.video.streaming import StreamingModel, stream

Point = tuple[float, float]
LEVELS = 2
"""Number of folders above a video that may be the root of a data set: its recording's, its
person's."""


def predict_maps(
    trained: TrainedRun, source: Path, out: Path, person: str | None, maps: Path | None
) -> OverlayFiles:
    """Draw gaze maps on a video, a picture or a folder of pictures; see `predict`."""
    wanted = read(trained.folder).runs[0].results["input"]
    if source.is_dir() and (videos := videos_in(source)):
        return _on_videos(trained, source, videos, out, person, maps)
    if source.is_dir() or source.suffix.lower() in PICTURES:
        return _on_pictures(trained, source, out, person, wanted, maps)
    with profiling.phase("data"):
        footage = Video.open(source)
    heats = predicted(trained, footage, wanted, person)
    points, truth = _points(heats), true_gaze(trained, source, footage)
    with profiling.phase("report"):
        written = write_overlay(
            out, footage.frames(), footage.times_s.tolist(), heats, points, truth, slow=True
        )
        contact_sheet(out.with_suffix(".png"), footage.frames(), heats, points, truth)
        write_maps(maps, heats, footage.times_s, [str(number) for number in range(len(heats))])
    return written


def _points(heats: NDArray[np.float64]) -> list[Point]:
    """Return the peak of every map: x and y in [0, 1]."""
    return [(float(x), float(y)) for x, y in peak(torch.from_numpy(heats))]


def write_maps(
    path: Path | None,
    heats: NDArray[np.float64],
    times_s: NDArray[np.float64],
    names: Sequence[str],
) -> None:
    """Write maps as an npz, unless `path` is None."""
    if path is None:
        return
    with replacing(path) as scratch, scratch.open("wb") as file:
        np.savez_compressed(
            file,
            allow_pickle=False,
            maps=heats.astype(np.float32),
            time_s=times_s,
            name=np.asarray(names),
        )


def _on_videos(
    trained: TrainedRun,
    source: Path,
    videos: Sequence[Path],
    out: Path,
    person: str | None,
    maps: Path | None,
) -> OverlayFiles:
    """Draw maps on each video of a folder; `out` and `maps` are folders, with one joint table."""
    others = [path.name for path in sorted(source.iterdir()) if path.suffix.lower() in PICTURES]
    stems = [video.stem for video in videos]
    if others or len({*stems}) < len(stems):
        raise ConfigError(
            f"{source} has videos and the picture {others[0]}: give each kind a folder of its own"
            if others
            else f"{source} has two videos of one name, apart from their endings: rename one"
        )
    rows, frames = [["video", *COLUMNS]], 0
    for video, _ in zip(videos, with_progress(videos, "videos"), strict=True):
        out.mkdir(parents=True, exist_ok=True)
        npz = None if maps is None else maps / f"{video.stem}.npz"
        if maps is not None:
            maps.mkdir(parents=True, exist_ok=True)
        one = predict_maps(trained, video, out / f"{video.stem}.mp4", person, npz)
        with one.table.open(newline="", encoding="utf-8") as file:
            rows += [[video.name, *row] for row in list(csv.reader(file))[1:]]
        frames += one.frames
    table = out.with_name(f"{out.name}.csv")
    write_text(table, csv_of(rows))
    return OverlayFiles(out, table, frames, 0.0, 1.0)


def _on_pictures(
    trained: TrainedRun,
    source: Path,
    out: Path,
    person: str | None,
    wanted: Mapping[str, int],
    maps: Path | None,
) -> OverlayFiles:
    """Draw a map on each picture; `out` is a PNG, or for a folder a folder of PNG files."""
    pictures = opened_source(source)
    frames = list(pictures.frames)
    size = (wanted["width"], wanted["height"])
    small = [np.asarray(Image.fromarray(f).resize(size, Image.Resampling.BICUBIC)) for f in frames]
    # A picture is a video that stands still: all frames show it, and the last map counts.
    window = wanted["frames"]
    shown = samples(np.repeat(np.stack(small), window, 0), window)
    heats = heat_maps(trained, shown, person)[window - 1 :: window]
    files = [out / f"{name}.png" for name in pictures.names] if source.is_dir() else [out]
    write_maps(maps, heats, np.zeros(len(heats)), pictures.names)
    # A folder's name may have a dot, and no ending.
    table = out.with_name(f"{out.name}.csv") if source.is_dir() else out.with_suffix(".csv")
    return write_pictures(files, table, pictures.names, frames, heats, _points(heats))


def predicted(
    trained: TrainedRun, footage: Video, wanted: Mapping[str, int], person: str | None
) -> NDArray[np.float64]:
    """Predict one map per frame `[frames, h, w]`, from windows of frames or from a stream.

    `wanted` gives the number of `frames` of a window, and their `width` and `height`.

    Raises:
        DataError: the video is shorter than the window.
    """
    width, height = wanted["width"], wanted["height"]
    if isinstance(trained.task.network, GlcCausal):
        return stream_maps(trained, footage.frames(width=width, height=height), person)
    window = wanted["frames"]
    if len(footage.times_s) < window:
        raise DataError(
            f"{footage.path} has {len(footage.times_s)} frames, the model's window is {window}: "
            "give a longer video"
        )
    with profiling.phase("data"):
        small = footage.read(width=width, height=height)
    # The last window repeats its last frame: those maps are cut off.
    return heat_maps(trained, samples(small, window), person)[: len(small)]


def samples(frames: NDArray[np.uint8], window: int) -> Samples:
    """Cut frames `[n, H, W, 3]` into windows; the last one repeats the last frame."""
    count = -(-len(frames) // window)
    rows = torch.arange(count * window).clamp(max=len(frames) - 1).view(count, window)
    # Nobody has looked at these frames: NaN is the reader's mark of a missing gaze point.
    points = torch.full((count, window, 1, 2), torch.nan)
    return Samples(
        {"frame_ids": rows, "points": points},
        {"frames": SharedRows(torch.from_numpy(frames), "frame_ids")},
    )


def heat_maps(trained: TrainedRun, data: Samples, person: str | None) -> NDArray[np.float64]:
    """Predict one map per frame of windows, `[frames, h, w]`, each with sum 1.

    Raises:
        ConfigError: no person is given, and the run has no shared model.
    """
    shown, params = model_for(trained, data, person)
    task, test = trained.task, next(iter(shown.ready.people.values())).test
    with profiling.phase("forward"):
        logits = shown.outputs(params, test)
    assert isinstance(task, GazeMap)
    heat = (logits.double() / task.temperature).flatten(2).softmax(-1)
    return heat.view(-1, *logits.shape[2:]).numpy()


def stream_maps(
    trained: TrainedRun, frames: Iterator[NDArray[np.uint8]], person: str | None
) -> NDArray[np.float64]:
    """Predict one map per frame of a stream, `[frames, h, w]`; only the state stays in memory.

    Raises:
        ConfigError: no person is given, and the run has no shared model.
    """
    first = next(frames)
    shown, params = model_for(trained, samples(first[None], 1), person)
    task, test = trained.task, next(iter(shown.ready.people.values())).test
    network = bind_parameters(task.module(), params)
    assert isinstance(task, GazeMap)
    assert isinstance(network, GlcCausalNet)
    prior = whole_prior(test)[None] if task.own_prior else None
    model = StreamingModel(task, network, prior).eval()
    with profiling.phase("forward"):
        heats = [heat.double().numpy() for heat in stream(model, chain([first], frames))]
    return np.stack(heats)


def model_for(trained: TrainedRun, data: Samples, person: str | None) -> tuple[TrainedRun, Params]:
    """Return the run with new data of a participant or an unseen client, and their parameters.

    Raises:
        ConfigError: no person is given, and the run has no shared model.
    """
    who, task = person or NEWCOMER, trained.task
    if person is None and not trained.offers_newcomer():
        raise ConfigError(
            f"{trained.folder} has no shared model for a newcomer; choose --person among "
            f"{', '.join(trained.clients)}"
        )
    with profiling.phase("features"):
        ready = task.network.prepare(Federation("video", {who: Splits(data, data, data)}))
        new = trained.with_personal_prior(ready.people[who].test, person)
        ready = replace(ready, people={who: Splits(new, new, new)})
    shown = trained.on_data(ready, stream=RandomStream("predict"))
    # Such a method fits a model to labelled data before it predicts, and a video has no labels.
    if isgeneratorfunction(type(trained.method).model_on):
        return shown, parameters_for(trained, shown, person)
    return shown, shown.model(who)


def parameters_for(trained: TrainedRun, shown: TrainedRun, person: str | None) -> Params:
    """Return parameters fitted to a participant's data of the run, or the shared ones.

    Raises:
        ConfigError: the method chooses an unseen client's model by labelled samples.
    """
    if person is not None:
        return trained.model(person)
    if "model" not in trained.method.prediction_trees(trained.server, NEWCOMER):
        raise ConfigError(
            f"'{registry_name(trained.method)}' chooses a newcomer's model by labelled samples, "
            "and a video has none; choose --person, one who took part"
        )
    return shown.newcomer()


def true_gaze(trained: TrainedRun, video: Path, footage: Video) -> list[Point | None] | None:
    """Recorded gaze per frame, from the run's reader or a `gaze_2d.csv`; None without any."""
    recording = find_recording(trained.experiment.dataset, video)
    if recording is None and video.with_name("gaze_2d.csv").is_file():
        recording = read_recording(video.parent)
    if recording is None:
        return None
    times = footage if recording.video is None else recording.footage()
    gaze = recording.gaze_per_frame(times)
    return [
        (float(x), float(y)) if ok else None
        for x, y, ok in zip(gaze.x, gaze.y, gaze.valid, strict=True)
    ]


def find_recording(dataset: Dataset, video: Path) -> Recording | None:
    """Find the recording of a video with a run's data set, in the folders above the video.

    None where the data set reads no recordings, or has none of this video.
    """
    if not isinstance(dataset, WindowOptions):
        return None
    for root in video.resolve().parents[:LEVELS]:
        # A folder that is no such data set is the usual case: true gaze is optional.
        with suppress(VergenceError):
            for recording in dataset.recordings(root):
                if recording.video is not None and recording.video.resolve() == video.resolve():
                    return recording
    return None
