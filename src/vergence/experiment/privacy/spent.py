"""Privacy costs: told by `explain` before a run, in results.json and on screen after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import check_solver
from vergence.engine.protections.user_level import forecast, sums_of
from vergence.experiment.privacy import mask_budget_spent, split_defense_spent, split_guard_report
from vergence.privacy.dp.accounting import Ledger, cross_checked
from vergence.privacy.dp.dp_sgd_solver import training_schedule
from vergence.privacy.dp.tree_aggregation import nodes
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.release_log import FOLDER, ReleaseLog, account, refuse_missing

PERSON = "the same people asked, one of them contributing nothing"
FRAME = "the same samples of a client, one of them left out"
BESIDE = (
    "not covered: metrics measured on people, who took part in which round, how many samples each "
    "has"
)


def foretold(plan: Plan, method: Method, task: Task, federation: Federation) -> list[str]:
    """Say in words what a run will spend; see `explain`.

    Raises:
        ConfigError: this method, or this plan, cannot be protected so.
    """
    told, user, solver = [], plan.privacy.user, plan.privacy.solver
    if user is not None:
        seen = forecast(user, plan, method, len(federation.clients))
        where = "the sum of each round"
        drawn = f"each drawn with chance {seen.rate:g}" if seen.rate < 1 else "whoever is there"
        if user.turns is not None:
            parts = len(nodes(plan.rounds, user.restart))
            where = "every node of a tree over rounds"
            drawn = (
                f"the sum of all {plan.rounds} rounds is of {parts} nodes; whoever is there, each "
                f"in {user.turns} rounds at most"
            )
        spent = seen.epsilon(user.delta)
        if not seen.sums:
            return ["people: nothing of them is sent but metrics, which are left out"]
        shares, most = seen.level.shares, max(seen.expected, 1)
        noise = seen.noise * user.clip * (max(most / shares, 1) ** 0.5 if shares > 1 else 1)
        least = "at least " if shares > 1 else ""
        told.append(
            f"people: every update is cut to {user.clip:g} and counts once, without metrics or "
            f"weights; {where} gets noise of {least}{seen.noise:.4g} x {user.clip:g} "
            f"({drawn}, mean over {seen.expected:g}: {noise / most:.3g} in every entry); after "
            f"{plan.rounds} rounds epsilon "
            f"{spent:.3g} at delta {user.delta:g} per person, seed and method, against "
            f"{against(shares)}"
        )
    if solver is not None:
        passes = check_solver(solver, method, task, federation, plan)
        sizes = sorted({len(splits.train) for splits in federation.people.values()})
        for size in dict.fromkeys((sizes[0], sizes[-1])):
            whole = training_schedule(passes, size)
            noise = whole.noise(solver)
            spent = whole.ledger(solver).epsilon(solver.delta)
            means = f", {whole.means} mean of its samples with noise {whole.mean_noise(solver):.4g}"
            told.append(
                f"samples: a client with {size} trains {whole.steps} steps at sampling rate "
                f"{whole.rate:.3g}, gradients cut to {solver.clip:g}, noise {noise:.4g}"
                f"{means if whole.means else ''}: epsilon "
                f"{spent:.3g} at delta {solver.delta:g} for one sample, not for the person"
            )
    told += mask_budget_spent.foretold(plan, method, task, federation)
    told += split_defense_spent.foretold(plan, method, task, federation)
    told += split_guard_report.foretold(plan)
    run = ProtectedRun(method, task, federation, plan.rounds, Path())
    told += [line for own in plan.privacy.own for line in own.forecast(run)]
    return [*told, beside(method)] if told else []


def beside(method: Method) -> str:
    """Text on what no budget covers."""
    beyond = [
        f"; {exposed.beyond}, at every '{verb}'"
        for verb, exposed in method.exposure.items()
        if exposed.beyond
    ]
    return BESIDE + "".join(beyond)


def against(shares: int) -> str:
    """Text on whom people are hidden from, by noise in so many shares."""
    if shares == 1:
        return "whoever sees the models, not against the server, which adds up before the noise"
    return (
        f"whoever sees the models, and the server while at least {shares} people in every sum "
        "keep their part of the noise to themselves"
    )


def spent(plan: Plan, run: ProtectedRun) -> dict[str, Any] | None:
    """Return the block `privacy` of results.json from the logs in a run's folder of states."""
    method, state, plan = run.method, run.state, plan.known(len(run.federation.clients))
    refuse_missing(state / FOLDER)
    user, solver, found = plan.privacy.user, plan.privacy.solver, {}
    secure = plan.privacy.aggregation
    if user is not None:
        books = [ReleaseLog(state / FOLDER / sums_of(seed)) for seed in plan.seeds]
        entries = [e._replace(draw=f"{n} {e.draw}") for n, b in enumerate(books) for e in b.entries]
        found["person"] = {
            "neighbours": PERSON,
            "against": against(1 if secure is None else secure.threshold),
            "clip": user.clip,
            "delta": user.delta,
            "allowed": user.epsilon,
            **_said([book.ledger for book in books], user.delta),
            "seeds_together": account(entries).epsilon(user.delta),
        }
    paths = sorted((state / FOLDER).glob("seed*.client.*.csv"))
    if solver is not None and paths:  # in a deployment every client has its own, at home
        ledgers = {
            path.name.split(".", 2)[2].removesuffix(".csv"): ReleaseLog(path).ledger
            for path in paths
        }
        found["sample"] = {
            "neighbours": FRAME,
            "against": "whoever sees what the client sends, the server too",
            "clip": solver.clip,
            "delta": solver.delta,
            "allowed": solver.epsilon,
            **_said(list(ledgers.values()), solver.delta),
        }
    found |= {**mask_budget_spent.spent(plan, state), **split_defense_spent.spent(plan, state)}
    if {"sample", "mask"} <= found.keys():  # a sample is part of a person's data: both add up
        found["sample"]["with_masks"] = {
            key: found["sample"][key] + found["mask"][key] for key in ("epsilon", "delta")
        }
    found |= split_guard_report.found(plan, state)
    own = {type(each).__name__: dict(each.spent(run)) for each in plan.privacy.own}
    found |= {"own": own} if own else {}
    return {**found, "beside": beside(method), "accountant": _accountant()} if found else None


def lines(label: str, block: Mapping[str, Any], tuned: bool = False) -> list[str]:
    """Lines on the screen about a run's privacy; `tuned`: a sweep chose its settings."""
    told = split_guard_report.lines(label, block)
    for kind in ("person", "sample", "mask", "picture", "pixel"):
        if kind in block:
            part, unit = block[kind], "person" if kind == "mask" else kind
            check = f", {part['check']:.3g} by PLD" if part["check"] is not None else ""
            told.append(
                f"privacy of {label}: epsilon {part['epsilon']:.3g} at delta {part['delta']:g} per "
                f"{unit} and seed{check}{part.get('only', '')}; {block['beside']}"
            )
    if tuned and block.keys() & {"person", "sample", "mask", "picture", "pixel"}:
        told.append(
            f"privacy of {label}: a sweep chose its settings; what its trials spent on people, and "
            "the choice itself, come on top: see the sweep's spent.csv and best.toml"
        )
    return told


def _said(ledgers: Sequence[Ledger], delta: float) -> dict[str, Any]:
    """Return the largest epsilon of some accounts, and what the other accountant says of it."""
    alike = {ledger: ledger.epsilon(delta) for ledger in set(ledgers)}
    worst = max(alike, key=alike.__getitem__, default=Ledger())
    check = None
    if worst.charges and _accountant() != "closed form":
        check = cross_checked(worst.charges, delta)["pld"]
    charges = [[c.noise, c.rate, c.steps] for c in worst.charges]
    return {"epsilon": alike.get(worst, 0.0), "check": check, "charges": charges}


def _accountant() -> str:
    try:
        return f"prv, opacus {version('opacus')}; pld, dp-accounting {version('dp-accounting')}"
    except PackageNotFoundError:
        return "closed form"
