"""MPIIGaze: the two layouts, angles and signs, mirrored right eyes, day-wise split, bad input."""

import numpy as np
import pytest
import torch
from scipy.io import savemat
from scipy.spatial.transform import Rotation

from vergence.data.eye_images import mpiigaze
from vergence.data.eye_images.mpiigaze import Mpiigaze, gaze_angles, pose_angles, read_day
from vergence.data.splits import deal_in_order
from vergence.errors import ConfigError, DataError
from vergence.models.cross_encoder import CrossEncoder, roles
from vergence.tasks.cross_encoder import CrossEncoderTask

DAYS = {"day01": 12, "day02": 1, "day03": 9, "day05": 6, "day06": 7}


def vectors(pitch, yaw):
    """The gaze vector of eyeimages design note, section 0: (-cos p sin y, -sin p, -cos p cos y)."""
    return np.stack([-np.cos(pitch) * np.sin(yaw), -np.sin(pitch), -np.cos(pitch) * np.cos(yaw)], 1)


def eye(rng, pitch, yaw):
    return {
        "image": rng.integers(0, 256, (len(pitch), 36, 60), np.uint8),
        "gaze": vectors(pitch, yaw),
        "pose": rng.normal(0, 0.2, (len(pitch), 3)),
    }


def day_of(seed, frames):
    """Both eyes look at one target, the right eye 6 degrees beside the left one."""
    rng = np.random.default_rng(seed)
    pitch, yaw = rng.normal(-0.15, 0.08, frames), rng.normal(0, 0.15, frames)
    return {"left": eye(rng, pitch, yaw), "right": eye(rng, pitch, yaw - 0.1)}


def cells(names):
    out = np.empty((len(names), 1), object)
    out[:, 0] = names
    return out


def write_day(path, data):
    names = [f"{i + 1:04d}.jpg" for i in range(len(np.atleast_2d(data["left"]["gaze"])))]
    savemat(path, {"data": data, "filenames": cells(names)})


def write_person(root, person, days=DAYS):
    folder = root / "Data" / "Normalized" / person
    folder.mkdir(parents=True)
    lists = root / "Evaluation Subset" / "sample list for eye image"
    lists.mkdir(parents=True, exist_ok=True)
    lines = {"left": [], "right": []}
    for number, (day, frames) in enumerate(days.items()):
        write_day(folder / f"{day}.mat", day_of(number + 10 * int(person[1:]), frames))
        for i in range(0, frames, 2):
            for side, own in lines.items():
                own.append(f"{day}/{i + 1:04d}.jpg {side}")
    (lists / f"{person}.txt").write_text("\n".join(lines["left"] + lines["right"]) + "\n")


@pytest.fixture
def root(tmp_path):
    write_person(tmp_path, "p00")
    write_person(tmp_path, "p03")
    return tmp_path


def test_gaze_angles_of_the_published_vector():
    """Oracle of eyeimages design note, 1.4: pitch = asin(-0.25135) = -14.56, yaw = 0.66 degrees."""
    g = np.array([[-0.01114, 0.25135, -0.9678]])
    np.testing.assert_allclose(np.rad2deg(gaze_angles(g)), [[-14.56, 0.66]], atol=0.005)
    np.testing.assert_allclose(gaze_angles(vectors(*np.array([[0.3], [-0.4]]))), [[0.3, -0.4]])


def test_pose_angles_are_those_of_the_third_column_of_rodrigues():
    """Turning by +0.3 about y sends z to (sin 0.3, 0, cos 0.3), so yaw 0.3 and pitch 0; turning
    by +0.2 about x sends z to (0, -sin 0.2, cos 0.2), so pitch -0.2 and yaw 0."""
    angles = pose_angles(np.array([[0, 0.3, 0], [0.2, 0, 0], [0, 0, 0.0]]))
    np.testing.assert_allclose(angles, [[0, 0.3], [-0.2, 0], [0, 0]], atol=1e-12)
    r = np.random.default_rng(0).normal(0, 0.5, (5, 3))
    v = np.stack([Rotation.from_rotvec(row).apply([0, 0, 1]) for row in r])
    np.testing.assert_allclose(pose_angles(r)[:, 0], np.arcsin(v[:, 1]), atol=1e-12)


def test_a_right_eye_is_mirrored_and_its_yaws_flipped(tmp_path):
    """Mirroring at the vertical image axis negates x of every direction: yaw flips, pitch stays."""
    data = day_of(3, 8)
    write_day(tmp_path / "day01.mat", data)
    day = read_day(tmp_path / "day01.mat")
    np.testing.assert_array_equal(day.left.image, data["left"]["image"])
    np.testing.assert_array_equal(day.right.image, data["right"]["image"][:, :, ::-1])
    np.testing.assert_allclose(day.left.gaze, gaze_angles(data["left"]["gaze"]), atol=1e-6)
    mirrored = gaze_angles(data["right"]["gaze"] * [-1, 1, 1])
    np.testing.assert_allclose(day.right.gaze, mirrored, atol=1e-6)
    raw = pose_angles(data["right"]["pose"])
    np.testing.assert_allclose(day.right.pose, raw * [1, -1], atol=1e-6)


def test_a_day_of_one_frame_may_be_squeezed(tmp_path):
    data = day_of(4, 1)
    write_day(tmp_path / "full.mat", data)
    flat = {side: {k: v.squeeze(0) for k, v in own.items()} for side, own in data.items()}
    savemat(tmp_path / "flat.mat", {"data": flat, "filenames": "0001.jpg"})
    full, squeezed = read_day(tmp_path / "full.mat"), read_day(tmp_path / "flat.mat")
    assert full.names == squeezed.names == ("0001.jpg",)
    for side in ("left", "right"):
        assert getattr(squeezed, side).image.shape == (1, 36, 60)
        for name in ("image", "gaze", "pose"):
            a, b = getattr(getattr(full, side), name), getattr(getattr(squeezed, side), name)
            np.testing.assert_array_equal(a, b)


def pictures(samples):
    return {picture.tobytes() for picture in samples.columns["image"].numpy()}


def test_evaluation_subset_takes_the_listed_samples_and_splits_by_day(root):
    """Listed per eye: 6, 1, 5, 3, 4 of the days: 38 samples. Cumulative 12, 14, 24, 30, 38; the
    cuts nearest to 26.6 and 30.4 are after day 3 (24) and day 4 (30)."""
    federation = Mpiigaze().load(str(root))
    assert federation.clients == ("p00", "p03")
    person = federation.people["p00"]
    assert [len(p) for p in (person.train, person.val, person.test)] == [24, 6, 8]
    assert person.train.columns["image"].shape == (24, 1, 36, 60)
    assert person.train.columns["image"].dtype == torch.uint8
    last = read_day(root / "Data" / "Normalized" / "p00" / "day06.mat")
    expected = {e.image[i].tobytes() for e in (last.left, last.right) for i in (0, 2, 4, 6)}
    assert pictures(person.test) == expected
    test_gaze = np.concatenate([last.left.gaze[::2], last.right.gaze[::2]])
    np.testing.assert_array_equal(person.test.columns["gaze"], test_gaze)
    assert person.test.columns["side"].tolist() == [0] * 4 + [1] * 4
    assert person.test.columns["side"].dtype == person.test.columns["day"].dtype == torch.int64
    assert person.test.columns["day"].tolist() == [6] * 8
    assert person.val.columns["day"].unique().tolist() == [5]
    assert person.train.columns["day"].unique().tolist() == [1, 2, 3]


def test_all_takes_both_eyes_of_every_frame(root):
    """35 frames a person; cumulative 24, 26, 44, 56, 70 samples: cuts at 44 (49) and 56 (56)."""
    person = Mpiigaze(subset="all", people=("p03",)).load(str(root)).people["p03"]
    assert [len(p) for p in (person.train, person.val, person.test)] == [44, 12, 14]
    assert not pictures(person.train) & pictures(person.test)
    last = read_day(root / "Data" / "Normalized" / "p03" / "day06.mat")
    for side, eye_ in enumerate((last.left, last.right)):
        rows = person.test.columns["side"] == side
        np.testing.assert_array_equal(person.test.columns["gaze"][rows], eye_.gaze)
    assert person.test.columns["day"].unique().tolist() == [6]


def test_days_are_dealt_whole_and_in_order():
    """Ends 5, 10, 20, 22, 30: wanted cuts 21 and 24, nearest 20 or 22 and then 22 or 30; 20 and 22
    miss by 1 + 2, 22 and 30 by 1 + 6."""
    parts = deal_in_order(np.array([5, 5, 10, 2, 8]), (0.7, 0.1, 0.2), "days")
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3], [4]]


def test_a_frame_has_both_eyes_as_the_camera_saw_them(root):
    """Listed are the even frames of each day with both eyes: 6, 1, 5, 3, 4 of the days."""
    person = Mpiigaze(rows="frames", people=("p03",)).load(str(root)).people["p03"]
    assert [len(p) for p in (person.train, person.val, person.test)] == [12, 3, 4]
    last = day_of(4 + 30, DAYS["day06"])
    eyes = person.test.columns["eyes"].numpy()
    assert eyes.shape == (4, 2, 1, 36, 60)
    for at, side in enumerate(("left", "right")):
        np.testing.assert_array_equal(eyes[:, at, 0], last[side]["image"][::2])
        seen = gaze_angles(last[side]["gaze"][::2])
        np.testing.assert_allclose(person.test.columns["gaze"][:, at], seen, atol=1e-6)
        pose = pose_angles(last[side]["pose"][::2])
        np.testing.assert_allclose(person.test.columns["pose"][:, at], pose, atol=1e-6)
    assert person.test.columns["day"].tolist() == [6] * 4
    both = Mpiigaze(rows="frames", subset="all", people=("p03",)).load(str(root)).people["p03"]
    assert sum(len(p) for p in (both.train, both.val, both.test)) == sum(DAYS.values())


def test_a_listed_eye_brings_the_other_eye_of_its_frame(root):
    """The list names one eye of two frames and both of a third: three rows."""
    only_two_days(root)
    day_file(root).unlink()
    days = {"day01": read_day(day_file(root, "day01"))}
    list_file(root).write_text("day01/0001.jpg left\nday01/0003.jpg right\n")
    named = set(mpiigaze.listed_eyes(days, list_file(root)))
    columns, _ = mpiigaze._frames(days, named)
    written = day_of(0, DAYS["day01"])
    np.testing.assert_array_equal(columns["eyes"][:, 0], written["left"]["image"][[0, 2]])
    np.testing.assert_array_equal(columns["eyes"][:, 1], written["right"]["image"][[0, 2]])


def test_the_cross_encoder_has_both_kinds_of_pairs(root):
    """Four frames: one pair swaps eye codes, two rows the gaze codes of their eyes."""
    model = CrossEncoder(size="36x60")
    people = model.prepare(Mpiigaze(rows="frames").load(str(root)))
    task = CrossEncoderTask(model)
    task.check(people)
    batch = people.people["p00"].train.take(slice(0, 4))
    dealt = roles(batch["whose"], 2)
    assert dealt.consistent.tolist() == [True, True, False, False]
    assert dealt.similar.tolist() == [False, False, True, True]
    drawn = task.forward(task.module(), batch).detach()
    loss = float(task.loss(drawn, batch))
    swapped = {**batch, "eyes": batch["eyes"].clone()}
    swapped["eyes"][2:, 1] = 255 - swapped["eyes"][2:, 1]
    assert float(task.loss(drawn, swapped)) != loss


@pytest.mark.parametrize("options", [{"subset": "all"}, {"rows": "frames"}])
def test_npz_files_have_neither_all_frames_nor_both_eyes(options, tmp_path):
    write_npz(tmp_path)
    with pytest.raises(DataError, match="needs the original layout"):
        Mpiigaze(**options).load(str(tmp_path))


def write_npz(folder, name="mpiigaze_p07_36x60.npz", **changes):
    rng = np.random.default_rng(0)
    columns = {
        "image": rng.integers(0, 256, (60, 36, 60), np.uint8),
        "gaze": rng.normal(0, 0.1, (60, 2)).astype(np.float32),
        "pose": rng.normal(0, 0.1, (60, 2)).astype(np.float32),
        **changes,
    }
    np.savez(folder / name, **{k: v for k, v in columns.items() if v is not None})
    return columns


def test_npz_layout_is_split_at_random_within_each_eye(tmp_path):
    columns = write_npz(tmp_path)
    person = Mpiigaze().load(str(tmp_path)).people["p07"]
    parts = (person.train, person.val, person.test)
    assert [len(p) for p in parts] == [42, 6, 12]
    left = {picture.tobytes() for picture in columns["image"][:30]}
    assert [len(pictures(p) & left) for p in parts] == [21, 3, 6]
    for part in parts:
        for picture, side in zip(part.columns["image"].numpy(), part.columns["side"], strict=True):
            assert (picture.tobytes() in left) == (side == 0)
        assert "day" not in part.columns
    assert len(set.union(*map(pictures, parts))) == 60
    again = Mpiigaze().load(str(tmp_path)).people["p07"]
    assert torch.equal(again.test.columns["gaze"], person.test.columns["gaze"])
    other = Mpiigaze(split_seed=1).load(str(tmp_path)).people["p07"]
    assert not torch.equal(other.test.columns["gaze"], person.test.columns["gaze"])


def shorten(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rewrite(root, change, day="day03"):
    data = day_of(2, 9)
    change(data)
    write_day(root / "Data" / "Normalized" / "p00" / f"{day}.mat", data)


def spoil_gaze(data):
    data["left"]["gaze"][4, 1] = np.nan


def unmirror(data):
    data["right"]["gaze"][:, 0] *= -1


def lengthen(data):
    data["right"]["gaze"] *= 1.5


def forget_pose(data):
    del data["right"]["pose"]


def lose_rows(data):
    data["left"]["image"] = data["left"]["image"][:5]


def mirror_everything(root):
    for number, (day, frames) in enumerate(DAYS.items()):
        data = day_of(number, frames)
        unmirror(data)
        write_day(root / "Data" / "Normalized" / "p00" / f"{day}.mat", data)


def day_file(root, day="day03"):
    return root / "Data" / "Normalized" / "p00" / f"{day}.mat"


def list_file(root):
    return root / "Evaluation Subset" / "sample list for eye image" / "p00.txt"


def only_two_days(root):
    for day in ("day02", "day05", "day06"):
        day_file(root, day).unlink()
    list_file(root).write_text("day01/0001.jpg left\nday03/0001.jpg left\n")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: list_file(r).unlink(), "missing file .*p00.txt"),
        (lambda r: day_file(r).unlink(), "p00.txt line 8: 'day03/0001.jpg left' is not"),
        (lambda r: list_file(r).write_text("day01/0001.jpg\n"), "line 1"),
        (lambda r: list_file(r).write_text("\n"), "lists no samples"),
        (lambda r: shorten(day_file(r)), "cannot read .*day03.mat"),
        (lambda r: savemat(day_file(r), {"datum": 1}), "lacks 'filenames'|lacks 'data'"),
        (lambda r: rewrite(r, spoil_gaze), "left gaze is NaN or infinite in 1 of 9 rows.*row 4"),
        (lambda r: rewrite(r, lengthen), "right gaze holds vectors that are not of unit length"),
        (lambda r: rewrite(r, forget_pose), "another version, data.right is not a struct"),
        (lambda r: rewrite(r, lose_rows), "9 filenames, but data.left has 5 images"),
        (mirror_everything, "right eyes seem mirrored already"),
        (only_two_days, r"recording days of p00 \(2\)|2 are too few.*option people"),
    ],
)
def test_bad_original_files_give_one_clear_line(root, change, says):
    change(root)
    with pytest.raises(DataError, match=says) as caught:
        Mpiigaze().load(str(root))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pose": None}, "another version, it lacks pose"),
        ({"image": np.zeros((60, 9, 15), np.uint8)}, "another version, image is uint8"),
        ({"gaze": np.zeros((59, 2))}, "another version, gaze is"),
        ({"gaze": np.full((60, 2), np.nan)}, "gaze of p07 is NaN or infinite in 60 of 60"),
        ({"gaze": np.full((60, 2), 12.0)}, "must be radians"),
        (
            {
                k: np.zeros((4, *s), d)
                for k, s, d in [
                    ("image", (36, 60), np.uint8),
                    ("gaze", (2,), float),
                    ("pose", (2,), float),
                ]
            },
            "samples per eye of p07: 2 are too few",
        ),
    ],
)
def test_bad_npz_files_give_one_clear_line(tmp_path, changes, says):
    write_npz(tmp_path, **changes)
    with pytest.raises(DataError, match=says) as caught:
        Mpiigaze().load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_no_root_wrong_root_and_truncated_npz(tmp_path):
    with pytest.raises(DataError, match="not packaged: name its folder"):
        Mpiigaze().load()
    with pytest.raises(DataError, match="no folder"):
        Mpiigaze().load(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="neither Data/Normalized nor a file"):
        Mpiigaze().load(str(tmp_path))
    write_npz(tmp_path)
    shorten(tmp_path / "mpiigaze_p07_36x60.npz")
    with pytest.raises(DataError, match=r"cannot read .*p07"):
        Mpiigaze().load(str(tmp_path))


def test_bad_options_are_named(root):
    with pytest.raises(DataError, match="unknown participant 'p9'"):
        Mpiigaze(people=("p9",)).load(str(root))
    with pytest.raises(ConfigError, match="did you mean 'evaluation'"):
        Mpiigaze(subset="evaluatoin").load(str(root))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="sum 1"):
        Mpiigaze(shares=(0.5, 0.1, 0.1)).load(str(root))


def test_check_compares_with_the_published_totals(root):
    lines = {line.what: line for line in mpiigaze.check(root)}
    assert (lines["frames"].actual, lines["frames"].expected) == ("70", "213,659")
    assert (lines["participants"].actual, lines["participants"].expected) == ("2", "15")
    assert (lines["p00: listed samples"].actual, lines["p00: listed samples"].ok) == ("38", False)
    assert lines["fewest frames of a person"].expected == "1,498"
    assert lines["most frames of a person"].expected == "34,745"
    shorten(day_file(root))
    assert any("cannot read" in line.hint for line in mpiigaze.check(root))
