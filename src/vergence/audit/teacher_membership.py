"""Membership audit (LiRA) of an owner's teacher, and of the student that it answered.

Whoever may ask the teacher sees its scores; the student is what a provider gets. Both are those of
the same runs on random halves of the owners' samples, each of which is attacked in turn.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vergence.attacks.membership import each_in_turn, halves
from vergence.audit.forgotten_membership import shadow
from vergence.audit.images import few, places
from vergence.audit.membership import FEWEST, MODELS, SECONDS, Lines, Tick, half, line, sides
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.objectives import each
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun
from vergence.methods.generative.provider import Taught
from vergence.training.sequential import Solver

TEACHER, STUDENT = "teacher", "student"
SAMPLES = 5000
"""So many of an owner's are asked of, at most."""


@dataclass(frozen=True)
class TeacherMembership:
    """Membership of samples in runs, and results of each run's teacher and student on them.

    Attributes:
        inside: bool `[models, samples]`.
        losses: `teacher` and `student`, each `[models, samples]`.
    """

    inside: Tensor
    losses: Mapping[str, Tensor]

    def asked(self, of: str) -> tuple[list[Tensor], list[Tensor]]:
        """Return the ratios of all samples and whether they were in, run by run."""
        found = list(each_in_turn(self.losses[of], self.inside))
        return [ratios for ratios, _ in found], [truth for _, truth in found]


def members(saved: TrainedRun, data: Federation, quick: bool, tick: Tick) -> Lines:
    """True positive rate for owners' samples, at a false positive rate of one in a hundred.

    Args:
        saved: a run of a method with teachers.
        data: of the owners.
        quick: fewer shadow runs, of which the student's part is cut short.
        tick: called with how many shadow runs are done, of how many.
    """
    found, failed, models = [], [], MODELS[quick]
    asked = sides(saved.experiment.plan)
    for number, (name, plan) in enumerate(asked):
        experiment = replace(saved.experiment, plan=plan)
        try:
            if quick:
                experiment = shortened(experiment, data, SECONDS / len(asked) / models)
            if experiment.plan.rounds < plan.rounds:
                name = f"{name}, cut to {experiment.plan.rounds} of {plan.rounds} rounds"
            seen = remembered(
                experiment,
                data,
                models,
                max(plan.seeds) + 1,
                lambda done, number=number: tick(done + number * models, models * len(asked)),
            )
        except ConfigError as error:
            failed.append((f"membership of a sample; {name}", str(error)))
            continue
        found += [
            line(f"was this sample in, by the {who}; {name}", *seen.asked(who))
            for who in (TEACHER, STUDENT)
        ]
    return found, failed


def remembered(
    experiment: Experiment,
    data: Federation,
    models: int,
    seed: int,
    tick: Callable[[int], None] = lambda _: None,
) -> TeacherMembership:
    """Run an experiment of one method on random halves of everybody's samples.

    Args:
        experiment: what is run.
        data: of all owners.
        models: how many runs.
        seed: of the first of them; draws the halves too.
        tick: called with how many are done.

    Raises:
        ConfigError: an owner has fewer than eight samples, or half of them are too few.
    """
    (label,) = experiment.methods
    trains = [splits.train for splits in data.people.values()]
    sizes = [len(train) for train in trains]
    if min(sizes) < FEWEST:
        raise ConfigError(f"an owner has {min(sizes)} training samples; {FEWEST} are needed")
    inside = halves(sum(sizes), models, seed)
    parts = inside.split(sizes, 1)
    rows: dict[str, list[Tensor]] = {TEACHER: [], STUDENT: []}
    for model in range(models):
        with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
            trained = shadow(
                experiment, label, seed + model, data, half(data, inside[model]), Path(scratch)
            )
            asked = [few(train, SAMPLES) for train in trains]
            taught = [
                _teacher(trained, name, part) for name, part in zip(data.people, asked, strict=True)
            ]
            student = [_losses(trained.task, trained.newcomer(), part) for part in asked]
        rows[TEACHER].append(torch.cat(taught))
        rows[STUDENT].append(torch.cat(student))
        tick(model + 1)
    kept = [part[:, places(size, SAMPLES)] for part, size in zip(parts, sizes, strict=True)]
    return TeacherMembership(
        torch.cat(kept, 1), {who: torch.stack(found) for who, found in rows.items()}
    )


def _teacher(saved: TrainedRun, name: str, samples: Samples) -> Tensor:
    owner = saved.clients[name]
    return _losses(saved.task, owner.teacher, samples, owner.known)


def _losses(task: Task, params: Params, samples: Samples, known: Params | None = None) -> Tensor:
    """Return every sample's loss `[samples]`, in double: float32 has none below 1e-7."""
    outputs = Solver(task).outputs(params, samples).double()
    if known is not None:
        outputs = task.among(outputs, known["classes"])
    return each(task, outputs, samples.take(torch.arange(len(samples))))


def shortened(experiment: Experiment, data: Federation, seconds: float) -> Experiment:
    """Return an experiment with as many rounds as fit so many CPU seconds, two at least.

    The teacher is trained in full; generator and student keep their shares of the rounds.
    """
    took = []
    for rounds in (2, 4):
        began = sum(os.times()[:4])
        remembered_once(cut(experiment, rounds), data)
        took.append(sum(os.times()[:4]) - began)
    a_round = max((took[1] - took[0]) / 2, 1e-3)
    return cut(experiment, 2 + max(0, int((seconds - took[0]) / a_round)))


def remembered_once(experiment: Experiment, data: Federation) -> None:
    """Run an experiment of one method on all samples, and forget it."""
    (label,) = experiment.methods
    with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
        shadow(experiment, label, max(experiment.plan.seeds), data, data, Path(scratch))


def cut(experiment: Experiment, rounds: int) -> Experiment:
    """Return an experiment of so many rounds at most, of which the generator has its share."""
    ((label, method),) = experiment.methods.items()
    assert isinstance(method, Taught)
    had = experiment.plan.rounds
    if rounds >= had:
        return experiment
    making = max(1, min(rounds - 1, round(rounds * method.generator_rounds / had)))
    return replace(
        experiment,
        plan=replace(experiment.plan, rounds=rounds),
        methods={label: replace(method, generator_rounds=making)},
    )
