"""Cameras: what is there, what is dropped, and what is said where nothing comes."""

import gc
import threading
import time
import wave
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import av
import numpy as np
import pytest
from av.video.frame import VideoFrame
from rich.console import Console

from tests.cli.commands import vergence
from tests.live.fabricated import STREAM, dots, write_model
from vergence.errors import ConfigError, DataError, PartialRun
from vergence.live import camera as cameras
from vergence.live import command
from vergence.live.camera import CameraOptions, LiveCamera
from vergence.live.views import MapView


def all_frames(camera, pause=0.0):
    taken = []
    with camera:
        while not camera.ended or not taken or taken[-1] is not None:
            taken.append(camera.newest(1.0))
            time.sleep(pause)
    return [frame for frame in taken if frame is not None]


def test_every_frame_of_a_file_is_taken_however_slow_one_is(tmp_path):
    camera = LiveCamera(str(dots(tmp_path / "a.mp4", 8)))
    found = all_frames(camera, pause=0.02)
    assert [frame.number for frame in found] == list(range(8))
    np.testing.assert_allclose([frame.time_s for frame in found], np.arange(8) / 30, atol=1e-4)
    assert camera.dropped == 0


def test_in_real_time_the_newest_frame_alone_waits(tmp_path):
    """30 frames in a second, and half a second for each that is taken."""
    camera = LiveCamera(str(dots(tmp_path / "a.mp4", 30)), CameraOptions(realtime=True))
    began = time.perf_counter()
    found = all_frames(camera, pause=0.5)
    assert time.perf_counter() - began > 29 / 30
    numbers = [frame.number for frame in found]
    assert numbers == sorted(set(numbers))
    assert camera.dropped == 30 - len(found)
    assert camera.dropped >= 20
    assert found[-1].number == 29


def test_a_looped_file_goes_on_with_increasing_times(tmp_path):
    camera = LiveCamera(str(dots(tmp_path / "a.mp4", 4)), CameraOptions(loop=True))
    with camera:
        found = [camera.newest(5.0) for _ in range(11)]
    np.testing.assert_allclose([frame.time_s for frame in found], np.arange(11) / 30, atol=1e-3)


def test_pictures_that_were_drawn_leave_memory_at_once(tmp_path):
    """A session of a minute held a gigabyte of them until Python looked for circles."""
    view = MapView(SimpleNamespace(width=16, height=16, next_map=lambda _: None))
    camera = LiveCamera(str(dots(tmp_path / "a.mp4", 8)), CameraOptions(loop=True))
    gc.collect()
    gc.disable()
    try:
        with camera:
            for _ in range(60):
                view.look(camera.newest(5.0))
        assert sum(isinstance(thing, VideoFrame) for thing in gc.get_objects()) < 8
    finally:
        gc.enable()


def test_a_rate_leaves_frames_out(tmp_path):
    camera = LiveCamera(str(dots(tmp_path / "a.mp4", 12)), CameraOptions(rate=10.0))
    found = all_frames(camera)
    np.testing.assert_allclose([frame.time_s for frame in found], np.arange(4) / 10, atol=1e-4)
    assert camera.dropped == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("77", r"77 is no camera that opens \(No such file"),
        ("nothing.mp4", "no camera or file nothing.mp4: give the number of a camera"),
        ("rtsp://127.0.0.1:9/x", r"no camera that opens \(Connection refused"),
    ],
)
def test_a_source_that_is_not_there(source, said):
    with pytest.raises(DataError, match=said):
        LiveCamera(source)


def test_files_without_video(tmp_path):
    text, sound = tmp_path / "a.mp4", tmp_path / "a.wav"
    text.write_text("not a video")
    with pytest.raises(DataError, match=r"is no video \(Invalid data"):
        LiveCamera(str(text))
    with wave.open(str(sound), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(800))
    with pytest.raises(DataError, match="has no video in it"):
        LiveCamera(str(sound))


def test_options_that_a_source_has_no_use_for(tmp_path):
    with pytest.raises(ConfigError, match="--loop and --realtime are for files"):
        LiveCamera("0", CameraOptions(loop=True))
    with pytest.raises(ConfigError, match="--rate must be above 0, got 0"):
        LiveCamera(str(dots(tmp_path / "a.mp4", 2)), CameraOptions(rate=0.0))


def test_a_camera_that_nobody_entered_is_closed(tmp_path, monkeypatch):
    """A name of a recording that is refused comes after the camera is open."""
    made = []

    class Watched(LiveCamera):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(command, "LiveCamera", Watched)
    model, video = write_model(tmp_path / "m.onnx", STREAM), dots(tmp_path / "a.mp4", 2)
    shown = command.OutputOptions(headless=True, record=video)
    with pytest.raises(ConfigError, match="is there already"):
        command.start(model, str(video), Console(), CameraOptions(), command.EyeOptions(), shown)
    with pytest.raises(AssertionError, match=r"(?i)not open|closed"):
        next(made[0].container.decode(video=0))


@pytest.fixture
def server(tmp_path):
    """A camera on the network that breaks off in the middle of what it promised."""
    path = tmp_path / "a.ts"
    source = dots(tmp_path / "a.mp4", 60)
    with av.open(str(source)) as read, av.open(str(path), "w", format="mpegts") as written:
        copy = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.dts is not None:
                packet.stream = copy
                written.mux(packet)
    data = path.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            whole = self.path == "/whole"
            self.send_response(200)
            self.send_header("Content-Length", str(len(data) if whole else 2 * len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    thread.join()
    found.server_close()


def test_a_stream_that_ends_and_one_that_breaks_off(server):
    camera = LiveCamera(f"{server}/whole")
    found = all_frames(camera)
    assert found
    assert camera.frames == 60
    with pytest.raises(PartialRun, match=r"broken broke off after \d+ frames .*is kept"):
        all_frames(LiveCamera(f"{server}/broken"))


def test_a_stream_that_breaks_off_leaves_what_was_recorded(server, tmp_path):
    model = write_model(tmp_path / "m.onnx", STREAM)
    record = ("--headless", "--record", tmp_path / "r.mp4")
    said = vergence("live", model, "--camera", f"{server}/broken", *record)
    said.complains(5, "broke off after", "what was recorded before is kept")
    with av.open(str(tmp_path / "r.mp4")) as container:
        shown = sum(1 for _ in container.decode(video=0))
    assert shown == len((tmp_path / "r.csv").read_text().splitlines()) - 1 > 0


@pytest.mark.parametrize(
    ("system", "source", "opened"),
    [
        ("linux", "1", ("/dev/video1", "v4l2", {})),
        ("linux", "/dev/video2", ("/dev/video2", "v4l2", {})),
        ("darwin", "0", ("0:none", "avfoundation", {"framerate": "30"})),
        ("linux", "a.mp4", ("a.mp4", None, {})),
        ("win32", "rtsp://host/a", ("rtsp://host/a", None, {})),
    ],
)
def test_the_format_of_a_device_on_each_system(monkeypatch, system, source, opened):
    monkeypatch.setattr(cameras.sys, "platform", system)
    assert cameras.device_options(source) == opened
