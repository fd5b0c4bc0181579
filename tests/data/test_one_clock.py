"""One clock: frames are timed from the first one, whatever the container says, for every reader.

Gaze of every small recording jumps at frame 12; the video's first frame stands at 0, 3 or 1.4 s in
the container.
"""

from fractions import Fraction

import av
import numpy as np
import pytest

from tests.data.footage import number, write_csv, write_video
from tests.data.small_recordings import ANY, FRAMES, GAZE, JUMP, MP4, X, video
from vergence.data.gaze_video.clip_cache import open_video
from vergence.data.io.video import VIDEOS, Video
from vergence.data.saliency.stimuli import Stimuli

CASES = [
    *((name, start, "mp4") for name in (*ANY, *MP4) for start in (0.0, 3.0)),
    *((name, 3.0, ending) for name in ANY for ending in ("mkv", "webm", "ts")),
    ("table", 1.4, "m2ts"),
]


@pytest.mark.parametrize(("reader", "start_s", "ending"), CASES)
def test_gaze_jumps_at_the_frame_at_which_it_does(tmp_path, reader, start_s, ending):
    (recording,) = {**ANY, **MP4}[reader](tmp_path, start_s, ending)
    footage = recording.footage()
    frames = recording.gaze_per_frame(footage)
    assert len(footage.times_s) == len(FRAMES)
    assert frames.valid.all()
    assert (frames.x > 0.5).tolist() == [i >= JUMP for i in range(len(FRAMES))]


@pytest.mark.parametrize("ending", ["mp4", "mkv", "webm", "ts"])
def test_videos_shown_on_a_screen(tmp_path, ending):
    rows = []
    for k in range(3):
        video(tmp_path / "stimuli" / f"v{k}.{ending}", 3.0)
        shown = [(100 * k + t, 100 * x, 50, f"v{k}") for t, x in zip(GAZE, X, strict=True)]
        rows += shown
    write_csv(tmp_path / "p1.csv", "t,x,y,stimulus", rows)
    columns = {"t": "t", "x": "x", "y": "y", "unit": "px", "t_unit": "s", "stimulus": "stimulus"}
    options = {"place": "fill", "screen": (100, 100), "shares": (0.4, 0.3, 0.3)}
    data = Stimuli(columns=columns, size=(16, 16), window=2, step_s=0.1, stride_s=0.2, **options)
    people = data.load(str(tmp_path)).people
    test = people["p1"].test
    bank = test.banks["frames"].rows
    for frames, points in zip(test.columns["frame_ids"], test.columns["points"], strict=True):
        for frame, point in zip(frames, points, strict=True):
            assert (number(bank[frame].numpy()) >= JUMP) == bool(point[0, 0] > 0.5)


@pytest.mark.parametrize("ending", [e for e in VIDEOS if e not in (".avi", ".mpg", ".mpeg")])
def test_every_container_begins_at_zero(tmp_path, ending):
    """B-frames have negative decoding times; the cache of frame times gives the same."""
    codec = {".webm": "libvpx", ".wmv": "wmv2", ".flv": "flv"}.get(ending, "libx264")
    path = tmp_path / f"a{ending}"
    bframes = 2 if codec == "libx264" else 0
    write_video(path, FRAMES + 3, codec=codec, bframes=bframes)
    for found in (Video.open(path), open_video(path), open_video(path)):
        assert found.times_s == pytest.approx(FRAMES, abs=2e-3)
        assert found.start_s == pytest.approx(3.0, abs=2e-3)


def test_sound_that_begins_before_the_picture(tmp_path):
    """Frames from 0.5 s in a file whose sound starts at 0: the first frame is at 0 all the same."""
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        film = container.add_stream("mpeg4", rate=10)
        film.width, film.height, film.pix_fmt = 64, 48, "yuv420p"
        film.codec_context.time_base = Fraction(1, 10)
        sound = container.add_stream("aac", rate=48_000, layout="mono")
        for i in range(100):
            block = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            block.rate, block.pts, block.time_base = 48_000, 1024 * i, Fraction(1, 48_000)
            container.mux(sound.encode(block))
        for i in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 99, np.uint8), "rgb24")
            frame.pts, frame.time_base = 5 + i, Fraction(1, 10)
            container.mux(film.encode(frame))
        container.mux([*film.encode(), *sound.encode()])
    found = Video.open(path)
    assert found.times_s == pytest.approx(np.arange(10) / 10)
    assert found.start_s == pytest.approx(0.5, abs=0.03)
