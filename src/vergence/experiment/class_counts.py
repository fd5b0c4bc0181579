"""Class counts: numbers of everybody's training samples of each class, in classes.csv.

Used by `experiment.run` and `studies.class_partition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from vergence.core.federation import Federation
from vergence.results.layout import TABLES
from vergence.results.write import write_csv

MOST = 100
"""Most people that fit into a picture of the table."""
FILE = "classes.csv"
Counts = Mapping[str, Mapping[str, int]]
"""Person -> class -> training samples; every person has all classes, in the order of labels."""


def counts(federation: Federation) -> Counts | None:
    """Count each person's training samples by their `label`; None for samples without labels."""
    label = next(iter(federation.people.values())).train.columns.get("label")
    if label is None or label.dtype != torch.int64 or label.ndim != 1:
        return None
    rows = {p: s.train.columns["label"].bincount() for p, s in federation.people.items()}
    names = federation.about.get("classes", "").split(", ")
    width = max(len(names), *(len(own) for own in rows.values()))
    # A data set may name fewer classes than its labels use: numbers are never wrong.
    names = names if len(names) == width else [str(number) for number in range(width)]
    return {
        p: dict(
            zip(names, torch.nn.functional.pad(own, (0, width - len(own))).tolist(), strict=True)
        )
        for p, own in rows.items()
    }


def write(path: Path, federation: Federation) -> None:
    """Write classes.csv (`person,class,samples`) if a picture of it can be drawn."""
    if len(federation.people) > MOST or (classes := counts(federation)) is None:
        return
    rows = ((p, kind, n) for p, own in classes.items() for kind, n in own.items())
    write_csv(path, TABLES[FILE], rows)
