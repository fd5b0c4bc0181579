"""Shots: every cut tried by hand, lengths kept, scenes found; coverage beside plain greedy."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vergence.data.video_summaries.shots import coverage, segments
from vergence.errors import ConfigError


def objective(x, starts):
    """Scatter per sample plus the penalty of KTS, written out."""
    n, m = len(x), len(starts) - 1
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    parts = np.split(x, starts[1:])
    scatter = sum(((part - part.mean(0)) ** 2).sum() for part in parts)
    return scatter / n + (m / (2 * n) * (math.log(n / m) + 1) if m else 0)


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10**6), st.data())
def test_no_other_cut_is_better(n, longest, seed, data):
    shortest = data.draw(st.integers(1, (min(n, longest) + 1) // 2))
    x = np.random.default_rng(seed).normal(size=(n, 3))
    every = [[0, *cut] for m in range(n) for cut in combinations(range(1, n), m)]
    allowed = [
        cut for cut in every if all(shortest <= k <= longest for k in np.diff([*cut, n]).tolist())
    ]
    found = segments(x, longest, shortest)
    assert found.tolist() in allowed
    assert objective(x, found) == pytest.approx(min(objective(x, cut) for cut in allowed))


def test_scenes_are_found_and_long_ones_cut():
    """Scenes of 12, 5 and 9 samples, 20 degrees of noise: their borders; at most 6: 12 is cut."""
    rng = np.random.default_rng(0)
    scenes = np.repeat(rng.normal(size=(3, 64)), [12, 5, 9], axis=0)
    x = scenes + 0.3 * rng.normal(size=scenes.shape)
    assert segments(x, 26).tolist() == [0, 12, 17]
    short = segments(x, 6)
    assert {0, 12, 17} <= set(short.tolist())
    assert max(np.diff([*short, 26])) <= 6


def test_a_still_video_is_cut_to_the_greatest_length_too():
    assert max(np.diff([*segments(np.ones((50, 4)), 8, 3), 50])) <= 8


def test_lengths_that_cannot_add_up_are_refused():
    for n, longest, shortest in [(0, 3, 1), (9, 0, 1), (9, 4, 3), (3, 9, 3)]:
        with pytest.raises(ConfigError, match="samples"):
            segments(np.ones((n, 2)), longest, shortest)


def test_coverage_by_hand():
    """Directions east (4 samples), west (2), north and south (1 each) about the mean (1/4, 0).

    Scaled after the mean is taken off, east and west stay so; a second shot of east adds nothing.
    """
    x = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [-1, 0], [-1, 0], [0, 1], [0, -1]], float)
    gains = coverage(x, np.array([0, 2, 4, 6]))
    assert sorted(gains[:2]) == [0, pytest.approx(gains[:2].max())]
    assert gains[:2].max() >= 4 / 8
    assert gains[2] >= 2 / 8
    assert gains.sum() <= 1


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(0, 10**6))
def test_lazy_gains_are_those_of_plain_greedy(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    starts = np.unique(np.append(0, rng.integers(0, n, n // 3)))
    centred = x - x.mean(0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    means = np.stack([part.mean(0) for part in np.split(unit, starts[1:])])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    alike, covered, gains = (means @ unit.T).clip(0), np.zeros(n), np.full(len(starts), np.nan)
    for _ in starts:
        adds = np.where(np.isnan(gains), np.maximum(alike - covered, 0).mean(1), -1)
        gains[adds.argmax()] = adds.max()
        covered = np.maximum(covered, alike[adds.argmax()])
    np.testing.assert_allclose(coverage(x, starts), gains, atol=1e-12)
