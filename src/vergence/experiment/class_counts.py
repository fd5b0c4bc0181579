"""Class counts: number of each person's training samples of each class, in classes.csv.

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
"""Largest number of people for whom a picture of the table can be drawn."""
FILE = "classes.csv"
Counts = Mapping[str, Mapping[str, int]]
"""Number of training samples, by person and class; all classes are there, in order of labels."""


def counts(federation: Federation) -> Counts | None:
    """Count each person's training samples of each class.

    Return None if the data have no column `label` with one integer per sample.
    """
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
    """Write classes.csv (`person,class,samples`).

    Nothing is written if the data have no classes, or more people than a picture can show.
    """
    if len(federation.people) > MOST or (classes := counts(federation)) is None:
        return
    rows = ((p, kind, n) for p, own in classes.items() for kind, n in own.items())
    write_csv(path, TABLES[FILE], rows)
