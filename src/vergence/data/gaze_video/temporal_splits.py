"""Splits of one person's windows in time: train, then validation, then test, with gaps between.

Used by `data.gaze_video.ego4d`, `data.gaze_video.egtea`, `data.gaze_video.official_split` and
`data.gaze_video.recording`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vergence.errors import ConfigError, DataError

TRAIN, VAL, TEST, DROPPED = 0, 1, 2, -1
# Neighbouring windows show nearly the same frames: without a gap, test data would leak.
MIN_GAP_S = 5.0


def join_sessions(
    sessions: Sequence[str], start_s: ArrayLike, end_s: ArrayLike, gap_s: float = MIN_GAP_S
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Put sessions one after another on one clock, and return the windows' new starts and ends.

    Each window has a session, a start and an end in seconds. Sessions are sorted by name and follow
    one another with gaps of `gap_s`.
    """
    start, end = np.array(start_s, np.float64), np.array(end_s, np.float64)
    names = np.array(sessions)
    offset = 0.0
    for name in sorted(set(sessions)):
        rows = names == name
        shift = offset - start[rows].min()
        start[rows] += shift
        end[rows] += shift
        offset = float(end[rows].max()) + gap_s
    return start, end


def temporal_split(
    person: str,
    start_s: ArrayLike,
    end_s: ArrayLike,
    gap_s: float = MIN_GAP_S,
    shares: tuple[float, float, float] = (0.70, 0.15, 0.15),
) -> NDArray[np.int8]:
    """Return a part for each of a person's windows: TRAIN, VAL, TEST or DROPPED, int8 `[windows]`.

    Windows are given by start and end in seconds, in any order. All windows for validation start at
    least `gap_s` after the last training window has ended, and windows for test at least `gap_s`
    after those for validation. Windows in between are dropped. The sizes of the parts are as near
    to `shares` as the gaps allow.

    Raises:
        ConfigError: `gap_s` is below 5 s.
        DataError: a part would be empty.
    """
    if gap_s < MIN_GAP_S:
        raise ConfigError(
            f"gap_s = {gap_s:g} is too short: allowed are {MIN_GAP_S:g} s and more, because "
            "neighbouring windows show nearly the same frames"
        )
    start, end = np.asarray(start_s, np.float64), np.asarray(end_s, np.float64)
    n = len(start)
    order = np.argsort(start, kind="stable")
    begins, ends = start[order], np.maximum.accumulate(end[order])
    # after[k]: the first window that starts gap_s after the first k windows have ended.
    after = np.concatenate([[0], np.searchsorted(begins, ends + gap_s, "left")])
    first = after[1:]
    # For every length of training at once: the end of validation at which it and test balance.
    ratio = shares[1] / shares[2]
    balance = np.searchsorted(np.arange(n + 1) + ratio * after, first + ratio * n)
    # The balance lies between two windows: both neighbours are tried.
    train = np.tile(np.arange(1, n + 1), 2)
    first = np.tile(first, 2)
    last = np.clip(np.concatenate([balance - 1, balance]), np.minimum(first + 1, n), n)
    test = after[last]
    counts = np.stack([train, last - first, n - test], 1)
    whole = (counts > 0).all(1)
    if not whole.any():
        seconds = float(ends[-1] - begins[0]) if n else 0.0
        raise DataError(too_few(person, n, seconds, gap_s))
    error = np.abs(counts / counts.sum(1, keepdims=True) - shares).sum(1)
    best = int(np.argmin(np.where(whole, error, np.inf)))
    parts = np.full(n, DROPPED, np.int8)
    parts[order[: train[best]]] = TRAIN
    parts[order[first[best] : last[best]]] = VAL
    parts[order[test[best] :]] = TEST
    return parts


def hold_out(
    person: str, start_s: ArrayLike, end_s: ArrayLike, gap_s: float, share: float
) -> NDArray[np.int8]:
    """Return TRAIN, VAL or DROPPED for each of a person's training windows, int8 `[windows]`.

    The last windows are for validation, about `share` of the windows kept. They start at least
    `gap_s` after the last training window has ended; windows in between are dropped.

    Raises:
        DataError: a part would be empty.
    """
    start, end = np.asarray(start_s, np.float64), np.asarray(end_s, np.float64)
    n = len(start)
    order = np.argsort(start, kind="stable")
    begins, ends = start[order], np.maximum.accumulate(end[order])
    train = np.arange(1, n + 1)
    first = np.searchsorted(begins, ends + gap_s, "left")
    whole = first < n
    if not whole.any():
        seconds = float(ends[-1] - begins[0]) if n else 0.0
        raise DataError(too_few(person, n, seconds, gap_s, "train and validation"))
    error = np.abs((n - first) / (n - first + train) - share)
    best = int(np.argmin(np.where(whole, error, np.inf)))
    parts = np.full(n, DROPPED, np.int8)
    parts[order[: train[best]]] = TRAIN
    parts[order[first[best] :]] = VAL
    return parts


def too_few(
    person: str,
    windows: int,
    seconds: float,
    gap_s: float,
    parts: str = "train, validation and test",
) -> str:
    """Return the error message for a person who has too few windows for these parts."""
    return (
        f"person '{person}' has too few clips for the split: {windows} windows over "
        f"{seconds:.1f} s do not fill {parts} with gaps of {gap_s:g} s; add "
        "recordings, shorten stride_s, or leave the person out with the option people"
    )
