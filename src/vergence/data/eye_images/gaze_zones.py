"""Synthetic eye patches labelled by the screen zone looked at; some zones are unseen classes.

The zones form a 3 x 3 grid. A zone's name states its direction, which describes the class to
zero-shot methods (semantics `directions`). Pictures are those of
`vergence.data.synthetic.eyes.eye_synthetic`.

Used by `tasks.gaze_zones`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Interval
from jaxtyping import Float, Int
from torch import Tensor

from vergence.core.data import Samples
from vergence.core.federation import Dataset, Federation
from vergence.data.owner import ClassNames, OwnerOptions, RowLists
from vergence.data.synthetic.eyes.eye_synthetic import FEWEST, MOST, EyeSynthetic
from vergence.errors import ConfigError

# So cut, each cell holds about a ninth of the pictures.
EDGES = ((-11.0, -6.0), (-5.0, 5.0))
"""Inner borders of the grid: two degrees of pitch, then two degrees of yaw."""
PLACES = tuple((pitch, yaw) for pitch in (-13.5, -8.5, -3.5) for yaw in (-10.0, 0.0, 10.0))
"""Centres of the nine zones, (pitch, yaw) in degrees, row by row."""
NAMES = tuple(f"pitch {pitch:.1f} yaw {yaw:.1f}" for pitch, yaw in PLACES)
# The diagonal leaves seen zones in every row and every column.
UNSEEN = (0, 4, 8)
"""Numbers of the zones that are unseen classes by default."""


@dataclass(frozen=True)
class GazeZones(OwnerOptions, Dataset):
    """Pixels of synthetic eye patches, labelled by the zone of gaze.

    The options of `OwnerOptions` apply too. Test patches of all zones, seen or unseen, are from
    later recording days than the training patches.

    Attributes:
        people: number of people whose recordings the owner, the only client, has.
        samples: number of patches of each person.
        nuisance: factor of all disturbances of single pictures, such as blur and noise; 1.8 is as
            hard as MPIIGaze.
        unseen: numbers of the zones that are unseen classes.
        seed: seed of the random people and pictures.
    """

    people: Annotated[int, Interval(ge=1, le=1000)] = 1
    samples: Annotated[int, Interval(ge=FEWEST, le=MOST)] = 3000
    nuisance: Annotated[float, Interval(ge=0, le=3)] = 1.0
    unseen: tuple[int, ...] = UNSEEN
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        zones = set(self.unseen)
        if len(zones) != len(self.unseen) or not zones < set(range(len(NAMES))) or not zones:
            raise ConfigError(
                f"gaze_zones: unseen must be some of the zones 0 to {len(NAMES) - 1} but not all, "
                f"each once; got {list(self.unseen)}"
            )

    def load(self, root: str | None = None) -> Federation:
        """Generate people and pictures, and label each picture by its zone; needs no files.

        Columns of the samples: `x` float32 `[n, 135]`, the pixels of a 9x15 crop in [0, 1]; `y`
        int64 `[n]`, the zone; `gaze` float32 `[n, 2]`, (pitch, yaw) in radians.
        """
        eyes = EyeSynthetic(
            people=self.people,
            samples=self.samples,
            nuisance=self.nuisance,
            size="9x15",
            seed=self.seed,
        ).load()
        early = [part for splits in eyes.people.values() for part in (splits.train, splits.val)]
        late = [splits.test for splits in eyes.people.values()]
        patches = Samples.concatenate([*early, *late]).columns
        y = zones(patches["gaze"])
        columns = {"x": patches["image"].flatten(1).float() / 255, "y": y, "gaze": patches["gaze"]}
        rows = np.arange(len(y))
        # Samples of early days come first in the concatenation above.
        first = rows < sum(map(len, early))
        hidden = np.isin(y.numpy(), self.unseen)
        lists = RowLists(
            rows[first & ~hidden],
            rows[~first & ~hidden],
            rows[~first & hidden],
            rows[first & hidden],
            rows[~first & hidden],
        )
        about = {
            "licence": eyes.about["licence"],
            "citation": eyes.about["citation"],
            "features": "pixels of 9x15 crops",
            "split": "by recording day in order: the last fifth of everybody's days for test, of "
            "seen and of unseen zones",
            "semantics": "directions",
        }
        return self.federation(columns, lists, ClassNames(NAMES, tuple(sorted(self.unseen))), about)


def zones(gaze: Float[Tensor, "n 2"]) -> Int[Tensor, " n"]:
    """Return the zone of every gaze, 0 to 8, from (pitch, yaw) in radians.

    The outer zones have no outer border.
    """
    pitch, yaw = (
        torch.bucketize(torch.rad2deg(gaze[:, i]).contiguous(), torch.tensor(edges))
        for i, edges in enumerate(EDGES)
    )
    return 3 * pitch + yaw
