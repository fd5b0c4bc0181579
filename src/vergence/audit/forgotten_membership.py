"""Membership check of a person in a finished run's shared model, beside runs without them.

The attacker knows everybody else's data and the plan: shadow runs are the experiment without this
person, of other seeds. Where the attacked model fits the person's training samples better than
models that never saw them do, it remembers them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vergence.attacks.membership import statistic
from vergence.audit.images import few
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun, read_run

FPR = 0.01
FRAMES = 100
"""So many samples of a person are looked at."""


def outsiders(
    experiment: Experiment,
    label: str,
    ready: Federation,
    person: str,
    count: int,
    tick: Callable[[], None],
) -> Tensor:
    """Run one method without a person, several times; return how each fits everybody.

    The result is `[count, people]`, in client order.

    Args:
        experiment: what was run.
        label: of the method.
        ready: everybody's data, prepared.
        person: who is left out.
        count: how many runs, each of a seed that the experiment has not.
        tick: called after each.

    Raises:
        ConfigError: see `fit`.
    """
    rest = [who for who in ready.clients if who != person]
    first, found = max(experiment.plan.seeds) + 1, []
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
            trained = shadow(experiment, label, seed, ready, ready.only(rest), Path(scratch))
            found.append(torch.stack([fit(trained, who) for who in ready.clients]))
        tick()
    return torch.stack(found)


def shadow(
    experiment: Experiment,
    label: str,
    seed: int,
    ready: Federation,
    some: Federation,
    scratch: Path,
) -> TrainedRun:
    """Run one method and seed on some of the data, to be judged on all of it."""
    plan = replace(experiment.plan, seeds=(seed,), evaluate_every=0, checkpoint_every=0)
    alone, folder = replace(experiment.alone(label), plan=plan), RunDirectory(scratch, {})
    folder.open()
    run_rounds(alone.methods[label], alone.task(seed), some, plan, folder)
    return read_run(scratch, seed, alone).on(ready)


def refused(trained: TrainedRun) -> str:
    """Reason why the shared model cannot be attacked, "" if it can."""
    whole = trained.shares(whole=True)
    return "" if whole else "its server offers strangers no whole model, which could be attacked"


def fit(trained: TrainedRun, person: str) -> Tensor:
    """Return the mean logarithm of the loss of up to 100 of a person's training samples.

    Under the model that somebody gets who never took part.

    Raises:
        ConfigError: there is no such model, or the task has no loss of single samples.
    """
    if why := refused(trained):
        raise ConfigError(why)
    return statistic(losses(trained, few(trained.ready.people[person].train, FRAMES))).mean()


def losses(trained: TrainedRun, samples: Samples) -> Tensor:
    """Return the loss of every sample, `[samples]`, under the model that a stranger gets.

    Raises:
        ConfigError: the task has no loss of single samples.
    """
    task = trained.task
    outputs = trained.outputs(trained.newcomer(), samples)
    try:
        found = torch.stack(
            [
                task.loss(outputs[at : at + 1], samples.take(torch.tensor([at])))
                for at in range(len(samples))
            ]
        )
    except (RuntimeError, IndexError, ValueError) as error:
        raise ConfigError(f"its task has no loss of single samples ({error})") from error
    if not found.isfinite().all():
        raise ConfigError("its task has no finite loss of single samples")
    return found
