"""Setup of a run's protections: the hooks and checks that its table `privacy` asks for.

Used in `deployment`, `engine`, `experiment` and `reports`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.serialization import CPU
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
"""Setting of `privacy` -> class of its protection, in the order in which hooks are called."""


def protections(plan: Plan) -> tuple[Protection, ...]:
    """Return the protections that a plan asks for, in the order of their hooks.

    The first one is the outermost: it sees a turn's requests first.
    """
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
    device: torch.device = CPU,
) -> tuple[ClientHooks, ...]:
    """Return the hooks of clients' turns, outermost first.

    Args:
        plan: the plan.
        method: the method.
        task: the task.
        federation: people whose turns run on this machine.
        state: folder of states, with secrets and release logs.
        tell: called with lines for the operator of the clients' machine only.
        here: whether people's data are on this machine. If not, only hooks without a secret and
            without a log are returned.
        device: device of training.
    """
    run = ProtectedRun(method, task, federation, plan.rounds, state, here, tell, device=device)
    # Each protection sees the hooks before it: a range check needs the noise of the defence.
    for protection in protections(plan):
        if (hook := protection.client(run)) is not None:
            run = replace(run, hooks=(*run.hooks, hook))
    return (*pruning_hooks(plan, task), *run.hooks)


def pruning_hooks(plan: Plan, task: Task) -> tuple[ClientHooks, ...]:
    """Return the hooks for pruning, which come before those of protections; () without pruning."""
    return (PruningHooks(plan.pruning, task),) if plan.pruning.amount else ()


def server_hooks(
    plan: Plan, method: Method, task: Task, federation: Federation, state: Path
) -> tuple[ServerHooks, ...]:
    """Return the hooks of a run's server, in the order in which the engine calls them.

    Raises:
        ConfigError: a protection that the user wrote (`privacy.own`) overrides
            `ServerHooks.looks_at`, which only robust rules may do.
    """
    run, hooks = ProtectedRun(method, task, federation, plan.rounds, state), []
    for protection in protections(plan):
        if (hook := protection.server(run)) is None:
            continue
        # Only the first hook that looks at single replies combines them: secure sums, noise and a
        # robust rule would be skipped without a word.
        if protection in plan.privacy.own and type(hook).looks_at is not ServerHooks.looks_at:
            raise ConfigError(
                f"privacy.own: {type(protection).__name__} looks at single replies, which is left "
                "to robust rules: name it as privacy.robust, or leave out `looks_at`"
            )
        hooks.append(hook)
    return tuple(hooks)


def check_privacy(method: Method, task: Task, federation: Federation, plan: Plan) -> None:
    """Refuse protections that do not suit these people, before anything is trained.

    The validation of an experiment calls this.

    Raises:
        ConfigError: people's data, or the number of people, do not allow a protection.
    """
    run = ProtectedRun(method, task, federation, plan.rounds)
    for protection in protections(plan):
        protection.check(run)
