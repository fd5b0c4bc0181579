"""Running an experiment: loads the data once, runs every method and seed, and writes tables.

Used in most packages.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vergence import profiling
from vergence.console import note
from vergence.core.federation import Federation
from vergence.core.files import (
    ELSEWHERE,
    check_folder_place,
    open_in_place,
    refuse_links,
    saving,
)
from vergence.core.method import Method
from vergence.core.naming import list_names, plural, registry_name
from vergence.core.randomness import RandomStream
from vergence.data import own_samples
from vergence.engine.plan import Plan
from vergence.engine.round_loop import PoolFactory, RoundSummary, measured, run_rounds
from vergence.engine.solver_selection import unused_gpu
from vergence.engine.storage.run_directory import RunDirectory, check_stamp, read_manifest
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.experiment import (
    checksums,
    class_accuracy,
    class_counts,
    group_table,
    sample_scores,
    starting_model,
)
from vergence.experiment import provenance as stamp
from vergence.experiment.newcomers import has_residuals, write_residuals
from vergence.experiment.nothing_learned import command_line_advice, refuse_unlearned
from vergence.experiment.privacy import spent as privacy_spent
from vergence.experiment.privacy.register import RegisteredRun
from vergence.experiment.sample_maps import write_maps
from vergence.experiment.schema import Experiment, Table
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.experiment.trust import trust_with_code, under
from vergence.experiment.user_code_errors import FILE as TRACEBACK
from vergence.experiment.user_code_errors import Listener, report_user_errors
from vergence.experiment.validation import Loaded, digest, validate
from vergence.privacy.hooks import ProtectedRun
from vergence.results import write as results
from vergence.system.file_locks import try_process_lock
from vergence.tracking.tensorboard import Board, warn

SHOWN = 3
"""Largest number of files that an error message names."""


SeedPool = Callable[[str, int], PoolFactory]
"""Gets a method's label and a seed; returns a function that makes the pool for clients' work."""


class RoundReport(NamedTuple):
    """Report on a finished round of one method and seed.

    Attributes:
        label: the method's label, its name in tables.
        seed: the seed.
        round: number of rounds that are finished.
        rounds: number of rounds of the run, as it was planned.
        metrics: numbers by name: this round's training metrics (means over clients), its number of
            replies, and numbers from protections. If people were evaluated after the round, the
            means of their metrics, too.
        people: person -> metric -> value, from the last evaluation so far; empty before the first.
        processes: number of processes of this machine that train; 0 in a deployment.
    """

    label: str
    seed: int
    round: int
    rounds: int
    metrics: Mapping[str, float]
    people: Mapping[str, Mapping[str, float]]
    processes: int


@dataclass(frozen=True)
class RoundCallback:
    """Callbacks of the caller of a run, and advice to the caller in error messages.

    Each advice is a function of the run's folder that returns a text.

    Attributes:
        on_round: called before the first round and after every round; after the last planned round
            it is called when the final models have been measured. The run ends after a round for
            which it returns True.
        bar: whether a progress bar is drawn.
        advice_interrupted: how to continue an interrupted run.
        advice_exists: what to do if the folder already holds a run.
        advice_nothing_learned: what to do if the run learned nothing.
        folder_stays: whether a traceback is written into the folder; false for a folder that is
            deleted after the run.
        warn: called with a message if an optional file could not be written, or if settings do not
            fit what the first round shows; the run continues.
        finished: called with the label (name in tables) and folder of each method after its results
            are written.
        before_saving: called after every round, before its checkpoint is written. If it raises an
            error, a resumed run repeats the round.
    """

    on_round: Callable[[RoundReport], object] | None = None
    bar: bool = True
    advice_interrupted: Callable[[Path], str] = lambda out: (
        f"the rounds done are kept: `vergence resume {out}`"
    )
    advice_exists: Callable[[Path], str] = lambda out: (
        f"`vergence resume {out}`, or choose another --out"
    )
    advice_nothing_learned: Callable[[Path], str] = command_line_advice
    folder_stays: bool = True
    warn: Callable[[str], None] = warn
    finished: Callable[[str, Path], object] = lambda *_: None
    before_saving: Callable[[RoundReport], object] | None = None


def start(
    experiment: Experiment,
    out: Path | str,
    follower: RoundCallback = RoundCallback(),
) -> Loaded:
    """Run an experiment, write its results into a new directory, and return its data.

    Args:
        experiment: the experiment.
        out: the directory.
        follower: callbacks of the caller.

    Raises:
        StateError: the directory already holds a run.
        PartialRun: the run was interrupted, the disk is full, or no reply counted in any round of a
            method; finished rounds stay on disk.
    """
    out = Path(out)
    refuse_several_splits(experiment, "a single run")
    with locked(out), under(trust_with_code(experiment.code)):
        if (out / "config.toml").exists():
            raise StateError(f"{out} holds a run already: {follower.advice_exists(out)}")
        with report_user_errors(experiment, out, follower.folder_stays):
            loaded = validate(experiment)
        if experiment.several:
            # The stamp precedes the config, as a config without its stamp could not be resumed.
            stamp.write(out, run_stamp(experiment, experiment.table, loaded))
        plan = experiment.plan
        cohort, people = plan.presence.cohort, plan.silos.count(len(loaded.raw.clients))
        if isinstance(cohort, int) and cohort > people:
            who = "labs" if plan.silos else "people"
            note(f"presence: cohort asks {cohort} of {people} {who}: everybody is asked")
        if experiment.default_length and follower.bar:
            note(f"trains {experiment.default_length}")
        for line in privacy_spent.noise_outlook(experiment, loaded.ready):
            note(line)
        # A config that names a starting model needs its copy, so that the copy comes first.
        starting_model.write_copy(experiment.model.start, out)
        results.write_toml(out / "config.toml", experiment.table, experiment.remarks)
        _run_here(experiment, loaded, out, follower)
    refuse_unlearned(folders_of(experiment, out), experiment.plan, follower.advice_nothing_learned)
    return loaded


def start_or_resume(
    experiment: Experiment,
    ready: Federation,
    folder: Path,
    follower: RoundCallback = RoundCallback(),
) -> Loaded | None:
    """Start an experiment, or resume it if its folder holds a run; a finished run stays unchanged.

    Studies run each of their experiments with this function.

    Args:
        experiment: the experiment.
        ready: prepared data of the experiment; their digest is compared with that of the run in the
            folder.
        folder: the run's folder.
        follower: callbacks of the caller.

    Returns:
        The data; None if the run was finished.

    Raises:
        StateError: the folder holds a run of another experiment or of other data.
        PartialRun: for the reasons that `start` names.
    """
    if not (folder / "config.toml").exists():
        return start(experiment, folder, follower)
    config = stamp.config_digest(experiment.table, experiment.plan.presence.trace)
    made = {"config": config, "data": digest(ready), **_starting_stamp(experiment)}
    # `resume` does not compare a finished run with the experiment, so the stamp is checked here.
    stamp.check(folder, made)
    return resume(experiment, folder, follower)


def refuse_several_splits(experiment: Experiment, what: str) -> None:
    """Raise an error if an experiment has several splits of the data.

    Args:
        experiment: the experiment.
        what: the activity that needs a single split, for the message.

    Raises:
        ConfigError: the experiment has `run.split_seeds`; the message says what to do.
    """
    if seeds := experiment.plan.split_seeds:
        raise ConfigError(
            f"{what} takes one split of the data, and run.split_seeds names {len(seeds)}: take "
            "run.split_seeds out (--set 'run.split_seeds=[]'), and choose a split by federation"
        )


def check_vacant(out: Path) -> None:
    """Raise an error if a folder holds files but no run, or cannot be; hidden files are ignored.

    Raises:
        StateError: the folder holds other files, of which the message names some; or a file has its
            name.
    """
    check_folder_place(out)
    if out.is_dir() and not (out / "config.toml").exists():
        _refuse_foreign_files(out)


def _refuse_foreign_files(out: Path) -> None:
    # A run that was killed before its config was written leaves its stamp, the model that it
    # starts from, a person's own samples, and locks of methods.
    remains = (".", stamp.FILE, starting_model.FILE, own_samples.FILE, "config.toml.", TRACEBACK)
    theirs = sorted(
        path.name
        for path in out.iterdir()
        if not path.name.startswith(remains)
        and not (path.is_dir() and all(each.name == ".lock" for each in path.iterdir()))
    )
    if theirs:
        raise StateError(
            f"{out} holds no run, and {list_names(theirs, SHOWN)}: nothing is written beside other "
            f"files; {ELSEWHERE}"
        )


def resume(
    experiment: Experiment,
    out: Path,
    follower: RoundCallback = RoundCallback(),
    *,
    asked: bool = False,
) -> Loaded | None:
    """Continue an interrupted experiment; the results of finished methods stay unchanged.

    Args:
        experiment: the experiment.
        out: the run's folder.
        follower: callbacks of the caller.
        asked: whether the caller chose the experiment, instead of reading it from this folder. If
            true, the data are loaded and a finished run, too, is compared with the experiment.

    Returns:
        The data; None if every method was finished and `asked` is false.

    Raises:
        StateError: files of a finished method differ from its SHA256SUMS; or the folder holds a run
            of another experiment, or a run that cannot be continued.
        PartialRun: for the reasons that `start` names.
    """
    folders, loaded = folders_of(experiment, out), None
    with locked(out), under(trust_with_code(experiment.code)):
        every = list(dict.fromkeys([out, *folders.values()]))
        # Finished methods are not trained again, so their files must be as they were.
        for folder in filter(checksums.sealed, every):
            checksums.check(folder)
        finished = all(map(checksums.sealed, every))
        if asked or not finished:
            stamp.check_settings(out, experiment.table)
            loaded = validate(experiment)
            check_run_stamp(experiment, loaded, out)
        if loaded is not None and not finished:
            _run_here(experiment, loaded, out, follower)
    refuse_unlearned(folders, experiment.plan, follower.advice_nothing_learned)
    return loaded


def check_run_stamp(experiment: Experiment, loaded: Loaded, out: Path) -> None:
    """Refuse a folder whose run was begun with another config, code or data.

    Raises:
        StateError: a digest differs; the message names what differs.
    """
    if experiment.several:
        stamp.check(out, run_stamp(experiment, experiment.table, loaded))
    # The run directory of a single method has its stamp in its checkpoint.
    elif (out / "state" / "checkpoint.json").exists():
        made = run_stamp(
            experiment, experiment.method_config(next(iter(experiment.methods))), loaded
        )
        check_stamp(out, read_manifest(out)["stamp"], made)


def folders_of(experiment: Experiment, out: Path) -> dict[str, Path]:
    """Return the run directory of each method, by label."""
    return {label: out / label if experiment.several else out for label in experiment.methods}


def run_stamp(experiment: Experiment, table: Table, loaded: Loaded) -> dict[str, str]:
    """Return a run's stamp: digests of everything on which its results depend.

    Args:
        experiment: the experiment.
        table: the table of the experiment, or that of one of its methods alone.
        loaded: the data.
    """
    made = stamp.stamp(table, loaded.sha, experiment.plan.presence.trace)
    return {**made, **_starting_stamp(experiment)}


def _starting_stamp(experiment: Experiment) -> dict[str, str]:
    start = experiment.model.start
    return {**({} if start is None else {"start": start.sha}), **experiment.origin.stamp}


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock a run's directory in the `with` block, so that no other run writes to it.

    The directory is made if it does not exist.

    Raises:
        StateError: another run holds the lock, the directory cannot be made, or links in it lead
            to other folders.
    """
    check_folder_place(out)
    # A link in a folder from somebody else could make this run overwrite files of the user's.
    refuse_links(out)
    with saving(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = open_in_place(out / ".lock", os.O_RDWR | os.O_CREAT)
    with os.fdopen(lock, "r+b") as file:
        if not try_process_lock(file):
            raise StateError(f"another run is writing to {out}; wait for it, or {ELSEWHERE}")
        yield


def _run_here(experiment: Experiment, loaded: Loaded, out: Path, follower: RoundCallback) -> None:
    """Score baselines without learning, run all methods on this machine, and write SHA256SUMS.

    If one of several methods is local-only training, results also get each method's harm: the
    people who score worse with the method than with local training.
    """
    if not (out / "priors.csv").exists():
        task = experiment.task(experiment.plan.seeds[0])
        people = loaded.ready
        if experiment.plan.evaluate_people:
            people = people.only(measured(people, experiment.plan))
        with profiling.phase("priors"):
            class_counts.write(out / class_counts.FILE, loaded.raw)
            sample_scores.write_priors(out / sample_scores.PRIORS, task, people)
            results.write_priors(out / "priors.csv", task, people)
    try:
        run_methods(experiment, loaded, out, follower)
        with profiling.phase("statistics"):
            # Only now can every method say how many people it harms: local-only may run last.
            names = {label: registry_name(m) for label, m in experiment.methods.items()}
            alone = [label for label, name in names.items() if name == "local_only"]
            for label in names if experiment.several else ():
                if alone and not results.has_harm(out / label):
                    checksums.unseal(out / label)
                    results.write_harm(out / label, out / alone[0])
                checksums.seal(out / label)
            checksums.seal(out)
    except KeyboardInterrupt:
        raise PartialRun(f"interrupted; {follower.advice_interrupted(out)}") from None


def run_methods(
    experiment: Experiment,
    loaded: Loaded,
    out: Path,
    follower: RoundCallback,
    pool: SeedPool | None = None,
) -> None:
    """Run every unfinished method and seed, with clients on this machine or in a deployment.

    Args:
        experiment: the experiment.
        loaded: the experiment's data; for remote clients only names and numbers of samples.
        out: the folder with the methods' run directories.
        follower: callbacks of the caller.
        pool: function of a method's label and a seed, for the pool that runs the clients' work;
            None: processes of this machine.

    Raises:
        StateError: the tables of a finished method are damaged, or the folder holds a run of
            another experiment.
        PartialRun: the disk is full, or a callback stops the run.
    """
    total = experiment.plan.rounds * len(experiment.plan.seeds)
    with progress_bar(follower.bar) as bar:
        for label, folder in folders_of(experiment, out).items():
            if (folder / "results.json").exists():
                # There may be no checksums yet: methods are sealed together, when all are done.
                checksums.check_tables(folder)
                # A run that was killed between the two has results that no index lists.
                _write_index(experiment, out)
                continue
            line = bar.add_task(label, total=total, score="")
            # Somebody may resume the directory of this one method, so it has a lock as well.
            lock = locked(folder) if experiment.several else nullcontext()
            listener = Listener(follower.on_round) if follower.on_round else None
            faults = report_user_errors(experiment, folder, follower.folder_stays, listener)
            with lock, faults, profiling.method(label):
                callback = replace(follower, on_round=listener)
                _run_method(experiment, loaded, label, folder, (bar, line), callback, pool)
            _write_index(experiment, out)
            follower.finished(label, folder)


def _write_index(experiment: Experiment, out: Path) -> None:
    """Write the index of the finished methods, if the experiment has several methods."""
    if experiment.several:
        task = experiment.task(experiment.plan.seeds[0])
        runs = [
            {"label": label, "method": registry_name(method), "dir": label}
            for label, method in experiment.methods.items()
            if (out / label / "results.json").exists()
        ]
        results.write_index(out, runs, task, experiment.table["task"]["name"])


def progress_bar(shown: bool = True) -> Progress:
    """Return a progress bar with the remaining time.

    It is drawn only if `shown` is true, and only on a terminal or in a notebook.
    """
    console = Console(stderr=True)
    # In notebooks rich needs ipywidgets to draw a bar.
    widgets = importlib.util.find_spec("ipywidgets") is not None
    visible = widgets if console.is_jupyter else sys.stderr.isatty()
    return Progress(
        TextColumn("{task.description:>22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[score]}"),
        console=console,
        disable=not (shown and visible),
    )


@dataclass
class RoundReporter:
    """Reports the rounds of one method to the progress bar, TensorBoard and the caller.

    Attributes:
        label: the method's label, its name in tables.
        plan: settings of the run.
        headline: the task's headline metric.
        bar: the progress bar, and the method's line in it.
        follower: callbacks of the caller.
        board: TensorBoard files of the seed that runs.
        last: metrics of the last reported round.
    """

    label: str
    plan: Plan
    headline: str
    bar: tuple[Progress, Any]
    follower: RoundCallback
    board: Board | None = None
    last: Mapping[str, float] = field(default_factory=dict)

    def report(self, end: RoundSummary) -> object:
        """Report a round; return the answer of the caller's `on_round`."""
        plan, follower, (bar, line) = self.plan, self.follower, self.bar
        bar.update(line, completed=plan.seeds.index(end.seed) * plan.rounds + end.round)
        self.last = metrics = {**self.last, **end.metrics} if end.final else end.metrics
        if self.headline in metrics:
            cores = f" on {plural(end.processes, 'core')}" if end.processes else ""
            bar.update(line, score=f"{self.headline} {metrics[self.headline]:.3f}{cores}")
        if self.board is not None:
            self.board.follow()
        # Other seeds would say the same again.
        if end.caution and end.seed == plan.seeds[0]:
            follower.warn(end.caution)
        report = RoundReport(
            self.label, end.seed, end.round, plan.rounds, metrics, end.people, end.processes
        )
        if follower.before_saving is not None and not end.final:
            follower.before_saving(report)
        # The last round is reported once: with the scores of the final models.
        if follower.on_round is None or end.final != (end.round == plan.rounds):
            return None
        return follower.on_round(report)


def _run_method(
    experiment: Experiment,
    loaded: Loaded,
    label: str,
    path: Path,
    bar: tuple[Progress, Any],
    follower: RoundCallback,
    pool: SeedPool | None,
) -> None:
    """Run one method with every seed that is not finished, and write its results.

    Args:
        experiment: the experiment.
        loaded: its data.
        label: the method's label, its name in tables.
        path: the method's run directory.
        bar: the progress bar, and the method's line in it.
        follower: callbacks of the caller.
        pool: function that makes the pool for the clients' work; None: this machine.
    """
    table, plan, origin = experiment.method_config(label), experiment.plan, experiment.origin
    made = run_stamp(experiment, table, loaded)
    folder = RunDirectory(path, made, elsewhere=pool is not None)
    folder.open()
    starting_model.write_copy(experiment.model.start, path)
    results.write_toml(path / "config.toml", table, experiment.remarks)
    if pool is not None or not (path / "provenance.json").exists():
        starting = starting_model.provenance_entry(experiment.model.start)
        facts = results.provenance(loaded.raw, loaded.sha, made["code"], experiment.files(table))
        results.write_json(path / "provenance.json", {**facts, **starting, **origin.provenance})
    if why := unused_gpu(plan):
        follower.warn(f"{label} trains on the processor: {why}")
    rounds = RoundReporter(label, plan, experiment.task(0).headline, bar, follower)
    method, entries = experiment.methods[label], RegisteredRun(plan, loaded.raw, pool is None)
    for seed in plan.seeds:
        with Board(path, seed, follower.warn) as rounds.board:
            if str(seed) not in folder.manifest["done"]:
                task = experiment.task(seed)
                run = ProtectedRun(method, task, loaded.ready, plan.rounds, folder.state)
                with profiling.phase("exchange"), entries.counting(run):
                    run_rounds(
                        method,
                        task,
                        federation=loaded.ready,
                        plan=plan,
                        folder=folder,
                        tick=rounds.report,
                        pool_factory=pool(label, seed) if pool else None,
                        begin=origin.begin and partial(origin.begin, label, seed, folder.state),
                    )
    with profiling.phase("statistics"):
        _write_final_files(experiment, loaded, label, folder)


def _write_final_files(
    experiment: Experiment, loaded: Loaded, label: str, folder: RunDirectory
) -> None:
    """Write one method's masks, maps, tables and results, all computed from its saved states.

    In a deployment only results.json is written, as clients' states are not on this machine.
    """
    method, plan, path = experiment.methods[label], experiment.plan, folder.path
    task, people, here = (
        experiment.task(plan.seeds[0]),
        measured(loaded.raw, plan),
        not folder.elsewhere,
    )
    # States are read from disk, even those of this process: a resumed run writes the same files.
    finals = [
        read_run(path, seed, experiment.with_method(label)).on_data(
            loaded.ready, stream=RandomStream("show")
        )
        for seed in (plan.seeds if here else ())
    ]
    for run in finals:
        results.write_masks(path, method, run.task.seed, run.clients)
    if here:
        write_maps(path / "maps.npz", finals[0], loaded.raw)
        group_table.write(path / group_table.FILE, finals, people)
        class_accuracy.write(path / class_accuracy.FILE, finals, people)
        sample_scores.write(path / sample_scores.SAMPLES, finals, people)
        if has_residuals(plan, method, task):
            write_residuals(path, finals)
    shares = [share for run in finals if (share := _mean_personal_share(method, run)) is not None]
    results.write_results(
        folder,
        label,
        method,
        task,
        loaded.raw,
        plan,
        personal=float(np.mean(shares)) if shares else None,
        privacy=privacy_spent.spent_block(
            plan, ProtectedRun(method, task, loaded.raw, plan.rounds, folder.state, here)
        ),
    )


def _mean_personal_share(method: Method, saved: TrainedRun) -> float | None:
    """Return the mean fraction of personal parameters over clients; None without masks."""
    masks = [method.personal(state) for state in saved.clients.values()]
    shares = [m.fraction for m in masks if m is not None]
    return float(np.mean(shares)) if shares else None
