"""Real eyes where they are, else the generator's; a few samples of many."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from vergence.core.data import Samples

FOLDERS = {"real": "eyes/mpiigaze_p00_36x60", "crops": "eyes/mpiigaze_9x15"}
"""Folders below VERGENCE_DATA."""


def eye_source(data: str) -> tuple[str, str]:
    """Return `data` and its folder, or "synthetic" where the folder is missing, and say so."""
    if data == "synthetic":
        return data, ""
    root = Path(os.environ.get("VERGENCE_DATA", "../shared/data")) / FOLDERS[data]
    if root.is_dir():
        return data, str(root)
    print(f"no real eyes at {root} (set VERGENCE_DATA): the generator's stand in")
    return "synthetic", ""


def spread(samples: Samples, most: int) -> Samples:
    """Return at most so many samples, evenly over all."""
    return samples.subset(spread_rows(samples, most))


def spread_rows(samples: Samples, most: int) -> torch.Tensor:
    """Return the numbers of at most so many samples, evenly over all."""
    return torch.linspace(0, len(samples) - 1, min(most, len(samples))).long()
