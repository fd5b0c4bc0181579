"""Checkpoints of large networks: when they are due, and a thread that writes them.

States of a large network's clients stay in memory until a checkpoint needs their files.
"""

import errno
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_methods import NAMES, build, task_of
from tests.engine.learners import LOCALS
from tests.engine.toys import run_toy, table
from vergence import profiling
from vergence.core import files
from vergence.core.files import Unsaved
from vergence.core.serialization import pack
from vergence.engine import round_loop
from vergence.engine.plan import Plan
from vergence.engine.storage import run_directory
from vergence.engine.storage.run_directory import RunDirectory, read_manifest
from vergence.methods.fedcpf import FedCPF

METHOD = FedCPF(local=LOCALS["plain"], rate=0.2)
PLAN: dict[str, Any] = {"people": 4, "rounds": 4, "checkpoint_every": 1}


@pytest.fixture
def large(monkeypatch) -> None:
    """Let every network count as a large one."""
    monkeypatch.setattr(round_loop, "LARGE", 0)


@pytest.fixture
def late(monkeypatch) -> threading.Event:
    """Let a thread write only when the run waits for it, as late as it can.

    Returns an event that lets it write at once.
    """
    waited, wait = threading.Event(), RunDirectory.wait
    write = RunDirectory._save

    def waiting(self, seconds=None):
        if seconds is None and self._writer is not None:
            waited.set()
        wait(self, seconds)

    def writing(self, *rest):
        if threading.current_thread() is not threading.main_thread():
            assert waited.wait(60)
            waited.clear()
        write(self, *rest)

    monkeypatch.setattr(RunDirectory, "wait", waiting)
    monkeypatch.setattr(RunDirectory, "_save", writing)
    return waited


@pytest.mark.parametrize(
    ("plan", "large", "due"),
    [
        ({}, False, [1, 2, 3, 4]),
        ({}, True, [3]),
        ({"checkpoint_seconds": 0}, True, []),
        ({"checkpoint_every": 2}, True, [2, 3, 4]),
        ({"checkpoint_every": 2, "checkpoint_seconds": 0}, True, [2, 4]),
        ({"checkpoint_every": 0}, False, []),
    ],
)
def test_a_checkpoint_is_due_by_rounds_or_by_seconds(plan, large, due):
    """The third round ends 30 seconds after the last checkpoint."""
    seconds = {1: 1.0, 2: 29.9, 3: 30.0, 4: 0.0}
    plan = Plan(**plan)
    assert [r for r in seconds if plan.checkpoint_due(r, large, seconds[r])] == due


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("plan", "saved"),
    [
        ({"checkpoint_every": "auto"}, [0, 4, 4]),
        ({"checkpoint_every": "auto", "checkpoint_seconds": 1e-9}, [0, 1, 2, 3, 4, 4]),
        ({"checkpoint_every": 3}, [0, 3, 4, 4]),
        ({"checkpoint_every": 0}, [4]),
    ],
)
def test_the_last_round_has_a_checkpoint(plan, saved, tmp_path, monkeypatch):
    rounds, save = [], RunDirectory.save

    def note(self, seed, round, *rest):
        rounds.append(round)
        save(self, seed, round, *rest)

    monkeypatch.setattr(RunDirectory, "save", note)
    run_toy(tmp_path, METHOD, **{**PLAN, **plan})
    assert rounds == saved


def test_a_small_run_starts_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(run_directory, "Thread", None)
    run_toy(tmp_path, METHOD, **PLAN)


@pytest.mark.slow
@pytest.mark.usefixtures("large", "late")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_goes_on_from_any_moment_of_the_thread(workers, tmp_path, monkeypatch):
    """The folder is copied before and after each file that a thread writes, a round too late."""
    whole = run_toy(tmp_path / "plain", METHOD, **PLAN, workers=workers).fingerprint
    write, copies = files.write_whole, []

    def copying(path: Path, *chunks, **more):
        apart = threading.current_thread() is not threading.main_thread()
        for moment in ("before", "after") if apart else ():
            if moment == "after":
                write(path, *chunks, **more)
            copies.append(tmp_path / f"{len(copies)}.{moment}.{path.name}")
            shutil.copytree(tmp_path / "run", copies[-1])
        if not apart:
            write(path, *chunks, **more)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", copying)
        assert run_toy(tmp_path / "run", METHOD, **PLAN, workers=workers).fingerprint == whole
    # Five checkpoints, of which each has a server's state and a manifest; and in three rounds the
    # states of four people, where no other process has written them.
    assert len(copies) == (44 if workers == 1 else 20)
    for copy in copies[workers - 1 :: 3]:
        assert run_toy(copy, METHOD, **PLAN, workers=1).fingerprint == whole
        assert table(copy, "turns.csv") == table(tmp_path / "run", "turns.csv")
        assert {f.name for f in (copy / "state").iterdir()} == {
            f.name for f in (tmp_path / "run" / "state").iterdir()
        }


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("round", [2, 4])
def test_an_error_of_the_thread_ends_the_run_with_its_cause(round, tmp_path, monkeypatch):
    whole = run_toy(tmp_path / "plain", METHOD, **PLAN).fingerprint
    write = files.write_whole

    def full(path: Path, *chunks, **more):
        if f"server.{round}." in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *chunks, **more)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", full)
        with pytest.raises(Unsaved, match="No space left on device"):
            run_toy(tmp_path / "run", METHOD, **PLAN)
    # No round counts as stored that is not.
    assert read_manifest(tmp_path / "run")["round"] == round - 1
    assert run_toy(tmp_path / "run", METHOD, **PLAN).fingerprint == whole


@pytest.mark.usefixtures("large")
def test_an_interrupted_run_waits_for_the_thread(tmp_path, monkeypatch):
    interrupted, write = threading.Event(), RunDirectory._save

    def slow(self, *rest):
        if threading.current_thread() is not threading.main_thread() and rest[1] == 2:
            assert interrupted.wait(60)
        write(self, *rest)

    def stop(self, done, *rest):
        report(self, done, *rest)
        if done == 3:
            interrupted.set()
            raise KeyboardInterrupt

    report = round_loop.RoundLoop.report
    monkeypatch.setattr(RunDirectory, "_save", slow)
    monkeypatch.setattr(round_loop.RoundLoop, "report", stop)
    before = set(threading.enumerate())  # a server of another test may still end
    with pytest.raises(KeyboardInterrupt):
        run_toy(tmp_path, METHOD, **PLAN)
    assert read_manifest(tmp_path)["round"] == 2
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("large", "late")
def test_a_run_that_a_caller_stops_says_so_in_no_earlier_checkpoint(tmp_path, monkeypatch):
    replaced, seen = RunDirectory._replace_manifest, []

    def look(self):
        seen.append((self.manifest["round"], self.manifest.get("stopped")))
        replaced(self)

    monkeypatch.setattr(RunDirectory, "_replace_manifest", look)
    monkeypatch.setattr(round_loop.RoundLoop, "tell", lambda _, done, *__, **___: done == 2)
    run_toy(tmp_path, METHOD, **{**PLAN, "rounds": 4})
    assert [bool(stopped) for _, stopped in seen] == [done == 2 for done, _ in seen]


def test_a_thread_counts_for_the_phase_that_runs_beside_it():
    profile = profiling.start()
    try:
        thread = threading.Thread(target=lambda: profiling.phase("report").__enter__())
        with profiling.phase("training"):
            thread.start()
            thread.join()
            assert profile.running == "training"
    finally:
        profiling.stop()


def test_the_default_saves_what_a_small_run_saved():
    assert Plan().checkpoint_every == "auto"
    assert all(Plan().checkpoint_due(r, large=False, seconds=0.0) for r in range(1, 100))
    assert not Plan(checkpoint_seconds=math.inf).checkpoint_due(7, large=True, seconds=1e9)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("room", "written"), [(1 << 30, 4), (0, 16)])
def test_states_of_one_process_stay_in_memory(room, written, tmp_path, monkeypatch):
    """Four people take four turns each, and the run has one checkpoint."""
    names, write = [], files.write_whole

    def note(path: Path, *chunks, **more):
        names.append(path.name)
        write(path, *chunks, **more)

    plan = {**PLAN, "checkpoint_every": 0}
    apart = run_toy(tmp_path / "a", METHOD, **plan, workers=2)
    monkeypatch.setattr(files, "write_whole", note)
    monkeypatch.setattr(round_loop, "available_bytes", lambda: room)
    run = run_toy(tmp_path / "b", METHOD, **plan)
    assert run.fingerprint == apart.fingerprint
    assert sum(".client." in name for name in names) == written
    assert [pack(run.clients[c]) for c in run.clients] == [
        pack(apart.clients[c]) for c in apart.clients
    ]
    assert {f.name for f in (tmp_path / "a" / "state").iterdir()} == {
        f.name for f in (tmp_path / "b" / "state").iterdir()
    }


class Own(FedCPF):
    """A method of one's own, which may change a state in place."""


@pytest.mark.usefixtures("large")
def test_states_of_a_method_of_ones_own_are_read_from_their_files(tmp_path, monkeypatch):
    monkeypatch.setattr(round_loop, "available_bytes", None)
    run_toy(tmp_path, Own(local=LOCALS["plain"]), **PLAN)


@pytest.mark.nightly
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", NAMES)
def test_every_method_computes_the_same_from_memory(name, tmp_path, monkeypatch):
    method = build(name)
    plan = {"people": 4, "rounds": 3, "task": task_of(method), "evaluate_every": 1}
    run = run_toy(tmp_path / "a", method, **plan)
    monkeypatch.setattr(round_loop, "LARGE", math.inf)
    assert run_toy(tmp_path / "b", method, **plan).fingerprint == run.fingerprint
