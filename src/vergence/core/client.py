"""The client context of one turn: the client's own data, the task, and its randomness."""

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

        Those whose score is highest, or likelier those: a score is made from a person's data.
        """
        ...


class BatchDrawer(Protocol):
    """Draws the batches of a round."""

    def __call__(self, at: int) -> Tensor | None:
        """Return the sample numbers of a batch, counted from 0, maybe none; None: no more come."""
        ...


@dataclass(frozen=True)
class ClientContext:
    """A client's place during one turn: its training and validation data, task and randomness."""

    id: str
    train: Samples
    val: Samples
    task: Task
    round: int
    rng: RandomStream
    progress: float = 0.0
    """Share of the rounds done, which schedules follow."""
    choose: MaskChooser = Mask.best
    """How entries are chosen by what data say: by a run's privacy, not by chance of its seed."""
    draw: BatchDrawer | None = None
    """How the batches of split learning are drawn, where a run's privacy has a say in it."""

    def weight(self, weights: Literal["samples", "equal"]) -> float:
        """Return the weight of a reply: by samples, that of the training data, else 1."""
        return self.task.weigh(self.train) if weights == "samples" else 1.0
