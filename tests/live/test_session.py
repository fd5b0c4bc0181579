"""A session: points where the dot is, statistics, recording, Ctrl-C, and no torch."""

import csv
import io
import signal
import subprocess
import sys
import time

import av
import numpy as np
import pytest
import torch
from rich.console import Console

from tests.cli.commands import run, vergence
from tests.live.fabricated import (
    EYES,
    STREAM,
    WINDOWS,
    dots,
    places,
    without,
    write_eyes,
    write_model,
)
from vergence.core.data import Samples, SharedRows
from vergence.data.io.video import rgb
from vergence.errors import ConfigError
from vergence.live.camera import CameraOptions, LiveCamera
from vergence.live.command import EyeOptions, OutputOptions, start
from vergence.live.eye_sources import EyeCamera
from vergence.live.gaze_models import EyeModel, open_model
from vergence.live.session import LiveSession
from vergence.live.statistics import LiveStatistics
from vergence.live.views import MapView, centre
from vergence.model_tools.onnx_export import assembled, converted, export
from vergence.models.glc.glc_causal import GlcCausal
from vergence.tasks.gaze_map import GazeMap
from vergence.video.streaming import stream

EYE_RUN = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 40, days = [3, 3], size = "9x15" }
method     = "fedper"
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""
LIVE = "from vergence.cli.main import main; main(); assert 'torch' not in sys.modules"


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def frames_of(path):
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_the_point_is_where_the_dot_is_and_the_recording_shows_it(tmp_path):
    model = write_model(tmp_path / "m.onnx", STREAM)
    video, said = dots(tmp_path / "dots.mp4", 12), io.StringIO()
    shown = OutputOptions(headless=True, record=tmp_path / "r.mp4")
    console = Console(file=said, width=200)
    end = start(model, str(video), console, CameraOptions(), EyeOptions(), shown)
    table = rows(tmp_path / "r.csv")
    assert list(table[0]) == ["frame", "t_s", "peak_x", "peak_y", "mean_x", "mean_y", "latency_ms"]
    found = np.array([[float(row["mean_x"]), float(row["mean_y"])] for row in table])
    np.testing.assert_allclose(found, places(12), atol=0.02)
    assert [int(row["frame"]) for row in table] == list(range(12))
    assert frames_of(tmp_path / "r.mp4") == end.recorded == end.statistics.frames == 12
    for name in ("r.mp4", "r.csv"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, "they show what a person saw"
    assert "ended after 12 frames: 12 frames in" in said.getvalue()
    assert "99th percentile; memory" in said.getvalue()


def test_frames_before_a_fixed_window_is_full_are_recorded_without_a_point(tmp_path):
    model = write_model(tmp_path / "m.onnx", WINDOWS.format(frames=5))
    shown = OutputOptions(headless=True, record=tmp_path / "r.mp4")
    video = str(dots(tmp_path / "dots.mp4", 8))
    end = start(model, video, Console(quiet=True), CameraOptions(), EyeOptions(), shown)
    table = rows(tmp_path / "r.csv")
    assert [row["mean_x"] == "" for row in table] == [True] * 4 + [False] * 4
    assert end.statistics.frames == 4
    wanted = [places(8)[n - 4 : n + 1, 0].mean() for n in range(4, 8)]
    np.testing.assert_allclose([float(row["mean_x"]) for row in table[4:]], wanted, atol=0.02)


class SlowView(MapView):
    """A model that needs 0.2 s."""

    def look(self, frame):
        time.sleep(0.2)
        return super().look(frame)


def test_a_slow_model_drops_frames_and_says_so(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", STREAM))
    video = str(dots(tmp_path / "dots.mp4", 30))
    end = LiveSession(LiveCamera(video, CameraOptions(realtime=True)), SlowView(model)).run()
    assert end.statistics.frames + end.dropped == 30
    assert end.dropped >= 20
    assert f"{end.dropped} dropped" in end.statistics.line(end.dropped)
    assert end.statistics.quantile_ms(0.5) >= 200


def test_time_is_over(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", STREAM))
    camera = LiveCamera(str(dots(tmp_path / "a.mp4", 4)), CameraOptions(realtime=True, loop=True))
    end = LiveSession(camera, MapView(model), seconds=0.5).run()
    assert end.why == "0.5 s are over"
    with pytest.raises(ConfigError, match="--seconds must be above 0, got -1"):
        LiveSession(camera, MapView(model), seconds=-1)


def test_quantiles_are_those_of_the_latencies():
    """Of 1 to 100 ms, each in the middle of its bin: half is at most 50, 99 of 100 at most 99."""
    found = LiveStatistics()
    for ms in range(1, 101):
        found.add((ms - 0.05) / 1000)
    assert found.quantile_ms(0.5) == pytest.approx(50.0)
    assert found.quantile_ms(0.99) == pytest.approx(99.0)
    found.add(3600.0)
    assert found.quantile_ms(1.0) >= 10_000


@pytest.mark.parametrize(("text", "task"), [(STREAM, "gaze_map"), (EYES, "gaze_angle")])
def test_torch_is_not_imported(tmp_path, text, task):
    model = write_model(tmp_path / "m.onnx", text, task)
    video = dots(tmp_path / "dots.mp4", 4)
    record = ("--record", tmp_path / "r.mp4")
    words = ("live", model, "--camera", video, "--headless", *record)
    done = without({"torch"}, LIVE, *words)
    assert done.returncode == 0, done.stderr
    assert "4 frames in" in done.stdout
    assert len(rows(tmp_path / "r.csv")) == 4


def test_ctrl_c_ends_cleanly_and_keeps_the_recording(tmp_path):
    model, video = write_model(tmp_path / "m.onnx", STREAM), dots(tmp_path / "dots.mp4", 6)
    words = ["live", model, "--camera", video, "--realtime", "--loop", "--headless"]
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heard + "from vergence.cli.main import main; main()"  # behind nohup it is ignored
    running = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--record", tmp_path / "r.mp4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    before = {"m.onnx", "dots.mp4"}
    deadline = time.monotonic() + 60
    while {path.name for path in tmp_path.rglob("*")} <= before and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert out.startswith("interrupted: ")
    table = rows(tmp_path / "r.csv")
    assert frames_of(tmp_path / "r.mp4") == len(table) > 0
    assert {path.name for path in tmp_path.iterdir()} == before | {"r.mp4", "r.csv"}


def test_bad_input_is_one_line(tmp_path):
    model, video = write_model(tmp_path / "m.onnx", STREAM), dots(tmp_path / "dots.mp4", 2)
    quiet = ("--camera", video, "--headless")
    vergence("live", tmp_path / "no.onnx", *quiet).complains(3, "no model at")
    vergence("live", model, "--camera", "no.mp4").complains(3, "no camera or file no.mp4")
    vergence("live", model, *quiet, "--person", "p01").complains(2, "--person and --correction")
    vergence("live", model, *quiet, "--correction", "c").complains(2, "are of a run")
    vergence("live", model, *quiet, "--face").complains(2, "--face is for eyes")
    vergence("live", model, *quiet, "--record", "a.avi").complains(2, "written as .mp4", "a.avi")
    vergence("live", model, *quiet, "--record", video).complains(2, "is there already")
    below = video / "r.mp4"
    vergence("live", model, *quiet, "--record", below).complains(5, "cannot write", "r.csv")
    vergence("live", tmp_path, *quiet).complains(2, "no run directory")
    wanted = ("--calibrate", tmp_path / "me.npz")
    vergence("live", model, *quiet, *wanted).complains(2, "leave out --headless")
    sized = ("--camera", video, *wanted, "--screen", "300x200")
    vergence("live", model, *sized).complains(2, "--calibrate is for models of eyes")
    vergence("live", model, "--camera", video, *wanted).complains(2, "--screen must be", "None")


def test_calibration_names_all_options_that_it_does_not_use(tmp_path):
    wanted = ("live", "m.onnx", "--calibrate", tmp_path / "me.npz", "--screen", "300x200")
    unused = {
        "--headless": (),
        "--smooth": ("0",),
        "--points": ("a.npz",),
        "--serve": ("0",),
        "--token": ("a",),
        "--record": ("a.mp4",),
        "--seconds": ("0",),
        "--person": ("p01",),
        "--correction": ("c.json",),
        "--threads": ("2",),
    }
    for name, value in unused.items():
        vergence(*wanted, name, *value).complains(2, f"leave out {name}")
    every = [part for name, value in unused.items() for part in (name, *value)]
    vergence(*wanted, *every).complains(2, f"leave out {', '.join(unused)}")
    vergence(*wanted).complains(3, "no model at m.onnx")


@pytest.mark.slow
def test_a_run_directory_of_eyes_is_taken_as_it_is(tmp_path):
    """Its file is written first; the last column of the table is what that file says."""
    out = run(tmp_path, EYE_RUN)
    video = write_eyes(tmp_path / "eyes.mp4", 5, lambda n: n)
    shown = OutputOptions(headless=True, record=tmp_path / "r.mp4")
    said = Console(quiet=True)
    end = start(out, str(video), said, CameraOptions(), EyeOptions(), shown, "p01")
    assert end.statistics.frames == 5
    path = tmp_path / "m.onnx"
    export(out, path, said, "p01")
    model = open_model(path)
    assert isinstance(model, EyeModel)
    with LiveCamera(str(video)) as camera:
        picture = rgb(camera.newest(5.0).picture, 120, 72)
    (patch,) = EyeCamera(model.height, model.width).patches(picture)
    first = rows(tmp_path / "r.csv")[0]
    wanted = model.gaze(patch.image, patch.seen.pose)
    np.testing.assert_allclose([float(first[name]) for name in model.columns], wanted, atol=1e-5)


@pytest.mark.slow
def test_a_stream_s_maps_are_torch_s(tmp_path, monkeypatch):
    """A causal network with noise: the recorded points are those of `stream` on the same frames."""
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    task = GazeMap(GlcCausal(16, 2, 1, (6, 8), context=3, motion=True))
    begun = task.init()
    drawn = torch.randn(begun.layout.n, generator=torch.Generator().manual_seed(2))
    clip = dots(tmp_path / "dots.mp4", 6)
    with LiveCamera(str(clip)) as camera:
        taken = iter(lambda: camera.newest(5.0), None)
        frames = np.stack([rgb(frame.picture, 64, 48) for frame in taken])
    shared = SharedRows(torch.from_numpy(frames), "ids")
    ids, points = torch.arange(6)[None], torch.full((1, 6, 1, 2), 0.5)
    data = Samples({"ids": ids, "points": points}, {"frames": shared})
    whole = assembled(task, begun + begun.like(drawn * 0.05), data.take(slice(0, 1)))
    told = {"vergence": "0.1.0", "task": "gaze_map"}
    path = tmp_path / "m.onnx"
    path.write_bytes(converted(whole, data.take(slice(0, 1)), told))
    shown = OutputOptions(headless=True, record=tmp_path / "r.mp4")
    start(path, str(clip), Console(quiet=True), CameraOptions(), EyeOptions(), shown)
    wanted = [centre(heat.numpy()) for heat in stream(whole, frames)]
    found = [[float(row["mean_x"]), float(row["mean_y"])] for row in rows(tmp_path / "r.csv")]
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.ptp(found, axis=0).min() > 1e-4
