"""Writers of a run's results, provenance, masks and baselines without learning.

Used in most packages.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.torch import load as load_arrays
from safetensors.torch import save

from vergence.core.federation import Federation
from vergence.core.files import csv_of, saving, write_text, write_whole
from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.round_loop import UPLOAD, measured
from vergence.engine.storage.run_directory import RunDirectory, SolverChoice
from vergence.metrics.fairness import fairness
from vergence.metrics.intervals import SHARE, Bounds, interval, with_number
from vergence.results.layout import TABLES, finite
from vergence.results.read import Run, bounds_of, means_over_seeds, table
from vergence.results.run_files import read_json
from vergence.system.memory import peak_mb


def save_whole(path: Path, *chunks: bytes | memoryview) -> None:
    """Write a file of a run; after an error the old file is still there, unchanged.

    Raises:
        Unsaved: the file cannot be written.
    """
    with saving(path.parent):
        write_whole(path, *chunks)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file; after an error the old file is still there, unchanged."""
    save_whole(path, json.dumps(value, indent=1).encode() + b"\n")


def write_toml(path: Path, table: Mapping[str, Any], above: Sequence[str] = ()) -> None:
    """Write a TOML file; after an error the old file is still there, unchanged.

    The lines in `above` come first, as comments.
    """
    comments = "".join(f"# {line}\n" for line in above)
    save_whole(path, (comments + tomli_w.dumps(dict(table))).encode())


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table of a run; after an error the old file is still there, unchanged."""
    save_whole(path, csv_of([head, *rows]).encode())


def export_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table outside of a run; after an error the old file is unchanged."""
    write_text(path, csv_of([head, *rows]))


def person_means(folder: Path, evaluation: str = "P0") -> dict[str, dict[str, float]]:
    """Return metric -> person -> mean over seeds, from people.csv.

    `evaluation` is the evaluation point; P0 is the model with which a person predicts.
    """
    means = means_over_seeds(table(folder / "people.csv"))
    return {metric: people for (point, metric), people in means.items() if point == evaluation}


def summary(
    people: Mapping[str, float], lower_is_better: bool, bounds: Bounds | None
) -> dict[str, Any]:
    """Return mean, std, worst and the 95 % interval over people; NaN values are left out.

    The interval stays inside `bounds`, the metric's smallest and largest possible value.
    """
    values = with_number(people.values())
    worst = max(values) if lower_is_better else min(values)
    # The number of somebody whose training diverged may be infinite.
    with np.errstate(invalid="ignore"):
        std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    ends = [None if math.isnan(end) else end for end in interval(values, bounds=bounds)]
    return {"mean": float(np.mean(values)), "std": std, "worst": worst, "ci95": ends}


def traffic(folder: Path, rounds: int) -> dict[str, float]:
    """Return mean bytes up and down per client and round, from turns.csv.

    Bytes that are sent once are divided by the number of rounds, too. Examples are a data centre's
    data, and a last download after the rounds.
    """
    turns = table(folder / "turns.csv")
    uploads = turns.verb == UPLOAD
    # A client has a row per tree and turn, and counts once in a round.
    asked = turns[~uploads & (turns["round"] <= rounds)].drop_duplicates(
        ["seed", "round", "client"]
    )
    count = max(len(asked) * max(turns.client[uploads].nunique(), 1), 1)
    sent = turns[["bytes_up", "bytes_down"]].sum() / count
    return {"up": float(sent.bytes_up), "down": float(sent.bytes_down)}


def seconds(folder: Path) -> float:
    """Return the seconds of a run, over all seeds: rounds, and work before and after them."""
    # Every metric of a round has a row, which repeats the seconds.
    spent = table(folder / "rounds.csv").drop_duplicates(["seed", "round", "seconds"])
    return sum(spent.seconds.tolist())


def write_results(
    folder: RunDirectory,
    label: str,
    method: Method,
    task: Task,
    federation: Federation,
    plan: Plan,
    *,
    personal: float | None,
    privacy: Mapping[str, Any] | None = None,
) -> None:
    """Write results.json from the run's own tables.

    Args:
        folder: the finished run.
        label: name of the run in tables.
        method: the method.
        task: the task.
        federation: the people, with their data if these are on this machine.
        plan: the settings.
        personal: mean fraction of the parameters that are personal; None: the method has no masks.
        privacy: the privacy budgets that protections spent.
    """
    bounds = {"score": SHARE, **task.bounds}
    scores = score_blocks(folder.path, task.headline, task.lower_is_better, bounds)
    ends = folder.manifest.get("stopped", {})
    stopped = {seed: {"round": at, "reason": reason} for seed, (at, reason) in ends.items()}
    done = folder.manifest["done"].items()
    best = {seed: entry["best_round"] for seed, entry in done if "best_round" in entry}
    write_json(
        folder.path / "results.json",
        {
            "method": _trained_by(folder.path, method),
            "label": label,
            "task": registry_name(task),
            "federation": federation.name,
            "people": list(measured(federation, plan)),
            "clients": len(federation.clients),
            "seeds": list(plan.seeds),
            "rounds": plan.rounds,
            "headline": task.headline,
            "lower_is_better": sorted(task.lower_is_better),
            "bounds": {name: list(ends) for name, ends in bounds.items()},
            "metrics": scores["metrics"],
            "bytes": traffic(folder.path, plan.rounds),
            "seconds": seconds(folder.path),
            "peak_mb": peak_mb(),
            "solver": {**SolverChoice(*folder.manifest["solving"])._asdict()},
            "harmed_vs_local": None,
            "fairness": scores["fairness"],
            "personal_fraction": personal,
            "input": input_shape(federation),
            "fingerprint": {
                str(seed): folder.manifest["done"][str(seed)]["fingerprint"] for seed in plan.seeds
            },
            **({"stopped": stopped} if stopped else {}),
            **({"best_round": best} if best else {}),
            **({"privacy": privacy} if privacy else {}),
        },
    )


def _trained_by(folder: Path, method: Method) -> str:
    """Return the method's name; of a run by `vergence adapt`, that of the run it came from."""
    about = folder / "provenance.json"
    adapted = read_json(about).get("adapted", {}) if about.is_file() else {}
    return adapted.get("method", registry_name(method))


def score_blocks(
    folder: Path,
    headline: str,
    lower_is_better: Container[str],
    bounds: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """Return the entries of results.json that follow from people.csv alone.

    Harm, which needs another run, is null in them. `write_results`, `write_merged` and
    `write_erased` call this.
    """
    means = person_means(folder)
    return {
        "metrics": {
            m: summary(p, m in lower_is_better, bounds_of(bounds, m)) for m, p in means.items()
        },
        "harmed_vs_local": None,
        "fairness": fairness_block(means[headline], headline in lower_is_better),
    }


def write_merged(
    folder: Path,
    parts: Mapping[str, Run],
    clients: int,
    people: Sequence[str] | None = None,
    splits: Mapping[str, Any] | None = None,
) -> None:
    """Write results.json of a run that merges several runs.

    Studies that merge folds or splits call this. Bytes are means over the runs, seconds are sums.

    Args:
        folder: the merged run, with its tables.
        parts: person left out -> run of that fold; or split seed -> run of that split.
        clients: number of clients in the whole data.
        people: people who were evaluated; None: the people left out.
        splits: metric -> its means over people by split seed, and their standard deviation; None:
            the parts are folds.
    """
    results = [part.results for part in parts.values()]
    first = results[0]
    prints = {
        seed: hashlib.sha256("".join(t["fingerprint"][seed] for t in results).encode()).hexdigest()
        for seed in first["fingerprint"]
    }
    personal = [t["personal_fraction"] for t in results if t["personal_fraction"] is not None]
    write_json(
        folder / "results.json",
        {
            **first,
            "people": list(parts if people is None else people),
            "clients": clients,
            **score_blocks(
                folder, first["headline"], first["lower_is_better"], first.get("bounds", {})
            ),
            "bytes": {
                way: float(np.mean([t["bytes"][way] for t in results])) for way in ("up", "down")
            },
            # People of one fold have one run.
            "seconds": sum({p.folder: p.results["seconds"] for p in parts.values()}.values()),
            "peak_mb": max(t["peak_mb"] for t in results),
            "personal_fraction": float(np.mean(personal)) if personal else None,
            "fingerprint": prints,
            "folds" if splits is None else "split_folders": {
                p: os.path.relpath(part.folder, folder) for p, part in parts.items()
            },
            **({} if splits is None else {"splits": dict(splits)}),
        },
    )


def write_erased(run: Run, person: str, fingerprints: Mapping[str, str]) -> None:
    """Rewrite results.json of a run after a person's rows were removed from its tables."""
    results = run.results
    write_json(
        run.folder / "results.json",
        {
            **results,
            "people": [who for who in results["people"] if who != person],
            **score_blocks(
                run.folder, run.headline, run.lower_is_better, results.get("bounds", {})
            ),
            "fingerprint": dict(fingerprints),
            "erased": results.get("erased", 0) + (person in results["people"]),
        },
    )


def write_index(out: Path, runs: Sequence[Mapping[str, str]], task: Task, name: str) -> None:
    """Write index.json, from which `results.read` finds the runs of a folder.

    Args:
        out: the folder of the runs.
        runs: for each run its `label`, `method` and `dir` (its folder below `out`).
        task: the task that was trained.
        name: the task's name in the experiment.
    """
    write_json(
        out / "index.json",
        {
            "runs": list(runs),
            "task": name,
            "priors": "priors.csv",
            "headline": task.headline,
            "lower_is_better": sorted(task.lower_is_better),
        },
    )


def input_shape(federation: Federation) -> dict[str, int] | None:
    """Return the number of frames per window, and their height and width in pixels.

    `write_results` records them. None: the data have no frames.
    """
    train = next(iter(federation.people.values())).train
    if "frames" not in train.banks:
        return None
    bank = train.banks["frames"]
    height, width = bank.rows.shape[1:3]
    return {"frames": train.columns[bank.by].shape[1], "height": height, "width": width}


def has_harm(folder: Path) -> bool:
    """Return whether a run has been compared with local-only training."""
    return read_json(folder / "results.json").get("harmed_vs_local") is not None


def fairness_block(
    people: Mapping[str, float], lower_is_better: bool, alone: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the entry `fairness` of results.json; without `alone` its numbers of harm are null.

    Args:
        people: person -> headline metric.
        lower_is_better: whether less is better.
        alone: person -> headline metric of local-only training.
    """
    block = fairness(people, lower_is_better, alone)
    return finite({**asdict(block), "spread": block.spread})


def write_harm(folder: Path, local: Path) -> None:
    """Add to a run's results.json how many people it harms compared with local-only training.

    Args:
        folder: the run directory.
        local: the run directory of local-only training.
    """
    results = read_json(folder / "results.json")
    metric = results["headline"]
    mine, alone = person_means(folder)[metric], person_means(local)[metric]
    block = fairness_block(mine, metric in results["lower_is_better"], alone)
    results |= {"harmed_vs_local": block["harmed"], "fairness": block}
    write_json(folder / "results.json", results)


def write_masks(folder: Path, method: Method, seed: int, clients: Mapping[str, Any]) -> None:
    """Add one seed's masks to masks.safetensors: one packed mask per person.

    Nothing is written for methods without masks. `clients` maps people to their states.
    """
    every = {c: method.personal(state) for c, state in clients.items()}
    masks = {c: m for c, m in every.items() if m is not None}
    if not masks:
        return
    path = folder / "masks.safetensors"
    layout = next(iter(masks.values())).layout
    # Other seeds of the run have written their masks to this file already.
    arrays = load_arrays(path.read_bytes()) if path.exists() else {}
    arrays |= {f"{seed}/{c}": m.packed() for c, m in masks.items()}
    about = {
        "n": str(layout.n),
        "names": json.dumps(layout.names),
        "shapes": json.dumps(layout.shapes),
    }
    save_whole(path, save(arrays, about))


def provenance(
    federation: Federation, data_sha: str, code_sha: str, files: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the content of provenance.json: code, data, environment and command of a run.

    Args:
        federation: the data.
        data_sha: digest of the data.
        code_sha: digest of this package's code.
        files: path of a file of the user's code -> its digest.
    """
    # Relative names of code are looked for from this directory when the run is read.
    relative = any(name.endswith(".py") and not Path(name).is_absolute() for name in files or ())
    libraries = ("torch", "numpy", "scipy", "safetensors", "av")
    return {
        "code": {
            "version": version("vergence"),
            "sha256": code_sha,
            **({"files": dict(files)} if files else {}),
            **({"directory": str(Path.cwd())} if relative else {}),
        },
        "data": {"name": federation.name, "sha256": data_sha, **federation.about},
        "environment": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processor": platform.machine(),
            **{name: version(name) for name in libraries},
        },
        "command": ["vergence", *sys.argv[1:]],
    }


def write_priors(path: Path, task: Task, federation: Federation) -> None:
    """Write priors.csv: the scores of baselines without learning, for each person."""
    # A user's metrics may change the tensors that they get, so that they get copies.
    if federation.recipe is None:
        own = {p: replace(s, test=s.test.copy()) for p, s in federation.people.items()}
        federation = replace(federation, people=own)
    rows = (
        (prior, person, metric, repr(float(value)))
        for prior, people in task.priors(federation).items()
        for person, metrics in people.items()
        for metric, value in metrics.items()
    )
    write_csv(path, TABLES["priors.csv"], rows)
