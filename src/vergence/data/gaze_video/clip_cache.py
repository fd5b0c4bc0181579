"""Cache of decoded video on disk as uint8: decoded once, mapped into memory ever after.

An entry holds the frames of one bank: the chosen rows of one or more videos at one size. It is a
safetensors file with a SHA-256 per block of frames. Videos are told apart by size, time of last
change and a digest of four pieces of 64 KiB, head and tail among them: a full digest would read
every video whole on every load, and files that agree in all three but not in their pictures are not
met by accident (the tables of a video container, which count the bytes of every frame, lie at its
ends).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import av
import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from vergence.data.gaze_video.clip_store import NoRoom, Store
from vergence.data.io.checks import PATIENCE_S
from vergence.data.io.generated_cache import cache_folder, cached
from vergence.data.io.video import Footage, Video
from vergence.errors import ConfigError, DataError

VERSION = 2
"""Part of every key: raise it when the same video should give other pixels."""
LIMIT_GB = 20.0
SLICES, SLICE_BYTES = 4, 1 << 16


@dataclass(frozen=True, eq=False)
class ClipWindow:
    """Frames of one video: `rows` int64 (ascending) of `footage`, which lies in the file `path`."""

    path: Path
    footage: Footage
    rows: NDArray[np.int64]


def limit_bytes() -> int:
    """Limit in bytes of the cache of decoded video: `VERGENCE_CACHE_GB`, default 20 GB.

    Raises:
        ConfigError: it is not a number of 0 or more (0 = keep nothing on disk).
    """
    text = os.environ.get("VERGENCE_CACHE_GB") or str(LIMIT_GB)
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise ConfigError(
            f"VERGENCE_CACHE_GB must be a number of gigabytes, 0 or more, got '{text}'; "
            "0 keeps decoded video in memory only"
        )
    return round(size * 1e9)


def identity(path: Path) -> str:
    """Identity of a file's content: size, time of change, digest of four pieces.

    Files of up to 256 KiB are digested whole. The name does not count: a file moved with its time
    of change is the same.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        found = path.stat()
        return _identity(path, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise DataError(
            f"video {path} cannot be read ({error.strerror}); give the path of an existing file"
        ) from None


@lru_cache(maxsize=16384)
def _identity(path: Path, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256()
    last = max(size - SLICE_BYTES, 0)
    whole = size <= SLICES * SLICE_BYTES
    with path.open("rb") as file:
        if whole:
            digest.update(file.read())
        else:
            for number in range(SLICES):
                file.seek(last * number // (SLICES - 1))
                digest.update(file.read(SLICE_BYTES))
    return f"{size} {mtime_ns} {digest.hexdigest()}"


def open_video(path: Path) -> Video:
    """Return `Video.open(path)`, its frame times from the cache where this file was met before.

    Raises:
        DataError: the file is missing, not a video, truncated, or has no frames.
    """
    if not path.is_file() or not limit_bytes():
        return Video.open(path)

    def read() -> dict[str, NDArray]:
        video = Video.open(path)
        size = np.array([video.width, video.height])
        return {"times_s": video.times_s, "pts": video.pts, "size": size}

    key = {"version": VERSION, "av": av.__version__, "video": identity(path)}
    made = cached("frame-times", key, read)
    width, height = made["size"].tolist()
    return Video(path, made["times_s"], width, height, made["pts"])


def load_clips(
    banks: Sequence[Sequence[ClipWindow]], size: tuple[int, int]
) -> list[UInt8[Tensor, "frames height width 3"]]:
    """Return the frames of every bank, in order, at `size` (width, height): decoded at most once.

    The tensors are mapped from the cache: pages are read when used and held in memory only while
    there is room. Writing to one changes this process's copy, never the cache. What does not fit
    into `VERGENCE_CACHE_GB` beside the entries in use, or cannot be written, is decoded into
    memory, with one line on stderr. Progress is shown after two seconds on a terminal.

    Raises:
        ConfigError: VERGENCE_CACHE_GB is not a number.
        DataError: a video cannot be read, or changed while it was decoded.
    """
    limit = limit_bytes()
    store = Store(cache_folder() / "clips", limit)
    refused: list[str] = []
    out = []
    with _progress(sum(len(cut.rows) for cuts in banks for cut in cuts)) as progress:
        for cuts in banks:
            frames = _Frames(cuts, size, progress)
            if limit and frames.shape[0]:
                out.append(_kept(store, frames, refused))
            else:
                out.append(frames.in_memory())
    if refused:
        sys.stderr.write(f"decoded video is kept in memory, not in {store.folder}: {refused[0]}\n")
    return out


def _kept(store: Store, frames: _Frames, refused: list[str]) -> Tensor:
    try:
        return store.take(json.dumps(frames.key(), sort_keys=True), frames)
    except NoRoom as reason:
        refused.append(str(reason))
    except OSError as error:
        refused.append(error.strerror or str(error))
    return frames.in_memory()


@dataclass(frozen=True, eq=False)
class _Frames:
    """The frames of one bank, still to be decoded; see `clip_store.Source`."""

    cuts: Sequence[ClipWindow]
    size: tuple[int, int]
    progress: _Progress

    @property
    def shape(self) -> tuple[int, int, int, int]:
        width, height = self.size
        return sum(len(cut.rows) for cut in self.cuts), height, width, 3

    def key(self) -> Mapping[str, object]:
        """Return everything that the pixels depend on."""
        cuts = []
        for cut in self.cuts:
            rows = hashlib.sha256(np.ascontiguousarray(cut.rows, "<i8").tobytes()).hexdigest()
            cuts.append([identity(cut.path), type(cut.footage).__name__, len(cut.rows), rows])
        return {"version": VERSION, "av": av.__version__, "size": list(self.size), "cuts": cuts}

    def decode(self, start: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the frames from number `start` on, uint8 `[height, width, 3]`.

        Raises:
            DataError: a frame cannot be decoded, or a file changed meanwhile.
        """
        self.progress.advance(start)
        for cut in self.cuts:
            rows = cut.rows[start:]
            start = max(start - len(cut.rows), 0)
            if not len(rows):
                continue
            before = identity(cut.path)
            for frame in cut.footage.frames([int(row) for row in rows], *self.size):
                yield frame
                self.progress.advance(1)
            if identity(cut.path) != before:
                raise DataError(f"video {cut.path} changed while it was read; load it again")

    def found(self) -> None:
        """Count all frames as done: none had to be decoded."""
        self.progress.advance(self.shape[0])

    def in_memory(self) -> Tensor:
        rows = np.empty(self.shape, np.uint8)
        for row, frame in zip(rows, self.decode(0), strict=True):
            row[:] = frame
        return torch.from_numpy(rows)


@dataclass
class _Progress:
    """A bar on stderr that appears after two seconds, and only where a person is watching."""

    bar: Progress
    total: int
    started: float

    def advance(self, frames: int) -> None:
        late = time.monotonic() - self.started > PATIENCE_S
        self.bar.update(self.bar.task_ids[0], advance=frames, visible=late)


@contextmanager
def _progress(total: int) -> Iterator[_Progress]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        bar.add_task("decoding video", total=total, visible=False)
        yield _Progress(bar, total, time.monotonic())
