"""Audit of model updates: pictures reconstructed from them, and their owners recognised.

Updates are those of the run's first rounds, each on its own, or only their sum where nothing else
is opened. A picture is looked for in one person's first update, and, as the worst that could
happen, in an update that one picture made in one step. Names are known in one round and asked in
the next one, and in another session of the same people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vergence.attacks import score
from vergence.attacks.gradient_inversion import GradientInversion, of_update
from vergence.attacks.identity import in_place, nearest
from vergence.attacks.view import AttackerView
from vergence.audit import replay
from vergence.audit.identity import told
from vergence.audit.images import AS_IT_RAN, few, gray, joined, line, pixels, without_attack
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
from vergence.training.pruning import built


@dataclass(frozen=True)
class ReplaySize:
    """Amount of work: pictures, steps of an inversion, rounds that are replayed."""

    pictures: int
    steps: int
    rounds: int


QUICK, WHOLE = ReplaySize(3, 100, 3), ReplaySize(6, 300, 5)


@dataclass
class ObservedRounds:
    """Findings: lines about pictures, the pictures, lines about people, attacks not tried.

    `who` is whose pictures they are; `not_tried` are pairs of an attack and the reason.
    """

    lines: list[Record] = field(default_factory=list)
    shown: dict[str, Tensor] = field(default_factory=dict)
    rates: list[Record] = field(default_factory=list)
    who: str = ""
    not_tried: list[tuple[str, str]] = field(default_factory=list)


def views(saved: TrainedRun) -> tuple[list[tuple[str, Plan]], str]:
    """Return by name what a run's server could see: without defences, and with them.

    With the run's own, or, where it has none, with secure sums, and why those could not be.
    """
    plan, privacy = saved.experiment.plan, saved.experiment.plan.privacy
    bare = replace(privacy, aggregation=None, user=None, solver=None, mask=None)
    if privacy != bare:
        own = {
            "secure sums": privacy.aggregation,
            "DP for people": privacy.user,
            "DP-SGD": privacy.solver,
            "DP for masks": privacy.mask,
        }
        name = " and ".join(name for name, there in own.items() if there) + AS_IT_RAN
        return [("no defence", replace(plan, privacy=bare)), (name, plan)], ""
    found, why = [(f"no defence{AS_IT_RAN}", plan)], ""
    for kind in ("pairwise", "additive"):
        try:
            other = replace(
                plan, privacy=replace(privacy, aggregation=SecureAggregationConfig(kind))
            )
            compatibility_check.check(other, saved.method, saved.task)
            return [*found, ("secure sums", other)], ""
        except ConfigError as error:
            why = str(error)
    return found, why


def updates_seen(
    saved: TrainedRun,
    data: Federation,
    person: str | None,
    size: ReplaySize,
    tick: Callable[[str], None],
) -> ObservedRounds:
    """Attack the updates of a run.

    Args:
        saved: the run; see `audit_replay.told`.
        data: of its people.
        person: whose pictures are looked for; default the first who took part.
        size: how much is tried.
        tick: called with what was done.

    Raises:
        ConfigError: the person took no part in the first round.
    """
    found, (plans, why) = ObservedRounds(), views(saved)
    if why:
        found.not_tried.append(("anything behind secure sums", why))
    rounds = min(size.rounds, saved.experiment.plan.rounds)
    heard = {}
    for name, plan in plans:
        heard[name] = replay.replayed(saved, data, rounds, plan)
        tick(f"rounds held again: {name}")
    first = [update.sender for update in heard[plans[0][0]].updates if update.round == 0]
    if person is not None and person not in first:
        raise ConfigError(
            f"'{person}' sent nothing in the first round; name one of {', '.join(first[:20])}"
        )
    if not first:
        raise ConfigError("nobody sent anything in the first round of this run")
    found.who = person or min(first)
    _pictures(found, saved, data, plans, heard, size, tick)
    # The same people, who train on what they were tested with.
    people = {name: Splits(s.test, s.val, s.train) for name, s in data.people.items()}
    session = replace(data, people=people)
    for name, plan in plans:
        if plan.privacy.aggregation is not None:
            found.not_tried.append(
                (
                    f"whose an update is; {name}",
                    "the server has only sums over all who take part",
                )
            )
            continue
        other = replay.replayed(saved, session, rounds, plan)
        found.rates += list(named(name, heard[name], other))
        tick(f"who: {name}")
    return found


def _pictures(
    found: ObservedRounds,
    saved: TrainedRun,
    data: Federation,
    plans: Sequence[tuple[str, Plan]],
    heard: Mapping[str, AttackerView],
    size: ReplaySize,
    tick: Callable[[str], None],
) -> None:
    """Look for a person's pictures in what was seen."""
    who = found.who
    mine = few(data.people[who].train, size.pictures)
    others = [splits.train for name, splits in data.people.items() if name != who][:20]
    why = unfit(saved, mine, others)
    if why:
        found.not_tried.append(("rebuilding pictures", why))
        return
    shadow = joined([few(part, 100) for part in others])
    eyes, known = pixels(mine), pixels(shadow)
    mean = score.mean_image(known, len(eyes))
    found.shown |= {f"pictures of {who}, not sent": eyes, "mean of the others": mean}
    found.lines += without_attack(eyes, mean)
    typical = average(shadow.take(slice(None)))
    for name, view in heard.items():
        seen, change = first(view, who)
        drawn = inverted(saved, change, typical, mean[:1], size.steps).expand_as(eyes)
        found.lines.append(line(name, seen, eyes, drawn))
        found.shown[f"{name}\n{seen}"] = drawn
        tick(f"pictures: {name}")
    for name, plan in plans:
        seen, drawn = "", []
        for at in range(len(mine)):
            view = replay.replayed(saved, *single(saved, data, plan, mine, who, at))
            seen, change = first(view, who)
            drawn.append(
                inverted(saved, change, mine.take(torch.tensor([at])), mean[:1], size.steps)
            )
        what = f"one picture in one step; {name.removesuffix(AS_IT_RAN)}"
        found.lines.append(line(what, seen, eyes, torch.cat(drawn)))
        found.shown[f"{what}\n{seen}"] = torch.cat(drawn)
        tick(f"pictures: {what}")


def unfit(saved: TrainedRun, mine: Samples, others: list[Samples]) -> str:
    """Reason why pictures cannot be looked for, "" if they can."""
    if not gray(mine):
        return "the data have no gray pictures [samples, 1, height, width]"
    if not others:
        return "there is nobody else whose pictures an attacker could start from"
    try:
        saved.task.inputs(mine.take(torch.tensor([0])))
    except ConfigError as error:
        return str(error)
    return ""


def single(
    saved: TrainedRun, data: Federation, plan: Plan, mine: Samples, who: str, at: int
) -> tuple[Federation, int, Plan, LocalTraining]:
    """Return a round in which everybody trains one step on one picture, the victim on number `at`.

    Noise of DP-SGD is that of the run: with so little data a run's own would be another.
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
    if solver is not None:
        passes = dry_run(saved.method, saved.task, data.only([who]), plan.rounds)
        noise = training_schedule(passes, len(data.people[who].train)).noise(solver)
        solver = replace(solver, noise=noise, epsilon=None)
    plan = replace(plan, privacy=replace(plan.privacy, solver=solver))
    local = replace(saved.method.local, steps=1, batch=1)
    return replace(data, people=people), 1, plan, local


def first(view: AttackerView, who: str) -> tuple[str, Params]:
    """Data seen of somebody in the first round: their update, or everybody's sum."""
    if view.sums:
        return "the sum of all", view.sums[min(view.sums)]
    return "an update", view.together(0)[who].change


def inverted(saved: TrainedRun, change: Params, batch: Batch, start: Tensor, steps: int) -> Tensor:
    """Return the picture `[1, 1, height, width]` whose gradient is most like a first update.

    Args:
        saved: the run, whose networks all start from the task's parameters.
        change: of the parameters that were sent.
        batch: one sample, whose labels the attacker takes for the right ones.
        start: where pixels begin, in [0, 1].
        steps: of the search.
    """
    task = saved.task
    network = built(task.module(), task.init())
    dark, bright = (
        task.inputs({**batch, IMAGE: torch.full_like(batch[IMAGE][:1], level)})[0]
        for level in (0, 255)
    )
    beside = task.inputs(batch)[1]
    names = [name for name, _ in network.named_parameters() if name in change]
    parameters = [p.requires_grad_(True) for n, p in network.named_parameters() if n in change]

    def loss(image: Tensor) -> Tensor:
        output = network(dark + image * (bright - dark), *(column.clone() for column in beside))
        return task.loss(output, copy_of(batch))

    adam = saved.method.local.optimizer != "sgd"
    return GradientInversion(steps, signs=adam).found(
        loss, parameters, of_update(change, names), start
    )


def average(batch: Batch) -> Batch:
    """Return one sample with the mean of all numbers that are not whole, the rest the first's."""
    return {
        name: column.mean(0, keepdim=True) if column.is_floating_point() else column[:1]
        for name, column in batch.items()
    }


def named(name: str, one: AttackerView, other: AttackerView) -> Iterator[Record]:
    """Yield the rates at which the owner of an update, or of a mask, is found among those known."""
    last = max(update.round for update in one.updates)
    asked = [("the next round", one, last - 1, last)] if last else []
    for where, view, known, at in (*asked, ("another session", other, last, last)):
        before, after = one.together(known), view.together(at)
        both = [who for who in before if who in after]
        if len(both) < 2:
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
                continue  # before anything is personal, all masks are one
            rate = in_place(nearest(known_, asked_))
            finds = f"who: from {what}, asked in {where}; {name}"
            yield told(finds, rate, 1 / len(both), name.endswith(AS_IT_RAN))
