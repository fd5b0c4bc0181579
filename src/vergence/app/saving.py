"""Writing result files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vergence.errors import PartialRun


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside `path`; on success it takes the place of `path`.

    The scratch keeps the ending of `path`, by which writers choose a format.

    Raises:
        PartialRun: the file cannot be written (disk full, no permission); `path` is as before.
    """
    scratch = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        with scratch.open("rb+") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PartialRun(
            f"cannot write {path}: {reason}; free some space or choose another place"
        ) from error
    finally:
        with suppress(OSError):  # a read-only disk refuses to remove what is not there
            scratch.unlink(missing_ok=True)
