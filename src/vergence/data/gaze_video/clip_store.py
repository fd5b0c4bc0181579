"""The files behind the cache of decoded video: bounded, checksummed, resumable, shared.

An entry is `KEY.safetensors`. While it is made it is `KEY.part`, of its final size, with zeros for
the digests of the blocks that are still missing: whoever comes next goes on behind the last block
that is intact. `KEY.lock` is held by the one process that makes it. A process that has an entry
mapped holds a shared lock on it (`flock`, which ends with the mapping, whatever ends the process),
so that only entries nobody uses are removed to make room.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.files import parse_json
from vergence.errors import DataError

BLOCK_BYTES = 16 << 20
"""Frames are checked and resumed in blocks of at most this many bytes, or one frame."""
PAGE = 4096
MISSING = "0" * 64


class NoRoom(Exception):
    """An entry does not fit into the limit beside those in use."""


class ClipSource(Protocol):
    """Frames to be decoded, all of one size."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`[frames, height, width, 3]`."""
        ...

    def decode(self, start: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the frames from number `start` on."""
        ...

    def found(self) -> None:
        """Note that nothing had to be decoded."""
        ...


@dataclass(frozen=True)
class Store:
    """A folder of entries that together take at most `limit` bytes."""

    folder: Path
    limit: int

    def take(self, key: str, source: ClipSource) -> UInt8[Tensor, "frames height width 3"]:
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

    def _make(self, path: Path, layout: _StoreLayout, source: ClipSource) -> None:
        part = path.with_suffix(".part")
        handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
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
    with contextlib.suppress(OSError):
        os.utime(path)
    return found


def _map(path: Path, layout: _StoreLayout) -> Tensor:
    """Map an entry and hold it; raises ValueError where a digest is wrong."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
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


def _fill(file: BinaryIO, layout: _StoreLayout, done: int, source: ClipSource) -> None:
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
        file = path.open("a")
        fcntl.flock(file, fcntl.LOCK_EX)
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
    lock = path.with_suffix(".lock") if path.suffix == ".part" else path
    try:
        file = held.enter_context(lock.open("rb" if lock == path else "ab"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if lock != path:
        held.callback(lock.unlink, missing_ok=True)
    return _is(lock, file.fileno())


def _is(path: Path, handle: int) -> bool:
    """True if an open file is still the one with this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
