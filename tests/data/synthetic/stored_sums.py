"""Weighted sums of generated numbers, stored once: a changed constant or sign moves them.

A sum tells more than a digest: processors round the last bits differently, and rounding is
allowed. If another generator was meant, raise its VERSION where it has one, and
`VERGENCE_GOLDEN=write python -m pytest tests/data/synthetic` stores the new sums.
"""

import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import torch

STORED = Path(__file__).with_name("sums.json")
EXACT, PICTURE = 1e-7, 2e-5
"""Allowed change of a sum, as a share of the sum of its terms' sizes: of numbers, and of pixels."""


def numbers(value) -> np.ndarray:
    """All numbers inside a value, one after another; of a record, those of its fields in order."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.astype(float).ravel()
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.uint8).astype(float)
    if value is None:
        return np.array([np.nan])
    if isinstance(value, int | float | np.number | np.bool_):
        return np.array([float(value)])
    return np.concatenate([np.empty(0), *map(numbers, value)])


def sums(value) -> list[float]:
    """Count of numbers, sum of the places that have none, weighted sum, and sum of the sizes."""
    flat = numbers(value)
    place = np.arange(1, len(flat) + 1)
    # Multiples of the golden ratio modulo 1: no two neighbours weigh nearly the same.
    weights = 2 * (place * 0.6180339887498949 % 1) - 1
    terms = np.where(np.isnan(flat), 0, flat) * weights
    return [len(flat), float(place[np.isnan(flat)].sum()), terms.sum(), np.abs(terms).sum()]


def assert_stored(name: str, value, allowed: float = EXACT) -> None:
    """Compare a value's sums with those stored under a name, or store them if asked to."""
    found = sums(value)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("VERGENCE_GOLDEN") == "write":
        stored[name] = [float(f"{number:.12g}") for number in found]
        STORED.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n")
    length, empty, total, size = stored[name]
    assert found[:2] == [length, empty], f"{name}: another number of values"
    assert abs(found[2] - total) <= allowed * size + 1e-9, f"{name}: other values"
    assert abs(found[3] - size) <= allowed * size + 1e-9, f"{name}: other values"
