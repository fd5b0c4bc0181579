"""What a run's table `privacy` puts in place, and what it refuses before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine import split_defense
from vergence.engine.dry_run import dry_run
from vergence.engine.participation import suggest
from vergence.engine.plan import Plan
from vergence.engine.private_masks import foreseen
from vergence.engine.secure_sums import sums_for
from vergence.engine.user_level_privacy import UserLevelMechanism, forecast
from vergence.errors import ConfigError
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass, taken, training_schedule
from vergence.privacy.split.split_guard_client import SplitGuardClient
from vergence.privacy.split.split_guard_config import SplitGuardConfig

ONE_BY_ONE = "DP-SGD clips the gradient of every sample, which neither stacks nor graphs do"
"""Why clients with private solvers are trained one after the other."""


def user_level_for(
    plan: Plan, method: Method, people: int, state: Path, seed: int
) -> UserLevelMechanism | None:
    """Mechanism that hides people in sums, None where nothing does."""
    user = plan.privacy.user
    return None if user is None else UserLevelMechanism(user, plan, method, people, state, seed)


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


def watch_for(
    plan: Plan,
    method: Method,
    task: Task,
    federation: Federation,
    state: Path,
    tell: Callable[[str], None] = lambda _: None,
) -> SplitGuardClient | None:
    """Watch of clients over their server, None where they trust it or nobody is here.

    A line is told where a verdict turns.
    """
    policy = plan.privacy.split_guard
    if policy is None or not federation.clients:
        return None
    _check_watch(policy, method, task, federation)
    return SplitGuardClient(policy, task.labels, state, task.seed, tell)


def _check_watch(
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


def check_privacy(method: Method, task: Task, federation: Federation, plan: Plan) -> None:
    """Refuse what these people's data or their number does not allow, before anything is trained.

    Raises:
        ConfigError: says why.
    """
    sums_for(plan, method, len(federation.clients))
    if plan.privacy.user is not None:
        forecast(plan.privacy.user, plan, method, len(federation.clients))
    if plan.privacy.cut is not None:
        split_defense.outlook(plan, method, task, federation)
    if plan.privacy.mask is not None:
        foreseen(plan, method, task, federation)
    if plan.privacy.split_guard is not None:
        _check_watch(plan.privacy.split_guard, method, task, federation)
    policy = plan.privacy.output_range
    if policy is not None and policy.root not in federation.people:
        raise ConfigError(
            f"privacy.output_range: root: no client '{policy.root}'"
            f"{suggest(policy.root, federation.clients)}"
        )
    if plan.privacy.solver is not None:
        check_solver(plan.privacy.solver, method, task, federation, plan)
