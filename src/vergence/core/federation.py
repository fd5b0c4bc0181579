"""Federations: people and their data, in memory, made on demand, or read by a data set.

Used in most packages.
"""

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
"""More people than this, made on demand, are never in memory at once."""
MISSING = frozenset({"points", "ratings"})
"""Columns of packaged data sets where NaN means "not recorded": gaze on a frame, a judgement."""


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
        numbers = self.numbers[at]
        return NumberedIds(numbers) if isinstance(numbers, range) else f"c{numbers:07d}"

    def __iter__(self) -> Iterator[str]:
        return (f"c{number:07d}" for number in self.numbers)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, str) and self.number(client) is not None

    def __repr__(self) -> str:
        return f"Numbered({self.numbers!r})"

    def number(self, client: str) -> int | None:
        """Return the number of a client's id; None if there is no such client."""
        # The id may come from another machine: `int` would fail on thousands of digits, and read
        # the digits of other scripts.
        digits = client[1:]
        if not (len(digits) < 20 and digits.isascii() and digits.isdigit()):
            return None
        number = int(digits)
        return number if number in self.numbers and f"c{number:07d}" == client else None

    def index(self, client: str, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a client's id.

        Raises:
            ValueError: no such client is in this range.
        """
        number = self.number(client)
        at = -1 if number is None else self.numbers.index(number)
        if at not in range(len(self))[start:stop]:
            raise ValueError(f"no client '{client}'")
        return at

    def count(self, client: str) -> int:
        """Return how often an id occurs: once, or not at all."""
        return int(client in self)


class Population(Mapping[str, Splits]):
    """People whose data are generated when they are asked for, the same every time.

    Args:
        count: number of people; their ids are `NumberedIds`.
        make: function from a person's number, counted from 0, to the person's splits.
        recipe: text of everything on which the people depend (options, a seed); its digest replaces
            the digest of the data.
    """

    def __init__(self, count: int, make: Callable[[int], Splits], recipe: str) -> None:
        self.ids, self.recipe = NumberedIds(range(count)), recipe
        self._make = make
        self._last: tuple[str, Splits] | None = None

    def __getitem__(self, client: str) -> Splits:
        # Only the last person is in memory: a turn asks for its client twice, to train and measure.
        last = self._last
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
    """Public samples on the server, which are no client's.

    Methods do not use the labels of `train`, and those of `val` only if an option says so.
    """

    train: Samples
    val: Samples


@dataclass(frozen=True)
class Federation:
    """People and their data, loaded and split.

    `people` maps client ids to splits, in client order: a dict, or a `Population` where memory
    cannot hold all. `about` describes the data: `licence`, `citation`, `split` and whatever else a
    reader of the results must know. `proxies` is for methods whose server needs public samples.
    `missing` names the columns in which NaN means "not recorded".

    Raises:
        DataError: an id cannot be printed or be part of a file name, or two ids are alike.
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
        public = "" if self.proxies is None else ", and public data"
        # Shapes of a population would cost the samples of a person.
        if isinstance(self.people, Population):
            return f"Federation {self.name}: {len(self.people):,} people made on demand{public}"
        noun = "person" if len(self.people) == 1 else "people"
        text = f"Federation {self.name}: {len(self.people):,} {noun}"
        if not self.people:
            return text + public
        every = [[len(part) for part in vars(splits).values()] for splits in self.people.values()]
        sizes = "/".join(_between(each) for each in zip(*every, strict=True))
        shapes = next(iter(self.people.values())).train.shapes()
        return f"{text}, {sizes} samples each, {shapes}{public}"

    @classmethod
    def from_arrays(
        cls,
        people: Mapping[Any, object],
        *,
        split: tuple[float, float, float] = arrays.SHARES,
        shuffle: int | None = None,
        columns: Sequence[str] = ("x", "y"),
        missing: Collection[str] = (),
        name: str = "arrays",
        about: Mapping[str, str] | None = None,
    ) -> Federation:
        """Make a federation of arrays in memory.

        The first 60 % of a person's rows are for training, the next 20 % for validation, the last
        for test. Rows keep their order because neighbours in a recording are alike: randomly drawn
        test rows would be almost equal to training rows. Give `shuffle` where rows have no order,
        or one that gives the answer away, such as rows sorted by class.

        Args:
            people: person -> {"x": inputs, "y": targets}: numpy arrays, tensors or lists with a row
                per sample; or (inputs, targets), or a torch Dataset. A person may also have the
                three parts, {"train": ..., "val": ..., "test": ...}, which are left as they are.
            split: shares of training, validation and test.
            shuffle: a seed; each person's rows are then split at random.
            columns: names for columns that have none.
            missing: columns in which NaN means "not recorded"; default: NaN is refused in every
                column.
            name: name of the data, in tables and reports.
            about: `licence`, `citation` and whatever else a reader of the results must know.

        Raises:
            DataError: a column holds no numbers, or NaN (names person, column and row), people have
                different columns, or too few samples.
            ConfigError: the shares are not three positive numbers with sum 1.

        Examples:
            >>> import torch
            >>> people = {who: {"x": torch.zeros(10, 4), "y": torch.ones(10)} for who in ("a", "b")}
            >>> [len(part) for part in vars(Federation.from_arrays(people).people["a"]).values()]
            [6, 2, 2]
        """
        missing = frozenset([missing] if isinstance(missing, str) else missing)
        columns_of, how = arrays.split_people(people, columns, split, shuffle, missing)
        parts = {
            person: Splits(**{part: Samples(own) for part, own in whole.items()})
            for person, whole in columns_of.items()
        }
        defaults = {"licence": "not said", "citation": "not said", "split": how}
        return cls(name, parts, defaults | dict(about or {}), missing=missing)

    @classmethod
    def from_datasets(cls, people: Mapping[Any, object], **options: Any) -> Federation:
        """Make a federation of one `torch.utils.data.Dataset` per person, read into memory.

        Items are (input, target), or mappings of arrays. `options` are those of `from_arrays`.

        Raises:
            DataError: as in `from_arrays`; also if items differ in shape, or have more parts than
                names.
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
        """Make a federation of the rows of a pandas DataFrame.

        Args:
            frame: a row per sample; the rows of a person keep their order.
            person: the column that names each row's person.
            columns: maps each column of samples to a column of the frame, or to several to put side
                by side, as {"x": ["pupil", "speed"], "y": "gaze_x"}; None: every column under its
                own name.
            options: those of `from_arrays`.

        Raises:
            DataError: as in `from_arrays`; also if a column is missing, or a row names no person.
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
        """The recipe of people who are made on demand; None where they are in memory."""
        return self.people.recipe if isinstance(self.people, Population) else None

    def only(self, clients: Sequence[str]) -> Federation:
        """Return a federation of these people alone, all in memory."""
        return replace(self, people={client: self.people[client] for client in clients})

    def refuse_many(self, what: str) -> None:
        """Refuse `what`, which needs everybody's data in memory, where there are too many people.

        Raises:
            ConfigError: there are more than 100,000 people, made on demand.
        """
        if isinstance(self.people, Population) and len(self.people) > MANY:
            raise ConfigError(
                f"{what} would hold the data of {len(self.people):,} people of '{self.name}' at "
                f"once, at most {MANY:,} are allowed; set federation.people to fewer"
            )

    def pooled(self) -> Federation:
        """Return a federation with one client that has everybody's data, as a data centre would.

        Raises:
            ConfigError: there are more than 100,000 people, made on demand.
        """
        self.refuse_many("pooling")
        whole = {
            part: Samples.concatenate([getattr(s, part) for s in self.people.values()])
            for part in ("train", "val", "test")
        }
        return replace(self, people={POOLED: Splits(**whole)})

    def map_bank(self, name: str, change: Callable[[Tensor], Tensor]) -> Federation:
        """Replace the rows of one bank in all samples; a bank that people share is changed once.

        Pretrained networks put features in the place of frames with it.

        Raises:
            ConfigError: there are more than 100,000 people, made on demand.
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
    """Make a federation of clients on other machines, of whom only numbers of samples are known."""
    none = Samples({"absent": torch.empty(0, 0)})
    people = {
        client: Splits(Samples({"absent": torch.empty(count, 0)}), none, none)
        for client, count in counts.items()
    }
    return Federation(name, people)


def _between(sizes: Sequence[int]) -> str:
    """Return as text the number that all sizes share, else the smallest and the largest size."""
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}-{high}"


@dataclass(frozen=True)
class Dataset(NamedOptions, ABC):
    """Options of one data set, called by its module's name; `load` reads local files only."""

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
        """Read, verify and split the data; `root` is the folder with the files, if they are needed.

        Raises:
            DataError: a file is missing, truncated or of another version; says what to do.
        """
