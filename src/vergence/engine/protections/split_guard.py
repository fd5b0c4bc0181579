"""SplitGuard in a run: where clients of split learning lie about labels, to test their server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Reply
from vergence.core.method import Method
from vergence.core.requests import Step, StepResult
from vergence.core.stages import PULL
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.methods.split.base import ClientFront
from vergence.privacy.dp.dp_sgd_solver import taken
from vergence.privacy.hooks import ClientHooks, Turn
from vergence.privacy.split.split_guard import SplitGuardConfig
from vergence.privacy.split.split_guard_client import SplitGuardClient

if TYPE_CHECKING:
    from vergence.engine.plan import Plan


@dataclass(frozen=True)
class SplitGuardHooks(ClientHooks):
    """Sends false labels now and then, and listens to how the server answers."""

    watch: SplitGuardClient
    local: LocalTraining

    answers = (Step,)

    def answer(self, ask: Step, turn: Turn, then: Callable[[Any], Any]) -> Any:
        """Result of a step; where the client lied about the batch, it learns nothing from it.

        Raises:
            DpSgdBudgetSpent: the client accuses its server, and stops.
        """
        state = turn.before
        if PULL not in ask.batch or not isinstance(state, ClientFront):
            return then(ask)
        at = self._batch(turn, state.drawn - len(state.waiting))  # the one that waited longest
        self.watch.hear(*at, ask.batch[PULL])
        return StepResult(ask.params, ask.optimiser, 0.0) if self.watch.lies(*at) else then(ask)

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Reply for a batch, with false labels where the client lies."""
        if not isinstance(turn.after, ClientFront):
            return reply
        return self.watch.leaving(*self._batch(turn, turn.after.drawn - 1), reply)

    def _batch(self, turn: Turn, number: int) -> tuple[str, int, int, int]:
        """Client of a batch, its round, the batch's number, and how many the round has."""
        of = taken(self.local, len(turn.site.train))
        return turn.site.id, turn.message.round, number, of


def split_guard_hooks(
    plan: Plan,
    method: Method,
    task: Task,
    federation: Federation,
    state: Path,
    tell: Callable[[str], None] = lambda _: None,
) -> SplitGuardHooks | None:
    """Watch of clients over their server, None where they trust it or nobody is here.

    A line is told where a verdict turns.
    """
    policy = plan.privacy.split_guard
    if policy is None or not federation.clients:
        return None
    check_split_guard(policy, method, task, federation)
    watch = SplitGuardClient(policy, task.labels, state, task.seed, tell)
    return SplitGuardHooks(watch, method.local)


def check_split_guard(
    policy: SplitGuardConfig, method: Method, task: Task, federation: Federation
) -> None:
    """Refuse labels that cannot be moved, and rounds without a whole block.

    Raises:
        ConfigError: says which.
    """
    federation.refuse_many("counting batches")
    shortest = min((s.train for s in federation.people.values()), key=len)
    if not all(shortest.columns[name].is_floating_point() for name in task.labels):
        raise ConfigError(
            "privacy.split_guard moves labels that are numbers, and here they are classes; leave "
            "it out"
        )
    batches = taken(method.local, len(shortest))
    if batches < policy.every:
        raise ConfigError(
            f"privacy.split_guard: a block is of {policy.every} batches of one round, and somebody "
            f"has {batches}; take smaller batches, more local epochs, or a smaller every"
        )
