"""Cache on disk of computed arrays: generated data, eye patches, features of frozen networks.

Used by `data.eye_images.mpiifacegaze`, `data.gaze_video.clip_cache`, `data.images.cifar10`,
`data.synthetic.ego.ego_synthetic`, `data.synthetic.eyes.eye_synthetic` and `models.pretrained`.
"""

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
    """Return the cache folder: that of the variable `VERGENCE_CACHE`, else `~/.cache/vergence`."""
    return Path(os.environ.get("VERGENCE_CACHE") or Path.home() / ".cache" / "vergence")


def cached(dataset: str, key: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of `make()`, from the cache if it has an intact copy.

    `key` holds everything on which the arrays depend, with the version number of the code that
    makes them. A damaged file is replaced. If the folder cannot be written, the arrays are made
    again every time. A line on stderr reports either case.
    """
    text = json.dumps(key, sort_keys=True)
    path = (
        cache_folder() / f"{dataset}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.safetensors"
    )
    if (arrays := _read(path, text)) is None:
        arrays = make()
        _write(path, text, arrays)
    return arrays


def _label(text: str, arrays: Arrays) -> str:
    """Return the text that identifies arrays in their file: a digest of them, and their key."""
    # One string: the file format keeps no order among several.
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
    # Also where the folder may not be entered: writing the file tells the user.
    except FileNotFoundError:
        return None
    # A damaged file is replaced, see the line on stderr below.
    except (OSError, SafetensorError):
        pass
    sys.stderr.write(f"cached data {path} are damaged: making them again\n")
    return None


def _write(path: Path, text: str, arrays: Arrays) -> None:
    """Write the arrays to their file in the cache."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # Under another name and then renamed, so that no reader meets half a file.
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
