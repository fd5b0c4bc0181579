"""How frames are looked for in a video: the seek, and the nearest frame of a time."""

from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.refusals import refuses
from vergence.data.io.video import VIDEOS, Video, rows_at, videos_in

PTS, FAR = 5000, 1000


class Container:
    """Frames that decoding gives after each seek, by their presentation times."""

    def __init__(self, *found):
        self.found, self.sought = iter(found), []

    def seek(self, target, stream):
        assert stream == "stream"
        self.sought.append(target)

    def decode(self, stream):
        assert stream == "stream"
        return (SimpleNamespace(pts=pts) for pts in next(self.found))


@pytest.mark.parametrize(
    ("found", "sought", "first", "behind"),
    [
        ([[4980, 4990, 5000]], [5000], 4980, [4990, 5000]),
        ([[5000, 5010]], [5000], 5000, [5010]),
        # An index that leads past the time, to nothing, or to a frame without a time.
        ([[5001], [3990, 4100]], [5000, 4000], 3990, [4100]),
        ([[], [4000]], [5000, 4000], 4000, []),
        ([[None, 4000], [], [10, 20]], [5000, 4000, 10], 10, [20]),
        ([[5001], [5001], [5001], [10, 20]], [5000, 4000, 10], None, [10, 20]),
    ],
)
def test_a_seek_goes_back_until_it_finds_a_frame_before_the_time(found, sought, first, behind):
    times = np.array([10, 20, PTS])
    video = Video(Path("a.mp4"), times / 1e3, 8, 8, times)
    container = Container(*found)
    frame, decoder = video._seek(container, "stream", PTS, FAR)
    assert container.sought == sought
    assert (frame and frame.pts) == first
    assert [each.pts for each in decoder] == behind


@pytest.mark.parametrize(
    ("now", "coming", "left"),
    [
        (None, [10, 20, 30], [30]),
        (10, [20, 30], [30]),
        (20, [30], [30]),
        (None, [None, 20, 30], [30]),
    ],
)
def test_frames_are_decoded_up_to_the_wanted_one(now, coming, left):
    video = Video(Path("a.mp4"), np.zeros(3), 8, 8, np.array([10, 20, 30]))
    frames = (SimpleNamespace(pts=pts) for pts in coming)
    frame = None if now is None else SimpleNamespace(pts=now)
    assert video._advance(frame, frames, 20, 1).pts == 20
    assert [each.pts for each in frames] == left


@pytest.mark.parametrize(("now", "coming"), [(None, []), (10, [15]), (10, [21, 20]), (30, [20])])
def test_a_frame_that_never_comes_is_named(now, coming):
    video = Video(Path("a.mp4"), np.zeros(3), 8, 8, np.array([10, 20, 30]))
    frame = None if now is None else SimpleNamespace(pts=now)
    with refuses("file-unreadable", "a.mp4", "frame 1 of 3"):
        video._advance(frame, (SimpleNamespace(pts=pts) for pts in coming), 20, 1)


@pytest.mark.parametrize("steps", [[0.04, 0.04, 0.1, 0.04], [0.5], []])
def test_the_nearest_frame_of_every_time(steps):
    """All distances are compared; of two equal ones the first is taken."""
    frames = np.cumsum([1.0, *steps])
    step = np.median(steps) if steps else 0
    edges = [frames[0] - step, frames[-1] + step]
    middles = (frames[1:] + frames[:-1]) / 2
    times = np.concatenate([edges, frames, middles, np.linspace(*edges, 50)])
    gaps = np.abs(times[:, None] - frames).round(12)
    assert rows_at(frames, times, "a.mp4").tolist() == gaps.argmin(1).tolist()
    for late in (edges[0] - 1e-3, edges[1] + 1e-3):
        said = f"time {late:.3f} s", f"({frames[0]:.3f} to {frames[-1]:.3f} s)"
        with refuses("outside-video", "a.mp4: ", *said):
            rows_at(frames, [frames[0], late, edges[0] - 9], "a.mp4")


def test_usual_videos_come_before_others(tmp_path):
    names = ["b.MKV", "a.mp4", "c.ts", "a.txt", "._a.mp4", "d.mp4.part"]
    for name in names:
        (tmp_path / name).touch()
    assert [p.name for p in videos_in(tmp_path)] == ["a.mp4", "b.MKV"]
    assert [p.name for p in videos_in(tmp_path, "c")] == ["c.ts"]
    assert [p.name for p in videos_in(tmp_path, usual=(".ts",))] == ["c.ts"]
    assert [p.name for p in videos_in(tmp_path, usual=(".avi",))] == ["a.mp4", "b.MKV", "c.ts"]
    assert VIDEOS[:6] == (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")


def test_far_frames_are_sought_and_near_ones_decoded(tmp_path, monkeypatch):
    """Two seconds after the frame before, or after the first one, are not yet far."""
    from tests.data.footage import number, write_video

    times = np.concatenate([[0, 2.0, 4.0, 6.001], 8.002 + np.arange(3)])
    video = Video.open(write_video(tmp_path / "a.mp4", times))
    asked = []
    real = Video._seek

    def seek(self, container, stream, pts, far):
        asked.append(int(np.flatnonzero(self.pts == pts)[0]))
        return real(self, container, stream, pts, far)

    monkeypatch.setattr(Video, "_seek", seek)
    for rows, sought in (
        ([0, 1, 2], []),
        ([2], [2]),
        ([1], []),
        ([2, 3], [2, 3]),
        ([4, 5, 6], [4]),
        ([4, 6, 6], [4]),
    ):
        asked.clear()
        assert [number(frame) for frame in video.frames(rows)] == rows
        assert asked == sought, rows
    assert len(list(chain(video.frames()))) == 7
