"""Runs read back: their states, checked by digest, for predict, verify and explain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.core.method import Method
from vergence.core.serialization import digest, pack, quick_digest
from vergence.core.task import Task
from vergence.engine.round_loop import fingerprint
from vergence.engine.storage.client_states import ClientStateIndex, ClientStateStore
from vergence.engine.storage.run_directory import (
    SolverChoice,
    filed_in,
    load_progress,
    read_manifest,
    read_whole,
)
from vergence.errors import StateError
from vergence.experiment import checksums
from vergence.experiment.schema import Experiment, load
from vergence.results.read import read


@dataclass(frozen=True)
class SavedRun:
    """One seed of a finished run: the experiment, method, task and final states."""

    folder: Path
    experiment: Experiment
    method: Method
    task: Task
    server: Any
    clients: ClientStateIndex
    fingerprint: str
    solving: SolverChoice


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


def read_saved(
    folder: Path, seed: int | None = None, experiment: Experiment | None = None
) -> SavedRun:
    """Read the final states of one seed (default: the first).

    `experiment` is the run's, of one method; default: as its config.toml says.
    """
    experiment = experiment or one_run(folder)
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
    clients = ClientStateIndex(ClientStateStore(folder / "state", seed, records))
    clients.restore(final.filed)
    solving = SolverChoice(*manifest["solving"])
    return SavedRun(
        folder, experiment, method, task, final.server, clients, about["fingerprint"], solving
    )


def verify_digests(folder: Path) -> list[int]:
    """Compare every file of a finished run with its digest, which needs none of its code.

    Returns:
        The seeds.

    Raises:
        StateError: a byte differs somewhere, or a fingerprint is not the checkpoint's.
    """
    checksums.check(folder)
    manifest, results = read_manifest(folder), read(folder).runs[0].results
    for seed in results["seeds"]:
        about = manifest["done"].get(str(seed))
        if about is None:
            raise StateError(f"{folder}: seed {seed} is not finished")
        for file, sha in (about["files"][name] for name in about["files"] if name != "clients"):
            read_whole(folder, file, sha)
        for entry in filed_in(folder, about["files"]).values():
            read_whole(folder, entry.file, entry.xxh3, quick_digest)
        if about["fingerprint"] != results["fingerprint"].get(str(seed)):
            raise StateError(
                f"{folder}: seed {seed} has one fingerprint in results.json, and "
                "another in its checkpoint; run it again"
            )
    return results["seeds"]


def verify(folder: Path, experiment: Experiment | None = None) -> list[tuple[int, str]]:
    """Recompute every fingerprint of a finished run from its state files, and check its tables.

    `experiment` is the run's; default: as its config.toml says.

    Returns:
        Seed and fingerprint of each, equal to those in results.json.

    Raises:
        StateError: a byte differs somewhere; names the file or the seed.
    """
    checksums.check(folder)
    experiment = experiment or one_run(folder)
    results = read(folder).runs[0].results
    found = []
    for seed in experiment.plan.seeds:
        saved = read_saved(folder, seed, experiment)
        sha = fingerprint(digest(pack(saved.server)), saved.clients.sha256(), saved.solving)
        recorded = results["fingerprint"][str(seed)]
        if sha != recorded:
            raise StateError(
                f"{folder}: the states of seed {seed} give fingerprint {sha[:12]}..., "
                f"results.json says {recorded[:12]}..."
            )
        found.append((seed, sha))
    return found
