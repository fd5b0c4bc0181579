"""Summaries of made and packaged videos: the budget to the frame, every scene, clear refusals."""

import json

import av
import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import vergence
from vergence.data.gaze_video.aria import SAMPLE
from vergence.data.io.video import Video
from vergence.data.video_summaries.sound import RATE as SOUND
from vergence.data.video_summaries.sound import sound_blocks
from vergence.errors import ConfigError
from vergence.video.encode import encode
from vergence.video.summarise import share_of

SCENES, TONES = (24, 9, 15, 12), (400, 800, 1600, 3200)
CLIP = SAMPLE / "aea" / "rgb_upright.mp4"
RATE = 10


def bits(i):
    """Return a frame's number as six black or white fields, 48 x 16 pixels each."""
    return np.repeat([255 * (i >> bit & 1) for bit in range(6)], 16)[None, :, None]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """Four scenes, stripes of one width and a tone each; half of a frame tells its number."""
    path = tmp_path_factory.mktemp("videos") / "scenes.mp4"
    across = np.arange(96)
    pictures = []
    for scene, length in enumerate(SCENES):
        for _ in range(length):
            stripes = 255 * (across // (2 << scene) % 2)
            picture = np.tile(stripes[None, :, None], (96, 1, 3)).astype(np.uint8)
            picture[:48] = bits(len(pictures))
            pictures.append((len(pictures) / RATE, picture))
    pitch = np.repeat(TONES, [length * SOUND // RATE for length in SCENES])
    tones = 0.3 * np.sin(2 * np.pi * pitch * np.arange(len(pitch)) / SOUND)
    blocks = np.array_split(np.tile(tones.astype(np.float32), (2, 1)), 60, axis=1)
    assert encode(path, pictures, 1 / RATE, iter(blocks)) == sum(SCENES)
    return path


def shown(path):
    """Return the times and the numbers that the frames of a summary show."""
    with av.open(str(path)) as container:
        frames = [(f.time, f.to_ndarray(format="gray")[24]) for f in container.decode(video=0)]
    fields = [(line.reshape(6, 16).mean(1) > 128) for _, line in frames]
    return [t for t, _ in frames], [int(field @ (1 << np.arange(6))) for field in fields]


def test_an_ffmpeg_without_x264_writes_vp9(tmp_path, monkeypatch):
    """An FFmpeg that was built without parts under the GPL, or without both encoders."""
    pictures = [(i / RATE, np.tile(bits(i), (64, 1, 3)).astype(np.uint8)) for i in range(12)]
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libx264"})
    assert encode(tmp_path / "a.mp4", pictures, 1 / RATE) == 12
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert container.streams.video[0].codec_context.name in ("vp9", "libvpx-vp9")
    times, numbers = shown(tmp_path / "a.mp4")
    assert times == pytest.approx(np.arange(12) / RATE)
    assert numbers == list(range(12))
    monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    with pytest.raises(ConfigError, match="built without libx264 and libvpx-vp9"):
        encode(tmp_path / "b.mp4", pictures, 1 / RATE)


@pytest.mark.slow
def test_the_budget_is_kept_to_the_frame_and_every_scene_is_there(video, tmp_path):
    out = tmp_path / "short.mp4"
    done = vergence("video", "summarise", video, out, "--budget", "50%")
    assert done.code == 0, done.err
    facts = json.loads(out.with_suffix(".json").read_text())
    shots = facts["shots"]
    kept = [
        frame
        for shot in shots
        if shot["kept"]
        for frame in range(shot["first_frame"], shot["last_frame"] + 1)
    ]
    times, numbers = shown(out)
    assert numbers == kept
    assert len(kept) == facts["kept_frames"] <= facts["budget_frames"] == 30
    assert times == pytest.approx([i / RATE for i in range(len(kept))], abs=1e-4)
    assert set(np.searchsorted(np.cumsum(SCENES), kept, side="right")) == {0, 1, 2, 3}
    for i, scene in enumerate(np.searchsorted(np.cumsum(SCENES), kept, side="right")):
        tone = np.concatenate(list(sound_blocks(out, [((i + 0.2) / RATE, 0.6 / RATE)])), axis=1)[0]
        loudest = np.abs(np.fft.rfft(tone)).argmax() * SOUND / len(tone)
        assert loudest == pytest.approx(TONES[scene], abs=40), f"frame {i}"
    assert [s["first_frame"] for s in shots[1:]] == [s["last_frame"] + 1 for s in shots[:-1]]
    assert (shots[0]["first_frame"], shots[-1]["last_frame"]) == (0, 59)
    with Image.open(out.with_suffix(".png")) as sheet:
        assert sheet.width == min(6, len(shots)) * 200


def test_a_length_is_a_share_of_the_time_the_frames_take():
    """8 frames of 0.05 s."""
    clip = Video.open(CLIP)
    assert share_of("0.2s", clip) == pytest.approx(0.5)
    assert share_of("9s", clip) == 1
    assert share_of("12.5%", clip) == 0.125


@pytest.mark.slow
def test_of_a_packaged_recording_half_or_all_is_kept(tmp_path):
    for budget, room in (("50%", 4), ("100%", 8)):
        out = tmp_path / "short.mp4"
        done = vergence("video", "summarise", CLIP, out, "--budget", budget)
        assert done.code == 0, done.err
        assert json.loads(out.with_suffix(".json").read_text())["budget_frames"] == room
        assert len(Video.open(out).times_s) == room


def test_what_cannot_be_summarised_is_one_clear_line(video, tmp_path):
    out = tmp_path / "short.mp4"
    for budget in ("15", "0%", "120%", "-3s", "x%", "", "nan%"):
        refused = vergence("video", "summarise", video, out, f"--budget={budget}")
        refused.complains(2, f"budget '{budget}'", "15%", "20s")
    vergence("video", "summarise", CLIP, out, "--budget", "10%").complains(3, "8 frames", "13%")
    vergence("video", "summarise", video, tmp_path / "a.gif").complains(2, ".mp4")
    vergence("video", "summarise", video, video).complains(2, "would replace")
    vergence("video", "summarise", tmp_path / "none.mp4", out).complains(3, "none.mp4 is missing")
    assert not list(tmp_path.iterdir())


def test_a_film_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least one picture"):
        encode(tmp_path / "a.mp4", [], 0.1)
