"""Privacy costs of a run: the forecast before it, and lines for results.json and screen after it.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import protections
from vergence.engine.protections.split_guard import KEY, verdicts
from vergence.experiment.newcomers import RESIDUALS, fewest_people, has_residuals
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
"""Unit of privacy of an epsilon, by the name of the epsilon's block in results.json."""
FITS, DROWNS = 1.0, 10.0
"""Norm of the noise in a mean update, divided by the largest allowed norm of an update. Up to
`FITS` learning remains possible; above `DROWNS` the model is useless.

Source: measured (docs/explanation/differential_privacy.md): 600 at 14 people and 1.8 M parameters.
"""
REMAINS = "Learning remains possible."
OWN = "A protection of this study's own, which this software has not checked."


def promises(plan: Plan, run: ProtectedRun) -> list[Promise]:
    """Return what all protections promise about a run, before the run begins.

    A user's own protections are left out if people's data are not on this machine (`run.here`).

    Raises:
        ConfigError: a protection cannot protect this method or plan.
    """
    active = (p for p in protections(plan) if run.here or p not in plan.privacy.own)
    forecasts = [line for each in active for line in each.forecast(run)]
    return [Promise(line, OWN, None) if isinstance(line, str) else line for line in forecasts]


def forecast_lines(plan: Plan, method: Method, task: Task, federation: Federation) -> list[str]:
    """Return lines on a run's privacy costs for `vergence explain`; none without a protection.

    Raises:
        ConfigError: a protection cannot protect this method or plan.
    """
    forecasts = promises(plan, ProtectedRun(method, task, federation, plan.rounds))
    lines = [each.text for each in forecasts if each.text]
    return [*lines, *outlook(forecasts), uncovered_text(method)] if forecasts else []


def usefulness(ratio: float, people: int, who: str = "people") -> str:
    """Return a text on whether a model can learn under the noise of a run.

    Args:
        ratio: norm of the noise in a mean update, divided by the largest allowed norm of an update.
        people: number of people, or of labs, among whom one is hidden.
        who: `people` or `labs`.
    """
    text = (
        f"The noise in the average of a round is {ratio:,.2g} times as strong as the most that "
        f"all {people} {who} together may say."
    )
    if ratio <= FITS:
        return f"{text} {REMAINS}"
    if ratio <= DROWNS:
        return f"{text} It is doubtful that much can be learned; look at the measured error."
    return (
        f"{text} At this number of {who} that makes the model useless; it would take many more "
        f"{who}, or far fewer numbers to learn."
    )


def outlook(forecasts: Sequence[Promise]) -> list[str]:
    """Return a text for each promise with known noise: whether a model can learn under it."""
    guarantees = (each.guarantee for each in forecasts)
    return [
        usefulness(each.ratio, each.people, "labs" if each.unit == "lab" else "people")
        for each in guarantees
        if each is not None and each.ratio is not None
    ]


def noise_outlook(experiment: Experiment, people: Federation) -> list[str]:
    """Return warnings on methods that can learn little or nothing under the experiment's noise.

    Args:
        experiment: the experiment.
        people: the experiment's prepared data.
    """
    lines, task = [], experiment.task(experiment.plan.seeds[0])
    if experiment.plan.privacy.user is None:
        return lines
    # The noise of single samples says nothing here, and its forecast trains in a dry run.
    plan = replace(experiment.plan, privacy=replace(experiment.plan.privacy, solver=None))
    for label, method in experiment.methods.items():
        run = ProtectedRun(method, task, people, experiment.plan.rounds, here=False)
        lines += [
            f"{label}: {text}"
            for text in outlook(promises(plan, run))
            if not text.endswith(REMAINS)
        ]
    return lines


def statements(
    plan: Plan,
    method: Method,
    task: Task,
    federation: Federation | None = None,
    people: int | None = None,
) -> list[Statement]:
    """Return sentences on a run's protections, and on what its files tell of people, for reports.

    See `Protection.statements`. `federation` is None if the data are not known. `people` is the
    number of people; None: that of `federation`, or not known.
    """
    run = ProtectedRun(method, task, federation or Federation("unknown", {}), plan.rounds)
    every = []
    for each in protections(plan):
        lines = each.statements(run)
        if each in plan.privacy.own:
            name = f"{type(each).__name__}, which this software has not checked: "
            lines = [line._replace(text=name + line.text, checked=False) for line in lines]
        every += lines
    if people is None and federation is not None and federation.clients:
        people = len(federation.clients)
    fewest = fewest_people(plan)
    if has_residuals(plan, method, task) and (people is None or people >= fewest):
        every += residuals_statements(fewest)
    if method.stores_inputs(task):
        every += INPUTS_INSIDE
    return every


INPUTS_INSIDE = (
    Statement(
        "closing table",
        "the inputs of everybody's own samples, of eye images the pixels without brightness and "
        "contrast: a person's own model contains that person's, and a run on one machine writes "
        "all models into its folder (state); in a deployment each stays on its client",
        "whoever has the run's folder",
    ),
    Statement(
        "unprotected",
        "{Samples} inside: a person's own model contains the numbers of which their {samples} "
        "consist, without brightness and contrast. Whoever gets this model, or a file that was "
        "exported from it, has them. A run on one computer has everybody's in its folder.",
    ),
)
"""What reports say of a method whose personal models contain inputs of samples."""


def residuals_statements(fewest: int) -> list[Statement]:
    """Return what reports say of a run that writes residuals.json, of so many people or more."""
    sums = f"from sums over at least {fewest} people's validation samples."
    return [
        Statement(
            "closing table",
            f"how far people's errors differ: {RESIDUALS}, twelve variances {sums} A run on one "
            "machine writes them, and vergence adapt reads them; a deployment has none",
            "whoever has the run's folder",
        ),
        Statement(
            "residual",
            "How far people's errors differ: a run on one machine writes twelve variances "
            f"({RESIDUALS}) {sums} "
            "Whoever knows the data of all people but one can work out something of that one from "
            "them.",
        ),
    ]


def uncovered_text(method: Method) -> str:
    """Return a text on what a method discloses that no privacy budget covers."""
    beyond = [
        f"; {exposed.beyond}, at every '{verb}'"
        for verb, exposed in method.exposure.items()
        if exposed.beyond
    ]
    return NOT_COVERED + "".join(beyond)


def spent_block(plan: Plan, run: ProtectedRun) -> dict[str, Any] | None:
    """Return the block `privacy` of results.json: what each protection of a finished run spent.

    It is computed from the logs in the run's folder of states. Return None if there is
    nothing to report.
    """
    plan, block = plan.known(plan.silos.count(len(run.federation.clients))), dict[str, Any]()
    refuse_missing(run.state / FOLDER)
    for each in protections(plan):
        costs = dict(each.spent(run))
        if each in plan.privacy.own:
            block["own"] = {**block.get("own", {}), type(each).__name__: costs}
        else:
            block |= costs
    # A sample is part of a person's data, of which a mask is made: both budgets add up.
    if {"sample", "mask"} <= block.keys():
        block["sample"]["with_masks"] = {
            key: block["sample"][key] + block["mask"][key] for key in ("epsilon", "delta")
        }
    if not block:
        return None
    return {**block, "beside": uncovered_text(run.method), "accountant": accountant()}


def screen_lines(label: str, block: Mapping[str, Any], tuned: bool = False) -> list[str]:
    """Return the lines on a run's privacy costs that are printed on the screen.

    Args:
        label: the method's label.
        block: the block `privacy` of results.json.
        tuned: whether a sweep chose the method's settings; the sweep has spent more privacy budget.
    """
    lines = [f"server of {label}: {verdicts(block[KEY])}"] if KEY in block else []
    for kind in (kind for kind in UNITS if kind in block):
        part = block[kind]
        check = f", {part['check']:.3g} by PLD" if part["check"] is not None else ""
        lines.append(
            f"privacy of {label}: epsilon {part['epsilon']:.3g} at delta {part['delta']:g} per "
            f"{UNITS[kind]} and seed{check}{part.get('only', '')}; {block['beside']}"
        )
    if tuned and block.keys() & UNITS.keys():
        lines.append(
            f"privacy of {label}: a sweep chose its settings; what its trials spent on people, and "
            "the choice itself, come on top: see the sweep's spent.csv and best.toml"
        )
    return lines
