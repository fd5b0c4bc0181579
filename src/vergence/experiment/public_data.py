"""Public samples that a run's server holds: another data set, or what people released."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Interval

from vergence.core.data import Samples, Splits
from vergence.core.federation import Dataset, Federation, PublicData
from vergence.core.options import NamedOptions
from vergence.core.randomness import RandomStream
from vergence.core.task import Model


@dataclass(frozen=True)
class ReleasedSamples(NamedOptions, label="proxy"):
    """A share of everybody's training and validation samples, which are then theirs no more.

    Attributes:
        share: of the samples of each part, at least one.
        seed: fixes which.
    """

    share: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    seed: int = 0

    def move_to_server(self, federation: Federation) -> Federation:
        """Return the federation with these samples moved to its server."""
        federation.refuse_many("giving up samples")
        people: dict[str, Splits] = {}
        given: dict[str, list[Samples]] = {"train": [], "val": []}
        for person, splits in federation.people.items():
            kept = {}
            for part, gifts in given.items():
                gift, kept[part] = self.split_samples(getattr(splits, part), person, part)
                gifts.append(gift)
            people[person] = replace(splits, **kept)
        held = PublicData(*(Samples.concatenate(gifts) for gifts in given.values()))
        return replace(federation, people=people, proxies=held)

    def split_samples(self, samples: Samples, person: str, part: str) -> tuple[Samples, Samples]:
        """Samples of a part that a person gives up, and the rest, in its order."""
        draw = RandomStream("proxy", self.seed, person, part).torch()
        count = max(1, round(self.share * len(samples)))
        given = torch.zeros(len(samples), dtype=torch.bool)
        given[torch.randperm(len(samples), generator=draw)[:count]] = True
        return samples.subset(given.nonzero()[:, 0]), samples.subset((~given).nonzero()[:, 0])


def public_data_of(dataset: Dataset, root: str | None, model: Model) -> PublicData:
    """Return everybody's training and validation data of a data set, as a network wants it."""
    (data,) = model.prepare(dataset.load(root).pooled()).people.values()
    return PublicData(data.train, data.val)
