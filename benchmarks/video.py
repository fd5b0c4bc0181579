"""Measure video at speed: the generator, GLC forward at batch 1, live prediction, the clip cache.

Run `python -m benchmarks.video [--threads 1] [--video FILE ...]`: medians of wall and of CPU
seconds (of all threads), so that a busy machine shows. Frames per second are those of the CPU
column, per core. `--video` adds videos to the cache's measurement; files lie in the system's page
cache in the first load as in the second.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import av
import numpy as np
import torch

from benchmarks.common.options import options
from vergence.data.gaze_video.aria import SAMPLE, Aria
from vergence.data.gaze_video.clip_cache import ClipWindow, load_clips, open_video
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.errors import ConfigError
from vergence.models import pretrained
from vergence.models.glc.glc_features import GlcFeatures
from vergence.models.glc.glc_vit import SIZES, GlcVit
from vergence.video.overlay import draw, write_overlay

SECONDS, RATE, SIDE = 60, 24, (640, 480)
"""The recordings written for the cache: two people's, generated."""
CLIP = SAMPLE / "adt" / "rgb_upright.mp4"


def timed(work: Callable[[], object], repeats: int, warm: int = 1) -> tuple[float, float]:
    """Return median CPU and wall seconds of one call."""
    for _ in range(warm):
        work()
    marks = []
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        marks.append((time.process_time() - cpu, time.perf_counter() - wall))
    return median(m[0] for m in marks), median(m[1] for m in marks)


def show(what: str, cpu: float, wall: float, frames: float = 0) -> None:
    rate = f"{frames / cpu:9,.0f}" if frames else " " * 9
    print(f"{what:58} {1e3 * cpu:10.2f} {1e3 * wall:10.2f} {rate}")


def generator() -> None:
    data = EgoSynthetic()
    clip = data.simulate(0, 0)
    frames = np.arange(len(clip.gaze.event))
    show("generator: draw a clip of 120 frames", *timed(lambda: clip.draw(frames), 5), len(frames))
    whole = timed(lambda: data.render_clip(1, 0), 5)
    show("generator: the same with scene and gaze", *whole, len(frames))


@torch.inference_mode()
def forward() -> None:
    """One prediction per frame step: every step is a forward pass of a whole window."""
    for preset in ("tiny64", "cpu64"):
        size = SIZES[preset]
        torch.manual_seed(0)
        net = GlcVit(preset).build()
        video = torch.randn(1, size.frames, 3, size.pixels, size.pixels)
        show(f"forward: glc_vit {preset}, one window", *timed(lambda: net(video), 60, 10), 1)  # noqa: B023
    head = GlcFeatures().build()
    features = torch.randn(1, 1, pretrained.CHANNELS, 15, 20).half()
    show("forward: glc_features, head", *timed(lambda: head(features), 60, 10), 1)
    try:
        network = pretrained.load()
    except ConfigError as error:
        print(f"forward: glc_features, frozen part: {error}")
        return
    frame = torch.randint(0, 256, (1, 240, 320, 3), dtype=torch.uint8)
    both = timed(lambda: head(pretrained.extract(network, frame)[None].half()), 10, 2)
    show("forward: glc_features, frozen part and head, 320 x 240", *both, 1)


def live(path: Path) -> None:
    """What a prediction on a video takes beside the forward pass, per frame."""
    video = open_video(path)
    count = len(video.times_s)
    frames = list(video.frames())
    cells = (np.indices((16, 16)) - 7.5) / 16
    heat = np.exp(-(cells**2).sum(0) / (2 * 0.1**2))
    name = f"{video.width} x {video.height}"

    def per_frame(what: str, work: Callable[[], object]) -> None:
        cpu, wall = timed(work, 3)
        show(f"live: {what}", cpu / count, wall / count, 1)

    per_frame(f"decode {name}, squeeze to 64 x 64", lambda: video.read(width=64, height=64))
    per_frame(f"draw {name}", lambda: [draw(f, heat, (0.5, 0.5), (0.4, 0.4)) for f in frames])
    with tempfile.TemporaryDirectory() as place:
        written = (Path(place) / "a.mp4", frames, video.times_s.tolist(), [heat] * count)
        points = [(0.5, 0.5)] * count
        per_frame(f"draw and write H.264 {name}", lambda: write_overlay(*written, points))


def recordings(root: Path) -> Path:
    """Write a minute of video with gaze for each of two people."""
    times = np.arange(SECONDS * RATE) / RATE
    ramp = np.add.outer(np.arange(SIDE[1]), np.arange(SIDE[0]))
    for person in ("ann", "bob"):
        folder = root / person
        folder.mkdir(parents=True)
        with av.open(str(folder / "rgb_upright.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=RATE)
            stream.width, stream.height, stream.pix_fmt = *SIDE, "yuv420p"
            for i in range(len(times)):
                picture = np.repeat(((ramp + 3 * i) % 256).astype(np.uint8)[..., None], 3, -1)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        rows = [f"{i},{1e6 * t},{1e6 * t},0,0.5,0.5" for i, t in enumerate(times)]
        head = "frame,frame_timestamp_us,gaze_timestamp_us,dt_ms,x,y"
        (folder / "gaze_2d.csv").write_text("\n".join([head, *rows]) + "\n")
    return root


def cache(videos: list[Path], place: Path) -> None:
    root = str(recordings(place / "root"))
    options = Aria(stride_s=0.25)
    made = f"aria, 2 people x {SECONDS} s, {SIDE[0]} x {SIDE[1]} to 64 x 64"
    jobs: dict[str, Callable[[], object]] = {made: lambda: options.load(root)}
    packaged = sorted(SAMPLE.rglob("*.mp4"))
    for path in packaged + videos:
        video = open_video(path)
        label = path.relative_to(SAMPLE).parent if path in packaged else path.parent.name
        for size in ((64, 64), (video.width, video.height)):
            name = f"{label}, {len(video.times_s)} frames {size[0]} x {size[1]}"
            jobs[name] = lambda path=path, size=size: load_clips(
                [[ClipWindow(path, v := open_video(path), np.arange(len(v.times_s)))]], size
            )
    for number, (name, job) in enumerate(jobs.items()):
        first = []
        for turn in range(3):
            os.environ["VERGENCE_CACHE"] = str(place / f"{number}-{turn}")
            first.append(timed(job, 1, 0))
        show(f"cache: {name}: first", median(f[0] for f in first), median(f[1] for f in first))
        show("       second load", *timed(job, 5))


def main() -> None:
    given = options(
        __doc__.splitlines()[0], threads=1, video={"type": Path, "nargs": "*", "default": []}
    )
    torch.set_num_threads(given.threads)
    print(f"{given.threads} thread(s); {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"{'':58} {'CPU ms':>10} {'wall ms':>10} {'per CPU s':>9}")
    generator()
    forward()
    for path in (CLIP, *given.video):
        live(path)
    with tempfile.TemporaryDirectory() as place:
        os.environ["VERGENCE_CACHE"] = place
        cache(given.video, Path(place))


if __name__ == "__main__":
    main()
