"""A party's seed, which goes on with the images: what was used can never be drawn again."""

from __future__ import annotations

from pathlib import Path

from vergence.core.files import write_whole
from vergence.errors import StateError
from vergence.privacy.inference.correlations import next_seed
from vergence.privacy.secure_aggregation.masking import SEED as SEED_BYTES
from vergence.system.file_access import is_open_to_others

NUMBER = 8
"""Bytes of an image's number, before the seed in its file."""


def closed(path: Path) -> None:
    """Refuse a file that others may read.

    Raises:
        StateError: it is one, or is missing.
    """
    if not path.is_file():
        raise StateError(f"{path} is missing: ask the model's owner for new folders")
    if is_open_to_others(path):
        raise StateError(f"{path} can be read by others: `chmod 600 {path}`")


class PartySeed:
    """File of the seed of the next image, from which no earlier image's can be had.

    Whoever gets all folders after a question, and kept what a party received in it, cannot take
    the masks off its images.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[int, bytes]:
        """Return the number of an image, and its seed.

        Raises:
            StateError: the file is missing, damaged, or others may read it.
        """
        closed(self._path)
        found = self._path.read_bytes()
        if len(found) != NUMBER + SEED_BYTES:
            raise StateError(f"{self._path} is damaged: ask the model's owner for new folders")
        return int.from_bytes(found[:NUMBER], "big"), found[NUMBER:]

    def write(self, unit: int, seed: bytes) -> None:
        """Replace number and seed, so that they outlast a power cut."""
        write_whole(self._path, unit.to_bytes(NUMBER, "big"), seed, secret=True, lasting=True)

    def take(self, start: int, images: int) -> list[bytes]:
        """Return the seeds of images, which are gone from the file before they are used.

        Raises:
            StateError: see `read`; or they are gone already.
        """
        unit, seed = self.read()
        if start < unit:
            raise StateError(f"the seed of image {start} is gone: ask again")
        for _ in range(start - unit):
            seed = next_seed(seed)
        taken = []
        for _ in range(images):
            taken.append(seed)
            seed = next_seed(seed)
        self.write(start + images, seed)
        return taken
