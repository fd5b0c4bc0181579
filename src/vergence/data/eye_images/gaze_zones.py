"""Synthetic eye patches labelled by the screen zone looked into; some zones are unseen classes.

The zones form a 3 x 3 grid. A zone is described by its direction, which its name holds (semantics
`directions`). Pictures are those of `vergence.data.synthetic.eyes.eye_synthetic`.

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
"""Inner edges of the grid in degrees of pitch and of yaw."""
PLACES = tuple((pitch, yaw) for pitch in (-13.5, -8.5, -3.5) for yaw in (-10.0, 0.0, 10.0))
"""Where the middles of the zones lie, (pitch, yaw) in degrees, row by row."""
NAMES = tuple(f"pitch {pitch:.1f} yaw {yaw:.1f}" for pitch, yaw in PLACES)
# The diagonal leaves seen zones in every row and every column.
UNSEEN = (0, 4, 8)
"""Zones that are unseen by default."""


@dataclass(frozen=True)
class GazeZones(OwnerOptions, Dataset):
    """Pixels of eye patches, labelled by the zone of gaze; has the options of `OwnerOptions`, too.

    All zones, unseen ones too, are tested on later recording days than those of training.

    Attributes:
        people: people whose recordings the owner has.
        samples: number of patches of each person.
        nuisance: factor of all disturbances of single pictures; 1.8 is as hard as MPIIGaze.
        unseen: numbers of the zones that count as unseen.
        seed: seed of people and pictures.
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
        """Draw people and pictures, and sort them into zones; needs no files.

        Columns: `x` float32 `[n, 135]`, the pixels of a 9x15 crop in [0, 1], `y` int64 `[n]`, the
        zone, and `gaze` float32 `[n, 2]`, (pitch, yaw) in radians.
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
    """Return the zone of every gaze (pitch, yaw) in radians; the outer zones are unbounded."""
    pitch, yaw = (
        torch.bucketize(torch.rad2deg(gaze[:, i]).contiguous(), torch.tensor(edges))
        for i, edges in enumerate(EDGES)
    )
    return 3 * pitch + yaw
