"""What client code can use while it handles one message: data, task and randomness.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from vergence.core.data import Samples
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.task import Task


class MaskChooser(Protocol):
    """A function that chooses which parameter entries become personal."""

    def __call__(self, score: Params, k: int | Mapping[str, int], among: Mask) -> Mask:
        """Return a mask of at most `k` entries, or at most `k[name]` entries of each tensor.

        Only entries where `among` is true are chosen: those with the highest scores. Scores are
        computed from a person's data. Under a privacy budget the choice is therefore random, and
        entries with higher scores are more probable.
        """
        ...


BatchDrawer = Callable[[int], Tensor | None]
"""Returns the sample numbers of a batch of a client's round, by the batch's number.

None comes after the last batch. A batch can be empty.
"""


@dataclass(frozen=True)
class ClientContext:
    """What client code can use while it handles one message: data, task and randomness."""

    id: str
    train: Samples
    val: Samples
    task: Task
    round: int
    rng: RandomStream
    progress: float = 0.0
    """Fraction of the run's rounds that are finished, from 0 to 1; for learning-rate schedules."""
    choose: MaskChooser = Mask.best
    """Chooses personal entries by their scores; under a privacy budget the choice is random."""
    draw: BatchDrawer | None = None
    """Draws the batches of split learning in a run with privacy for samples; otherwise None."""

    def weight(self, weights: Literal["samples", "equal"]) -> float:
        """Return the weight of the client's reply.

        The weight is the task's weight of the training data (default: the number of samples) if
        `weights` is `samples`, else 1.
        """
        return self.task.weigh(self.train) if weights == "samples" else 1.0
