"""Anatomy of personal masks: by layer, over seeds and between people, against chance.

Used by `cli.model` and `studies.compare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from vergence.errors import StateError
from vergence.results.layout import number
from vergence.results.mask_files import Masks
from vergence.results.read import StudyResults, read

PAIRED = 300
"""People of a crowd, spread evenly, whose masks are compared in pairs: 45,000 a seed."""


@dataclass(frozen=True)
class Anatomy:
    """Statistics of one run's masks.

    Attributes:
        layers: entries and mean personal share over seeds and people, by layer.
        people: Jaccard index of two people's masks of one seed, mean over pairs of at most `PAIRED`
            people, and its value for random masks with as many entries of every tensor.
        seeds: the same for one person's masks of two seeds; NaN with one seed. Networks of two
            seeds start differently, so that only layers correspond, and not positions.
        layer_agreement: correlation over layers of the shares of two seeds; NaN with one seed.
    """

    name: str
    layers: dict[str, tuple[int, float]]
    people: tuple[float, float]
    seeds: tuple[float, float]
    layer_agreement: float


def anatomy(name: str, masks: Masks) -> Anatomy:
    """Measure a run's masks."""
    groups, sizes = masks.layers(), masks.sizes()
    shares = masks.shares(groups).mean(1)
    layers = {
        layer: (int(sizes[members].sum()), float(share))
        for (layer, members), share in zip(groups.items(), shares, strict=True)
    }
    here = masks.packed
    people = [
        ((s, a), (s, b))
        for s in masks.seeds
        for a, b in combinations(masks.some(PAIRED).people, 2)
        if (s, a) in here and (s, b) in here
    ]
    seeds = [
        ((s, p), (t, p))
        for p in masks.people
        for s, t in combinations(masks.seeds, 2)
        if (s, p) in here and (t, p) in here
    ]
    return Anatomy(name, layers, _overlap(masks, people), _overlap(masks, seeds), _agree(masks))


Pairs = Sequence[tuple[tuple[int, str], tuple[int, str]]]


def _overlap(masks: Masks, pairs: Pairs) -> tuple[float, float]:
    """Return the mean Jaccard index of pairs of masks, and its value by chance within tensors."""
    if not pairs:
        return float("nan"), float("nan")
    counts = {key: masks.counts(*key) for pair in pairs for key in pair}
    found, chance = [], []
    for one, other in pairs:
        both = np.bitwise_count(masks.packed[one] & masks.packed[other]).sum()
        sizes = counts[one].sum() + counts[other].sum()
        # Two random subsets of a and b of n entries share a b / n of them on average.
        expected = (counts[one] * counts[other] / masks.sizes()).sum()
        found.append(both / max(sizes - both, 1))
        chance.append(expected / max(sizes - expected, 1))
    return float(np.mean(found)), float(np.mean(chance))


def _agree(masks: Masks) -> float:
    """Return the mean correlation over tensors of two seeds' shares, averaged over people."""
    sizes = masks.sizes()
    if len(masks.seeds) < 2 or len(sizes) < 3:
        return float("nan")
    of_seed = [
        np.mean([masks.counts(*k) / sizes for k in masks.packed if k[0] == s], axis=0)
        for s in masks.seeds
    ]
    # Equal shares in all tensors, as of masks that are all or nothing, have no correlation.
    pairs = [(a, b) for a, b in combinations(of_seed, 2) if a.std() > 0 and b.std() > 0]
    return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in pairs])) if pairs else float("nan")


def shared_entries(study: StudyResults) -> list[str]:
    """Return a sentence on the overlap of masks of two methods, for at most four methods."""
    masked = [(run.title, run.masks) for run in study.runs if run.masks is not None][:4]
    found = []
    for (name, one), (another, other) in combinations(masked, 2):
        keys = one.packed.keys() & other.packed.keys()
        if one.shapes == other.shapes and keys:
            pairs = [(one.packed[key], other.packed[key]) for key in keys]
            both = [
                np.bitwise_count(a & b).sum() / max(np.bitwise_count(a | b).sum(), 1)
                for a, b in pairs
            ]
            found.append(f"{name} and {another} {number(float(np.mean(both)), 2)}")
    text = ", ".join(found)
    about = "Overlap of personal entries (Jaccard index, mean over people)"
    return [f"{about}: {text}."] if text else []


def print_anatomy(folder: Path, console: Console) -> None:
    """Print the anatomy of every run with masks in a folder.

    Raises:
        StateError: no run there has masks.
    """
    masked = [anatomy(run.title, run.masks) for run in read(folder).runs if run.masks is not None]
    if not masked:
        raise StateError(
            f"{folder} holds no masks: only methods that keep parameters at home have them "
            "(fedcpf, fedselect, fedper, fedrep, lg_fedavg, fedbn, fedpac)"
        )
    for part in by_layer(masked):
        console.print(part)
    console.print(agreement(masked))


def by_layer(anatomies: Sequence[Anatomy]) -> list[Table]:
    """Return the personal share of every layer, a row per layer; a table per network."""
    tables = []
    for layers in dict.fromkeys(tuple(a.layers) for a in anatomies):
        runs = [a for a in anatomies if tuple(a.layers) == layers]
        grid = Table("personal share of", "entries", *(a.name for a in runs))
        for name in layers:
            shares = (f"{a.layers[name][1]:.0%}" for a in runs)
            grid.add_row(name, f"{runs[0].layers[name][0]:,}", *shares)
        tables.append(grid)
    return tables


def agreement(anatomies: Sequence[Anatomy]) -> Table:
    """Return a table of the agreement of masks between people and over seeds, and by chance."""
    heads = (
        "Jaccard index of two masks",
        "two people",
        "chance",
        "two seeds",
        "chance",
        "layers over seeds (r)",
    )
    grid = Table(*heads)
    for a in anatomies:
        grid.add_row(a.name, *(number(v, 3) for v in (*a.people, *a.seeds, a.layer_agreement)))
    return grid
