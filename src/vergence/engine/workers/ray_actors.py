"""Worker pool of Ray actors, on this machine or on many.

The machines need not share a disk. People's data and messages are put into Ray's object store; a
machine fetches those that it needs once, and its actors read that one copy. A client's state stays
on the machine that computed it, until a checkpoint of the driver (the process that started the run)
needs it, or an actor of another machine. Actors get the groups of people whom they have worked for.

Used by `engine.solver_selection` and `engine.workers.pools`.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import platform
import secrets
import shutil
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.core.aggregation import Sum
from vergence.engine.client_runner import ClientRunner
from vergence.engine.records import ClientResult, ClientTask, GroupResult, TaskBatch
from vergence.engine.secure_sums import SecureSum
from vergence.engine.storage.client_states import ResidentStateStore
from vergence.engine.workers.ray_transfer import (
    PayloadStateStore,
    Reference,
    RemoteState,
    TaskPayload,
    WorkerSpec,
    as_array,
    as_tensor,
    bytes_of,
    fetched_states,
    files_of,
    kind,
    load,
)
from vergence.errors import ConfigError, PartialRun, VergenceError
from vergence.system.memory import keep_freed_memory
from vergence.system.processes import cpu_count

ADDRESS = "RAY_ADDRESS"
"""The environment variable that names a running cluster; without it Ray is started here."""
FOLDERS: list[str] = []
"""Folders of the Ray clusters that this process has started."""
IDLE: dict[tuple[str, str], list[Reference]] = {}
"""Node and job of a connection to Ray -> actors of finished runs, which the next run uses."""
RAY_DEFAULTS = {
    # Ray would send statistics of its use to its makers.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else every start warns of a change to come.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray's 15 leaves workers 3 % of a busy core.
    "RAY_worker_niceness": "0",
}
"""Environment variables for Ray that are set unless the user has set them."""
# Seconds in which an actor must have started; a machine that joins a cluster loads torch first.
START = 180.0
# A group whose actor dies is begun again, but not for ever: its client may be what kills the actor.
TRIES = 3
# Groups that an actor is given at a time, so that it does not wait for the next.
AHEAD = 2


def installed() -> None:
    """Check that Ray is installed.

    Raises:
        ConfigError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            'run.engine = "ray" needs Ray: `pip install \'vergence[cluster]\'`, or use "simulator"'
        )


def ready() -> ModuleType:
    """Import Ray, set up so that no other user can use a cluster started by this process."""
    # Ray's ports are open to the network, and whoever reaches them runs code. Ray's own protection
    # is a token in a file of the home folder; this token is in this process's environment only.
    installed()
    for name, value in RAY_DEFAULTS.items():
        os.environ.setdefault(name, value)
    free = not {ADDRESS, "RAY_AUTH_MODE"} & os.environ.keys()
    if free and "ray" not in sys.modules:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return importlib.import_module("ray")


def begin(workers: int) -> ModuleType:
    """Return Ray, connected to the cluster in RAY_ADDRESS, or to one started on this machine.

    `workers` is the number of CPUs that a new cluster needs.

    Raises:
        ConfigError: there is no such cluster, or it does not start.
    """
    # It stays until the process ends: a start takes as long as many a run.
    ray, address, folder = ready(), os.environ.get(ADDRESS) or "local", None
    if FOLDERS and workers > ray.cluster_resources()["CPU"]:
        end()
    if ray.is_initialized():
        return ray
    options: dict[str, object] = {}
    try:
        if address == "local":
            # Ray puts sockets there, whose paths may have about a hundred letters.
            short = "/tmp" if Path("/tmp").is_dir() else None
            folder = tempfile.mkdtemp(prefix="ray", dir=short)
            FOLDERS.append(folder)
            options = {
                "num_cpus": max(workers, cpu_count()),
                "num_gpus": 0,
                "include_dashboard": False,
                "_temp_dir": folder,
            }
        elif "://" in address:
            raise ValueError("a Ray client's address; give HOST:PORT of the head")
        # Ray itself would try to connect for minutes.
        elif address.count(":") == 1:
            host, port = address.split(":")
            socket.create_connection((host, int(port)), 10).close()
        ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    except (OSError, RuntimeError, ValueError) as error:
        end()
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"Ray does not start on this machine: {reason}"
            if folder
            else f"no Ray cluster at {ADDRESS} = '{address}' ({reason}): start it with `ray start "
            "--head`, or unset the variable to use this machine alone"
        ) from None
    return ray


@atexit.register
def end() -> None:
    """Stop the Ray cluster that this process started, if any, and remove its folder."""
    IDLE.clear()
    while FOLDERS:
        importlib.import_module("ray").shutdown()
        folder = Path(FOLDERS.pop())
        # Ray's own processes write their last log lines after the shutdown.
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


class RayWorker:
    """A Ray actor: carries out groups of clients' tasks with one network in memory."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        carry_tensors()

    def prepare(
        self,
        modules: Mapping[str, str],
        recipe: Sequence[Reference],
        seed: int,
        sums: SecureSum | None,
    ) -> tuple[str, dict[str, str]]:
        """Build the network and all else that a run needs, in place of the run before.

        Args:
            modules: module name -> source text of the user's own files.
            recipe: list with the reference to a `WorkerSpec` in Ray's object store.
            seed: seed of the run.
            sums: its secure sums, if any.

        Returns:
            This machine's name, and what on it can change the last bits of results: a mapping from
            names, such as "torch", to versions or digests.
        """
        import ray

        load(modules)
        spec: WorkerSpec = ray.get(recipe[0])
        worker = spec.worker()
        self.runner = ClientRunner(worker, PayloadStateStore(Path(), seed, worker.records), sums)
        self.known: tuple[int, TaskBatch] | None = None
        return platform.node(), kind(worker)

    def carry_out(
        self, at: int, sent: Sequence[Reference], number: int, states: Mapping[str, Reference]
    ) -> TaskPayload:
        """Carry out group `number` of a batch; return its results and new states.

        Args:
            at: number of the batch. The batch is fetched once for all its groups.
            sent: list with the reference to the batch in Ray's object store.
            number: number of the group.
            states: file name -> a client's state before the task: its bytes, or a reference to
                them in Ray's object store.
        """
        import ray

        if self.known is None or self.known[0] != at:
            self.known = at, ray.get(sent[0])
        store = PayloadStateStore(
            Path(),
            self.runner.store.seed,
            self.runner.store.records,
            old_states=fetched_states(states),
        )
        self.runner.store = store
        try:
            return TaskPayload.of(
                self.runner.carry_out(self.known[1], number, Sum()), store.new_states
            )
        except VergenceError:
            raise
        except Exception:
            raise RuntimeError(traceback.format_exc()) from None


class RayCluster:
    """Carries out batches of clients' tasks with Ray actors.

    An actor that dies is replaced, and another actor carries out its groups again. The result of a
    group does not depend on the actor.

    Args:
        runner: the runner of tasks.
        workers: number of actors; 0: one per CPU that the cluster has as a batch begins.
        most: largest number of actors.

    Attributes:
        reused: actors of an earlier run.
        home: client -> the actor that worked for the client last, and has its data at hand.
    """

    def __init__(self, runner: ClientRunner, workers: int, most: int) -> None:
        self.runner, self.ray = runner, begin(min(workers, most))
        self.hands: list[Reference] = []
        self.coming: dict[object, Reference] = {}
        self.home: dict[str, Reference] = {}
        self.reused: list[Reference] = []
        self.jobs, self.idle = 0, True
        self.workers, self.most = workers, most
        try:
            self.count, cpus = self.wanted()
            if not 0 < self.count <= cpus:
                raise ConfigError(
                    f"run.workers asks for {self.count}, and Ray has {cpus} CPUs: use fewer, or "
                    "add machines (`ray start --address`)"
                )
            carry_tensors()
            self.recipe = [self.ray.put(WorkerSpec.of(runner.worker))]
            self.kind = kind(runner.worker)
            self.modules = files_of(runner.worker)
            self.start_missing()
            while self.coming:
                self.welcome(self.wait(list(self.coming), START))
        except BaseException:
            self.close()
            raise

    def wanted(self) -> tuple[int, int]:
        """Return how many actors the run wants, and the number of CPUs that the cluster has."""
        cpus = int(self.ray.cluster_resources().get("CPU", 0))
        return min(self.workers or cpus, self.most), cpus

    def run(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Hand out the batch; yield each group's number and result, in order."""
        self.jobs += 1
        # A machine that has joined the cluster is used, too.
        self.count, self.idle = max(self.count, self.wanted()[0]), False
        self.start_missing()
        shift = RayBatch(self, batch)
        for number in range(len(batch.groups)):
            yield number, shift.result(number)
        self.idle = True

    def idle_actors(self) -> list[Reference]:
        """Return the actors of finished runs; those of a connection that was closed are gone."""
        context = self.ray.get_runtime_context()
        return IDLE.setdefault((context.get_node_id(), context.get_job_id()), [])

    def start_missing(self) -> None:
        """Start actors until there are as many as the run asks for."""
        kind_of = self.ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(
            RayWorker
        )
        for _ in range(self.count - len(self.hands) - len(self.coming)):
            if idle := self.idle_actors():
                hand = idle.pop()
                self.reused.append(hand)
            else:
                hand = kind_of.remote()
            ready = hand.prepare.remote(
                self.modules, self.recipe, self.runner.store.seed, self.runner.sums
            )
            self.coming[ready] = hand

    def welcome(self, ref: object) -> None:
        """Accept an actor that has started, after comparing its machine's versions with this one's.

        `ref` is the reference to the actor's report on its versions.

        Raises:
            ConfigError: the actor's machine has other versions, and would compute other bits.
            PartialRun: the actor died before it had started.
        """
        hand = self.coming.pop(ref)
        try:
            machine, theirs = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            if hand in self.reused:
                # It died after the run before; another one is started.
                self.start_missing()
                return
            raise PartialRun(f"a Ray worker cannot start: {error}") from None
        for what, here in self.kind.items():
            if theirs.get(what, "") != here:
                raise ConfigError(
                    f"Ray's machine '{machine}' has another {what}, and would give other bits: "
                    f"{theirs.get(what, '')[:12]}, here {here[:12]}; use the same on all machines"
                )
        self.hands.append(hand)

    def wait(self, refs: Sequence[object], seconds: float | None) -> object:
        """Return the first of these Ray references whose result is there.

        If `seconds` is None, this waits for ever.

        Raises:
            PartialRun: no result came within `seconds`.
        """
        ready, _ = self.ray.wait(refs, num_returns=1, timeout=seconds)
        if ready:
            return ready[0]
        raise PartialRun(
            f"Ray gave {len(self.hands)} of {self.count} workers within {seconds:g} s: see `ray "
            "status`, add machines or use fewer run.workers, then begin again or `vergence resume`"
        )

    def lose(self, hand: object) -> None:
        """Remove an actor that died, and start another one."""
        if hand in self.hands:
            self.hands.remove(hand)
            self.ray.kill(hand)
            self.start_missing()

    def close(self) -> None:
        """Leave the actors to the next run, or kill them if they still work."""
        if self.ray.is_initialized():
            for hand in [*([] if self.idle else self.hands), *self.coming.values()]:
                self.ray.kill(hand)
            carry_tensors(False)
            if self.idle:
                self.idle_actors().extend(self.hands)
        self.hands, self.coming, self.home = [], {}, {}


class RayBatch:
    """A batch of tasks in progress on Ray actors.

    Attributes:
        todo: numbers of groups that no actor has.
        under_way: reference to a result -> (actor, number of the group).
        done: number of a group -> its result, for results that have not been asked for yet.
        tries: number of a group -> how often its actor died while it worked on the group.
    """

    def __init__(self, cluster: RayCluster, batch: TaskBatch) -> None:
        self.cluster, self.batch, self.at = cluster, batch, cluster.jobs
        self.sent = [cluster.ray.put(batch)]
        self.todo = set(range(len(batch.groups)))
        self.under_way: dict[object, tuple[Reference, int]] = {}
        self.done: dict[int, GroupResult] = {}
        self.tries: Counter[int] = Counter()

    def result(self, number: int) -> GroupResult:
        """Return the result of a group, after waiting for it if necessary."""
        cluster = self.cluster
        while number not in self.done:
            self._hand_out(number + 2 * AHEAD * cluster.count)
            seconds = None if self.under_way else START
            ref = cluster.wait([*self.under_way, *cluster.coming], seconds)
            if ref in cluster.coming:
                cluster.welcome(ref)
            else:
                self._receive(ref)
        return self.done.pop(number)

    def _hand_out(self, end: int) -> None:
        """Give groups whose number is below `end` to actors that have too little to do."""
        # The bound keeps few results waiting in memory for a group that takes longer.
        load = Counter({id(hand): 0 for hand in self.cluster.hands})
        load.update(id(hand) for hand, _ in self.under_way.values())
        for ahead in range(AHEAD):
            for hand in self.cluster.hands:
                last = ahead and len(self.todo) <= len(self.cluster.hands)
                near = sorted(number for number in self.todo if number < end)
                if load[id(hand)] > ahead or last or not near:
                    continue
                number = max(near, key=lambda n: self._nearness(n, hand))
                self.todo.remove(number)
                files = [task.file for task in self.batch.group(number) if task.file is not None]
                states = {file: self._state(file) for file in files}
                ref = hand.carry_out.remote(self.at, self.sent, number, states)
                self.under_way[ref] = hand, number
                load[id(hand)] += 1

    def _nearness(self, number: int, hand: object) -> int:
        """Return how many people of a group an actor worked for last, less those of other actors.

        Of groups that are as near the first is taken.
        """
        homes = [self.cluster.home.get(task.client) for task in self.batch.group(number)]
        return sum(1 if home is hand else -(home is not None) for home in homes)

    def _state(self, file: str) -> Reference:
        """Return a client's state as an actor takes it: bytes, or a reference to them."""
        store = self.cluster.runner.store
        if isinstance(store, ResidentStateStore) and file in store.waiting:
            state: Any = store.waiting[file][0]
            return state.data
        return bytes_of(store.folder / file)

    def _receive(self, ref: object) -> None:
        """Take a group's result from Ray, and write its clients' states into the run's folder."""
        cluster, (hand, number) = self.cluster, self.under_way[ref]
        errors = cluster.ray.exceptions
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                payload: TaskPayload = cluster.ray.get(ref)
        except errors.RayTaskError as error:
            known = isinstance(error.cause, VergenceError | RuntimeError)
            raise (error.cause if known else RuntimeError(str(error))) from None
        except errors.RayError as error:
            self._again(hand, error)
            return
        del self.under_way[ref]
        tasks = {task.client: task for task in self.batch.group(number)}
        cluster.home |= dict.fromkeys(tasks, hand)
        results = [self._filed(tasks[r.client], r, payload) for r in payload.results]
        self.done[number] = replace(payload.result(), results=results)

    def _filed(self, task: ClientTask, result: ClientResult, payload: TaskPayload) -> ClientResult:
        """Keep a client's new state for the run's folder; return the result with its reference."""
        if (filed := result.filed) is None:
            return result
        store = self.cluster.runner.store
        data, share = payload.states[filed.file], filed.share
        # A view would keep all of the payload in Ray's memory.
        data = data.copy() if isinstance(data, np.ndarray) else data
        state: Any = RemoteState(data, filed.xxh3, task.client, store.records)
        return replace(
            result, filed=store.write(task.client, self.batch.stamp, state, share, task.spare)
        )

    def _again(self, hand: object, error: Exception) -> None:
        """Put an actor's groups of client tasks back into the list of work, as the actor died.

        Raises:
            PartialRun: a group was tried as often as allowed, and its actor died each time.
        """
        # The actor worked on the first of them; the others waited and are not to blame.
        theirs = [ref for ref, (whose, _) in self.under_way.items() if whose is hand]
        first, *waiting = [self.under_way.pop(ref)[1] for ref in theirs]
        self.tries[first] += 1
        if self.tries[first] == TRIES:
            clients = ", ".join(task.client for task in self.batch.group(first)[:3])
            raise PartialRun(
                f"{TRIES} Ray workers died one after the other at the same clients ({clients}...: "
                f"{type(error).__name__}); the last checkpoint is kept: give them more memory, "
                "then `vergence resume`"
            )
        # Only after the check: Ray may wait for minutes where an actor is killed while it starts.
        self.cluster.lose(hand)
        self.todo |= {first, *waiting}


def carry_tensors(yes: bool = True) -> None:
    """Make Ray send tensors as numpy arrays, so that all actors of a machine read one copy.

    `yes` false undoes this.
    """
    from ray.util import serialization

    if yes:
        serialization.register_serializer(Tensor, serializer=as_array, deserializer=as_tensor)
    else:
        serialization.deregister_serializer(Tensor)
