"""Image helpers of `vergence privacy audit`: pixels, rows of tables, and a grid of pictures."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from vergence.attacks import score
from vergence.core.data import Samples
from vergence.privacy.split.defense import IMAGE
from vergence.results.figure_style import canvas, styled

SHOWN = 6
GRAY = 4
"""Dimensions of `[samples, 1, height, width]`."""
MEAN, ANOTHER = "nothing: the mean of the others", "nothing: another picture of theirs"
"""Lines of the table that need no attack."""
AS_IT_RAN = ", as in the run"
"""How lines end that tell of what was sent."""


def gray(samples: Samples) -> bool:
    """True if samples have pictures `[samples, 1, height, width]`."""
    image = samples.columns.get(IMAGE)
    return image is not None and image.ndim == GRAY and image.shape[1] == 1


def joined(parts: list[Samples]) -> Samples:
    """Return everybody's samples, without the columns that not everybody has."""
    common = set.intersection(*(set(part.columns) for part in parts))
    return Samples.concatenate(
        [
            Samples({n: c for n, c in part.columns.items() if n in common}, part.banks)
            for part in parts
        ]
    )


def few(samples: Samples, most: int) -> Samples:
    """Return at most so many samples, evenly over all."""
    return samples.subset(places(len(samples), most))


def places(many: int, most: int) -> Tensor:
    """Return at most `most` numbers below `many`, evenly over all, int64."""
    return torch.linspace(0, many - 1, min(most, many)).long()


def pixels(samples: Samples) -> Tensor:
    """Return images `[samples, 1, height, width]` in [0, 1]."""
    return samples.columns[IMAGE].float() / 255


def line(name: str, seen: str, eyes: Tensor, found: Tensor) -> dict[str, object]:
    """Return a line of the table: how near found pictures are to those that were not sent."""
    return {
        "what the server has": name,
        "seen": seen,
        "mse": float(score.mse(eyes, found).mean()),
        "ssim": float(score.ssim(eyes, found).mean()),
    }


def without_attack(eyes: Tensor, mean: Tensor) -> list[dict[str, object]]:
    """Return the lines of what can be had without an attack."""
    return [line(MEAN, "", eyes, mean), line(ANOTHER, "", eyes, score.another(eyes))]


@styled
def grid(shown: Mapping[str, Tensor]) -> Figure:
    """Draw pictures, a row for everything the attacker had."""
    first = next(iter(shown.values()))
    columns = torch.linspace(0, len(first) - 1, min(SHOWN, len(first))).long().tolist()
    tall, wide = first.shape[2:]
    drawing = canvas(8.4, (1.0 * tall / wide + 0.08) * len(shown) + 0.2)
    cells = drawing.subplots(len(shown), len(columns), squeeze=False)
    for row, (name, images) in zip(cells, shown.items(), strict=True):
        for axes, column in zip(row, columns, strict=True):
            axes.imshow(images[column, 0].numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
    return drawing
