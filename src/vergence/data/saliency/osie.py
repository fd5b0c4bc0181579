"""OSIE: 700 natural images, each viewed freely for three seconds by 15 viewers; all fixations.

`root` can be the `data` folder of NUS-VIP/predicting-human-gaze-beyond-pixels. Its layout:
`stimuli/ID.jpg` with ID 1001 to 1700, and the fixations in one of three files. `fixations.npz` has
one-dimensional columns, and is read first. `fixations.mat` or `eye/fixations.mat` has a struct for
each image, with a struct for each viewer. Without root, a packaged sample of 160 images with all 15
viewers is read.

Licence: MIT, copyright 2014 NUS VIP. Source: Xu, Jiang, Wang, Kankanhalli, Zhao, "Predicting human
gaze beyond pixels", Journal of Vision 14(1):28, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.data.io.checks import (
    Check,
    Checks,
    compare,
    data_folder,
    read_mat,
    read_npz,
    read_pictures,
    refuse_nan,
)
from vergence.data.splits import FrameSize, SplitOptions, part_sizes
from vergence.errors import ConfigError, DataError

SAMPLE = Path(__file__).parent.with_name("samples") / "osie"
FIRST, IMAGES, VIEWERS, FIXATIONS = 1001, 700, 15, 98_321
SCREEN = (800, 600)
"""Width and height in pixels of the original images, to which `fixations.mat` refers."""
WHERE = (
    "get folder `data` of github.com/NUS-VIP/predicting-human-gaze-beyond-pixels (MIT), or leave "
    "root out to use the packaged sample"
)
COLUMNS = ("image", "viewer", "order", "x", "y", "duration_ms")
ABOUT = {
    "licence": "MIT, copyright 2014 NUS VIP - Visual Information Processing Lab",
    "citation": "Xu, Jiang, Wang, Kankanhalli, Zhao: Predicting human gaze beyond pixels. "
    "Journal of Vision 14(1):28, 2014",
    "stimulus": "free viewing of natural images, 3 s each, on a screen",
}


@dataclass(frozen=True)
class Osie(SplitOptions, Dataset):
    """Fixations of 15 viewers on the same images; a viewer is a client, an image is a sample.

    Attributes:
        images: number of images to use; default: all. No image changes to another part of the
            split.
        viewers: numbers, from 0 to 14, of the viewers to load; default: all.
        size: (width, height) to which images are resized, in pixels.
        shares: fractions of the images for training, validation and test.
        split_seed: seed of the split of the images, which is the same for all viewers.
    """

    images: Annotated[int, Ge(3)] | None = None
    viewers: tuple[int, ...] | None = None
    size: FrameSize = (320, 240)

    def load(self, root: str | None = None) -> Federation:
        """Read the packaged sample or the files in `root`, and split by image.

        All viewers have the same split. Columns of the samples: `frame_ids` int64 `[n, 1]`, row
        numbers in the shared array `frames` uint8 `[images, height, width, 3]`; `points` float32
        `[n, 1, most fixations, 2]`, (x, y) in [0, 1], NaN beyond the last fixation; `scene` int64
        `[n]`, the image's row in `frames`.

        Raises:
            DataError: a file is missing, truncated or of another version, or a viewer is unknown.
            ConfigError: an option is out of range.
        """
        if self.viewers is not None and (
            not self.viewers or len(set(self.viewers)) < len(self.viewers)
        ):
            raise ConfigError(f"viewers must be different viewer numbers, got {self.viewers}")
        folder = SAMPLE if root is None else data_folder(root, "osie", WHERE)
        table, totals = read_fixations(folder)
        _verify(table, totals, folder)
        viewers = self._known_viewers(table)
        numbers, parts = self._split(np.unique(table["image"]))
        files = [folder / "stimuli" / f"{number}.jpg" for number in numbers]
        frames = SharedRows(read_pictures(files, self.size, "images", WHERE), "frame_ids")
        # The first fixation is where the fixation cross was, not where the viewer chose to look.
        scored = (table["order"] > 0) & np.isin(table["image"], numbers)
        table = {name: column[scored] for name, column in table.items()}
        points = _points(table, numbers)
        people, empty = {}, 0
        for viewer in viewers:
            seen = np.isfinite(points[viewer, :, 0, 0])
            empty += int((~seen).sum())
            rows = [part[seen[part]] for part in parts]
            if not all(len(part) for part in rows):
                raise DataError(
                    f"viewer {viewer} has scored fixations on {[len(part) for part in rows]} "
                    "images (train, val, test), each part needs one: use more images"
                )
            people[f"v{viewer:02d}"] = Splits(*(_samples(points[viewer], r, frames) for r in rows))
        return Federation("osie", people, self._about(folder == SAMPLE, parts, empty))

    def _known_viewers(self, table: dict[str, np.ndarray]) -> tuple[int, ...]:
        known = tuple(int(v) for v in np.unique(table["viewer"]))
        for viewer in self.viewers or ():
            if viewer not in known:
                raise DataError(
                    f"unknown viewer {viewer}: the data hold viewers {known[0]} to {known[-1]}; "
                    "correct the option viewers"
                )
        return known if self.viewers is None else self.viewers

    def _split(self, known: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return the ids of the images in use, ascending, and each split part's positions in them.

        One permutation of all 700 images decides on the split. So an image that a run with fewer
        images trains on is never a test image of a run with all images. `known` are the ids of the
        images in the data.

        Raises:
            DataError: there are fewer images than the option `images` asks for.
        """
        if self.images is not None and self.images > len(known):
            raise DataError(
                f"images = {self.images}, but the data hold {len(known)}: lower the option images"
            )
        # Permute all 700 numbers and then leave out those that are missing: so a sample, or fewer
        # images, never trains on images that the whole set tests on.
        order = FIRST + np.random.default_rng(self.split_seed).permutation(IMAGES)
        order = order[np.isin(order, known)]
        _, val, test = part_sizes(len(order), self.shares, "images")
        test_images, val_images, train_images = np.split(order, [test, test + val])
        sizes = part_sizes(self.images or len(order), self.shares, "images")
        parts = [
            part[:size]
            for part, size in zip((train_images, val_images, test_images), sizes, strict=True)
        ]
        numbers = np.sort(np.concatenate(parts))
        return numbers, tuple(np.searchsorted(numbers, np.sort(part)) for part in parts)

    def _about(self, packaged: bool, parts: tuple[np.ndarray, ...], empty: int) -> dict[str, str]:
        train, val, test = (len(part) for part in parts)
        return ABOUT | {
            "split": f"by image, for all viewers alike: {train} train, {val} validation, {test} "
            f"test (permutation of seed {self.split_seed})",
            "source": "packaged sample" if packaged else "local files",
            "left_out": "the first fixation of every trial (the centre start), and then "
            f"{empty} trials without any fixation",
        }


def read_fixations(folder: Path) -> tuple[dict[str, np.ndarray], tuple[int, int, int]]:
    """Return the table of fixations, and how many images, viewers and fixations it must hold.

    The table has the columns `image`, `viewer`, `order`, `x`, `y` (fractions of width and height)
    and `duration_ms`, all `[fixations]`. If both `fixations.npz` and `fixations.mat` are there, the
    npz is read. An npz of fewer images states its own numbers in `totals`.

    Raises:
        DataError: there is no such file, or it is truncated or of another version.
    """
    flat = folder / "fixations.npz"
    nested = folder / "fixations.mat"
    if flat.is_file():
        table = read_npz(flat, dict.fromkeys(COLUMNS, 1), WHERE, optional=["totals"])
        own = table.pop("totals", np.array([IMAGES, VIEWERS, FIXATIONS]))
        if (
            own.shape != (3,)
            or own.dtype.kind not in "iu"
            or len({len(column) for column in table.values()}) != 1
        ):
            raise DataError(
                f"{flat} is of another version, its columns differ in length or totals is not "
                f"(images, viewers, fixations): {WHERE}"
            )
        return table, (int(own[0]), int(own[1]), int(own[2]))
    if not nested.is_file():
        nested = folder / "eye" / "fixations.mat"
    if not nested.is_file():
        raise DataError(f"neither fixations.npz nor fixations.mat in {folder}: {WHERE}")
    return _flatten(nested), (IMAGES, VIEWERS, FIXATIONS)


def _flatten(path: Path) -> dict[str, np.ndarray]:
    collected: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    try:
        for image in read_mat(path, "fixations", WHERE).ravel():
            number = int(Path(str(image["img"].item().item())).stem)
            for viewer, subject in enumerate(image["subjects"].item().ravel()):
                x, y, duration = (
                    subject[name].item().ravel() for name in ("fix_x", "fix_y", "fix_duration")
                )
                collected["image"].append(np.full(len(x), number, np.int32))
                collected["viewer"].append(np.full(len(x), viewer, np.int8))
                collected["order"].append(np.arange(len(x), dtype=np.int16))
                collected["x"].append((x / SCREEN[0]).astype(np.float32))
                collected["y"].append((y / SCREEN[1]).astype(np.float32))
                collected["duration_ms"].append(duration.astype(np.float32))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        raise DataError(
            f"{path} is of another version, `fixations` is not a struct array with img and "
            f"subjects (fix_x, fix_y, fix_duration): {WHERE}"
        ) from fault
    return {name: np.concatenate(parts) for name, parts in collected.items()}


def _verify(table: dict[str, np.ndarray], totals: tuple[int, int, int], folder: Path) -> None:
    for name in ("image", "viewer", "order"):
        if table[name].dtype.kind not in "iu":
            raise DataError(f"{folder}: fixation {name} must be whole numbers: {WHERE}")
    for name in ("x", "y"):
        refuse_nan(table[name], f"fixation {name}", folder)
        if len(table[name]) and not (table[name].min() >= 0 and table[name].max() <= 1):
            raise DataError(f"{folder}: fixation {name} lies outside [0, 1] of the image: {WHERE}")
    if len(table["image"]) and not (
        table["image"].min() >= FIRST and table["image"].max() < FIRST + IMAGES
    ):
        raise DataError(f"{folder}: image numbers must be 1001 to 1700: {WHERE}")
    for what, count, expected in _counts(table, totals):
        if count != expected:
            raise DataError(f"{folder} holds {count:,} {what} instead of {expected:,}: {WHERE}")


def _counts(
    table: dict[str, np.ndarray], totals: tuple[int, int, int]
) -> list[tuple[str, int, int]]:
    counts = (len(np.unique(table["image"])), len(np.unique(table["viewer"])), len(table["x"]))
    names = ("images with fixations", "viewers", "fixations")
    return list(zip(names, counts, totals, strict=True))


def _points(table: dict[str, np.ndarray], numbers: np.ndarray) -> np.ndarray:
    """Return the fixations as float32 `[viewers, images, most fixations, 2]`, padded with NaN."""
    viewer = table["viewer"].astype(np.int64)
    image = np.searchsorted(numbers, table["image"])
    cell = viewer * len(numbers) + image
    # Sort by viewer and image, and within each by time, so that each cell is one run of rows.
    by_time = np.lexsort((table["order"], cell))
    starts = np.flatnonzero(np.diff(cell[by_time], prepend=-1))
    lengths = np.diff(starts, append=len(cell))
    place = np.arange(len(cell)) - np.repeat(starts, lengths)
    shape = (int(viewer.max()) + 1, len(numbers), int(lengths.max()), 2)
    points = np.full(shape, np.nan, np.float32)
    xy = np.stack([table["x"], table["y"]], 1)
    points[viewer[by_time], image[by_time], place] = xy[by_time]
    return points


def _samples(points: np.ndarray, rows: np.ndarray, frames: SharedRows) -> Samples:
    numbers = torch.from_numpy(rows.astype(np.int64))
    columns = {
        "frame_ids": numbers[:, None],
        "points": torch.from_numpy(points[rows])[:, None],
        "scene": numbers.clone(),
    }
    return Samples(columns, {"frames": frames})


def check(root: Path) -> list[Check]:
    """Compare a folder with the published numbers; return the lines of `vergence data check`.

    They are the numbers of images, viewers, fixations and picture files.
    """
    pictures = len(list((root / "stimuli").glob("*.jpg")))
    lines = Checks([compare("picture files in stimuli/", pictures, IMAGES, WHERE)])
    with lines.reading("fixations and pictures"):
        table, _ = read_fixations(root)
        lines += [compare(*line, WHERE) for line in _counts(table, (IMAGES, VIEWERS, FIXATIONS))]
        _verify(table, (IMAGES, VIEWERS, FIXATIONS), root)
        files = [root / "stimuli" / f"{number}.jpg" for number in np.unique(table["image"])]
        read_pictures(files, (32, 24), "images", WHERE)
        lines.append(Check("fixations and pictures", "readable", "readable", True))
    return lines
