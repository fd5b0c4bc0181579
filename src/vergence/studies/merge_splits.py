"""Runs on several splits of the same people, merged into one run directory per method.

A person counts once: their value is the mean over splits. Docs: docs/protocols.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from vergence.errors import StateError
from vergence.experiment.schema import Experiment
from vergence.experiment.validation import Loaded
from vergence.results import write as results
from vergence.results.harm import PRIORS, SAMPLES
from vergence.results.layout import TABLES
from vergence.results.read import Run, StudyResults, read, text_rows
from vergence.studies import merge_folds
from vergence.studies.comparison_tables import splits_block


def merge(
    experiment: Experiment, loaded: Mapping[int, Loaded], out: Path, folders: Mapping[int, Path]
) -> None:
    """Write one run directory per method: of everybody the mean over splits, seed by seed.

    Args:
        experiment: what was run on each split.
        loaded: split seed -> data.
        out: the folder of the merged directories.
        folders: split seed -> folder of its run.

    Raises:
        StateError: the splits were run by different code, or others are merged there.
    """
    first = next(iter(loaded.values()))
    for label in experiment.methods:
        folder = out / label
        if (folder / "results.json").exists():
            _check_splits(folder, list(map(str, folders)))
            continue
        parts = {str(seed): read(path / label).runs[0] for seed, path in folders.items()}
        folder.mkdir(parents=True, exist_ok=True)
        tables = {"people.csv": averaged(parts), "turns.csv": turns(parts), "rounds.csv": []}
        if scores := blocks({seed: run.folder for seed, run in parts.items()}, SAMPLES):
            tables[SAMPLES] = scores
        for name, found in tables.items():
            results.write_csv(folder / name, TABLES[name], found)
        table = experiment.one(label)
        results.write_toml(folder / "config.toml", table)
        code = merge_folds.code_of(parts)
        sha = hashlib.sha256("".join(each.sha for each in loaded.values()).encode()).hexdigest()
        about = results.provenance(first.raw, sha, code, experiment.files(table))
        names = ", ".join(parts)
        own = about["data"].get("split", "unknown")
        about["data"]["split"] = f"mean over split seeds {names}; the first one: {own}"
        results.write_json(folder / "provenance.json", about)
        people = next(iter(parts.values())).people  # the same on each split
        clients = len(first.raw.clients)
        results.write_merged(folder, parts, clients, people, spread_of(parts))
    labels = list(experiment.methods)
    alone = next((x for x in labels if read(out / x).runs[0].method == "local_only"), None)
    for label in labels if alone else ():
        if not results.judged(out / label):
            results.write_harm(out / label, out / str(alone))
    merge_folds.index(experiment, first, out)
    _write_priors(out, {str(seed): folder for seed, folder in folders.items()})


def _check_splits(folder: Path, seeds: list[str]) -> None:
    there = list(read(folder).runs[0].results.get("split_folders", {}))
    if there != seeds:
        raise StateError(
            f"{folder} is merged over the split seeds {', '.join(there)}, and {', '.join(seeds)} "
            "are asked for; give those again, or another --out"
        )


def averaged(parts: Mapping[str, Run]) -> list[tuple[Any, ...]]:
    """Rows of people.csv, each the mean over splits."""
    keys = ["seed", "person", "evaluation", "metric"]
    found: dict[tuple[Any, ...], list[float]] = {}
    for run in parts.values():
        for *key, value in run.values[[*keys, "value"]].itertuples(index=False):
            found.setdefault(tuple(key), []).append(value)
    return [(*key, repr(float(np.mean(values)))) for key, values in found.items()]


def blocks(folders: Mapping[str, Path], file: str) -> list[list[str]]:
    """Rows of samples.csv or prior_samples.csv of all splits, none where a split has no such file.

    A picture is the same one in every split, any other block is one of its split alone.
    """
    found: list[list[str]] = []
    if not all((folder / file).exists() for folder in folders.values()):
        return found
    at = TABLES[file].index("block")
    for split, folder in folders.items():
        for row in text_rows(folder / file)[1:]:
            name = row[at] if row[at].startswith("picture") else f"split {split} {row[at]}"
            found.append([*row[:at], name, *row[at + 1 :]])
    return found


def turns(parts: Mapping[str, Run]) -> list[list[str]]:
    """Rows of turns.csv of the first split, where nobody's turns are there twice."""
    return text_rows(next(iter(parts.values())).folder / "turns.csv")[1:]


def spread_of(parts: Mapping[str, Run]) -> dict[str, Any]:
    """Of every metric the mean over people on each split, and their standard deviation."""
    told = {
        metric: {
            seed: float(np.mean([*run.scores(metric).values()])) for seed, run in parts.items()
        }
        for metric in next(iter(parts.values())).estimates
    }
    return {
        metric: {"means": means, "std": float(np.std([*means.values()], ddof=1))}
        for metric, means in told.items()
    }


def _write_priors(out: Path, folders: Mapping[str, Path]) -> None:
    found: dict[tuple[str, str, str], list[float]] = {}
    for folder in folders.values():
        for prior, people in read(folder).priors.items():
            for person, metrics in people.items():
                for metric, value in metrics.items():
                    found.setdefault((prior, person, metric), []).append(value)
    rows = [(*key, repr(float(np.mean(values)))) for key, values in found.items()]
    results.write_csv(out / "priors.csv", TABLES["priors.csv"], rows)
    if scores := blocks(folders, PRIORS):
        results.write_csv(out / PRIORS, TABLES[PRIORS], scores)


def show(study: StudyResults, console: Console) -> None:
    """Print what splits change of the headline."""
    table = splits_block(study, study.headline)
    assert table is not None
    table.show(console)
