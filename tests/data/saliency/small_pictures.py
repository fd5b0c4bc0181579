"""Small folders in the form of OSIE: fixations in one npz file, and pictures with their numbers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image


def fixations(numbers, viewers: int, each: int = 4, viewings: int = 1) -> dict[str, np.ndarray]:
    """Every viewer looks `each` times at every picture, in each of so many viewings."""
    rng = np.random.default_rng(1)
    axes = (np.asarray(numbers), np.arange(viewers), 1 + np.arange(viewings), np.arange(each))
    image, viewer, repeat, order = (a.ravel() for a in np.meshgrid(*axes, indexing="ij"))
    columns = {
        "image": image.astype(np.int32),
        "viewer": viewer.astype(np.int8),
        "order": order.astype(np.int16),
        "x": rng.random(len(image), np.float32),
        "y": rng.random(len(image), np.float32),
        "duration_ms": np.full(len(image), 200, np.float32),
    }
    return columns | ({"repeat": repeat.astype(np.uint8)} if viewings > 1 else {})


def write_fixations(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Write the columns, and how many pictures, viewers and fixations they hold."""
    counts = [len(np.unique(columns[name])) for name in ("image", "viewer")]
    np.savez(path, **columns, totals=[*counts, len(columns["x"])])


def write_pictures(folder: Path, names: list[str]) -> None:
    """Write pictures whose red is 10 x their place in the list."""
    folder.mkdir(exist_ok=True, parents=True)
    for i, name in enumerate(names):
        Image.new("RGB", (32, 24), (10 * i, 0, 0)).save(folder / name)


def shorten(name: str) -> Callable[[Path], None]:
    """Return a function that cuts a file of a folder to 60 % of its bytes."""

    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(0.6 * len(data))])

    return change


def entry(file: str, name: str, value: float, rows: object = 7) -> Callable[[Path], None]:
    """Return a function that puts a value into rows of a column of an npz file."""

    def change(folder: Path) -> None:
        with np.load(folder / file) as archive:
            columns = dict(archive)
        columns[name] = columns[name].copy()
        columns[name][rows] = value
        np.savez(folder / file, **columns)

    return change


def without(file: str, name: str) -> Callable[[Path], None]:
    """Return a function that takes a column out of an npz file."""

    def change(folder: Path) -> None:
        with np.load(folder / file) as archive:
            columns = {key: archive[key] for key in archive if key != name}
        np.savez(folder / file, **columns)

    return change


def gone(name: str) -> Callable[[Path], None]:
    """Return a function that removes a file of a folder."""
    return lambda folder: (folder / name).unlink()
