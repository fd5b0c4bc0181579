"""Protections of a run: the hooks that its table `privacy` asks for, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.built_in import BuiltInProtection
from vergence.engine.protections.dp_sgd import DpSgdProtection
from vergence.engine.protections.labs import LabsProtection
from vergence.engine.protections.output_range import OutputRangeProtection
from vergence.engine.protections.private_masks import MaskProtection
from vergence.engine.protections.robust_aggregation import RobustProtection
from vergence.engine.protections.secure_aggregation import SecureSumProtection
from vergence.engine.protections.split_defense import SplitDefenseProtection
from vergence.engine.protections.split_guard import SplitGuardProtection
from vergence.engine.protections.user_level import UserLevelProtection
from vergence.engine.pruning_hooks import PruningHooks
from vergence.errors import ConfigError
from vergence.privacy.hooks import ClientHooks, ProtectedRun, Protection, ServerHooks, nobody

BUILT_IN: dict[str, type[BuiltInProtection]] = {
    "aggregation": SecureSumProtection,
    "user": UserLevelProtection,
    "solver": DpSgdProtection,
    "mask": MaskProtection,
    "split_guard": SplitGuardProtection,
    "cut": SplitDefenseProtection,
    "output_range": OutputRangeProtection,
}
"""Setting of `privacy` -> its protection, in the order in which hooks are asked."""


def protections(plan: Plan) -> tuple[Protection, ...]:
    """Protections that a plan asks for; hooks are asked in this order, outermost first."""
    policies = {key: getattr(plan.privacy, key) for key in BUILT_IN}
    named = [BUILT_IN[key](plan, it) for key, it in policies.items() if it is not None]
    labs = [LabsProtection(plan)] if plan.silos.labs else []
    return (*named, *labs, *plan.privacy.own, RobustProtection(plan, plan.privacy.robust))


def client_hooks(
    plan: Plan,
    method: Method,
    task: Task,
    federation: Federation,
    state: Path,
    tell: Callable[[str], None] = nobody,
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
    run = ProtectedRun(method, task, federation, plan.rounds, state, here, tell)
    for protection in protections(plan):
        if (hook := protection.client(run)) is not None:
            run = replace(run, hooks=(*run.hooks, hook))
    return (*pruning_hooks(plan, task), *run.hooks)


def pruning_hooks(plan: Plan, task: Task) -> tuple[ClientHooks, ...]:
    """Hooks of pruning, the outermost of clients' turns."""
    return (PruningHooks(plan.pruning, task),) if plan.pruning.amount else ()


def server_hooks(
    plan: Plan, method: Method, task: Task, federation: Federation, state: Path
) -> tuple[ServerHooks, ...]:
    """Hooks of a run's server, in the order in which they are asked.

    Raises:
        ConfigError: one of `privacy.own` looks at single replies.
    """
    run, found = ProtectedRun(method, task, federation, plan.rounds, state), []
    for protection in protections(plan):
        if (hook := protection.server(run)) is None:
            continue
        # Sums, their noise and a robust rule's verdict would be passed over without a word.
        if protection in plan.privacy.own and type(hook).looks_at is not ServerHooks.looks_at:
            raise ConfigError(
                f"privacy.own: {type(protection).__name__} looks at single replies, which is left "
                "to robust rules: name it as privacy.robust, or leave out `looks_at`"
            )
        found.append(hook)
    return tuple(found)


def check_privacy(method: Method, task: Task, federation: Federation, plan: Plan) -> None:
    """Refuse what these people's data or their number does not allow, before anything is trained.

    Raises:
        ConfigError: says why.
    """
    run = ProtectedRun(method, task, federation, plan.rounds)
    for protection in protections(plan):
        protection.check(run)
