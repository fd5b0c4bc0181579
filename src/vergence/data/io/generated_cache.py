"""Cache of computed arrays: generated data, patches, frozen features."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

Arrays = dict[str, NDArray]


def cache_folder() -> Path:
    """Path of the folder of generated data: `VERGENCE_CACHE`, else `~/.cache/vergence`."""
    return Path(os.environ.get("VERGENCE_CACHE") or Path.home() / ".cache" / "vergence")


def cached(dataset: str, key: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of `make()`, from the cache where an intact copy lies there.

    `key` holds everything the arrays depend on, the generator's version included. A damaged file
    is made anew; a folder that cannot be written only costs the time of making them again. Either
    is said in one line on stderr.
    """
    text = json.dumps(key, sort_keys=True)
    path = (
        cache_folder() / f"{dataset}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.safetensors"
    )
    found = _read(path, text)
    if found is None:
        found = make()
        _write(path, text, found)
    return found


def _label(text: str, arrays: Arrays) -> str:
    """Return one string, as the file format keeps no order among several."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return f"{digest.hexdigest()} {text}"


def _read(path: Path, text: str) -> Arrays | None:
    try:
        with safe_open(path, framework="numpy") as file:
            about = (file.metadata() or {}).get("made")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about == _label(text, arrays):
            return arrays
    except FileNotFoundError:  # also where the folder may not be entered: writing will say so
        return None
    except (OSError, SafetensorError):
        pass
    sys.stderr.write(f"cached data {path} are damaged: making them again\n")
    return None


def _write(path: Path, text: str, arrays: Arrays) -> None:
    """Write beside the target and rename, so that no reader meets half a file."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    part: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
        os.close(handle)
        save_file(whole, part, {"made": _label(text, whole)})
        Path(part).replace(path)
    except (OSError, SafetensorError) as error:
        sys.stderr.write(f"data are not cached: {path}: {error}\n")
        if part is not None:
            Path(part).unlink(missing_ok=True)
