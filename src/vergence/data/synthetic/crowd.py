"""A million made-up people, generated on demand, to measure the cost of a federation's size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge, Interval

from vergence.core.data import Splits
from vergence.core.federation import Dataset, Federation, Population
from vergence.core.randomness import RandomStream
from vergence.core.tags import literal_text, tagged
from vergence.data.io.checks import Check, compare
from vergence.data.synthetic.toy import person

# Ids have seven digits; with more people their order would not be that of the numbers.
MOST = 10_000_000
"""Most people of the data set."""


@tagged("Crowd")
@dataclass(frozen=True)
class Crowd(Dataset):
    """Linear data of any number of people, as in `toy`; a person is generated only when needed.

    Args:
        people: number of people.
        samples: number of samples of each person, of which 60 % are for training.
        inputs: number of input columns.
        strength: how much people's coefficients differ; 0: all people are alike.
        seed: seed of the data.
    """

    people: Annotated[int, Interval(ge=1, le=MOST)] = 1_000_000
    samples: Annotated[int, Ge(5)] = 20
    inputs: Annotated[int, Ge(1)] = 4
    strength: Annotated[float, Ge(0)] = 1.0
    seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Generate the coefficients that people have in common; a person is generated when needed.

        Columns of the samples: `x` float32 `[n, inputs]`, `y` float32 `[n]`. Person number i is the
        same, whatever the number of people is.
        """
        common = torch.randn(self.inputs, generator=RandomStream("crowd", self.seed).torch())

        def make(number: int) -> Splits:
            stream = RandomStream("crowd", self.seed, number)
            return person(stream, common, self.strength, self.samples)

        about = {"licence": "made up", "split": "60/20/20 at random", "citation": "none"}
        return Federation("crowd", Population(self.people, make, literal_text(self)), about)


def check(_root: Path | None = None) -> list[Check]:
    """Generate only the last person, and count people; return the lines of the check."""
    crowd = Crowd()
    people = crowd.load().people
    last = people[f"c{crowd.people - 1:07d}"]
    samples = len(last.train) + len(last.val) + len(last.test)
    return [
        compare("people", len(people), crowd.people),
        compare("samples of the last person", samples, crowd.samples),
    ]
