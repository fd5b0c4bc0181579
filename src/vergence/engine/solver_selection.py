"""Selection of a run's device, precision and solver (clients trained one by one or in stacks).

Used by `engine.round_loop` and `experiment.run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from vergence.core.federation import Federation, Population
from vergence.core.local_training import OptimizerState, Precision
from vergence.core.method import Method
from vergence.core.serialization import known_records
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.dp_sgd import ONE_BY_ONE
from vergence.engine.storage.run_directory import SolverChoice
from vergence.engine.workers.ray_actors import installed
from vergence.errors import ConfigError
from vergence.training.bf16_weights import FASTER, bf16_instructions
from vergence.training.cuda_graphs import STREAMS
from vergence.training.device import choose_device
from vergence.training.solver_trial import CHUNK, choose_solver


def device_for(plan: Plan) -> torch.device:
    """Return the device on which a run trains.

    Raises:
        ConfigError: the plan asks for Ray, and it is not installed.
    """
    if plan.engine == "ray":
        installed()
    return choose_device("cpu" if _processor_only(plan) else plan.device)


def unused_gpu(plan: Plan) -> str:
    """Return why a run trains on the processor where there is a GPU; "" if it does not."""
    why = _processor_only(plan)
    there = why and plan.device == "auto" and choose_device("auto").type != "cpu"
    return why if there else ""


def _processor_only(plan: Plan) -> str:
    # It changes weights in place, also when they only compute, and on a GPU would change a copy.
    cut = "the defence at the cut (privacy.cut) constrains layers there"
    return "Ray's workers have no GPU" if plan.engine == "ray" else cut if plan.privacy.cut else ""


def stays_on(device: torch.device, method: Method, plan: Plan) -> bool:
    """Return whether models, replies and states of a run without protections stay on its GPU."""
    return (
        device.type != "cpu"
        # Others' methods may use numpy; that none of these does is tested.
        and type(method).__module__.startswith("vergence.methods.")
        and method.resident
        and plan.engine == "simulator"
        and plan.wire.lossless
        and not plan.delivery.timed
        and not plan.silos.labs
    )


def solver_for(
    method: Method,
    task: Task,
    federation: Federation,
    cohort: Sequence[str],
    plan: Plan,
    device: torch.device,
) -> SolverChoice:
    """Choose the training settings; if `run.solver` is "auto", by a short trial of training.

    `cohort` are the clients of the first round, from whom the trial takes its samples.
    """
    precision, why = precision_for(method, task, plan, device)
    choice = _solver_for(method, task, federation, cohort, plan, device, precision)
    return choice._replace(reason=f"{choice.reason}; {precision}: {why}") if why else choice


class PrecisionChoice(NamedTuple):
    """A precision of training, and why "auto" chose it; without "auto" the reason is empty."""

    name: Precision
    reason: str


def precision_for(method: Method, task: Task, plan: Plan, device: torch.device) -> PrecisionChoice:
    """Choose the precision: the one that is named; for "auto", `half` if it helps, else `fp32`.

    `half` helps a network with 2-d convolutions on a device with bfloat16 instructions. DP-SGD and
    split learning have `fp32` only.

    Raises:
        ConfigError: `tf32` is asked for, and the run trains on a CPU.
    """
    if plan.precision == "tf32" and device.type == "cpu":
        raise ConfigError(
            "run.precision = 'tf32' is a number format of GPUs, and this run trains on the CPU; "
            "use 'fp32', 'bf16', 'half' or 'auto', or a GPU (run.device)"
        )
    # Nothing is measured: the same run on the same kind of machine must choose the same.
    if plan.precision != "auto":
        return PrecisionChoice(plan.precision, "")
    if plan.privacy.solver is not None:
        return PrecisionChoice("fp32", "DP-SGD has no other precision")
    if method.served:
        return PrecisionChoice("fp32", "service batch by batch has no other precision")
    if not any(isinstance(layer, FASTER) for layer in task.module().modules()):
        return PrecisionChoice(
            "fp32", "the network has no 2-d convolutions, which half makes faster"
        )
    names, kind = bf16_instructions(device), "GPU" if device.type == "cuda" else "processor"
    if not names:
        return PrecisionChoice(
            "fp32", f"this {kind} has no bfloat16 instructions that torch knows of"
        )
    return PrecisionChoice("half", f"this {kind} has {names}")


def _solver_for(
    method: Method,
    task: Task,
    federation: Federation,
    cohort: Sequence[str],
    plan: Plan,
    device: torch.device,
    precision: Precision,
) -> SolverChoice:
    """Choose the training settings for this precision."""
    wanted, records = plan.solver, known_records(*method.state_records(task)).values()
    if plan.privacy.solver is not None:
        return SolverChoice("sequential", 1, precision, device.type, ONE_BY_ONE)
    if plan.silos.labs:
        reason = "people of a lab take their turns one after the other"
        return SolverChoice("sequential", 1, precision, device.type, reason)
    if wanted == "auto" and OptimizerState in records:
        reason = "clients keep their optimiser's state, which a stack does not hand back"
        return SolverChoice("sequential", 1, precision, device.type, reason)
    known = loads(federation)
    few = [federation.people[client].train for client in cohort[:CHUNK]]
    sizes = [int(known.get(client, len(few[0]))) for client in cohort]
    # No trial where torch sees a GPU that is not used: it would start autograd's threads for the
    # GPU, and a process with these cannot be forked.
    tried = [] if device.type == "cpu" and torch.cuda.is_available() else few
    choice = choose_solver(task, method.local, sizes, tried, wanted, device, precision)
    chunk = max(choice.chunk, STREAMS if device.type != "cpu" else 1)
    return SolverChoice(choice.solver, chunk, precision, device.type, choice.reason)


def loads(federation: Federation) -> dict[str, float]:
    """Return client -> amount of work, in training samples; empty for people made on demand."""
    # People who are made on demand may be millions: counting their samples would make all of them.
    if isinstance(federation.people, Population):
        return {}
    return {client: float(len(s.train)) for client, s in federation.people.items()}
