"""Measure a causal gaze model against a windowed one: milliseconds a frame, and the Aria clips.

Run `python -m benchmarks.causal [RUN ...]`: processor time of one frame at batch 1 on one thread,
for frames of `--size` pixels; then, for every RUN (run directory of one method), NSS and angular
errors of a newcomer's maps on the three packaged Aria clips, all frames with gaze together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from vergence.core.data import Samples
from vergence.data.gaze_video.aria import SAMPLE
from vergence.data.io.video import Video
from vergence.experiment.trained_run import read_run
from vergence.model_tools.latency import medians
from vergence.models import pretrained
from vergence.models.glc.glc_causal import GlcCausal
from vergence.models.glc.glc_features import GlcFeatures
from vergence.results.read import read
from vergence.tasks.gaze_map import GazeMap
from vergence.video.predict_maps import predicted, true_gaze
from vergence.video.streaming import StreamingModel

WINDOW = 8
"""Frames that the windowed head sees again at every frame, to give the newest one's map."""
SHOWN = ("nss", "angle_error_deg", "angle_error_peak_deg")


def frame_ms(width: int, height: int) -> dict[str, float]:
    """Return median processor milliseconds of one frame, by what is done with it."""
    rows, columns = (-(-side // pretrained.STRIDE) for side in (height, width))
    grid = (2 * rows, 2 * columns)
    drawn = torch.Generator().manual_seed(0)
    frame = torch.randint(0, 256, (1, height, width, 3), generator=drawn, dtype=torch.uint8)
    frozen = pretrained.load()
    windowed = GlcFeatures(width=32, grid=grid).build()
    window = torch.randn(1, WINDOW, pretrained.CHANNELS, rows, columns)
    calls = {
        "frozen features": lambda: pretrained.extract(frozen, frame),
        f"windowed head, window of {WINDOW}": lambda: windowed(window),
    }
    for moves in (False, True):
        options = GlcCausal(grid=grid, motion=moves)
        task, network = GazeMap(options), options.build()
        whole = StreamingModel(task, network).eval()
        start = whole.start(height, width)
        name = ", with motion" if moves else ""
        entered = torch.randn(1, network.reduce.in_channels, rows, columns)
        context = network.start(entered[:, None])
        calls[f"causal head{name}"] = lambda n=network, e=entered, c=context: n.step(e, c)
        calls[f"causal, a frame to its map{name}"] = lambda w=whole, s=start: w(frame, *s)
    with torch.inference_mode():
        return dict(zip(calls, medians(list(calls.values()), rounds=100), strict=True))


def aria_scores(folder: Path) -> dict[str, float]:
    """Return the scores of a newcomer's maps on all frames of the packaged clips."""
    trained, wanted = read_run(folder), read(folder).runs[0].results["input"]
    assert isinstance(trained.task, GazeMap)
    heats, points = [], []
    for video in sorted(SAMPLE.rglob("*.mp4")):
        footage = Video.open(video)
        shape = {**wanted, "frames": min(wanted["frames"], len(footage.times_s))}
        heats.append(torch.from_numpy(predicted(trained, footage, shape, None)))
        gaze = true_gaze(trained, video, footage) or []
        points.append(torch.tensor([p or (torch.nan, torch.nan) for p in gaze]))
    logits = torch.cat(heats).log()[:, None] * trained.task.temperature
    samples = Samples({"points": torch.cat(points).float()[:, None, None]})
    found = trained.task.metrics(logits, samples)
    return {name: found[name] for name in SHOWN}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--size", type=int, nargs=2, default=(320, 180), metavar=("W", "H"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, ms in frame_ms(*options.size).items():
        print(f"{name:42} {ms:8.2f} ms {1e3 / ms:9.1f} a second")
    for folder in options.runs:
        scores = aria_scores(folder)
        print(f"{folder}: " + ", ".join(f"{name} {value:.2f}" for name, value in scores.items()))


if __name__ == "__main__":
    main()
