"""Checkpoints whose content is wrong and whose every digest is right, and what becomes of them."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.conformance.test_methods import build, task_of
from tests.deployment.test_remote_clients import PEOPLE
from tests.drills import mutants
from tests.drills.drilling import Row, Sizes, scratch, spread
from tests.drills.mutants import FORBIDDEN, Tried
from tests.engine.toys import STAMP
from vergence.core.messages import Message
from vergence.core.serialization import digest, quick_digest
from vergence.engine.round_loop import Plan, RoundSummary, run_rounds
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory, read_manifest, sealed_manifest
from vergence.engine.virtual_clock import ClockState
from vergence.errors import StateError

WATCHED = tuple(event for event in FORBIDDEN if event != "ctypes.dlopen")
"""A run that goes on asks the system's library for memory."""
METHODS = ("fedcpf", "scaffold", "fedrep", "splitfed")
PLAN = Plan(rounds=3, evaluate_every=0, workers=1, solver="sequential")
ODD = ("", "x", "../../x", "-1", "nan", "\0", "a\nb", '"', "é", "seed0.client.p00.9.9.safetensors")
CELLS = ("client", "file", "xxh3", "share")


class Stopped(Exception):
    """A run's end before its last round is kept."""


def stop(end: RoundSummary) -> None:
    if end.round == PLAN.rounds - 1:
        raise Stopped


class Forged:
    """An interrupted run whose checkpoint is another for a moment."""

    def __init__(self, name: str, folder: Path) -> None:
        self.method, self.honest, self.folder = build(name), folder / "honest", folder / "run"
        task = self.task = task_of(self.method)
        self.records = self.method.state_records(task)
        self.fresh = self.method.server(task), self.method.client(task)
        try:
            self.go_on(self.honest, stop)
        except Stopped:
            return
        raise AssertionError("it was not interrupted")

    def go_on(self, path: Path, tick: Any = None) -> str:
        folder = RunDirectory(path, STAMP)
        folder.open()
        return run_rounds(
            self.method, self.task, federation=PEOPLE, plan=PLAN, folder=folder, tick=tick
        ).fingerprint

    def read(self, path: Path) -> None:
        """Read all that a run goes on from, as it does."""
        folder, (server, client) = RunDirectory(path, STAMP), self.fresh
        folder.open()
        progress = folder.load(self.task.seed, (*self.records, ClockState, Message), server)
        store = ClientStateStore(folder.state, self.task.seed, self.records)
        for entry in progress.filed.values() if progress else ():
            store.read(entry.file, client)

    def one(self, draw: random.Random, quick: bool = False) -> bool:
        """Forge one and go on from it: it ends, or one line names the run's folder.

        What a file may say and a method cannot use, the method refuses in a line of its own.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.honest, self.folder)
        forge = draw.choice((self.manifest, self.server, self.client, self.journal))
        forge(draw)
        try:
            if quick:
                self.read(self.folder)
            self.go_on(self.folder)
        except StateError as error:
            if str(self.folder) not in str(error):
                raise AssertionError(f"it names no file: {error}") from error
            raise
        return True

    # --- what is forged; each seals its file, and those that name it

    def manifest(self, draw: random.Random) -> None:
        told = read_manifest(self.folder)
        while True:
            try:
                other = json.loads(mutants.text(mutants.nested(told, draw)))
                other.pop("sha256", None)
                return self._seal(other)
            except (ValueError, AttributeError, TypeError, RecursionError):
                continue  # that is no JSON table: there is nothing to seal

    def server(self, draw: random.Random) -> None:
        told = read_manifest(self.folder)
        about = told["files"]["server"]
        about[1] = digest(self._change(self.folder / "state" / about[0], mutants.tensors, draw))
        self._seal(told)

    def client(self, draw: random.Random) -> None:
        """Forge a client's state, and its last line in the table."""
        rows = self._rows()
        row = draw.choice([r for r in rows if (self.folder / "state" / r[1]).exists()])
        row[2] = quick_digest(self._change(self.folder / "state" / row[1], mutants.tensors, draw))
        self._table("\n".join(map(",".join, rows)).encode() + b"\n")

    def journal(self, draw: random.Random) -> None:
        rows = self._rows()
        row, cell = draw.choice(rows), draw.randrange(len(CELLS))
        match draw.randrange(3):
            case 0:
                row[cell] = draw.choice(ODD)
            case 1:
                del row[cell]
            case _:
                row[cell:cell] = draw.choice(rows)
        data = "\n".join(map(",".join, rows)).encode() + b"\n"
        self._table(mutants.bytewise(data, draw) if draw.random() < 0.3 else data)

    def _change(
        self, path: Path, how: Callable[[bytes, random.Random], bytes], draw: random.Random
    ) -> bytes:
        data = how(path.read_bytes(), draw)
        path.write_bytes(data)
        return data

    def _rows(self) -> list[list[str]]:
        file = read_manifest(self.folder)["files"]["clients"][0]
        text = (self.folder / "state" / file).read_text()
        return [line.split(",") for line in text.splitlines()]

    def _table(self, data: bytes) -> None:
        told = read_manifest(self.folder)
        about = told["files"]["clients"]
        (self.folder / "state" / about[0]).write_bytes(data)
        about[1:] = [len(data), digest(data)]
        self._seal(told)

    def _seal(self, told: dict[str, Any]) -> None:
        (self.folder / "state" / "checkpoint.json").write_bytes(sealed_manifest(told))


def forgeries(seed: int, count: int) -> tuple[Tried, float]:
    """Try so many; return what became of them, and seconds."""
    with scratch() as home:
        runs = [Forged(name, home / name) for name in METHODS]
        draw, tried, began = random.Random(seed), Tried(WATCHED), time.monotonic()
        for _ in range(count):
            run, each = draw.choice(runs), draw.getrandbits(32)
            how, quick = random.Random(each), each % 8 > 0
            tried.one(
                f"{run.method} {each}".encode(),
                lambda _, run=run, how=how, quick=quick: run.one(how, quick),
            )
        return tried, time.monotonic() - began


def forged(sizes: Sizes) -> Iterator[Row]:
    """Forge checkpoints, and seal them again."""
    found = list(spread(forgeries, [(seed, sizes.files // 2) for seed in (1, 2)]))
    every = [tried for tried, _ in found]
    crashes, ran = [c for t in every for c in t.crashes], [r for t in every for r in t.ran]
    count, refused = sum(t.count for t in every), sum(t.refused for t in every)
    worst = max(t.worst_s for t in every)
    for line in crashes[:5] + ran[:5]:
        print(line[:600], file=sys.stderr)
    yield Row(
        f"{count:,} forged checkpoints under the right digests",
        "one line that names the file, or a run that ends; no hang over 10 s, no code run",
        f"{len(crashes)} crashes, {len(ran)} runs of code, worst {worst * 1000:.0f} ms; "
        f"{refused:,} refused, {count - refused:,} went on; {max(s for _, s in found):.0f} s",
        not crashes and not ran and worst < 10,
    )
