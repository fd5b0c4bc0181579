"""Image helpers of `vergence privacy audit`: pixels, records of tables, a grid of pictures.

Used in `audit` and `reports`.
"""

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
"""Names of the baselines that need no attack."""
AS_IT_RAN = ", as in the run"
"""End of the name of a record about what the run really sent."""


def has_gray_images(samples: Samples) -> bool:
    """Return whether samples have grey images, `[samples, 1, height, width]`."""
    image = samples.columns.get(IMAGE)
    return image is not None and image.ndim == GRAY and image.shape[1] == 1


def concatenate_common(parts: list[Samples]) -> Samples:
    """Concatenate samples of several people, with the columns that all of them have."""
    # A column may be missing where one person's recordings lack it.
    common = set.intersection(*(set(part.columns) for part in parts))
    return Samples.concatenate(
        [
            Samples({n: c for n, c in part.columns.items() if n in common}, part.banks)
            for part in parts
        ]
    )


def evenly_spaced(samples: Samples, most: int) -> Samples:
    """Return a subset of at most `most` samples, evenly spaced."""
    # Samples are in order of time: the first ones would often be of one day, or of one glance.
    return samples.subset(evenly_spaced_rows(len(samples), most))


def evenly_spaced_rows(many: int, most: int) -> Tensor:
    """Return the indices of at most `most` of `many` rows, evenly spaced, int64."""
    return torch.linspace(0, many - 1, min(most, many)).long()


def pixels(samples: Samples) -> Tensor:
    """Return images `[samples, 1, height, width]` in [0, 1]."""
    return samples.columns[IMAGE].float() / 255


def picture_record(name: str, seen: str, eyes: Tensor, rebuilt: Tensor) -> dict[str, object]:
    """Return the record of a table with the similarity of reconstructed pictures to the true ones.

    Args:
        name: what the attacker knows.
        seen: what it saw, such as "sent once".
        eyes: the true pictures.
        rebuilt: the reconstructed pictures.
    """
    return {
        "what the server has": name,
        "seen": seen,
        "mse": float(score.mse(eyes, rebuilt).mean()),
        "ssim": float(score.ssim(eyes, rebuilt).mean()),
    }


def without_attack(eyes: Tensor, mean: Tensor) -> list[dict[str, object]]:
    """Return the records of the baselines that need no attack."""
    return [
        picture_record(MEAN, "", eyes, mean),
        picture_record(ANOTHER, "", eyes, score.other_images(eyes)),
    ]


@styled
def draw_grid(shown: Mapping[str, Tensor]) -> Figure:
    """Draw pictures, one row for each kind of knowledge of the attacker."""
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
