"""OSIE: 700 natural images, each viewed freely for three seconds by 15 viewers; all fixations.

`root` can be the `data` folder of NUS-VIP/predicting-human-gaze-beyond-pixels. Its layout:
`stimuli/ID.jpg` with ID 1001 to 1700, and the fixations in one of three files. `fixations.npz` has
one-dimensional columns, and is read first. `fixations.mat` or `eye/fixations.mat` has a struct for
each image, with a struct for each viewer. Without root, a packaged sample of 160 images with all 15
viewers is read.

Licence: MIT, copyright 2014 NUS VIP. Source: Xu, Jiang, Wang, Kankanhalli, Zhao, "Predicting human
gaze beyond pixels", Journal of Vision 14(1):28, 2014.

Used by `data.saliency.eyecrowd` and `data.saliency.psm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.naming import registry_name
from vergence.data.io.checks import (
    Check,
    CheckedFolder,
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
COLUMNS = ("image", "viewer", "order", "x", "y", "duration_ms")
START = (
    "the first fixation of every trial (the centre start), and then {empty} trials without any "
    "fixation"
)


@dataclass(frozen=True)
class PictureSet:
    """Facts about one published set of fixations on pictures, for `Osie` and its subclasses.

    Attributes:
        first: the least number of a picture.
        count: how many numbers pictures may have, from `first` on.
        totals: how many pictures with fixations, viewers and fixations the whole set has.
        where: what the user can do if a file is missing or wrong.
        about: entries of `Federation.about` that are the same for every split.
        file: name of the npz file with a row for each fixation.
        picture: pattern of a picture's file name in the folder of pictures.
        screen: width and height in pixels of the original pictures, to which `fixations.mat`
            refers; None: only the npz file is read.
        sample: packaged folder that is read without root; None: root is needed.
        first_order: `order` of the first fixation of a trial that is scored.
        outside: greatest share of fixations that may lie outside the picture; these are left out.
        viewings: most times that a viewer saw the same picture. If it is more than 1, the npz file
            has a column `repeat`.
        left_out: pattern of the text on what is left out, for `Federation.about`.
    """

    first: int
    count: int
    totals: tuple[int, int, int]
    where: str
    about: Mapping[str, str]
    file: str = "fixations.npz"
    picture: str = "{}.jpg"
    screen: tuple[int, int] | None = None
    sample: Path | None = None
    first_order: int = 1
    outside: float = 0.0
    viewings: int = 1
    left_out: str = START


OSIE = PictureSet(
    first=1001,
    count=700,
    totals=(700, 15, 98_321),
    where="get folder `data` of github.com/NUS-VIP/predicting-human-gaze-beyond-pixels (MIT), or "
    "leave root out to use the packaged sample",
    about={
        "licence": "MIT, copyright 2014 NUS VIP - Visual Information Processing Lab",
        "citation": "Xu, Jiang, Wang, Kankanhalli, Zhao: Predicting human gaze beyond pixels. "
        "Journal of Vision 14(1):28, 2014",
        "stimulus": "free viewing of natural images, 3 s each, on a screen",
    },
    screen=(800, 600),
    sample=SAMPLE,
)


@dataclass(frozen=True)
class Osie(CheckedFolder, SplitOptions, Dataset):
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
    facts: ClassVar[PictureSet] = OSIE

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
        facts = self.facts
        folder = facts.sample if root is None else None
        folder = folder or data_folder(root, registry_name(self), facts.where)
        table = self.fixations(folder)
        viewers = self._known_viewers(table)
        numbers, parts = self._split(np.unique(table["image"]))
        files = self.picture_files(folder, numbers)
        frames = SharedRows(read_pictures(files, self.size, "images", facts.where), "frame_ids")
        scored = self.scored(table) & np.isin(table["image"], numbers)
        points = _points({name: column[scored] for name, column in table.items()}, numbers, facts)
        people, empty = {}, 0
        for viewer in viewers:
            seen = np.isfinite(points[viewer, :, 0, 0])
            empty += int((~seen).sum())
            trials = [_trials(part, facts) for part in parts]
            rows = [part[seen[part]] for part in trials]
            if not all(len(part) for part in rows):
                raise DataError(
                    f"viewer {viewer} has scored fixations on {[len(part) for part in rows]} "
                    "images (train, val, test), each part needs one: use more images, or leave "
                    "the viewer out with the option viewers"
                )
            made = (_samples(points[viewer], part, frames, facts) for part in rows)
            people[f"v{viewer:02d}"] = Splits(*made)
        left_out = facts.left_out.format(empty=empty, outside=int((~_inside(table)).sum()))
        about = self._about(folder == facts.sample, parts, left_out)
        return Federation(registry_name(self), people, about)

    def fixations(self, folder: Path) -> dict[str, np.ndarray]:
        """Return the verified table of fixations in a folder; see `read_fixations`.

        Raises:
            DataError: the file is missing, truncated or of another version.
        """
        table, totals = read_fixations(folder, self.facts)
        _verify(table, totals, folder, self.facts)
        return table

    def _stimuli(self, folder: Path) -> Path:
        """Return the folder of pictures of the data set in `folder`."""
        return folder / "stimuli"

    def picture_files(self, folder: Path, numbers: np.ndarray) -> list[Path]:
        """Return the files of the pictures with these numbers."""
        stimuli = self._stimuli(folder)
        return [stimuli / self.facts.picture.format(number) for number in numbers]

    def scored(self, table: dict[str, np.ndarray]) -> np.ndarray:
        """Return which fixations are scored, bool `[fixations]`."""
        # The first fixation of most sets is where the fixation cross was, not where the viewer
        # chose to look.
        return (table["order"] >= self.facts.first_order) & _inside(table)

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
        facts = self.facts
        order = facts.first + np.random.default_rng(self.split_seed).permutation(facts.count)
        # A set on a few of another set's pictures has them in the parts of that set.
        if facts.totals[0] == facts.count:
            order = order[np.isin(order, known)]
        _, val, test = part_sizes(len(order), self.shares, "images")
        parts = [part[np.isin(part, known)] for part in np.split(order, [test, test + val])[::-1]]
        if self.images is not None:
            sizes = part_sizes(self.images, self.shares, "images")
            parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        numbers = np.sort(np.concatenate(parts))
        return numbers, tuple(np.searchsorted(numbers, np.sort(part)) for part in parts)

    def _about(
        self, packaged: bool, parts: tuple[np.ndarray, ...], left_out: str
    ) -> dict[str, str]:
        train, val, test = (len(part) for part in parts)
        return dict(self.facts.about) | {
            "split": f"by image, for all viewers alike: {train} train, {val} validation, {test} "
            f"test (permutation of seed {self.split_seed})",
            "source": "packaged sample" if packaged else "local files",
            "left_out": left_out,
        }

    def check(self, root: Path) -> list[Check]:
        """Compare a folder with the published numbers; return the lines of `vergence data check`.

        They are the numbers of images, viewers, fixations and picture files.
        """
        facts, where = self.facts, self.facts.where
        pictures = len(list(self._stimuli(root).glob("*.jpg")))
        lines = Checks([compare("picture files in stimuli/", pictures, facts.count, where)])
        with lines.reading("fixations and pictures"):
            table, _ = read_fixations(root, facts)
            lines += [compare(*line, where) for line in _counts(table, facts.totals)]
            _verify(table, facts.totals, root, facts)
            files = self.picture_files(root, np.unique(table["image"]))
            read_pictures(files, (32, 24), "images", where)
            lines.append(Check("fixations and pictures", "readable", "readable", True))
        return lines


def read_fixations(
    folder: Path, facts: PictureSet = OSIE
) -> tuple[dict[str, np.ndarray], tuple[int, int, int]]:
    """Return the table of fixations, and how many images, viewers and fixations it must hold.

    The table has the columns `image`, `viewer`, `order`, `x`, `y` (fractions of width and height)
    and `duration_ms`, all `[fixations]`, and `repeat` if viewers saw pictures several times. If
    both the npz file and `fixations.mat` are there, the npz is read. An npz of fewer images states
    its own numbers in `totals`.

    Raises:
        DataError: there is no such file, or it is truncated or of another version.
    """
    flat = folder / facts.file
    nested = folder / "fixations.mat"
    if flat.is_file() or facts.screen is None:
        columns = (*COLUMNS, "repeat") if facts.viewings > 1 else COLUMNS
        table = read_npz(flat, dict.fromkeys(columns, 1), facts.where, optional=["totals"])
        own = table.pop("totals", np.array(facts.totals))
        if (
            own.shape != (3,)
            or own.dtype.kind not in "iu"
            or len({len(column) for column in table.values()}) != 1
        ):
            raise DataError(
                f"{flat} is of another version, its columns differ in length or totals is not "
                f"(images, viewers, fixations): {facts.where}"
            )
        return table, (int(own[0]), int(own[1]), int(own[2]))
    if not nested.is_file():
        nested = folder / "eye" / "fixations.mat"
    if not nested.is_file():
        raise DataError(f"neither fixations.npz nor fixations.mat in {folder}: {facts.where}")
    return _flatten(nested, facts.screen, facts.where), facts.totals


def _flatten(path: Path, screen: tuple[int, int], where: str) -> dict[str, np.ndarray]:
    collected: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    try:
        for image in read_mat(path, "fixations", where).ravel():
            number = int(Path(str(image["img"].item().item())).stem)
            for viewer, subject in enumerate(image["subjects"].item().ravel()):
                x, y, duration = (
                    subject[name].item().ravel() for name in ("fix_x", "fix_y", "fix_duration")
                )
                collected["image"].append(np.full(len(x), number, np.int32))
                collected["viewer"].append(np.full(len(x), viewer, np.int8))
                collected["order"].append(np.arange(len(x), dtype=np.int16))
                collected["x"].append((x / screen[0]).astype(np.float32))
                collected["y"].append((y / screen[1]).astype(np.float32))
                collected["duration_ms"].append(duration.astype(np.float32))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        raise DataError(
            f"{path} is of another version, `fixations` is not a struct array with img and "
            f"subjects (fix_x, fix_y, fix_duration): {where}"
        ) from fault
    return {name: np.concatenate(parts) for name, parts in collected.items()}


def _verify(
    table: dict[str, np.ndarray],
    totals: tuple[int, int, int],
    folder: Path,
    facts: PictureSet = OSIE,
) -> None:
    limits = {
        "image": (facts.first, facts.first + facts.count - 1),
        "viewer": (0, facts.totals[1] - 1),
        "order": (0, 2**31 - 1),
        "repeat": (1, facts.viewings),
    }
    for name, (low, high) in limits.items():
        column = table.get(name, np.arange(0))
        if column.dtype.kind not in "iu":
            raise DataError(f"{folder}: fixation {name} must be whole numbers: {facts.where}")
        if len(column) and not (column.min() >= low and column.max() <= high):
            raise DataError(f"{folder}: {name} numbers must be {low} to {high}: {facts.where}")
    for name in ("x", "y"):
        refuse_nan(table[name], f"fixation {name}", folder)
        outside = (table[name] < 0) | (table[name] > 1)
        if outside.sum() > facts.outside * len(outside):
            raise DataError(
                f"{folder}: fixation {name} lies outside [0, 1] of the image in "
                f"{int(outside.sum())} of {len(outside)} rows, first in row "
                f"{int(outside.argmax())}: {facts.where}"
            )
    for what, count, expected in _counts(table, totals):
        if count != expected:
            raise DataError(
                f"{folder} holds {count:,} {what} instead of {expected:,}: {facts.where}"
            )


def _inside(table: dict[str, np.ndarray]) -> np.ndarray:
    """Return which fixations lie inside the picture, bool `[fixations]`."""
    xy = np.stack([table["x"], table["y"]])
    return np.logical_and.reduce((xy >= 0) & (xy <= 1))


def _counts(
    table: dict[str, np.ndarray], totals: tuple[int, int, int]
) -> list[tuple[str, int, int]]:
    counts = (len(np.unique(table["image"])), len(np.unique(table["viewer"])), len(table["x"]))
    names = ("images with fixations", "viewers", "fixations")
    return list(zip(names, counts, totals, strict=True))


def _points(
    table: dict[str, np.ndarray], numbers: np.ndarray, facts: PictureSet = OSIE
) -> np.ndarray:
    """Return the fixations as float32 `[viewers, trials, most fixations, 2]`, padded with NaN.

    `numbers` are the images' numbers, ascending. Each image has `facts.viewings` trials in a row.
    """
    viewer = table["viewer"].astype(np.int64)
    repeat = table.get("repeat", np.ones_like(viewer)).astype(np.int64)
    trial = np.searchsorted(numbers, table["image"]) * facts.viewings + repeat - 1
    trials = len(numbers) * facts.viewings
    cell = viewer * trials + trial
    # Sort by viewer and trial, and within each by time, so that each cell is one run of rows.
    by_time = np.lexsort((table["order"], cell))
    starts = np.flatnonzero(np.diff(cell[by_time], prepend=-1))
    lengths = np.diff(starts, append=len(cell))
    place = np.arange(len(cell)) - np.repeat(starts, lengths)
    shape = (facts.totals[1], trials, int(lengths.max(initial=1)), 2)
    points = np.full(shape, np.nan, np.float32)
    xy = np.stack([table["x"], table["y"]], 1)
    points[viewer[by_time], trial[by_time], place] = xy[by_time]
    return points


def _trials(images: np.ndarray, facts: PictureSet) -> np.ndarray:
    """Return the numbers of all trials with these images, `[images * viewings]`."""
    return (images[:, None] * facts.viewings + np.arange(facts.viewings)).ravel()


def _samples(
    points: np.ndarray, rows: np.ndarray, frames: SharedRows, facts: PictureSet
) -> Samples:
    trials = torch.from_numpy(rows.astype(np.int64))
    numbers = trials // facts.viewings
    columns = {
        "frame_ids": numbers[:, None],
        "points": torch.from_numpy(points[rows])[:, None],
        "scene": numbers.clone(),
    }
    if facts.viewings > 1:
        columns["viewing"] = trials % facts.viewings + 1
    return Samples(columns, {"frames": frames})
