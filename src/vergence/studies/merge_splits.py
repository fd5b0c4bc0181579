"""Runs on several splits of the same people, merged into one run directory per method.

A person counts once, with the mean over splits. The seeds of a generator make different people, who
are all in the merged run. Docs: docs/how-to/protocols.md.

Used by `studies.protocols` and `studies.split_runs`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from vergence.core.naming import by_key
from vergence.errors import StateError
from vergence.experiment.schema import Experiment
from vergence.experiment.validation import Loaded
from vergence.metrics.intervals import with_number
from vergence.results import write as results
from vergence.results.harm import PICTURE, PRIORS, SAMPLES, SCENE
from vergence.results.layout import COLUMNS, TABLES
from vergence.results.read import Run, StudyResults, read, text_rows
from vergence.studies import merge_folds
from vergence.studies.comparison_tables import splits_block


def merge(
    experiment: Experiment,
    loaded: Mapping[int, Loaded],
    out: Path,
    folders: Mapping[int, Path],
    per_split: bool = False,
) -> None:
    """Write one run directory per method, with everybody's mean over splits for each seed.

    Args:
        experiment: the experiment of all splits.
        loaded: data by split seed.
        out: the folder of the merged directories.
        folders: folder of the run of each split seed.
        per_split: each split has other people, who are all in the merged run.

    Raises:
        StateError: the splits were run by different code, or `out` has other splits merged.
    """
    first = next(iter(loaded.values()))
    for label in experiment.methods:
        folder = out / label
        if (folder / "results.json").exists():
            _check_splits(folder, list(map(str, folders)))
            continue
        parts = {str(seed): read(path / label).runs[0] for seed, path in folders.items()}
        tables = {"people.csv": scores(parts, per_split), "turns.csv": turns(parts, per_split)}
        if judged := blocks(
            {split: run.folder for split, run in parts.items()}, SAMPLES, per_split
        ):
            tables[SAMPLES] = judged
        merge_folds.write_tables(experiment, label, folder, {**tables, "rounds.csv": []})
        code = merge_folds.code_of(parts)
        # One digest for the data of all splits: comparisons read it as that of a single run.
        sha = hashlib.sha256("".join(each.sha for each in loaded.values()).encode()).hexdigest()
        files = experiment.files(experiment.method_config(label))
        about = results.provenance(first.raw, sha, code, files)
        names = ", ".join(parts)
        own = about["data"].get("split", "unknown")
        how = (
            f"people of generator seeds {names}" if per_split else f"mean over split seeds {names}"
        )
        about["data"]["split"] = f"{how}; the first one: {own}"
        results.write_json(folder / "provenance.json", about)
        clients = [len(each.raw.clients) for each in loaded.values()]
        people = [
            _person_key(who, seed, per_split) for seed, run in parts.items() for who in run.people
        ]
        spread = spread_of(parts)
        count = sum(clients) if per_split else clients[0]
        results.write_merged(folder, parts, count, list(dict.fromkeys(people)), spread)
    merge_folds.finish(experiment, first, out)
    _write_priors(out, folders, per_split)


def _check_splits(folder: Path, seeds: list[str]) -> None:
    there = list(read(folder).runs[0].results.get("split_folders", {}))
    if {*there} != {*seeds}:
        raise StateError(
            f"{folder} is merged over the split seeds {', '.join(there)}, and {', '.join(seeds)} "
            "are asked for; give those again, or another --out"
        )


def _person_key(person: str, seed: object, per_split: bool) -> str:
    return f"{person}@{seed}" if per_split else person


def scores(parts: Mapping[str, Run], per_split: bool = False) -> list[tuple[Any, ...]]:
    """Return the rows of people.csv, each the mean over the splits that have this person."""
    keys = ["seed", "person", "evaluation", "metric"]
    found = by_key(
        ((seed, _person_key(person, split, per_split), *key), value)
        for split, run in parts.items()
        for seed, person, *key, value in run.values[[*keys, "value"]].itertuples(index=False)
    )
    return [(*key, repr(float(np.mean(values)))) for key, values in found.items()]


def turns(parts: Mapping[str, Run], per_split: bool = False) -> list[list[str]]:
    """Return the rows of turns.csv, each the mean over the splits in which a turn took place."""
    kinds = [COLUMNS[name].kind for name in TABLES["turns.csv"]]
    every = (
        [*row[:2], _person_key(row[2], split, per_split), *row[3:]]
        for split, run in parts.items()
        for row in text_rows(run.folder / "turns.csv")[1:]
    )
    found = by_key((tuple(row[:5]), row) for row in every)
    return [_mean_turn(kinds, rows) for rows in found.values()]


def _mean_turn(kinds: Sequence[type], rows: list[list[str]]) -> list[str]:
    """Return one turn of all splits; a number that one of them lacks is empty."""
    made = []
    for kind, *cells in zip(kinds, *rows, strict=True):
        if len({*cells}) == 1:
            made.append(cells[0])
        elif kind is float:
            made.append("" if "" in cells else repr(float(np.mean([*map(float, cells)]))))
        else:
            # A fault in one split must not be hidden by successes in the others.
            made.append(next(cell for cell in cells if cell != "ok"))
    return made


def blocks(folders: Mapping[str, Path], file: str, per_split: bool = False) -> list[list[str]]:
    """Return the rows of samples.csv or prior_samples.csv of all splits; none if one lacks it."""
    found: list[list[str]] = []
    if not all((folder / file).exists() for folder in folders.values()):
        return found
    who, at = (TABLES[file].index(name) for name in ("person", "block"))
    for split, folder in folders.items():
        for row in text_rows(folder / file)[1:]:
            row[who] = _person_key(row[who], split, per_split)
            # A picture or scene is the same in every split; a block of samples is its split's own.
            known = row[at].startswith((PICTURE, SCENE))
            name = row[at] if known else f"split {split} {row[at]}"
            found.append([*row[:at], name, *row[at + 1 :]])
    return found


def spread_of(parts: Mapping[str, Run]) -> dict[str, Any]:
    """Return every metric's means over people on each split, and their standard deviation."""
    means_by_metric = {
        metric: {
            seed: float(np.mean(with_number(run.scores(metric).values())))
            for seed, run in parts.items()
        }
        for metric in next(iter(parts.values())).estimates
    }
    return {
        metric: {"means": means, "std": float(np.std([*means.values()], ddof=1))}
        for metric, means in means_by_metric.items()
    }


def _write_priors(out: Path, folders: Mapping[int, Path], per_split: bool) -> None:
    found = by_key(
        ((prior, _person_key(person, seed, per_split), metric), value)
        for seed, folder in folders.items()
        for prior, people in read(folder).priors.items()
        for person, metrics in people.items()
        for metric, value in metrics.items()
    )
    rows = [(*key, repr(float(np.mean(values)))) for key, values in found.items()]
    results.write_csv(out / "priors.csv", TABLES["priors.csv"], rows)
    named = {str(seed): folder for seed, folder in folders.items()}
    if judged := blocks(named, PRIORS, per_split):
        results.write_csv(out / PRIORS, TABLES[PRIORS], judged)


def show(study: StudyResults, console: Console) -> None:
    """Print the spread of the headline over splits."""
    table = splits_block(study, study.headline)
    assert table is not None
    table.show(console)
