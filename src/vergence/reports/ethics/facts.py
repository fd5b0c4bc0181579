"""The facts on a page for an ethics board: everything it prints, as plain data.

Used by `reports.ethics.page`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation, Population
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.experiment.privacy import register
from vergence.experiment.privacy.spent import promises, uncovered_text, usefulness
from vergence.experiment.schema import Experiment
from vergence.privacy.hooks import Promise, ProtectedRun
from vergence.reports.downloads import downloads
from vergence.reports.ethics import wording as words
from vergence.reports.ethics.attack_findings import (
    attacks,
    not_tried,
    rates,
    rebuilt,
)
from vergence.reports.ethics.subjects import scored
from vergence.reports.ethics.visibility import sees
from vergence.reports.ethics.wording import PrivacyMeans, Ran
from vergence.reports.explain import parts_of, poisoned
from vergence.reports.traffic import carried, totals
from vergence.results import baselines
from vergence.results.layout import METHOD_NAMES, metric_name
from vergence.results.read import Run, StudyResults

# Number of people whose samples are counted where people are generated on demand: there may be
# millions, and each costs the generation of their data.
LOOKED_AT = 100


def facts(
    experiment: Experiment, label: str, people: Federation | None, study: StudyResults | None
) -> dict[str, Any]:
    """Return everything a page says of one method of an experiment.

    Args:
        experiment: the experiment, run or planned.
        label: label of the method.
        people: the data; None if they are on other machines: then a run says who took part.
        study: the finished run, None for a plan.
    """
    method, plan = experiment.methods[label], experiment.plan
    run = None if study is None else study.run(label)
    whose = people.clients if people is not None else run.results["people"] if run else None
    if whose is not None:
        plan = plan.known(plan.silos.count(len(whose)))
    task = experiment.task(plan.seeds[0])
    means = PrivacyMeans(plan, method, task, ran(experiment, run), taking_part(people, run))
    rows = carried(plan, method, task, people)
    up, down = totals(rows)
    promised = forecast(means, people is not None)
    spent = budget(means, promised, run)
    tried, found = attacks(run), rates(run)
    return {
        "label": label,
        "title": METHOD_NAMES.get(label, label.replace("_", " ")),
        "sample": means.subject.sample,
        "purpose": means.subject.purpose,
        "study": experiment.study.answers,
        "planned": planned(experiment.study.participants, people, run),
        "glossary": [list(row) for row in (*means.subject.glossary, *scored(task.headline))],
        "poisoned": poisoned(experiment) if experiment.poison and experiment.poison.share else "",
        "verdict": words.verdict(
            means, spent, rebuilt(tried), any(r["better"] for r in found if r["as_it_ran"])
        ),
        "backed": spent.get("person", {}).get("epsilon", math.inf) <= words.SOME,
        "leaves": [asdict(row) for row in rows],
        "bytes": {
            "up": up,
            "down": down,
            "known": all(r.bytes is not None for r in rows),
            "beside": sum(r.bytes or 0 for r in rows if r.up and not r.counted),
        },
        "shared": method.pooled or downloads(method, task).shared,
        "counted": None if run is None else dict(run.results["bytes"]),
        "stays": stays(means),
        **board_answers(means, run),
        "sees": [list(row) for row in sees(means)],
        "assumed": words.assumed(means),
        "budget": spent,
        "register": [] if people is None else register.sentences(plan, experiment.federation),
        "promises": [each._asdict() for each in promised if each.heading],
        "attacks": tried,
        "rates": found,
        "not_tried": not_tried(run),
        "residual": words.residual(means, spent),
        "unprotected": words.unprotected(means),
        "model": model(experiment, method, task, study, run),
        "data": data(experiment, people, run),
    }


def board_answers(means: PrivacyMeans, run: Run | None) -> dict[str, Any]:
    """Return what a board asks about places, the data, rights, what is kept, and the model."""
    return {
        "finished": run is not None,
        "ran": means.ran,
        "device": means.device,
        "sender": means.sender,
        "reveals": means.subject.reveals,
        "rights": words.rights(means),
        "stored": words.stored(means),
        "fingerprint": fingerprint(run),
    }


def fingerprint(run: Run | None) -> str:
    """Return the beginnings of the fingerprints of a run's models, one a seed; "" for a plan."""
    prints = {} if run is None else run.results.get("fingerprint") or {}
    return ", ".join(str(value)[:16] for value in prints.values())


def planned(participants: int | None, people: Federation | None, run: Run | None) -> str:
    """Return a sentence if the data are of more or fewer people than planned, "" if they agree."""
    here = len(people.clients) if people is not None else run.results["clients"] if run else None
    if participants is None or here is None or here == participants:
        return ""
    return f"The study plans {participants:,} people; the data here are of {here:,}."


def ran(experiment: Experiment, run: Run | None) -> Ran:
    """Return the place of the recordings; a deployment is recognised by its provenance."""
    if run is None:
        return ""
    if "deployment" in run.provenance:
        return "devices"
    return "cluster" if experiment.plan.engine == "ray" else "computer"


def known(number: float) -> float | None:
    """Return a number, None if it is not finite."""
    # The spread of one person is NaN, which JSON cannot hold.
    return number if math.isfinite(number) else None


def stays(means: PrivacyMeans) -> list[str]:
    """Return descriptions of the data that do not leave a device."""
    if means.method.pooled:
        return []
    many = means.subject.samples
    data = many if "labels" in means.kinds else f"{many}, and {means.subject.labels}"
    parts = {
        means.method.state_labels.get(name, name.replace("_", " ")): size
        for name, size in parts_of(means.method.client(means.task)).items()
    }
    own = [what if size is None else f"{what} ({size:,} bytes)" for what, size in parts.items()]
    return [f"recordings: {data}", *([f"kept by the method: {', '.join(own)}"] if own else [])]


def taking_part(people: Federation | None, run: Run | None) -> Federation:
    """Return the people; for a run without its data, as many people without samples."""
    # Some promises depend on the number of people alone: those can be made without the data.
    if people is not None:
        return people
    none = Samples({"absent": torch.empty(0, 0)})
    many = 0 if run is None else run.results["clients"]
    return Federation("absent", {str(n): Splits(none, none, none) for n in range(many)})


def forecast(means: PrivacyMeans, here: bool) -> list[Promise]:
    """Return a plan's promises; for a run without its data, those that its clients' number gives.

    `here` says whether the data are on this machine.
    """
    people = means.people
    if people is None or not people.clients:
        return []
    return promises(
        means.plan, ProtectedRun(means.method, means.task, people, means.plan.rounds, here=here)
    )


def budget(means: PrivacyMeans, promised: list[Promise], run: Run | None) -> dict[str, Any]:
    """Return the privacy promises about people, labs and samples by unit, empty without any."""
    block, units = {} if run is None else run.results.get("privacy", {}), dict[str, Any]()
    sample = means.subject.sample
    about = {
        "person": "a certain person took part",
        "lab": "a certain lab took part",
        "sample": f"a certain {sample} was used",
    }
    for each in (each.guarantee for each in promised if each.guarantee is not None):
        account = block.get(each.unit, {})
        # Repetitions with other seeds are trained on the same people: their budgets add up.
        spent = account.get("seeds_together", account.get("epsilon", each.epsilon))
        unit = sample if each.unit == "sample" else each.unit
        units[each.unit] = {
            "epsilon": spent,
            "delta": each.delta,
            "worth": words.tier(spent),
            "words": words.in_words(unit, spent, each.delta, about[each.unit]),
            "neighbours": each.neighbours,
            "against": account.get("against", each.against),
            "accountant": block.get("accountant", "computed beforehand"),
            "check": account.get("check"),
        }
        who = "labs" if each.unit == "lab" else "people"
        useful = None if each.ratio is None else usefulness(each.ratio, each.people, who)
        units[each.unit] |= {"ratio": each.ratio, "useful": useful}
    return {**units, "beside": uncovered_text(means.method)} if units else {}


def model(
    experiment: Experiment, method: Method, task: Task, study: StudyResults | None, run: Run | None
) -> dict[str, Any]:
    """Return the content of a model card."""
    card = {
        "network": experiment.table["model"]["name"],
        "about": (type(experiment.model).__doc__ or "").partition("\n")[0],
        "task": (type(task).__doc__ or "").partition("\n")[0],
        "method": (type(method).__doc__ or "").partition("\n")[0],
        "parameters": task.init().layout.n,
        "rounds": experiment.plan.rounds,
        "repetitions": len(experiment.plan.seeds),
        "metrics": [],
        "baselines": [],
    }
    if run is None or study is None:
        return card
    card["metrics"] = [
        {
            "name": metric_name(name),
            "mean": e.mean,
            "lo": known(e.lo),
            "hi": known(e.hi),
            "worst": e.worst,
            "lower": name in run.lower_is_better,
        }
        for name, e in run.estimates.items()
    ]
    # A score alone does not say whether anything was learned: baselines without learning do.
    card["baselines"] = [
        {"name": name, "words": baselines.description(name), "value": value}
        for name, value in baselines.means(study, run.headline).items()
    ]
    card["harmed"] = run.results.get("harmed_vs_local")
    return card


def data(experiment: Experiment, people: Federation | None, run: Run | None) -> dict[str, Any]:
    """Return the content of a dataset card."""
    about = dict(people.about) if people is not None else {}
    if run is not None:
        about |= run.provenance.get("data", {})
    card = {
        "name": experiment.table["federation"]["name"],
        "about": (type(experiment.dataset).__doc__ or "").partition("\n")[0],
        "invented": type(experiment.dataset).__module__.startswith("vergence.data.synthetic"),
        "facts": {k: str(v) for k, v in about.items() if k not in ("name", "sha256")},
        "sha256": about.get("sha256", ""),
        "people": None if people is None else len(people.clients),
        "columns": [],
        "samples": {},
    }
    if people is None:
        return card
    some = list(
        people.clients[:LOOKED_AT] if isinstance(people.people, Population) else people.clients
    )
    first = people.people[some[0]].train
    card["columns"] = [{"name": n, "shape": list(c.shape[1:])} for n, c in first.columns.items()]
    for part in ("train", "val", "test"):
        sizes = [len(getattr(people.people[client], part)) for client in some]
        card["samples"][part] = {"least": min(sizes), "most": max(sizes), "all": sum(sizes)}
    return card


def texts(value: Any) -> Iterator[str]:
    """Yield every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
