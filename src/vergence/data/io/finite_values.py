"""Check for NaN and infinite numbers in a data set, before training.

Used by `adaptation.own_data`, `cli.data_check` and `experiment.schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation, Population
from vergence.core.serialization import is_finite
from vergence.errors import DataError

PARTS = {"train": "training", "val": "validation", "test": "test"}


def check_finite(federation: Federation, *, tested: bool = True) -> None:
    """Check that all numbers of a federation are finite.

    NaN is allowed in the columns of `Federation.missing`, where it means that nothing was recorded.
    Infinity is never allowed. If people are generated on demand, only the first and the last person
    are checked. If `tested` is false, test samples are not checked.

    Raises:
        DataError: a number is NaN or infinite, a person has something other than samples, columns
            differ in length, or a number of a shared row has no row; the message names the person
            and the column.
    """
    where = f"data set '{federation.name}'"
    people: Mapping[str, Any] = federation.people
    if isinstance(people, Population):
        # There may be thousands of them, and each would be made for this check alone.
        people = {client: people[client] for client in (people.ids[0], people.ids[-1])}
    seen: set[int] = set()
    for person, splits in people.items():
        whose = f"{where}: person {person!r}"
        if not isinstance(splits, Splits):
            raise DataError(
                f"{whose} has a {type(splits).__name__}: give Splits of Samples", code="file-layout"
            )
        for part, called in PARTS.items():
            if part == "test" and not tested:
                continue
            _check(getattr(splits, part), f"{whose}, {called} samples", federation.missing, seen)
    if federation.proxies is not None:
        for part in ("train", "val"):
            samples = getattr(federation.proxies, part)
            _check(samples, f"{where}: {PARTS[part]} samples of nobody", federation.missing, seen)


def _check(samples: Any, whose: str, missing: frozenset[str], seen: set[int]) -> None:
    if not isinstance(samples, Samples):
        raise DataError(
            f"{whose} are a {type(samples).__name__}: give Samples({{'name': tensor, ...}})",
            code="file-layout",
        )
    for name, values in _arrays(samples):
        if not isinstance(values, Tensor):
            raise DataError(
                f"{whose}: {name!r} is a {type(values).__name__}: give a tensor", code="file-layout"
            )
        # Many people share the rows of a bank: it is checked once.
        if values.data_ptr() in seen and name in samples.banks:
            continue
        seen.add(values.data_ptr())
        numbers = torch.where(values.isnan(), 0, values) if name in missing else values
        if not is_finite(numbers):
            flat = numbers.flatten(1) if numbers.ndim > 1 else numbers.reshape(-1, 1)
            wrong = ~flat.isfinite()
            bad = wrong.any(1)
            row = int(bad.nonzero()[0])
            value = float(flat[row][wrong[row]][0])
            raise DataError(
                f"{whose}: {name!r} is {value} in row {row} ({int(bad.sum())} of {len(flat)} rows "
                "have no finite number): mend these rows or leave them out",
                code="bad-value",
            )

    rows = {name: len(column) for name, column in samples.columns.items()}
    if len(set(rows.values())) > 1:
        lengths = ", ".join(f"{name!r} {count}" for name, count in rows.items())
        raise DataError(
            f"{whose}: columns differ in length ({lengths} rows): give each a row a sample",
            code="unequal-lengths",
        )
    for name, bank in samples.banks.items():
        numbers = samples.columns[bank.by]
        # Torch would count a negative number from the end.
        if numbers.numel() and not 0 <= numbers.min() <= numbers.max() < len(bank.rows):
            raise DataError(
                f"{whose}: {bank.by!r} has numbers from {int(numbers.min())} to "
                f"{int(numbers.max())}, and {name!r} rows 0 to {len(bank.rows) - 1}: correct them",
                code="bad-value",
            )


def _arrays(samples: Samples) -> Iterator[tuple[str, Any]]:
    yield from samples.columns.items()
    yield from ((name, bank.rows) for name, bank in samples.banks.items())
