"""Synthetic glances: both eyes of a head at one moment in one row, as a camera sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError

AS_SEEN = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
"""Signs of (pitch, yaw) of the left eye and of the right one, whose mirror image was drawn."""


@dataclass(frozen=True)
class EyeGlances(EyeSynthetic):
    """The people and pictures of `eye_synthetic`, with its options; a row is a glance.

    Right eyes are not mirrored: both eyes of a glance look into the same direction of the picture,
    which is what a swap of their gaze codes needs.

    Source: eyeimages design note, section 2, fault 5, and section 5.3.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eyes != "both":
            raise ConfigError(
                f"eye_glances: a glance has both eyes, got eyes = '{self.eyes}'; leave it out, or "
                "use federation eye_synthetic for left eyes alone"
            )

    def load(self, root: str | None = None) -> Federation:
        """Generate (or take from the cache) everybody's glances; needs no files.

        Columns: `eyes` uint8 `[n, 2, 1, H, W]`, left eye first, histogram equalised; `gaze` and
        `pose` float32 `[n, 2, 2]`, (pitch, yaw) in radians per eye; `day` int64 `[n]`.

        Raises:
            DataError: a person has too few days for the shares.
        """
        made = super().load(root)
        people = {
            person: Splits(*(_glances(part) for part in (s.train, s.val, s.test)))
            for person, s in made.people.items()
        }
        eyes = "left and right of one glance, as seen: right eyes are not mirrored"
        return replace(made, name="eye_glances", people=people, about={**made.about, "eyes": eyes})


def _glances(patches: Samples) -> Samples:
    """Join the patches two by two: the generator lets both eyes of a glance follow each other."""
    columns = patches.columns
    image = columns["image"].unflatten(0, (-1, 2))
    return Samples(
        {
            "eyes": torch.stack([image[:, 0], image[:, 1].flip(-1)], 1),
            "gaze": _as_seen(columns["gaze"]),
            "pose": _as_seen(columns["pose"]),
            # Both eyes of a glance were recorded on the same day.
            "day": columns["day"][::2].clone(),
        }
    )


def _as_seen(angles: Tensor) -> Tensor:
    return angles.unflatten(0, (-1, 2)) * AS_SEEN
