"""Cache of decoded video on disk: frames are decoded once, then mapped into memory as uint8.

A bank is an array of frames that samples refer to by row. A cache entry holds one bank: chosen
frames of one or more videos, resized to one size. The entry is a safetensors file with a SHA-256
for each block of frames. A video file is identified by its size, its time of last change and a
digest of four slices of 64 KiB, the first and the last among them.

An entry is the file `KEY.safetensors`. While a process decodes the frames, the file is `KEY.part`.
The part file has the final size, and zeros for the digests of missing blocks. After an interruption
the next process continues behind the last intact block. The process that makes an entry holds
`KEY.lock`; other processes wait. All entries together have a size limit: the entries that were used
longest ago are removed to make room. A process that has an entry mapped holds a shared `flock` on
it, so that only unused entries are removed. The lock ends with the process, even after a crash.

Used by `data.gaze_video.gaze_table`, `data.gaze_video.recording` and `data.saliency.stimuli`.
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
"""Part of every key; raise it if the same video is to give other pixels than before."""
LIMIT_GB = 20.0
# A full digest would read every video whole on every load. The tables of a container, which count
# the bytes of every frame, lie at its ends: other pictures change one of these pieces or the size.
SLICES, SLICE_BYTES = 4, 1 << 16
BLOCK_BYTES = 16 << 20
"""Most bytes of a block, the unit with one digest; a larger frame is a block of its own."""
# Memory is mapped in pages: the header fills whole ones, so that frames begin at one.
PAGE = 4096
NO_DIGEST = "0" * 64


@dataclass(frozen=True, eq=False)
class ClipWindow:
    """Some frames of one video file.

    `rows` int64 holds the ascending numbers of the frames in `footage`; `path` is the file.
    """

    path: Path
    footage: Footage
    rows: NDArray[np.int64]


def limit_bytes() -> int:
    """Return the size limit of the cache of decoded video, in bytes.

    It is `VERGENCE_CACHE_GB` gigabytes, by default 20. With 0, nothing is written to disk.
    `load_clips` and `open_video` call this.

    Raises:
        ConfigError: the variable is not a number of 0 or more.
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
    """Return a text that identifies a file's content: size, time of last change, and a digest.

    Files of up to 256 KiB are digested whole, larger files in four slices of 64 KiB. The file's
    name is not part of the text. So a file that was moved, and kept its time of change, keeps its
    cache entries.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        status = path.stat()
        return _identity(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise DataError(
            f"video {path} cannot be read ({error.strerror}); give the path of an existing file"
        ) from None


@lru_cache(maxsize=16384)
def _identity(path: Path, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256()
    last = max(size - SLICE_BYTES, 0)
    with path.open("rb") as file:
        if size <= SLICES * SLICE_BYTES:
            digest.update(file.read())
        else:
            for number in range(SLICES):
                file.seek(last * number // (SLICES - 1))
                digest.update(file.read(SLICE_BYTES))
    return f"{size} {mtime_ns} {digest.hexdigest()}"


def open_video(path: Path) -> Video:
    """Return `Video.open(path)`; after the first call, frame times come from the cache.

    Raises:
        DataError: the file is missing, not a video, truncated, or has no frames.
    """
    if not path.is_file() or not limit_bytes():
        return Video.open(path)

    def read() -> dict[str, NDArray]:
        video = Video.open(path)
        # Two arrays, because pixels and signs are integers and the start is not.
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
    """Return the frames of every bank, in order, resized to `size` (width, height) in pixels.

    The tensors are mapped from the cache; frames are decoded only if the cache lacks them. Pages of
    memory are read when used, and are released when memory is short. Writing to a tensor changes
    only this process's copy, never the cache.

    Frames are decoded into memory if they do not fit into `VERGENCE_CACHE_GB` together with the
    entries in use, or if they cannot be written. A line on stderr reports this. On a terminal, a
    progress bar appears after two seconds.

    Raises:
        ConfigError: VERGENCE_CACHE_GB is not a number of 0 or more.
        DataError: a video cannot be read, or changed while it was decoded.
    """
    limit = limit_bytes()
    store = Store(cache_folder() / "clips", limit)
    refused: list[str] = []
    out = []
    with _progress(sum(len(cut.rows) for cuts in banks for cut in cuts)) as progress:
        for cuts in banks:
            frames = _Frames(cuts, size, progress)
            stored = limit and frames.shape[0]
            out.append(_stored_or_decoded(store, frames, refused) if stored else frames.in_memory())
    if refused:
        sys.stderr.write(f"decoded video is kept in memory, not in {store.folder}: {refused[0]}\n")
    return out


def _stored_or_decoded(store: Store, frames: _Frames, refused: list[str]) -> Tensor:
    # Without a cache the data are the same, and loading only takes longer.
    try:
        return store.take(json.dumps(frames.key(), sort_keys=True), frames)
    except NoRoom as reason:
        refused.append(str(reason))
    except OSError as error:
        refused.append(error.strerror or str(error))
    return frames.in_memory()


@dataclass(frozen=True, eq=False)
class _Frames:
    """The frames that the samples of a recording share; those not in the cache are decoded."""

    cuts: Sequence[ClipWindow]
    size: tuple[int, int]
    progress: _Progress

    @property
    def shape(self) -> tuple[int, int, int, int]:
        width, height = self.size
        return sum(len(cut.rows) for cut in self.cuts), height, width, 3

    def key(self) -> Mapping[str, object]:
        """Return the key of the bank's cache entry: everything on which the pixels depend."""
        cuts = []
        for cut in self.cuts:
            rows = hashlib.sha256(np.ascontiguousarray(cut.rows, "<i8").tobytes()).hexdigest()
            cuts.append([identity(cut.path), type(cut.footage).__name__, len(cut.rows), rows])
        return {"version": VERSION, "av": av.__version__, "size": list(self.size), "cuts": cuts}

    def decode(self, start: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the bank's frames from number `start` on, each uint8 `[height, width, 3]`.

        Raises:
            DataError: a frame cannot be decoded, or a file changed while it was decoded.
        """
        self.progress.advance(start)
        for cut in self.cuts:
            rows = cut.rows[start:]
            start = max(start - len(cut.rows), 0)
            if not len(rows):
                continue
            # A copy that is still under way would leave an entry with half its pictures.
            before = identity(cut.path)
            for frame in cut.footage.frames([int(row) for row in rows], *self.size):
                yield frame
                self.progress.advance(1)
            if identity(cut.path) != before:
                raise DataError(f"video {cut.path} changed while it was read; load it again")

    def in_memory(self) -> Tensor:
        rows = np.empty(self.shape, np.uint8)
        for row, frame in zip(rows, self.decode(0), strict=True):
            row[:] = frame
        return torch.from_numpy(rows)


@dataclass
class _Progress:
    """Progress bar on stderr, if that is a terminal; it appears after two seconds."""

    bar: Progress
    started: float

    def advance(self, frames: int) -> None:
        late = time.monotonic() - self.started > PATIENCE_S
        self.bar.update(self.bar.task_ids[0], advance=frames, visible=late)


@contextmanager
def _progress(total: int) -> Iterator[_Progress]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        bar.add_task("decoding video", total=total, visible=False)
        yield _Progress(bar, time.monotonic())


class NoRoom(Exception):
    """Raised if an entry does not fit into the size limit together with the entries in use."""


@dataclass(frozen=True)
class Store:
    """Folder of cache entries that take at most `limit` bytes together."""

    folder: Path
    limit: int

    def take(self, key: str, source: _Frames) -> UInt8[Tensor, "frames height width 3"]:
        """Return the entry of this key, mapped into memory.

        If there is no intact entry, it is first made from the frames of `source`.

        Raises:
            DataError: a video cannot be decoded.
            NoRoom: the limit leaves no room for the entry.
            OSError: the folder cannot be used.
        """
        # Pictures of people's surroundings: other users of this machine must not read them.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        path = self.folder / f"{name}.safetensors"
        layout = _StoreLayout(key, source.shape)
        if (mapped := _map_if_intact(path, layout)) is None:
            with _exclusive_lock(path.with_suffix(".lock")):
                # Another process may have made it while this one waited for the lock.
                if (mapped := _map_if_intact(path, layout)) is None:
                    self._make(path, layout, source)
                    return _map_entry(path, layout)
        source.progress.advance(source.shape[0])
        return mapped

    def _make(self, path: Path, layout: _StoreLayout, source: _Frames) -> None:
        part = path.with_suffix(".part")
        handle = os.open(part, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        try:
            with os.fdopen(handle, "r+b") as file:
                done = _count_intact_blocks(file, layout)
                if not done:
                    self._reserve(file, part, layout)
                _decode_missing_blocks(file, layout, done, source)
                os.fsync(file.fileno())
        # Only an interrupted process leaves its part behind, to be resumed.
        except (DataError, NoRoom, OSError):
            part.unlink(missing_ok=True)
            raise
        part.replace(path)

    def _reserve(self, file: BinaryIO, part: Path, layout: _StoreLayout) -> None:
        """Make room for an entry, and set its part file to the final size.

        Unused entries are removed, those used longest ago first.

        Raises:
            NoRoom: the limit leaves no room for the entry.
        """
        file.truncate(0)
        if layout.bytes > self.limit:
            raise NoRoom(f"needs {_gb(layout.bytes)}, VERGENCE_CACHE_GB allows {_gb(self.limit)}")
        with _exclusive_lock(self.folder / "room.lock"), ExitStack() as locks:
            entries = [(p.stat(), p) for p in self.folder.iterdir() if p.suffix in _KINDS]
            used = sum(status.st_size for status, _ in entries)
            removable: list[Path] = []
            for status, path in sorted(entries, key=lambda entry: entry[0].st_mtime_ns):
                if used + layout.bytes <= self.limit:
                    break
                if path != part and _lock_if_unused(path, locks):
                    removable.append(path)
                    used -= status.st_size
            if used + layout.bytes > self.limit:
                raise NoRoom(
                    f"needs {_gb(layout.bytes)}, VERGENCE_CACHE_GB allows {_gb(self.limit)} and "
                    f"{_gb(used)} are in use"
                )
            # Only now: an entry that does not fit anyway must not cost the others.
            for path in removable:
                path.unlink(missing_ok=True)
            file.truncate(layout.bytes)


_KINDS = (".safetensors", ".part")


@dataclass(frozen=True)
class _StoreLayout:
    """Layout of an entry's file: a header, then the frames in blocks."""

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
        return len(self.header([NO_DIGEST] * self.blocks))

    @property
    def bytes(self) -> int:
        return self.offset + self.shape[0] * self.frame_bytes

    def header(self, digests: list[str]) -> bytes:
        """Return the header of the safetensors file; its length does not depend on the digests."""
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
        """Return the blocks' digests in a header.

        The result is None if the header is damaged or belongs to another entry.
        """
        try:
            made = parse_json(head[8:])["__metadata__"]["made"]
        except (ValueError, KeyError, TypeError):
            return None
        digests = [made[at : at + 64] for at in range(0, self.blocks * 64, 64)]
        return digests if head == self.header(digests) else None


def _map_if_intact(path: Path, layout: _StoreLayout) -> Tensor | None:
    """Return an entry mapped into memory; None if it does not exist, or is damaged."""
    try:
        frames = _map_entry(path, layout)
    except FileNotFoundError:
        return None
    except ValueError:
        sys.stderr.write(f"decoded video {path} is damaged: decoding it again\n")
        return None
    # The entry that was used longest ago is removed first.
    with suppress(OSError):
        os.utime(path)
    return frames


def _map_entry(path: Path, layout: _StoreLayout) -> Tensor:
    """Return an entry mapped into memory, and lock its file against removal.

    Raises:
        ValueError: a block's digest is wrong.
    """
    with path.open("rb") as file:
        lock_shared(file)
        # Read through the file: pages of the mapping would count as memory of this process.
        if _count_intact_blocks(file, layout) < layout.blocks:
            raise ValueError
        # Copy on write: torch wants memory it may write to, and the file must not change.
        return torch.from_numpy(np.memmap(file, np.uint8, "c", layout.offset, layout.shape))


def _count_intact_blocks(file: BinaryIO, layout: _StoreLayout) -> int:
    """Return the number of blocks before the first one that is missing or damaged."""
    # A file shorter than its mapping would end the process with a bus error.
    if os.fstat(file.fileno()).st_size != layout.bytes:
        return 0
    digests = layout.digests(file.read(layout.offset)) or []
    size = layout.per_block * layout.frame_bytes
    for number, digest in enumerate(digests):
        if hashlib.sha256(file.read(size)).hexdigest() != digest:
            return number
    return len(digests)


def _decode_missing_blocks(
    file: BinaryIO, layout: _StoreLayout, done: int, source: _Frames
) -> None:
    """Decode and write the blocks from number `done` on, one after the other.

    A block's digest is written after the block. So after an interruption, a block without its
    digest counts as missing.
    """
    file.seek(0)
    written = layout.digests(file.read(layout.offset)) or []
    digests = [*written[:done], *[NO_DIGEST] * (layout.blocks - done)]
    frames = source.decode(done * layout.per_block)
    for number in range(done, layout.blocks):
        data = np.stack(list(islice(frames, layout.per_block))).tobytes()
        digests[number] = hashlib.sha256(data).hexdigest()
        file.seek(layout.offset + number * layout.per_block * layout.frame_bytes)
        file.write(data)
        # The digest comes after its block: an interruption in between leaves the block missing.
        file.seek(0)
        file.write(layout.header(digests))
        file.flush()
    # Run to its end, where the source checks that no video changed meanwhile.
    next(frames, None)


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Wait for a lock file that other processes may hold, hold it, and remove it afterwards."""
    while True:
        file = path.open("a", encoding="utf-8")
        lock(file)
        # The process before may have removed the file: a lock on a removed file keeps nobody out.
        if _is_same_file(path, file.fileno()):
            break
        file.close()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _lock_if_unused(path: Path, locks: ExitStack) -> bool:
    """Lock an entry's file if no process uses it; return whether it was locked.

    A process uses an entry while it makes the entry, or has mapped it into memory. `locks` releases
    the lock.
    """
    locked = path.with_suffix(".lock") if path.suffix == ".part" else path
    try:
        file = locks.enter_context(locked.open("rb" if locked == path else "ab"))
        if not (try_lock_shared_by_none if locked == path else try_lock)(file):
            return False
    except OSError:
        return False
    if locked != path:
        locks.callback(locked.unlink, missing_ok=True)
    return _is_same_file(locked, file.fileno())


def _is_same_file(path: Path, handle: int) -> bool:
    """Return whether an open file, given by its handle, is still the file at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
