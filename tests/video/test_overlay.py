"""The overlay video decodes to what was drawn, with its times, and fails whole."""

import csv
import math
import resource

import av
import numpy as np
import pytest
from PIL import Image

from vergence.errors import ConfigError, PartialRun
from vergence.video.overlay import COLUMNS, TRUE_RGB, blend, contact_sheet, draw, write_overlay

SIZE = (180, 240)
TIMES = (10.0, 10.1, 10.15, 10.3)
"""Uneven on purpose: 100, 50 and 150 ms."""


def scenes(count=4):
    frames = [np.full((*SIZE, 3), 90, np.uint8) for _ in range(count)]
    yy, xx = np.mgrid[:18, :24]
    heats = [np.exp(-((xx - 5) ** 2 + (yy - 4) ** 2) / 8).astype(np.float32) for _ in range(count)]
    points = [(0.25, 0.25)] * count
    truth = [(0.75, 0.5), None, (math.nan, math.nan), (0.5, 0.75)][:count]
    return frames, heats, points, truth


def decode(path):
    with av.open(str(path)) as container:
        shown = [(f.time, f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
        length = float(container.duration / av.time_base)
        return container.streams.video[0].codec_context.name, length, shown


def near(pixels, colour, tolerance=60):
    return np.abs(pixels.astype(int) - colour).max(axis=-1) <= tolerance


def test_video_keeps_size_count_and_uneven_times(tmp_path):
    frames, heats, points, truth = scenes()
    done = write_overlay(tmp_path / "a.mp4", frames, TIMES, heats, points, truth)
    codec, _, shown = decode(done.video)
    assert codec == "h264"
    assert [picture.shape for _, picture in shown] == [(180, 240, 3)] * 4
    assert [t for t, _ in shown] == pytest.approx([0, 0.1, 0.15, 0.3], abs=1e-4)
    assert (done.frames, done.slow_down) == (4, 1.0)


def test_ring_is_where_the_true_gaze_is_and_only_where_known(tmp_path):
    """Ring mark: 17 px wide, inner margin 1/8, so its line runs 6 px from (180, 90)."""
    frames, heats, points, truth = scenes()
    write_overlay(tmp_path / "a.mp4", frames, TIMES, heats, points, truth)
    _, _, shown = decode(tmp_path / "a.mp4")
    centres = [(180, 90), None, None, (120, 135)]
    for (_, picture), centre in zip(shown, centres, strict=True):
        above = picture[:150]
        cyan = near(above, TRUE_RGB) & (above[..., 2].astype(int) > above[..., 0] + 60)
        if centre is None:
            assert not cyan.any()
            continue
        y, x = np.argwhere(cyan).mean(axis=0)
        assert (x, y) == pytest.approx(centre, abs=1.5)
        radius = np.hypot(*(np.argwhere(cyan) - [centre[1], centre[0]]).T)
        assert 4 <= radius.mean() <= 9
        inside = picture[centre[1], centre[0]]
        np.testing.assert_allclose(inside, 90, atol=12)


def test_heat_is_warm_at_its_peak_and_clear_far_away():
    """The map's peak cell (5, 4) of 24 x 18 lies at pixel (55, 45) of 240 x 180."""
    frames, heats, *_ = scenes(1)
    picture = blend(frames[0], heats[0]).astype(int)
    assert picture[45, 55].sum() > 3 * 150
    assert picture[45, 55, 0] > picture[45, 55, 2] + 40
    np.testing.assert_array_equal(picture[170, 230], 90)


def test_cross_marks_the_prediction():
    frames, *_ = scenes(1)
    picture = draw(frames[0], None, (0.75, 0.5), legend=False).astype(int)
    assert picture[90, 180].min() > 200
    np.testing.assert_array_equal(picture[30, 30], 90)


def test_table_beside_the_video(tmp_path):
    """Error of frame 0: (0.5 * 240, 0.25 * 180) = (120, 45) px, length 128.16 of diagonal 300."""
    frames, heats, points, truth = scenes()
    done = write_overlay(tmp_path / "a.mp4", frames, TIMES, heats, points, truth)
    with done.table.open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [float(r["t_s"]) for r in rows] == pytest.approx(TIMES)
    assert float(rows[0]["error_share"]) == pytest.approx(0.42720, abs=1e-5)
    assert rows[1]["error_share"] == rows[2]["true_x"] == ""
    assert 0.2 < float(rows[0]["confidence"]) < 1


def test_confidence_is_the_share_of_heat_near_the_point(tmp_path):
    """All heat in the cell around (0.25, 0.25): 1 there, and 0 for a point far away."""
    frames, _, _, _ = scenes(2)
    heat = np.zeros((2, 2), np.float32)
    heat[0, 0] = 0.3
    done = write_overlay(tmp_path / "a.mp4", frames, [0, 1], [heat] * 2, [(0.25, 0.25), (0.9, 0.9)])
    with done.table.open() as file:
        assert [float(r["confidence"]) for r in csv.DictReader(file)] == [1.0, 0.0]


def test_slow_stretches_a_short_clip_to_three_seconds(tmp_path):
    """Six frames at 30 per second last 0.2 s: factor 15, half a second each."""
    frames, heats, points, _ = scenes(1)
    times = [i / 30 for i in range(6)]
    done = write_overlay(tmp_path / "a.mp4", frames * 6, times, heats * 6, points * 6, slow=True)
    _, length, shown = decode(done.video)
    assert done.slow_down == pytest.approx(15)
    assert [t for t, _ in shown] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])
    assert length == pytest.approx(3.0, abs=0.05)
    with done.table.open() as file:
        assert float(list(csv.DictReader(file))[5]["t_s"]) == pytest.approx(5 / 30, abs=1e-6)


def test_long_clips_are_not_slowed(tmp_path):
    frames, heats, points, _ = scenes(4)
    done = write_overlay(tmp_path / "a.mp4", frames, [0, 1, 2, 3], heats, points, slow=True)
    assert done.slow_down == 1.0


def test_odd_sizes_are_padded_to_even(tmp_path):
    frames = [np.full((75, 101, 3), 50, np.uint8)] * 2
    heats = [np.ones((3, 4), np.float32)] * 2
    write_overlay(tmp_path / "a.mp4", frames, [0, 0.1], heats, [(0.5, 0.5)] * 2)
    assert decode(tmp_path / "a.mp4")[2][0][1].shape == (76, 102, 3)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([0, 0.1, 0.1, 0.2], "frame 2 is at 0.1 s after 0.1 s"),
        ([0, 0.1, 0.2], "there are 3 times and more of frames"),
        ([0, 0.1, 0.2, 0.3, 0.4], "there are 4 frames and heat maps and points and more of times"),
        ([], "at least one frame"),
    ],
)
def test_times_that_do_not_fit_are_refused(tmp_path, times, told):
    frames, heats, points, _ = scenes()
    with pytest.raises(ConfigError, match=told):
        write_overlay(tmp_path / "a.mp4", frames, times, heats, points)
    assert not list(tmp_path.iterdir())


def test_full_disk_is_one_clear_error_and_leaves_the_old_file(tmp_path):
    """The process may write 20 kB per file; noise frames need far more."""
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (*SIZE, 3), dtype=np.uint8) for _ in range(20)]
    heats, points = [np.ones((2, 2), np.float32)] * 20, [(0.5, 0.5)] * 20
    old = tmp_path / "a.mp4"
    old.write_bytes(b"what was there before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(PartialRun, match=r"cannot write .*a\.mp4: File too large"):
            write_overlay(old, frames, [i / 10 for i in range(20)], heats, points)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert old.read_bytes() == b"what was there before"
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_contact_sheet_shows_up_to_six_frames(tmp_path):
    frames, heats, points, truth = scenes()
    path = contact_sheet(
        tmp_path / "s.png", frames * 2, heats * 2, points * 2, truth * 2, width=600
    )
    sheet = np.asarray(Image.open(path).convert("RGB"))
    assert sheet.shape == (2 * 148 + 3, 600, 3)
    assert near(sheet, TRUE_RGB, 40).sum() > 20
    with pytest.raises(ConfigError, match="at least one frame"):
        contact_sheet(tmp_path / "t.png", [], [], [])
