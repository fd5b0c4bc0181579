"""DP-SGD in a run: the solver that stands in for all others, and what a run of it spends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.core.federation import Federation
from vergence.core.messages import Reply
from vergence.core.method import Method
from vergence.core.requests import Compute, Fit, Mean
from vergence.core.task import Task
from vergence.engine.protections.dry_run import dry_run
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass, training_schedule, uncovered
from vergence.privacy.hooks import ClientHooks, Turn

if TYPE_CHECKING:
    from vergence.engine.plan import Plan

ONE_BY_ONE = "DP-SGD clips the gradient of every sample, which neither stacks nor graphs do"
"""Why clients with private solvers are trained one after the other."""


@dataclass(frozen=True)
class DpSgdHooks(ClientHooks):
    """Trains by DP-SGD, and answers nothing else about a client's training samples."""

    policy: DpSgd
    solver: DpSolver | None

    answers = (Fit, Mean, Compute)

    def answer(self, ask: Any, turn: Turn, then: Callable[[Any], Any]) -> Any:
        """Result of a training or a mean, with noise; of the rest, about validation data only.

        Raises:
            ConfigError: something else would look at training samples.
            DpSgdBudgetSpent: the client has no budget left.
        """
        if self.solver is None:
            return then(ask)
        if isinstance(ask, Mean):
            return self.solver.mean(turn.site, ask)
        if isinstance(ask, Fit):
            return self.solver.train(turn.site, ask, turn.batches(), turn.progress)
        if getattr(ask, "data", None) is not turn.site.val:
            raise uncovered(turn.message.verb, ask)
        return then(ask)

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Reply without metrics, which nothing hides."""
        return self.policy.leaving(reply)


def private_solver(
    method: Method, task: Task, federation: Federation, plan: Plan, state: Path
) -> DpSolver | None:
    """Solver that trains clients by DP-SGD, None where nothing asks for it.

    The noise of everybody is found here, before workers begin: it takes seconds.
    """
    policy = plan.privacy.solver
    if policy is None:
        return None
    passes = check_solver(policy, method, task, federation, plan)
    solver = DpSolver(task, policy, state, task.seed, passes)
    for size in {len(splits.train) for splits in federation.people.values()}:
        solver.noise(size)
    return solver


def check_solver(
    policy: DpSgd, method: Method, task: Task, federation: Federation, plan: Plan
) -> tuple[TrainingPass, ...]:
    """The trainings that a run of DP-SGD asks of every client, once it is known what they spend.

    Raises:
        ConfigError: it is more than is counted, or delta allows to publish a sample.
    """
    passes = dry_run(method, task, federation, plan.rounds)
    federation.refuse_many("finding the noise of DP-SGD")
    sizes = {len(splits.train) for splits in federation.people.values()} - {0}
    if sizes:
        policy.refuse_delta(max(sizes), "training samples of a client")
        spent = training_schedule(passes, min(sizes)).ledger(policy).epsilon(policy.delta)
        policy.refuse(spent, f"training on {min(sizes)} samples over {plan.rounds} rounds")
    return passes
