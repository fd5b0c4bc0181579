"""Cache of generated data, so that the same options need not be generated twice."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

Arrays = dict[str, NDArray]


def cache_folder() -> Path:
    """Path of the folder of generated data: `VERGENCE_CACHE`, else `~/.cache/vergence`."""
    return Path(os.environ.get("VERGENCE_CACHE") or Path.home() / ".cache" / "vergence")


def cached(dataset: str, key: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of `make()`, from the cache where an intact copy lies there.

    `key` holds everything the arrays depend on, the generator's version included. A damaged file
    is made anew; a folder that cannot be written only costs the time of generating again.
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
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return f"{digest.hexdigest()} {text}"


def _read(path: Path, text: str) -> Arrays | None:
    try:
        with safe_open(path, framework="numpy") as file:
            about = (file.metadata() or {}).get("made")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    return arrays if about == _label(text, arrays) else None


def _write(path: Path, text: str, arrays: Arrays) -> None:
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    payload = save(whole, metadata={"made": _label(text, whole)})
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
        Path(temporary).replace(path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
