"""Samples, splits and federations: what a client's place holds, and who may see which part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vergence.core.stream import Stream
    from vergence.core.task import Task

Batch = dict[str, Tensor]
POOLED = "everyone"
"""The one client of pooled data."""


@dataclass(frozen=True)
class Bank:
    """Rows that many samples share (frames, images, cached features), looked up by number.

    `rows` is `[bank, ...]`; a sample names its rows in the integer column `by`, of shape
    `[samples]` or `[samples, frames]`.
    """

    rows: Tensor
    by: str


@dataclass(frozen=True)
class Samples:
    """One split of one client's data, resident in memory: columns, and banks they point into.

    Every column is `[samples, ...]`. `take` returns the columns and, under a bank's own name, the
    rows its `by` column points to.
    """

    columns: Mapping[str, Tensor]
    banks: Mapping[str, Bank] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, rows: Tensor) -> Batch:
        """Return the batch made of these sample numbers (`rows`: int64 `[batch]`)."""
        batch = {name: column[rows] for name, column in self.columns.items()}
        for name, bank in self.banks.items():
            batch[name] = bank.rows[batch[bank.by]]
        return batch

    def bytes(self) -> int:
        """Return the size of the columns and of the bank rows they point to."""
        total = sum(c.numel() * c.element_size() for c in self.columns.values())
        for bank in self.banks.values():
            rows = self.columns[bank.by].unique().numel()
            total += rows * bank.rows[0].numel() * bank.rows.element_size()
        return total

    def subset(self, rows: Tensor) -> Samples:
        """Return the samples with these numbers; banks are shared, not copied."""
        return replace(self, columns={n: column[rows] for n, column in self.columns.items()})

    @staticmethod
    def concatenate(parts: list[Samples]) -> Samples:
        """Join several people's samples; banks that are not the same tensor are joined too."""
        columns = {n: [p.columns[n] for p in parts] for n in parts[0].columns}
        banks: dict[str, Bank] = {}
        moved: set[str] = set()
        for name, bank in parts[0].banks.items():
            rows = [p.banks[name].rows for p in parts]
            if any(r is not rows[0] for r in rows):
                starts = torch.tensor([0, *map(len, rows)]).cumsum(0)
                if bank.by not in moved:
                    shifted = zip(columns[bank.by], starts, strict=False)
                    columns[bank.by] = [column + start for column, start in shifted]
                    moved.add(bank.by)
                bank = Bank(torch.cat(rows), bank.by)
            banks[name] = bank
        return Samples({n: torch.cat(c) for n, c in columns.items()}, banks)


@dataclass(frozen=True)
class Splits:
    """One client's data. A turn sees `train` and `val`; the engine alone holds `test`."""

    train: Samples
    val: Samples
    test: Samples


@dataclass(frozen=True)
class Federation:
    """People and their data, loaded and split.

    `people` maps a client id to its splits, in client order. `about` says what the data is:
    `licence`, `citation`, `split` and whatever else a reader of the results must know.
    """

    name: str
    people: Mapping[str, Splits]
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def clients(self) -> tuple[str, ...]:
        """Client ids, in client order."""
        return tuple(self.people)

    def pooled(self) -> Federation:
        """Everybody's data at one client, as a data centre would hold it."""
        whole = {
            part: Samples.concatenate([getattr(s, part) for s in self.people.values()])
            for part in ("train", "val", "test")
        }
        return replace(self, people={POOLED: Splits(**whole)})

    def map_bank(self, name: str, change: Callable[[Tensor], Tensor]) -> Federation:
        """Replace the rows of one bank everywhere; a bank shared by people is changed once."""
        done: dict[int, Tensor] = {}

        def changed(samples: Samples) -> Samples:
            bank = samples.banks[name]
            if id(bank.rows) not in done:
                done[id(bank.rows)] = change(bank.rows)
            banks = {**samples.banks, name: replace(bank, rows=done[id(bank.rows)])}
            return replace(samples, banks=banks)

        people = {
            person: Splits(*(changed(p) for p in (s.train, s.val, s.test)))
            for person, s in self.people.items()
        }
        return replace(self, people=people)


@dataclass(frozen=True)
class Dataset(ABC):
    """Options of one data set. Its module's name is its name; `load` reads local files only."""

    @abstractmethod
    def load(self, root: str | None = None) -> Federation:
        """Read, verify and split. `root` is the folder with the files, where files are needed.

        Raises:
            DataError: a file is missing, truncated or of another version; says what to do.
        """


@dataclass(frozen=True)
class Site:
    """A client's place during one turn: its training and validation data, task and randomness."""

    id: str
    train: Samples
    val: Samples
    task: Task
    round: int
    rng: Stream
