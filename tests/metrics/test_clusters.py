"""K-means on oracle O9 (methods design note, section 4); agreement of groupings by hand."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from vergence.metrics.clustering import adjusted_rand, inertia, kmeans, silhouette

O9 = np.array([[1], [1.2], [5], [5.3], [9]])
DIFFERENCE = np.array([[0], [8], [11], [15], [16], [18.0]])


def grouped(points, k, seed=0):
    labels = kmeans(points, k, np.random.default_rng(seed))
    found = {tuple(np.flatnonzero(labels == label) + 1) for label in labels}
    return found, inertia(points, labels)


@pytest.mark.parametrize(
    ("d", "k", "rows", "scalars"),
    [
        (O9, 3, ({(1, 2), (3, 4), (5,)}, 0.325), ({(1, 2), (3, 4), (5,)}, 0.065)),
        (O9, 2, ({(1, 2), (3, 4, 5)}, None), ({(1, 2), (3, 4, 5)}, None)),
        (DIFFERENCE, 2, ({(1,), (2, 3, 4, 5, 6)}, 295.2), ({(1, 2), (3, 4, 5, 6)}, 58)),
    ],
)
def test_o9(d, k, rows, scalars):
    assert cdist(O9, O9)[0] == pytest.approx([0, 0.2, 4, 4.3, 8])
    for points, (groups, spread) in ((cdist(d, d), rows), (d, scalars)):
        for seed in range(2):
            found = grouped(points, k, seed)
            assert found[0] == groups
            assert spread is None or found[1] == pytest.approx(spread)


@pytest.mark.parametrize("points", [[[3.0]], [[1.0], [1.0]], [[1.0], [2.0], [1.0]]])
def test_few_different_points_are_a_group_each(points):
    found, spread = grouped(np.array(points), 3)
    assert len(found) == len(np.unique(points))
    assert spread == 0


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("aabb", "xxyy", 1.0),
        ("aabb", "yyxx", 1.0),
        ("aaaa", "xxxx", 1.0),
        ("aabb", "xyxy", -0.5),  # no pair agrees: (0 - 4/6) / (2 - 4/6)
        ("aaabbb", "xxyyyy", 0.324324),  # pairs 4, 6, 7: (4 - 42/15) / (6.5 - 42/15)
    ],
)
def test_adjusted_rand(one, other, expected):
    assert adjusted_rand(one, other) == pytest.approx(expected, abs=1e-6)


def test_silhouette():
    """0, 1 | 4 | 9: a = 1 1, b = 4 3, so 3/4 2/3; who is alone counts 0; one group has none."""
    points = np.array([[0.0], [1.0], [4.0], [9.0]])
    distances = cdist(points, points)
    assert silhouette(distances, np.array([5, 5, 2, 7])) == pytest.approx((3 / 4 + 2 / 3) / 4)
    assert silhouette(distances, np.zeros(4, int)) == 0
    assert silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])) == 0
    wrong = silhouette(distances, np.array([0, 1, 1, 0]))  # a 9 3 3 9; b 2.5 4.5 4.5 6.5
    assert wrong == pytest.approx(np.mean([-6.5 / 9, 1.5 / 4.5, 1.5 / 4.5, -2.5 / 9]))
