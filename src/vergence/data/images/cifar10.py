"""CIFAR-10: 60,000 colour pictures in 10 classes, divided among made-up people.

`root` has one of three layouts. The binary version has `data_batch_1.bin` to `data_batch_5.bin` and
`test_batch.bin`, in `root` or in its folder `cifar-10-batches-bin`. The Python version has the same
names without `.bin`, in `root` or in its folder `cifar-10-batches-py`. The third layout has JPEG
images in npz files in `root`: one or several for training, such as `cifar10_train_N_jpeg.npz`, and
for test, such as `cifar10_test_N_jpeg.npz`, with N images each. All files of a part are read
together, also names such as `cifar10_train_rest_0_N_jpeg.npz`. Each file holds `blob`, the bytes of
all JPEG files one after another; `offsets` (N + 1), where each JPEG file begins and ends; `labels`;
and `classes`, the names. JPEG is lossy, so scores differ a little from scores on the originals. The
data set `image_folder` reads folders of single JPEG files.

Licence: none stated; not packaged. Source: Krizhevsky, "Learning multiple layers of features from
tiny images", technical report, University of Toronto, 2009.

Used by `data.images.cifar10_unseen`.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.core.federation import Dataset, Federation
from vergence.data.images.cifar_files import Labels, part_of
from vergence.data.images.partition import Dealt, PartitionPart, check_counts
from vergence.data.io.checks import Check, data_folder, read_npz
from vergence.data.io.generated_cache import cached
from vergence.data.io.image_files import open_image
from vergence.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COUNTS = {"train": 50_000, "test": 10_000}
FILES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
FOLDERS = {".bin": "cifar-10-batches-bin", "": "cifar-10-batches-py"}
LABELS = Labels(byte=0, head=1, key="labels")
SUBSET = re.compile(r"cifar10_\w+_(\d+)_jpeg\.npz")
WHERE = (
    "root must hold cifar-10-batches-bin or cifar-10-batches-py of "
    "cs.toronto.edu/~kriz/cifar.html, or cifar10_train_N_jpeg.npz and cifar10_test_N_jpeg.npz"
)
ABOUT = {
    "licence": "none stated",
    "citation": "Krizhevsky, Learning multiple layers of features from tiny images, 2009",
}


@dataclass(frozen=True)
class Cifar10(Dealt, Dataset):
    """Colour pictures of animals and vehicles, divided among as many people as wanted.

    The options are those of `Dealt`.
    """

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the ten classes, in the order of their labels."""
        return CLASSES

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the images `[n, 3, 32, 32]`, and divide them among people.

        Raises:
            DataError: a file is missing, truncated or of another kind.
            ConfigError: there are too many people for each to get images.
        """
        read, files, _ = find_reader(data_folder(root, "cifar10", WHERE))
        return self.deal({part: read(part) for part in COUNTS}, {**ABOUT, "files": files}, COUNTS)


def find_reader(folder: Path) -> tuple[Callable[[str], PartitionPart], str, dict[str, int]]:
    """Return a function that reads a part, a description of the files, and numbers of images.

    A part is "train" or "test"; the last value maps it to its number of images.

    Raises:
        DataError: the folder has none of the layouts.
    """
    for suffix, name in FOLDERS.items():
        for home in (folder, folder / name):
            if (home / f"{FILES['train'][0]}{suffix}").is_file():
                return partial(_published, home, suffix), name, COUNTS
    jpegs, counts = {}, {}
    for part in COUNTS:
        named = [SUBSET.fullmatch(path.name) for path in sorted(folder.glob(f"cifar10_{part}_*"))]
        jpegs[part] = [folder / match[0] for match in named if match]
        counts[part] = sum(int(match[1]) for match in named if match)
        if not jpegs[part]:
            raise DataError(
                f"{folder} holds neither version and no cifar10_{part}_N_jpeg.npz: {WHERE}"
            )
    files = f"{counts['train']:,} + {counts['test']:,} images, JPEG, which is lossy"
    return lambda part: _jpegs(jpegs[part]), files, counts


def _published(home: Path, suffix: str, part: str) -> PartitionPart:
    paths = [home / f"{name}{suffix}" for name in FILES[part]]
    return part_of(paths, LABELS, len(CLASSES), WHERE)


def _jpegs(paths: list[Path]) -> PartitionPart:
    """Return the images of all npz files of a part.

    Raises:
        DataError: an image is in two of the files, for example if one file is a subset of another.
    """
    # Subsets may overlap; an image in two files would be in the data twice.
    parts, first_in = [], dict[bytes, Path]()
    for path in paths:
        part, hashes = _npz(path)
        for name in hashes:
            if first_in.setdefault(name, path) != path:
                raise DataError(
                    f"{path}: an image is in {first_in[name].name} too; keep one of the two files"
                )
        parts.append(part)
    labels = np.concatenate([part.labels for part in parts])
    return PartitionPart(labels, lambda: torch.cat([part.images() for part in parts]))


def _npz(path: Path) -> tuple[PartitionPart, list[bytes]]:
    """Return the images and labels of one npz file, and the SHA-256 of each JPEG image.

    Images are decoded when they are first needed, and kept in the cache.

    Raises:
        DataError: the file is damaged or of another kind.
    """
    arrays = read_npz(
        path, {"blob": 1, "offsets": 1, "labels": 1, "classes": 1}, WHERE, text=["classes"]
    )
    if arrays["labels"].dtype.kind not in "iu" or arrays["blob"].dtype != np.uint8:
        raise DataError(f"{path}: labels must be whole numbers and blob bytes: {WHERE}")
    labels, offsets = arrays["labels"].astype(np.int64), arrays["offsets"]
    if arrays["classes"].tolist() != list(CLASSES) or (labels // len(CLASSES)).any():
        raise DataError(f"{path}: classes must be {', '.join(CLASSES)}, labels 0 to 9: {WHERE}")
    cut = offsets.dtype.kind in "iu" and len(offsets) == len(labels) + 1 > 1
    cut = cut and (offsets[0], offsets[-1]) == (0, len(arrays["blob"]))
    if not cut or (np.diff(offsets) <= 0).any():
        raise DataError(f"{path}: offsets do not cut blob into {len(labels):,} images: {WHERE}")
    # The key of the cache: other bytes or other cuts give other images.
    sha = hashlib.sha256(arrays["blob"].tobytes() + offsets.tobytes()).hexdigest()

    files = [arrays["blob"][a:b].tobytes() for a, b in pairwise(offsets)]

    def decode() -> dict[str, np.ndarray]:
        return {"image": np.stack([_decoded(file, path) for file in files])}

    def images() -> Tensor:
        return torch.from_numpy(cached("cifar10", {"jpeg": sha}, decode)["image"])

    return PartitionPart(labels, images), [hashlib.sha256(file).digest() for file in files]


def _decoded(data: bytes, path: Path) -> np.ndarray:
    """Return the pixels of one JPEG image, uint8 `[3, 32, 32]`."""
    with open_image(io.BytesIO(data), f"an image of {path}", WHERE) as image:
        pixels = np.asarray(image.convert("RGB"))
    if pixels.shape != (32, 32, 3):
        raise DataError(f"{path}: images must be 32 x 32, one is {pixels.shape[:2]}: {WHERE}")
    return pixels.transpose(2, 0, 1)


def check(root: Path) -> list[Check]:
    """Compare a folder with CIFAR-10's counts; return the lines of `vergence data check`.

    The counts are those of all images, and of images of the rarest class. A subset is compared with
    the number in its file names.
    """
    read, _, counts = find_reader(root)
    return check_counts(read, counts, len(CLASSES), WHERE)
