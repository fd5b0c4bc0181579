"""Audit of model updates: pictures reconstructed from them, and their owners recognised.

The updates are those of the run's first rounds: single ones, or sums under secure aggregation. A
picture is reconstructed from one person's first update, and, as the worst case, from an update that
one picture made in one step. The attacker knows who sent the updates of one round, and names the
senders in the next round, and in another session of the same people.

Used by `audit.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vergence.attacks import score
from vergence.attacks.gradient_inversion import GradientInversion, gradient_of_update
from vergence.attacks.identity import matching_rate, nearest
from vergence.attacks.view import AttackerView
from vergence.audit import replay
from vergence.audit.identity import rate_record
from vergence.audit.images import (
    AS_IT_RAN,
    concatenate_common,
    evenly_spaced,
    has_gray_images,
    picture_record,
    pixels,
    without_attack,
)
from vergence.core.data import Batch, Samples, Splits, copy_of
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.params import Params
from vergence.engine import compatibility_check
from vergence.engine.plan import Plan
from vergence.engine.protections.dry_run import dry_run
from vergence.errors import ConfigError
from vergence.experiment.trained_run import TrainedRun
from vergence.privacy.config import SecureAggregationConfig
from vergence.privacy.dp.dp_sgd_solver import training_schedule
from vergence.privacy.split.defense import IMAGE
from vergence.results.text_tables import Record
from vergence.training.pruning import bind_parameters


@dataclass(frozen=True)
class ReplaySize:
    """Amount of work: numbers of pictures, of inversion steps, and of replayed rounds."""

    pictures: int
    steps: int
    rounds: int


QUICK, WHOLE = ReplaySize(3, 100, 3), ReplaySize(6, 300, 5)


@dataclass
class ObservedRounds:
    """Findings of attacks on updates.

    Attributes:
        lines: records of reconstructed pictures.
        shown: the pictures, by the attacker's knowledge.
        rates: records of rates at which owners of updates are named.
        who: name of the victim.
        not_tried: attacks that were not tried, each with the reason.
    """

    lines: list[Record] = field(default_factory=list)
    shown: dict[str, Tensor] = field(default_factory=dict)
    rates: list[Record] = field(default_factory=list)
    who: str = ""
    not_tried: list[tuple[str, str]] = field(default_factory=list)


def server_views(saved: TrainedRun) -> tuple[list[tuple[str, Plan]], str]:
    """Return the plans to attack, by name: without defences, and with them.

    The defences are the run's own, or, if it has none, secure sums.

    Returns:
        The plans, and the reason why none has secure sums, "" if one has.
    """
    plan, privacy = saved.experiment.plan, saved.experiment.plan.privacy
    bare = replace(privacy, aggregation=None, user=None, solver=None, mask=None)
    if privacy != bare:
        defences = {
            "secure sums": privacy.aggregation,
            "DP for people": privacy.user,
            "DP-SGD": privacy.solver,
            "DP for masks": privacy.mask,
        }
        name = " and ".join(name for name, used in defences.items() if used) + AS_IT_RAN
        return [("no defence", replace(plan, privacy=bare)), (name, plan)], ""
    plans, why = [(f"no defence{AS_IT_RAN}", plan)], ""
    # Pairwise sums need no aggregators; where they are impossible, additive ones may not be.
    for kind in ("pairwise", "additive"):
        try:
            other = replace(
                plan, privacy=replace(privacy, aggregation=SecureAggregationConfig(kind))
            )
            compatibility_check.check(other, saved.method, saved.task)
            return [*plans, ("secure sums", other)], ""
        except ConfigError as error:
            why = str(error)
    return plans, why


def attack_updates(
    saved: TrainedRun,
    data: Federation,
    person: str | None,
    size: ReplaySize,
    tick: Callable[[str], None],
) -> ObservedRounds:
    """Attack the updates of a run.

    Args:
        saved: the run; its method must have a `replay.update_tree`.
        data: data of the people who took part.
        person: the victim; default the first who took part.
        size: amount of work.
        tick: called with the name of the step that was finished.

    Raises:
        ConfigError: the person took no part in the first round.
    """
    findings, (plans, why) = ObservedRounds(), server_views(saved)
    if why:
        findings.not_tried.append(("anything behind secure sums", why))
    rounds = min(size.rounds, saved.experiment.plan.rounds)
    observed = {}
    for name, plan in plans:
        observed[name] = replay.replay_rounds(saved, data, rounds, plan)
        tick(f"rounds replayed: {name}")
    first = [update.sender for update in observed[plans[0][0]].updates if update.round == 0]
    if person is not None and person not in first:
        raise ConfigError(
            f"'{person}' sent nothing in the first round; name one of {', '.join(first[:20])}"
        )
    if not first:
        raise ConfigError("nobody sent anything in the first round of this run")
    findings.who = person or min(first)
    _pictures(findings, saved, data, plans, observed, size, tick)
    # Another session of the same people, who train on their test data, of other days: an attacker
    # who recognises them there has learned their eyes, and not one day's light.
    people = {name: Splits(s.test, s.val, s.train) for name, s in data.people.items()}
    session = replace(data, people=people)
    for name, plan in plans:
        if plan.privacy.aggregation is not None:
            findings.not_tried.append(
                (
                    f"whose an update is; {name}",
                    "the server has only sums over all who take part",
                )
            )
            continue
        other = replay.replay_rounds(saved, session, rounds, plan)
        findings.rates += list(naming_rates(name, observed[name], other))
        tick(f"who: {name}")
    return findings


def _pictures(
    findings: ObservedRounds,
    saved: TrainedRun,
    data: Federation,
    plans: Sequence[tuple[str, Plan]],
    observed: Mapping[str, AttackerView],
    size: ReplaySize,
    tick: Callable[[str], None],
) -> None:
    """Reconstruct the victim's pictures from observed updates."""
    who = findings.who
    mine = evenly_spaced(data.people[who].train, size.pictures)
    # Twenty people are enough for a mean picture.
    others = [splits.train for name, splits in data.people.items() if name != who][:20]
    if why := no_pictures_reason(saved, mine, others):
        findings.not_tried.append(("rebuilding pictures", why))
        return
    shadow = concatenate_common([evenly_spaced(part, 100) for part in others])
    eyes, known = pixels(mine), pixels(shadow)
    mean = score.mean_image(known, len(eyes))
    findings.shown |= {f"pictures of {who}, not sent": eyes, "mean of the others": mean}
    findings.lines += without_attack(eyes, mean)
    typical = average_sample(shadow.take(slice(None)))
    for name, view in observed.items():
        seen, change = first_update(view, who)
        picture = invert_update(saved, change, typical, mean[:1], size.steps).expand_as(eyes)
        findings.lines.append(picture_record(name, seen, eyes, picture))
        findings.shown[f"{name}\n{seen}"] = picture
        tick(f"pictures: {name}")
    for name, plan in plans:
        seen, pictures = "", []
        for at in range(len(mine)):
            view = replay.replay_rounds(saved, *one_picture_round(saved, data, plan, mine, who, at))
            seen, change = first_update(view, who)
            pictures.append(
                invert_update(saved, change, mine.take(torch.tensor([at])), mean[:1], size.steps)
            )
        what = f"one picture in one step; {name.removesuffix(AS_IT_RAN)}"
        findings.lines.append(picture_record(what, seen, eyes, torch.cat(pictures)))
        findings.shown[f"{what}\n{seen}"] = torch.cat(pictures)
        tick(f"pictures: {what}")


def no_pictures_reason(saved: TrainedRun, mine: Samples, others: list[Samples]) -> str:
    """Return the reason why pictures cannot be reconstructed, "" if they can."""
    if not has_gray_images(mine):
        return "the data have no gray pictures [samples, 1, height, width]"
    if not others:
        return "there is nobody else whose pictures an attacker could start from"
    try:
        saved.task.inputs(mine.take(torch.tensor([0])))
    except ConfigError as error:
        return str(error)
    return ""


def one_picture_round(
    saved: TrainedRun, data: Federation, plan: Plan, mine: Samples, who: str, at: int
) -> tuple[Federation, int, Plan, LocalTraining]:
    """Return arguments of `replay_rounds` for one round, of one step on one picture by everybody.

    The victim's picture is number `at` of `mine`.
    """
    people = {
        name: replace(
            splits,
            train=(
                mine.subset(torch.tensor([at]))
                if name == who
                else splits.train.subset(torch.tensor([0]))
            ),
        )
        for name, splits in data.people.items()
    }
    solver = plan.privacy.solver
    # The noise of DP-SGD is the run's: calibrated to a single picture it would be larger, and the
    # attack would look weaker than it is.
    if solver is not None:
        passes = dry_run(saved.method, saved.task, data.only([who]), plan.rounds)
        noise = training_schedule(passes, len(data.people[who].train)).noise(solver)
        solver = replace(solver, noise=noise, epsilon=None)
    plan = replace(plan, privacy=replace(plan.privacy, solver=solver))
    local = replace(saved.method.local, steps=1, batch=1, sampler="shuffle")
    return replace(data, people=people), 1, plan, local


def first_update(view: AttackerView, who: str) -> tuple[str, Params]:
    """Return the name and parameters of the first thing the server saw: an update, or a sum."""
    if view.sums:
        return "the sum of all", view.sums[min(view.sums)]
    return "an update", view.updates_of_round(0)[who].change


def invert_update(
    saved: TrainedRun, change: Params, batch: Batch, start: Tensor, steps: int
) -> Tensor:
    """Reconstruct the picture `[1, 1, height, width]` whose gradient is most like a first update.

    The gradient is that of the task's initial parameters, from which every network of a run starts.

    Args:
        saved: the run.
        change: the change of the parameters that were sent.
        batch: one sample, whose labels the attacker assumes.
        start: initial pixels, in [0, 1].
        steps: number of steps of the optimisation.
    """
    task = saved.task
    network = bind_parameters(task.module(), task.init())
    # A task standardises pixels linearly: black and white give the scale, for pixels in [0, 1]
    # through which gradients flow.
    dark, bright = (
        task.inputs({**batch, IMAGE: torch.full_like(batch[IMAGE][:1], level)})[0]
        for level in (0, 255)
    )
    side_inputs = task.inputs(batch)[1]
    names = [name for name, _ in network.named_parameters() if name in change]
    parameters = [p.requires_grad_(True) for n, p in network.named_parameters() if n in change]

    def loss(image: Tensor) -> Tensor:
        output = network(
            dark + image * (bright - dark), *(column.clone() for column in side_inputs)
        )
        return task.loss(output, copy_of(batch))

    # Adam's first step has the gradient's signs, but not its sizes.
    adam = saved.method.local.optimizer != "sgd"
    return GradientInversion(steps, signs=adam).reconstruct(
        loss, parameters, gradient_of_update(change, names), start
    )


def average_sample(batch: Batch) -> Batch:
    """Return one sample: the mean of each floating-point column, the first row of the others."""
    return {
        name: column.mean(0, keepdim=True) if column.is_floating_point() else column[:1]
        for name, column in batch.items()
    }


def naming_rates(name: str, one: AttackerView, other: AttackerView) -> Iterator[Record]:
    """Yield records of the rate at which the owner of an update, or of a mask, is named."""
    last = max(update.round for update in one.updates)
    asked = [("the next round", one, last - 1, last)] if last else []
    for where, view, known, at in (*asked, ("another session", other, last, last)):
        before, after = one.updates_of_round(known), view.updates_of_round(at)
        if len(both := [who for who in before if who in after]) < 2:
            continue
        for what, vector in (
            ("an update", lambda seen: seen.change.flat),
            ("a mask", lambda seen: None if seen.mask is None else seen.mask.bits.float()),
        ):
            sides = [[vector(side[who]) for who in both] for side in (before, after)]
            if any(v is None for v in (*sides[0], *sides[1])):
                continue
            known_, asked_ = (torch.stack([v for v in side if v is not None]) for side in sides)
            if what == "a mask" and bool((known_ == known_[0]).all()):
                continue  # Before anything is personal, all masks are equal.
            rate = matching_rate(nearest(known_, asked_))
            finds = f"who: from {what}, asked in {where}; {name}"
            yield rate_record(finds, rate, 1 / len(both), name.endswith(AS_IT_RAN))
