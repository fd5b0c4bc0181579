"""A look at everybody's data before training: targets without an output, losses and metrics.

What a person's data and the user's own functions do together would otherwise be seen in the middle
of a run: as an index error that names nobody, on a GPU as the end of the process.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.outputs import joined, mapped
from vergence.core.task import Task
from vergence.engine.evaluation import naming, scored
from vergence.errors import ConfigError, DataError, first_line
from vergence.experiment.own_errors import own_faults
from vergence.experiment.schema import Experiment

PATIENCE_S = 0.15
"""Processor time for trying networks and metrics; of further people only targets are read."""
VALUES = 16
"""So many values of a column that may be wrong are tried."""
BATCH = 64


@torch.no_grad()
def check_people(
    experiment: Experiment, task: Task, federation: Federation, module: nn.Module, output: Any
) -> None:
    """Read everybody's targets, and try the untrained network on everybody's samples.

    Of people made on demand the first and the last are looked at.

    Args:
        experiment: whose code is run.
        task: of its first seed.
        federation: as the network wants it.
        module: the untrained network.
        output: what it makes of one sample.

    Raises:
        ConfigError: network, loss or a metric fails on a person's samples; says on whose.
        DataError: a target has no output, or no loss is finite; names person, column and row.
    """
    if federation.recipe is not None:
        federation = federation.only([federation.clients[0], federation.clients[-1]])
    end, fine = time.process_time() + PATIENCE_S, set[tuple[str, int]]()
    for person, splits in federation.people.items():
        for name, part in vars(splits).items():
            _check_targets(task, module, output, part, f"person {person!r}, {name}", fine)
        if (now := time.process_time()) < end:
            with own_faults(experiment, Path(), keep=False), naming(person):
                _check_loss(task, module, splits.train)
                if now + (time.process_time() - now) * len(splits.test) < end:
                    _check_metrics(task, module, splits)


def _check_targets(
    task: Task,
    module: nn.Module,
    output: Any,
    part: Samples,
    where: str,
    fine: set[tuple[str, int]],
) -> None:
    """Refuse whole numbers for which there is no output; `fine` are those that losses take.

    Some losses take others than the numbers of outputs (cross-entropy leaves out -100), so that
    one is refused only if the loss fails on it.
    """
    for name in task.labels:
        target = part.columns.get(name)
        if target is None or target.dtype != torch.int64 or not target.numel():
            continue
        if isinstance(output, Tensor):
            if output.ndim != target.ndim + 1 or output.shape[1] == 1:
                continue  # as many numbers as targets: these are no classes
            outputs = f"{output.shape[1]} outputs"
            beyond = target[(target < 0) | (target >= output.shape[1])].unique()[:VALUES].tolist()
        else:
            outputs, beyond = "no output for it", [int(end) for end in target.aminmax()]
        for value in (value for value in beyond if (name, value) not in fine):
            row = int((target == value).reshape(len(target), -1).any(1).nonzero()[0])
            batch = part.take(torch.tensor([row]))
            try:
                task.loss(task.forward(module, batch), batch)
            except Exception as error:  # of the user's function, whatever it is
                raise DataError(
                    f"{where}: {name!r} is {value} in row {row}, and the network has {outputs} "
                    f"({first_line(error)}): mend these rows, or give the network an output for "
                    "every class, counted from 0"
                ) from error
            fine.add((name, value))


def _check_loss(task: Task, module: nn.Module, data: Samples) -> None:
    """Refuse a loss that is no single number, or that is finite for no training sample."""
    numbers = torch.arange(len(data))
    # One sample is enough where all is well.
    for rows in filter(len, (numbers[:1], *numbers[1:].split(BATCH))):
        batch = data.take(rows)
        loss = task.loss(task.forward(module, batch), batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = getattr(loss, "shape", type(loss).__name__)
            raise ConfigError(f"the loss must be one number, as a tensor; got {got}: take its mean")
        if loss.isfinite():
            return
    raise DataError(
        "the loss of the untrained network is NaN or infinite for all training samples: look at "
        f"the columns {', '.join(data.columns)}, or leave this person out"
    )


def _check_metrics(task: Task, module: nn.Module, splits: Splits) -> None:
    """Refuse metrics of the user's own that fail on a person's test samples.

    One that fails for the untrained network may work for a trained one (a precision where nothing
    is predicted): it is refused where it fails for the opposite outputs, too.
    """
    if type(task).__module__.startswith("vergence.tasks."):
        return

    def outputs(part: Samples) -> Any:
        starts = range(0, len(part), BATCH)
        return joined([task.forward(module, part.take(slice(at, at + BATCH))) for at in starts])

    try:
        scored(task, outputs, splits)
    except Exception:  # of the user's function, whatever it is
        scored(task, lambda part: mapped(torch.neg, outputs(part)), splits)
