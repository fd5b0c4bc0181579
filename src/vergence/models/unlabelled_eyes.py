"""Rows of unlabelled eye images as a camera sees them, and the people whose eyes they are.

Used by `models.cross_encoder`, `models.siamese` and `studies.few_shot`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError

# Networks read `whose`, up to twice this number, as float32, in which it is exact.
NUMBERS = 2**21
"""Number of values that a person's number (`whose`) can have."""


def glance_rows(federation: Federation) -> Federation:
    """Return everybody's data with `eyes` uint8 `[n, eyes, 1, H, W]` and `whose` int64 `[n]`.

    Rows of glances (`eye_glances`, frames of `mpiigaze`) have both eyes already. Mirrored patches
    with a `side` (`mpiigaze_crops`, `eye_synthetic`, eyes of `mpiigaze`) become rows of one eye
    each, in which right eyes are flipped back, with the yaw of `gaze` and `pose` `[n, 1, 2]`: these
    data do not record which patches were taken at the same moment. Rows with the same `whose` show
    the same eyes.

    Raises:
        ConfigError: the data have neither glances nor such patches, or two people's names give the
            same number.
    """
    federation.refuse_many("learning without labels")
    # From the name alone: a person's number must not depend on who else takes part.
    owners: dict[int, str] = {}
    people = {}
    for person, splits in federation.people.items():
        number = RandomStream("whose", person).number() % NUMBERS
        if owners.setdefault(number, person) != person:
            raise ConfigError(
                f"the names '{owners[number]}' and '{person}' give the same number {number}; "
                "rename one of them"
            )
        parts = (splits.train, splits.val, splits.test)
        people[person] = Splits(*(_rows(part, number, federation.name) for part in parts))
    return replace(federation, people=people)


def _rows(samples: Samples, number: int, name: str) -> Samples:
    columns = dict(samples.columns)
    if "eyes" in columns:
        whose = torch.full((len(samples),), 2 * number)
        return replace(samples, columns={**columns, "whose": whose})
    if "image" not in columns or "side" not in columns:
        raise ConfigError(
            f"'{name}' has neither glances (`eyes`) nor patches (`image`) with their `side`, but "
            f"{', '.join(sorted(columns))}; learn without labels from eye_glances, eye_synthetic, "
            "mpiigaze or mpiigaze_crops"
        )
    side = columns["side"]
    columns["eyes"] = turned(columns.pop("image"), side)[:, None]
    for angles in columns.keys() & {"gaze", "pose"}:
        columns[angles] = (columns[angles] * mirror(side))[:, None]
    return replace(samples, columns={**columns, "whose": 2 * number + side})


def turned(image: Tensor, side: Tensor) -> Tensor:
    """Return images `[n, ..., W]` with those of right eyes (`side` 1) flipped."""
    right = (side == 1).view(-1, *[1] * (image.ndim - 1))
    return torch.where(right, image.flip(-1), image)


def mirror(side: Tensor) -> Tensor:
    """Return the signs `[n, 2]` of (pitch, yaw) under the flip of right eyes."""
    return torch.stack([torch.ones(len(side)), 1.0 - 2.0 * side], 1)
