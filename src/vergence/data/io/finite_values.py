"""Check for NaN and infinite numbers in a data set, before anybody trains on them."""

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
    """Accept a federation of finite numbers; of people made on demand, the first and the last.

    NaN stays where it says that nothing was recorded (`Federation.missing`), infinity nowhere.
    Without `tested`, test data are not looked at.

    Raises:
        DataError: a number is NaN or infinite, or what should be samples is something else; names
            the person, the column and the row.
    """
    where = f"data set '{federation.name}'"
    people: Mapping[str, Any] = federation.people
    if isinstance(people, Population):
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
            held = getattr(federation.proxies, part)
            _check(held, f"{where}: {PARTS[part]} samples of nobody", federation.missing, seen)


def _check(samples: Any, whose: str, missing: frozenset[str], seen: set[int]) -> None:
    if not isinstance(samples, Samples):
        raise DataError(
            f"{whose} are a {type(samples).__name__}: give Samples({{'name': tensor, ...}})",
            code="file-layout",
        )
    for name, held in _arrays(samples):
        if not isinstance(held, Tensor):
            raise DataError(
                f"{whose}: {name!r} is a {type(held).__name__}: give a tensor", code="file-layout"
            )
        # Rows that many people share are looked at once.
        if held.data_ptr() in seen and name in samples.banks:
            continue
        seen.add(held.data_ptr())
        found = torch.where(held.isnan(), 0, held) if name in missing else held
        if not is_finite(found):
            flat = found.flatten(1) if found.ndim > 1 else found.reshape(-1, 1)
            wrong = ~flat.isfinite()
            bad = wrong.any(1)
            row = int(bad.nonzero()[0])
            value = float(flat[row][wrong[row]][0])
            raise DataError(
                f"{whose}: {name!r} is {value} in row {row} ({int(bad.sum())} of {len(flat)} rows "
                "have no finite number): mend these rows or leave them out",
                code="bad-value",
            )


def _arrays(samples: Samples) -> Iterator[tuple[str, Any]]:
    yield from samples.columns.items()
    yield from ((name, bank.rows) for name, bank in samples.banks.items())
