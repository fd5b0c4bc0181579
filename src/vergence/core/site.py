"""Samples, splits and federations: what a client's place holds, and who may see which part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, overload

import torch
from torch import Tensor

from vergence.core.mask import Mask
from vergence.errors import ConfigError

if TYPE_CHECKING:
    from vergence.core.params import Params
    from vergence.core.stream import Stream
    from vergence.core.task import Task

Batch = dict[str, Tensor]
POOLED = "everyone"
"""The one client of pooled data."""
MANY = 100_000
"""So many people made on demand are not held at once."""


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

    def take(self, rows: Tensor | slice) -> Batch:
        """Return the batch made of these sample numbers (int64 `[batch]`), or of a range of them.

        A range of columns is a view: do not change it in place.
        """
        if isinstance(rows, slice):
            batch = {name: column[rows] for name, column in self.columns.items()}
        else:
            batch = {name: column.index_select(0, rows) for name, column in self.columns.items()}
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


class Numbered(Sequence[str]):
    """Ids `c0000000`, `c0000001`, ..., made from their numbers: a client costs no memory.

    Example:
        >>> ids = Numbered(range(1_000_000))
        >>> ids[-1], ids.index("c0000042"), "c1000000" in ids
        ('c0999999', 42, False)
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Numbered: ...
    def __getitem__(self, at: int | slice) -> str | Numbered:
        found = self.numbers[at]
        return Numbered(found) if isinstance(found, range) else f"c{found:07d}"

    def __iter__(self) -> Iterator[str]:
        return (f"c{number:07d}" for number in self.numbers)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, str) and self.number(client) is not None

    def __repr__(self) -> str:
        return f"Numbered({self.numbers!r})"

    def number(self, client: str) -> int | None:
        """Return a client's number, None for a stranger."""
        digits = client[1:]
        if not (len(digits) < 20 and digits.isascii() and digits.isdigit()):
            return None
        number = int(digits)
        return number if number in self.numbers and f"c{number:07d}" == client else None

    def index(self, client: str, start: int = 0, stop: int | None = None) -> int:
        """Return a client's place.

        Raises:
            ValueError: no such client there.
        """
        number = self.number(client)
        at = -1 if number is None else self.numbers.index(number)
        if at not in range(len(self))[start:stop]:
            raise ValueError(f"no client '{client}'")
        return at

    def count(self, client: str) -> int:
        """Return how often a client is there: once, or not at all."""
        return int(client in self)


class Population(Mapping[str, Splits]):
    """People made on demand, the same ones every time: none is kept but the last.

    Args:
        count: how many there are; their ids are `Numbered`.
        make: returns the splits of a person number, from 0.
        recipe: everything the people depend on (options, a seed), in words: it stands for the
            data where all of it would be digested.
    """

    def __init__(self, count: int, make: Callable[[int], Splits], recipe: str) -> None:
        self.ids, self.recipe = Numbered(range(count)), recipe
        self._make = make
        self._last: tuple[str, Splits] | None = None

    def __getitem__(self, client: str) -> Splits:
        last = self._last  # a turn looks its client up for training and again for measuring
        if last is not None and last[0] == client:
            return last[1]
        number = self.ids.number(client)
        if number is None:
            raise KeyError(client)
        made = self._make(number)
        self._last = client, made
        return made

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, client: object) -> bool:
        return client in self.ids

    # A mapping would compare everybody's data.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Proxies:
    """Samples of nobody's, which a server holds.

    The labels of `train` are not looked at, those of `val` only where a method's option says so.
    """

    train: Samples
    val: Samples


@dataclass(frozen=True)
class Federation:
    """People and their data, loaded and split.

    `people` maps a client id to its splits, in client order: a dict, or a `Population` where there
    are more than can be held. `about` says what the data is: `licence`, `citation`, `split` and
    whatever else a reader of the results must know. `proxies` is for methods whose server needs it.
    """

    name: str
    people: Mapping[str, Splits]
    about: Mapping[str, str] = field(default_factory=dict)
    proxies: Proxies | None = None

    @property
    def clients(self) -> Sequence[str]:
        """Client ids, in client order: a tuple, or a population's numbered ids."""
        return self.people.ids if isinstance(self.people, Population) else tuple(self.people)

    @property
    def recipe(self) -> str | None:
        """What the people depend on where they are made on demand, None where they are held."""
        return self.people.recipe if isinstance(self.people, Population) else None

    def only(self, clients: Sequence[str]) -> Federation:
        """The same federation with these people alone, all of them held."""
        return replace(self, people={client: self.people[client] for client in clients})

    def refuse_many(self, what: str) -> None:
        """Refuse `what`, which holds everybody's data at once, where people are too many for it.

        Raises:
            ConfigError: these are more than 100,000 people made on demand.
        """
        if isinstance(self.people, Population) and len(self.people) > MANY:
            raise ConfigError(
                f"{what} would hold the data of {len(self.people):,} people of '{self.name}' at "
                f"once, at most {MANY:,} are allowed; set federation.people to fewer"
            )

    def pooled(self) -> Federation:
        """Everybody's data at one client, as a data centre would hold it.

        Raises:
            ConfigError: these are more than 100,000 people made on demand.
        """
        self.refuse_many("pooling")
        whole = {
            part: Samples.concatenate([getattr(s, part) for s in self.people.values()])
            for part in ("train", "val", "test")
        }
        return replace(self, people={POOLED: Splits(**whole)})

    def map_bank(self, name: str, change: Callable[[Tensor], Tensor]) -> Federation:
        """Replace the rows of one bank everywhere; a bank shared by people is changed once.

        Raises:
            ConfigError: these are more than 100,000 people made on demand.
        """
        self.refuse_many(f"changing the bank '{name}'")
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


class Choose(Protocol):
    """Chooses which entries become personal."""

    def __call__(self, score: Params, k: int | Mapping[str, int], among: Mask) -> Mask:
        """Return at most k entries, or `k[name]` of each tensor, where `among` is true.

        Those whose score is highest, or likelier those: a score is made from a person's data.
        """
        ...


@dataclass(frozen=True)
class Site:
    """A client's place during one turn: its training and validation data, task and randomness."""

    id: str
    train: Samples
    val: Samples
    task: Task
    round: int
    rng: Stream
    progress: float = 0.0
    """Share of the rounds done, which schedules follow."""
    choose: Choose = Mask.best
    """How entries are chosen by what data say: by a run's privacy, not by chance of its seed."""
