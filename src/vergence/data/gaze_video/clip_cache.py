"""Cache of decoded video on disk as uint8: decoded once, mapped into memory ever after.

An entry holds the frames of one bank: the chosen rows of one or more videos at one size. It is a
safetensors file with a SHA-256 per block of frames. Videos are told apart by size, time of last
change and a digest of four pieces of 64 KiB, head and tail among them: a full digest would read
every video whole on every load, and files that agree in all three but not in their pictures are not
met by accident (the tables of a video container, which count the bytes of every frame, lie at its
ends).

Its files are bounded, checksummed, resumable and shared. An entry is `KEY.safetensors`. While it is
made it is `KEY.part`, of its final size, with zeros for the digests of the blocks that are still
missing: whoever comes next goes on behind the last block that is intact. `KEY.lock` is held by the
one process that makes it. A process that has an entry mapped holds a shared lock on it (`flock`,
which ends with the mapping, whatever ends the process), so that only entries nobody uses are
removed to make room.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from vergence.core.files import parse_json
from vergence.data.io.checks import PATIENCE_S
from vergence.data.io.generated_cache import cache_folder, cached
from vergence.data.io.video import Footage, Video
from vergence.errors import ConfigError, DataError
from vergence.system.file_access import BINARY
from vergence.system.file_locks import lock, lock_shared, try_lock, try_lock_shared_by_none

VERSION = 4
"""Part of every key: raise it when the same video should give other pixels."""
LIMIT_GB = 20.0
SLICES, SLICE_BYTES = 4, 1 << 16
BLOCK_BYTES = 16 << 20
"""Frames are checked and resumed in blocks of at most this many bytes, or one frame."""
PAGE = 4096
MISSING = "0" * 64


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
        # Numbers of one kind each: pixels and signs are whole, the start is not.
        shown = np.array([video.width, video.height, *map(int, video.orientation)])
        start = np.array([video.start_s])
        return {"times_s": video.times_s, "pts": video.pts, "shown": shown, "start_s": start}

    key = {"version": VERSION, "av": av.__version__, "video": identity(path)}
    made = cached("frame-times", key, read)
    width, height, across, down, turned = made["shown"].tolist()
    (start,) = made["start_s"].tolist()
    orientation = (across, down, bool(turned))
    return Video(path, made["times_s"], width, height, made["pts"], orientation, start_s=start)


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
    """The frames of one bank, still to be decoded."""

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


class NoRoom(Exception):
    """An entry does not fit into the limit beside those in use."""


@dataclass(frozen=True)
class Store:
    """A folder of entries that together take at most `limit` bytes."""

    folder: Path
    limit: int

    def take(self, key: str, source: _Frames) -> UInt8[Tensor, "frames height width 3"]:
        """Return the entry of this key, mapped; made from `source` where no intact one is there.

        Raises:
            DataError: a video cannot be decoded.
            NoRoom: the limit leaves no room for it.
            OSError: the folder cannot be used.
        """
        # Pictures of people's surroundings: nobody else's to see.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        path = self.folder / f"{name}.safetensors"
        layout = _StoreLayout(key, source.shape)
        mapped = _mapped(path, layout)
        if mapped is None:
            with _alone(path.with_suffix(".lock")):
                # Somebody else may have made it while this process waited.
                mapped = _mapped(path, layout)
                if mapped is None:
                    self._make(path, layout, source)
                    return _map(path, layout)
        source.found()
        return mapped

    def _make(self, path: Path, layout: _StoreLayout, source: _Frames) -> None:
        part = path.with_suffix(".part")
        handle = os.open(part, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        try:
            with os.fdopen(handle, "r+b") as file:
                done = _intact(file, layout)
                if not done:
                    self._reserve(file, part, layout)
                _fill(file, layout, done, source)
                os.fsync(file.fileno())
        except (DataError, NoRoom, OSError):
            part.unlink(missing_ok=True)
            raise
        part.replace(path)

    def _reserve(self, file: BinaryIO, part: Path, layout: _StoreLayout) -> None:
        """Make room for the entry by removing those used longest ago, and claim it."""
        file.truncate(0)
        if layout.bytes > self.limit:
            raise NoRoom(f"needs {_gb(layout.bytes)}, VERGENCE_CACHE_GB allows {_gb(self.limit)}")
        with _alone(self.folder / "room.lock"), ExitStack() as held:
            entries = [(p.stat(), p) for p in self.folder.iterdir() if p.suffix in _KINDS]
            used = sum(found.st_size for found, _ in entries)
            chosen: list[Path] = []
            for found, path in sorted(entries, key=lambda entry: entry[0].st_mtime_ns):
                if used + layout.bytes <= self.limit:
                    break
                if path != part and _unused(path, held):
                    chosen.append(path)
                    used -= found.st_size
            if used + layout.bytes > self.limit:
                raise NoRoom(
                    f"needs {_gb(layout.bytes)}, VERGENCE_CACHE_GB allows {_gb(self.limit)} and "
                    f"{_gb(used)} are in use"
                )
            for path in chosen:
                path.unlink(missing_ok=True)
            file.truncate(layout.bytes)


_KINDS = (".safetensors", ".part")


@dataclass(frozen=True)
class _StoreLayout:
    """Layout of an entry: header, blocks and frames."""

    key: str
    shape: tuple[int, int, int, int]

    @property
    def frame_bytes(self) -> int:
        return int(np.prod(self.shape[1:]))

    @property
    def per_block(self) -> int:
        return max(BLOCK_BYTES // self.frame_bytes, 1)

    @property
    def blocks(self) -> int:
        return -(-self.shape[0] // self.per_block)

    @property
    def offset(self) -> int:
        return len(self.header([MISSING] * self.blocks))

    @property
    def bytes(self) -> int:
        return self.offset + self.shape[0] * self.frame_bytes

    def header(self, digests: list[str]) -> bytes:
        """Return the head of a safetensors file; its length does not depend on the digests."""
        about = {
            # One string: the file format keeps no order among several.
            "__metadata__": {"made": "".join(digests) + " " + self.key},
            "frames": {
                "dtype": "U8",
                "shape": list(self.shape),
                "data_offsets": [0, self.shape[0] * self.frame_bytes],
            },
        }
        text = json.dumps(about, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % PAGE)
        return struct.pack("<Q", len(text)) + text

    def digests(self, head: bytes) -> list[str] | None:
        """Return the digests in a header, None where it is damaged or of another entry."""
        try:
            made = parse_json(head[8:])["__metadata__"]["made"]
        except (ValueError, KeyError, TypeError):
            return None
        size = self.blocks * 64
        found = [made[at : at + 64] for at in range(0, size, 64)]
        return found if head == self.header(found) else None


def _mapped(path: Path, layout: _StoreLayout) -> Tensor | None:
    """Return an entry, None where there is none or it is damaged."""
    try:
        found = _map(path, layout)
    except FileNotFoundError:
        return None
    except ValueError:
        sys.stderr.write(f"decoded video {path} is damaged: decoding it again\n")
        return None
    # Which entry was used last decides which one goes first.
    with suppress(OSError):
        os.utime(path)
    return found


def _map(path: Path, layout: _StoreLayout) -> Tensor:
    """Map an entry and hold it; raises ValueError where a digest is wrong."""
    with path.open("rb") as file:
        lock_shared(file)
        # Through the file, not the mapping: pages that were only checked are not this process's.
        if _intact(file, layout) < layout.blocks:
            raise ValueError
        # Copy on write: torch wants memory it may write to, and the file must not change.
        return torch.from_numpy(np.memmap(file, np.uint8, "c", layout.offset, layout.shape))


def _intact(file: BinaryIO, layout: _StoreLayout) -> int:
    """Number of blocks that an entry holds, up to the first that is missing or damaged."""
    # A file shorter than its mapping would end the process with a bus error.
    if os.fstat(file.fileno()).st_size != layout.bytes:
        return 0
    digests = layout.digests(file.read(layout.offset)) or []
    size = layout.per_block * layout.frame_bytes
    for number, digest in enumerate(digests):
        if hashlib.sha256(file.read(size)).hexdigest() != digest:
            return number
    return len(digests)


def _fill(file: BinaryIO, layout: _StoreLayout, done: int, source: _Frames) -> None:
    """Decode what is missing, block by block; a block counts once its digest is written."""
    file.seek(0)
    kept = layout.digests(file.read(layout.offset)) or []
    digests = [*kept[:done], *[MISSING] * (layout.blocks - done)]
    frames = source.decode(done * layout.per_block)
    for number in range(done, layout.blocks):
        data = np.stack(list(islice(frames, layout.per_block))).tobytes()
        digests[number] = hashlib.sha256(data).hexdigest()
        file.seek(layout.offset + number * layout.per_block * layout.frame_bytes)
        file.write(data)
        file.seek(0)
        file.write(layout.header(digests))
        file.flush()
    # Run to its end: there the source makes sure that the videos are still the same.
    next(frames, None)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for whoever has it."""
    while True:
        file = path.open("a", encoding="utf-8")
        lock(file)
        if _is(path, file.fileno()):
            break
        file.close()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _unused(path: Path, held: ExitStack) -> bool:
    """True if nobody has an entry mapped or is making it; it is kept so."""
    locked = path.with_suffix(".lock") if path.suffix == ".part" else path
    try:
        file = held.enter_context(locked.open("rb" if locked == path else "ab"))
        if not (try_lock_shared_by_none if locked == path else try_lock)(file):
            return False
    except OSError:
        return False
    if locked != path:
        held.callback(locked.unlink, missing_ok=True)
    return _is(locked, file.fileno())


def _is(path: Path, handle: int) -> bool:
    """True if an open file is still the one with this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
