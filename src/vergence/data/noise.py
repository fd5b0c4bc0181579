"""Noisy clients: Gaussian noise on the training inputs of a fraction of the people.

Used by `api.from_objects`, `experiment.privacy.schema`, `experiment.schema` and `studies.skew`.

Source: adaptive-FL paper, section 3.4 and Fig. 4 (deviation 0.5, after Mills et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation, Population
from vergence.core.naming import list_names
from vergence.core.options import NamedOptions, Share
from vergence.core.randomness import RandomStream
from vergence.errors import DataError

TARGETS = ("gaze", "pose", "points", "label", "y")
"""Names of columns with labels and targets; no noise is added to these columns."""
# Noise in float32 takes four times the memory of pictures: it is drawn for some rows at a time.
CHUNK = 256
LISTED = 40
"""Most noisy people whom `Federation.about` names."""


@dataclass(frozen=True)
class Noise(NamedOptions):
    """Options of noise in some people's training inputs; validation and test samples stay clean.

    Attributes:
        share: fraction of the people with noise; 0: nobody. With the same seed, a larger fraction
            includes the people of a smaller one.
        std: standard deviation of the noise. For pictures (uint8) it is multiplied by 255; noisy
            pictures are rounded and clipped. For inputs of a floating type it is used as it is.
        seed: seed of the choice of people and of the noise values.
    """

    share: Share = 0.0
    std: Annotated[float, Interval(ge=0, le=10)] = 0.5
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def noisy_clients(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Return the noisy clients, in the order of `clients`.

        Their number is `share` times the number of clients, rounded up.
        """
        # A rank by name and seed alone: a larger share includes the people of a smaller one.
        ranked = sorted(clients, key=lambda c: RandomStream("noise", self.seed, c).number())
        # 0.07 * 100 is a little more than 7 in floating point, and must not give 8 people.
        noisy = set(ranked[: math.ceil(self.share * len(ranked) - 1e-9)])
        return tuple(client for client in clients if client in noisy)

    def apply(self, federation: Federation) -> Federation:
        """Return the federation with noisy training inputs; the same object if nobody is noisy.

        Noise is added to pictures (uint8). A client without pictures gets noise on inputs of a
        floating type instead. If samples refer to rows of a shared array (a bank), a noisy client
        gets a copy of the rows that it trains on. So rows that others use, or its own validation
        and test samples, stay clean.

        Raises:
            DataError: a noisy client has neither pictures nor inputs of a floating type.
            ConfigError: there are more than 100,000 people who are generated on demand.
        """
        if not (self.share and self.std):
            return federation
        federation.refuse_many("choosing noisy people")
        if not (noisy := self.noisy_clients(federation.clients)):
            return federation
        about = {**federation.about, "noise": self._sentence(noisy, len(federation.clients))}
        return replace(federation, people=self._people(federation, set(noisy)), about=about)

    def _people(self, federation: Federation, noisy: set[str]) -> Mapping[str, Splits]:
        people = federation.people
        if not isinstance(people, Population):
            return {c: self._splits(c, s) if c in noisy else s for c, s in people.items()}

        def make(number: int) -> Splits:
            client = ids[number]
            return self._splits(client, people[client]) if client in noisy else people[client]

        ids = people.ids
        return Population(len(people), make, f"{people.recipe} {self!r}")

    def _sentence(self, noisy: tuple[str, ...], people: int) -> str:
        return (
            f"Gaussian, standard deviation {self.std:g} of inputs in [0, 1], on the training data "
            f"of {len(noisy)} of {people} people (seed {self.seed}): "
            f"{list_names(noisy, LISTED)}"
        )

    def _splits(self, client: str, splits: Splits) -> Splits:
        return replace(splits, train=self._noisy(client, splits.train))

    def _noisy(self, client: str, samples: Samples) -> Samples:
        columns, banks = _inputs(samples, client)
        generator = RandomStream("noise", self.seed, client, "values").torch()
        changed = {n: self._add(samples.columns[n], generator) for n in columns}
        own = dict(samples.banks)
        for by in dict.fromkeys(samples.banks[name].by for name in banks):
            # Other people may use the same rows of a bank: this client gets a copy of its own.
            used, place = samples.columns[by].unique(return_inverse=True)
            changed[by] = place.to(samples.columns[by].dtype)
            for name, bank in samples.banks.items():
                if bank.by == by:
                    rows = bank.rows[used]
                    own[name] = SharedRows(
                        self._add(rows, generator) if name in banks else rows, by
                    )
        return Samples({**samples.columns, **changed}, own)

    def _add(self, values: Tensor, generator: torch.Generator) -> Tensor:
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        for start in range(0, len(values), CHUNK):
            part = slice(start, start + CHUNK)
            noise = self.std * torch.randn(values[part].shape, generator=generator)
            if values.dtype == torch.uint8:
                out[part] = (values[part] + 255 * noise).round_().clamp_(0, 255).to(torch.uint8)
            else:
                out[part] = values[part] + noise.to(values.dtype)
        return out


def _inputs(samples: Samples, client: str) -> tuple[list[str], list[str]]:
    """Return the names of the columns that get noise, and the names of the banks that get noise.

    Raises:
        DataError: a client has neither pictures nor inputs of a floating type.
    """
    plain = {n: c for n, c in samples.columns.items() if n not in TARGETS}
    rows = {n: bank.rows for n, bank in samples.banks.items()}
    columns = [n for n, c in plain.items() if c.dtype == torch.uint8 and c.ndim >= 3]
    banks = [n for n, r in rows.items() if r.dtype == torch.uint8]
    if not columns + banks:
        columns = [n for n, c in plain.items() if c.is_floating_point()]
        banks = [n for n, r in rows.items() if r.is_floating_point()]
    if not columns + banks:
        raise DataError(
            f"noise needs pictures (uint8) or inputs of a floating type; '{client}' has "
            f"{', '.join([*samples.columns, *samples.banks])}: leave noise out"
        )
    return columns, banks
