"""Records of one turn of a client: its task, its state, its result; batches and groups of them.

Used in `adaptation`, `deployment`, `engine`, `experiment` and `video`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal

from vergence.core.aggregation import Sum
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.engine.storage.state_journal import StateRef

QUARANTINED = "quarantined: "
"""Begins the status of a client whose reply does not count, before the reason."""


@tagged("Call")
@dataclass(frozen=True)
class ClientTask:
    """One client's part of a batch.

    Attributes:
        client: name of the client.
        message: the message that the client is sent.
        file: name of the file with the client's state; None: the client never took part.
        spare: name of a file that nobody needs, which the new state may overwrite.
    """

    client: str
    message: Message
    file: str | None = None
    spare: str | None = None


@tagged("Lab")
@dataclass(frozen=True)
class LabState:
    """State of a lab: the method's client state of each of its people, by name.

    People without a state are absent.
    """

    people: Mapping[str, object] = field(default_factory=dict)


@tagged("Kept", known_masks="told", residuals="owed")
@dataclass(frozen=True)
class ClientState:
    """State that a client keeps between turns.

    Masks and residuals change only with a reply that counted: a server that did not receive a reply
    does not know its masks either.

    Attributes:
        state: the method's state of a client, or a `LabState`; None: the client never took part.
        known_masks: for each tree, the mask that the server knows from this client's replies.
        residuals: for each tree, the part of updates that a lossy codec has not sent yet.
    """

    state: object = None
    known_masks: Mapping[str, Mask] = field(default_factory=dict)
    residuals: Mapping[str, Params] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """True if there is nothing to keep."""
        parts = (
            self.state.people
            if isinstance(self.state, LabState)
            else is_dataclass(self.state) and fields(self.state)
        )
        return not (parts or self.known_masks or self.residuals)


@dataclass(frozen=True)
class TaskBatch:
    """Batch of tasks that the round loop gives to a worker pool.

    Attributes:
        kind: `turn`: clients take a turn; `evaluate`: they are measured; `serve`: split learning,
            in which a copy of the server's part serves clients.
        tasks: the tasks of all groups, one group after the other.
        groups: number of tasks in each group. One worker carries out a group and, if the request
            reveals only the aggregate, adds up its replies.
        reveal: whether replies are added up, or each is handed to the server.
        stamp: name of the batch, unique within a run; names of state files contain it.
        progress: share of the run's rounds that are done.
        points: evaluation points at which people are measured.
        templates: for `serve` batches, the initial model of the server's copies (one per client if
            `alone`, else one per group). For other batches, reference trees that, with the trees
            sent to the client, are used to check the shapes of replies.
        alone: whether each client has a copy of the server's part for itself.
    """

    kind: Literal["turn", "evaluate", "serve"]
    tasks: Sequence[ClientTask]
    groups: Sequence[int]
    reveal: Literal["aggregate", "each"] = "aggregate"
    stamp: str = ""
    progress: float = 0.0
    points: tuple[str, ...] = ()
    templates: Mapping[str, Params] = field(default_factory=dict)
    alone: bool = False

    def group(self, number: int) -> Sequence[ClientTask]:
        """Return the tasks of one group."""
        start = sum(self.groups[:number])
        return self.tasks[start : start + self.groups[number]]


@dataclass(frozen=True)
class ClientResult:
    """Result of a client's task as plain data, without its reply and its state.

    Attributes:
        client: name of the client.
        status: `ok`, or why the reply does not count, as turns.csv shows it.
        up: bytes that were sent to the server, by tree.
        weight: the largest weight of an entry, by tree.
        examples: weight of the training data, as the task counts it.
        steps: number of optimiser steps.
        metrics: metrics in the reply.
        measured: metrics of the engine's evaluation, by evaluation point.
        filed: reference to the new state; None: no state was written.
        share: share of the entries that are personal; None: the method has no mask.
        down: bytes that the client received, by tree, where it received several messages; None: it
            received the task's message alone.
    """

    client: str
    status: str = "ok"
    up: Mapping[str, int] = field(default_factory=dict)
    weight: Mapping[str, float] = field(default_factory=dict)
    examples: float = 0.0
    steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    filed: StateRef | None = None
    share: float | None = None
    down: Mapping[str, int] | None = None


@dataclass
class GroupResult:
    """Outcome of a group of tasks.

    Attributes:
        results: one result for each task.
        sum: weighted sum of the replies that count, where only their sum is revealed.
        replies: each reply that counts, by client, where each is revealed.
    """

    results: list[ClientResult]
    sum: Sum
    replies: dict[str, SealedReply] = field(default_factory=dict)


def numbers(measured: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return metrics as Python floats, whatever number types the task calculates with."""
    return {point: {n: float(v) for n, v in values.items()} for point, values in measured.items()}
