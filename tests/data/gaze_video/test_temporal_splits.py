"""Splits in time against a search through all of them."""

import itertools

import numpy as np
import pytest

from vergence.data.gaze_video.temporal_splits import (
    DROPPED,
    TEST,
    TRAIN,
    VAL,
    hold_out,
    join_sessions,
    temporal_split,
)
from vergence.errors import DataError


def windows(seed, count):
    rng = np.random.default_rng(seed)
    start = np.sort(rng.uniform(0, 4 * count, count))
    return start, start + rng.uniform(0.5, 3, count)


def nearest(start, end, gap, shares):
    """The least distance from the shares of any split that keeps the gaps."""
    n, found = len(start), []
    for train, val in itertools.product(range(1, n), repeat=2):
        first = np.flatnonzero(start >= end[:train].max() + gap)
        if not len(first) or first[0] + val > n:
            continue
        last = first[0] + val
        after = np.flatnonzero(start >= end[:last].max() + gap)
        if len(after):
            counts = np.array([train, val, n - after[0]])
            found.append(np.abs(counts / counts.sum() - shares).sum())
    return min(found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shares", [(0.7, 0.15, 0.15), (0.5, 0.3, 0.2)])
def test_the_split_is_the_one_nearest_to_the_shares(seed, shares):
    start, end = windows(seed, 24)
    mixed = np.random.default_rng(seed).permutation(24)
    parts = np.empty(24, np.int8)
    parts[mixed] = temporal_split("p", start[mixed], end[mixed], 5.0, shares)
    counts = np.array([(parts == k).sum() for k in (TRAIN, VAL, TEST)])
    off = np.abs(counts / counts.sum() - shares).sum()
    assert off == pytest.approx(nearest(start, end, 5.0, shares), abs=0.08)
    kept = parts[parts != DROPPED]
    assert (np.diff(kept) >= 0).all()
    for before, after in ((TRAIN, VAL), (VAL, TEST)):
        edge = end[parts == before].max()
        assert start[parts == after].min() >= edge + 5
    # Nothing is dropped that a later part could have had.
    last = {TRAIN: VAL, VAL: TEST}
    for before, after in last.items():
        could = start >= end[: np.flatnonzero(parts == before)[-1] + 1].max() + 5
        assert np.flatnonzero(could)[0] == np.flatnonzero(parts == after)[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_the_held_out_end_is_nearest_to_its_share(seed, share):
    start, end = windows(seed, 20)
    mixed = np.random.default_rng(seed).permutation(20)
    parts = np.empty(20, np.int8)
    parts[mixed] = hold_out("p", start[mixed], end[mixed], 5.0, share)
    off = []
    for train in range(1, 20):
        held = (start >= end[:train].max() + 5).sum()
        if held:
            off.append(abs(held / (held + train) - share))
    train, held = (parts == TRAIN).sum(), (parts == VAL).sum()
    assert abs(held / (held + train) - share) == pytest.approx(min(off))
    assert start[parts == VAL].min() >= end[parts == TRAIN].max() + 5
    assert set(parts) <= {TRAIN, VAL, DROPPED}


def test_gaps_of_exactly_that_length_are_enough():
    start = np.array([0.0, 6.0, 12.0])
    assert temporal_split("p", start, start + 1).tolist() == [TRAIN, VAL, TEST]
    assert hold_out("p", start[:2], start[:2] + 1, 5, 0.5).tolist() == [TRAIN, VAL]
    late = np.array([0.0, 6.0, 11.999])
    with pytest.raises(DataError, match=r"3 windows over 13\.0 s .*train, validation and test"):
        temporal_split("p", late, late + 1)
    with pytest.raises(DataError, match=r"2 windows over 7\.0 s do not fill train and validation"):
        hold_out("p", [0, 5.999], [1, 6.999], 5, 0.5)
    with pytest.raises(DataError, match=r"0 windows over 0\.0 s"):
        hold_out("p", [], [], 5, 0.5)


def test_sessions_follow_one_another_by_name():
    start, end = join_sessions(["b", "a", "b", "a"], [7, 3, 9, 1.0], [8, 4, 12, 2.0], 2.5)
    # a lasts from 1 to 4 and becomes 0 to 3; b begins 2.5 s later.
    assert start.tolist() == [5.5, 2, 7.5, 0]
    assert end.tolist() == [6.5, 3, 10.5, 1]
