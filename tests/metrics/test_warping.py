"""DTW: oracle O8 (methods design note, section 4), the recursion written out, and length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vergence.metrics.dtw import dtw


def column(*values):
    return np.array(values, float)[:, None]


def test_o8():
    """[0,1,2] against [0,2,2,3]: last row 3, 1, 1, 2."""
    y = column(0, 2, 2, 3)
    assert [dtw(column(0, 1, 2), y[:k]) for k in (1, 2, 3, 4)] == [3, 1, 1, 2]
    points, ends = np.array([[0, 0], [1, 1], [2, 0.0]]), np.array([[0, 0], [2, 0.0]])
    assert dtw(points, ends) == pytest.approx(2**0.5)
    assert dtw(points, ends, metric="sqeuclidean") == 2


def written_out(x, y, per_frame):
    table = np.full((len(x) + 1, len(y) + 1), np.inf)
    table[0, 0] = 0
    for i, a in enumerate(x, 1):
        for j, b in enumerate(y, 1):
            c = np.sqrt(((a - b) ** 2).sum())
            straight = table[i - 1, j - 1] + (2 if per_frame else 1) * c
            table[i, j] = min(table[i - 1, j] + c, table[i, j - 1] + c, straight)
    return table[-1, -1] / (len(x) + len(y) if per_frame else 1)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_it_is_the_recursion(n, m, d, per_frame, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    assert dtw(x, y, per_frame) == pytest.approx(written_out(x, y, per_frame), rel=1e-12)
    assert dtw(x, y, per_frame) == pytest.approx(dtw(y, x, per_frame), rel=1e-12)
    assert dtw(x, x, per_frame) == 0


@pytest.mark.parametrize("frames", [1, 4, 40])
def test_per_frame_forgets_length(frames):
    """All frames are 3 apart: their mean distance is 3 whatever the lengths, the sum is not."""
    assert dtw(np.zeros((frames, 1)), np.full((10, 1), 3.0), per_frame=True) == pytest.approx(3)
    assert dtw(np.zeros((frames, 1)), np.full((10, 1), 3.0)) == 3 * max(frames, 10)


@pytest.mark.parametrize("per_frame", [False, True])
def test_as_the_reference_library_finds(per_frame):
    """dtw-python, where it is installed; the first pair of frames has weight 1 there."""
    reference = pytest.importorskip("dtw").dtw
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, y = (rng.normal(size=(rng.integers(1, 40), 3)) for _ in range(2))
        far = reference(x, y, step_pattern="symmetric2" if per_frame else "symmetric1").distance
        if per_frame:
            far = (far + np.linalg.norm(x[0] - y[0])) / (len(x) + len(y))
        assert dtw(x, y, per_frame) == pytest.approx(far, rel=1e-12)


def test_there_must_be_frames():
    with pytest.raises(ValueError, match="0 and 2 frames"):
        dtw(np.zeros((0, 1)), np.zeros((2, 1)))
