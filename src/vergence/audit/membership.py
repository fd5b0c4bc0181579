"""Membership audit (LiRA), for frames and for people, of the model that strangers get.

In a finished run everybody was in. So the same experiment is run again, often, with random halves
of everybody's frames, and of the people; each of these runs is attacked in turn, and the others
tell how much a model that had something differs from one that had not.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vergence.attacks.membership import each_in_turn, halves, of_people
from vergence.attacks.score import least_epsilon, tpr_at
from vergence.audit.forgotten_membership import losses, refused, shadow
from vergence.audit.identity import told
from vergence.audit.images import AS_IT_RAN, few, places
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.engine.plan import Plan
from vergence.errors import ConfigError
from vergence.experiment import starting_model
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun
from vergence.results.text_tables import Record

FPR, PEOPLE, FRAMES = 0.01, 50, 40
"""The rate of false alarms, and of how many people, by how many frames each, it is asked."""
MODELS = {True: 6, False: 12}
"""Shadow runs of either kind, quick or not."""
SECONDS = 50.0
"""Of a processor, for the shadow runs of a quick audit: they hold as many rounds as fit."""
FEWEST = 8
"""Frames of a person, of which every shadow run has about half."""
Tick = Callable[[int, int], None]
Lines = tuple[list[Record], list[tuple[str, str]]]
"""What was found, and what was not tried and why."""


@dataclass(frozen=True)
class ShadowRuns:
    """Runs of the experiment on halves of its data."""

    saved: TrainedRun
    data: Federation
    plan: Plan
    models: int

    @property
    def experiment(self) -> Experiment:
        """The experiment with this plan."""
        return replace(self.saved.experiment, plan=self.plan)

    def run(self, number: int, data: Federation, *parts: Sequence[Samples]) -> list[Tensor]:
        """Run on some of the data; return the model's loss on every sample of some parts."""
        (label,) = self.experiment.methods
        seed = max(self.saved.experiment.plan.seeds) + 1 + number
        with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
            trained = shadow(self.experiment, label, seed, self.data, data, Path(scratch))
            return [torch.cat([losses(trained, samples) for samples in part]) for part in parts]


def members(saved: TrainedRun, data: Federation, quick: bool, tick: Tick) -> Lines:
    """True positive rate of membership, at a false positive rate of one in a hundred.

    Args:
        saved: the run.
        data: of the people who took part.
        quick: fewer shadow runs, cut short.
        tick: called with how many shadow runs are done, of how many.
    """
    if len(data.people) > PEOPLE:
        data = data.only(data.clients[:PEOPLE])
    plan = saved.experiment.plan
    start = saved.experiment.model.start
    reasons = (
        refused(saved.on(data)),
        "four people at least are needed, two in and two out" if len(data.people) < 4 else "",
        "model.start was trained on these people: no run would be without them"
        if starting_model.known(start, data.name, data.clients)
        else "",
        "task.personal_prior is made of all of a person's frames, also of those left out"
        if saved.task.own_prior
        else "",
    )
    why = next(filter(None, reasons), "")
    if why:
        return [], [("membership of a frame and of a person", why)]
    plans = sides(plan)
    found: list[Record] = []
    failed: list[tuple[str, str]] = []
    all_ = 2 * MODELS[quick] * len(plans)
    for number, (name, each) in enumerate(plans):
        shadows = ShadowRuns(saved, data, each, MODELS[quick])
        try:
            found += asked(
                shadows,
                name,
                SECONDS / len(plans) if quick else None,
                lambda done, number=number: tick(done + number * 2 * MODELS[quick], all_),
            )
        except ConfigError as error:
            failed.append((f"membership; {name}", str(error)))
    return found, failed


def sides(plan: Plan) -> list[tuple[str, Plan]]:
    """Return a run's plan by name, and before it, where it spends a budget, one without."""
    # Sums that are secure give the same model, and half of the people may be too few for them.
    opened = replace(plan.privacy, aggregation=None)
    plans = [(AS_IT_RAN.removeprefix(", "), replace(plan, privacy=opened))]
    if plan.privacy.spends:
        bare = replace(opened, user=None, solver=None, mask=None)
        plans = [("no defence", replace(plan, privacy=bare)), *plans]
    return plans


def asked(
    shadows: ShadowRuns, name: str, seconds: float | None, tick: Callable[[int], None]
) -> list[Record]:
    """Return the lines of one plan.

    Args:
        shadows: runs on halves; the first tells how long a round takes.
        name: of the plan.
        seconds: that all may take; None: as long as they do.
        tick: called with how many are done.

    Raises:
        ConfigError: half of the people are too few for this plan.
    """
    if seconds is not None:
        shadows, rounds = replace(shadows, plan=shortened(shadows, seconds)), shadows.plan.rounds
        if shadows.plan.rounds < rounds:
            name = f"{name}, cut to {shadows.plan.rounds} of {rounds} rounds"
    data = shadows.data
    trains = [few(splits.train, FRAMES) for splits in data.people.values()]
    tests = [few(splits.test, FRAMES) for splits in data.people.values()]
    owners = [
        torch.repeat_interleave(
            torch.arange(len(part)), torch.tensor([len(samples) for samples in part])
        )
        for part in (trains, tests)
    ]
    inside, seen = of_frames(shadows, trains, tick)
    ratios, truth = zip(*each_in_turn(seen, inside), strict=True)
    lines = [line(f"was this frame in; {name}", list(ratios), list(truth))]
    who, sides = of_everybody(shadows, (trains, tests), lambda n: tick(n + shadows.models))
    for what, values, owner in zip(
        ("the frames in question", "frames of other days"), sides, owners, strict=True
    ):
        pairs = each_in_turn(values, who[:, owner])
        scores = [of_people(ratio, owner)[1] for ratio, _ in pairs]
        lines.append(line(f"was this person in, by {what}; {name}", scores, list(who)))
    return lines


def shortened(shadows: ShadowRuns, seconds: float) -> Plan:
    """Return the plan with as many rounds as all shadow runs can hold in so many CPU seconds.

    Each has half of the frames, or of the people.
    """
    once = replace(shadows, plan=replace(shadows.plan, rounds=1))
    began = sum(os.times()[:4])
    once.run(-1, shadows.data)
    fit = int(seconds / (max(sum(os.times()[:4]) - began, 1e-3) * shadows.models))
    return replace(shadows.plan, rounds=max(1, min(shadows.plan.rounds, fit)))


def of_frames(
    shadows: ShadowRuns, asked_of: Sequence[Samples], tick: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Run on random halves of everybody's frames.

    Returns:
        Which of the frames that are asked of were in, bool `[models, frames]`, and their losses,
        of the same shape.

    Raises:
        ConfigError: somebody has fewer than eight frames.
    """
    people = shadows.data.people
    sizes = [len(splits.train) for splits in people.values()]
    if min(sizes) < FEWEST:
        raise ConfigError(f"somebody has {min(sizes)} training samples; {FEWEST} are needed")
    inside = halves(sum(sizes), shadows.models, 0)
    parts = inside.split(sizes, 1)
    found = []
    for model in range(shadows.models):
        found += shadows.run(model, half(shadows.data, inside[model]), asked_of)
        tick(model + 1)
    rows = [places(size, len(samples)) for size, samples in zip(sizes, asked_of, strict=True)]
    kept = [part[:, row] for part, row in zip(parts, rows, strict=True)]
    return torch.cat(kept, 1), torch.stack(found)


def half(data: Federation, inside: Tensor) -> Federation:
    """Return the data with those training samples alone that are inside, bool `[samples]`."""
    sizes = [len(splits.train) for splits in data.people.values()]
    some = {
        name: replace(splits, train=splits.train.subset(part.nonzero().flatten()))
        for part, (name, splits) in zip(inside.split(sizes), data.people.items(), strict=True)
    }
    return replace(data, people=some)


def of_everybody(
    shadows: ShadowRuns, sides: Sequence[Sequence[Samples]], tick: Callable[[int], None]
) -> tuple[Tensor, list[Tensor]]:
    """Run on random halves of the people.

    Returns:
        Who was in, bool `[models, people]`, and the losses on each side, `[models, frames]`.
    """
    names = list(shadows.data.people)
    who = halves(len(names), shadows.models, 1)
    found = []
    for model in range(shadows.models):
        some = [name for name, there in zip(names, who[model].tolist(), strict=True) if there]
        found.append(shadows.run(shadows.models + model, shadows.data.only(some), *sides))
        tick(model + 1)
    return who, [torch.stack(side) for side in zip(*found, strict=True)]


def line(what: str, scores: list[Tensor], truth: list[Tensor]) -> Record:
    """Return the line of a question: the rate of members found, and of others called by mistake."""
    true, false = tpr_at(torch.cat(truth), torch.cat(scores), FPR)
    finds = f"{what}: TPR at {FPR:.0%} FPR"
    ran = AS_IT_RAN.removeprefix(", ") in what
    return {
        **told(finds, true, FPR, ran),
        "fpr": false.value,
        "members": true.of,
        "others": false.of,
        "least_epsilon": least_epsilon(true, false),
    }
