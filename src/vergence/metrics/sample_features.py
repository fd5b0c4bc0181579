"""Comparable features of samples: small grey pictures, other inputs, and labels in a unit.

What the skew measures (`vergence.metrics.skew`) need of any federation, without a network.

Used by `metrics.skew` and `studies.skew`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from vergence.core.data import Samples
from vergence.errors import DataError

HEIGHT, WIDTH = 12, 20
"""Pictures are averaged down to at most so many pixels."""
CHUNK = 64
LABELS = {
    "gaze": "degrees",
    "points": "of the frame",
    "label": "share of the class",
    "y": "units of y",
}
"""Label column -> the unit its distances are given in."""


@dataclass(frozen=True)
class Compact:
    """Samples in order of recording: `pictures` `[n, h, w]` in [0, 1], where there are none h = 0.

    `numbers` `[n, k]` are all other inputs of a floating type, `labels` `[n, m]` are in `unit`.
    """

    pictures: NDArray[np.float32]
    numbers: NDArray[np.float64]
    labels: NDArray[np.float64]
    unit: str
    total: int
    """Number of all samples with a label; the samples here are an even selection of them."""

    def __len__(self) -> int:
        return len(self.labels)


def compact(samples: Samples, most: int, classes: int = 0) -> Compact:
    """Return at most `most` of the samples, evenly spread over their order, as a few numbers.

    Labels: `gaze` in degrees; the mean of a sample's `points` (samples without any are left out);
    `label` as one column for each of `classes`; or `y`. Of several frames the middle one counts.

    Raises:
        DataError: there is no such label, or neither pictures nor other inputs of a floating type.
    """
    if (name := next((n for n in LABELS if n in samples.columns), None)) is None:
        raise DataError(
            f"skew is measured on a label column ({', '.join(LABELS)}); the data have "
            f"{', '.join(samples.columns)}"
        )
    labels = _labels(samples.columns[name], name, classes)
    kept = np.flatnonzero(np.isfinite(labels).all(1))
    total = len(kept)
    count = min(most, total)
    kept = kept[np.arange(count) * total // max(count, 1)]
    rows = torch.from_numpy(kept)
    pictures = _pictures(samples, rows)
    numbers = [
        column[rows].double().flatten(1)
        for n, column in samples.columns.items()
        if n not in LABELS and column.is_floating_point()
    ]
    if pictures is None and not numbers:
        raise DataError(
            "skew is measured on pictures (uint8) or inputs of a floating type; the data have "
            f"{', '.join([*samples.columns, *samples.banks])}"
        )
    return Compact(
        np.zeros((len(kept), 0, 0), np.float32) if pictures is None else pictures.numpy(),
        torch.cat([torch.zeros(len(kept), 0, dtype=torch.float64), *numbers], 1).numpy(),
        labels[kept],
        LABELS[name],
        total,
    )


def _labels(column: Tensor, name: str, classes: int) -> NDArray[np.float64]:
    if name == "label":
        return np.eye(max(classes, int(column.max()) + 1))[column.numpy()]
    values = column.double().reshape(len(column), -1)
    if name == "points":
        values = torch.nanmean(column.double().reshape(len(column), -1, 2), 1)
    return np.rad2deg(values.numpy()) if name == "gaze" else values.numpy()


def _pictures(samples: Samples, rows: Tensor) -> Tensor | None:
    """Return grey pictures of these rows, float32 `[n, h, w]` in [0, 1]."""
    names = [n for n, c in samples.columns.items() if c.dtype == torch.uint8 and c.ndim >= 3]
    names += [n for n, b in samples.banks.items() if b.rows.dtype == torch.uint8]
    if not names:
        return None
    # In chunks, as `take` copies whole pictures before they are averaged down.
    parts = [_grey(samples.take(chunk)[names[0]]) for chunk in rows.split(CHUNK)]
    return torch.cat(parts) if parts else None


def _grey(pictures: Tensor) -> Tensor:
    # Frames have their colours last, eye patches their channels first.
    if pictures.shape[-1] == 3:
        pictures = pictures.float().mean(-1)
    pictures = pictures.flatten(1, -3) if pictures.ndim > 3 else pictures[:, None]
    middle = pictures[:, pictures.shape[1] // 2].float() / 255
    size = (min(HEIGHT, middle.shape[1]), min(WIDTH, middle.shape[2]))
    return adaptive_avg_pool2d(middle[:, None], size)[:, 0]
