"""Runs read back: their states, checked by digest, for predict, verify and explain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.app import seals
from vergence.app.config import Experiment, load
from vergence.app.runs import read
from vergence.core.method import Method
from vergence.core.state import digest, pack
from vergence.core.task import Task
from vergence.engines.conduct import fingerprint
from vergence.engines.shelf import Registry, Shelf
from vergence.engines.store import Solving, load_progress, read_manifest
from vergence.errors import StateError


@dataclass(frozen=True)
class Saved:
    """One seed of a finished run: the experiment, method, task and final states."""

    folder: Path
    experiment: Experiment
    method: Method
    task: Task
    server: Any
    clients: Registry
    fingerprint: str
    solving: Solving


def one_run(folder: Path) -> Experiment:
    """Return the experiment of a run directory of one method.

    Raises:
        StateError: the folder is none, or holds several methods.
    """
    config = folder / "config.toml"
    if not config.is_file():
        raise StateError(f"{folder} is no run directory (no config.toml)")
    experiment = load(config)
    if experiment.several:
        labels = ", ".join(f"{folder}/{label}" for label in experiment.methods)
        raise StateError(f"{folder} holds several methods; name one of {labels}")
    return experiment


def read_saved(folder: Path, seed: int | None = None) -> Saved:
    """Read the final states of one seed (default: the first)."""
    experiment = one_run(folder)
    (method,) = experiment.methods.values()
    manifest = read_manifest(folder)
    seed = experiment.plan.seeds[0] if seed is None else seed
    if str(seed) not in manifest["done"]:
        done = ", ".join(manifest["done"]) or "none"
        raise StateError(f"{folder}: seed {seed} is not finished (finished: {done})")
    task = experiment.task(seed)
    about = manifest["done"][str(seed)]
    records = method.state_records(task)
    final = load_progress(folder, about["files"], experiment.plan.rounds, records)
    clients = Registry(Shelf(folder / "state", seed, records))
    clients.restore(final.filed)
    solving = Solving(*manifest["solving"])
    return Saved(
        folder, experiment, method, task, final.server, clients, about["fingerprint"], solving
    )


def verify(folder: Path) -> list[tuple[int, str]]:
    """Recompute every fingerprint of a finished run from its state files, and check its tables.

    Returns:
        Seed and fingerprint of each, equal to those in results.json.

    Raises:
        StateError: a byte differs somewhere; names the file or the seed.
    """
    seals.check(folder)
    experiment = one_run(folder)
    results = read(folder).runs[0].results
    found = []
    for seed in experiment.plan.seeds:
        saved = read_saved(folder, seed)
        sha = fingerprint(digest(pack(saved.server)), saved.clients.sha256(), saved.solving)
        recorded = results["fingerprint"][str(seed)]
        if sha != recorded:
            raise StateError(
                f"{folder}: the states of seed {seed} give fingerprint {sha[:12]}..., "
                f"results.json says {recorded[:12]}..."
            )
        found.append((seed, sha))
    return found
