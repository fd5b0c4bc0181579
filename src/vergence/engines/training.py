"""Where and how clients are trained: the device, and one by one or in stacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vergence.core.fitting import OptimiserState
from vergence.core.method import Method
from vergence.core.site import Federation, Population
from vergence.core.state import known_records
from vergence.core.task import Task
from vergence.engines.cluster import installed
from vergence.engines.device import pick
from vergence.engines.plan import Plan
from vergence.engines.protection import ONE_BY_ONE
from vergence.engines.store import Solving
from vergence.engines.trial import CHUNK, choose
from vergence.engines.turn import STREAMS


def device_for(method: Method, plan: Plan) -> torch.device:
    """Return where a method trains.

    Raises:
        ConfigError: the plan asks for Ray, and it is not installed.
    """
    if plan.engine == "ray":
        installed()
    if plan.privacy.solver is not None or method.served:
        return torch.device("cpu")
    return pick("cpu" if plan.engine == "ray" else plan.device)


def solver_for(
    method: Method, task: Task, federation: Federation, cohort: Sequence[str], plan: Plan,
    device: torch.device,
) -> Solving:  # fmt: skip
    """Choose how clients are trained, by a short trial where `run.solver` is "auto"."""
    wanted, kept = plan.solver, known_records(*method.state_records(task)).values()
    if plan.privacy.solver is not None:
        return Solving("sequential", 1, plan.precision, device.type, ONE_BY_ONE)
    if wanted == "auto" and OptimiserState in kept:
        reason = "clients keep their optimiser's state, which a stack does not hand back"
        return Solving("sequential", 1, plan.precision, device.type, reason)
    known = loads(federation)
    few = [federation.people[client].train for client in cohort[:CHUNK]]
    sizes = [int(known.get(client, len(few[0]))) for client in cohort]
    # Where a GPU is seen and not used: autograd's threads for it, once started, forbid the fork.
    tried = [] if device.type == "cpu" and torch.cuda.is_available() else few
    choice = choose(task, method.local, sizes, tried, wanted, device, plan.precision)
    chunk = max(choice.chunk, STREAMS if device.type != "cpu" else 1)
    return Solving(choice.solver, chunk, plan.precision, device.type, choice.reason)


def loads(federation: Federation) -> dict[str, float]:
    """Return everybody's amount of work; unknown for people made on demand."""
    if isinstance(federation.people, Population):
        return {}
    return {client: float(len(s.train)) for client, s in federation.people.items()}
