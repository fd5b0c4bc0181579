"""Checks of local data files, and readers whose error messages are one clear line.

Used in most packages.
"""

from __future__ import annotations

import io
import os
import sys
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy
import torch
from PIL import ExifTags
from PIL.Image import Resampling
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from vergence.core.options import T
from vergence.data.io.image_files import open_image
from vergence.data.io.matlab_tags import check_tags
from vergence.data.io.npz_archives import read_member
from vergence.errors import DataError, VergenceError, first_line

DATA_VARIABLE, DEFAULT_DATA = "VERGENCE_DATA", "../shared/data"
"""The environment variable that names the folder of data sets, and its default value."""
PATIENCE_S = 2.0
"""After this many seconds, work shows a progress bar, if stderr is a terminal."""


@dataclass(frozen=True)
class Check:
    """One line of `vergence data check`.

    `what` is the subject, `actual` and `expected` are its values, `ok` says whether they agree, and
    `hint` says what the user can do.
    """

    what: str
    actual: str
    expected: str
    ok: bool
    hint: str = ""


class CheckedFolder(ABC):
    """Base class of data sets whose `vergence data check` depends on their options."""

    @abstractmethod
    def check(self, root: Path) -> list[Check]:
        """Return the lines of `vergence data check` on a folder."""


def compare(what: str, actual: int, expected: int, hint: str = "") -> Check:
    """Return a check line on whether two counts agree; it has the hint only if they differ."""
    ok = actual == expected
    return Check(what, f"{actual:,}", f"{expected:,}", ok, "" if ok else hint)


def unreadable_check(what: str, fault: object) -> Check:
    """Return the failed check line for files that cannot be read, with the fault as its hint."""
    return Check(what, "unreadable", "readable", False, str(fault))


class Checks(list[Check]):
    """List of check lines, with a method that turns errors of reading into failed lines."""

    @contextmanager
    def reading(self, what: str, *more: type[VergenceError]) -> Iterator[None]:
        """Catch a `DataError`, or an error of `more`, in the block; add a failed line instead."""
        try:
            yield
        except (DataError, *more) as fault:
            self.append(unreadable_check(what, fault))


def data_folder(root: str | Path | None, name: str, hint: str) -> Path:
    """Return the folder of the data set `name`, which is not packaged and must be given.

    Raises:
        DataError: `root` is None, or the folder does not exist; the message ends with `hint`.
    """
    if root is None:
        raise DataError(
            f"data set '{name}' is not packaged: name its folder as root; {hint}",
            code="file-missing",
        )
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{missing_folder(folder)} for data set '{name}': correct root; {hint}",
            code="file-missing",
        )
    return folder


def missing_folder(folder: Path) -> str:
    """Describe, for an error message, a missing folder and all places that were searched."""
    if folder.is_file():
        return f"{folder} is a file, and no folder"
    shared = Path(os.environ.get(DATA_VARIABLE, DEFAULT_DATA))
    if not folder.is_relative_to(shared) or folder.is_absolute() != shared.is_absolute():
        return f"no folder {folder}"
    return f"no folder {folder}, and no {folder.relative_to(shared)} in the working directory,"


def data_path(path: str) -> str:
    """Return a path of data: unchanged if it is absolute or exists, else below the data folder.

    The environment variable VERGENCE_DATA names the data folder; its default is ../shared/data.
    """
    plain = Path(path).expanduser()
    if plain.is_absolute() or plain.exists():
        return str(plain)
    return str(Path(os.environ.get(DATA_VARIABLE, DEFAULT_DATA)) / path)


def need_file(path: Path, hint: str) -> Path:
    """Return `path`, after checking that it is a file.

    Raises:
        DataError: there is no such file; the message ends with `hint`.
    """
    if not path.is_file():
        raise DataError(f"missing file {path}: {hint}", code="file-missing")
    return path


def read_npz(
    path: Path,
    dimensions: Mapping[str, int],
    hint: str,
    optional: Sequence[str] | None = (),
    text: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Return the named arrays of an npz file.

    `dimensions` maps the names to numbers of dimensions. Arrays in `optional` are returned if the
    file has them, with any number of dimensions; None: all other arrays. Arrays must hold real
    numbers, except those in `text`.

    Raises:
        DataError: the file is missing or damaged, or an array is missing, has another number of
            dimensions, or holds something else.
    """
    need_file(path, hint)
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            lacking = sorted(set(dimensions) - names)
            more = sorted(names - set(dimensions)) if optional is None else optional
            wanted = [name for name in (*dimensions, *more) if name in names]
            arrays = {name: read_member(archive, name) for name in wanted}
    # zipfile and NumPy raise exceptions of many kinds on damaged bytes.
    except Exception as fault:
        raise DataError(
            f"cannot read {path} ({first_line(fault)}): {hint}", code="file-unreadable"
        ) from fault
    if lacking:
        raise DataError(
            f"{path} is of another version, it lacks {', '.join(lacking)} "
            f"(needs {', '.join(dimensions)}): {hint}",
            code="file-layout",
        )
    for name, rank in dimensions.items():
        if arrays[name].ndim != rank:
            raise DataError(
                f"{path} is of another version, {name} has shape {arrays[name].shape} "
                f"instead of {rank} dimensions: {hint}",
                code="file-layout",
            )
    for name in arrays.keys() - set(text):
        need_numbers(arrays[name], name, path, hint)
    return arrays


def need_numbers(values: np.ndarray, what: str, path: Path, hint: str) -> None:
    """Check that an array holds real numbers: integers, floats or booleans.

    Raises:
        DataError: the array holds text, complex numbers or records.
    """
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: {what} holds {values.dtype} instead of real numbers: {hint}", code="bad-value"
        )


def read_mat(path: Path, variable: str, hint: str) -> np.ndarray:
    """Return one variable of a MATLAB file (version 5 to 7.2), with all its dimensions.

    Raises:
        DataError: the file is missing, damaged, of version 7.3, or lacks the variable.
    """
    need_file(path, hint)
    try:
        # SciPy trusts the tags in a file and reads past its memory where they lie.
        raw = path.read_bytes()
        check_tags(raw)
        content = scipy.io.loadmat(io.BytesIO(raw), variable_names=[variable])
    except NotImplementedError as fault:
        raise DataError(
            f"{path} is a MATLAB 7.3 file, versions 5 to 7.2 are read: save it with -v7, or {hint}",
            code="file-layout",
        ) from fault
    # SciPy raises exceptions of many kinds on damaged bytes.
    except Exception as fault:
        raise DataError(
            f"cannot read {path} ({first_line(fault)}): {hint}", code="file-unreadable"
        ) from fault
    if variable not in content:
        raise DataError(
            f"{path} is of another version, it lacks '{variable}': {hint}", code="file-layout"
        )
    return content[variable]


def read_pictures(paths: Sequence[Path], size: tuple[int, int], what: str, hint: str) -> Tensor:
    """Return decoded images, resized to `size`, as uint8 `[images, height, width, 3]`.

    `size` is (width, height) in pixels. On a terminal, a progress bar appears after two seconds.

    Raises:
        DataError: an image is missing, truncated or not an image.
    """
    width, height = size
    rows = np.empty((len(paths), height, width, 3), np.uint8)
    for row, path in zip(rows, with_progress(paths, what), strict=True):
        need_file(path, hint)
        with open_image(path, str(path), hint) as image:
            # Some programs turn such a picture when they show it, others do not.
            if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
                raise ValueError("its EXIF header turns it: save it turned as it was shown")
            rgb = image.convert("RGB")
        fitted = rgb if rgb.size == size else rgb.resize(size, Resampling.LANCZOS)
        row[:] = np.asarray(fitted)
    return torch.from_numpy(rows)


def refuse_nan(values: np.ndarray, what: str, path: Path) -> None:
    """Check that all numbers of an array are finite.

    Raises:
        DataError: an entry is NaN, infinite or no real number; the message names the first row with
            such an entry.
    """
    need_numbers(values, what, path, "take an undamaged copy")
    bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if bad.any():
        raise DataError(
            f"{path}: {what} is NaN or infinite in {int(bad.sum())} of {len(values)} rows, first "
            f"in row {int(bad.argmax())}: remove these rows or take an undamaged copy",
            code="bad-value",
        )


def with_progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items; on a terminal, a progress bar appears after two seconds."""
    started = time.monotonic()
    with ExitStack() as stack:
        bar = None
        for done, item in enumerate(items):
            # A bar for short work would only flicker, and one in a log file is noise.
            late = time.monotonic() - started > PATIENCE_S
            if bar is None and late and sys.stderr.isatty():
                bar = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
                bar.add_task(f"reading {what}", total=len(items))
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)
            yield item
