"""What a run's table `privacy` puts in place, and what it refuses before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vergence.core.method import Method
from vergence.core.site import Federation
from vergence.core.task import Task
from vergence.engines import cut
from vergence.engines.choosing import foreseen
from vergence.engines.plan import Plan
from vergence.engines.presence import suggest
from vergence.engines.rehearsal import rehearsed
from vergence.engines.sums import sums_for
from vergence.engines.veil import Veil, forecast
from vergence.errors import ConfigError
from vergence.privacy.dp_solver import DpSolver, taken
from vergence.privacy.watch import Watch
from vergence.privacy.watching import Watching

ONE_BY_ONE = "DP-SGD clips the gradient of every sample, which neither stacks nor graphs do"
"""Why clients with private solvers are trained one after the other."""


def veil_for(plan: Plan, method: Method, people: int, state: Path, seed: int) -> Veil | None:
    """Return what hides people in sums, None where nothing does."""
    user = plan.privacy.user
    return None if user is None else Veil(user, plan, method, people, state, seed)


def private_solver(
    method: Method, task: Task, federation: Federation, plan: Plan, state: Path
) -> DpSolver | None:
    """Return what trains clients by DP-SGD, None where nothing asks for it.

    The noise of everybody is found here, before workers begin: it takes seconds.
    """
    policy = plan.privacy.solver
    if policy is None:
        return None
    lessons = rehearsed(method, task, federation, plan.rounds)
    solver = DpSolver(task, policy, state, task.seed, lessons)
    federation.refuse_many("finding the noise of DP-SGD")
    for size in {len(splits.train) for splits in federation.people.values()}:
        solver.noise(size)
    return solver


def watch_for(
    plan: Plan,
    method: Method,
    task: Task,
    federation: Federation,
    state: Path,
    tell: Callable[[str], None] = lambda _: None,
) -> Watch | None:
    """Return what clients make of their server, None where they trust it or nobody is here.

    A line is told where a verdict turns.
    """
    policy = plan.privacy.split_guard
    if policy is None or not federation.clients:
        return None
    _check_watch(policy, method, task, federation)
    return Watch(policy, task.labels, state, task.seed, tell)


def _check_watch(policy: Watching, method: Method, task: Task, federation: Federation) -> None:
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
        cut.outlook(plan, method, task, federation)
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
        seen = federation.only(federation.clients[:1])
        rehearsed(method, task, seen, plan.rounds)
