"""Records of clients' work: tasks, states and results of single clients, and batches of tasks.

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
"""First word of the status of a client whose reply does not count; the reason follows."""


@tagged("Call")
@dataclass(frozen=True)
class ClientTask:
    """One client's task in a batch: to take a turn, or to be evaluated.

    Attributes:
        client: name of the client.
        message: the message that the client is sent.
        file: name of the file with the client's state; None: the client never took part.
        spare: name of an unneeded file, which the new state may overwrite; None: there is none.
    """

    client: str
    message: Message
    file: str | None = None
    spare: str | None = None


@tagged("Lab")
@dataclass(frozen=True)
class LabState:
    """State of a lab (a client with several people): person -> the method's state of the person.

    People without a state are absent.
    """

    people: Mapping[str, object] = field(default_factory=dict)


@tagged("Kept", known_masks="told", residuals="owed")
@dataclass(frozen=True)
class ClientState:
    """State that a client keeps between turns.

    Masks and residuals change only with a reply that counted: the server knows only the masks in
    replies that it received.

    Attributes:
        state: the method's state of a client, or a `LabState`; None: the client never took part.
        known_masks: tree name -> the mask that the server knows from this client's replies.
        residuals: tree name -> the part of updates that a lossy codec has not sent yet.
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
    """Batch of clients' tasks that the round loop gives to a worker pool.

    Attributes:
        kind: `turn`: clients train or do other work on a message. `evaluate`: people are evaluated.
            `serve`: split learning, in which clients train with copies of the server's layers.
        tasks: the tasks of all groups, one group after the other.
        groups: number of tasks in each group. One worker carries out a group.
        reveal: `aggregate`: the worker adds up a group's replies; `each`: every reply is handed to
            the server.
        stamp: name of the batch, unique within a run; names of state files contain it.
        progress: fraction of the run's rounds that are done.
        points: evaluation points (such as P0) at which people are evaluated.
        templates: for `serve` batches, the initial parameters of the server's copies. For other
            batches, reference trees; with the trees of the message, they give the shapes that
            replies must have.
        alone: in `serve` batches, whether each client trains with its own copy; else each group has
            one copy.
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
        up: tree name -> bytes that were sent to the server.
        weight: tree name -> the largest weight of an entry.
        examples: weight of the training data, as the task counts it.
        steps: number of optimiser steps.
        metrics: metrics in the reply.
        measured: evaluation point (such as P0) -> metrics of the engine's evaluation.
        filed: reference to the file of the new state; None: no state was written.
        share: fraction of the parameters that are personal; None: the method has no mask.
        down: tree name -> bytes that the client received in several messages. None: it received the
            task's message only.
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
    """Results of a group of tasks.

    Attributes:
        results: one result for each task.
        sum: weighted sum of the replies that count; empty if each reply is revealed.
        replies: client -> reply that counts; empty if only the sum is revealed.
    """

    results: list[ClientResult]
    sum: Sum
    replies: dict[str, SealedReply] = field(default_factory=dict)


def numbers(measured: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return evaluation point -> metric -> value, with all values as Python floats."""
    return {point: {n: float(v) for n, v in values.items()} for point, values in measured.items()}
