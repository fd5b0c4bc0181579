"""The size of single-eye patches, and the histogram equalisation before a network sees them.

Used in `data` and `live`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 36, 60


def equalise(patches: NDArray) -> NDArray:
    """Return uint8 patches after histogram equalisation over 256 bins, as MPIIGaze stores them."""
    count, size = len(patches), patches[0].size
    # A range of 256 bins per patch lets one bincount make the histograms of all patches.
    flat = patches.reshape(count, -1).astype(np.int32) + 256 * np.arange(count)[:, None]
    below = np.bincount(flat.ravel(), minlength=256 * count).reshape(count, 256).cumsum(1)
    darkest = below[np.arange(count), (below > 0).argmax(1)][:, None]
    # A patch of one grey level has no range to stretch: the maximum avoids 0 / 0.
    scale = 255 / np.maximum(size - darkest, 1)
    table = np.rint((below - darkest) * scale).clip(0, 255).astype(np.uint8)
    return np.take(table.reshape(-1), flat).reshape(patches.shape)
