"""`vergence reproduce`: a paper's tables run again, and a verdict on every claim."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.core.federation import POOLED
from vergence.core.files import parse_json
from vergence.core.naming import plural
from vergence.errors import ConfigError, PartialRun, nearest
from vergence.experiment.schema import Experiment
from vergence.results.figure_style import save
from vergence.results.read import Run
from vergence.results.verdict_rules import (
    GAIN,
    Curve,
    mean_curve,
    steepest,
    training_curve,
    unit_of,
)
from vergence.studies.comparability import check_comparable
from vergence_papers import figures, outcome
from vergence_papers.catalog import ELSEWHERE, MEASURED
from vergence_papers.claims import PRIOR, PaperTable, Scores, TablePart
from vergence_papers.data_sets import DEFAULT, GROUNDS, Ground, at_hand, ground
from vergence_papers.finding import Finding
from vergence_papers.generated_samples import pictured
from vergence_papers.outcome import ReproducedTable
from vergence_papers.printed import paper_tables
from vergence_papers.running import (
    SEEDS,
    PartResult,
    Planned,
    UntrainedTable,
    Wish,
    left_out,
    matrix,
    plan,
    priors_of,
    within,
)
from vergence_papers.teachers import judged
from vergence_papers.verdicts import Evidence, judge, metrics_of, tally


def of_papers(module: str, name: str) -> dict[str, Any]:
    """Paper -> an attribute of one of its own modules, for the papers that have this module."""
    return {
        paper: getattr(import_module(f"vergence_papers.{paper}.{module}"), name)
        for paper in DEFAULT
        if find_spec(f"vergence_papers.{paper}.{module}")
    }


TABLES: dict[str, PaperTable] = {t.id: t for name in DEFAULT for t in paper_tables(name)}
UNTRAINED: dict[str, UntrainedTable] = {
    table.id: table for tables in of_papers("untrained", "TABLES").values() for table in tables
}
PROTOCOLS: dict[str, Callable[[TablePart, Experiment, Path], PartResult]] = {
    "within": within,
    "matrix": matrix,
    "leave_one_out": left_out,
    "taught": judged,
    "pictured": pictured,
}
"""Protocol -> how a part is run under it."""
for own in of_papers("protocol", "PROTOCOLS").values():
    PROTOCOLS |= own
HOME = Path("runs/reproduce")
DECLARED = "methods"
"""The folder of tables that are read off the methods."""


def tables(ids: Sequence[str]) -> list[PaperTable]:
    """Return the tables of these ids that rest on runs; a paper's name stands for all of its own.

    Raises:
        ConfigError: an id that is unknown, or that a command of its own measures.
    """
    if not ids:
        raise ConfigError("name a table, such as fedcpf/table1; `vergence reproduce --list`")
    found: dict[str, PaperTable] = {}
    for name in ids:
        own = [t for t in TABLES.values() if name in (t.id, t.paper)]
        if not own and name in UNTRAINED:
            continue
        if not own and name in ELSEWHERE:
            raise ConfigError(f"{name} is a picture of the method: `{ELSEWHERE[name]}`")
        if not own and name in MEASURED:
            raise ConfigError(f"{name} has a command of its own: `{MEASURED[name]}`")
        if not own:
            known = [*TABLES, *UNTRAINED, *DEFAULT]
            raise ConfigError(f"no table '{name}'{nearest(name, known)}")
        found |= {t.id: t for t in own}
    return list(found.values())


def untrained_tables(ids: Sequence[str]) -> list[UntrainedTable]:
    """Return the tables of these ids that rest on no runs; a paper's name stands for its own."""
    return [table for table in UNTRAINED.values() if {table.id, table.paper} & {*ids}]


def unread(option: str, options: Mapping[str, object]) -> None:
    """Refuse what an option that runs nothing would leave unread; None is not given.

    Raises:
        ConfigError: names it.
    """
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise ConfigError(f"{option} runs nothing and does not read {', '.join(names)}; drop it")


def reproduce(
    ids: Sequence[str],
    console: Console,
    *,
    on: str | None = None,
    wish: Wish = Wish(),  # noqa: B008
    out: Path | None = None,
) -> list[ReproducedTable]:
    """Run the tables, or go on with them; print each and write it to OUT/ID.

    Raises:
        ConfigError: an id, data set, folder or setting that cannot be used.
        StateError: OUT holds the same table with other settings.
        PartialRun: interrupted; the same command goes on.
    """
    wanted = [(table, ground(table.paper, on)) for table in tables(ids)]
    plans = {table.id: [plan(part, where, wish) for part in table.parts] for table, where in wanted}
    untrained = untrained_tables(ids)
    if untrained and not wanted and not any(table.uses_data for table in untrained):
        unread(
            untrained[0].id,
            {"--on": on, "--root": wish.root, "--rounds": wish.rounds, "--set": wish.sets or None},
        )
    for one in untrained:
        where = ground(one.paper, on) if one.uses_data else None
        folder = out or HOME / (where.name if where else DECLARED)
        one.write(where, wish, folder / one.id, console)
    done = []
    for table, where in wanted:
        home = out or HOME / where.name
        results = run_parts(plans[table.id], home / table.paper / "runs")
        found = gather(table, where, wish, plans[table.id], results)
        stem = table.id.rpartition("/")[2]
        drawn = {
            (table.title, f"{stem}.png"): figures.draw(found),
            ("learning curves", f"{stem}_curves.png"): figures.learning_curves(found),
        }
        outcome.write(found, home / table.id, dict(at for at, figure in drawn.items() if figure))
        for (_, name), figure in drawn.items():
            if figure:
                save(figure, home / table.id / name)
        outcome.show(found, console)
        console.print(f"written: {home / table.id}", soft_wrap=True)
        done.append(found)
    return done


def run_parts(parts: Sequence[Planned], folder: Path) -> dict[tuple[str, str], PartResult]:
    """Run every part that can run, each in its own folder.

    Raises:
        PartialRun: interrupted; the same command goes on.
    """
    found = {}
    for planned in parts:
        part = planned.part
        if planned.experiment is None:
            continue
        try:
            found[part.name, part.protocol] = run_part(planned, folder / part.name)
        except PartialRun as error:  # a fold of a part is no run that anybody began
            reason = str(error).partition(";")[0]
            raise PartialRun(
                f"{reason}; what is done is kept: give the same command again"
            ) from None
    return found


def run_part(planned: Planned, out: Path) -> PartResult:
    """Run a part, or all of its replicates, each in its own folder."""
    run = PROTOCOLS[planned.part.protocol]
    if not planned.replicates:
        assert planned.experiment is not None
        return run(planned.part, planned.experiment, out)
    results = {
        name: run(planned.part, experiment, out / name.replace("/", "_").replace(", ", "_"))
        for name, experiment in planned.replicates.items()
    }
    first, *others = results.values()
    scores = mean_over({name: r.scores for name, r in results.items()}, planned.unit)
    return replace(first, scores=scores, others=tuple(other.study for other in others))


def mean_over(replicates: Mapping[str, Scores], unit: str) -> Scores:
    """Return label -> metric -> unit -> mean over the replicates that have it.

    A score by seed belongs to the replicate, by the part of its name before a slash; others keep
    their own units, such as the videos that a fold tests.
    """
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, scores in replicates.items():
        own = f"{unit} {name.partition('/')[0]}"
        for label, by_metric in scores.items():
            for metric, told in by_metric.items():
                found = values.setdefault(label, {}).setdefault(metric, {})
                for who, value in told.items():
                    found.setdefault(own if unit_of([who]) == "seed" else who, []).append(value)
    return {
        label: {
            metric: {who: sum(each) / len(each) for who, each in told.items()}
            for metric, told in by_metric.items()
        }
        for label, by_metric in values.items()
    }


def gather(
    table: PaperTable,
    where: Ground,
    wish: Wish,
    parts: Sequence[Planned],
    results: dict[tuple[str, str], PartResult],
) -> ReproducedTable:
    """Judge the claims of a table on what its parts gave."""
    scores: dict[str, Any] = {}
    lower: frozenset[str] = frozenset()
    for result in results.values():
        scores |= result.scores
        lower |= result.lower or result.study.lower_is_better
    for result in results.values():
        if result.lower:  # scores of other people, or of another metric, than the priors are
            continue
        for prior, people in priors_of(result.study).items():
            scores.setdefault(prior, people)
    images: dict[str, int] = {}
    runs: dict[str, Run] = {}
    curves: dict[str, Mapping[str, Curve]] = {}
    for planned, result in ran(parts, results):
        images |= result.images
        own = {run.label + planned.part.suffix: run for run in result.study.runs}
        runs |= {label: run for label, run in own.items() if label in result.scores}
        curves |= part_curves(planned, result, metrics_of(table, where))
    evidence = Evidence(
        scores,
        lower,
        {k: v for p in parts for k, v in p.missing.items()},
        {k: v for p in parts for k, v in p.barred.items()},
        runs,
        curves,
        images,
    )
    verdicts = tuple(judge(table, claim, where, evidence) for claim in table.claims)
    told = facts(parts, results)
    full = max(p.part.rounds(where) for p in parts)
    marks = (
        *stamps(where, wish, told, full),
        *alike(table, parts, results),
        *uneven(evidence),
    )
    noisy = {
        run.label + planned.part.suffix: len(planned.experiment.noise.noisy_clients(run.people))
        for planned, result in ran(parts, results)
        if table.figure == "noise" and planned.experiment is not None
        for run in result.study.runs
    }
    return ReproducedTable(table, where, marks, told, evidence, verdicts, results, noisy)


def part_curves(
    planned: Planned, result: PartResult, metrics: Sequence[str]
) -> dict[str, Mapping[str, Curve]]:
    """Return row -> metric -> learning curve, of the trained rows of a part; main metric first."""
    metrics = list(dict.fromkeys((result.study.headline, *metrics)))
    gained = {
        run.label + planned.part.suffix: curves_of(result, run, metrics)
        for run in result.study.runs
    }
    each = {m: [curves[m] for curves in gained.values() if m in curves] for m in metrics}
    most = {metric: steepest(curves) for metric, curves in each.items() if curves}
    trained = [label for label in result.scores if not label.endswith(PRIOR)]
    found: dict[str, Mapping[str, Curve]] = {
        label: {} if label in result.late else gained.get(label, most) for label in trained
    }
    # A closed form is the same after every round, and a teacher is asked as it is.
    for label in result.closed:
        means = means_of(result, label)
        found[label] = {metric: ((1, 2, 3), [mean] * 3) for metric, mean in means.items()}
    return found


def curves_of(result: PartResult, run: Run, metrics: Iterable[str]) -> dict[str, Curve]:
    """Return metric -> learning curve of a method's runs, of the metrics measured between rounds.

    Where clients train once more after the last round, the curve ends before. If the part has
    measured the common model as it is after that round, the curve ends with it.
    """
    found = {}
    for metric in metrics:
        mean = mean_curve([training_curve(each, metric) for each in result.runs(run.label)])
        at, values = mean
        ends = means_of(result, result.base).get(metric) if result.base else None
        if ends is not None and len(at) and at[-1] < run.results["rounds"]:
            sign = -1 if metric in run.lower_is_better else 1
            mean = [*at, run.results["rounds"]], [*values, sign * ends]
        if len(at):
            found[metric] = mean
    return found


def means_of(result: PartResult, label: str) -> dict[str, float]:
    """Return metric -> mean of a row over people or seeds."""
    return {m: sum(v.values()) / len(v) for m, v in result.scores[label].items() if v}


def alike(
    table: PaperTable, parts: Sequence[Planned], results: dict[tuple[str, str], PartResult]
) -> list[str]:
    """Check that the runs of a table may be judged against each other; tell what differs by design.

    Raises:
        ConfigError: a field differs that should not.
    """
    runs = [
        Run(run.folder, run.label + planned.part.suffix, run.results)
        for planned, result in ran(parts, results)
        for run in result.study.runs
    ]
    try:
        return [f"by design, {note}" for note in check_comparable(runs, table.apart)]
    except ConfigError as error:
        reason = str(error).rpartition(", or compare all")[0]
        raise ConfigError(f"{table.id}: {reason}") from None


def uneven(evidence: Evidence) -> list[str]:
    """Return in what rows differ beside their methods: in steps, and who is past their best.

    A row is past its best if its main metric was better after an earlier round, by more than 1 %.
    """
    steps: dict[str, list[str]] = {}
    for label, run in evidence.runs.items():
        if not math.isfinite(run.steps):  # under secure sums nobody says how many
            continue
        steps.setdefault(f"{run.steps:,.0f}", []).append(label)
    found = []
    if len(steps) > 1:
        told = "; ".join(f"{count}: {', '.join(labels)}" for count, labels in steps.items())
        found.append(f"gradient steps of a client in all, by row: {told}")
    past = []
    for label, by_metric in evidence.curves.items():
        if not by_metric:
            continue
        at, values = next(iter(by_metric.values()))
        if max(values) - values[-1] > GAIN * abs(values[-1]):
            past.append(f"{label} (best in round {at[int(np.argmax(values))]})")
    if past:
        found.append(f"past their best: {', '.join(past)}")
    return found


def ran(
    parts: Sequence[Planned], results: dict[tuple[str, str], PartResult]
) -> list[tuple[Planned, PartResult]]:
    """Return the parts that ran, with their results."""
    return [(p, results[key]) for p in parts if (key := (p.part.name, p.part.protocol)) in results]


def stamps(where: Ground, wish: Wish, settings: dict[str, Any], rounds: int) -> tuple[str, ...]:
    """Stamps that every output of a table must carry in plain sight; `rounds` of a full run."""
    found = []
    many = len(where.replicates) or SEEDS
    if settings["seeds"] < many:
        found.append(
            f"fast: {settings['seeds']} of {many} {'splits' if where.replicates else 'seeds'}"
        )
    if settings["rounds"] < rounds:
        found.append(f"fast: {settings['rounds']} of {rounds} rounds")
    if where.kind == "generated":
        found.append("generated data: shows what the methods do, not what people do")
    if where.kind == "toy":
        found.append("toy data: tries the machinery, says nothing about gaze")
    changed = [item for item in wish.sets if not item.startswith("run.workers=")]
    if changed:
        found.append(f"changed settings: {', '.join(changed)}")
    return tuple(found)


def facts(parts: Sequence[Planned], results: dict[tuple[str, str], PartResult]) -> dict[str, Any]:
    """Return data, people, seeds, rounds, budget, machine and command.

    Raises:
        ConfigError: no part of the table could run.
    """
    if not results:
        reason = next((why for p in parts for why in p.missing.values()), "no part")
        raise ConfigError(f"nothing of this table can run: {reason}")
    experiment = next(p.experiment for p in parts if p.experiment is not None)
    studies = [s for result in results.values() for s in (result.study, *result.others)]
    runs = [run for study in studies for run in study.runs]
    first = runs[0]
    box_, data = first.provenance["environment"], first.provenance["data"]
    local = experiment.table["local"]
    steps = local.get("steps")
    work = plural(steps, "step") if steps else plural(local["epochs"], "epoch")
    return {
        "data": data["name"],
        "data_sha256": data["sha256"],
        "people": len(first.people),
        "seeds": max(len(first.seeds), *(1 + len(r.others) for r in results.values())),
        "rounds": first.results["rounds"],
        "budget": f"{work} of batch {local['batch']} per person and round",
        "samples": span(value for r in runs for value in training_samples(r)),
        "steps": span(r.steps for r in runs if len(r.turns)),
        "experiment": {k: v for k, v in experiment.table.items() if k != "methods"},
        "machine": f"{box_['platform'].split('-')[0]} {box_['processor']}, {os.cpu_count()} cores, "
        f"Python {box_['python']}, torch {box_['torch']}",
        "minutes": sum(float(r.results["seconds"]) for r in {r.folder: r for r in runs}.values())
        / 60,
        "code": first.provenance["code"],
        "command": "vergence " + shlex.join(sys.argv[1:]),
    }


def training_samples(run: Run) -> list[float]:
    """Return how many samples clients trained on in a turn, where their replies say so."""
    turns = run.turns
    return (
        list(turns.examples[(turns.client != POOLED) & (turns.examples > 0)]) if len(turns) else []
    )


def span(values: Iterable[float]) -> str:
    """Return the smallest and largest of the numbers that are known, as text; "" if none is."""
    known = [int(value) for value in values if np.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def listing(console: Console, out: Path | None = None) -> None:
    """Print every table id: what it runs on here, what it would run on, and what is in OUT."""
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in ("id", "what", "runs here on", "with --root on", f"in {out or HOME}"):
        grid.add_column(head, no_wrap=head == "id")
    dealt = [table for table in UNTRAINED.values() if table.uses_data]
    for table in (*TABLES.values(), *dealt):
        fit = [g for g in GROUNDS.values() if table.paper in g.papers and g.kind != "toy"]
        here = [g.name for g in fit if at_hand(g)]
        away = [g.name for g in fit if not at_hand(g)]
        grid.add_row(table.id, table.title, ", ".join(here), ", ".join(away), status(table.id, out))
    for one in (table for table in UNTRAINED.values() if not table.uses_data):
        grid.add_row(one.id, one.title, "nothing: read off the methods", "", status(one.id, out))
    for name, command in ELSEWHERE.items():
        grid.add_row(name, "a picture of the method", "", "", f"`{command}`")
    for name, command in MEASURED.items():
        grid.add_row(name, "measured by a command of its own", "", "", f"`{command}`")
    console.print(grid)


def status(name: str, out: Path | None) -> str:
    """Findings of earlier runs of a table."""
    paths = [out / name] if out else sorted(HOME.glob(f"*/{name}"))
    told = []
    for path in paths:
        file = path / "verdicts.json"
        if not file.is_file():
            continue
        try:
            found = parse_json(file.read_text(encoding="utf-8"))
            words = [claim["verdict"] for claim in found["claims"]]
            fast = ", fast" if any(s.startswith("fast") for s in found["stamps"]) else ""
            told.append(f"{found['on']}, {plural(found['seeds'], 'seed')}{fast}: {tally(words)}")
        except (ValueError, KeyError, TypeError):
            told.append(f"{file} is damaged, or of another version")
    return "; ".join(told) or "not run"


def check_paper(ids: Sequence[str], console: Console) -> list[Finding]:
    """Print what the published numbers give when they are computed again."""
    asked = ids or list(DEFAULT)
    papers = dict.fromkeys(t.paper for t in (*tables(asked), *untrained_tables(asked)))
    checks = of_papers("checks", "findings")
    found = []
    for paper in papers:
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_lines=True)
        for head in (f"{paper}: printed or implied", "computed", "verdict"):
            grid.add_column(head)
        own = checks[paper]()
        for finding in own:
            style = "green" if finding.ok else "red"
            grid.add_row(finding.says, finding.computed, Text(finding.verdict, style))
        console.print(grid)
        found += own
    return found
