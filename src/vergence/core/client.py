"""The client context of one turn: the client's own data, the task, and its randomness.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from vergence.core.data import Samples
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.task import Task


class MaskChooser(Protocol):
    """Chooses which entries become personal."""

    def __call__(self, score: Params, k: int | Mapping[str, int], among: Mask) -> Mask:
        """Return at most k entries, or `k[name]` of each tensor, where `among` is true.

        The mask holds the entries with the highest scores. Under a privacy budget the choice is
        random, and entries with higher scores are more probable, as scores are computed from a
        person's data.
        """
        ...


class BatchDrawer(Protocol):
    """Draws the batches of a round."""

    def __call__(self, at: int) -> Tensor | None:
        """Return the sample numbers of batch `at`, possibly none; None after the last batch."""
        ...


@dataclass(frozen=True)
class ClientContext:
    """What client code sees during one turn: training and validation data, task, randomness."""

    id: str
    train: Samples
    val: Samples
    task: Task
    round: int
    rng: RandomStream
    progress: float = 0.0
    """Share of the rounds done, from 0 to 1, for schedules."""
    choose: MaskChooser = Mask.best
    """Chooses personal entries by their scores; a run's privacy may make the choice random."""
    draw: BatchDrawer | None = None
    """Draws the batches of split learning, where a run's privacy prescribes how."""

    def weight(self, weights: Literal["samples", "equal"]) -> float:
        """Return a reply's weight: that of the training data if `weights` is `samples`, else 1."""
        return self.task.weigh(self.train) if weights == "samples" else 1.0
