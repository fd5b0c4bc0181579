"""Few training samples: a nested draw from each person's training part, the same every time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Interval

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation, Population
from vergence.core.options import NamedOptions
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError, DataError, nearest


@dataclass(frozen=True)
class FewSamples(NamedOptions):
    """Number of training samples that people have; validation and test stay whole.

    Attributes:
        samples_per_person: training samples of everybody; None leaves all.
        label_poor: people who have fewer than the others, by name.
        label_poor_samples: training samples of each of them.
        seed: of the draw. A larger number of a seed holds the samples of a smaller one.
    """

    samples_per_person: Annotated[int, Ge(1)] | None = None
    label_poor: tuple[str, ...] = ()
    label_poor_samples: Annotated[int, Ge(1)] = 9
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def __bool__(self) -> bool:
        return self.samples_per_person is not None or bool(self.label_poor)

    def check(self, clients: Collection[str]) -> None:
        """Refuse a name that nobody has.

        Raises:
            ConfigError: names it.
        """
        for person in self.label_poor:
            if person not in clients:
                raise ConfigError(
                    f"few_data: label_poor names '{person}', who is not in the data"
                    f"{nearest(person, list(clients))}"
                )

    def count(self, client: str) -> int | None:
        """Number of training samples of a client; None for all."""
        return self.label_poor_samples if client in self.label_poor else self.samples_per_person

    def apply(self, federation: Federation) -> Federation:
        """Return the federation with fewer training samples; the same object where all are left.

        Args:
            federation: all people of the data, before any of them are taken out.

        Raises:
            ConfigError: `label_poor` names nobody.
            DataError: somebody has fewer samples than are asked for.
        """
        if not self:
            return federation
        self.check(federation.clients)
        about = {**federation.about, "few_data": self.sentence()}
        return replace(federation, people=self._people(federation.people), about=about)

    def sentence(self) -> str:
        """The draw in words, which name nobody."""
        told = []
        if self.samples_per_person is not None:
            told.append(f"{self.samples_per_person} training samples of each person")
        if self.label_poor:
            many = len(self.label_poor)
            who = f"each of {many} label-poor people" if many > 1 else "1 label-poor person"
            told.append(f"{self.label_poor_samples} training samples of {who}")
        return f"{'; '.join(told)}, drawn with seed {self.seed}; validation and test are whole"

    def _people(self, people: Mapping[str, Splits]) -> Mapping[str, Splits]:
        if not isinstance(people, Population):
            return {client: self._splits(client, splits) for client, splits in people.items()}
        ids = people.ids
        return Population(
            len(people),
            lambda number: self._splits(ids[number], people[ids[number]]),
            f"{people.recipe} {self!r}",
        )

    def _splits(self, client: str, splits: Splits) -> Splits:
        count = self.count(client)
        return splits if count is None else replace(splits, train=self._few(client, splits, count))

    def _few(self, client: str, splits: Splits, count: int) -> Samples:
        there = len(splits.train)
        if there < count:
            raise DataError(
                f"few_data: {count} training samples are asked for, and '{client}' has {there}; "
                "ask for fewer, or leave this person out of the federation"
            )
        stream = RandomStream("few_data", self.seed, client)
        drawn = torch.randperm(there, generator=stream.torch())[:count]
        return splits.train.subset(drawn.sort().values)
