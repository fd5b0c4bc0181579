"""A party's seed, which changes with every image, so that no randomness can be used twice.

Used by `deployment.private_inference.party` and `deployment.private_inference.sharing`.
"""

from __future__ import annotations

from pathlib import Path

from vergence.core.files import write_whole
from vergence.errors import StateError
from vergence.privacy.inference.correlations import next_seed
from vergence.privacy.secure_aggregation.masking import SEED as SEED_BYTES
from vergence.system.file_access import is_open_to_others

NUMBER = 8
"""Number of bytes of the image's number, with which the seed's file begins."""


def check_secret_file(path: Path) -> None:
    """Refuse a secret file that other users can read.

    Raises:
        StateError: other users can read the file, or it is missing.
    """
    if not path.is_file():
        raise StateError(f"{path} is missing: ask the model's owner for new folders")
    if is_open_to_others(path):
        raise StateError(f"{path} can be read by others: `chmod 600 {path}`")


class PartySeed:
    """File with the seed of the next image; no earlier image's seed can be computed from it.

    Masks are random numbers made from the seeds. Somebody may have recorded what a party received,
    and later get all folders: the masks of the recorded images still cannot be removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[int, bytes]:
        """Return the number of the next image, and its seed.

        Raises:
            StateError: the file is missing, damaged, or readable by other users.
        """
        check_secret_file(self._path)
        data = self._path.read_bytes()
        if len(data) != NUMBER + SEED_BYTES:
            raise StateError(f"{self._path} is damaged: ask the model's owner for new folders")
        return int.from_bytes(data[:NUMBER], "big"), data[NUMBER:]

    def write(self, unit: int, seed: bytes) -> None:
        """Replace number and seed in the file; a power cut cannot bring back a used seed."""
        write_whole(self._path, unit.to_bytes(NUMBER, "big"), seed, secret=True, lasting=True)

    def take(self, start: int, images: int) -> list[bytes]:
        """Return the seeds of `images` images from number `start` on, after erasing them on disk.

        Raises:
            StateError: as in `read`; also if the seeds were already erased.
        """
        unit, seed = self.read()
        if start < unit:
            raise StateError(f"the seed of image {start} is gone: ask again")
        for _ in range(start - unit):
            seed = next_seed(seed)
        seeds = []
        for _ in range(images):
            seeds.append(seed)
            seed = next_seed(seed)
        self.write(start + images, seed)
        return seeds
