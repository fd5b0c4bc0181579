"""Training from Python, with the same runs, folders and bits as `vergence run`.

Used by `cli.runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vergence.api.finished_run import FinishedRun, ScratchFolder
from vergence.api.from_objects import (
    check_kinds,
    default_label,
    experiment_from,
    plan_for,
    with_local,
)
from vergence.api.more_rounds import raise_rounds
from vergence.api.reopened import rebuild_experiment
from vergence.console import note
from vergence.core.federation import Dataset, Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.options import check_call, named_arguments
from vergence.core.task import Task
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.errors import ConfigError
from vergence.experiment.run import (
    RoundCallback,
    RoundReport,
    check_vacant,
    folders_of,
    resume,
    start,
)
from vergence.experiment.schema import Experiment, load
from vergence.experiment.trust import (
    trust_for_opening,
    trust_with_code,
    trust_with_training_hint,
    under,
)
from vergence.privacy.config import Privacy
from vergence.results.baselines import constant_notes
from vergence.results.divergence import early_end_notes
from vergence.results.read import read
from vergence.studies import split_runs

OnRound = Callable[[RoundReport], object]


@named_arguments(
    local=LocalTraining,
    participation=Participation,
    early_stopping=EarlyStopping,
    privacy=Privacy,
    plan=Plan,
)
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
    early_stopping: EarlyStopping | None = None,
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
) -> FinishedRun:
    """Train one method on one task over people, evaluate all of them, and return the finished run.

    Args:
        method: a method of `vergence.methods`, or your own.
        task: a task of `vergence.tasks` around a network, or the result of `task_from`.
        people: a data set of `vergence.data`, or a `Federation` of your own data.
        rounds: rounds of training; default: those of `plan`, else until validation stops gaining.
        seed: seed of all random numbers (default 0).
        seeds: several seeds; the run trains once for each.
        local: settings of clients' local training.
        participation: which clients take part in which round.
        privacy: a `Privacy`, or the table `[privacy]` of an experiment file as a mapping.
        evaluate_every: rounds between evaluations (default 5); 0: at the end only.
        workers: number of processes; default: one per core. Results are the same with any number.
        device: "cpu", "cuda" or "auto".
        plan: all other settings; the other arguments of this function take precedence.
        label: name of the run in tables; default: the method's name.
        root: the folder with a data set's files.
        out: folder for the run directory; default: a temporary one, deleted with the result.
        resume: whether to continue an interrupted run in `out`; if there is none, a new run starts.
        on_round: called after every round with a `RoundReport`; the run ends if it returns True.
        early_stopping: a rule by which the run ends when a validation metric no longer improves.
        progress: whether to draw a progress bar, and to say how long the run trains and did train.

    Raises:
        ConfigError: an argument cannot be used; the message says what to write instead.
        DataError: the data cannot be used; the message names person, column and row.
        StateError: `out` holds a run already, or a run of another experiment.
        PartialRun: the run was interrupted; finished rounds are in `out`.
    """
    who = {"presence": participation, "privacy": privacy, "early_stopping": early_stopping}
    how = {"evaluate_every": evaluate_every, "workers": workers, "device": device, "rounds": rounds}
    with under(trust_with_training_hint()):
        whole, length = plan_for(method, people, plan, seeds=_seeds(seed, seeds), **who, **how)
        made = experiment_from(with_local(method, local), task, people, whole, label, root)
    made = replace(made, default_length=length)
    return _run(made, out, resume, on_round, progress)[next(iter(made.methods))]


def train_all(
    methods: Sequence[Method] | Mapping[str, Method],
    task: Task,
    people: Dataset | Federation,
    *,
    out: Path | str | None = None,
    **options: Any,
) -> dict[str, FinishedRun]:
    """Train several methods on the same task and people, one after the other.

    Args:
        methods: the methods; or a mapping label -> method, needed if two have the same name.
        task: as in `train`.
        people: as in `train`.
        out: folder for the run directories, one for each label; default: temporary ones.
        options: further arguments of `train`, the same for all.

    Returns:
        Label -> finished run, which `compare` takes as it is.

    Raises:
        ConfigError: as in `train`; or `methods` are no methods, or two have the same name.
    """
    if (
        isinstance(methods, str)
        or not isinstance(methods, Sequence | Mapping)
        or not methods
        or "label" in options
    ):
        raise ConfigError(
            "train_all: methods must be a list of methods, as [FedAvg(), Ditto()], or have names, "
            f"{{'mine': FedAvg()}}, in place of label=; got {methods!r}"
        )
    for method in methods.values() if isinstance(methods, Mapping) else methods:
        check_kinds(method, task, people)
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    else:
        pairs = [(default_label(each), each) for each in methods]
    labels = [label for label, _ in pairs]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"train_all: several methods are called '{twice[0]}': give each a name, "
            f"{{'{twice[0]} a': ..., '{twice[0]} b': ...}}"
        )
    return {
        label: train(method, task, people, **options, label=label, out=out and Path(out) / label)
        for label, method in pairs
    }


def _seeds(seed: int | None, seeds: Sequence[int] | None) -> list[int] | None:
    if seed is not None and seeds is not None:
        raise ConfigError("train: give seed or seeds, not both")
    if seeds is None:
        return None if seed is None else [seed]
    # A text is iterable, too, and "12" is no list of the seeds 1 and 2.
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ConfigError(
            f"train: seeds must be several whole numbers, as [0, 1, 2], one seed is seed=0; got "
            f"{seeds!r}"
        )
    return list(seeds)


def load_experiment(
    path: Path | str, sets: Sequence[str] = (), trust_code: bool = False
) -> Experiment:
    """Read and check an experiment file, or the experiment of a run directory.

    Args:
        path: the file, the run directory, or the name of an experiment of the package, such as
            "quickstart".
        sets: texts `"a.b=c"`, each of which overrides a value of the file.
        trust_code: whether the Python code that the file names may run; read that code first.

    Raises:
        ConfigError: a key or value is wrong; the message names it, what is allowed, and the file.
    """
    return load(path, sets, trust_code)


def run_experiment(
    experiment: Experiment | Path | str,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    progress: bool = True,
) -> dict[str, FinishedRun]:
    """Run every method of an experiment, as `vergence run` does.

    Args:
        experiment: the result of `load_experiment`, or an experiment file.
        out: folder for the run directories; default: a temporary one, deleted with the runs.
        resume: whether to continue an interrupted run in `out`; if there is none, a new run starts.
        on_round: called after every round with a `RoundReport`. The method's run ends after a
            round for which it returns True.
        progress: whether a progress bar is drawn, and a line is printed if a run ended early.

    Returns:
        Label -> finished run.

    Raises:
        ConfigError: the experiment cannot be used.
        StateError: `out` holds a run already, or a run of another experiment.
        PartialRun: the run was interrupted; finished rounds are in `out`.
    """
    whole = experiment if isinstance(experiment, Experiment) else load_experiment(experiment)
    return _run(whole, out, resume, on_round, progress)


def _run(
    experiment: Experiment,
    out: Path | str | None,
    going_on: bool,
    on_round: OnRound | None,
    progress: bool,
) -> dict[str, FinishedRun]:
    if going_on and out is None:
        raise ConfigError("resume=True needs out, the folder of the run to go on with")
    if on_round is not None:
        check_call(on_round, 1, "on_round must be a function of a RoundReport, as on_round=print")
    keeper = ScratchFolder() if out is None else None
    folder = keeper.path if keeper else Path(str(out))
    follower = _follower(folder, keeper is None, on_round, progress)
    runs = run_into(
        folder,
        experiment,
        follower,
        resumed=going_on and (folder / "config.toml").exists(),
        asked=True,
        keeper=keeper,
    )
    # The progress bar of a run that ended early shows fewer rounds than were planned.
    for run in runs.values() if progress else ():
        for line in (*early_end_notes(run.record), *constant_notes(read(run.folder))):
            note(line)
    return runs


def _follower(folder: Path, stays: bool, on_round: OnRound | None, progress: bool) -> RoundCallback:
    """Make the callbacks for one call of `train` or `run_experiment`.

    Their error messages give advice in terms of the call's arguments.

    Args:
        folder: the folder of the run.
        stays: whether the folder is kept after the call.
        on_round: the caller's function, called after every round.
        progress: whether a progress bar is drawn.
    """
    interrupted = "nothing of it is kept: give out=FOLDER to go on later by resume=True"
    nothing = "nothing of it is kept: mend this, and train again; out=FOLDER keeps what was done"
    if stays:
        interrupted = (
            f"the rounds done are kept in {folder}: go on by the same call with resume=True"
        )
        nothing = f"they are kept in {folder}: mend this, and train into another out"
    exists = (
        f"go on with it by resume=True, open it by vergence.open_run({str(folder)!r}), or choose "
        "another out"
    )
    advice = (lambda _: interrupted, lambda _: exists, lambda _: nothing)
    return RoundCallback(on_round, progress, *advice, folder_stays=stays)


def run_into(
    folder: Path,
    experiment: Experiment,
    follower: RoundCallback = RoundCallback(),  # noqa: B008
    *,
    resumed: bool = False,
    asked: bool = False,
    keeper: ScratchFolder | None = None,
) -> dict[str, FinishedRun]:
    """Run every method of an experiment into a folder, or resume the run in it.

    Args:
        folder: the folder of the run directories.
        experiment: the experiment to run.
        follower: callbacks of the caller, with its advice in errors.
        resumed: whether the folder already holds this run.
        asked: whether a finished run in the folder must have exactly this experiment and these
            data.
        keeper: owner of a temporary folder, which is removed with the last of the runs; None: the
            folder is not temporary.

    Returns:
        Label -> finished run.
    """
    # The engine takes one thread and draws from torch's generator; a notebook goes on with its own.
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            if not resumed:
                check_vacant(folder)
            if experiment.plan.split_seeds:
                # The experiment is read again for every split, and its code with it.
                with under(trust_with_code(experiment.code)):
                    experiment = split_runs.with_method_list(experiment, folder)
                    loaded = split_runs.run(experiment, folder, follower, resumed=resumed)
            elif resumed:
                raise_rounds(experiment, folder)
                loaded = resume(experiment, folder, follower, asked=asked)
            else:
                loaded = start(experiment, folder, follower)
    finally:
        torch.set_num_threads(threads)
    return {
        label: FinishedRun(path, experiment.with_method(label), loaded, keeper)
        for label, path in folders_of(experiment, folder).items()
    }


def open_run(
    path: Path | str,
    *,
    task: Task | None = None,
    people: Dataset | Federation | None = None,
    method: Method | None = None,
    trust_code: bool = False,
) -> FinishedRun:
    """Open a finished run from its directory.

    The directory is enough for scores. Models need more if the run's task, method or people are
    Python objects: give these objects, too, as no file can build them again.

    Args:
        path: the run directory of one method.
        task: the task with which the run was trained.
        people: the people on whose data the run was trained.
        method: the method, if it is your own.
        trust_code: whether the Python code that the run's config.toml names may run; read that code
            first.

    Raises:
        StateError: there is no finished run of one method, or the run was made from other objects.
        UntrustedCode: the config names Python code, which must run to compare the run with the
            objects.
    """
    run = FinishedRun(path, trust_code=trust_code)
    if task is None and people is None and method is None:
        return run
    with under(trust_for_opening(trust_code)):
        made = rebuild_experiment(run, task, people, method)
    return FinishedRun(path, made, trust_code=trust_code)
