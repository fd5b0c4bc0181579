"""Validation of an experiment with its data: once, before anything is written or trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vergence import profiling
from vergence.core.federation import Federation
from vergence.core.outputs import shown
from vergence.core.task import Task
from vergence.engine.client_executor import lent
from vergence.engine.protections.setup import check_privacy
from vergence.engine.round_loop import device_for
from vergence.errors import ConfigError, VergenceError, first_line
from vergence.experiment import starting_model
from vergence.experiment.schema import Experiment
from vergence.experiment.start_check import check_people
from vergence.training.pruning import weights

UNCOUNTED = (
    "is also in this run, and no budget of `privacy` would count what that model tells of them; "
    "start from a run on other people, or leave out start or the budget"
)


@dataclass(frozen=True)
class Loaded:
    """An experiment's data: as recorded, as its network wants it, and the digest of the latter."""

    raw: Federation
    ready: Federation
    sha: str


def validate(experiment: Experiment) -> Loaded:
    """Read an experiment's data, and check all of it: whatever runs or foretells it comes here.

    Settings that cannot be combined are refused before, where an experiment is made
    (`schema.agreed`).

    Raises:
        DataError: a data file, or the presence trace, is unusable.
        ConfigError: task, model and federation do not fit together, or data or the number of people
            do not suit a method or a protection.
    """
    torch.set_num_threads(1)  # the workers' number: more would wait for each other here
    plan = experiment.plan
    with profiling.phase("data"):
        raw = experiment.federation()
    for label, method in experiment.methods.items():
        if method.pooled:
            raw.refuse_many(f"method '{label}', which pools everybody's data,")
    plan.silos.check(raw.clients)
    plan.presence.check(plan.silos.clients(raw.clients))
    plan.delivery.suit(plan.silos.clients(raw.clients))
    refuse_uncounted(experiment, raw)
    starting_model.refuse_other_split(
        experiment.model.start, raw.name, raw.clients, experiment.dataset
    )
    task = experiment.task(plan.seeds[0])
    ready = prepared(experiment, task, raw)
    for label, method in experiment.methods.items():
        try:
            method.check(task)
            if method.borrows:
                lent(ready)
            device_for(method, plan)
            plan.delivery.check()
            check_privacy(method, task, ready, plan)
        except ConfigError as error:
            raise ConfigError(f"method '{label}': {error}") from None
    if plan.pruning.amount:
        weights(task.module(), plan.pruning.layers)
    with profiling.phase("data"):
        return Loaded(raw, ready, digest(ready))


def refuse_uncounted(experiment: Experiment, raw: Federation) -> None:
    """Refuse a budget on people of whom the starting model tells beside it.

    Raises:
        ConfigError: names one of them.
    """
    if experiment.plan.privacy.spends:
        starting_model.refuse_known(experiment.model.start, raw.name, raw.clients, UNCOUNTED)


def prepared(experiment: Experiment, task: Task, raw: Federation) -> Federation:
    """Data as the experiment's network wants them.

    Raises:
        ConfigError: task, model and federation do not fit together.
    """
    returned: list[Any] = []
    try:
        with profiling.phase("features"):
            ready = task.prepare(experiment.model.prepare(raw))
        first = next(iter(ready.people.values()))
        batch = first.train.take(torch.arange(1))
        module = task.module().eval()
        hook = module.register_forward_hook(lambda _, __, output: returned.append(output))
        with torch.no_grad():
            output = task.forward(module, batch)
            task.loss(output, batch)
            if ready.proxies is not None:
                task.forward(module, ready.proxies.train.take(torch.arange(1)))
        for part in (first.val, first.test):
            there = {**part.columns, **part.banks}
            if lacking := [name for name in task.scored_columns if name not in there]:
                raise KeyError(lacking[0])
        hook.remove()
    except VergenceError:
        raise
    except Exception as error:  # of the user's network or loss, whatever it is
        if isinstance(error, KeyError) and (said := without_column(experiment, task, raw, error)):
            raise ConfigError(said) from error
        parts = ", ".join(
            f"{part} '{experiment.table[part]['name']}'" for part in ("task", "model", "federation")
        )
        reason = first_line(error)
        if returned and not isinstance(returned[-1], Tensor):
            reason = (
                f"the network returns {shown(returned[-1])}, the task takes a tensor ({reason})"
            )
        raise ConfigError(f"{parts} do not fit together: {reason}; change one of them") from error
    task.check(ready)
    check_people(experiment, task, ready, module, output)
    return ready


def without_column(
    experiment: Experiment, task: Task, federation: Federation, error: KeyError
) -> str:
    """That the data have no column that was looked for; "" where the error is about another key."""
    parts = vars(next(iter(federation.people.values())))
    held = {name: {*part.columns, *part.banks} for name, part in parts.items()}
    missing = str(next(iter(error.args), ""))
    without = [name for name, there in held.items() if missing not in there]
    if not missing or not without:
        return ""
    where = "" if len(without) == len(held) else f" in {' and '.join(without)}"
    reads = dict.fromkeys((*task.input_columns, *task.labels, *task.scored_columns, missing))
    hint = "; without head poses give zeros, float32 [n, 2]" if missing == "pose" else ""
    return (
        f"federation '{experiment.table['federation']['name']}' has no column '{missing}'{where} "
        f"(it has {', '.join(sorted(held[without[0]]))}); task "
        f"'{experiment.table['task']['name']}' reads {', '.join(reads)}{hint}"
    )


def digest(federation: Federation) -> str:
    """Return the SHA-256 over everybody's columns and banks, and those of nobody's.

    Of people made on demand, over what they are made from and the first and last of them.
    """
    whole, seen = hashlib.sha256(), set()
    if federation.recipe is not None:
        whole.update(f"{federation.recipe}\0{len(federation.people)}".encode())
        federation = federation.only([federation.clients[0], federation.clients[-1]])
    held = federation.proxies
    parts = [(p, part) for p, s in federation.people.items() for part in (s.train, s.val, s.test)]
    parts += [] if held is None else [("", held.train), ("", held.val)]
    for person, part in parts:
        tensors = {**part.columns, **{n: b.rows for n, b in part.banks.items()}}
        for name, tensor in sorted(tensors.items()):
            whole.update(f"{person}\0{name}{tuple(tensor.shape)}".encode())
            if tensor.data_ptr() not in seen:
                whole.update(tensor.contiguous().numpy().data)
            if name in part.banks:
                seen.add(tensor.data_ptr())
    return whole.hexdigest()
