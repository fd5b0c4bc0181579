"""Segmentation of a video into shots (KTS), and how much each shot adds to a summary.

Used by `data.video_summaries.clients` and `video.summarise`.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from vergence.errors import ConfigError

Floats = NDArray[np.float64]


def segments(
    features: Float[np.ndarray, "samples d"], longest: int, shortest: int = 1
) -> Int[np.ndarray, " segments"]:
    """Return the first sample of every segment of a video, in order; the first one is 0.

    A sample is the feature vector of a sampled frame, scaled to length 1. Segments have `shortest`
    to `longest` samples. Among all such segmentations, the result is the one that minimises

        scatter / n + m / (2 n) (log(n / m) + 1)        m changes among n samples

    where scatter is the sum of squared distances of samples to the mean of their segment. The
    minimum is exact: m is raised until the second term alone exceeds the best value so far. The run
    time is proportional to m n `longest`.

    Raises:
        ConfigError: `shortest` is below 1, or above half of `longest`, rounded up; `longest` counts
            as at most the number of samples.

    Source: Potapov et al., "Category-specific video summarization", ECCV 2014 (KTS), with a linear
    kernel. Differs: segments have a least and a greatest length. So there are no very short shots,
    a video without changes is cut too, and every segment can fit into a summary.
    """
    n = len(features)
    longest = min(longest, n)
    if not 1 <= shortest <= (longest + 1) // 2:
        raise ConfigError(
            f"shots of {shortest} to {longest} samples: the shortest must lie in 1 to half of the "
            f"longest, which is at most the {n} samples there are"
        )
    scatter = _scatter(np.asarray(features, np.float64), longest)
    # Segments that are too short cost infinitely much and are never the best.
    scatter[:, : shortest - 1] = math.inf
    # best[j] is the least scatter of the first j samples; chosen[m][j] the last segment's length.
    best = np.full(n + 1, math.inf)
    best[0] = 0.0
    last_lengths: list[NDArray[np.integer]] = []
    least, changes = math.inf, 0
    while len(last_lengths) < n and _penalty(len(last_lengths), n) < least:
        before = np.lib.stride_tricks.sliding_window_view(
            np.concatenate([np.full(longest, math.inf), best[:-1]]), longest
        )[1:, ::-1]
        totals = before + scatter
        lengths = totals.argmin(1)
        last_lengths.append((lengths + 1).astype(np.min_scalar_type(longest)))
        best = np.concatenate([[math.inf], totals[np.arange(n), lengths]])
        value = best[n] / n + _penalty(len(last_lengths) - 1, n)
        if value < least:
            least, changes = value, len(last_lengths) - 1
    starts, end = [], n
    for lengths in last_lengths[changes::-1]:
        end -= int(lengths[end - 1])
        starts.append(end)
    return np.array(starts[::-1], np.int64)


def coverage(
    features: Float[np.ndarray, "samples d"], starts: Int[np.ndarray, " shots"]
) -> Float[np.ndarray, " shots"]:
    """Return how much of the video each shot adds to the shots chosen before it.

    `vergence summarise` chooses shots by these scores. Their sum is at most 1. `starts` holds the
    first sample of every shot; a sample is the feature vector of a sampled frame.

    A shot represents a sample by the cosine between the shot's mean and the sample, or by 0 if the
    cosine is negative; the mean of the video is subtracted from both before. Shots are chosen
    greedily. A shot's score is the increase that it brings to the best representation of each
    sample, averaged over samples. Of many similar shots, only one scores high.

    Source: Lin and Bilmes, "A class of submodular functions for document summarization", ACL 2011
    (coverage); Minoux 1978 (lazy evaluation: gains only shrink).
    """
    x = np.asarray(features, np.float64)
    x = _unit(x - x.mean(0))
    counts = np.diff(np.append(starts, len(x)))
    # Row lengths are 1, so that the product below is the cosine.
    means = _unit(np.add.reduceat(x, starts, axis=0) / counts[:, None])
    alike = np.maximum(means @ x.T, 0)
    covered = np.zeros(len(x))
    gains = np.zeros(len(starts))
    waiting = [(-float(row.mean()), shot) for shot, row in enumerate(alike)]
    heapq.heapify(waiting)
    while waiting:
        _, shot = heapq.heappop(waiting)
        gain = float(np.maximum(alike[shot] - covered, 0).mean())
        # Gains only shrink: a stale gain that still leads is the greatest (lazy evaluation).
        if waiting and -gain > waiting[0][0]:
            heapq.heappush(waiting, (-gain, shot))
            continue
        gains[shot] = gain
        covered = np.maximum(covered, alike[shot])
    return gains


def _unit(x: Floats) -> Floats:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _penalty(changes: int, n: int) -> float:
    return changes / (2 * n) * (math.log(n / changes) + 1) if changes else 0.0


def _scatter(x: Floats, longest: int) -> Floats:
    """Return the scatter of every possible segment, `[samples, longest]`.

    Entry (i, k) is that of the segment of k + 1 samples whose last sample is i. It is infinite if
    the segment would start before the first sample.
    """
    x = _unit(x)
    sums = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, axis=0)])
    squares = np.concatenate([[0.0], np.cumsum((x**2).sum(1))])
    out = np.full((len(x), longest), math.inf)
    for length in range(1, longest + 1):
        # Sum of squares minus squared sum over length: a segment's scatter from running sums.
        inside = ((sums[length:] - sums[:-length]) ** 2).sum(1) / length
        out[length - 1 :, length - 1] = np.maximum(squares[length:] - squares[:-length] - inside, 0)
    return out
