"""Linear toy data of made-up people who weigh the same inputs differently.

Used by `data.synthetic.crowd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import MANY, Dataset, Federation, PublicData
from vergence.core.randomness import RandomStream


@dataclass(frozen=True)
class Toy(Dataset):
    """Linear data; a person's coefficients are common ones plus `strength` times personal ones.

    Args:
        people: number of people; all are generated at once, unlike in the data set `crowd`.
        samples: person i has `samples * (1 + i % 3)` samples.
        inputs: number of input columns.
        strength: how much people's coefficients differ; 0: all people are alike.
        seed: seed of the data.
    """

    people: Annotated[int, Interval(ge=1, le=MANY)] = 3
    samples: Annotated[int, Interval(ge=4, le=1_000_000)] = 20
    inputs: Annotated[int, Interval(ge=1, le=100_000)] = 4
    strength: Annotated[float, Ge(0)] = 1.0
    seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Generate the data: `x` float32 `[n, inputs]` and `y` float32 `[n]`, split 60/20/20.

        Public proxy data come from one more person, who has no coefficients in common with the
        others.
        """
        common = torch.randn(self.inputs, generator=RandomStream("toy", self.seed).torch())
        people = {f"p{i:02d}": self._person(i, common) for i in range(self.people)}
        about = {"licence": "made up", "split": "60/20/20 at random", "citation": "none"}
        # Public data come from a person who shares nothing with the others.
        nobody = person(RandomStream("toy", self.seed, "nobody"), common * 0, 1.0, 100)
        return Federation("toy", people, about, PublicData(nobody.train, nobody.val))

    def _person(self, number: int, common: Tensor) -> Splits:
        stream = RandomStream("toy", self.seed, number)
        return person(stream, common, self.strength, self.samples * (1 + number % 3))


def person(stream: RandomStream, common: Tensor, strength: float, samples: int) -> Splits:
    """Generate one person's inputs `x` `[n, inputs]` and targets `y` `[n]`, split 60/20/20.

    y = x . (common + strength * own) + noise. The inputs and `own` are standard normal; the noise
    has standard deviation 0.1.
    """
    generator = stream.torch()
    own = common + strength * torch.randn(len(common), generator=generator)
    x = torch.randn(samples, len(common), generator=generator)
    y = x @ own + 0.1 * torch.randn(samples, generator=generator)
    a, b = samples * 6 // 10, samples * 8 // 10
    parts = [
        Samples({"x": x[rows], "y": y[rows]})
        for rows in (slice(0, a), slice(a, b), slice(b, samples))
    ]
    return Splits(*parts)
