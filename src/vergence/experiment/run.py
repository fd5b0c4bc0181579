"""Running an experiment: data once, then every method and seed, then tables and the report."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vergence.console import note
from vergence.core.federation import Federation
from vergence.core.files import open_in_place, refuse_links, saving
from vergence.core.method import Method
from vergence.core.naming import called
from vergence.core.randomness import RandomStream
from vergence.core.task import Task
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData, lent
from vergence.engine.protections import robust_aggregation
from vergence.engine.protections.setup import check_privacy
from vergence.engine.round_loop import device_for, measured, run_rounds
from vergence.engine.storage.run_directory import RunDirectory, check_stamp, read_manifest
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.experiment import checksums, class_accuracy, class_counts, group_table
from vergence.experiment import provenance as stamp
from vergence.experiment.nothing_learned import mended, refuse_unlearned
from vergence.experiment.own_errors import FILE as TRACEBACK
from vergence.experiment.own_errors import Listener, own_faults
from vergence.experiment.privacy import spent as privacy_spent
from vergence.experiment.sample_maps import write_maps
from vergence.experiment.saved_run import SavedRun, read_saved
from vergence.experiment.schema import Experiment, Table, short
from vergence.experiment.trust import approved, under
from vergence.privacy.hooks import ProtectedRun
from vergence.results import write as results
from vergence.tracking.tensorboard import Board
from vergence.training.pruning import weights

ELSEWHERE = "choose another folder, by --out, or out= in Python"
SHOWN = 3
"""Files that a refusal names."""


@dataclass(frozen=True)
class Loaded:
    """An experiment's data: as recorded, as its network wants it, and the digest of the latter."""

    raw: Federation
    ready: Federation
    sha: str


class RoundReport(NamedTuple):
    """A round that is done, of one method and seed: the means over people that it measured."""

    label: str
    seed: int
    round: int
    rounds: int
    metrics: Mapping[str, float]


def _kept(out: Path) -> str:
    return f"the rounds done are kept: `vergence resume {out}`"


def _taken(out: Path) -> str:
    return f"`vergence resume {out}`, or choose another --out"


@dataclass(frozen=True)
class RoundCallback:
    """Listener to a run while it goes on: whoever started it.

    Attributes:
        on_round: called after every round.
        bar: whether progress is drawn.
        kept: what is left of an interrupted run in this folder, and how it goes on, in words.
        taken: what to do where a folder holds a run already, in words.
        unlearned: what to do where a run in this folder learned nothing, in words.
        lasting: whether the folder outlives the run, so that a traceback is kept there.
    """

    on_round: Callable[[RoundReport], object] | None = None
    bar: bool = True
    kept: Callable[[Path], str] = _kept
    taken: Callable[[Path], str] = _taken
    unlearned: Callable[[Path], str] = mended
    lasting: bool = True


def load_data(experiment: Experiment) -> Loaded:
    """Read the data set and prepare it for the network.

    Raises:
        DataError: a data file, or the presence trace, is unusable.
        ConfigError: task, model and federation do not fit together.
    """
    torch.set_num_threads(1)  # the workers' number: more would wait for each other here
    raw = experiment.federation()
    for label, method in experiment.methods.items():
        if method.pooled:
            raw.refuse_many(f"method '{label}', which pools everybody's data,")
    experiment.plan.presence.check(raw.clients)
    experiment.plan.delivery.suit(raw.clients)
    task = experiment.task(experiment.plan.seeds[0])
    try:
        ready = experiment.model.prepare(raw)
        batch = next(iter(ready.people.values())).train.take(torch.arange(1))
        module = task.module().eval()
        with torch.no_grad():
            task.loss(task.forward(module, batch), batch)
            if ready.proxies is not None:
                task.forward(module, ready.proxies.train.take(torch.arange(1)))
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        parts = ", ".join(
            f"{part} '{experiment.table[part]['name']}'" for part in ("task", "model", "federation")
        )
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{parts} do not fit together: {reason}; change one of them") from error
    task.check(ready)
    for label, method in experiment.methods.items():
        try:
            method.check(task)
            if method.borrows:
                lent(ready)
            device_for(method, experiment.plan)
            experiment.plan.delivery.check()
            robust_aggregation.check(experiment.plan, raw.clients)
            check_privacy(method, task, ready, experiment.plan)
        except ConfigError as error:
            raise ConfigError(f"method '{label}': {error}") from None
    if experiment.plan.pruning.amount:
        weights(task.module(), experiment.plan.pruning.layers)
    return Loaded(raw, ready, digest(ready))


def digest(federation: Federation) -> str:
    """Return the SHA-256 over everybody's columns and banks, and those of nobody's.

    Of people made on demand, over what they are made from and the first and last of them.
    """
    whole, seen = hashlib.sha256(), set()
    if federation.recipe is not None:
        whole.update(f"{federation.recipe}\0{len(federation.people)}".encode())
        federation = federation.only([federation.clients[0], federation.clients[-1]])
    held = federation.proxies
    parts = [(p, part) for p, s in federation.people.items() for part in (s.train, s.val, s.test)]
    parts += [] if held is None else [("", held.train), ("", held.val)]
    for person, part in parts:
        tensors = {**part.columns, **{n: b.rows for n, b in part.banks.items()}}
        for name, tensor in sorted(tensors.items()):
            whole.update(f"{person}\0{name}{tuple(tensor.shape)}".encode())
            if tensor.data_ptr() not in seen:
                whole.update(tensor.contiguous().numpy().data)
            if name in part.banks:
                seen.add(tensor.data_ptr())
    return whole.hexdigest()


def start(
    experiment: Experiment,
    out: Path | str,
    follower: RoundCallback = RoundCallback(),
) -> Loaded:
    """Run an experiment into a new directory; return its data.

    Raises:
        StateError: the directory holds a run already.
        PartialRun: interrupted, or the disk is full, or nobody's reply counted in any round of a
            method; what is done is kept.
    """
    out = Path(out)
    with locked(out), under(approved(experiment.code)):
        if (out / "config.toml").exists():
            raise StateError(f"{out} holds a run already: {follower.taken(out)}")
        with own_faults(experiment, out, follower.lasting):
            loaded = load_data(experiment)
        if experiment.several:  # first: a config without its stamp could not be resumed
            stamp.write(out, stamped(experiment, experiment.table, loaded))
        _note_large_cohort(experiment, loaded)
        results.write_toml(out / "config.toml", experiment.table, experiment.remarks)
        _all_methods(experiment, loaded, out, follower)
    refuse_unlearned(folders_of(experiment, out), experiment.plan, follower.unlearned)
    return loaded


def _note_large_cohort(experiment: Experiment, loaded: Loaded) -> None:
    cohort, people = experiment.plan.presence.cohort, len(loaded.raw.clients)
    if isinstance(cohort, int) and cohort > people:
        note(f"presence: cohort asks {cohort} of {people} people: everybody is asked")


def check_vacant(out: Path) -> None:
    """Refuse a folder with somebody's files in it, and no run; hidden ones are no matter.

    Raises:
        StateError: names the files.
    """
    if not out.is_dir() or (out / "config.toml").exists():
        return
    # A run that was killed before its config was written leaves its stamp, and locks of methods.
    theirs = sorted(
        path.name
        for path in out.iterdir()
        if not path.name.startswith((".", stamp.FILE, "config.toml.", TRACEBACK))
        and not (path.is_dir() and all(each.name == ".lock" for each in path.iterdir()))
    )
    if theirs:
        more = f" and {len(theirs) - SHOWN} more" if len(theirs) > SHOWN else ""
        raise StateError(
            f"{out} holds no run, and {', '.join(theirs[:SHOWN])}{more}: a run is not written "
            f"beside other files; {ELSEWHERE}"
        )


def resume(
    experiment: Experiment,
    out: Path,
    follower: RoundCallback = RoundCallback(),
    *,
    asked: bool = False,
) -> Loaded | None:
    """Go on with an interrupted experiment; finished methods are left as they are.

    Args:
        experiment: what is run.
        out: its folder.
        follower: who listens.
        asked: whether the experiment is somebody's wish, and not what was read from this folder:
            then a finished run is compared with it too, which takes its data.

    Returns:
        Its data; None where all was finished and nothing was asked.

    Raises:
        StateError: a finished method's files are not those that were sealed, or what is there
            is of another experiment, or cannot be gone on from.
        PartialRun: as of `start`.
    """
    folders, loaded = folders_of(experiment, out), None
    with locked(out), under(approved(experiment.code)):
        every = list(dict.fromkeys([out, *folders.values()]))
        for folder in filter(checksums.sealed, every):
            checksums.check(folder)
        finished = all(map(checksums.sealed, every))
        if asked or not finished:
            stamp.check_settings(out, experiment.table)
            loaded = load_data(experiment)
            _check_stamp(experiment, loaded, out)
        if loaded is not None and not finished:
            _all_methods(experiment, loaded, out, follower)
    refuse_unlearned(folders, experiment.plan, follower.unlearned)
    return loaded


def _check_stamp(experiment: Experiment, loaded: Loaded, out: Path) -> None:
    if experiment.several:
        stamp.check(out, stamped(experiment, experiment.table, loaded))
    elif (out / "state" / "checkpoint.json").exists():  # a run directory has its stamp in it
        made = stamped(experiment, experiment.one(next(iter(experiment.methods))), loaded)
        check_stamp(out, read_manifest(out)["stamp"], made)


def folders_of(experiment: Experiment, out: Path) -> dict[str, Path]:
    """Each method's run directory, by label."""
    return {label: out / label if experiment.several else out for label in experiment.methods}


def stamped(experiment: Experiment, table: Table, loaded: Loaded) -> dict[str, str]:
    """Facts that the bits of a run of this table depend on."""
    return {
        **stamp.stamp(table, loaded.sha, experiment.plan.presence.trace),
        **experiment.origin.stamp,
    }


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep everybody else out of a directory while a run writes there.

    Raises:
        StateError: somebody is there, it cannot be made, or links in it lead elsewhere.
    """
    try:
        nearest = next(path for path in (out, *out.parents) if path.exists())
    except OSError as error:
        raise StateError(
            f"there can be no folder {short(str(out))} ({error.strerror}); {ELSEWHERE}"
        ) from None
    if not nearest.is_dir():
        raise StateError(f"{nearest} is a file; {ELSEWHERE}")
    refuse_links(out)
    with saving(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = open_in_place(out / ".lock", os.O_RDWR | os.O_CREAT)
    with os.fdopen(lock, "r+b") as file:
        try:
            # Not flock: that one lives on in workers whose parent was killed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise StateError(
                f"another run is writing to {out}; wait for it, or {ELSEWHERE}"
            ) from None
        yield


def _all_methods(
    experiment: Experiment, loaded: Loaded, out: Path, follower: RoundCallback
) -> None:
    task = experiment.task(experiment.plan.seeds[0])
    if not (out / "priors.csv").exists():
        people = loaded.ready.only(measured(loaded.ready, experiment.plan))
        class_counts.write(out / class_counts.FILE, loaded.raw)
        results.write_priors(out / "priors.csv", task, people)
    total = experiment.plan.rounds * len(experiment.plan.seeds)
    with progress_bar(follower.bar) as bar:
        for label in experiment.methods:
            folder = out / label if experiment.several else out
            if (folder / "results.json").exists():
                checksums.check_tables(folder)  # it is sealed with the others, when all are done
                continue
            line = bar.add_task(label, total=total, score="")
            # Its own lock too: somebody may resume this one method's directory by itself.
            alone = locked(folder) if experiment.several else nullcontext()
            heard = Listener(follower.on_round) if follower.on_round else None
            try:
                with alone, own_faults(experiment, folder, follower.lasting, heard):
                    _one_method(experiment, loaded, label, folder, (bar, line), heard)
            except KeyboardInterrupt:
                raise PartialRun(f"interrupted; {follower.kept(out)}") from None
            if experiment.several:
                _write_index(experiment, task, out)
    _judge(experiment, out)


def progress_bar(shown: bool = True) -> Progress:
    """Return a bar with the time left, drawn only on a terminal and in a notebook."""
    console = Console(stderr=True)
    drawn = sys.stderr.isatty()
    if console.is_jupyter:
        drawn = importlib.util.find_spec("ipywidgets") is not None  # rich draws with it
    return Progress(
        TextColumn("{task.description:>22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[score]}"),
        console=console,
        disable=not (shown and drawn),
    )


def _one_method(
    experiment: Experiment,
    loaded: Loaded,
    label: str,
    path: Path,
    bar: tuple[Progress, Any],
    on_round: Callable[[RoundReport], object] | None,
) -> None:
    table, method = experiment.one(label), experiment.methods[label]
    made = stamped(experiment, table, loaded)
    folder = RunDirectory(path, made)
    folder.open()
    results.write_toml(path / "config.toml", table, experiment.remarks)
    if not (path / "provenance.json").exists():
        told = results.provenance(loaded.raw, loaded.sha, made["code"], experiment.files(table))
        results.write_json(path / "provenance.json", {**told, **experiment.origin.told})
    headline = experiment.task(0).headline

    def tick(seed: int, done: int, metrics: Mapping[str, float]) -> None:
        order = experiment.plan.seeds.index(seed) * experiment.plan.rounds
        bar[0].update(bar[1], completed=order + done)
        if headline in metrics:
            bar[0].update(bar[1], score=f"{headline} {metrics[headline]:.3f}")
        board.follow()
        if on_round is not None:
            on_round(RoundReport(label, seed, done, experiment.plan.rounds, metrics))

    for seed in experiment.plan.seeds:
        with Board(path, seed) as board:
            if str(seed) not in folder.manifest["done"]:
                begin = experiment.origin.begin
                run_rounds(
                    method,
                    experiment.task(seed),
                    loaded.ready,
                    experiment.plan,
                    folder,
                    tick,
                    begin=partial(begin, label, seed, folder.state) if begin else None,
                )
    _leave_behind(experiment, loaded, label, method, path)


def _leave_behind(
    experiment: Experiment, loaded: Loaded, label: str, method: Method, path: Path
) -> None:
    """Write masks, maps and results from the saved states, so that a resumed run has them all."""
    alone = experiment.alone(label)
    finals = [read_saved(path, seed, alone) for seed in experiment.plan.seeds]
    for saved in finals:
        results.write_masks(path, method, saved.task.seed, saved.clients)
    first = finals[0]
    worker = ClientExecutor(
        method,
        first.task,
        LocalData(loaded.ready, loaded.ready),
        RandomStream("show"),
        Computation(pruning=experiment.plan.pruning),
    )
    write_maps(path / "maps.npz", worker, first, loaded.raw)
    who = measured(loaded.raw, experiment.plan)
    group_table.write(path / group_table.FILE, finals, loaded.ready, who)
    class_accuracy.write(path / class_accuracy.FILE, worker, finals, loaded.ready, who)
    shares = [s for saved in finals if (s := _share(method, saved)) is not None]
    results.write_results(
        path,
        label,
        called(method),
        first.task,
        loaded.raw,
        who,
        first.solving,
        {saved.task.seed: saved.fingerprint for saved in finals},
        float(np.mean(shares)) if shares else None,
        experiment.plan.rounds,
        privacy_spent.spent(
            experiment.plan,
            ProtectedRun(method, first.task, loaded.raw, experiment.plan.rounds, path / "state"),
        ),
    )


def _share(method: Method, saved: SavedRun) -> float | None:
    masks = [method.personal(state) for state in saved.clients.values()]
    shares = [m.fraction for m in masks if m is not None]
    return float(np.mean(shares)) if shares else None


def _write_index(experiment: Experiment, task: Task, out: Path) -> None:
    done = [label for label in experiment.methods if (out / label / "results.json").exists()]
    runs = [
        {"label": label, "method": called(experiment.methods[label]), "dir": label}
        for label in done
    ]
    results.write_index(out, runs, task, experiment.table["task"]["name"])


def _judge(experiment: Experiment, out: Path) -> None:
    """Say of every method how many people it harms, where local-only ran beside it, and seal it."""
    names = {label: called(m) for label, m in experiment.methods.items()}
    alone = [label for label, name in names.items() if name == "local_only"]
    for label in names if experiment.several else ():
        if alone and not results.judged(out / label):
            checksums.unseal(out / label)
            results.write_harm(out / label, out / alone[0])
        checksums.seal(out / label)
    checksums.seal(out)
