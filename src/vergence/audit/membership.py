"""Membership inference (LiRA) of frames and of people, on the model that unseen clients get.

In the finished run everybody was a member, so there is nobody to tell members from. The experiment
is therefore repeated in shadow runs, on random halves of everybody's frames and on random halves of
the people. Each shadow run is attacked in turn, and the others show how losses of members differ.

Used by `audit.run` and `audit.teacher_membership`.

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

from vergence.attacks.membership import leave_one_out_ratios, random_halves, sum_by_person
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

# False positive rate of the test; largest number of people, and of frames of each. Carlini et al.
# judge an attack at low false positive rates: an average hides the few who are surely exposed.
FPR, PEOPLE, FRAMES = 0.01, 50, 40
# Number of shadow runs on halves of the frames, and as many on halves of the people; True: quick.
# Six is the least with which two shadow models remain on either side of the attacked one.
MODELS = {True: 6, False: 12}
# CPU seconds of all shadow runs of a quick audit: `--quick` promises two minutes altogether.
SECONDS = 50.0
# Smallest number of frames of a person: every shadow run trains on about half of them.
FEWEST = 8
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
        """The experiment of the run, with the plan of the shadow runs."""
        return replace(self.saved.experiment, plan=self.plan)

    def run(self, number: int, data: Federation, *parts: Sequence[Samples]) -> list[Tensor]:
        """Run on part of the data; return the model's loss on every sample of each of `parts`."""
        (label,) = self.experiment.methods
        # New seeds: a shadow run must not start from the attacked run's initial model.
        seed = max(self.saved.experiment.plan.seeds) + 1 + number
        with tempfile.TemporaryDirectory(prefix="vergence-shadow-") as scratch:
            trained = shadow_run(self.experiment, label, seed, self.data, data, Path(scratch))
            return [
                torch.cat([sample_losses(trained, samples) for samples in part]) for part in parts
            ]


def membership_rates(saved: TrainedRun, data: Federation, quick: bool, tick: Tick) -> Lines:
    """Return true positive rates of membership at a false positive rate of one in a hundred.

    Args:
        saved: the run.
        data: data of the people who took part.
        quick: fewer shadow runs with fewer rounds.
        tick: called with the number of finished shadow runs, and of all.
    """
    if len(data.people) > PEOPLE:
        data = data.only(data.clients[:PEOPLE])
    plan = saved.experiment.plan
    start = saved.experiment.model.start
    reasons = (
        refusal(saved.on_data(data)),
        "four people at least are needed, two in and two out" if len(data.people) < 4 else "",
        # Every shadow run begins at the same start: with it, a person who is left out is still in.
        "model.start was trained on these people: no run would be without them"
        if starting_model.people_learned_from(start, data.name, data.clients)
        else "",
        "task.personal_prior is made of all of a person's frames, also of those left out"
        # A tuned prior only enters predictions: losses of the network do not contain it.
        if saved.task.own_prior and not saved.task.tunes_prior
        else "",
    )
    if why := next(filter(None, reasons), ""):
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
    """Return the run's plan with its name; before it, if the run has DP, the plan without DP."""
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
        # The table says how many rounds were left out: a shorter run remembers less of people.
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
    ratios, truth = zip(*leave_one_out_ratios(seen, inside), strict=True)
    lines = [membership_record(f"was this frame in; {name}", list(ratios), list(truth))]
    who, sides = person_losses(shadows, (trains, tests), lambda n: tick(n + shadows.models))
    for what, values, owner in zip(
        ("the frames in question", "frames of other days"), sides, owners, strict=True
    ):
        pairs = leave_one_out_ratios(values, who[:, owner])
        scores = [sum_by_person(ratio, owner)[1] for ratio, _ in pairs]
        lines.append(membership_record(f"was this person in, by {what}; {name}", scores, list(who)))
    return lines


def shortened(shadows: ShadowRuns, seconds: float) -> Plan:
    """Return the plan with as many rounds as all shadow runs can finish in these CPU seconds."""
    once = replace(shadows, plan=replace(shadows.plan, rounds=1))
    # CPU time, not wall time: another program on the machine must not change the audit's rounds.
    began = sum(os.times()[:4])
    once.run(-1, shadows.data)
    # One round on all data costs as much as two shadow runs' rounds on half of the data, and there
    # are twice `models` of them. 1 ms at least: a clock that did not tick would divide by 0.
    fit = int(seconds / (max(sum(os.times()[:4]) - began, 1e-3) * shadows.models))
    return replace(shadows.plan, rounds=max(1, min(shadows.plan.rounds, fit)))


def frame_losses(
    shadows: ShadowRuns, asked_of: Sequence[Samples], tick: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Run the shadow runs on random halves of everybody's frames.

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
    inside = random_halves(sum(sizes), shadows.models, 0)
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
    """Return data with only those training samples for which `inside`, bool `[samples]`, is true.

    The order is that of clients, and of each client's training samples.
    """
    sizes = [len(splits.train) for splits in data.people.values()]
    some = {
        name: replace(splits, train=splits.train.subset(part.nonzero().flatten()))
        for part, (name, splits) in zip(inside.split(sizes), data.people.items(), strict=True)
    }
    return replace(data, people=some)


def person_losses(
    shadows: ShadowRuns, sides: Sequence[Sequence[Samples]], tick: Callable[[int], None]
) -> tuple[Tensor, list[Tensor]]:
    """Run the shadow runs on random halves of the people.

    Returns:
        Membership of people, bool `[models, people]`, and the losses of each set of frames,
        `[models, frames]`.
    """
    names = list(shadows.data.people)
    who = random_halves(len(names), shadows.models, 1)
    losses = []
    for model in range(shadows.models):
        some = [name for name, there in zip(names, who[model].tolist(), strict=True) if there]
        losses.append(shadows.run(shadows.models + model, shadows.data.only(some), *sides))
        tick(model + 1)
    return who, [torch.stack(side) for side in zip(*losses, strict=True)]


def membership_record(what: str, scores: list[Tensor], truth: list[Tensor]) -> Record:
    """Return the record of a membership test: true positive rate at false positive rate `FPR`."""
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
