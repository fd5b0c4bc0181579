"""MPIIGaze, the 9x15 pixel centre crops of the evaluation subset as one npz file.

Layout of `root`: `mpiigaze_9x15.npz` with `image` uint8 `[people, 3000, 9, 15]`, `gaze` and `pose`
float32 `[people, 3000, 2]` (pitch, yaw in radians) and `person`. The first half of a person's
samples are left eyes, the second half right eyes. Right eyes are mirrored, and their yaws have the
opposite sign.

Licence: CC BY-NC-SA 4.0, never packaged. Source: Zhang, Sugano, Fritz, Bulling, "Appearance-based
gaze estimation in the wild", CVPR 2015; "MPIIGaze", TPAMI 41(1), 2019.

Used by `data.eye_images.eye_patches`, `data.eye_images.mpiifacegaze` and
`data.eye_images.mpiigaze`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from vergence.core.data import Samples, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.identifiers import check_ids
from vergence.data.io.checks import Check, Checks, compare, data_folder, read_npz, refuse_nan
from vergence.data.splits import Shares, SplitOptions, deal_at_random
from vergence.errors import DataError

FILE, PEOPLE, SAMPLES, HEIGHT, WIDTH = "mpiigaze_9x15.npz", 11, 3000, 9, 15
RECORDED = ("side", "day")
"""Columns with the conditions of a recording; they are no inputs of a network."""
WHERE = (
    f"root must hold {FILE} (image, gaze, pose, person), cut from the MPIIGaze evaluation subset; "
    "MPIIGaze is CC BY-NC-SA 4.0, from the Max Planck Institute for Informatics"
)


@dataclass(frozen=True)
class MpiigazeCrops(SplitOptions, Dataset):
    """Eye crops of 9x15 pixels with gaze and head pose; a participant is a client.

    Attributes:
        people: number of participants to load, in the order of the file; default: all.
        shares: fractions of a person's samples for training, validation and test, the same for each
            eye.
        split_seed: seed of the random split of each person's samples.
    """

    people: Annotated[int, Ge(1)] | None = None

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the crops, and split each person's samples at random.

        Left and right eyes are split by the same fractions. Columns of the samples: `image` uint8
        `[n, 1, 9, 15]`, `gaze` and `pose` float32 `[n, 2]`, (pitch, yaw) in radians, `side` int64
        `[n]` (0 left, 1 right).

        Raises:
            DataError: the file is missing, truncated or of another version, or has NaN in gaze or
                pose.
            ConfigError: an option is out of range.
        """
        table = _read(data_folder(root, "mpiigaze_crops", WHERE) / FILE)
        count = len(table["person"])
        if count < (self.people or 1):
            raise DataError(
                f"people = {self.people or 'all'}, but {FILE} holds {count}: lower the option "
                "people"
            )
        people = {}
        for number, person in enumerate(table["person"][: self.people]):
            columns = {name: table[name][number] for name in ("image", "gaze", "pose")}
            # Keyed by the row, so that loading fewer people does not change anybody's split.
            rng = np.random.default_rng([self.split_seed, number])
            people[str(person)] = split_eyes(columns, self.shares, rng, str(person))
        about = {
            "licence": "CC BY-NC-SA 4.0 (MPIIGaze): research use, not packaged",
            "citation": "Zhang, Sugano, Fritz, Bulling: Appearance-based gaze estimation in the "
            "wild. CVPR 2015; MPIIGaze, TPAMI 41(1), 2019",
            "split": split_sentence(self),
            "angles": "radians (pitch, yaw); right eyes are mirrored and their yaws flipped",
        }
        return Federation("mpiigaze_crops", people, about)


def split_sentence(options: SplitOptions) -> str:
    """Return a sentence that describes the split by `split_eyes`, for `Federation.about`."""
    return (
        f"within each person, {options.percent} % of either eye at random (seed "
        f"{options.split_seed}); the days of the samples are not known, so one day may be in "
        "several parts and scores are optimistic"
    )


def split_eyes(
    columns: dict[str, np.ndarray], shares: Shares, rng: np.random.Generator, person: str
) -> Splits:
    """Split one person's samples at random, left and right eyes by the same fractions.

    `columns` holds `image` `[n, height, width]`, `gaze` and `pose` `[n, 2]`. The first half of the
    rows are left eyes.

    Raises:
        DataError: the person has too few samples for the shares.
    """
    rows = np.arange(len(columns["image"]))
    # Either eye is dealt by itself, so that no part has one eye more often than the other.
    left, right = np.split(rows, [len(rows) // 2])
    parts = deal_at_random([left, right], shares, rng, f"samples per eye of {person}")
    columns = {**columns, "side": rows >= len(left)}
    return Splits(*(eye_samples(columns, part) for part in parts))


def eye_samples(columns: dict[str, np.ndarray], rows: np.ndarray) -> Samples:
    """Return these rows as samples: `image` becomes `[n, 1, height, width]`.

    `side` and `day` become int64, if the columns have them.
    """
    known = (name for name in RECORDED if name in columns)
    recorded = {name: torch.from_numpy(columns[name][rows].astype(np.int64)) for name in known}
    return Samples(
        {
            "image": torch.from_numpy(columns["image"][rows])[:, None],
            "gaze": torch.from_numpy(columns["gaze"][rows].astype(np.float32)),
            "pose": torch.from_numpy(columns["pose"][rows].astype(np.float32)),
            **recorded,
        }
    )


def verify_angles(path: Path, person: str, gaze: np.ndarray, pose: np.ndarray) -> None:
    """Check that gaze and pose are finite, and small enough to be radians.

    Raises:
        DataError: an angle is NaN, infinite, or too large for radians.
    """
    for name, angles in (("gaze", gaze), ("pose", pose)):
        refuse_nan(angles, f"{name} of {person}", path)
        if np.abs(angles).max(initial=0) > np.pi:
            raise DataError(
                f"{path}: {name} of {person} reaches {np.abs(angles).max():.1f}, angles must be "
                "radians (pitch, yaw): convert degrees with numpy.deg2rad"
            )


def _read(path: Path) -> dict[str, np.ndarray]:
    table = read_npz(path, {"image": 4, "gaze": 3, "pose": 3, "person": 1}, WHERE, text=["person"])
    image, people = table["image"], len(table["person"])
    if image.dtype != np.uint8 or image.shape[2:] != (HEIGHT, WIDTH) or len(image) != people:
        raise DataError(
            f"{path} is of another version, image is {image.dtype} {image.shape} instead of "
            f"uint8 ({people}, samples, {HEIGHT}, {WIDTH}): {WHERE}"
        )
    for name in ("gaze", "pose"):
        if table[name].shape != (*image.shape[:2], 2):
            raise DataError(
                f"{path} is of another version, {name} is {table[name].shape} instead of "
                f"{(*image.shape[:2], 2)}: {WHERE}"
            )
    check_ids(map(str, table["person"]), str(path))
    for number, person in enumerate(table["person"]):
        verify_angles(path, str(person), table["gaze"][number], table["pose"][number])
    return table


def check(root: Path) -> list[Check]:
    """Compare the file with the expected counts; return the lines of `vergence data check`.

    The file must hold 11 people or more, with 3,000 samples each.
    """
    lines = Checks()
    with lines.reading(FILE):
        people, samples = _read(root / FILE)["image"].shape[:2]
        enough = people >= PEOPLE
        lines += [
            Check("people", str(people), f"{PEOPLE} or more", enough, "" if enough else WHERE),
            compare("samples per person", samples, SAMPLES, WHERE),
        ]
    return lines
