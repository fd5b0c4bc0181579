"""Dynamic time warping: a distance between two sequences that ignores their pace.

Used by `audit.disclosed_statistics` and `methods.clustered.cfedvs`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist


def dtw(
    x: NDArray,
    y: NDArray,
    per_frame: bool = False,
    metric: Literal["euclidean", "sqeuclidean"] = "euclidean",
) -> float:
    """Return the least sum of distances between frames over all alignments of two sequences.

    D[i, j] = min(D[i-1, j] + c, D[i, j-1] + c, D[i-1, j-1] + w c), c = |x_i - y_j|, w = 1, from
    D[0, 0] = 0 and infinity along the borders; the last entry is returned.

    Args:
        x: `[frames, d]`.
        y: `[frames', d]`.
        per_frame: take w = 2 and divide by frames + frames', the total weight of every alignment,
            which gives a mean. Otherwise longer sequences are farther from everything, and would be
            so even if sums with w = 1 were divided.
        metric: distance between two frames.

    Raises:
        ValueError: a sequence is empty, or frames have different numbers of features.

    Source: Sakoe and Chiba, "Dynamic programming algorithm optimization for spoken word
    recognition", IEEE Transactions on Acoustics, Speech, and Signal Processing 26(1), 1978,
    Equations 12 to 18 (symmetric form).
    """
    if not len(x) or not len(y):
        raise ValueError(f"sequences of {len(x)} and {len(y)} frames; each needs one at least")
    cost = cdist(x, y, metric)
    n, m = cost.shape
    twice = 2.0 if per_frame else 1.0
    # D[i, k - i] by i: entries of an antidiagonal k do not depend on each other, and are computed
    # by one operation on vectors.
    last = np.full(n + 1, np.inf)
    before = last.copy()
    before[0] = 0.0
    for k in range(2, n + m + 1):
        i = np.arange(max(1, k - m), min(n, k - 1) + 1)
        c, now = cost[i - 1, k - i - 1], np.full(n + 1, np.inf)
        now[i] = np.minimum(np.minimum(last[i], last[i - 1]) + c, before[i - 1] + twice * c)
        before, last = last, now
    return float(last[n]) / (n + m if per_frame else 1)
