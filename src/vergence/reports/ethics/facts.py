"""The facts on a page for an ethics board: everything it prints, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vergence.core.federation import Federation, Population
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.dry_run import dry_run
from vergence.engine.protections.user_level import forecast
from vergence.experiment.privacy import mask_budget_spent, split_defense_spent
from vergence.experiment.privacy.spent import FRAME, PERSON, against, beside
from vergence.experiment.schema import Experiment
from vergence.privacy.dp.dp_sgd_solver import training_schedule
from vergence.privacy.hooks import ProtectedRun
from vergence.reports.downloads import downloads
from vergence.reports.ethics import wording as words
from vergence.reports.ethics.attack_findings import (
    attacks,
    not_tried,
    rates,
    rebuilt,
    told_of_people,
)
from vergence.reports.ethics.subjects import KEPT, scored, subject
from vergence.reports.ethics.visibility import sees
from vergence.reports.ethics.wording import PrivacyMeans, Ran
from vergence.reports.explain import parts_of, poisoned
from vergence.reports.traffic import carried, totals
from vergence.results import baselines
from vergence.results.layout import METHOD_NAMES, metric_name
from vergence.results.read import Run, StudyResults

LOOKED_AT = 100
"""Of people made on demand, so many are counted."""


def facts(
    experiment: Experiment, label: str, people: Federation | None, study: StudyResults | None
) -> dict[str, Any]:
    """Return everything a page says of one method of an experiment.

    Args:
        experiment: as run, or as planned.
        label: of the method.
        people: the data as its network wants it, None where it is not on this machine.
        study: its finished run, None before.
    """
    method, plan = experiment.methods[label], experiment.plan
    run = None if study is None else study.run(label)
    if people is not None:
        plan = plan.known(len(people.clients))
    elif run is not None:
        plan = plan.known(len(run.results["people"]))
    task = experiment.task(plan.seeds[0])
    means = PrivacyMeans(plan, method, task, ran(experiment, run))
    rows = carried(plan, method, task, people)
    up, down = totals(rows)
    spent = budget(experiment, method, task, people, run)
    tried, found = attacks(run), rates(run)
    return {
        "label": label,
        "title": METHOD_NAMES.get(label, label.replace("_", " ")),
        "sample": means.subject.sample,
        "purpose": means.subject.purpose,
        "glossary": [list(row) for row in (*means.subject.glossary, *scored(task.headline))],
        "finished": run is not None,
        "poisoned": poisoned(experiment) if experiment.poison and experiment.poison.share else "",
        "verdict": words.verdict(means, spent, rebuilt(tried), told_of_people(found)),
        "backed": spent.get("person", {}).get("epsilon", math.inf) <= words.SOME,
        "leaves": [asdict(row) for row in rows],
        "bytes": {
            "up": up,
            "down": down,
            "known": all(r.bytes is not None for r in rows),
            "beside": sum(r.bytes or 0 for r in rows if not r.counted),
        },
        "ran": means.ran,
        "shared": method.pooled or downloads(method, task).shared,
        "counted": None if run is None else dict(run.results["bytes"]),
        "stays": stays(means),
        "sees": [list(row) for row in sees(means)],
        "assumed": words.assumed(means),
        "budget": spent,
        "masks": [] if people is None else mask_budget_spent.foretold(plan, method, task, people),
        "cut": [] if people is None else split_defense_spent.foretold(plan, method, task, people),
        "own": own_promises(plan, method, task, people),
        "attacks": tried,
        "rates": found,
        "not_tried": not_tried(run),
        "residual": words.residual(means, spent),
        "unprotected": words.unprotected(means),
        "model": model(experiment, method, task, study, run),
        "data": data(experiment, people, run),
    }


def own_promises(plan: Plan, method: Method, task: Task, people: Federation | None) -> list[str]:
    """Promises of the study's own protections, in their words."""
    if people is None:
        return []
    run = ProtectedRun(method, task, people, plan.rounds, Path())
    return [line for own in plan.privacy.own for line in own.forecast(run)]


def ran(experiment: Experiment, run: Run | None) -> Ran:
    """The place where recordings lay; a deployment says in its provenance that it was one."""
    if run is None:
        return ""
    if "deployment" in run.provenance:
        return "devices"
    return "cluster" if experiment.plan.engine == "ray" else "computer"


def known(number: float) -> float | None:
    """Return a number, None where it says nothing: one person tells no spread."""
    return number if math.isfinite(number) else None


def stays(means: PrivacyMeans) -> list[str]:
    """Data that do not leave a device."""
    if means.method.pooled:
        return []
    many = f"{means.subject.sample}s"
    data = many if means.labels else f"{many}, and {means.subject.labels}"
    found = {
        KEPT.get(name, name.replace("_", " ")): size
        for name, size in parts_of(means.method.client(means.task)).items()
    }
    own = [what if size is None else f"{what} ({size:,} bytes)" for what, size in found.items()]
    return [f"recordings: {data}", *([f"kept by the method: {', '.join(own)}"] if own else [])]


def budget(
    experiment: Experiment, method: Method, task: Task, people: Federation | None, run: Run | None
) -> dict[str, Any]:
    """Privacy promises, by unit; empty where there are none."""
    plan, found = experiment.plan, {}
    block = {} if run is None else run.results.get("privacy", {})
    many = len(people.clients) if people is not None else run.results["clients"] if run else 0
    if (user := plan.privacy.user) is not None and many:
        seen = forecast(user, plan, method, many)
        said = block.get("person", {})
        spent = said.get("seeds_together", seen.epsilon(user.delta))
        count = sum(tree.layout.n for tree in method.offer(method.server(task), "").values())
        more = max(seen.expected / seen.level.shares, 1.0) if seen.level.shares > 1 else 1.0
        ratio = seen.noise * math.sqrt(count * more) / max(seen.expected, 1.0)
        found["person"] = {
            "epsilon": spent,
            "delta": user.delta,
            "worth": words.tier(spent),
            "words": words.in_words("person", spent, user.delta, "a certain person took part"),
            "neighbours": PERSON,
            "against": said.get("against", against(seen.level.shares)),
            "ratio": ratio,
            "useful": words.usefulness(ratio, many),
            "accountant": block.get("accountant", "foretold"),
            "check": said.get("check"),
        }
    if (solver := plan.privacy.solver) is not None and many:
        said, spent, sample = block.get("sample", {}), 0.0, subject(task).sample
        if said:
            spent = said["epsilon"]
        elif people is not None:
            passes = dry_run(method, task, people, plan.rounds)
            for size in {len(people.people[c].train) for c in people.clients[:LOOKED_AT]}:
                ledger = training_schedule(passes, size).ledger(solver)
                spent = max(spent, ledger.epsilon(solver.delta))
        found["sample"] = {
            "epsilon": spent,
            "delta": solver.delta,
            "worth": words.tier(spent),
            "words": words.in_words(sample, spent, solver.delta, f"a certain {sample} was used"),
            "neighbours": FRAME,
            "against": said.get("against", "whoever sees what the device sends"),
            "accountant": block.get("accountant", "foretold"),
            "check": said.get("check"),
        }
    return {**found, "beside": beside(method)} if found else {}


def model(
    experiment: Experiment, method: Method, task: Task, study: StudyResults | None, run: Run | None
) -> dict[str, Any]:
    """Content of a model card."""
    told = {
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
        return told
    told["metrics"] = [
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
    told["baselines"] = [
        {"name": name, "words": baselines.words(name), "value": value}
        for name, value in baselines.means(study, run.headline).items()
    ]
    told["harmed"] = run.results.get("harmed_vs_local")
    return told


def data(experiment: Experiment, people: Federation | None, run: Run | None) -> dict[str, Any]:
    """Content of a dataset card."""
    about = dict(people.about) if people is not None else {}
    if run is not None:
        about |= run.provenance.get("data", {})
    told = {
        "name": experiment.table["federation"]["name"],
        "about": (type(experiment.dataset).__doc__ or "").partition("\n")[0],
        "facts": {k: str(v) for k, v in about.items() if k not in ("name", "sha256")},
        "sha256": about.get("sha256", ""),
        "people": None if people is None else len(people.clients),
        "columns": [],
        "samples": {},
    }
    if people is None:
        return told
    some = list(
        people.clients[:LOOKED_AT] if isinstance(people.people, Population) else people.clients
    )
    first = people.people[some[0]].train
    told["columns"] = [{"name": n, "shape": list(c.shape[1:])} for n, c in first.columns.items()]
    for part in ("train", "val", "test"):
        sizes = [len(getattr(people.people[client], part)) for client in some]
        told["samples"][part] = {"least": min(sizes), "most": max(sizes), "all": sum(sizes)}
    return told


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
