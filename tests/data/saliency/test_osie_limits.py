"""OSIE: values of a table at their limits, and the split by hand."""

import numpy as np
import pytest

from tests.refusals import refuses
from vergence.data.saliency import osie
from vergence.data.saliency.osie import Osie
from vergence.errors import DataError


def table(**more):
    columns = {
        "image": np.array([1001, 1001, 1700], np.int32),
        "viewer": np.array([0, 1, 1], np.int8),
        "order": np.array([0, 0, 0], np.int16),
        "x": np.array([0.0, 0.5, 1.0]),
        "y": np.array([1.0, 0.5, 0.0]),
        "duration_ms": np.full(3, 100.0),
    }
    return columns | {name: np.asarray(value) for name, value in more.items()}


def test_the_first_and_last_image_and_the_edges_are_allowed(tmp_path):
    osie._verify(table(), (2, 2, 3), tmp_path)
    osie._verify({name: column[:0] for name, column in table().items()}, (0, 0, 0), tmp_path)


@pytest.mark.parametrize(
    ("more", "totals", "said"),
    [
        ({"image": [1000, 1001, 1002]}, (3, 2, 3), "image numbers must be 1001 to 1700"),
        ({"image": [1001, 1001, 1701]}, (2, 2, 3), "image numbers must be 1001 to 1700"),
        ({"image": [1.0, 2.0, 3.0]}, (3, 2, 3), "fixation image must be whole numbers"),
        ({"viewer": [0.0, 1.0, 1.0]}, (2, 2, 3), "fixation viewer must be whole numbers"),
        ({"order": [0.0, 1.0, 1.0]}, (2, 2, 3), "fixation order must be whole numbers"),
        ({"x": [-1e-9, 0.5, 1]}, (2, 2, 3), "fixation x lies outside"),
        ({"y": [0, 0.5, 1 + 1e-9]}, (2, 2, 3), "fixation y lies outside"),
        ({"x": [0, np.nan, 1]}, (2, 2, 3), "fixation x is NaN or infinite in 1 of 3 rows"),
        ({}, (3, 2, 3), "holds 2 images with fixations instead of 3"),
        ({}, (2, 3, 3), "holds 2 viewers instead of 3"),
        ({}, (2, 2, 1234), "holds 3 fixations instead of 1,234"),
    ],
)
def test_what_is_refused(tmp_path, more, totals, said):
    with pytest.raises(DataError, match=said):
        osie._verify(table(**more), totals, tmp_path)


def test_points_stand_in_time_order_beside_those_of_others():
    columns = {
        "image": np.array([7, 5, 7, 7, 5]),
        "viewer": np.array([1, 0, 0, 1, 0]),
        "order": np.array([2, 3, 1, 1, 1]),
        "x": np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
        "y": np.array([0.9, 0.8, 0.7, 0.6, 0.5]),
    }
    points = osie._points(columns, np.array([5, 6, 7]))
    assert points.shape == (15, 3, 2, 2)
    found = {
        (v, i, k): tuple(points[v, i, k].astype(float).round(4).tolist())
        for v, i, k in zip(*np.nonzero(np.isfinite(points[..., 0])), strict=True)
    }
    assert found == {
        (0, 0, 0): (0.5, 0.5),
        (0, 0, 1): (0.2, 0.8),
        (0, 2, 0): (0.3, 0.7),
        (1, 2, 0): (0.4, 0.6),
        (1, 2, 1): (0.1, 0.9),
    }


@pytest.mark.parametrize("images", [None, 100])
def test_a_split_is_a_permutation_of_all_700_without_those_that_are_missing(images):
    known = np.arange(1001, 1701)[::3]
    numbers, parts = Osie(split_seed=4, images=images)._split(known)
    order = 1001 + np.random.default_rng(4).permutation(700)
    order = order[np.isin(order, known)]
    count = len(order)
    assert count == 234
    val, test = round(0.1 * count), round(0.2 * count)
    whole = order[test + val :], order[test : test + val], order[:test]
    used = images or count
    sizes = used - round(0.1 * used) - round(0.2 * used), round(0.1 * used), round(0.2 * used)
    for part, own, size in zip(parts, whole, sizes, strict=True):
        assert numbers[part].tolist() == sorted(own[:size].tolist())
    assert numbers.tolist() == sorted(numbers.tolist())
    with pytest.raises(DataError, match="images = 235, but the data hold 234"):
        Osie(images=235)._split(known)


def test_totals_of_an_archive(tmp_path):
    columns = table()
    np.savez(tmp_path / "fixations.npz", **columns, totals=np.array([2, 3, 4]))
    assert osie.read_fixations(tmp_path)[1] == (2, 3, 4)
    np.savez(tmp_path / "fixations.npz", **columns)
    assert osie.read_fixations(tmp_path)[1] == (700, 15, 98_321)
    for totals in ([2, 3], [2.0, 3, 4], [[2, 3, 4]]):
        np.savez(tmp_path / "fixations.npz", **columns, totals=np.array(totals))
        with refuses("data", "fixations.npz is of another version"):
            osie.read_fixations(tmp_path)
    np.savez(tmp_path / "fixations.npz", **{**columns, "x": columns["x"][:2]})
    with refuses("data", "differ in length"):
        osie.read_fixations(tmp_path)
