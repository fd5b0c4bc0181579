"""Privacy costs: told by `explain` before a run, in results.json and on screen after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import protections
from vergence.engine.protections.split_guard import KEY, verdicts
from vergence.privacy.dp.accounting import accountant
from vergence.privacy.hooks import Promise, ProtectedRun, Statement
from vergence.privacy.release_log import FOLDER, refuse_missing

if TYPE_CHECKING:
    from vergence.experiment.schema import Experiment

NOT_COVERED = (
    "not covered: metrics measured on people, who took part in which round, how many samples each "
    "has"
)
UNITS = {
    "person": "person",
    "lab": "lab",
    "sample": "sample",
    "mask": "person",
    "picture": "picture",
    "pixel": "pixel",
}
"""Blocks of results.json with an epsilon, and whose or what it hides."""
FITS, DROWNS = 1.0, 10.0
"""Noise in a mean update, as a multiple of the longest update allowed: little; too much to learn.

Source: measured (docs/explanation/differential_privacy.md): 600 at 14 people and 1.8 M parameters.
"""
REMAINS = "Learning remains possible."
OWN = "A protection of this study's own, which this software has not checked."


def promises(plan: Plan, run: ProtectedRun) -> list[Promise]:
    """Promises of all protections of a run, before it begins.

    Raises:
        ConfigError: this method, or this plan, cannot be protected so.
    """
    known = (p for p in protections(plan) if run.here or p not in plan.privacy.own)
    told = [line for each in known for line in each.forecast(run)]
    return [Promise(line, OWN, None) if isinstance(line, str) else line for line in told]


def forecast_lines(plan: Plan, method: Method, task: Task, federation: Federation) -> list[str]:
    """Say in words what a run will spend; see `explain`.

    Raises:
        ConfigError: this method, or this plan, cannot be protected so.
    """
    told = promises(plan, ProtectedRun(method, task, federation, plan.rounds))
    lines = [each.text for each in told if each.text]
    return [*lines, *outlook(told), uncovered_text(method)] if told else []


def usefulness(ratio: float, people: int, who: str = "people") -> str:
    """Text on whether so much noise leaves anything to learn; `ratio` as of `FITS`."""
    said = (
        f"The noise in the average of a round is {ratio:,.2g} times as strong as the most that "
        f"all {people} {who} together may say."
    )
    if ratio <= FITS:
        return f"{said} {REMAINS}"
    if ratio <= DROWNS:
        return f"{said} It is doubtful that much can be learned; look at the measured error."
    return (
        f"{said} At this number of {who} that makes the model useless; it would take many more "
        f"{who}, or far fewer numbers to learn."
    )


def outlook(forecasts: Sequence[Promise]) -> list[str]:
    """Sentences on whether the noise behind promises leaves anything to learn."""
    guarantees = (each.guarantee for each in forecasts)
    return [
        usefulness(each.ratio, each.people, "labs" if each.unit == "lab" else "people")
        for each in guarantees
        if each is not None and each.ratio is not None
    ]


def noise_outlook(experiment: Experiment, people: Federation) -> list[str]:
    """Warnings of an experiment under whose noise little or nothing can be learned, by method."""
    lines, task = [], experiment.task(experiment.plan.seeds[0])
    if not experiment.plan.privacy.spends:
        return lines
    for label, method in experiment.methods.items():
        run = ProtectedRun(method, task, people, experiment.plan.rounds, here=False)
        lines += [
            f"{label}: {text}"
            for text in outlook(promises(experiment.plan, run))
            if not text.endswith(REMAINS)
        ]
    return lines


def statements(
    plan: Plan, method: Method, task: Task, federation: Federation | None = None
) -> list[Statement]:
    """Sentences of all protections of a run on who sees what; see `Protection.statements`."""
    run = ProtectedRun(method, task, federation or Federation("unknown", {}), plan.rounds)
    found = []
    for each in protections(plan):
        said = each.statements(run)
        if each in plan.privacy.own:
            name = f"{type(each).__name__}, which this software has not checked: "
            said = [one._replace(text=name + one.text, checked=False) for one in said]
        found += said
    return found


def uncovered_text(method: Method) -> str:
    """Text on what no budget covers."""
    beyond = [
        f"; {exposed.beyond}, at every '{verb}'"
        for verb, exposed in method.exposure.items()
        if exposed.beyond
    ]
    return NOT_COVERED + "".join(beyond)


def spent_block(plan: Plan, run: ProtectedRun) -> dict[str, Any] | None:
    """Return the block `privacy` of results.json from the logs in a run's folder of states."""
    plan, found = plan.known(plan.silos.count(len(run.federation.clients))), dict[str, Any]()
    refuse_missing(run.state / FOLDER)
    for each in protections(plan):
        told = dict(each.spent(run))
        if each in plan.privacy.own:
            found["own"] = {**found.get("own", {}), type(each).__name__: told}
        else:
            found |= told
    if {"sample", "mask"} <= found.keys():  # a sample is part of a person's data: both add up
        found["sample"]["with_masks"] = {
            key: found["sample"][key] + found["mask"][key] for key in ("epsilon", "delta")
        }
    if not found:
        return None
    return {**found, "beside": uncovered_text(run.method), "accountant": accountant()}


def screen_lines(label: str, block: Mapping[str, Any], tuned: bool = False) -> list[str]:
    """Lines on the screen about a run's privacy; `tuned`: a sweep chose its settings."""
    told = [f"server of {label}: {verdicts(block[KEY])}"] if KEY in block else []
    for kind in (kind for kind in UNITS if kind in block):
        part = block[kind]
        check = f", {part['check']:.3g} by PLD" if part["check"] is not None else ""
        told.append(
            f"privacy of {label}: epsilon {part['epsilon']:.3g} at delta {part['delta']:g} per "
            f"{UNITS[kind]} and seed{check}{part.get('only', '')}; {block['beside']}"
        )
    if tuned and block.keys() & UNITS.keys():
        told.append(
            f"privacy of {label}: a sweep chose its settings; what its trials spent on people, and "
            "the choice itself, come on top: see the sweep's spent.csv and best.toml"
        )
    return told
