"""Membership test of one person in a finished run's shared model.

The attacker knows everybody else's data and the plan: shadow runs repeat the experiment without
this person, with other seeds. A model that fits the person's training samples better than the
shadow models, which never saw them, was probably trained on them.

Used by `audit.membership`, `audit.teacher_membership` and `unlearning.forget`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vergence.attacks.membership import statistic
from vergence.audit.images import evenly_spaced
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun, read_run

# The test calls a person a member if this share of models without them would fit as well.
FPR = 0.01
# Largest number of samples of a person that the test uses; losses of single samples take long.
FRAMES = 100


def losses_without(
    experiment: Experiment,
    label: str,
    ready: Federation,
    person: str,
    count: int,
    tick: Callable[[], None],
) -> Tensor:
    """Run one method without a person, several times; return the losses on everybody.

    `vergence forget` compares a run's losses with them.

    Args:
        experiment: experiment of the run.
        label: label of the method.
        ready: everybody's prepared data.
        person: the person who is left out.
        count: number of runs, each with a seed that the experiment does not use.
        tick: called after each run.

    Returns:
        Mean logarithm of the loss, `[count, people]`, in client order.

    Raises:
        ConfigError: see `fit`.
    """
    rest = [who for who in ready.clients if who != person]
    # Other seeds than the run's: a shadow run of the same seed would share its initial model.
    first, fits = max(experiment.plan.seeds) + 1, []
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
            trained = shadow_run(experiment, label, seed, ready, ready.only(rest), Path(scratch))
            fits.append(torch.stack([mean_log_loss(trained, who) for who in ready.clients]))
        tick()
    return torch.stack(fits)


def shadow_run(
    experiment: Experiment,
    label: str,
    seed: int,
    ready: Federation,
    some: Federation,
    scratch: Path,
) -> TrainedRun:
    """Run one method and seed on part of the data; return it ready to evaluate on all data."""
    # Nobody reads a shadow run's curves or continues it. It is measured where the run itself was
    # ended by that, so that both train alike.
    every = experiment.plan.needed_evaluations
    plan = replace(experiment.plan, seeds=(seed,), evaluate_every=every, checkpoint_every=0)
    single, folder = replace(experiment.with_method(label), plan=plan), RunDirectory(scratch, {})
    folder.open()
    run_rounds(single.methods[label], single.task(seed), federation=some, plan=plan, folder=folder)
    return read_run(scratch, seed, single).on_data(ready)


def refusal(trained: TrainedRun) -> str:
    """Return the reason why there is no shared model to attack, "" if there is one."""
    whole = trained.offers_newcomer(whole=True)
    return (
        "" if whole else "its server offers unseen clients no whole model, which could be attacked"
    )


def mean_log_loss(trained: TrainedRun, person: str) -> Tensor:
    """Return the mean logarithm of the loss of up to 100 training samples of a person, shape `[]`.

    The loss is that of the model that an unseen client gets.

    Raises:
        ConfigError: there is no such model, or the task has no loss of single samples.
    """
    if why := refusal(trained):
        raise ConfigError(why)
    return statistic(
        sample_losses(trained, evenly_spaced(trained.ready.people[person].train, FRAMES))
    ).mean()


def sample_losses(trained: TrainedRun, samples: Samples) -> Tensor:
    """Return the loss of every sample, `[samples]`, under the model that an unseen client gets.

    Raises:
        ConfigError: the task has no loss of single samples.
    """
    task = trained.task
    outputs = trained.outputs(trained.newcomer(), samples)
    try:
        losses = torch.stack(
            [
                task.loss(outputs[at : at + 1], samples.take(torch.tensor([at])))
                for at in range(len(samples))
            ]
        )
    # A task may compare the samples of a batch, such as a contrastive loss: one alone fails there.
    except (RuntimeError, IndexError, ValueError) as error:
        raise ConfigError(f"its task has no loss of single samples ({error})") from error
    if not losses.isfinite().all():
        raise ConfigError("its task has no finite loss of single samples")
    return losses
