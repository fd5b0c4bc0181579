"""Toy people, a toy task, one call to run a method on them, and ways to stop it and look."""

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from torch import nn

from vergence.core import files
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.stages import Staged
from vergence.core.task import Model, Task
from vergence.data.synthetic.toy import Toy as People
from vergence.engine import round_loop
from vergence.engine.round_loop import Plan, RunOutcome, run_rounds
from vergence.engine.storage.run_directory import TABLES, RunDirectory
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)


@dataclass(frozen=True)
class Chain(Model):
    """A line in three stages, for methods that cut a network."""

    def build(self):
        return Stages()


class Stages(Staged):
    def __init__(self):
        super().__init__()
        self.stages = {name: (name,) for name in ("first", "middle", "last")}
        self.first = nn.Linear(4, 6, bias=False)
        self.middle = nn.Linear(6, 6, bias=False)
        self.last = nn.Linear(6, 1, bias=False)
        nn.init.eye_(self.middle.weight)

    def stage(self, name, x, *beside):
        return self.get_submodule(name)(x)


CHAIN = ToyTask(Chain())
STAMP = {"config": "a", "code": "b", "data": "c"}


def run_toy(
    path: Path,
    method,
    *,
    people: int = 3,
    inputs: int = 4,
    task: Task | None = None,
    federation: Federation | None = None,
    **plan,
) -> RunOutcome:
    """Run a method for seed 0 into `path`, in one process unless told otherwise."""
    plan = {"rounds": 4, "evaluate_every": 0, "workers": 1, **plan}
    folder = RunDirectory(path, STAMP)
    folder.open()
    task = task or ToyTask(Linear(inputs=inputs))
    federation = federation or People(people=people, inputs=inputs).load()
    return run_rounds(method, task, federation=federation, plan=Plan(**plan), folder=folder)


def table(path: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of a run's table."""
    with (path / name).open(newline="") as file:
        return list(csv.DictReader(file))


def untimed(path: Path) -> dict[str, list[dict[str, str]]]:
    """Return all tables of a run less the column of seconds."""
    found = {name: table(path, name) for name in ("rounds.csv", "people.csv", "turns.csv")}
    for row in found["rounds.csv"]:
        del row["seconds"]
    return found


class Interrupt:
    """Stop like Ctrl-C at the `at`-th write: before it, or after it and before anything else."""

    def __init__(self, at: int, after: bool) -> None:
        self.left, self.after, self.honest = at, after, files.write_whole

    def __call__(self, path: Path, *chunks: bytes, lasting: bool = False) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        self.honest(path, *chunks, lasting=lasting)
        if self.left == 0:
            raise KeyboardInterrupt


def left_behind(out: Path) -> dict[str, Any]:
    """Return what a run says, less times, memory and the sums over them."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = path.relative_to(out).as_posix()
        if path.name in TABLES:
            found[name] = [
                {k: v for k, v in row.items() if k != "seconds"}
                for row in table(path.parent, path.name)
            ]
        elif path.name == "results.json":
            told = json.loads(path.read_text())
            found[name] = {k: v for k, v in told.items() if k not in ("seconds", "peak_mb")}
        elif path.name == "masks.safetensors":  # its metadata come in any order
            found[name] = {n: a.tolist() for n, a in load(path.read_bytes()).items()}
        elif path.parent.name == "state" and path.suffix == ".safetensors":
            part = name.removesuffix(".safetensors").rpartition(".")[0]  # less the round
            found.setdefault(part, []).append(path.read_bytes())
        elif path.name in ("checkpoint.json", "SHA256SUMS"):
            found[name] = "there"
        elif path.name not in (".lock", "provenance.json") and "tfevents" not in path.name:
            found[name] = path.read_bytes()
    return found


def mostly_slow(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return parameters of which all but the quick ones are for the slow tests."""
    return [v if v in quick else pytest.param(v, marks=pytest.mark.slow) for v in values]


@contextmanager
def dying_in(round: int) -> Iterator[None]:
    """Let a run die in a round, after all replies and before its checkpoint."""
    plain = round_loop.RoundLoop.report

    def dies(self, done, server, seconds):
        if done == round:
            raise KeyboardInterrupt
        plain(self, done, server, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_loop.RoundLoop, "report", dies)
        with pytest.raises(KeyboardInterrupt):
            yield
