"""Records of one update: a client's task, its state, its result; batches and groups of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

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
    """One client's part of a batch: what it is sent, and where its state lies (None: nowhere yet).

    `spare` is a file that a new state may be written over.
    """

    client: str
    message: Message
    file: str | None = None
    spare: str | None = None


@tagged("Lab")
@dataclass(frozen=True)
class LabState:
    """State of a lab: a method's state for each of its people who keeps anything."""

    people: Mapping[str, Any] = field(default_factory=dict)


@tagged("Kept")
@dataclass(frozen=True)
class ClientState:
    """State that a client keeps between turns.

    `state` is the method's, or a lab's, None of a client that never took part; `told` holds, per
    tree, the mask the server has from this client, and `owed` what a lossy codec has not yet sent.
    The last two change only when a reply counted.
    """

    state: Any = None
    told: Mapping[str, Mask] = field(default_factory=dict)
    owed: Mapping[str, Params] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """True if there is nothing to keep."""
        held = self.state.people if isinstance(self.state, LabState) else fields(self.state)
        return not (held or self.told or self.owed)


@dataclass(frozen=True)
class TaskBatch:
    """Work that a worker pool is given at once.

    `groups` are lengths: so many tasks in a row are carried out by one worker and, if the request
    reveals only the aggregate, added up there. `stamp` is new for every batch of a run. `held` is
    what a server's copies start from where clients are served, one copy for each client where
    `alone`, else for each group; of other batches, what the guards compare replies with besides
    what the client was sent.
    """

    kind: Literal["turn", "evaluate", "serve"]
    tasks: Sequence[ClientTask]
    groups: Sequence[int]
    reveal: Literal["aggregate", "each"] = "aggregate"
    stamp: str = ""
    progress: float = 0.0
    points: tuple[str, ...] = ()
    held: Mapping[str, Params] = field(default_factory=dict)
    alone: bool = False

    def group(self, number: int) -> Sequence[ClientTask]:
        """Return the tasks of one group."""
        start = sum(self.groups[:number])
        return self.tasks[start : start + self.groups[number]]


@dataclass(frozen=True)
class ClientResult:
    """Result of a client's task; plain data, without its reply and its state.

    `up` and `weight` are per tree: bytes on the wire and the largest weight of an entry. `told`
    are the reply's metrics, `measured` the engine's, per point. `filed` is the new state. `down`
    is given where more than one message was sent.
    """

    client: str
    status: str = "ok"
    up: Mapping[str, int] = field(default_factory=dict)
    weight: Mapping[str, float] = field(default_factory=dict)
    examples: float = 0.0
    steps: int = 0
    told: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    filed: StateRef | None = None
    share: float | None = None
    down: Mapping[str, int] | None = None


@dataclass
class GroupResult:
    """Outcome of a group: a result per task, and the replies that count, summed or each."""

    results: list[ClientResult]
    sum: Sum
    replies: dict[str, SealedReply] = field(default_factory=dict)


def numbers(measured: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return metrics as plain numbers, whatever a task calculates with."""
    return {point: {n: float(v) for n, v in found.items()} for point, found in measured.items()}
