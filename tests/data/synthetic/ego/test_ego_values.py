"""Numbers of the generated wearers, scenes, gaze and frames, as they were stored.

Published tables and everybody's cached data were made with these constants.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.data.synthetic.stored_sums import PICTURE, assert_stored
from vergence.data.synthetic.ego import rendering
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.data.synthetic.ego.gaze_behavior import chances
from vergence.data.synthetic.ego.people import CLASSES, PRESETS, TARGETS, person
from vergence.data.synthetic.ego.rendering import WearerView
from vergence.data.synthetic.ego.scene import Lens, build_scene
from vergence.errors import ConfigError

SMALL = EgoSynthetic(people=2, clips=10, windows=1, window=2, size=32, seconds=2.0, fps=24, seed=3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


def test_wearers_come_from_four_presets():
    assert list(PRESETS) == ["iid", "mild", "default", "strong"]
    assert CLASSES == ("disc", "box", "bottle", "bowl", "knife", "jar", "cloth", "screen")
    assert TARGETS == ("object", "hand", "rest", "exploration")


@pytest.mark.parametrize("name", PRESETS)
def test_wearers_of_a_preset_stay(name):
    assert_stored(f"wearers, {name}", [person(5, i, PRESETS[name]) for i in range(40)])


def test_amounts_of_data_stay_within_a_twentieth_and_twenty():
    """A spread as wide as here meets both limits, which are 20:1 apart."""
    wide = replace(PRESETS["strong"], quantity_sd=1.2)
    found = [person(5, i, wide).quantity for i in range(80)]
    assert (min(found), max(found)) == pytest.approx((20**-0.5, 20**0.5))
    assert_stored("amounts", found)


@pytest.mark.parametrize(("frames", "fps"), [(120, 24), (60, 30.0)])
def test_scenes_stay(frames, fps):
    made = []
    for index in range(6):
        who = person(2, index, PRESETS["strong" if index % 2 else "default"])
        made.append(build_scene(who.looks, np.random.default_rng([8, index]), frames, fps))
    assert {scene.objects.shape[1] for scene in made} <= {5, 6, 7, 8, 9}
    assert_stored(f"scenes of {frames} frames", made)


def test_nobody_moves_after_the_last_frame_and_few_scenes_are_alike():
    """A scene of one frame is its start: every movement begins in the first frame or not at all."""
    looks = person(2, 0, PRESETS["default"]).looks
    scenes = [build_scene(looks, np.random.default_rng(i), 1, 24) for i in range(6)]
    assert all(len(scene.objects) == 1 for scene in scenes)
    assert_stored("scenes of 1 frame", scenes)


@pytest.mark.parametrize(
    ("name", "fps"), [("iid", 24), ("mild", 24), ("default", 48), ("strong", 24)]
)
def test_gaze_stays(name, fps):
    data = replace(SMALL, preset=name, seconds=3.0, fps=fps)
    clips = [data.simulate(i, i) for i in range(2)]
    assert_stored(f"gaze, {name}, {fps} Hz", [clip.gaze for clip in clips])


def test_chances_of_targets_stay():
    found = []
    for index in range(4):
        clip = replace(SMALL, preset="strong").simulate(index, 1)
        for t in (0, 20, 47):
            head = clip.gaze.head[t]
            found.append(chances(clip.person.habits, clip.lens, clip.scene, head, t, 24))
    assert_stored("chances", found)


def test_lens_stays():
    looks = person(2, 1, PRESETS["default"]).looks
    points = np.random.default_rng(1).uniform(-1, 2, (40, 2))
    lenses = [Lens.of(looks), Lens(1.3, -0.05, 0.2), Lens(0.8, 0.05, -0.25)]
    found = [[lens, lens.project(points), lens.unproject(points)] for lens in lenses]
    # Half the diagonal of the frame from its centre, a coefficient acts whole.
    corner = Lens(1.0, 0.0, 0.25).unproject(np.array([0.0, 1.0]))
    np.testing.assert_allclose(corner, [-0.4, 0.4])
    assert_stored("lenses", found)


def test_templates_of_objects_and_arm_stay():
    assert_stored("sprites", rendering._sprites(), 1e-6)
    assert_stored("arm", rendering._arm(), 1e-6)


def test_a_room_stays():
    looks = person(2, 0, PRESETS["default"]).looks
    room = rendering._room(looks, np.random.default_rng(0))
    assert room.shape == (3, 288, 288)
    assert_stored("room", room, 1e-5)


def test_light_noise_and_compression_stay():
    looks = person(2, 1, PRESETS["default"]).looks
    picture = np.random.default_rng(1).random((3, 2, 16, 16)).astype(np.float32)
    shrunk = rendering._shrink(np.repeat(picture, 3, 3).repeat(3, 2))
    assert_stored("shrunk", shrunk, 1e-6)
    shift = np.array([[0.5, 2.0], [9.0, 0.0]])
    assert_stored("blurred", rendering._motion_blur(picture, shift), 1e-6)
    for exposure in (0.3, 1.0, 3.0):
        seen = rendering._expose(picture, looks, exposure, np.random.default_rng(2))
        assert_stored(f"exposed {exposure:g}", seen, PICTURE)


@pytest.mark.parametrize("index", range(3))
def test_frames_stay(index):
    clip = replace(SMALL, size=32 + 16 * (index % 2)).simulate(index, index)
    frames = clip.draw(np.array([0, 13, 47]))
    assert frames.dtype == np.uint8
    assert_stored(f"frames of {index}", frames, PICTURE)


def test_a_frame_after_many_is_drawn_like_the_first_ones():
    """Frames are drawn 32 at a time: 34 need two batches, and none is left empty."""
    frames = replace(SMALL, size=32).simulate(0, 0).draw(np.arange(8, 42))
    assert frames.mean((1, 2, 3)).min() > 5
    assert_stored("34 frames", frames, PICTURE)


def test_blur_is_the_way_of_the_head_since_the_frame_before():
    head = np.array([[0.0, 0.0], [0.25, -0.5], [0.5, 0.5]])
    view = WearerView.of(head, np.array([0, 1, 2]))
    assert view.blur.tolist() == [[0, 0], [0.25, 0.5], [0.25, 1]]
    assert np.array_equal(view.head, head)


def test_a_person_is_loaded_as_stored():
    data = EgoSynthetic(people=1, clips=10, windows=1, window=1, size=32, seconds=1.0, fps=12)
    splits = data.load().people["p00"]
    assert data.clip_count(0) == len(splits.train) + len(splits.val) + len(splits.test)
    parts = [
        [part.columns, part.banks["frames"].rows]
        for part in (splits.train, splits.val, splits.test)
    ]
    assert_stored("a loaded person", parts, PICTURE)


def test_people_have_as_many_clips_as_their_share_and_ten_at_least():
    data = EgoSynthetic(clips=30, preset="strong")
    shares = [person(0, i, PRESETS["strong"]).quantity for i in range(8)]
    assert [data.clip_count(i) for i in range(8)] == [max(10, round(30 * s)) for s in shares]
    assert [EgoSynthetic(clips=30, preset="iid").clip_count(i) for i in (0, 1)] == [30, 30]


def test_windows_and_their_steps():
    """One window of 64 frames starts at 0; four samples of four frames take every 16th one."""
    glc = EgoSynthetic(windows=1, span="glc", window=4, fps=24)
    assert glc._windows(120).tolist() == [[0, 16, 32, 48]]
    assert glc.frame_step_s == pytest.approx(64 / 24 / 4)
    clip = EgoSynthetic(seconds=5.0, fps=24, window=4)
    assert clip.frame_step_s == pytest.approx(1.25)
    assert clip._windows(120)[0].tolist() == [3, 33, 63, 93]
    three = EgoSynthetic(windows=3, span="glc", window=2, fps=24)
    assert three._windows(120).tolist() == [[0, 32], [28, 60], [56, 88]]


def test_shortest_clips_that_are_allowed():
    """16 frames hold four samples of four; 64 frames hold a window of GLC."""
    EgoSynthetic(seconds=1.0, fps=16)
    EgoSynthetic(seconds=4.0, fps=16, span="glc")
    with pytest.raises(ConfigError, match=r"clips of 15 frames.*needs 16"):
        EgoSynthetic(seconds=1.0, fps=15)
    with pytest.raises(ConfigError, match=r"clips of 60 frames.*needs 64"):
        EgoSynthetic(seconds=4.0, fps=15, span="glc")


@pytest.mark.parametrize("beyond", [0, 1, 500])
def test_windows_of_objects_stay_in_the_canvas(beyond):
    """An object that left the frame is drawn in the last window, and not in another row."""
    looks = person(2, 0, PRESETS["default"]).looks
    scene = build_scene(looks, np.random.default_rng(3), 2, 24)
    side, patch = 40, 12
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side)), -1)
    plane, last = grid.astype(np.float32), side - patch
    offset = np.tile(plane[side - patch // 2, side - patch // 2], (2, 1))
    canvases = []
    for corner in (last, last + beyond):
        canvas = np.full((3, 2, side, side), -1, np.float32)
        rendering._paste(canvas, scene, plane, 0, offset, np.full((2, 2), corner), patch)
        canvases.append(canvas)
    assert np.array_equal(*canvases)
    assert (canvases[0][:, :, :last, :last] == -1).all()
    assert (canvases[0][:, :, last:, last:] != -1).any()
