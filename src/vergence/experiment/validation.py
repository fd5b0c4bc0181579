"""Validation of an experiment together with its data, before anything is written or trained.

Used in most packages.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vergence import profiling
from vergence.console import note
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.naming import registry_name
from vergence.core.task import (
    Model,
    StartingModel,
    Task,
    describe_output,
    isolated_randomness,
    join_outputs,
    map_outputs,
)
from vergence.engine.client_executor import public_data
from vergence.engine.evaluation import naming, scored
from vergence.engine.protections.setup import check_privacy
from vergence.errors import ConfigError, DataError, VergenceError, first_line
from vergence.experiment import starting_model
from vergence.experiment.privacy.register import sample_digests
from vergence.experiment.schema import Experiment, load
from vergence.experiment.user_code_errors import report_user_errors
from vergence.training.batches import sampling_weights
from vergence.training.pruning import prunable_weights

PATIENCE_S = 0.15
"""Processor time in seconds for trying network and metrics; then only targets are checked."""
VALUES = 16
"""Largest number of unusual target values of a column that are tried."""
BATCH = 64
"""Number of samples that are tried at once."""
MENDS = {
    "more than 1 value per channel": "BatchNorm with track_running_stats=False takes no sample "
    "alone, so use vergence.group_norm(network)",
    "multi-target not supported": "give one whole number for its class, as y[:, 0]",
    "between 0 and 1": "end the network in nn.Sigmoid(), or take binary_cross_entropy_with_logits",
    "the same dtype": "build the network with parameters of the same type",
    "should be the same": "build the network with parameters of the same type",
    "shapes cannot be multiplied": "build a layer with as many inputs as it gets",
    "channels, but got": "give pictures as [channels, height, width], and the first layer as many "
    "channels",
    "": "change one of them",
}
"""Words of torch's errors where network, loss and data do not fit together, and what to do."""
UNCOUNTED = (
    "is also in this run, and no budget of `privacy` would count what that model tells of them; "
    "start from a run on other people, or leave out start or the budget"
)


@dataclass(frozen=True)
class Loaded:
    """An experiment's data.

    Attributes:
        raw: the data as the data set gives them.
        ready: the data as prepared for the network.
        sha: digest of the prepared data.
    """

    raw: Federation
    ready: Federation
    sha: str


def validate(experiment: Experiment) -> Loaded:
    """Load an experiment's data, and check that task, network, methods and protections fit them.

    Settings that exclude each other are refused earlier, when the experiment is built
    (`schema.check_combinations`).

    Raises:
        DataError: a data file, or the presence trace, is unusable.
        ConfigError: task, model and federation do not fit together. Or the data, or the number of
            people, do not suit a method or a protection.
    """
    # As many as workers use: on these small tensors several threads wait for each other.
    torch.set_num_threads(1)
    plan = experiment.plan
    with profiling.phase("data"):
        raw = experiment.federation()
    for label, method in experiment.methods.items():
        if method.pooled:
            raw.refuse_many(f"method '{label}', which pools everybody's data,")
    plan.silos.check(raw.clients)
    plan.presence.check(plan.silos.clients(raw.clients))
    plan.delivery.check_clients(plan.silos.clients(raw.clients))
    starting_model.refuse_mpiigaze(experiment.model.start, raw.name)
    # A budget would be a false promise if the starting model learned from the same people.
    if experiment.plan.privacy.spends:
        starting_model.refuse_overlap(experiment.model.start, raw.name, raw.clients, UNCOUNTED)
        refuse_same_samples(experiment.model.start, raw)
    starting_model.refuse_other_split(
        experiment.model.start, raw.name, raw.clients, experiment.dataset
    )
    task = experiment.task(plan.seeds[0])
    ready = prepare_data(experiment, task, raw)
    for label, method in experiment.methods.items():
        try:
            method.check(task)
            if method.needs_public_data:
                public_data(ready)
            plan.delivery.check()
            check_privacy(method, task, ready, plan)
        except ConfigError as error:
            raise ConfigError(f"method '{label}': {error}") from None
    if plan.pruning.amount:
        prunable_weights(task.module(), plan.pruning.layers)
    check_validation_samples(experiment, task, ready)
    with profiling.phase("data"):
        return Loaded(raw, ready, digest(ready))


def refuse_same_samples(start: StartingModel | None, raw: Federation) -> None:
    """Refuse a starting model that learned from samples of this run's people, by any name.

    Raises:
        ConfigError: the two runs share samples; the message names a person of this run.
    """
    config = Path("" if start is None else start.run) / "config.toml"
    if start is None or raw.recipe or not config.is_file():
        return
    earlier = load(config)
    try:
        # Data sets of one's own are code, for which nobody was asked.
        learned = None if earlier.code else earlier.load_data()
    except DataError:
        learned = None
    if learned is None:
        note(f"model.start: the data of {start.run} are not read, so people are compared by name")
        return
    theirs = set().union(*sample_digests(learned, b"").values())
    for person, mine in sample_digests(raw, b"").items():
        if mine & theirs:
            raise ConfigError(
                f"model.start: {start.run} was trained on samples of '{person}', who {UNCOUNTED}"
            )


def check_validation_samples(experiment: Experiment, task: Task, ready: Federation) -> None:
    """Check that people have validation samples where something is chosen on them.

    `validate` calls this.

    Raises:
        DataError: somebody lacks them; the message names the person and what is chosen.
    """
    if ready.recipe is not None:
        return
    without = [person for person, splits in ready.people.items() if not len(splits.val)]
    methods = experiment.methods.items()
    choosing = [f"method '{label}'" for label, method in methods if method.uses_validation]
    if task.uses_validation or task.own_prior:
        choosing.append(f"task '{registry_name(task)}'")
    if experiment.plan.early_stopping.patience and len(without) == len(ready.people):
        choosing.append("early stopping")
    if without and choosing:
        names = ", ".join(without[:5]) + (" and others" if len(without) > 5 else "")
        raise DataError(
            f"{names}: without validation samples, on which {choosing[0]} chooses: give a 'val' "
            "part, or leave these people out"
        )


def prepare_data(experiment: Experiment, task: Task, raw: Federation) -> Federation:
    """Return the data prepared for the experiment's network, after trying network and loss.

    They are tried on a sample of the first person; then all people's targets are checked.

    Args:
        experiment: the experiment.
        task: its task, for one seed.
        raw: the data as the data set gives them.

    Raises:
        ConfigError: task, model and federation do not fit together.
    """
    # A task's error does not say what the network returned, so that a hook looks at it.
    returned: list[Any] = []
    try:
        with profiling.phase("features"):
            ready = task.prepare(experiment.model.prepare(raw))
        first = next(iter(ready.people.values()))
        batch, module = first.train.take(torch.arange(1)), task.module().eval()
        built = dict(module.named_parameters())
        hook = module.register_forward_hook(lambda _, __, output: returned.append(output))
        with torch.no_grad():
            output = task.forward(module, batch)
            if dict(module.named_parameters()).keys() != built.keys():
                raise ConfigError(
                    "the network makes layers in forward, and a run trains those that are there "
                    "when it is built: make them in __init__, or call forward in the function that "
                    "builds it"
                )
            task.loss(output, batch)
            if ready.proxies is not None:
                task.forward(module, ready.proxies.train.take(torch.arange(1)))
            _refuse_stateful_network(task, module, first.train)
        for part in (first.val, first.test):
            columns = {**part.columns, **part.banks}
            if lacking := [name for name in task.scored_columns if name not in columns]:
                raise KeyError(lacking[0])
        hook.remove()
    except VergenceError:
        raise
    # The user's network and loss run here, and may raise anything.
    except Exception as error:
        if isinstance(error, KeyError) and (text := without_column(experiment, task, raw, error)):
            raise ConfigError(text) from error
        parts = ", ".join(
            f"{part} '{experiment.table[part]['name']}'" for part in ("task", "model", "federation")
        )
        reason = first_line(error)
        if returned and not isinstance(returned[-1], Tensor):
            reason = (
                f"the network returns {describe_output(returned[-1])}, the task takes a tensor "
                f"({reason})"
            )
        raise ConfigError(
            f"{parts} do not fit together: {reason}; {_mend(reason)} ({raw!r})"
        ) from error
    task.check(ready)
    check_people(experiment, task, ready, module, output)
    return ready


def _refuse_stateful_network(task: Task, module: nn.Module, data: Samples) -> None:
    """Refuse a network whose outputs depend on more than parameters and samples.

    A worker gives all its people the same network in turn, so that what it saw of one person would
    reach the outputs for the next one.

    Raises:
        ConfigError: the network gives two samples other outputs in training mode, or after it,
            than before, or draws random numbers of Python or NumPy.
    """
    state = _other_random_numbers()
    rows, calls = torch.arange(len(data))[:2], list[tuple[Any, Any]]()
    hook = module.register_forward_pre_hook(
        lambda _, arguments, named: calls.append((arguments, named)), with_kwargs=True
    )
    before = task.forward(module, data.take(rows))
    hook.remove()
    start = {name: parameter.clone() for name, parameter in module.named_parameters()}
    trained: list[Any] = []
    for _ in range(2):
        # Training may need more samples than two, and is tried in earnest later.
        with isolated_randomness(), suppress(Exception):
            torch.default_generator.manual_seed(0)
            trained.append([module.train()(*a, **named) for a, named in copy.deepcopy(calls)])
        # Running statistics of BatchNorm are parameters here, and a run looks after them.
        for name, parameter in module.eval().named_parameters():
            parameter.copy_(start[name])
    alike: list[bool] = []

    def compare(one: Tensor, other: Tensor) -> Tensor:
        alike.append(torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True))
        return one

    map_outputs(compare, before, task.forward(module, data.take(rows)))
    if len(trained) == 2:
        map_outputs(compare, *trained)
    # Outputs may be alike by chance, as of a layer that is left out in every second step.
    if _other_random_numbers() != state:
        raise ConfigError(
            "the network draws random numbers of Python or NumPy, which no seed of a run reaches: "
            "draw torch's, as torch.rand(()) < 0.5, or give task.with_transform what changes inputs"
        )
    if not all(alike):
        raise ConfigError(
            "the network answers the same samples differently the second time: it keeps what it "
            "saw, or counts, in a buffer or an attribute, which would pass from one person to the "
            "next; or draws random numbers when it predicts, as F.dropout(x, p) does without "
            "training=self.training"
        )


def _other_random_numbers() -> tuple[object, bytes, int]:
    """Return the state of the global random numbers of Python and NumPy."""
    _, keys, place, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), np.asarray(keys).tobytes(), int(place)


def without_column(
    experiment: Experiment, task: Task, federation: Federation, error: KeyError
) -> str:
    """Return the error message for a missing column of the data; "" if no column is missing.

    `error` is the error that network, loss or task raised.
    """
    parts = vars(next(iter(federation.people.values())))
    columns = {name: {*part.columns, *part.banks} for name, part in parts.items()}
    missing = str(next(iter(error.args), ""))
    without = [name for name, names in columns.items() if missing not in names]
    if not missing or not without:
        return ""
    where = "" if len(without) == len(columns) else f" in {' and '.join(without)}"
    reads = dict.fromkeys((*task.input_columns, *task.labels, *task.scored_columns, missing))
    hint = without_input(missing, experiment.model)
    return (
        f"federation '{experiment.table['federation']['name']}' has no column '{missing}'{where} "
        f"(it has {', '.join(sorted(columns[without[0]]))}); task "
        f"'{experiment.table['task']['name']}' reads {', '.join(reads)}{hint}"
    )


def without_input(column: str, model: Model | None = None) -> str:
    """Return the end of an error message: what to do without a column of eye images, or ""."""
    if column == "pose":
        return "; without head poses give zeros, float32 [n, 2]"
    if column == "side" and getattr(model, "side", False):
        return "; set model.side = false, or give 0 for left and 1 for right eyes, int64 [n]"
    return ""


def digest(federation: Federation) -> str:
    """Return the SHA-256 of all people's data and of the server's public samples.

    If people are generated on demand, it covers their recipe and the first and the last person.
    """
    whole, seen = hashlib.sha256(), set()
    if federation.recipe is not None:
        whole.update(f"{federation.recipe}\0{len(federation.people)}".encode())
        federation = federation.only([federation.clients[0], federation.clients[-1]])
    public = federation.proxies
    parts = [(p, part) for p, s in federation.people.items() for part in (s.train, s.val, s.test)]
    parts += [] if public is None else [("", public.train), ("", public.val)]
    for person, part in parts:
        tensors = {**part.columns, **{n: b.rows for n, b in part.banks.items()}}
        for name, tensor in sorted(tensors.items()):
            whole.update(f"{person}\0{name}{tuple(tensor.shape)}".encode())
            # People may share a bank of frames, which is read once.
            if tensor.data_ptr() not in seen:
                whole.update(tensor.contiguous().numpy().data)
            if name in part.banks:
                seen.add(tensor.data_ptr())
    return whole.hexdigest()


@torch.no_grad()
def check_people(
    experiment: Experiment, task: Task, federation: Federation, module: nn.Module, output: Any
) -> None:
    """Check all people's targets, and try network, loss and metrics on their samples.

    After `PATIENCE_S` of processor time only the targets of further people are checked. If people
    are generated on demand, only the first and the last person are checked. `prepare_data` calls
    this.

    Args:
        experiment: the experiment whose code runs.
        task: the task for the first seed.
        federation: prepared data.
        module: the untrained network.
        output: the network's output for one sample.

    Raises:
        ConfigError: network, loss or a metric fails on a person's samples.
        DataError: the network has no output for a target class, or a person has no sample with a
            finite loss.
    """
    if federation.recipe is not None:
        federation = federation.only([federation.clients[0], federation.clients[-1]])
    end, fine = time.process_time() + PATIENCE_S, set[tuple[str, int]]()
    for person, splits in federation.people.items():
        for name, part in vars(splits).items():
            _check_targets(task, module, output, part, f"person {person!r}, {name}", fine)
        with naming(person):
            for method in experiment.methods.values():
                sampling_weights(splits.train, method.local, task)
        if (now := time.process_time()) < end:
            # There is no run folder yet, where a traceback could be written.
            try:
                with report_user_errors(experiment, Path(), keep=False), naming(person):
                    _check_loss(task, module, splits.train)
                    # The metrics of a large test set may take much longer than the loss.
                    if now + (time.process_time() - now) * len(splits.test) < end:
                        _check_metrics(task, module, splits)
            except VergenceError:
                raise
            # A loss of torch's own has no line of the user's code to name.
            except Exception as error:
                reason = first_line(error)
                raise ConfigError(f"person {person!r}: {reason}; {_mend(reason)}") from error


def _mend(reason: str) -> str:
    return next(text for words, text in MENDS.items() if words in reason)


def _check_targets(
    task: Task,
    module: nn.Module,
    output: Any,
    part: Samples,
    where: str,
    fine: set[tuple[str, int]],
) -> None:
    """Raise an error if the network has no output for a target class.

    Args:
        task: the task.
        module: the untrained network.
        output: the network's output for one sample.
        part: samples of one person.
        where: the person's name, for messages.
        fine: pairs of column and value that the loss accepts although the network has no output
            for them; new pairs are added.

    Raises:
        DataError: there is such a class; the message names the column, the row and the value.
    """
    for name in task.labels:
        target = part.columns.get(name)
        if target is None or target.dtype != torch.int64 or not target.numel():
            continue
        if isinstance(output, Tensor):
            if output.ndim != target.ndim + 1 or output.shape[1] == 1:
                # An output for each target: the targets are no classes.
                continue
            outputs = f"{output.shape[1]} outputs"
            beyond = target[(target < 0) | (target >= output.shape[1])].unique()[:VALUES].tolist()
        else:
            outputs, beyond = "no output for it", [int(end) for end in target.aminmax()]
        for value in (value for value in beyond if (name, value) not in fine):
            row = int((target == value).reshape(len(target), -1).any(1).nonzero()[0])
            batch = part.take(torch.tensor([row]))
            # Some losses accept further values (cross-entropy ignores -100), so the loss decides.
            try:
                task.loss(task.forward(module, batch), batch)
            except Exception as error:
                raise DataError(
                    f"{where}: {name!r} is {value} in row {row}, and the network has {outputs} "
                    f"({first_line(error)}): mend these rows, or give the network an output for "
                    "every class, counted from 0"
                ) from error
            fine.add((name, value))


@torch.enable_grad()
def _check_loss(task: Task, module: nn.Module, data: Samples) -> None:
    """Raise an error if the loss is no mean with a gradient, or is finite for no sample."""
    numbers = torch.arange(len(data))
    # The first samples come first: where all is well, they are enough. Two of them show a loss that
    # has a number for each sample.
    for rows in filter(len, (numbers[:2], numbers[:1], *numbers[1:].split(BATCH))):
        batch = data.take(rows)
        loss = task.loss(task.forward(module, batch), batch)
        if (
            not isinstance(loss, Tensor)
            or loss.numel() != 1
            or (not loss.requires_grad and any(p.requires_grad for p in module.parameters()))
        ):
            got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss)
            raise ConfigError(
                f"the loss must be one number, as a tensor with a gradient; got {got}"
                f"{' without one' * (getattr(loss, 'ndim', 1) == 0)}: take its mean, "
                "and leave out what has no gradient, such as item(), numpy(), detach() and argmax"
            )
        if loss.isfinite():
            batch = data.take(rows.repeat(2))
            twice = task.loss(task.forward(module, batch), batch)
            # People and batches differ in their numbers of samples.
            if loss.any() and torch.isclose(twice, 2 * loss):
                raise ConfigError(
                    "the loss is a sum over samples, and would grow with their number: take the "
                    "mean, as reduction='mean'"
                )
            return
    raise DataError(
        "the loss of the untrained network is NaN or infinite for all training samples: look at "
        f"the columns {', '.join(data.columns)}, or leave this person out"
    )


def _check_metrics(task: Task, module: nn.Module, splits: Splits) -> None:
    """Try a user's own metrics on a person's test samples; their error is raised.

    They are tried on the untrained network's outputs and, if this fails, on the negated outputs. An
    error is raised only if both fail. Metrics of this package are not tried.
    """
    if type(task).__module__.startswith("vergence.tasks."):
        return

    def outputs(part: Samples) -> Any:
        return join_outputs(
            [task.forward(module, part.take(rows)) for rows in torch.arange(len(part)).split(BATCH)]
        )

    # A metric may fail for an untrained network only: a precision where nothing is predicted.
    try:
        first = scored(task, outputs, splits)
    except Exception:
        scored(task, lambda part: map_outputs(torch.neg, outputs(part)), splits)
        return
    again = scored(task, outputs, splits)
    for name, value in first.items():
        if not math.isclose(value, again[name], rel_tol=1e-3, abs_tol=1e-6) and value == value:
            raise ConfigError(
                f"metric {name!r} is {value:g}, and {again[name]:g} for the same outputs again: it "
                "must not remember other samples, nor draw random numbers"
            )
