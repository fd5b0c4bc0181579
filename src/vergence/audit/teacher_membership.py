"""Membership inference (LiRA) on an owner's teacher, and on the student that it taught.

Anybody who may ask the teacher sees its probabilities, and the provider has the student. Shadow
runs on random halves of the owners' samples train both, and each shadow run is attacked in turn.

Used by `audit.run`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vergence.attacks.membership import leave_one_out_ratios, random_halves
from vergence.audit.forgotten_membership import shadow_run
from vergence.audit.images import evenly_spaced, evenly_spaced_rows
from vergence.audit.membership import (
    FEWEST,
    MODELS,
    SECONDS,
    Lines,
    Tick,
    membership_record,
    plans_to_attack,
    restrict_training,
)
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.objectives import loss_per_sample
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun
from vergence.methods.generative.provider import Taught
from vergence.training.sequential import Solver

TEACHER, STUDENT = "teacher", "student"
# Largest number of an owner's samples whose membership is tested: half of them are no members, of
# whom one in a hundred gives 25 false positives, enough for a rate.
SAMPLES = 5000


@dataclass(frozen=True)
class TeacherMembership:
    """Membership of samples in shadow runs, and losses of each run's teacher and student.

    Attributes:
        inside: membership, bool `[models, samples]`.
        losses: losses of `teacher` and `student`, each `[models, samples]`.
    """

    inside: Tensor
    losses: Mapping[str, Tensor]

    def ratios(self, of: str) -> tuple[list[Tensor], list[Tensor]]:
        """Return, run by run, the likelihood ratios of all samples and their true membership."""
        pairs = list(leave_one_out_ratios(self.losses[of], self.inside))
        return [ratios for ratios, _ in pairs], [truth for _, truth in pairs]


def membership_rates(saved: TrainedRun, data: Federation, quick: bool, tick: Tick) -> Lines:
    """Return true positive rates for owners' samples at a false positive rate of 1 in 100.

    Args:
        saved: run of a method with teachers.
        data: data of the owners.
        quick: fewer shadow runs, with fewer rounds for the student.
        tick: called with the number of finished shadow runs, and of all.
    """
    records, failed, models = [], [], MODELS[quick]
    asked = plans_to_attack(saved.experiment.plan)
    for number, (name, plan) in enumerate(asked):
        experiment = replace(saved.experiment, plan=plan)
        try:
            if quick:
                experiment = shortened(experiment, data, SECONDS / len(asked) / models)
            if experiment.plan.rounds < plan.rounds:
                name = f"{name}, cut to {experiment.plan.rounds} of {plan.rounds} rounds"
            seen = shadow_losses(
                experiment,
                data,
                models,
                max(plan.seeds) + 1,
                lambda done, number=number: tick(done + number * models, models * len(asked)),
            )
        except ConfigError as error:
            failed.append((f"membership of a sample; {name}", str(error)))
            continue
        records += [
            membership_record(f"was this sample in, by the {who}; {name}", *seen.ratios(who))
            for who in (TEACHER, STUDENT)
        ]
    return records, failed


def shadow_losses(
    experiment: Experiment,
    data: Federation,
    models: int,
    seed: int,
    tick: Callable[[int], None] = lambda _: None,
) -> TeacherMembership:
    """Run one method on random halves of everybody's samples, several times.

    Args:
        experiment: experiment with one method.
        data: data of all owners.
        models: number of shadow runs.
        seed: seed of the first shadow run, and of the random halves.
        tick: called with the number of finished shadow runs.

    Raises:
        ConfigError: an owner has fewer than eight samples, or half of them are too few.
    """
    (label,) = experiment.methods
    trains = [splits.train for splits in data.people.values()]
    sizes = [len(train) for train in trains]
    if min(sizes) < FEWEST:
        raise ConfigError(f"an owner has {min(sizes)} training samples; {FEWEST} are needed")
    inside = random_halves(sum(sizes), models, seed)
    parts = inside.split(sizes, 1)
    rows: dict[str, list[Tensor]] = {TEACHER: [], STUDENT: []}
    for model in range(models):
        with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
            trained = shadow_run(
                experiment,
                label,
                seed + model,
                data,
                restrict_training(data, inside[model]),
                Path(scratch),
            )
            asked = [evenly_spaced(train, SAMPLES) for train in trains]
            taught = [
                _teacher(trained, name, part) for name, part in zip(data.people, asked, strict=True)
            ]
            student = [_losses(trained.task, trained.newcomer(), part) for part in asked]
        rows[TEACHER].append(torch.cat(taught))
        rows[STUDENT].append(torch.cat(student))
        tick(model + 1)
    members = [
        part[:, evenly_spaced_rows(size, SAMPLES)] for part, size in zip(parts, sizes, strict=True)
    ]
    return TeacherMembership(
        torch.cat(members, 1), {who: torch.stack(losses) for who, losses in rows.items()}
    )


def _teacher(saved: TrainedRun, name: str, samples: Samples) -> Tensor:
    owner = saved.clients[name]
    return _losses(saved.task, owner.teacher, samples, owner.known)


def _losses(task: Task, params: Params, samples: Samples, known: Params | None = None) -> Tensor:
    """Return the loss of every sample, float64 `[samples]`."""
    # In float32 the loss of a confident teacher is 0 below 1e-7, and its logarithm infinite.
    outputs = Solver(task).outputs(params, samples).double()
    if known is not None:
        outputs = task.restrict_to_known(outputs, known["classes"])
    return loss_per_sample(task, outputs, samples.take(torch.arange(len(samples))))


def shortened(experiment: Experiment, data: Federation, seconds: float) -> Experiment:
    """Return the experiment with as many rounds as fit into these CPU seconds, at least two.

    The teacher is trained in full; generator and student keep their shares of the rounds.
    """
    # Two lengths: the teacher's training, which is in both, falls out of their difference.
    took = []
    for rounds in (2, 4):
        began = sum(os.times()[:4])
        run_once(with_rounds(experiment, rounds), data)
        took.append(sum(os.times()[:4]) - began)
    a_round = max((took[1] - took[0]) / 2, 1e-3)
    return with_rounds(experiment, 2 + max(0, int((seconds - took[0]) / a_round)))


def run_once(experiment: Experiment, data: Federation) -> None:
    """Run an experiment of one method on all samples, to measure its time."""
    (label,) = experiment.methods
    with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
        shadow_run(experiment, label, max(experiment.plan.seeds), data, data, Path(scratch))


def with_rounds(experiment: Experiment, rounds: int) -> Experiment:
    """Return the experiment with at most `rounds` rounds; the generator keeps its share of them."""
    ((label, method),) = experiment.methods.items()
    assert isinstance(method, Taught)
    had = experiment.plan.rounds
    if rounds >= had:
        return experiment
    # Generator and student need at least one round each.
    making = max(1, min(rounds - 1, round(rounds * method.generator_rounds / had)))
    return replace(
        experiment,
        plan=replace(experiment.plan, rounds=rounds),
        methods={label: replace(method, generator_rounds=making)},
    )
