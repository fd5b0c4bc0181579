"""Comparison tables: baselines and methods as rows, then fairness, ranks and paired tests.

Used by `api.comparison`, `cli.runs`, `reports.html` and `reports.plots.results`.
"""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from vergence.core.naming import plural
from vergence.errors import ConfigError, meant
from vergence.monitoring.unfinished import unfinished
from vergence.results.baselines import kind, plain
from vergence.results.harm import Harm, harms
from vergence.results.layout import DASH, digits, metric_name, number
from vergence.results.read import Estimate, Frame, Run, StudyResults, read
from vergence.results.significance import Unit, fairness_by_run, judge
from vergence.results.significance import paired as paired
from vergence.results.text_tables import TextTable, csv_text, markdown_table
from vergence.results.write import summary
from vergence.studies.comparability import ANYTHING as ANYTHING
from vergence.studies.comparability import check_comparable, tuned_on, with_unique_labels
from vergence.studies.comparison_tables import (
    best_mean,
    best_pairs,
    fairness_block,
    harm_block,
    paired_block,
    ranks_block,
    splits_block,
)
from vergence.studies.label_poor import label_poor_block
from vergence.studies.mask_anatomy import shared_entries

NOBODY = Harm((), {})
HEADS = ("mean", "95 % interval", "worst", "harmed", "MB up", "MB down", "s", "steps")
Part = Literal["methods", "fairness", "tests", "ranks"]
Parts = Mapping[Part, Sequence[TextTable]]


@dataclass(frozen=True)
class ComparisonRow:
    """One row of the table; a baseline without learning (prior) has metrics and no costs.

    Attributes:
        label: label of the run, or name of the baseline.
        name: the label in words.
        prior: the row is a baseline without learning.
        metrics: estimates by metric.
        worse_than_alone: share of people whose mean is worse than by training alone.
        harm: the people who are shown to be harmed.
        mb_up: megabytes (10^6) that a client sends per round; NaN: not applicable, as below.
        mb_down: megabytes that a client receives per round.
        seconds: duration of the run.
        steps: gradient steps per client over the whole run.
    """

    label: str
    name: str
    prior: bool
    metrics: Mapping[str, Estimate]
    worse_than_alone: float = math.nan
    harm: Harm = NOBODY
    mb_up: float = math.nan
    mb_down: float = math.nan
    seconds: float = math.nan
    steps: float = math.nan


def gather(folders: Iterable[Path | str], allow: Iterable[str] = ()) -> StudyResults:
    """Read folders (an OUT with its index, or single runs) as one study.

    `allow` names fields in which runs may differ; see `comparability.check_comparable`.

    Raises:
        ConfigError: there is no folder, or runs are not comparable.
        StateError: a folder holds no finished run.
    """
    studies = [with_harm_so_far(read(run)) for each in folders for run in _runs_below(Path(each))]
    if not studies:
        raise ConfigError("nothing to compare: name at least one folder that vergence run wrote")
    runs = with_unique_labels(studies)
    check_comparable(runs, allow)
    # Baselines depend on the data alone, which are the same for all runs.
    priors = next((s.priors for s in studies if s.priors), {})
    return StudyResults(studies[0].folder, tuple(runs), priors)


def _runs_below(folder: Path) -> list[Path]:
    """Return a folder that `read` takes; of `vergence.train_all`, the run directories in it."""
    own = any((folder / name).exists() for name in ("config.toml", "index.json", "results.json"))
    return [folder] if own else sorted(f.parent for f in folder.glob("*/config.toml")) or [folder]


def with_harm_so_far(study: StudyResults) -> StudyResults:
    """Return the study; if it is unfinished, with the harmed people counted as at its end."""
    # The end of a study writes this number itself.
    if study.find("local_only") is None or not unfinished(study.folder):
        return study
    harm = fairness_by_run(study)
    runs = [_with(r, harmed_vs_local=harm[r.label].harmed) for r in study.runs if r.label in harm]
    return replace(study, runs=tuple(runs))


@dataclass(frozen=True)
class ComparisonRest(Run):
    """A run restricted to the `people` of its results, as if nobody else had been measured."""

    @cached_property
    def values(self) -> Frame:
        """Rows of people.csv about these people."""
        every = super().values
        return every[every.person.isin(self.people)]


def without_tuning_people(study: StudyResults) -> tuple[StudyResults, str]:
    """Return the study without the people on whom a sweep chose settings, and a note with them.

    `vergence compare` calls it.

    Means over people are computed again over the others; costs are those of the whole run.

    Raises:
        ConfigError: no settings were chosen on anybody, or nobody else is left.
    """
    if not (seen := tuned_on(study.runs)):
        raise ConfigError(
            "--unseen: no settings were chosen on anybody (tuning.people, which vergence study "
            "sweep writes); leave --unseen out"
        )
    runs = [_rest(run, seen) for run in study.runs]
    if not all(run.people for run in runs):
        raise ConfigError(
            f"--unseen: settings were chosen on everybody ({plural(len(seen), 'person')}), nobody "
            "is left to compare on; sweep again with fewer people (sweep.people)"
        )
    priors = {
        name: {person: metrics for person, metrics in people.items() if person not in seen}
        for name, people in study.priors.items()
    }
    harm = fairness_by_run(StudyResults(study.folder, tuple(runs), priors))
    runs = [_with(run, harmed_vs_local=harm[run.label].harmed) for run in runs]
    dropped = [p for p in seen if any(p in run.people for run in study.runs)]
    who = f"without {', '.join(dropped)}" if dropped else f"{', '.join(seen)} are not in these runs"
    note = f"{who}: settings were chosen on them (tuning.people)"
    return StudyResults(study.folder, tuple(runs), priors), note


def _rest(run: Run, seen: Sequence[str]) -> Run:
    people = [person for person in run.people if person not in seen]
    rest = ComparisonRest(run.folder, run.label, {**run.results, "people": people})
    scores = {metric: rest.scores(metric) for metric in run.results["metrics"]}
    found = {m: summary(s, m in run.lower_is_better, run.bounds(m)) for m, s in scores.items() if s}
    # Without splits: their means over people include those who are left out here.
    return _with(rest, metrics=found, splits={})


def _with(run: Run, **results: Any) -> Run:
    return replace(run, results={**run.results, **results})


def rows(study: StudyResults) -> list[ComparisonRow]:
    """Return the table of a study, headline metric first in every row."""
    order = list(dict.fromkeys(m for run in study.runs for m in run.estimates))
    found = [_prior(name, people, order, study) for name, people in study.priors.items()]
    harm = harms(study)
    for run in study.runs:
        sent = run.results.get("bytes") or {}
        harmed = run.results.get("harmed_vs_local")
        found.append(
            ComparisonRow(
                label=run.label,
                name=run.title,
                prior=False,
                metrics=run.estimates,
                worse_than_alone=math.nan if harmed is None else float(harmed),
                harm=harm[run.label],
                mb_up=float(sent.get("up", math.nan)) / 1e6,
                mb_down=float(sent.get("down", math.nan)) / 1e6,
                seconds=float(run.results.get("seconds", math.nan)),
                steps=run.steps,
            )
        )
    return found


def _prior(
    name: str, people: Mapping[str, Mapping[str, float]], order: Sequence[str], study: StudyResults
) -> ComparisonRow:
    estimates = {}
    # A metric may not be defined for somebody's samples, and not computed for a baseline.
    for metric in order:
        values = {p: v[metric] for p, v in people.items() if math.isfinite(v.get(metric, math.nan))}
        if values:
            lower, bounds = metric in study.lower_is_better, study.runs[0].bounds(metric)
            estimates[metric] = Estimate.of(summary(values, lower, bounds))
    return ComparisonRow(label=name, name=plain(name), prior=True, metrics=estimates)


def blocks(
    study: StudyResults,
    metric: str | None = None,
    reference: str | None = None,
    margin: float | None = None,
    unit: Unit = "person",
) -> Parts:
    """Return the tables for which a study has enough runs.

    Raises:
        ConfigError: an unknown metric or reference, or a margin that is not positive.
    """
    listed = rows(study)
    names = _metrics(listed)
    chosen = metric or study.headline
    if chosen not in names:
        raise ConfigError(
            f"no run has the metric '{chosen}'{meant(chosen, names)}; measured: "
            f"{', '.join(names)}: choose one of these, or train again with a task that measures it"
        )
    people, seeds = len(study.runs[0].people), len(study.runs[0].seeds)
    lower = ", lower is better" if chosen in study.lower_is_better else ""
    about = (
        f"mean and 95 % interval over {plural(people, 'person')}, {plural(seeds, 'seed')}{lower}"
    )
    others = [n for n in names if n != chosen]
    faint = frozenset(i for i, row in enumerate(listed) if row.prior)
    methods = [
        TextTable(
            f"{metric_name(chosen)}: {about}",
            ["", metric_name(chosen), *HEADS[1:]],
            [
                [
                    f"{row.name} ({kind(row.label)})" if row.prior else row.name,
                    *_cells(listed, row, chosen),
                ]
                for row in listed
            ],
            dim=faint,
            notes=[*client_lines(study), *best_mean(study, chosen)],
        )
    ]
    over_splits = splits_block(study, chosen)
    methods += [over_splits] if over_splits else []
    few_labels = label_poor_block(study, chosen)
    methods += [few_labels] if few_labels else []
    if others:
        lines = [[row.name, *_means(listed, row, others)] for row in listed]
        heads = ["", *map(metric_name, others)]
        methods.append(TextTable("Other metrics, mean over people", heads, lines, dim=faint))
    harm = harm_block(study, {row.label: row.harm for row in listed if not row.prior})
    tests = paired_block(study, chosen, reference, margin, unit)
    ranks = ranks_block(study, chosen, unit)
    return {
        "methods": methods,
        "fairness": [fairness_block(study, chosen), *([harm] if harm else [])],
        "ranks": [ranks] if ranks else [],
        "tests": [tests] if tests else [],
    }


def client_lines(study: StudyResults) -> list[str]:
    """Return a sentence that describes a client, if it is not a single person."""
    text = study.runs[0].provenance["data"].get("clients", "")
    return [f"Clients: {text}."] if text else []


def print_parts(
    parts: Parts, console: Console, only: Part | None = None, notes: Sequence[str] = ()
) -> None:
    """Print notes on allowed differences, then all tables or one of them.

    Raises:
        ConfigError: there are not enough runs for the table.
    """
    for note in notes:
        console.print(Text(f"Note: {note}", style="yellow"), soft_wrap=True)
    for part in _wanted(parts, only):
        for block in parts[part]:
            block.show(console)


def print_summary(
    study: StudyResults, folder: Path, console: Console, notes: Sequence[str] = ()
) -> None:
    """Print the first table, at most three sentences, and the command that prints the rest.

    `vergence run` and `vergence report` print it.
    """
    for note in notes:
        console.print(Text(f"Note: {note}", style="yellow"), soft_wrap=True)
    first = blocks(study)["methods"][0]
    pairs = best_pairs(study, study.headline, judge(study))
    replace(first, notes=[*first.notes, *pairs, *shared_entries(study)]).show(console)
    hint = f"Other metrics, fairness and tests: vergence compare {shlex.quote(str(folder))}"
    console.print(Text(hint, style="dim"), soft_wrap=True)


def tables_as_text(
    study: StudyResults,
    parts: Parts,
    style: Literal["csv", "markdown"],
    only: Part | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return tables as text; a CSV has one of them, by default the table of methods.

    Notes come first, in Markdown as a quotation, in CSV as lines after a `#`.

    Raises:
        ConfigError: there are not enough runs for the table.
    """
    wanted = _wanted(parts, only)
    if style == "csv":
        only = only or "methods"
        text = to_csv(rows(study)) if only == "methods" else parts[only][0].csv()
        return "".join(f"# {note}\n" for note in notes) + text
    texts = [f"> Note: {note}\n" for note in notes]
    texts += [to_markdown(rows(study))] if "methods" in wanted else []
    texts += [b.markdown() for part in wanted if part != "methods" for b in parts[part]]
    return "\n".join(texts)


def _wanted(parts: Parts, only: Part | None) -> list[Part]:
    if only is not None and not parts[only]:
        needs = {
            "tests": "a run to be paired with: FedAvg, local-only, or --reference NAME",
            "ranks": "three methods and two people",
        }
        raise ConfigError(f"the table of {only} needs {needs[only]}")
    return [part for part in parts if only in (None, part)]


def _metrics(listed: Sequence[ComparisonRow]) -> list[str]:
    return list(dict.fromkeys(m for row in listed if not row.prior for m in row.metrics))


def _decimals(listed: Sequence[ComparisonRow], metric: str) -> int:
    return digits(row.metrics[metric].mean for row in listed if metric in row.metrics)


def _headline_decimals(listed: Sequence[ComparisonRow], metric: str) -> int:
    """Return the usual number of decimals, or one more if two methods would look equal."""
    places = _decimals(listed, metric)
    trained = [row for row in listed if metric in row.metrics and not row.prior]
    means = [number(row.metrics[metric].mean, places) for row in trained]
    return places + (len({*means}) < len(means))


def _cells(listed: Sequence[ComparisonRow], row: ComparisonRow, metric: str) -> list[str]:
    return [*headline_cells(listed, row, metric), "" if row.prior else number(row.steps, 0)]


def _means(
    listed: Sequence[ComparisonRow], row: ComparisonRow, metrics: Sequence[str]
) -> list[str]:
    return [
        number(row.metrics[m].mean, _decimals(listed, m)) if m in row.metrics else ""
        for m in metrics
    ]


def headline_cells(listed: Sequence[ComparisonRow], row: ComparisonRow, metric: str) -> list[str]:
    """Return the printed cells of a row: mean, interval, worst, harmed, MB up, MB down, seconds."""
    e = row.metrics.get(metric)
    places = _headline_decimals(listed, metric)
    first = [""] * 3
    if e is not None:
        spread = f"[{number(e.lo, places)}, {number(e.hi, places)}]"
        first = [number(e.mean, places), spread, number(e.worst, places)]
    if row.prior:
        return [*first, "", "", "", ""]
    harmed = str(row.harm) or DASH
    sent = [v for r in listed for v in (r.mb_up, r.mb_down) if v > 0]
    top = max(sent, default=1.0)
    # All cells of both columns alike, so that they can be compared by eye.
    fine = 2 if top >= 0.1 else 4 if top >= 1e-3 else 6
    return [
        *first,
        harmed,
        number(row.mb_up, fine),
        number(row.mb_down, fine),
        number(row.seconds, 0),
    ]


def to_csv(listed: Sequence[ComparisonRow]) -> str:
    """Return the table with full precision: one line per row, `_lo`, `_hi`, `_worst` columns."""
    records = []
    for row in listed:
        record: dict[str, object] = {"row": row.label, "kind": "prior" if row.prior else "method"}
        for name in _metrics(listed):
            e = row.metrics.get(name)
            for part in ("mean", "lo", "hi", "std", "worst"):
                key = name if part == "mean" else f"{name}_{part}"
                record[key] = None if e is None else float(getattr(e, part))
        record |= {
            "harmed_vs_local": row.worse_than_alone,
            "harmed": len(row.harm.people) if row.harm.losses else None,
            "harm_judged": len(row.harm.losses),
            "harmed_people": " ".join(row.harm.people),
            "harm_references": ", ".join(row.harm.references) if row.harm.losses else "",
            "mb_up": row.mb_up,
            "mb_down": row.mb_down,
            "seconds": row.seconds,
            "steps": row.steps,
        }
        records.append(record)
    return csv_text(records)


def to_markdown(listed: Sequence[ComparisonRow]) -> str:
    """Return the table in Markdown: headline with interval, costs, then the other metrics."""
    first, *others = _metrics(listed)
    heads = ["", metric_name(first), *HEADS[1:], *map(metric_name, others)]
    lines = [
        [
            f"*{row.name}* ({kind(row.label)})" if row.prior else row.name,
            *_cells(listed, row, first),
            *_means(listed, row, others),
        ]
        for row in listed
    ]
    return markdown_table(heads, lines)
