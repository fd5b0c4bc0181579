"""Few training samples: a random subset of each person's, or those of some conditions alone.

Used by `experiment.schema` and `studies.skew`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Interval

from vergence.core.data import Samples, Splits
from vergence.core.federation import CONDITIONS, Federation, Population
from vergence.core.options import NamedOptions
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError, DataError, nearest


@dataclass(frozen=True)
class FewSamples(NamedOptions):
    """Options that reduce each person's training samples.

    Validation and test samples all stay, except with `tested_on`. Both numbers may be set;
    `label_poor_samples` then applies to the people in `label_poor`.

    Attributes:
        samples_per_person: number of training samples of each person; None: all.
        label_poor: names of the people with a smaller number of training samples than the others.
        label_poor_samples: number of training samples of each person in `label_poor`.
        seed: seed of the random choice. With the same seed, a larger subset includes every smaller
            one.
        tested_on: (condition, level), such as ("session", "2"): only samples of this level are
            tested, and people train and are validated on the others alone.
    """

    samples_per_person: Annotated[int, Ge(1)] | None = None
    label_poor: tuple[str, ...] = ()
    label_poor_samples: Annotated[int, Ge(1)] = 9
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0
    tested_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tested_on) not in (0, 2):
            raise ConfigError(
                f"few_data: tested_on must be (condition, level), got {list(self.tested_on)}"
            )

    def __bool__(self) -> bool:
        return self.samples_per_person is not None or bool(self.label_poor or self.tested_on)

    def check(self, clients: Collection[str]) -> None:
        """Check that the people in `label_poor` are in the data.

        Raises:
            ConfigError: a person is not in the data; the message names that person.
        """
        for person in self.label_poor:
            if person not in clients:
                raise ConfigError(
                    f"few_data: label_poor names '{person}', who is not in the data"
                    f"{nearest(person, list(clients))}"
                )

    def count(self, client: str) -> int | None:
        """Return the number of training samples that a client keeps; None: all."""
        return self.label_poor_samples if client in self.label_poor else self.samples_per_person

    def apply(self, federation: Federation) -> Federation:
        """Return the federation with fewer training samples; the same object if no option is set.

        Args:
            federation: the federation with all people, before some are set aside as held-out
                clients.

        Raises:
            ConfigError: `label_poor` names a person who is not in the data, or `tested_on` a level.
            DataError: a person has fewer training samples than the options ask for.
        """
        if not self:
            return federation
        self.check(federation.clients)
        if self.tested_on:
            federation = tested_on(federation, *self.tested_on)
        about = {**federation.about, "few_data": self.sentence()}
        return replace(federation, people=self._people(federation.people), about=about)

    def sentence(self) -> str:
        """Return a sentence that describes the choice of samples, without the names of people."""
        # Results are published with this sentence: it must not say who was label-poor.
        people, every = len(self.label_poor), self.samples_per_person
        who = f"each of {people} label-poor people" if people > 1 else "1 label-poor person"
        phrases = [
            *([f"{every} training samples of each person"] if every is not None else []),
            *([f"{self.label_poor_samples} training samples of {who}"] if people else []),
        ]
        drawn = f"{'; '.join(phrases)}, drawn with seed {self.seed}; "
        if self.tested_on:
            condition, level = self.tested_on
            return f"{drawn * any(phrases)}tested on {condition} {level} alone, trained on all else"
        return f"{drawn}validation and test are whole"

    def _people(self, people: Mapping[str, Splits]) -> Mapping[str, Splits]:
        if not isinstance(people, Population):
            return {client: self._splits(client, splits) for client, splits in people.items()}
        ids = people.ids
        return Population(
            len(people),
            lambda number: self._splits(ids[number], people[ids[number]]),
            # The recipe stands for the data in digests, so it must say what was drawn.
            f"{people.recipe} {self!r}",
        )

    def _splits(self, client: str, splits: Splits) -> Splits:
        count = self.count(client)
        return splits if count is None else replace(splits, train=self._draw(client, splits, count))

    def _draw(self, client: str, splits: Splits, count: int) -> Samples:
        available = len(splits.train)
        if available < count:
            raise DataError(
                f"few_data: {count} training samples are asked for, and '{client}' has "
                f"{available}; ask for fewer, or leave this person out of the federation"
            )
        stream = RandomStream("few_data", self.seed, client)
        # The beginning of one permutation: a larger count includes the samples of a smaller one.
        rows = torch.randperm(available, generator=stream.torch())[:count]
        return splits.train.subset(rows.sort().values)


def tested_on(federation: Federation, condition: str, level: str) -> Federation:
    """Return the federation with one level of a condition in tests alone, and in all tests.

    Raises:
        ConfigError: the data have no such condition or level.
        DataError: a person has no samples of this level to test, or only such samples to train on.
    """
    known = federation.conditions
    if level not in known.get(condition, ()):
        listed = "; ".join(f"{name}: {', '.join(each[:10])}" for name, each in known.items())
        raise ConfigError(
            f"few_data: tested_on = ['{condition}', '{level}'] is not in the data; it has "
            f"{listed or 'no conditions: name columns in federation.columns.conditions'}"
        )
    column, code = list(known).index(condition), known[condition].index(level)
    people = {}
    for person, splits in federation.people.items():
        rows = {n: own.columns[CONDITIONS][:, column] == code for n, own in vars(splits).items()}
        rows |= {"train": ~rows["train"], "val": ~rows["val"]}
        for part, mask in rows.items():
            if not mask.any():
                what = f"with {condition} {level}" if part == "test" else "of other levels"
                raise DataError(
                    f"few_data: '{person}' has no {part} sample {what}, and tested_on needs one of "
                    "everybody: leave the person out with federation.people"
                )
        parts = {n: getattr(splits, n).subset(mask.nonzero()[:, 0]) for n, mask in rows.items()}
        people[person] = replace(splits, **parts)
    return replace(federation, people=people)
