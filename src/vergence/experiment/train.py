"""Training from Python: the same runs, folders and bits as of `vergence run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vergence.core.federation import Dataset, Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.errors import ConfigError, StateError
from vergence.experiment.from_objects import experiment_from, plan_from, with_local
from vergence.experiment.registry import bind
from vergence.experiment.run import RoundCallback, RoundReport, folders_of, resume, start
from vergence.experiment.schema import (
    Experiment,
    build_dataset,
    build_method,
    build_plan,
    build_task,
    load,
    method_table,
)
from vergence.experiment.trained_run import ScratchFolder, TrainedRun
from vergence.privacy.config import Privacy
from vergence.results.run_files import read_config

OnRound = Callable[[RoundReport], object]


def train(
    method: Method,
    task: Task,
    people: Dataset | Federation,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    local: LocalTraining | None = None,
    participation: Participation | None = None,
    privacy: Privacy | Mapping[str, Any] | None = None,
    evaluate_every: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    plan: Plan | None = None,
    label: str | None = None,
    root: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    progress: bool = True,
) -> TrainedRun:
    """A finished run of one method on one task: trained over people, everybody evaluated.

    Args:
        method: one of `vergence.methods`, or your own.
        task: one of `vergence.tasks` around a network, or what `task_from` gives.
        people: a data set of `vergence.data`, or a `Federation` of your own data.
        rounds: of training (default 20).
        seed: of everything that is drawn (default 0).
        seeds: several of them, in one run.
        local: how clients train between two messages.
        participation: who takes part in which round.
        privacy: a `Privacy`, or the table `[privacy]` of an experiment file as a mapping.
        evaluate_every: rounds between evaluations (default 5); 0: at the end only.
        workers: processes; default one per core. The bits are the same with any number.
        device: "cpu", "cuda" or "auto".
        plan: all other settings; what is given beside it wins.
        label: what tables call the run; default the method's name.
        root: the folder of a data set's files.
        out: where the run directory is kept; default a temporary one, which goes with the result.
        resume: go on with the run in `out`, where it was interrupted; begin it where there is none.
        on_round: called after every round with a `RoundReport`.
        progress: whether a bar is drawn, in terminals and notebooks.

    Raises:
        ConfigError: an argument cannot be used; says which, and what to write instead.
        DataError: the data cannot be used; names person, column and row.
        StateError: `out` holds a run already, or another one than is to be resumed.
        PartialRun: interrupted; what is done is kept in `out`.
    """
    who = {"presence": participation, "privacy": privacy}
    how = {"evaluate_every": evaluate_every, "workers": workers, "device": device}
    chosen = plan_from(plan, rounds=rounds, seeds=_seeds(seed, seeds), **who, **how)
    made = experiment_from(with_local(method, local), task, people, chosen, label, root)
    return _run(made, out, resume, on_round, progress)[next(iter(made.methods))]


def _seeds(seed: int | None, seeds: Sequence[int] | None) -> list[int] | None:
    if seed is not None and seeds is not None:
        raise ConfigError("train: give seed or seeds, not both")
    return list(seeds) if seeds is not None else None if seed is None else [seed]


def load_experiment(
    path: Path | str, sets: Sequence[str] = (), trust_code: bool = False
) -> Experiment:
    """Read and check an experiment file, or that of a run directory.

    Args:
        path: the file, or the name of an experiment of the package, such as "quickstart".
        sets: `"a.b=c"` overrides a value of the file.
        trust_code: run the Python code that it names; read it first.

    Raises:
        ConfigError: names the key or value, what is allowed, and the file.
    """
    return load(path, sets, trust_code)


def run_experiment(
    experiment: Experiment | Path | str,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    progress: bool = True,
) -> dict[str, TrainedRun]:
    """Run every method of an experiment, as `vergence run` does.

    Args:
        experiment: what `load_experiment` gives, or a file.
        out: where the run directories are kept; default a temporary one, which goes with the runs.
        resume: go on with the run in `out`, where it was interrupted; begin it where there is none.
        on_round: called after every round with a `RoundReport`.
        progress: whether a bar is drawn.

    Returns:
        The finished runs, by label.

    Raises:
        ConfigError: the experiment cannot be used.
        StateError: `out` holds a run already, or another one than is to be resumed.
        PartialRun: interrupted; what is done is kept in `out`.
    """
    found = experiment if isinstance(experiment, Experiment) else load_experiment(experiment)
    return _run(found, out, resume, on_round, progress)


def _run(
    experiment: Experiment,
    out: Path | str | None,
    going_on: bool,
    on_round: OnRound | None,
    progress: bool,
) -> dict[str, TrainedRun]:
    if going_on and out is None:
        raise ConfigError("resume=True needs out, the folder of the run to go on with")
    keeper = ScratchFolder() if out is None else None
    folder = keeper.path if keeper else Path(str(out))
    kept = "nothing of it is kept: give out=FOLDER to go on later by resume=True"
    if keeper is None:
        kept = f"the rounds done are kept in {folder}: go on by the same call with resume=True"
    taken = (
        f"go on with it by resume=True, open it by vergence.open_run({str(folder)!r}), or choose "
        "another out"
    )
    follower = RoundCallback(on_round, progress, lambda _: kept, lambda _: taken)
    begun = going_on and (folder / "config.toml").exists()
    return run_into(folder, experiment, follower, resumed=begun, keeper=keeper)


def run_into(
    folder: Path,
    experiment: Experiment,
    follower: RoundCallback = RoundCallback(),  # noqa: B008
    *,
    resumed: bool = False,
    keeper: ScratchFolder | None = None,
) -> dict[str, TrainedRun]:
    """Run every method of an experiment into a folder, or go on with what is there.

    Args:
        folder: where the run directories go.
        experiment: what is run.
        follower: who is told of rounds, and in which words of an interruption.
        resumed: whether the folder holds its run already.
        keeper: removes the folder when the runs are gone.

    Returns:
        The finished runs, by label.
    """
    # The engine takes one thread and draws from torch's generator; a notebook goes on with its own.
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            loaded = (resume if resumed else start)(experiment, folder, follower)
    finally:
        torch.set_num_threads(threads)
    return {
        label: TrainedRun(path, experiment.alone(label), loaded, keeper)
        for label, path in folders_of(experiment, folder).items()
    }


def open_run(
    path: Path | str,
    *,
    task: Task | None = None,
    people: Dataset | Federation | None = None,
    method: Method | None = None,
) -> TrainedRun:
    """A finished run, read from its directory.

    Scores need nothing else. For models of a run whose task, method or people are Python objects,
    which no file can build again, give these.

    Args:
        path: the run directory of one method.
        task: the task that it was trained with.
        people: the people that it was trained on.
        method: the method, where it is one of your own.

    Raises:
        StateError: there is no finished run of one method, or it was made by other objects.
    """
    found = TrainedRun(path)
    if task is None and people is None and method is None:
        return found
    return TrainedRun(path, _rebuilt(found, task, people, method))


def _rebuilt(
    run: TrainedRun, task: Task | None, people: Dataset | Federation | None, method: Method | None
) -> Experiment:
    """The experiment of a run that was made by these objects.

    Raises:
        ConfigError: one of them is lacking.
        StateError: the run was made by others.
    """
    table = read_config(run.folder / "config.toml")
    python = ["task" if part == "model" else part for part in table.get("python", [])]
    given = {"task": task, "federation": people, "method": method}
    if lacking := sorted({part for part in python if given[part] is None}):
        names = ", ".join("people" if part == "federation" else part for part in lacking)
        raise ConfigError(f"{run.folder}: its {names} came from Python: give open_run that too")
    if method is None:
        _, method = build_method(method_table(table["method"]), table.get("local", {}))
    else:
        method = with_local(method, bind(LocalTraining, table.get("local", {}), "local"))
    if task is None:
        task = build_task(table)
    data, root = (people, None) if people else build_dataset(table["federation"], "federation")
    made = experiment_from(method, task, data, build_plan(table, run.folder), run.label, root)
    for part in ("task", "model", "federation", "method"):
        if made.table[part] != table[part]:
            raise StateError(
                f"{run.folder} was made by another {part}: its config.toml says {table[part]}, and "
                f"what was given is {made.table[part]}"
            )
    return made
