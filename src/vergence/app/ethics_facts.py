"""The facts on a page for an ethics board: everything it prints, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from vergence.app import budget_cut, budget_mask
from vergence.app import ethics_words as words
from vergence.app.budget import FRAME, PERSON, against, beside
from vergence.app.carried import carried, totals
from vergence.app.config import Experiment
from vergence.app.ethics_attacks import attacks, not_tried, rates, rebuilt, told_of_people
from vergence.app.ethics_subjects import subject
from vergence.app.ethics_words import Means
from vergence.app.explain import kept, poisoned
from vergence.app.runs import Run, Study
from vergence.app.style import METHOD_NAMES, metric_name
from vergence.core.method import Method
from vergence.core.site import Federation, Population
from vergence.core.task import Task
from vergence.engines.rehearsal import rehearsed
from vergence.engines.veil import forecast
from vergence.privacy.dp_solver import course

LOOKED_AT = 100
"""Of people made on demand, so many are counted."""


def facts(
    experiment: Experiment, label: str, people: Federation | None, study: Study | None
) -> dict[str, Any]:
    """Return everything a page says of one method of an experiment.

    Args:
        experiment: as run, or as planned.
        label: of the method.
        people: the data as its network wants it, None where it is not on this machine.
        study: its finished run, None before.
    """
    method, plan = experiment.methods[label], experiment.plan
    task = experiment.task(plan.seeds[0])
    run = None if study is None else study.run(label)
    means = Means(plan, method, task)
    rows = carried(plan, method, task, people)
    up, down = totals(rows)
    spent = budget(experiment, method, task, people, run)
    tried, found = attacks(run), rates(run)
    return {
        "label": label,
        "title": METHOD_NAMES.get(label, label.replace("_", " ")),
        "sample": means.subject.sample,
        "purpose": means.subject.purpose,
        "glossary": [list(row) for row in means.subject.glossary],
        "finished": run is not None,
        "poisoned": poisoned(experiment) if experiment.poison and experiment.poison.share else "",
        "verdict": words.verdict(means, spent, rebuilt(tried), told_of_people(found)),
        "backed": spent.get("person", {}).get("epsilon", math.inf) <= words.SOME,
        "leaves": [asdict(row) for row in rows],
        "bytes": {"up": up, "down": down, "known": all(r.bytes is not None for r in rows)},
        "counted": None if run is None else dict(run.results["bytes"]),
        "stays": stays(means),
        "sees": [list(row) for row in words.sees(means)],
        "assumed": words.assumed(means),
        "budget": spent,
        "masks": [] if people is None else budget_mask.foretold(plan, method, task, people),
        "cut": [] if people is None else budget_cut.foretold(plan, method, task, people),
        "attacks": tried,
        "rates": found,
        "not_tried": not_tried(run),
        "residual": words.residual(means, spent),
        "unprotected": words.unprotected(means),
        "model": model(experiment, method, task, study, run),
        "data": data(experiment, people, run),
    }  # fmt: skip


def known(number: float) -> float | None:
    """Return a number, None where it says nothing: one person tells no spread."""
    return number if math.isfinite(number) else None


def stays(means: Means) -> list[str]:
    """Return what does not leave a device."""
    if means.method.pooled:
        return []
    own = kept(means.method.client(means.task))
    many = f"{means.subject.sample}s"
    data = many if means.labels else f"{many}, and {means.subject.labels}"
    return [f"recordings: {data}", *([f"kept by the method: {', '.join(own)}"] if own else [])]


def budget(
    experiment: Experiment, method: Method, task: Task, people: Federation | None, run: Run | None
) -> dict[str, Any]:
    """Return what is promised, by unit; empty where nothing is."""
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
            lessons = rehearsed(method, task, people, plan.rounds)
            for size in {len(people.people[c].train) for c in people.clients[:LOOKED_AT]}:
                ledger = course(lessons, size).ledger(solver)
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
        }  # fmt: skip
    return {**found, "beside": beside(method)} if found else {}


def model(
    experiment: Experiment, method: Method, task: Task, study: Study | None, run: Run | None
) -> dict[str, Any]:
    """Return what a model card says."""
    told = {
        "network": experiment.table["model"]["name"],
        "about": (type(experiment.model).__doc__ or "").partition("\n")[0],
        "task": (type(task).__doc__ or "").partition("\n")[0],
        "method": (type(method).__doc__ or "").partition("\n")[0],
        "parameters": task.init().layout.n,
        "rounds": experiment.plan.rounds,
        "repetitions": len(experiment.plan.seeds),
        "metrics": [],
        "guess": [],
    }
    if run is None or study is None:
        return told
    told["metrics"] = [
        {"name": metric_name(name), "mean": e.mean, "lo": known(e.lo), "hi": known(e.hi),
         "worst": e.worst, "lower": name in run.lower_is_better}
        for name, e in run.estimates.items()
    ]  # fmt: skip
    told["guess"] = [
        {"name": prior, "value": float(np.mean([m[run.headline] for m in them.values()]))}
        for prior, them in study.priors.items()
        if all(run.headline in m for m in them.values())
    ]
    told["harmed"] = run.results.get("harmed_vs_local")
    return told


def data(experiment: Experiment, people: Federation | None, run: Run | None) -> dict[str, Any]:
    """Return what a dataset card says."""
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
    some = list(people.clients[:LOOKED_AT] if isinstance(people.people, Population)
                else people.clients)  # fmt: skip
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
