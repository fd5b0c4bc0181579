"""OSIE: the packaged sample, the original layout, the split for all viewers alike, bad input."""

import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from tests.conftest import research_data
from vergence.data.saliency import osie
from vergence.data.saliency.osie import COLUMNS, SAMPLE, Osie, read_fixations
from vergence.errors import ConfigError, DataError

IDS = np.arange(1001, 1021)
VIEWERS = 3


def table(fixations=4):
    """Every viewer looks `fixations` times at every image, order 0 at the centre."""
    rng = np.random.default_rng(1)
    image, viewer, order = (
        a.ravel() for a in np.meshgrid(IDS, np.arange(VIEWERS), np.arange(fixations), indexing="ij")
    )
    x, y = rng.integers(1, 800, len(image)) / 800, rng.integers(1, 600, len(image)) / 600
    x[order == 0] = y[order == 0] = 0.5
    return {
        "image": image.astype(np.int32),
        "viewer": viewer.astype(np.int8),
        "order": order.astype(np.int16),
        "x": x.astype(np.float32),
        "y": y.astype(np.float32),
        "duration_ms": rng.integers(80, 400, len(image)).astype(np.float32),
    }


def write(folder, columns=None, **changes):
    columns = {**(columns or table()), **changes}
    totals = [len(IDS), VIEWERS, len(columns["x"])]
    np.savez(folder / "fixations.npz", **columns, totals=totals)
    (folder / "stimuli").mkdir(exist_ok=True)
    for number in IDS:
        shade = Image.new("RGB", (32, 24), (int(number - 1000) * 10, 0, 0))
        shade.save(folder / "stimuli" / f"{number}.jpg")


def write_mat(path, columns):
    """Store the columns as the original struct array: images with subjects with fix_x, fix_y."""
    images = np.empty((len(IDS), 1), object)
    for i, number in enumerate(IDS):
        subjects = np.empty((VIEWERS, 1), object)
        for v in range(VIEWERS):
            own = (columns["image"] == number) & (columns["viewer"] == v)
            subjects[v, 0] = {
                "fix_x": np.rint(columns["x"][own].astype(float) * 800)[None],
                "fix_y": np.rint(columns["y"][own].astype(float) * 600)[None],
                "fix_duration": columns["duration_ms"][own][None],
            }
        images[i, 0] = {"img": f"{number}.jpg", "subjects": subjects}
    savemat(path, {"fixations": images})


@pytest.fixture
def root(tmp_path):
    write(tmp_path)
    return tmp_path


SMALL = Osie(size=(32, 24))


def test_the_packaged_sample_has_all_viewers_on_the_same_images():
    federation = Osie().load()
    assert federation.clients == tuple(f"v{i:02d}" for i in range(15))
    banks = {
        id(getattr(s, part).banks["frames"].rows)
        for s in federation.people.values()
        for part in ("train", "val", "test")
    }
    assert len(banks) == 1
    frames = federation.people["v00"].train.banks["frames"].rows
    assert frames.shape == (160, 240, 320, 3)
    assert frames.dtype == torch.uint8
    for s in federation.people.values():
        assert len(s.train) in (111, 112)
        assert (len(s.val), len(s.test)) == (16, 32)
        batch = s.test.take(torch.tensor([0, 5]))
        assert batch["frames"].shape == (2, 1, 240, 320, 3)
        points = batch["points"][torch.isfinite(batch["points"])]
        assert 0 <= points.min() <= points.max() <= 1
    assert federation.about["licence"].startswith("MIT")


def test_the_packaged_sample_is_small_and_carries_its_notice():
    assert "Copyright (c) 2014 NUS VIP" in (SAMPLE / "LICENSE").read_text()
    files = [file for file in SAMPLE.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 5e6
    assert {file.suffix for file in files} == {".jpg", ".npz", ""}


def test_no_image_is_in_two_parts_of_anybody(root):
    federation = SMALL.load(str(root))
    scenes = [
        {int(i) for s in federation.people.values() for i in getattr(s, part).columns["scene"]}
        for part in ("train", "val", "test")
    ]
    assert [len(part) for part in scenes] == [14, 2, 4]
    assert set.union(*scenes) == set(range(20))


def test_points_are_the_fixations_after_the_first_of_that_viewer_and_image(root):
    """Image 1005 is bank row 4; its fixations of viewer 2 stand in order, order 0 left out."""
    columns = table()
    own = (columns["image"] == 1005) & (columns["viewer"] == 2) & (columns["order"] > 0)
    person = SMALL.load(str(root)).people["v02"]
    for part in (person.train, person.val, person.test):
        for row in (part.columns["scene"] == 4).nonzero():
            assert part.columns["frame_ids"][row].item() == 4
            expected = np.stack([columns["x"][own], columns["y"][own]], 1)
            np.testing.assert_array_equal(part.columns["points"][row][0, 0], expected)
            picture = part.take(row)["frames"][0, 0]
            assert abs(int(picture[..., 0].float().mean()) - 50) <= 2
            return
    pytest.fail("image 1005 is in no part")


def test_fewer_images_keep_every_image_in_its_part(root):
    whole, fewer = SMALL.load(str(root)), Osie(size=(32, 24), images=10).load(str(root))
    frames = whole.people["v00"].train.banks["frames"].rows[:, 0, 0, 0]
    small = fewer.people["v00"].train.banks["frames"].rows[:, 0, 0, 0]
    assert len(small) == 10
    for part, size in (("train", 7), ("val", 1), ("test", 2)):
        big = frames[getattr(whole.people["v00"], part).columns["scene"]].tolist()
        little = small[getattr(fewer.people["v00"], part).columns["scene"]].tolist()
        assert len(little) == size
        assert set(little) <= set(big)


def test_a_trial_with_only_its_first_fixation_is_left_out(tmp_path):
    columns = table()
    lonely = (columns["image"] == 1001) & (columns["viewer"] == 1) & (columns["order"] > 0)
    write(tmp_path, {name: column[~lonely] for name, column in columns.items()})
    federation = SMALL.load(str(tmp_path))
    counts = [sum(len(p) for p in (s.train, s.val, s.test)) for s in federation.people.values()]
    assert counts == [20, 19, 20]
    assert "1 trials" in federation.about["left_out"]


def test_viewers_option_loads_only_these(root):
    assert Osie(viewers=(2, 0), size=(32, 24)).load(str(root)).clients == ("v02", "v00")


def test_npz_and_mat_give_the_same_columns(tmp_path):
    (tmp_path / "eye").mkdir()
    write_mat(tmp_path / "eye" / "fixations.mat", table())
    from_mat, totals = read_fixations(tmp_path)
    assert totals == (700, 15, 98_321)
    write(tmp_path)
    from_npz, totals = read_fixations(tmp_path)
    assert totals == (20, 3, 240)
    for name in COLUMNS:
        np.testing.assert_array_equal(from_mat[name], from_npz[name])
        assert from_mat[name].dtype == from_npz[name].dtype


def broken(change):
    """Return a function that writes a good folder and then breaks it."""

    def write_broken(folder):
        write(folder)
        change(folder)

    return write_broken


def shorten(name, share=0.6):
    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(share * len(data))])

    return change


def mat_only(change):
    def write_mat_only(folder):
        (folder / "fixations.npz").unlink()
        write_mat(folder / "fixations.mat", table())
        change(folder)

    return write_mat_only


def without(key):
    def change(folder):
        columns = table()
        del columns[key]
        np.savez(folder / "fixations.npz", **columns)

    return change


def nan_gaze(folder):
    columns = table()
    columns["x"][7] = np.nan
    write(folder, columns)


def outside(folder):
    columns = table()
    columns["y"][7] = 1.5
    write(folder, columns)


def not_a_picture(folder):
    (folder / "stimuli" / "1003.jpg").write_text("<html>not found</html>")


def pickled(folder):
    np.savez(folder / "fixations.npz", **{name: np.array([None]) for name in COLUMNS})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "fixations.npz").unlink(), "neither fixations.npz nor fixations.mat"),
        (lambda f: (f / "stimuli" / "1003.jpg").unlink(), "missing file .*1003.jpg"),
        (shorten("fixations.npz"), "cannot read .*fixations.npz"),
        (shorten("stimuli/1003.jpg"), "cannot decode .*1003.jpg"),
        (mat_only(shorten("fixations.mat")), "cannot read .*fixations.mat"),
        (mat_only(lambda f: savemat(f / "fixations.mat", {"eyes": 1})), "lacks 'fixations'"),
        (mat_only(lambda f: savemat(f / "fixations.mat", {"fixations": 1})), "another version"),
        (mat_only(lambda _: None), "20 images with fixations instead of 700"),
        (without("order"), "another version, it lacks order"),
        (pickled, "cannot read .*fixations.npz"),
        (nan_gaze, "fixation x is NaN or infinite in 1 of 240 rows, first in row 7"),
        (outside, r"outside \[0, 1\]"),
        (not_a_picture, "cannot decode .*1003.jpg"),
    ],
)
def test_bad_files_give_one_clear_line(tmp_path, change, says):
    broken(change)(tmp_path)
    with pytest.raises(DataError, match=says) as caught:
        SMALL.load(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999])
def test_a_mat_cut_anywhere_is_a_data_error(tmp_path, share):
    write_mat(tmp_path / "fixations.mat", table())
    shorten("fixations.mat", share)(tmp_path)
    with pytest.raises(DataError, match="fixations"):
        read_fixations(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"viewers": (0, 7)}, DataError, "unknown viewer 7: the data hold viewers 0 to 2"),
        ({"images": 30}, DataError, "images = 30, but the data hold 20"),
        ({"images": 3}, DataError, "3 are too few for shares"),
        ({"images": 0}, ConfigError, "images must be >= 3"),
        ({"viewers": (1, 1)}, ConfigError, "different viewer numbers"),
        ({"shares": (0.7, 0.1, 0.1)}, ConfigError, "sum 1"),
        ({"size": (4, 4)}, ConfigError, "size must be >= 16 and <= 4096"),
    ],
)
def test_bad_options_are_named(root, options, error, says):
    with pytest.raises(error, match=says):
        Osie(**{"size": (32, 24), **options}).load(str(root))


def test_check_says_what_is_missing(root):
    lines = Osie().check(root)
    assert [line.ok for line in lines] == [False, False, False, False, False]
    assert (lines[0].actual, lines[0].expected) == ("20", "700")
    assert "github.com/NUS-VIP" in lines[0].hint


@pytest.mark.data
def test_the_original_file_and_the_flat_columns_agree(tmp_path):
    folder = research_data("osie")
    shutil.copyfile(folder / "fixations.mat", tmp_path / "fixations.mat")
    from_mat, _ = read_fixations(tmp_path)
    from_npz, _ = read_fixations(folder)
    assert len(from_npz["x"]) == 98_321
    for name in COLUMNS:
        np.testing.assert_array_equal(from_mat[name], from_npz[name])


@pytest.mark.data
@pytest.mark.slow
def test_the_whole_set_is_split_as_its_reference_numbers_were():
    """The reference tests the first 140 of permutation(700) of seed 0, in the order of files."""
    folder = research_data("osie")
    assert all(line.ok for line in Osie().check(folder))
    federation = Osie(size=(32, 24)).load(str(folder))
    order = np.random.default_rng(0).permutation(700)
    for part, rows in (("test", order[:140]), ("val", order[140:210]), ("train", order[210:])):
        seen = {
            int(i) for s in federation.people.values() for i in getattr(s, part).columns["scene"]
        }
        assert seen == set(rows.tolist())


@pytest.mark.data
def test_the_sample_keeps_the_part_of_every_image():
    """A sampled image must be tested in the sample if and only if the whole set tests it."""
    order = 1001 + np.random.default_rng(0).permutation(700)
    numbers = np.unique(read_fixations(SAMPLE)[0]["image"])
    person = Osie(size=(32, 24)).load().people["v00"]
    assert set(numbers[person.test.columns["scene"]]) <= set(order[:140].tolist())
    assert set(numbers[person.train.columns["scene"]]) <= set(order[210:].tolist())
    folder = research_data("osie")
    first = f"{numbers[0]}.jpg"
    packaged = Image.open(io.BytesIO((SAMPLE / "stimuli" / first).read_bytes()))
    whole = Image.open(io.BytesIO((folder / "stimuli" / first).read_bytes()))
    assert packaged.tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("number", "refused"), [(1000, True), (1001, False), (1700, False), (1701, True)]
)
def test_image_numbers_are_1001_to_1700(number, refused, tmp_path):
    columns = {name: column[:3] for name, column in table().items()}
    columns["image"] = np.array([1002, number, 1003], np.int32)
    totals = (3, len(np.unique(columns["viewer"])), 3)
    if not refused:
        osie._verify(columns, totals, tmp_path)
        return
    with pytest.raises(DataError, match="image numbers must be 1001 to 1700"):
        osie._verify(columns, totals, tmp_path)


def test_places_on_the_edge_of_an_image_are_inside_it(tmp_path):
    columns = {name: column[:3] for name, column in table().items()}
    totals = (1, len(np.unique(columns["viewer"])), 3)
    for name in ("x", "y"):
        for edge, beyond in ((0.0, -0.001), (1.0, 1.001)):
            on = {**columns, name: np.array([0.5, edge, 0.5], np.float32)}
            osie._verify(on, totals, tmp_path)
            off = {**columns, name: np.array([0.5, beyond, 0.5], np.float32)}
            with pytest.raises(DataError, match=f"fixation {name} lies outside"):
                osie._verify(off, totals, tmp_path)
    with pytest.raises(DataError, match="holds 3 fixations instead of 4"):
        osie._verify(columns, (1, totals[1], 4), tmp_path)
