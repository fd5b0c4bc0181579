"""Federations: people and their data, held in memory, made on demand, or read by a data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from vergence.core import arrays
from vergence.core.data import Samples, Splits
from vergence.core.identifiers import check_ids
from vergence.core.options import NamedOptions
from vergence.errors import ConfigError

POOLED = "everyone"
"""The one client of pooled data."""
MANY = 100_000
"""So many people made on demand are not held at once."""
MISSING = frozenset({"points", "ratings"})
"""Columns of packaged data sets in which NaN says that nothing was recorded: gaze on a frame,
somebody's judgement."""


class NumberedIds(Sequence[str]):
    """Ids `c0000000`, `c0000001`, ..., made from their numbers: a client costs no memory.

    Examples:
        >>> ids = NumberedIds(range(1_000_000))
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
    def __getitem__(self, at: slice) -> NumberedIds: ...
    def __getitem__(self, at: int | slice) -> str | NumberedIds:
        found = self.numbers[at]
        return NumberedIds(found) if isinstance(found, range) else f"c{found:07d}"

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
        """Number of times that a client is there: once, or not at all."""
        return int(client in self)


class Population(Mapping[str, Splits]):
    """People made on demand, the same ones every time: none is kept but the last.

    Args:
        count: how many there are; their ids are `NumberedIds`.
        make: returns the splits of a person number, from 0.
        recipe: everything the people depend on (options, a seed), in words: it stands for the
            data where all of it would be digested.
    """

    def __init__(self, count: int, make: Callable[[int], Splits], recipe: str) -> None:
        self.ids, self.recipe = NumberedIds(range(count)), recipe
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
class PublicData:
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
    `missing` names the columns in which NaN says that nothing was recorded.

    Raises:
        DataError: an id is no name that can be printed and be part of a file's, or has a twin.
    """

    name: str
    people: Mapping[str, Splits]
    about: Mapping[str, str] = field(default_factory=dict)
    proxies: PublicData | None = None
    missing: frozenset[str] = MISSING

    def __post_init__(self) -> None:
        if not isinstance(self.people, Population):
            check_ids(self.people, f"data set '{self.name}'")

    def __repr__(self) -> str:
        beside = "" if self.proxies is None else ", and public data"
        if isinstance(self.people, Population):  # looking at one of them would make all its samples
            return f"Federation {self.name}: {len(self.people):,} people made on demand{beside}"
        noun = "person" if len(self.people) == 1 else "people"
        told = f"Federation {self.name}: {len(self.people):,} {noun}"
        if not self.people:
            return told + beside
        every = [[len(part) for part in vars(splits).values()] for splits in self.people.values()]
        sizes = "/".join(_between(each) for each in zip(*every, strict=True))
        shapes = next(iter(self.people.values())).train.shapes()
        return f"{told}, {sizes} samples each, {shapes}{beside}"

    @classmethod
    def from_arrays(
        cls,
        people: Mapping[Any, Any],
        *,
        split: tuple[float, float, float] = arrays.SHARES,
        shuffle: int | None = None,
        columns: Sequence[str] = ("x", "y"),
        missing: Collection[str] = (),
        name: str = "arrays",
        about: Mapping[str, str] | None = None,
    ) -> Federation:
        """People whose samples are arrays in memory.

        The first 60 % of a person's rows are for training, the next 20 % for validation, the last
        for test. They stay in their order because neighbours in a recording are alike: rows drawn
        at random would be tested on what was all but trained on. Give `shuffle` where rows have no
        order, or an order that says the answer, as rows sorted by class have.

        Args:
            people: person -> {"x": inputs, "y": targets}: numpy arrays, tensors or lists with a row
                per sample; or (inputs, targets), or a torch Dataset. Or the three parts of each,
                {"train": ..., "val": ..., "test": ...}, which are left as they are.
            split: shares of training, validation and test.
            shuffle: a seed, with which each person's rows are dealt at random.
            columns: names of columns that have none.
            missing: columns in which NaN says that nothing was recorded; default: NaN is refused
                in all of them.
            name: of the data, in tables and reports.
            about: `licence`, `citation` and what else a reader of the results must know.

        Raises:
            DataError: a column holds no numbers, or NaN (names person, column and row), people have
                different columns, or too few samples.
            ConfigError: shares that make no whole.

        Examples:
            >>> import torch
            >>> people = {who: {"x": torch.zeros(10, 4), "y": torch.ones(10)} for who in ("a", "b")}
            >>> [len(part) for part in vars(Federation.from_arrays(people).people["a"]).values()]
            [6, 2, 2]
        """
        missing = frozenset([missing] if isinstance(missing, str) else missing)
        found, how = arrays.split_people(people, columns, split, shuffle, missing)
        parts = {
            person: Splits(**{part: Samples(own) for part, own in whole.items()})
            for person, whole in found.items()
        }
        told = {"licence": "not said", "citation": "not said", "split": how, **(about or {})}
        return cls(name, parts, told, missing=missing)

    @classmethod
    def from_datasets(cls, people: Mapping[Any, Any], **options: Any) -> Federation:
        """People who have a `torch.utils.data.Dataset` each, whose items are read into memory.

        Items are (input, target), or mappings of arrays. `options` are those of `from_arrays`.

        Raises:
            DataError: as of `from_arrays`; items have other shapes, or names for them are lacking.
        """
        return cls.from_arrays(people, **{"name": "datasets", **options})

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        person: str = "person",
        columns: Mapping[str, str | Sequence[str]] | None = None,
        **options: Any,
    ) -> Federation:
        """People who are the rows of a pandas DataFrame.

        Args:
            frame: a row per sample; the rows of a person stay in their order.
            person: the column that says whose a row is.
            columns: what samples hold -> the frame's column, or several side by side, as
                {"x": ["pupil", "speed"], "y": "gaze_x"}; None: every column under its own name.
            options: those of `from_arrays`.

        Raises:
            DataError: as of `from_arrays`; a column is not there, or a row is nobody's.
        """
        missing = options.get("missing", ())
        missing = [missing] if isinstance(missing, str) else missing
        people = arrays.by_person(frame, person, columns, missing)
        return cls.from_arrays(people, **{"name": "frame", **options})

    @property
    def clients(self) -> Sequence[str]:
        """Client ids, in client order: a tuple, or a population's numbered ids."""
        return self.people.ids if isinstance(self.people, Population) else tuple(self.people)

    @property
    def recipe(self) -> str | None:
        """Recipe of the people where they are made on demand, None where they are held."""
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


def without_data(name: str, counts: Mapping[str, int]) -> Federation:
    """Federation of clients whose data are not here: each with so many training samples."""
    none = Samples({"absent": torch.empty(0, 0)})
    people = {
        client: Splits(Samples({"absent": torch.empty(count, 0)}), none, none)
        for client, count in counts.items()
    }
    return Federation(name, people)


def _between(sizes: Sequence[int]) -> str:
    """One number where all are the same, else the smallest and the largest."""
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}-{high}"


@dataclass(frozen=True)
class Dataset(NamedOptions, ABC):
    """Options of one data set. Its module's name is its name; `load` reads local files only."""

    renamed_hooks: ClassVar[Mapping[str, str]] = {"beside": "next_to_experiment"}
    next_to_experiment: ClassVar[bool] = False
    """True: its files lie next to the experiment's, where no root is named."""

    @property
    def grouping(self) -> str:
        """Description of a client that is no single person; empty where each client is one."""
        return ""

    @property
    def frame_step_s(self) -> float | None:
        """Seconds between the frames of a sample of video; None where the options do not say."""
        return None

    @abstractmethod
    def load(self, root: str | None = None) -> Federation:
        """Read, verify and split. `root` is the folder with the files, where files are needed.

        Raises:
            DataError: a file is missing, truncated or of another version; says what to do.
        """
