"""Folds of a protocol merged into one run directory per method, which `vergence compare` reads.

Used by `studies.merge_splits` and `studies.protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vergence.core.federation import POOLED
from vergence.engine.plan import Plan
from vergence.errors import StateError
from vergence.experiment import starting_model
from vergence.experiment.schema import Experiment
from vergence.experiment.validation import Loaded
from vergence.results import write as results
from vergence.results.layout import TABLES
from vergence.results.read import Run, read, text_rows
from vergence.results.run_files import read_json
from vergence.studies import sweep_budget

Score = Callable[[str, str, int], Mapping[str, Mapping[str, float]]]
"""Function from label, person and seed to metrics, by evaluation."""


def merge(
    experiment: Experiment,
    loaded: Loaded,
    out: Path,
    folds: Mapping[str, Path],
    score: Score,
    split: str,
) -> None:
    """Write one run directory per method, with one row of each fold: that of its person.

    Args:
        experiment: the experiment of all folds.
        loaded: everybody's data.
        out: the protocol's folder.
        folds: folder of the fold about each person.
        score: function that measures that person; evaluation P0 is the headline.
        split: text on the test of a fold, to which the split of the data is added.

    Raises:
        StateError: the folds were run by different code.
    """
    for label in experiment.methods:
        folder = out / label
        # Merged before an interruption.
        if (folder / "results.json").exists():
            continue
        rows = [
            (seed, person, evaluation, metric, repr(float(value)))
            for seed in experiment.plan.seeds
            for person in folds
            for evaluation, metrics in score(label, person, seed).items()
            for metric, value in metrics.items()
        ]
        tables = {"people.csv": rows, "turns.csv": turns(label, folds), "rounds.csv": []}
        write_tables(experiment, label, folder, tables)
        parts = {person: read(fold / label).runs[0] for person, fold in folds.items()}
        about = {
            **results.provenance(
                loaded.raw,
                loaded.sha,
                code_of(parts),
                experiment.files(experiment.method_config(label)),
            ),
            **experiment.origin.provenance,
        }
        about["data"]["split"] = f"{split} this split: {about['data'].get('split', 'unknown')}"
        results.write_json(folder / "provenance.json", about)
        results.write_merged(folder, parts, len(loaded.raw.clients))
        # People of one fold have one run.
        _add_up(experiment.plan, folder, [*{part.folder: None for part in parts.values()}])
    finish(experiment, loaded, out)


def write_tables(
    experiment: Experiment, label: str, folder: Path, tables: Mapping[str, Iterable[Sequence[Any]]]
) -> None:
    """Write the tables and the settings of a merged run into its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        results.write_csv(folder / name, TABLES[name], rows)
    starting_model.write_copy(experiment.model.start, folder)
    results.write_toml(folder / "config.toml", experiment.method_config(label))


def _add_up(plan: Plan, folder: Path, folds: Sequence[Path]) -> None:
    """Write into a merged run the budget that all folds have spent on the same people."""
    # Each fold records its own alone: read by itself it would understate what people lost.
    record = read_json(folder / "results.json")
    for unit, amount in sweep_budget.spending_of_runs(plan, folds).items():
        spent = {"epsilon": amount, "seeds_together": amount, "check": None}
        record["privacy"][unit] |= spent | {"folds_together": len(folds)}
    results.write_json(folder / "results.json", record)


def code_of(parts: Mapping[str, Run]) -> str:
    """Return the SHA-256 of the code that ran the folds.

    Raises:
        StateError: it was not the same for all.
    """
    codes = {part.provenance["code"]["sha256"]: part.folder for part in parts.values()}
    if len(codes) > 1:
        one, other = list(codes.values())[:2]
        raise StateError(
            f"{one} and {other} were run by different code: merging them would compare unlike "
            "things; remove the folds of the one, and give the same command again"
        )
    return next(iter(codes))


def turns(label: str, folds: Mapping[str, Path]) -> list[list[str]]:
    """Return the turns of one person of every fold, so that everybody's turns are there once."""
    people, found = list(folds), []
    for place, person in enumerate([*people[1:], *people[:1]]):
        # The person before, as a fold's own may not have trained in it, or the next before that who
        # is in another fold; pooled data have one client.
        before = [*people[place::-1], *people[:place:-1]]
        fold = next(folds[p] for p in before if folds[p] != folds[person])
        wanted = {person, *([] if place else [POOLED])}
        head, *rows = text_rows(fold / label / "turns.csv")
        found += [row for row in rows if row[head.index("client")] in wanted]
    return found


def finish(experiment: Experiment, loaded: Loaded, out: Path) -> None:
    """Write harm against training alone, if that is among the runs; then baselines and index."""
    labels = list(experiment.methods)
    alone = next((x for x in labels if read(out / x).runs[0].method == "local_only"), None)
    for label in labels if alone else ():
        # Runs that an earlier call merged have it already.
        if not results.has_harm(out / label):
            results.write_harm(out / label, out / str(alone))
    task = experiment.task(experiment.plan.seeds[0])
    results.write_priors(out / "priors.csv", task, loaded.ready)
    runs = [
        {
            "label": label,
            "dir": label,
            "method": read_json(out / label / "results.json")["method"],
        }
        for label in experiment.methods
    ]
    results.write_index(out, runs, task, experiment.table["task"]["name"])
