"""Membership inference (LiRA) of frames and of people, on the model that unseen clients get.

In a finished run everybody was a member. So the experiment is repeated in shadow runs, on random
halves of everybody's frames and on random halves of the people. Each shadow run is attacked in
turn, and the others show how losses of members differ from losses of others.

Source: Carlini et al., Membership Inference Attacks From First Principles, S&P 2022.
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
from vergence.audit.forgotten_membership import refusal, sample_losses, shadow_run
from vergence.audit.identity import rate_record
from vergence.audit.images import AS_IT_RAN, evenly_spaced, evenly_spaced_rows
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.engine.plan import Plan
from vergence.errors import ConfigError
from vergence.experiment import starting_model
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun
from vergence.results.text_tables import Record

FPR, PEOPLE, FRAMES = 0.01, 50, 40
"""False positive rate of the test; largest number of people, and of frames of each."""
MODELS = {True: 6, False: 12}
"""Number of shadow runs on halves of the frames, and on halves of the people; True: quick."""
SECONDS = 50.0
"""CPU seconds of all shadow runs of a quick audit, which limit their rounds."""
FEWEST = 8
"""Smallest number of frames of a person, of which every shadow run has about half."""
Tick = Callable[[int, int], None]
Lines = tuple[list[Record], list[tuple[str, str]]]
"""Records of attacks, and pairs of an attack that was not tried and the reason."""


@dataclass(frozen=True)
class ShadowRuns:
    """Shadow runs: repetitions of the experiment on halves of its data."""

    saved: TrainedRun
    data: Federation
    plan: Plan
    models: int

    @property
    def experiment(self) -> Experiment:
        """The experiment with this plan."""
        return replace(self.saved.experiment, plan=self.plan)

    def run(self, number: int, data: Federation, *parts: Sequence[Samples]) -> list[Tensor]:
        """Run on part of the data; return the model's loss on every sample of each of `parts`."""
        (label,) = self.experiment.methods
        seed = max(self.saved.experiment.plan.seeds) + 1 + number
        with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
            trained = shadow_run(self.experiment, label, seed, self.data, data, Path(scratch))
            return [
                torch.cat([sample_losses(trained, samples) for samples in part]) for part in parts
            ]


def membership_rates(saved: TrainedRun, data: Federation, quick: bool, tick: Tick) -> Lines:
    """True positive rate of membership, at a false positive rate of one in a hundred.

    Args:
        saved: the run.
        data: data of the people who took part.
        quick: fewer shadow runs, of fewer rounds.
        tick: called with the number of finished shadow runs, and of all.
    """
    if len(data.people) > PEOPLE:
        data = data.only(data.clients[:PEOPLE])
    plan = saved.experiment.plan
    start = saved.experiment.model.start
    reasons = (
        refusal(saved.on_data(data)),
        "four people at least are needed, two in and two out" if len(data.people) < 4 else "",
        "model.start was trained on these people: no run would be without them"
        if starting_model.people_learned_from(start, data.name, data.clients)
        else "",
        "task.personal_prior is made of all of a person's frames, also of those left out"
        if saved.task.own_prior
        else "",
    )
    why = next(filter(None, reasons), "")
    if why:
        return [], [("membership of a frame and of a person", why)]
    plans = plans_to_attack(plan)
    records: list[Record] = []
    failed: list[tuple[str, str]] = []
    all_ = 2 * MODELS[quick] * len(plans)
    for number, (name, each) in enumerate(plans):
        shadows = ShadowRuns(saved, data, each, MODELS[quick])
        try:
            records += attack_plan(
                shadows,
                name,
                SECONDS / len(plans) if quick else None,
                lambda done, number=number: tick(done + number * 2 * MODELS[quick], all_),
            )
        except ConfigError as error:
            failed.append((f"membership; {name}", str(error)))
    return records, failed


def plans_to_attack(plan: Plan) -> list[tuple[str, Plan]]:
    """Plan of the run with its name; before it the plan without DP, where the run has some."""
    # Secure sums give the same model, and half of the people may be too few for them.
    opened = replace(plan.privacy, aggregation=None)
    plans = [(AS_IT_RAN.removeprefix(", "), replace(plan, privacy=opened))]
    if plan.privacy.spends:
        bare = replace(opened, user=None, solver=None, mask=None)
        plans = [("no defence", replace(plan, privacy=bare)), *plans]
    return plans


def attack_plan(
    shadows: ShadowRuns, name: str, seconds: float | None, tick: Callable[[int], None]
) -> list[Record]:
    """Attack shadow runs of one plan; return the records.

    Args:
        shadows: shadow runs; the first measures the time of a round.
        name: name of the plan in the table.
        seconds: CPU seconds that all of them may take; None: no limit.
        tick: called with the number of finished shadow runs.

    Raises:
        ConfigError: half of the people are too few for this plan.
    """
    if seconds is not None:
        shadows, rounds = replace(shadows, plan=shortened(shadows, seconds)), shadows.plan.rounds
        if shadows.plan.rounds < rounds:
            name = f"{name}, cut to {shadows.plan.rounds} of {rounds} rounds"
    data = shadows.data
    trains = [evenly_spaced(splits.train, FRAMES) for splits in data.people.values()]
    tests = [evenly_spaced(splits.test, FRAMES) for splits in data.people.values()]
    owners = [
        torch.repeat_interleave(
            torch.arange(len(part)), torch.tensor([len(samples) for samples in part])
        )
        for part in (trains, tests)
    ]
    inside, seen = frame_losses(shadows, trains, tick)
    ratios, truth = zip(*each_in_turn(seen, inside), strict=True)
    lines = [membership_record(f"was this frame in; {name}", list(ratios), list(truth))]
    who, sides = person_losses(shadows, (trains, tests), lambda n: tick(n + shadows.models))
    for what, values, owner in zip(
        ("the frames in question", "frames of other days"), sides, owners, strict=True
    ):
        pairs = each_in_turn(values, who[:, owner])
        scores = [of_people(ratio, owner)[1] for ratio, _ in pairs]
        lines.append(membership_record(f"was this person in, by {what}; {name}", scores, list(who)))
    return lines


def shortened(shadows: ShadowRuns, seconds: float) -> Plan:
    """Plan with as many rounds as all shadow runs can finish in so many CPU seconds.

    Each shadow run has half of the frames, or half of the people.
    """
    once = replace(shadows, plan=replace(shadows.plan, rounds=1))
    began = sum(os.times()[:4])
    once.run(-1, shadows.data)
    fit = int(seconds / (max(sum(os.times()[:4]) - began, 1e-3) * shadows.models))
    return replace(shadows.plan, rounds=max(1, min(shadows.plan.rounds, fit)))


def frame_losses(
    shadows: ShadowRuns, asked_of: Sequence[Samples], tick: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Shadow runs on random halves of everybody's frames.

    Returns:
        Membership of the attacked frames, bool `[models, frames]`, and their losses, of the same
        shape.

    Raises:
        ConfigError: somebody has fewer than eight frames.
    """
    people = shadows.data.people
    sizes = [len(splits.train) for splits in people.values()]
    if min(sizes) < FEWEST:
        raise ConfigError(f"somebody has {min(sizes)} training samples; {FEWEST} are needed")
    inside = halves(sum(sizes), shadows.models, 0)
    parts = inside.split(sizes, 1)
    losses = []
    for model in range(shadows.models):
        losses += shadows.run(model, restrict_training(shadows.data, inside[model]), asked_of)
        tick(model + 1)
    rows = [
        evenly_spaced_rows(size, len(samples))
        for size, samples in zip(sizes, asked_of, strict=True)
    ]
    members = [part[:, row] for part, row in zip(parts, rows, strict=True)]
    return torch.cat(members, 1), torch.stack(losses)


def restrict_training(data: Federation, inside: Tensor) -> Federation:
    """Data with only those training samples for which `inside`, bool `[samples]`, is true."""
    sizes = [len(splits.train) for splits in data.people.values()]
    some = {
        name: replace(splits, train=splits.train.subset(part.nonzero().flatten()))
        for part, (name, splits) in zip(inside.split(sizes), data.people.items(), strict=True)
    }
    return replace(data, people=some)


def person_losses(
    shadows: ShadowRuns, sides: Sequence[Sequence[Samples]], tick: Callable[[int], None]
) -> tuple[Tensor, list[Tensor]]:
    """Shadow runs on random halves of the people.

    Returns:
        Membership of people, bool `[models, people]`, and the losses of each set of frames,
        `[models, frames]`.
    """
    names = list(shadows.data.people)
    who = halves(len(names), shadows.models, 1)
    losses = []
    for model in range(shadows.models):
        some = [name for name, there in zip(names, who[model].tolist(), strict=True) if there]
        losses.append(shadows.run(shadows.models + model, shadows.data.only(some), *sides))
        tick(model + 1)
    return who, [torch.stack(side) for side in zip(*losses, strict=True)]


def membership_record(what: str, scores: list[Tensor], truth: list[Tensor]) -> Record:
    """Record of a membership test: true positive rate at the false positive rate `FPR`."""
    true, false = tpr_at(torch.cat(truth), torch.cat(scores), FPR)
    finds = f"{what}: TPR at {FPR:.0%} FPR"
    ran = AS_IT_RAN.removeprefix(", ") in what
    return {
        **rate_record(finds, true, FPR, ran),
        "fpr": false.value,
        "members": true.of,
        "others": false.of,
        "least_epsilon": least_epsilon(true, false),
    }
