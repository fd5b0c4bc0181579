"""`model.start`: a network starts from the common model of another run.

The model is read off a run's final state, or off the copy that a run which started from it keeps:
so that run can be read, verified and resumed without the other. Docs: docs/reference/runs.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vergence.core.federation import Dataset
from vergence.core.files import saving, write_whole
from vergence.core.serialization import digest, pack, unpack_file
from vergence.core.task import StartingModel
from vergence.engine.storage.run_directory import load_progress, read_manifest
from vergence.errors import ConfigError, StateError
from vergence.experiment import checksums
from vergence.experiment.trust import in_run_folder
from vergence.results.read import read as read_results
from vergence.results.read import table

FILE = "start.safetensors"
"""A run's copy of the model that it started from."""
Load = Callable[[Path], Any]
"""Reads an experiment; `schema`, which has it, reads starting models, and so is not named here."""


def starting_model(run: Any, home: Path | None, load: Load) -> StartingModel:
    """The model that `model.start = run` names, in an experiment of the folder `home`.

    Args:
        run: the run directory of one method.
        home: where the experiment lies; None: nowhere.
        load: reads the experiment of a run.

    Raises:
        ConfigError: there is no such run, or its method shares no whole model.
        StateError: a file of it is damaged.
    """
    if not isinstance(run, str) or not run:
        raise ConfigError(f"model.start must be the folder of a run, as text; got {run!r}")
    for folder in () if home is None else (home, home.parent):
        if in_run_folder(folder / "config.toml") and (folder / FILE).is_file():
            return _copy_in_run(folder / FILE, run)
    if not (Path(run) / "results.json").is_file():
        raise ConfigError(
            f"model.start: there is no finished run of one method at '{run}'; give its folder, as "
            "runs/NAME/fedavg"
        )
    return common_model(run, load(Path(run) / "config.toml"))


def common_model(run: str, experiment: Any) -> StartingModel:
    """The model that the first seed of a finished run, of this experiment, sends somebody new.

    Raises:
        ConfigError: its method shares no whole model, or somebody was erased from it.
        StateError: a file of it is damaged.
    """
    checksums.check(Path(run))
    told = read_results(run).runs[0].results
    if parts := [*(told.get("split_folders") or told.get("folds") or {}).values()]:
        raise ConfigError(
            f"model.start: {run} is merged over runs and has no model of its own; name one of "
            f"them, as {os.path.normpath(Path(run, parts[0]))}"
        )
    (method,) = experiment.methods.values()
    seed, rounds = experiment.plan.seeds[0], experiment.plan.rounds
    task = experiment.task(seed)
    files = read_manifest(Path(run))["done"][str(seed)]["files"]
    server = load_progress(Path(run), files, rounds, method.state_records(task)).server
    sent = method.predicting(server, "newcomer").get("model")
    if sent is None or sent.layout != task.init().layout:
        raise ConfigError(
            f"model.start: the method of {run} shares no whole model that another run could start "
            "from; name a run of fedavg, or of another method with one model for everybody"
        )
    if told.get("erased"):
        raise ConfigError(
            f"model.start: somebody was erased from {run}, and its model has still learned from "
            "them; name the run that `vergence privacy forget` made then"
        )
    # Not results.json: it names who was measured.
    took_part = dict.fromkeys(table(Path(run) / "turns.csv", "client").client)
    earlier = experiment.model.start
    before = () if earlier is None else earlier.learned_from
    sha, split = digest(pack(sent)), split_seed_of(experiment.dataset)
    return StartingModel(run, sha, told["federation"], tuple(took_part), sent, split, before)


def _copy_in_run(path: Path, run: str) -> StartingModel:
    """A run's own copy of the model of the run that its experiment names.

    Raises:
        StateError: it is damaged, or of another run.
    """
    start = unpack_file(path, StartingModel)
    if digest(pack(start.params)) != start.sha:
        raise StateError(f"{path} is damaged: its parameters are not those of its SHA-256")
    if start.run != run:
        raise StateError(
            f"model.start: {path.parent} was begun with other start: {start.run}, and '{run}' is "
            "named; start from it by an experiment file outside of this folder"
        )
    return start


def write_copy(start: StartingModel | None, folder: Path) -> None:
    """Leave a copy of the model that a run started from beside its config."""
    if start is not None:
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, pack(start))


def provenance_entry(start: StartingModel | None) -> dict[str, Mapping[str, Any]]:
    """Entry of provenance.json about the model that a run started from."""
    if start is None:
        return {}
    about = {"run": start.run, "sha256": start.sha, "data": start.data}
    return {"start": {**about, "people": len(start.people)}}


def split_seed_of(dataset: Dataset) -> int | None:
    """The seed of a data set's split; None where it has one split, or is loaded already."""
    return getattr(dataset, "split_seed", None)


def refuse_other_split(
    start: StartingModel | None, data: str, people: Iterable[str], dataset: Dataset
) -> None:
    """Refuse a starting model that was trained on test samples of the same people.

    Raises:
        ConfigError: names the splits.
    """
    here = split_seed_of(dataset)
    if start is None or None in (here, start.split) or here == start.split:
        return
    refuse_overlap(
        start,
        data,
        people,
        f"is also in this run, by another split (split_seed {start.split}, here {here}): test "
        "samples of this run were in its training; take its split, or start from a run on others",
    )


def people_learned_from(start: StartingModel | None, data: str, people: Iterable[str]) -> list[str]:
    """Those of some people that a starting model has learned from, itself or by its own start."""
    seen = () if start is None else start.learned_from
    taught = {who for name, those in seen if name == data for who in those}
    return sorted(taught.intersection(people))


def refuse_overlap(
    start: StartingModel | None,
    data: str,
    people: Iterable[str],
    why: str = "would be no stranger; start from a run on other people",
) -> None:
    """Refuse a starting model that was trained on people who must not be in it.

    Raises:
        ConfigError: names one of them, and says why.
    """
    if start is not None and (found := people_learned_from(start, data, people)):
        raise ConfigError(
            f"model.start: {start.run} was trained on '{found[0]}' of {data}, who {why}"
        )
