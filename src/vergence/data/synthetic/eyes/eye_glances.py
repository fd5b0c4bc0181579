"""Synthetic glances: a sample is both eyes of a head at one moment, as a camera sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError

AS_SEEN = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
"""Signs of (pitch, yaw) of left and right eyes: right eyes are drawn as mirror images."""


@dataclass(frozen=True)
class EyeGlances(EyeSynthetic):
    """The people and pictures of `eye_synthetic`, with its options; a sample is a glance.

    A glance is both eyes of a head at one moment. Right eyes are not mirrored, so both eyes look in
    the same direction of the picture. Methods that swap the gaze codes of the two eyes need this.

    Source: eyeimages design note, section 2, item "fault 5", and section 5.3.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eyes != "both":
            raise ConfigError(
                f"eye_glances: a glance has both eyes, got eyes = '{self.eyes}'; leave it out, or "
                "use federation eye_synthetic for left eyes alone"
            )

    def load(self, root: str | None = None) -> Federation:
        """Generate everybody's glances, or take them from the cache; needs no files.

        Columns of the samples: `eyes` uint8 `[n, 2, 1, H, W]`, left eye first, histogram equalised;
        `gaze` and `pose` float32 `[n, 2, 2]`, (pitch, yaw) in radians of each eye; `day` int64
        `[n]`.

        Raises:
            DataError: a person has too few days for the option `shares`.
        """
        made = super().load(root)
        people = {
            person: Splits(*(_glances(part) for part in (s.train, s.val, s.test)))
            for person, s in made.people.items()
        }
        eyes = "left and right of one glance, as seen: right eyes are not mirrored"
        return replace(made, name="eye_glances", people=people, about={**made.about, "eyes": eyes})


def _glances(patches: Samples) -> Samples:
    """Join patches into glances; the two eyes of a glance are consecutive patches."""
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
