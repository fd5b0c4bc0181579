"""`vergence predict` on pictures, eye images, and recordings with gaze beside them."""

import csv

import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import run, vergence
from tests.data.fabricated_exports import pupil_player
from tests.data.footage import write_video
from tests.video.test_predict import CLIPS
from vergence.data.gaze_video.pupil import Pupil
from vergence.data.io.video import Video
from vergence.experiment.trained_run import read_run
from vergence.models.glc import glc_vit
from vergence.video.predict_maps import find_recording

ANGLES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye" }
federation = { name = "eye_synthetic", people = 2, samples = 40, size = "9x15" }
method     = { name = "fedavg" }
local      = { optimizer = "sgd", batch = 8, lr = 0.01 }
run        = { rounds = 1, workers = 1, evaluate_every = 0 }
"""


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def angles(tmp_path_factory):
    return run(tmp_path_factory.mktemp("angles"), ANGLES)


def test_an_npz_of_eye_images_gives_angles_and_errors(angles, tmp_path):
    test = read_run(angles).loaded.raw.people["p00"].test
    columns = {name: test.columns[name].numpy() for name in ("image", "pose", "gaze")}
    np.savez(tmp_path / "eyes.npz", **columns)
    told = vergence("predict", angles, tmp_path / "eyes.npz", "--out", tmp_path / "gaze.csv")
    assert told.code == 0, told.err
    rows = rows_of(tmp_path / "gaze.csv")
    trained = read_run(angles)
    by_hand = trained.outputs(trained.server.model, test)
    found = [[float(row["pitch_rad"]), float(row["yaw_rad"])] for row in rows]
    assert np.allclose(found, by_hand.numpy(), atol=1e-6)
    assert np.allclose([float(r["yaw_deg"]) for r in rows], np.rad2deg(by_hand[:, 1]), atol=1e-3)
    mean = np.mean([float(row["error_deg"]) for row in rows])
    assert f"mean error {mean:.2f} degrees" in told.out


def test_pictures_of_eyes_give_the_angles_of_their_pixels(angles, tmp_path):
    image = read_run(angles).loaded.raw.people["p00"].test.columns["image"][:3, 0].numpy()
    (tmp_path / "eyes").mkdir()
    for number, pixels in enumerate(image):
        Image.fromarray(pixels).save(tmp_path / "eyes" / f"eye{number}.png")
    np.savez(tmp_path / "eyes.npz", image=image)  # without a channel axis, and without poses
    for source in ("eyes", "eyes.npz"):
        told = vergence("predict", angles, tmp_path / source, "--out", tmp_path / f"{source}.csv")
        assert told.code == 0, told.err
    pictures, arrays = rows_of(tmp_path / "eyes.csv"), rows_of(tmp_path / "eyes.npz.csv")
    assert [row.pop("sample") for row in pictures] == ["eye0.png", "eye1.png", "eye2.png"]
    assert [row.pop("sample") for row in arrays] == ["0", "1", "2"]
    assert pictures == arrays


def test_what_is_no_eye_image_is_refused_in_one_line(angles, tmp_path):
    Image.fromarray(np.zeros((90, 120, 3), np.uint8)).save(tmp_path / "face.png")
    told = vergence("predict", angles, tmp_path / "face.png")
    told.complains(3, "does not take images of 120 x 90", "vergence data patches")
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 4), np.float32))
    vergence("predict", angles, tmp_path / "x.npz").complains(3, "has no column image (it has x)")
    vergence("predict", angles, tmp_path / "x.npz", "--maps", tmp_path / "m.npz").complains(
        2, "predicts angles, and no maps"
    )


def test_pictures_get_maps_peaks_means_and_arrays(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    folder = run(
        tmp_path, CLIPS.replace('"reptile", episodes = 1, inner_steps = 1, steps = 1', '"fedavg"')
    )
    (tmp_path / "shown").mkdir()
    draw = np.random.default_rng(0)
    for name, size in {"a.png": (40, 60, 3), "b.jpg": (80, 64, 3)}.items():
        Image.fromarray(draw.integers(0, 256, size, np.uint8)).save(tmp_path / "shown" / name)
    told = vergence(
        "predict", folder, tmp_path / "shown", "--out", tmp_path / "o", "--maps", tmp_path / "m.npz"
    )
    assert told.code == 0, told.err
    for name, size in {"a.png.png": (60, 40), "b.jpg.png": (64, 80)}.items():
        with Image.open(tmp_path / "o" / name) as picture:
            assert picture.size == size
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        stored = dict(file)
    assert stored["name"].tolist() == ["a.png", "b.jpg"]
    rows = rows_of(tmp_path / "o.csv")
    for heat, row in zip(stored["maps"].astype(np.float64), rows, strict=True):
        assert heat.sum() == pytest.approx(1, abs=1e-5)
        height, width = heat.shape
        y, x = np.unravel_index(heat.argmax(), heat.shape)
        assert float(row["peak_x"]) == pytest.approx((x + 0.5) / width, abs=1e-4)
        assert float(row["peak_y"]) == pytest.approx((y + 0.5) / height, abs=1e-4)
        mean = (heat.sum(0) * (np.arange(width) + 0.5)).sum() / width
        assert float(row["mean_x"]) == pytest.approx(mean, abs=1e-4)
        places = (np.arange(height) + 0.5) / height
        spread = np.sqrt(np.cov(places, aweights=heat.sum(1) / heat.sum(), ddof=0))
        assert float(row["spread_y"]) == pytest.approx(spread, abs=1e-4)


def test_a_folder_of_videos_has_one_joint_table(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    folder = run(
        tmp_path, CLIPS.replace('"reptile", episodes = 1, inner_steps = 1, steps = 1', '"fedavg"')
    )
    clips = tmp_path / "clips"
    clips.mkdir()
    for name, frames in (("a.mp4", 10), ("b.mp4", 6)):
        write_video(clips / name, np.arange(frames) / 5)
    options = ("--out", tmp_path / "o", "--maps", tmp_path / "maps")
    told = vergence("predict", folder, clips, *options)
    assert told.code == 0, told.err
    rows = rows_of(tmp_path / "o.csv")
    assert [row["video"] for row in rows] == ["a.mp4"] * 10 + ["b.mp4"] * 6
    alone = vergence("predict", folder, clips / "b.mp4", "--out", tmp_path / "alone.mp4")
    assert alone.code == 0, alone.err
    single = rows_of(tmp_path / "alone.csv")
    assert [{k: v for k, v in row.items() if k != "video"} for row in rows[10:]] == single
    for name, frames in (("a", 10), ("b", 6)):
        assert (tmp_path / "o" / f"{name}.mp4").is_file()
        with np.load(tmp_path / "maps" / f"{name}.npz", allow_pickle=False) as file:
            assert len(file["maps"]) == frames
    write_video(clips / "b.mov", np.arange(6) / 5)
    vergence("predict", folder, clips, *options).complains(2, "two videos of one name")
    Image.new("RGB", (64, 64)).save(clips / "c.png")
    vergence("predict", folder, clips, *options).complains(2, "videos and the picture c.png")


def test_true_gaze_is_read_by_the_runs_own_reader(tmp_path):
    pupil_player(tmp_path)
    (video, *_) = sorted(tmp_path.rglob("world.mp4"))
    found = find_recording(Pupil(), video)
    assert found is not None
    gaze = found.gaze_per_frame(found.footage())
    assert len(gaze.x) == len(Video.open(video).times_s)
    assert gaze.valid.any()
    other = tmp_path / "elsewhere"
    other.mkdir()
    assert find_recording(Pupil(), other / "clip.mp4") is None
