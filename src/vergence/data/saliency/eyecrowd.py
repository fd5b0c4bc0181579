"""EyeCrowd: 500 pictures of crowds, each viewed freely by 12 viewers; all fixations.

`root` has `stimuli/NNN.jpg` with NNN 001 to 500, and `fixations.npz` with the one-dimensional
columns of `osie`: `image`, `viewer`, `order`, `x`, `y`, `duration_ms`. Order 0 is the centre start.
The source, NUS-VIP/saliency-in-crowd, publishes a `fixations.mat`, which is not read.

In the file that this reader was tried on, the gaze of viewer 5 lies about .14 of the width too far
to the right on all pictures.

Licence: MIT, copyright 2014 Ming Jiang; not packaged. Source: Jiang, Xu, Zhao, "Saliency in crowd",
ECCV 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vergence.data.saliency.osie import Osie, PictureSet


@dataclass(frozen=True)
class Eyecrowd(Osie):
    """Fixations of 12 viewers on the same pictures of crowds; a viewer is a client.

    Attributes:
        images: number of images to use; default: all. No image changes to another part of the
            split.
        viewers: numbers, from 0 to 11, of the viewers to load; default: all.
    """

    facts: ClassVar[PictureSet] = PictureSet(
        first=1,
        count=500,
        totals=(500, 12, 94_390),
        where="root must hold stimuli/NNN.jpg and fixations.npz; the original is in folder `data` "
        "of github.com/NUS-VIP/saliency-in-crowd (MIT)",
        about={
            "licence": "MIT, copyright 2014 Ming Jiang",
            "citation": "Jiang, Xu, Zhao: Saliency in crowd. ECCV 2014",
            "stimulus": "free viewing of pictures of crowds, on a screen",
            "calibration": "the gaze of viewer 5 lies about .14 of the width too far to the right",
        },
        picture="{:03}.jpg",
    )
