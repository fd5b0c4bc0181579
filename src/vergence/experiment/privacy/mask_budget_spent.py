"""Privacy budget of masks, as promised before a run and as spent after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.private_masks import foreseen
from vergence.privacy.dp.mask_budget import groups
from vergence.privacy.dp.private_selection import spent as amounts
from vergence.privacy.release_log import FOLDER, ReleaseLog

NEIGHBOURS = "the same people, one of them with any other data"
AGAINST = "whoever sees which entries a person shares, the server too"
ONLY = " in the choice of masks alone, not in the updates beside them"


def foretold(plan: Plan, method: Method, task: Task, federation: Federation) -> list[str]:
    """Say in words what a run's choices of masks will spend; see `explain`.

    Raises:
        ConfigError: this method's masks cannot be chosen so.
    """
    policy = plan.privacy.mask
    if policy is None:
        return []
    seen = foreseen(plan, method, task, federation)
    each = policy.each(seen.draws)
    there = len(groups(task.init().layout, policy.of).sizes)
    parts = {"filter": "filters and neurons", "tensor": "tensors", "entry": "entries"}[policy.of]
    return [
        f"masks: {there:,} {parts}; about {seen.choices} choices of {seen.draws:,} in all, each "
        f"draw at epsilon {each:.3g}: one that belongs in the mask is {math.exp(each / 2) - 1:.2%} "
        f"likelier than one that does not; epsilon {policy.amounts([(each, seen.draws)]):.3g} at "
        f"delta {policy.delta:g} per person, seed and method,{ONLY}"
    ]


def spent(plan: Plan, state: Path) -> Mapping[str, Any]:
    """Mask budget that a run spent, by its release logs, for the block `privacy`."""
    policy = plan.privacy.mask
    paths = sorted((state / FOLDER).glob("seed*.mask.*.csv"))
    if policy is None or not paths:  # they lie with the clients of a deployment
        return {}
    found = max(amounts(ReleaseLog(path).entries, policy) for path in paths)
    return {
        "mask": {
            "neighbours": NEIGHBOURS,
            "against": AGAINST,
            "of": policy.of,
            "delta": policy.delta,
            "allowed": policy.epsilon,
            "epsilon": found,
            "check": None,
            "only": ONLY,
        }
    }
