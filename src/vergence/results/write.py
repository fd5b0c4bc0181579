"""Writers of a run's results, provenance, masks and priors beside its tables."""

from __future__ import annotations

import csv
import json
import math
import platform
import resource
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.torch import load as load_arrays
from safetensors.torch import save

from vergence.core.federation import Federation
from vergence.core.files import csv_of, saving, write_whole
from vergence.core.method import Method
from vergence.core.naming import called
from vergence.core.task import Task
from vergence.engine.round_loop import UPLOAD
from vergence.engine.storage.run_directory import SolverChoice
from vergence.metrics.fairness import fairness
from vergence.metrics.intervals import interval
from vergence.results.run_files import read_json


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    with saving(path.parent):
        write_whole(path, json.dumps(value, indent=1).encode() + b"\n")


def write_toml(path: Path, table: Mapping[str, Any], above: Sequence[str] = ()) -> None:
    """Write TOML whole or not at all; `above` are lines of comment that it begins with."""
    said = "".join(f"# {line}\n" for line in above)
    with saving(path.parent):
        write_whole(path, (said + tomli_w.dumps(dict(table))).encode())


def person_means(folder: Path, evaluation: str = "P0") -> dict[str, dict[str, float]]:
    """Return metric -> person -> mean over seeds, from people.csv."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (folder / "people.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["evaluation"] == evaluation:
                values[row["metric"]][row["person"]].append(float(row["value"]))
    return {m: {p: float(np.mean(v)) for p, v in people.items()} for m, people in values.items()}


def summary(people: Mapping[str, float], lower_is_better: bool) -> dict[str, Any]:
    """Return mean, std, worst and the 95 % interval over people."""
    values = list(people.values())
    worst = max(values) if lower_is_better else min(values)
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    ends = [None if math.isnan(end) else end for end in interval(values)]
    return {"mean": float(np.mean(values)), "std": std, "worst": worst, "ci95": ends}


def traffic(folder: Path, rounds: int) -> dict[str, float]:
    """Return mean bytes up and down per client and round, from turns.csv.

    What is sent once (a data centre's data, a last download after the rounds) is spread over them.
    """
    up = down = 0
    turns: set[tuple[str, ...]] = set()
    uploads: set[tuple[str, ...]] = set()
    with (folder / "turns.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            up, down = up + int(row["bytes_up"]), down + int(row["bytes_down"])
            if row["verb"] == UPLOAD:
                uploads.add((row["seed"], row["client"]))
            elif int(row["round"]) <= rounds:
                turns.add((row["seed"], row["round"], row["client"]))
    people = len({client for _, client in uploads})
    count = max(len(turns) * max(people, 1), 1)
    return {"up": up / count, "down": down / count}


def seconds(folder: Path) -> float:
    """Return the seconds of rounds, and before and after them, from rounds.csv."""
    spent: dict[tuple[str, str, str], float] = {}
    with (folder / "rounds.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            spent[row["seed"], row["round"], row["seconds"]] = float(row["seconds"])
    return sum(spent.values())


def write_results(
    folder: Path,
    label: str,
    name: str,
    task: Task,
    federation: Federation,
    people: Sequence[str],
    solving: SolverChoice,
    fingerprints: Mapping[int, str],
    personal: float | None,
    rounds: int,
    privacy: Mapping[str, Any] | None = None,
) -> None:
    """Write results.json from the run's own tables."""
    means = person_means(folder)
    peak = sum(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    write_json(
        folder / "results.json",
        {
            "method": name,
            "label": label,
            "task": called(task),
            "federation": federation.name,
            "people": list(people),
            "clients": len(federation.clients),
            "seeds": list(fingerprints),
            "rounds": rounds,
            "headline": task.headline,
            "lower_is_better": sorted(task.lower_is_better),
            "metrics": {m: summary(p, m in task.lower_is_better) for m, p in means.items()},
            "bytes": traffic(folder, rounds),
            "seconds": seconds(folder),
            "peak_mb": peak / 1024,
            "solver": {**solving._asdict()},
            "harmed_vs_local": None,
            "fairness": treatment(means[task.headline], task.headline in task.lower_is_better),
            "personal_fraction": personal,
            "input": input_shape(federation),
            "fingerprint": {str(seed): sha for seed, sha in fingerprints.items()},
            **({"privacy": privacy} if privacy else {}),
        },
    )


def input_shape(federation: Federation) -> dict[str, int] | None:
    """Return frames per window and their size, where the data is video or images."""
    test = next(iter(federation.people.values())).test
    if "frames" not in test.banks:
        return None
    bank = test.banks["frames"]
    height, width = bank.rows.shape[1:3]
    return {"frames": test.columns[bank.by].shape[1], "height": height, "width": width}


def judged(folder: Path) -> bool:
    """True if a run has been compared with local-only."""
    return read_json(folder / "results.json").get("harmed_vs_local") is not None


def treatment(
    people: Mapping[str, float], lower_is_better: bool, alone: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the fairness block of person -> headline; without `alone`, harm is null."""
    found = fairness(people, lower_is_better, alone)
    told = {**asdict(found), "spread": found.spread}
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in told.items()
    }


def write_harm(folder: Path, local: Path) -> None:
    """Add whom a run makes worse off than alone to its results.json."""
    results = read_json(folder / "results.json")
    metric = results["headline"]
    mine, alone = person_means(folder)[metric], person_means(local)[metric]
    block = treatment(mine, metric in results["lower_is_better"], alone)
    results |= {"harmed_vs_local": block["harmed"], "fairness": block}
    write_json(folder / "results.json", results)


def write_masks(folder: Path, method: Method, seed: int, clients: Mapping[str, Any]) -> None:
    """Write masks.safetensors: the packed mask of every seed and person."""
    masks = {c: method.personal(state) for c, state in clients.items()}
    found = {c: m for c, m in masks.items() if m is not None}
    if not found:
        return
    path = folder / "masks.safetensors"
    layout = next(iter(found.values())).layout
    kept = load_arrays(path.read_bytes()) if path.exists() else {}
    kept |= {f"{seed}/{c}": m.packed() for c, m in found.items()}
    about = {
        "n": str(layout.n),
        "names": json.dumps(layout.names),
        "shapes": json.dumps(layout.shapes),
    }
    with saving(folder):
        write_whole(path, save(kept, about))


def provenance(
    federation: Federation, data_sha: str, code_sha: str, files: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything needed to say what a run ran on; `files` is code of the user's, by place."""
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
    """Write priors.csv: the predictors that need no learning, per person."""
    rows: list[tuple[str, ...]] = [("prior", "person", "metric", "value")]
    for prior, people in task.priors(federation).items():
        for person, metrics in people.items():
            rows += [(prior, person, m, repr(float(v))) for m, v in metrics.items()]
    with saving(path.parent):
        write_whole(path, csv_of(rows).encode())
