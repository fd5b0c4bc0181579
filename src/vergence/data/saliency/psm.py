"""PSM on OSIE: 59 pictures of OSIE, each viewed about four times by each of 30 viewers.

As the same person sees the same picture several times, what is personal in a gaze map can be told
from noise (`vergence.metrics.repeated_viewings`).

`root` has `psm_on_osie.npz` with the one-dimensional columns `image` (OSIE's number), `viewer`,
`repeat` (1 to 5, which viewing of the picture it is), `order`, `x`, `y` (fractions of the picture)
and `duration_ms`. The pictures are those of OSIE, whose folder is the option `pictures`. Each
picture is in the part of the split in which `osie` has it with the same `shares` and `split_seed`.
So a model that was trained on `osie` can be tested here.

The pictures were shown letter-boxed on a wide screen; .2 % of the fixations lie outside them and
are left out. The first fixation is not at the centre, and is scored.

Licence: none stated, for measurements only; never packaged. Source: Xu, Li, Wu, Yu, Gao, "Beyond
universal saliency: personalized saliency prediction with multi-task CNN", IJCAI 2017
(xuyanyu-shh/Personalized-Saliency).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval

from vergence.data.io.checks import data_path
from vergence.data.saliency.osie import Osie, PictureSet

MOST_VIEWINGS = 5


@dataclass(frozen=True)
class Psm(Osie):
    """Repeated viewings of OSIE's pictures by 30 people; a viewer is a client, a viewing a sample.

    Attributes:
        images: number of images to use; default: all 59. No image changes to another part of the
            split.
        viewers: numbers, from 0 to 29, of the viewers to load; default: all.
        viewings: which viewings of a picture to load, such as (1,); default: all, 1 to 5. The split
            of the images does not depend on it. So (1,) and (2, 3, 4, 5) are two data sets with the
            same test images, one to test on and one with other viewings by the same people.
        pictures: folder of OSIE, which has `stimuli/ID.jpg`; relative to the working directory,
            else to VERGENCE_DATA.
    """

    viewings: tuple[Annotated[int, Interval(ge=1, le=MOST_VIEWINGS)], ...] | None = None
    pictures: str = "osie"
    facts: ClassVar[PictureSet] = PictureSet(
        first=1001,
        count=700,
        totals=(59, 30, 65_761),
        where="root must hold psm_on_osie.npz (for measurements only; the original is "
        "github.com/xuyanyu-shh/Personalized-Saliency), and the option pictures must name the "
        "folder of OSIE",
        about={
            "licence": "none stated: for measurements only, not packaged",
            "citation": "Xu, Li, Wu, Yu, Gao: Beyond universal saliency: personalized saliency "
            "prediction with multi-task CNN. IJCAI 2017",
            "stimulus": "free viewing of natural images, several times, on a screen",
        },
        file="psm_on_osie.npz",
        first_order=0,
        outside=0.01,
        viewings=MOST_VIEWINGS,
        left_out="{outside} fixations outside the picture",
    )

    def _stimuli(self, folder: Path) -> Path:
        return Path(data_path(self.pictures)) / "stimuli"

    def scored(self, table: dict[str, np.ndarray]) -> np.ndarray:
        """Return which fixations are scored, bool `[fixations]`."""
        scored = super().scored(table)
        return scored if self.viewings is None else scored & np.isin(table["repeat"], self.viewings)

    def _about(
        self, packaged: bool, parts: tuple[np.ndarray, ...], left_out: str
    ) -> dict[str, str]:
        if self.viewings is not None:
            left_out += f"; viewings other than {self.viewings}"
        return super()._about(packaged, parts, left_out)
