"""The layout of xlsa17: lists that count from 1, who learns from what, scaling, and Table 5.1."""

import numpy as np
import pytest
from scipy.io import savemat

from tests.conftest import research_data
from tests.refusals import refuses
from vergence.data.owner import OWNER
from vergence.data.synthetic import zsl_synthetic
from vergence.data.zero_shot import xlsa17
from vergence.data.zero_shot.splits import check_counts, features_of, read_split
from vergence.data.zero_shot.xlsa17 import Xlsa17
from vergence.errors import ConfigError, DataError

CLASSES = ("killer+whale", "sea_lion", "bat")
LABELS = np.repeat([1, 2, 3], [10, 10, 5])
"""Images 1 to 10, 11 to 20 and 21 to 25, counted from 1; bats are unseen."""


def split(**changed):
    arrays = {
        "att": np.array([[0.0, 1, 0.6], [1, 0, 0.8]]),
        "allclasses_names": np.array([[name] for name in CLASSES], object),
        "trainval_loc": np.r_[1:9, 11:19],
        "test_seen_loc": np.array([9, 10, 19, 20]),
        "test_unseen_loc": np.r_[21:26],
        "train_loc": np.r_[1:11],
        "train_allclass_loc": np.r_[1:9, 11:19, 21:24],
        "tunseen_train_loc": np.r_[21:24],
        "tunseen_test_loc": np.array([24, 25]),
    }
    arrays.update(changed)
    return {
        name: array[:, None] if name.endswith("_loc") else array
        for name, array in arrays.items()
        if array is not None
    }


def write(folder):
    """Write a set of 25 images in the published layout."""
    savemat(folder / "att_splits.mat", split())
    features = np.stack([np.arange(25.0), np.full(25, 7.0), np.arange(25) % 3])
    features[0, 24] = 40.0
    savemat(folder / "res101.mat", {"features": features, "labels": LABELS[:, None]})


@pytest.fixture
def root(tmp_path):
    write(tmp_path)
    return tmp_path


def numbers(samples):
    """Image numbers from 1: the first feature is number - 1, scaled by 17, of 25 it is 40."""
    return sorted(round(v * 17) + 1 for v in samples.columns["x"][:, 0].tolist())


def test_who_learns_from_what_counting_from_one(root):
    quasi = Xlsa17(teacher="quasi").load(str(root))
    splits = quasi.people[OWNER]
    assert sorted(numbers(splits.train) + numbers(splits.val)) == [*range(1, 9), *range(11, 19)]
    assert numbers(splits.test) == [9, 10, 19, 20, 21, 22, 23, 24, 41]
    assert splits.test.columns["y"].bincount().tolist() == [2, 2, 5]
    assert quasi.about["unseen"] == "bat"
    assert quasi.about["classes"] == "killer whale, sea lion, bat"
    assert quasi.about["teacher"] == "quasi, saw 2 of 3 classes: killer whale, sea lion"
    whole = Xlsa17().load(str(root))
    splits = whole.people[OWNER]
    assert set(numbers(splits.train) + numbers(splits.val)) >= {21, 22, 23}
    assert numbers(splits.test) == [9, 10, 19, 20, 24, 41]
    assert whole.about["teacher"].startswith("omniscient, saw 3 of 3 classes")
    assert "authors' lists" in whole.about["split"]


def test_features_are_scaled_by_trainval_whoever_learns(root):
    for teacher in ("omniscient", "quasi"):
        x = Xlsa17(teacher=teacher).load(str(root)).people[OWNER].test.columns["x"]
        assert x[:, 0].max() == pytest.approx(40 / 17)
        assert (x[:, 1] == 0).all()  # constant
        assert x[:, 2].max() == 1


def test_without_the_authors_lists_unseen_images_are_drawn(root):
    lists = {f"{name}_loc": None for name in ("tunseen_train", "tunseen_test", "train_allclass")}
    savemat(root / "att_splits.mat", split(**lists))
    whole = Xlsa17().load(str(root))
    test = whole.people[OWNER].test.columns["y"]
    assert test.bincount().tolist() == [2, 2, 1]  # 80 % of five bats to learn from
    assert "80 % of each unseen class, drawn" in whole.about["split"]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"test_seen_loc": np.array([8, 9, 18, 19])}, "they name 23 of 25, from 1 to 25"),
        (
            {
                "trainval_loc": np.r_[0:8, 10:18],
                "test_seen_loc": np.array([8, 9, 18, 19]),
                "test_unseen_loc": np.r_[20:25],
            },
            r"from 0 to 24 \(do they count from 0\?\)",
        ),
        ({"tunseen_test_loc": np.array([24])}, "two parts of test_unseen_loc"),
        ({"tunseen_test_loc": None}, "lacks 'tunseen_test_loc'"),
        ({"train_allclass_loc": np.r_[1:24]}, "trainval_loc and tunseen_train_loc"),
        ({"att": np.ones((2, 4))}, r"one column of numbers for each of 3 names.*\(2, 4\)"),
        ({"test_seen_loc": None}, "lacks 'test_seen_loc'"),
        (
            {"test_unseen_loc": np.r_[20:25], "test_seen_loc": np.array([9, 10, 19, 25])},
            "class 'sea lion' is in test_unseen_loc and in trainval_loc",
        ),
    ],
)
def test_lists_that_cannot_be(root, changed, what):
    lists = {f"{name}_loc": None for name in ("tunseen_train", "tunseen_test", "train_allclass")}
    own = changed if {"tunseen_test_loc", "train_allclass_loc"} & set(changed) else lists | changed
    savemat(root / "att_splits.mat", split(**own))
    with pytest.raises(DataError, match=what):
        Xlsa17().load(str(root))


def test_features_that_do_not_fit_the_lists(root):
    savemat(root / "res101.mat", {"features": np.ones((2, 24)), "labels": LABELS[:24, None]})
    with pytest.raises(DataError, match=r"24 labels from 1 to 3, att_splits.mat 25 images"):
        Xlsa17().load(str(root))
    (root / "res101.mat").unlink()
    with pytest.raises(DataError, match=r"missing file .*res101.mat.*Xian.*zsl_synthetic"):
        Xlsa17().load(str(root))


def test_a_check_says_what_is_off_and_what_is_missing(root):
    savemat(root / "att_splits.mat", split())
    assert "unseen = [...]" in xlsa17.check(root)[0].hint  # which classes are unseen is not known
    (root / "res101.mat").unlink()
    assert "res101.mat" in xlsa17.check(root)[-1].hint


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("AWA1", "40 10 85 30,475 19,832 4,958 5,685 4,542 1,143"),
        ("AWA2", "40 10 85 37,322 23,527 5,882 7,913 6,328 1,585"),
        ("APY", "20 12 64 15,339 5,932 1,483 7,924 6,333 1,591"),
    ],
)
def test_table_5_1(name, row):
    """Counts of the real files; the thesis prints 15,539 images of aPY, its own columns 15,339."""
    root = research_data("zsl_splits") / name
    found = check_counts(root)
    assert [line.actual for line in found] == row.split()
    assert all(line.ok for line in found)
    assert all(line.ok for line in zsl_synthetic.check(root))
    assert [line.ok for line in xlsa17.check(root)[9:]] == [False]


@pytest.mark.data
def test_attributes_are_not_all_positive_and_other_sets_need_unseen_classes_named():
    home = research_data("zsl_splits")
    assert -0.004 < read_split(home / "AWA2").attributes.min() < 0
    other = read_split(home / "SUN")
    with pytest.raises(ConfigError, match="which of its 717 classes are unseen"):
        other.kinds()
    assert other.kinds(("access_road",)).unseen == (1,)


@pytest.mark.parametrize("name", ["labels", "features"])
def test_words_in_place_of_numbers_are_refused(tmp_path, name):
    made = {"labels": np.ones((3, 1)), "features": np.zeros((2, 3)), name: np.array(["abc"] * 3)}
    savemat(tmp_path / "f.mat", made)
    with refuses("bad-value", "f.mat", f"{name} holds"):
        features_of(tmp_path, "f.mat", "get it")


def test_features_have_a_column_for_each_label(tmp_path):
    made = {"labels": np.array([[2], [1], [3]]), "features": np.arange(6.0).reshape(2, 3)}
    savemat(tmp_path / "f.mat", made)
    x, y = features_of(tmp_path, "f.mat", "get it")
    assert (x.tolist(), y.tolist()) == ([[0, 3], [1, 4], [2, 5]], [1, 0, 2])
    savemat(tmp_path / "f.mat", {**made, "labels": np.ones((2, 1))})
    with refuses("data", "one column for each of 2 labels", "(2, 3)"):
        features_of(tmp_path, "f.mat", "get it")
    savemat(tmp_path / "f.mat", {"labels": np.zeros((0, 0)), "features": np.zeros((2, 0))})
    with refuses("data", "each of 0 labels"):
        features_of(tmp_path, "f.mat", "get it")
