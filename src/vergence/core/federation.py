"""Federations: people and their data, in memory, made on demand, or read by a data set.

Used in most packages.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from vergence.core import arrays
from vergence.core.data import Samples, Splits, refuse_other_classes
from vergence.core.identifiers import check_ids
from vergence.core.options import NamedOptions
from vergence.core.serialization import digest, pack
from vergence.errors import ConfigError, DataError

CONDITIONS = "conditions"
"""Column int64 `[n, conditions]`: numbers of the levels under which a sample was recorded."""
POOLED = "everyone"
"""Id of the only client of a federation whose people's data are pooled."""
MANY = 100_000
"""Largest number of people whose data, generated on demand, may be in memory at once."""
MISSING = frozenset({"points", "ratings"})
"""Columns of packaged data sets in which NaN means "not recorded": gaze points and ratings."""


class NumberedIds(Sequence[str]):
    """Sequence of the ids `c0000000`, `c0000001`, ..., which are computed and use no memory.

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
    """People whose data are generated each time they are used, with the same result.

    Args:
        people: the number of people, whose ids are then `NumberedIds`, or their ids.
        make: function from a person's number, counted from 0, to the person's splits.
        recipe: text of everything on which the people's data depend (options, a seed); its digest
            is used in place of a digest of the data.
    """

    def __init__(
        self, people: int | Sequence[str], make: Callable[[int], Splits], recipe: str
    ) -> None:
        self.ids = NumberedIds(range(people)) if isinstance(people, int) else tuple(people)
        self.recipe = recipe
        self._make = make
        self._last: tuple[str, Splits] | None = None

    def __getitem__(self, client: str) -> Splits:
        # Only the last person is in memory: a turn asks for its client twice, to train and measure.
        last = self._last
        if last is not None and last[0] == client:
            return last[1]
        if client not in self.ids:
            raise KeyError(client)
        made = self._make(self.ids.index(client))
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


SHOWN = 10
"""People in the table of a federation in a notebook."""


@dataclass(frozen=True)
class PublicData:
    """Public samples on the server, which belong to no client.

    Methods do not use the labels of `train`. They use the labels of `val` only if an option says
    so.
    """

    train: Samples
    val: Samples


@dataclass(frozen=True)
class Federation:
    """People and their data, loaded and split.

    Attributes:
        name: name of the data, for tables and reports.
        people: client id -> the client's splits, in client order: a dict, or a `Population` if
            the data do not fit into memory.
        about: texts on the data: `licence`, `citation`, `split`, and others that a reader of the
            results must know.
        proxies: public samples, for methods whose server needs them.
        missing: names of the columns in which NaN means "not recorded".
        conditions: name of a condition, such as session -> its levels, in the order of the column
            `conditions` of the samples; networks do not use that column.

    Raises:
        DataError: an id cannot be printed or be part of a file name, or two ids are equal apart
            from upper and lower case.
    """

    name: str
    people: Mapping[str, Splits]
    about: Mapping[str, str] = field(default_factory=dict)
    proxies: PublicData | None = None
    missing: frozenset[str] = MISSING
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The ids of so many people are not looked at one by one: they are numbers.
        if not isinstance(self.clients, NumberedIds):
            check_ids(self.clients, f"data set '{self.name}'")

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

    def _repr_html_(self) -> str:
        """Return the text of `repr`, and a table of the first people's numbers of samples."""
        title = f"<p>{html.escape(repr(self))}</p>"
        if isinstance(self.people, Population):
            return title
        some = self.clients[:SHOWN]
        sizes = {p: [len(part) for part in vars(self.people[p]).values()] for p in some}
        rows = "".join(
            f"<tr><td>{html.escape(person)}</td>{''.join(f'<td>{n}</td>' for n in own)}</tr>"
            for person, own in sizes.items()
        )
        more = len(self.clients) - len(some)
        rest = f"<p>and {more:,} more</p>" if more else ""
        heads = "<tr><th>person</th><th>train</th><th>val</th><th>test</th></tr>"
        return f"{title}<table>{heads}{rows}</table>{rest}"

    @classmethod
    def from_arrays(
        cls,
        people: Mapping[Any, object],
        *,
        split: tuple[float, float, float] = arrays.SHARES,
        shuffle: int | None = None,
        stratify: str = "",
        min_samples: int = 0,
        columns: Sequence[str] = ("x", "y"),
        missing: Collection[str] = (),
        name: str = "arrays",
        about: Mapping[str, str] | None = None,
        weights: Mapping[str, object] | None = None,
    ) -> Federation:
        """Make a federation (people and their data) from arrays in memory.

        The first 60 % of a person's rows are for training, the next 20 % for validation, the last
        for test. Rows keep their order because neighbours in a recording are alike: randomly drawn
        test rows would be almost equal to training rows. Give `shuffle` to rows without an order.

        Args:
            people: person -> {"x": inputs, "y": targets}: numpy arrays, tensors or lists with a row
                per sample; or (inputs, targets), or a torch Dataset. People may also have parts,
                {"train": ..., "val": ..., "test": ...}, which are not split again. "val" and "test"
                may be left out: somebody without test samples trains, and is not measured.
            split: fractions of a person's samples for training, validation and test.
            shuffle: a seed; each person's rows are then split at random.
            stratify: a column of class numbers, such as "y": each part then has about the same
                shares of the classes; rows are drawn at random, with the seed `shuffle` or 0.
            min_samples: people with fewer samples (training samples, if people have parts) are left
                out; `about["split"]` says who.
            columns: names for columns that have none.
            missing: columns in which NaN means "not recorded"; in others NaN is refused.
            name: name of the data, in tables and reports.
            about: texts on the data: `licence`, `citation`, and others for readers of the results.
            weights: person -> a number for each (training) sample, the column `sampling_weight`:
                its chance to be drawn by `LocalTraining(sampler="weighted")` is proportional to it.

        Raises:
            UserWarning: the test rows alone have a class, or are mostly training rows, too.
            DataError: a column holds no numbers, or NaN; people differ in columns; a person has too
                few samples; nobody has test samples; or weights are negative, all 0 or too few.
            ConfigError: the shares are not three positive numbers with sum 1.

        Examples:
            >>> import torch
            >>> people = {who: {"x": torch.zeros(10, 4), "y": torch.ones(10)} for who in ("a", "b")}
            >>> [len(part) for part in vars(Federation.from_arrays(people).people["a"]).values()]
            [6, 2, 2]
        """
        missing = frozenset([missing] if isinstance(missing, str) else missing)
        columns_of, how = arrays.split_people(
            people, columns, split, shuffle, missing, stratify, min_samples, weights
        )
        parts = {
            person: Splits(**{part: Samples(own) for part, own in whole.items()})
            for person, whole in columns_of.items()
        }
        defaults = {"licence": "not said", "citation": "not said", "split": how}
        return cls(name, parts, defaults | dict(about or {}), missing=missing)

    @classmethod
    def from_datasets(
        cls, people: Mapping[Any, object], *, lazy: bool = False, **options: Any
    ) -> Federation:
        """Make a federation (people and their data) from one torch data set per person.

        Items of the data sets (`torch.utils.data.Dataset`) are (input, target), or mappings of
        arrays.

        Args:
            people: person -> data set, or {"train": data set, "val": ..., "test": ...}.
            lazy: False: everybody's items are read into memory. True: they are read and checked
                once, and again whenever the person trains or is measured: one person's data at a
                time are in memory (of each worker). Each person needs test samples then.
            options: those of `from_arrays`; with lazy=True without `min_samples`.

        Raises:
            DataError: as in `from_arrays`; also if items differ in shape, or have more entries than
                there are column names.
        """
        options = {"name": "datasets", **options}
        if not (lazy and people and isinstance(people, Mapping)):
            return cls.from_arrays(people, **options)
        if options.get("min_samples"):
            raise ConfigError("lazy=True takes no min_samples: leave these people out beforehand")
        names = arrays.as_text(people, "people")
        whole = {person: people[key] for person, key in names.items()}
        refuse_other_classes(whole)
        untested = [p for p, own in whole.items() if isinstance(own, Mapping) and "test" not in own]
        if arrays.are_in_parts(whole) and untested:
            raise DataError(
                f"person {untested[0]!r} has no test samples, and with lazy=True everybody needs "
                "some: give this person a 'test' part, or read everybody into memory, lazy=False"
            )

        weights = arrays.weights_by_person(options.pop("weights", None), whole)

        def read(person: str) -> Federation:
            own = {person: weights[person]} if weights else None
            return cls.from_arrays({person: whole[person]}, weights=own, **options)

        ids, seen = list(names), []
        first = read(ids[0])
        for person in ids:
            parts = vars(read(person).people[person])
            columns = {part: dict(samples.columns) for part, samples in parts.items()}
            alike = {ids[0]: first.people[ids[0]].train.columns, person: columns["train"]}
            arrays.check_alike(alike)
            seen.append(f"{person} {digest(pack(columns))}")
        made = Population(
            ids, lambda number: read(ids[number]).people[ids[number]], "\n".join(seen)
        )
        return replace(first, people=made)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        person: str = "person",
        columns: Mapping[str, str | Sequence[str]] | None = None,
        **options: Any,
    ) -> Federation:
        """Make a federation (people and their data) from the rows of a pandas DataFrame.

        Args:
            frame: a row per sample; the rows of a person keep their order.
            person: the column that names each row's person.
            columns: maps each column of samples to one column of the frame, or to several columns
                that become one tensor: {"x": ["pupil", "speed"], "y": "gaze_x"}. None: every
                column except `person`, under its own name.
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
    def scored_people(self) -> Mapping[str, Splits]:
        """The people who have test samples; the others train, and nothing is measured for them."""
        if isinstance(self.people, Population):
            return self.people
        return {person: splits for person, splits in self.people.items() if len(splits.test)}

    @property
    def recipe(self) -> str | None:
        """Text of all that determines data generated on demand (`Population.recipe`), or None."""
        return self.people.recipe if isinstance(self.people, Population) else None

    def only(self, clients: Sequence[str]) -> Federation:
        """Return a federation of only the people in `clients`.

        Their data are in memory, but for data sets that are read anew for each use
        (`from_datasets` with `lazy=True`), which stay so.
        """
        whole, ids = self.people, tuple(clients)
        if isinstance(whole, Population) and not isinstance(whole.ids, NumberedIds):
            made = Population(ids, lambda number: whole[ids[number]], f"{whole.recipe}\n{ids}")
            return replace(self, people=made)
        return replace(self, people={client: whole[client] for client in ids})

    def refuse_many(self, what: str) -> None:
        """Refuse an operation that needs everybody's data in memory, if there are too many people.

        `what` names the operation in the error message.

        Raises:
            ConfigError: there are more than 100,000 people, whose data are generated on demand.
        """
        if isinstance(self.people, Population) and len(self.people) > MANY:
            raise ConfigError(
                f"{what} would hold the data of {len(self.people):,} people of '{self.name}' at "
                f"once, at most {MANY:,} are allowed; set federation.people to fewer"
            )

    def pooled(self) -> Federation:
        """Return a federation with one client that has everybody's data, as a data centre would.

        Raises:
            ConfigError: people's data are generated on demand, for more than 100,000 people.
        """
        self.refuse_many("pooling")
        whole = {
            part: Samples.concatenate([getattr(s, part) for s in self.people.values()])
            for part in ("train", "val", "test")
        }
        return replace(self, people={POOLED: Splits(**whole)})

    def map_bank(self, name: str, change: Callable[[Tensor], Tensor]) -> Federation:
        """Return a federation in which `change` has replaced the rows of one bank of samples.

        Pretrained networks use this to replace frames by features. If several people share the
        bank, `change` is called once for all.

        Raises:
            ConfigError: there are more than 100,000 people, whose data are generated on demand.
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
    """Make a federation of clients on other machines, whose numbers of training samples are known.

    `counts` maps each client to this number; the samples themselves are empty.
    """
    none = Samples({"absent": torch.empty(0, 0)})
    people = {
        client: Splits(Samples({"absent": torch.empty(count, 0)}), none, none)
        for client, count in counts.items()
    }
    return Federation(name, people)


def _between(sizes: Sequence[int]) -> str:
    """Return the sizes as text: "5" if all are equal, "3-8" if they differ."""
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}-{high}"


@dataclass(frozen=True)
class Dataset(NamedOptions, ABC):
    """Options of one data set; `load` reads local files only.

    An experiment names a data set by the name of its module.
    """

    renamed_hooks: ClassVar[Mapping[str, str]] = {"beside": "next_to_experiment"}
    next_to_experiment: ClassVar[bool] = False
    """True: if no root folder is given, the files are looked for next to the experiment's file."""

    @property
    def grouping(self) -> str:
        """Description of what a client is; empty if each client is a single person."""
        return ""

    @property
    def frame_step_s(self) -> float | None:
        """Seconds between two frames of a video sample; None if the options do not tell."""
        return None

    @abstractmethod
    def load(self, root: str | None = None) -> Federation:
        """Read, verify and split the data; `root` is the folder with the files, if they are needed.

        Raises:
            DataError: a file is missing, truncated or of another version; the message says what
                to do.
        """
