"""Video by timestamps; and recordings cut into windows, split and decoded."""

import struct

import numpy as np
import pytest

from tests.data.footage import number, write_csv, write_video
from tests.refusals import refuses
from vergence.data.gaze_video.aria import Aria
from vergence.data.gaze_video.gaze import Gaze
from vergence.data.gaze_video.recording import Recording, WindowOptions, cut_windows
from vergence.data.io.video import Video
from vergence.errors import ConfigError, DataError
from vergence.video.encode import encode

UNEVEN = np.concatenate(
    [np.arange(20) * 0.04, 1.5 + np.arange(20) * 0.1, 6 + np.arange(20) * 0.033]
)


def test_frames_are_found_by_time_in_a_video_of_uneven_rate(tmp_path):
    """At the mean rate, 60 frames in 6.6 s, frame 25 would be at 2.8 s; it is at 2.0 s."""
    video = Video.open(write_video(tmp_path / "a.mp4", UNEVEN))
    assert video.times_s == pytest.approx(UNEVEN, abs=6e-4)
    rows = video.rows_at([0.0, 0.05, 2.0, 3.9, 6.3])
    assert rows.tolist() == [0, 1, 25, 39, 49]
    assert [number(f) for f in video.frames(rows.tolist())] == [0, 1, 25, 39, 49]


def test_every_frame_alone_and_all_together_with_and_without_seeking(tmp_path):
    video = Video.open(write_video(tmp_path / "a.mp4", UNEVEN))
    assert [number(f) for f in video.frames()] == list(range(60))
    for row in (0, 13, 19, 20, 33, 40, 59):
        assert number(next(video.frames([row]))) == row
    assert [number(f) for f in video.frames([3, 3, 58])] == [3, 3, 58]


def test_key_frames_are_before_the_times(tmp_path):
    """The first of every 12 frames is a key frame: 5 is after 0, 15 after 12, 59 after 48."""
    written = write_video(tmp_path / "a.mp4", np.arange(60) / 10, codec="libx264", bframes=2)
    video = Video.open(written)
    assert video.key_rows([0.5, 1.5, 5.9]).tolist() == [0, 12, 48]
    with pytest.raises(DataError, match="outside the video"):
        video.key_rows([7.0])


def test_frames_are_resized(tmp_path):
    video = Video.open(write_video(tmp_path / "a.mp4", UNEVEN[:3]))
    assert (video.width, video.height) == (64, 48)
    frames = video.read([0, 2], width=32, height=16)
    assert frames.shape == (2, 16, 32, 3)
    assert frames.dtype == np.uint8


@pytest.mark.parametrize(
    ("matrix", "brightest", "middle"),
    [
        ((1, 0, 0, 1), (0, 0), (0, 1)),
        ((-1, 0, 0, 1), (0, 1), (0, 0)),
        ((1, 0, 0, -1), (1, 0), (1, 1)),
        ((-1, 0, 0, -1), (1, 1), (1, 0)),
        ((0, 1, -1, 0), (0, 1), (1, 1)),
        ((0, -1, 1, 0), (1, 0), (0, 0)),
        ((0, 1, 1, 0), (0, 0), (1, 0)),
        ((0, -1, -1, 0), (1, 1), (0, 1)),
    ],
)
def test_a_phone_video_is_shown_upright(tmp_path, matrix, brightest, middle):
    """The display matrix of an mp4 (a, b; c, d) puts the pixel (x, y) at (a x + c y, b x + d y).

    The stored picture is white in its top left quarter and grey in its top right. By hand, with
    (row, column): mirrored, white goes to (0, 1) and grey to (0, 0); a quarter turn clockwise
    puts white at (0, 1) and grey at (1, 1), its mirror image white at (0, 0) and grey at (1, 0).
    """
    picture = np.zeros((48, 96, 3), np.uint8)
    picture[:24, :48], picture[:24, 48:] = 255, 128
    path = tmp_path / "phone.mp4"
    encode(path, [(0.0, picture), (0.1, picture)], 0.1)
    data = bytearray(path.read_bytes())
    at = data.find(b"tkhd") + 44
    assert struct.unpack_from(">9i", data, at) == (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    a, b, c, d = (np.array(matrix) << 16).tolist()
    struct.pack_into(">5i", data, at, a, b, 0, c, d)
    path.write_bytes(data)
    video = Video.open(path)
    assert (video.width, video.height) == ((48, 96) if b else (96, 48))
    for frame in video.read(), video.read(width=32, height=32):
        halves = [np.array_split(half[0], 2, axis=1) for half in np.array_split(frame, 2, axis=1)]
        bright = np.array([[quarter.mean() for quarter in half] for half in halves])
        assert np.unravel_index(bright.argmax(), (2, 2)) == brightest
        assert 100 < bright[middle] < 160
        assert bright.max() > 200


def test_a_file_cut_anywhere_in_its_index_is_a_data_error(tmp_path):
    """The index of an mp4 comes last. If it is cut, a stream may be there that has no codec."""
    whole = write_video(tmp_path / "whole.mp4", np.arange(45) / 30, (32, 16)).read_bytes()
    cut, said = tmp_path / "cut.mp4", set()
    for length in range(whole.index(b"moov"), len(whole) - 100, 20):
        cut.write_bytes(whole[:length])
        with pytest.raises(DataError) as caught:
            Video.open(cut)
        said.add(str(caught.value).replace(str(cut), ""))
    assert any("no video stream" in line for line in said)


def test_a_file_truncated_behind_its_index_is_named(tmp_path):
    """With the index in front (faststart) a cut file opens: the missing frames must be noticed."""
    import av

    path = tmp_path / "fast.mp4"
    source = write_video(tmp_path / "a.mp4", UNEVEN)
    with (
        av.open(str(source)) as given,
        av.open(str(path), "w", options={"movflags": "faststart"}) as made,
    ):
        stream = made.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.size:
                packet.stream = stream
                made.mux(packet)
    assert len(Video.open(path).times_s) == 60
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.7)])
    with refuses("file-unreadable", "fast.mp4"):
        Video.open(path)


def aria_folder(root, person, seconds, rate=10.0):
    """A recording whose gaze x tells the frame number: x = (i mod 50) / 50."""
    t = np.arange(round(seconds * rate)) / rate
    write_video(root / person / "rgb_upright.mp4", t)
    rows = [(i, s * 1e6, s * 1e6, 0.0, (i % 50) / 50, 0.25) for i, s in enumerate(t)]
    write_csv(
        root / person / "gaze_2d.csv", "frame,frame_timestamp_us,gaze_timestamp_us,dt_ms,x,y", rows
    )
    return root


@pytest.mark.slow
def test_windows_become_samples_whose_frames_and_gaze_belong_together(tmp_path):
    """Frames and gaze both carry the frame number, so any shift between them shows."""
    root = aria_folder(aria_folder(tmp_path, "ann", 60), "bob", 60)
    data = Aria(size=(32, 24), window=4, step_s=0.2, stride_s=1.0).load(str(root))
    assert data.clients == ("ann", "bob")
    assert {"licence", "citation", "split"} <= set(data.about)
    ends = []
    for part in (data.people["ann"].train, data.people["ann"].val, data.people["ann"].test):
        batch = part.take(np_rows(part))
        assert batch["points"].shape[1:] == (4, 1, 2)
        assert batch["frames"].shape[1:] == (4, 24, 32, 3)
        assert (batch["scene"] == -1).all()
        for sample in range(len(part)):
            shown = [number(f) for f in batch["frames"][sample].numpy()]
            assert np.diff(shown).tolist() == [2, 2, 2] or min(shown) < 6
            looked = (batch["points"][sample, :, 0, 0].numpy() * 50).round()
            assert all((s - g) % 10 == 0 for s, g in zip(shown, looked, strict=True))
        ends.append(len(part))
    assert ends[0] / sum(ends) == pytest.approx(0.7, abs=0.03)


def np_rows(part):
    import torch

    return torch.arange(len(part))


def test_a_person_with_too_few_clips_is_named(tmp_path):
    root = aria_folder(aria_folder(tmp_path, "ann", 60), "bob", 6)
    with pytest.raises(DataError, match="person 'bob' has too few clips for the split: 6 windows"):
        Aria(size=(32, 24)).load(str(root))
    assert Aria(size=(32, 24), people=("ann",)).load(str(root)).clients == ("ann",)
    with pytest.raises(DataError, match="has no recordings of eve; people there: ann, bob"):
        Aria(people=("eve",)).load(str(root))


def test_a_clip_shorter_than_the_window(tmp_path):
    root = aria_folder(tmp_path, "ann", 0.5)
    with pytest.raises(
        DataError, match=r"clip 'ann' is shorter than the window: 5 frames, 0\.40 s"
    ):
        Aria().load(str(root))
    with pytest.raises(DataError, match="too few clips"):
        Aria(short="skip").load(str(root))


def test_options_out_of_range():
    for wrong in ({"window": 0}, {"gap_s": 1.0}, {"short": "pad"}, {"size": (8, 8)}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            WindowOptions(**wrong)


def test_a_step_below_the_frame_interval_is_refused(tmp_path):
    path = write_video(tmp_path / "a.mp4", np.arange(20) * 0.1)
    gaze = Gaze.build("g", [0.0], [0.5], [0.5])
    recording = Recording("a", "a", gaze, path)
    with pytest.raises(ConfigError, match=r"shorter than the frame interval of 'a'; use 0\.100"):
        cut_windows(recording, recording.footage(), WindowOptions(step_s=0.02))


def test_windows_without_any_scored_frame_are_left_out(tmp_path):
    """Gaze in the first of three seconds: of windows of 0.3 s every 0.5 s the first two have it."""
    path = write_video(tmp_path / "a.mp4", np.arange(30) * 0.1)
    t = np.arange(10) * 0.1
    recording = Recording("a", "a", Gaze.build("g", t, t, t), path)
    options = WindowOptions(window=4, step_s=0.1, stride_s=0.5)
    found = cut_windows(recording, recording.footage(), options)
    assert [w.start_s for w in found] == pytest.approx([0.0, 0.5])
    assert found[1].points[:, 0, 0] == pytest.approx([0.5, 0.6, 0.7, 0.8], abs=1e-6)


@pytest.mark.parametrize("frames", [119, 120, 121, 239, 240, 605])
def test_clips_of_five_seconds_are_whole_ones_one_behind_the_other(tmp_path, frames):
    """At 24 a second 120 frames are a clip; its four frames stand at 0, 1.25, 2.5 and 3.75 s."""
    path = write_video(tmp_path / "a.mp4", np.arange(frames) / 24, (16, 16))
    t = np.arange(frames) / 24
    recording = Recording("a", "a", Gaze.build("g", t, t / 40, t / 40), path)
    options = WindowOptions(clip_s=5, short="skip")
    found = cut_windows(recording, recording.footage(), options)
    assert len(found) == frames // 120
    for k, window in enumerate(found):
        assert window.rows.tolist() == [120 * k + i for i in (0, 30, 60, 90)]


def test_clips_and_steps_are_not_set_together():
    for more in ({"stride_s": 2.0}, {"step_s": 0.5}):
        with pytest.raises(ConfigError, match="clip_s = 5 sets the frames and starts of samples"):
            WindowOptions(clip_s=5, **more)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="clip_s must be 0"):
            WindowOptions(clip_s=wrong)


def test_a_recording_shorter_than_a_clip(tmp_path):
    path = write_video(tmp_path / "a.mp4", np.arange(20) * 0.1)
    recording = Recording("a", "a", Gaze.build("g", [0.0], [0.5], [0.5]), path)
    with pytest.raises(DataError, match=r"takes 4 frames, 5\.00 s; lower clip_s, or"):
        cut_windows(recording, recording.footage(), WindowOptions(clip_s=5))
    with pytest.raises(ConfigError, match=r"clip_s / window = 0\.025 is shorter than the frame"):
        cut_windows(recording, recording.footage(), WindowOptions(clip_s=0.1))


def test_frame_times_of_another_video_are_refused(tmp_path):
    path = write_video(tmp_path / "a.mp4", np.arange(20) * 0.1)
    recording = Recording("a", "a", Gaze.build("g", [0.0], [0.5], [0.5]), path, np.arange(19) * 0.1)
    with pytest.raises(DataError, match="has 20 frames, the recorder noted 19"):
        recording.footage()
    with pytest.raises(DataError, match="'b' has gaze without video"):
        Recording("b", "b", recording.gaze).footage()
