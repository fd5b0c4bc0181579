"""Protections of a run: the hooks that its table `privacy` asks for, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.participation import suggest
from vergence.engine.plan import Plan
from vergence.engine.protections import split_defense
from vergence.engine.protections.dp_sgd import DpSgdHooks, check_solver, private_solver
from vergence.engine.protections.output_range import OutputRangeHooks
from vergence.engine.protections.private_masks import foreseen, mask_hooks
from vergence.engine.protections.split_guard import check_split_guard, split_guard_hooks
from vergence.engine.protections.user_level import (
    UserLevelHooks,
    UserLevelMechanism,
    covered_in,
    forecast,
)
from vergence.engine.secure_sums import sums_for
from vergence.errors import ConfigError
from vergence.privacy.hooks import ClientHooks, ProtectedRun, ServerHooks
from vergence.privacy.release_log import FOLDER


def client_hooks(
    plan: Plan,
    method: Method,
    task: Task,
    federation: Federation,
    state: Path,
    tell: Callable[[str], None] = lambda _: None,
    here: bool = True,
) -> tuple[ClientHooks, ...]:
    """Hooks of clients' turns in a run, in the order in which they are asked.

    Of clients that are not `here` only those that hold no secret and no book.

    Args:
        plan: the run's.
        method: of the run.
        task: of the run.
        federation: the people who train here.
        state: folder of states, where secrets and books lie.
        tell: is given lines for the operator of the clients' machine, and for nobody else.
        here: whether people's data are at hand.
    """
    privacy, user = plan.privacy, plan.privacy.user
    covered = state / FOLDER / covered_in(task.seed)
    guard = split_defense.defended_trainer(plan, method, task, federation, state) if here else None
    found: list[ClientHooks | None] = [
        split_guard_hooks(plan, method, task, federation, state, tell) if here else None,
        guard,
        None if user is None else UserLevelHooks(user, covered, tell),
        mask_hooks(plan, method, task, federation, state) if here else None,
    ]
    if privacy.solver is not None:
        solver = private_solver(method, task, federation, plan, state) if here else None
        found.append(DpSgdHooks(privacy.solver, solver))
    if (ranges := privacy.output_range) is not None:
        noisy = None if guard is None else guard.noisy_output
        found.append(OutputRangeHooks(ranges, method, task, federation, noisy))
    run = ProtectedRun(method, task, federation, plan.rounds, state, here)
    found += [protection.client(run) for protection in privacy.own]
    return tuple(hooks for hooks in found if hooks is not None)


def server_hooks(
    plan: Plan, method: Method, task: Task, federation: Federation, state: Path
) -> tuple[ServerHooks, ...]:
    """Hooks of a run's server, in the order in which they are asked."""
    user, found = plan.privacy.user, list[ServerHooks]()
    if user is not None:
        people = len(federation.clients)
        found.append(UserLevelMechanism(user, plan, method, people, state, task.seed))
    run = ProtectedRun(method, task, federation, plan.rounds, state)
    own = (protection.server(run) for protection in plan.privacy.own)
    return (*found, *(hooks for hooks in own if hooks is not None))


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
        check_split_guard(plan.privacy.split_guard, method, task, federation)
    policy = plan.privacy.output_range
    if policy is not None and policy.root not in federation.people:
        raise ConfigError(
            f"privacy.output_range: root: no client '{policy.root}'"
            f"{suggest(policy.root, federation.clients)}"
        )
    if plan.privacy.solver is not None:
        check_solver(plan.privacy.solver, method, task, federation, plan)
    nowhere = ProtectedRun(method, task, federation, plan.rounds, Path())
    for protection in plan.privacy.own:
        protection.check(nowhere)
