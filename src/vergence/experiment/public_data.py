"""Public samples of a run's server: another data set, or samples that people release.

Used by `deployment.joined_node` and `experiment.schema`.
"""

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
    """Release of a random fraction of each person's samples to the server.

    Attributes:
        share: fraction of a person's training samples, and of the validation samples; at least one
            sample of each is released.
        seed: seed for drawing these samples.
    """

    share: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    seed: int = 0

    def move_to_server(self, federation: Federation) -> Federation:
        """Return the federation with the released samples moved from people to the server.

        The samples become the server's public data.
        """
        federation.refuse_many("giving up samples")
        people: dict[str, Splits] = {}
        public: dict[str, list[Samples]] = {"train": [], "val": []}
        for person, splits in federation.people.items():
            private = {}
            for part, released in public.items():
                samples, private[part] = self.split_samples(getattr(splits, part), person, part)
                released.append(samples)
            people[person] = replace(splits, **private)
        proxies = PublicData(*(Samples.concatenate(released) for released in public.values()))
        return replace(federation, people=people, proxies=proxies)

    def split_samples(self, samples: Samples, person: str, part: str) -> tuple[Samples, Samples]:
        """Split samples at random; return the samples to release and the others, in their order.

        Args:
            samples: a person's training or validation samples.
            person: name of the person.
            part: `train` or `val`.
        """
        # Each person and part has its own stream, so that nobody's draw depends on other people.
        draw = RandomStream("proxy", self.seed, person, part).torch()
        count = max(1, round(self.share * len(samples)))
        mask = torch.zeros(len(samples), dtype=torch.bool)
        mask[torch.randperm(len(samples), generator=draw)[:count]] = True
        return samples.subset(mask.nonzero()[:, 0]), samples.subset((~mask).nonzero()[:, 0])


def public_data_of(dataset: Dataset, root: str | None, model: Model) -> PublicData:
    """Return the training and validation data of all people of a data set, prepared for a network.

    `root` is the folder of the data set's files.
    """
    (data,) = model.prepare(dataset.load(root).pooled()).people.values()
    return PublicData(data.train, data.val)
