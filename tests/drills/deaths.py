"""Drills: clients killed in every round, a server killed anywhere, and long or full disks."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy import stats

from tests.cli.commands import ONE
from tests.drills.drilling import METHOD, Row, Sizes, scratch, spread
from tests.engine.toys import STAMP, run_toy, table
from tests.lines import Line
from vergence.cli.main import main as vergence
from vergence.core import files
from vergence.core.randomness import RandomStream
from vergence.core.serialization import unpack
from vergence.data.synthetic.toy import Toy as People
from vergence.deployment.client_node import ClientNode
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage import run_directory
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

RATES = (0.3, 0.5, 0.7)
PIECE = 256
"""A file is written so many bytes at a time where a server is killed inside a write."""
FULL = (2500, 4000, 6000)
"""Bytes at which files end on a full disk."""


@dataclass
class Mortal(Line):
    """A line to homes of which some die: before a turn, in the middle of a file, or after it."""

    federation: Any
    task: ToyTask
    folder: Path
    rate: float
    plan: Plan

    def ask(self, client: str, request: bytes) -> bytes:
        """Answer, or die by a draw that depends on seed, client and round alone."""
        what, folder = unpack(request, ClientRequest), self.folder / client
        folder.mkdir(parents=True, exist_ok=True)
        draw = random.Random(f"{self.task.seed} {client} {what.message.round}")
        dies = what.kind == "turn" and draw.random() < self.rate
        where = draw.choice(("before", "inside", "after"))
        if dies and where == "inside":
            (folder / f"seed0.client.{client}.{what.stamp}.safetensors.part").write_bytes(b"half")
        if dies and where != "after":
            raise ClientLost("killed")
        own = self.federation.only((client,))
        worker = ClientExecutor(
            METHOD, self.task, LocalData(own, own), RandomStream("run", self.task.seed)
        )
        runner = ClientRunner(worker, ClientStateStore(folder, self.task.seed, worker.records))
        answer = ClientNode(runner, client, plan=self.plan).answer(request)
        if dies:
            raise ClientLost("killed")
        return answer


def with_deaths(rate: float, seed: int, sizes: Sizes) -> tuple[dict[str, float], int, float]:
    """Return everybody's error at the end, the rounds that ended, and the share of turns lost."""
    with scratch() as home:
        federation = People(people=sizes.people).load()
        counts = {client: len(s.train) for client, s in federation.people.items()}
        task = ToyTask(Linear(), seed=seed)
        folder = RunDirectory(home / "server", STAMP, elsewhere=True)
        folder.open()
        plan = Plan(rounds=sizes.rounds, evaluate_every=0, solver="sequential")
        line = Mortal(federation, task, home / "homes", rate, plan)
        run_rounds(
            METHOD,
            task,
            federation=remote_people("toy", counts),
            plan=plan,
            folder=folder,
            pool_factory=remote_pool(line),
        )
        turns = [row["status"] for row in table(home / "server", "turns.csv")]
        ended = {
            row["round"]
            for row in table(home / "server", "rounds.csv")
            if row["metric"] == "replies" and row["round"] != "0"
        }
        people = table(home / "server", "people.csv")
        errors = {r["person"]: float(r["value"]) for r in people if r["metric"] == "error"}
        return errors, len(ended), turns.count("lost: killed") / len(turns)


def clients(sizes: Sizes) -> Iterator[Row]:
    """Kill clients in every round; compare the error with that of the clean run, person by person.

    The interval is Student's over people, of the mean over seeds.
    """
    tasks = [(rate, seed, sizes) for rate in (0.0, *RATES) for seed in range(sizes.seeds)]
    found = list(spread(with_deaths, tasks))
    by = {
        rate: [f for t, f in zip(tasks, found, strict=True) if t[0] == rate]
        for rate in (0.0, *RATES)
    }

    def errors(rate: float) -> np.ndarray:
        return np.mean([[e[p] for p in sorted(e)] for e, _, _ in by[rate]], axis=0)

    clean = errors(0.0)
    for rate in RATES:
        gap = errors(rate) - clean
        half = stats.t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / np.sqrt(len(gap))
        low, high = gap.mean() - half, gap.mean() + half
        ended = all(rounds == sizes.rounds for _, rounds, _ in by[rate])
        lost = np.mean([share for _, _, share in by[rate]])
        yield Row(
            f"clients killed, {rate:.0%} a round, {sizes.rounds} rounds, {sizes.seeds} seeds",
            "every round ends" + ("; error as without" if rate == RATES[0] else ""),
            f"{'all ended' if ended else 'NOT ALL ENDED'}; {lost:.0%} of turns lost; error "
            f"{errors(rate).mean():.4f}, clean {clean.mean():.4f}, difference {gap.mean():+.4f} "
            f"[{low:+.4f}, {high:+.4f}]",
            ended and (rate != RATES[0] or low <= 0 <= high),
        )


# --- the server killed

Die = Callable[[], None]


def dying(where: str, at: int) -> None:
    """Arrange that this process is killed at the `at`-th event of a kind; 0: never, but count."""
    left = [at]

    def event() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_whole(path: Path, *chunks: bytes | memoryview, **_: bool) -> None:
        part, data = files.part_of(path), b"".join(chunks)
        with part.open("r+b" if part.exists() else "wb", buffering=0) as file:
            for start in range(0, len(data), PIECE):
                event()
                file.write(data[start : start + PIECE])
            event()
            file.truncate()
        event()
        part.replace(path)

    honest = RunDirectory.append

    def append(self: RunDirectory, name: str, rows: Any) -> None:
        rows = list(rows)
        for row in rows:
            honest(self, name, [row])
            event()

    if where == "inside a file":
        files.write_whole = write_whole
    elif where == "inside a table":
        RunDirectory.append = append  # type: ignore[method-assign]
    elif where == "opening a file":
        sys.addaudithook(lambda name, _: event() if name == "open" else None)
    dying.left = left  # type: ignore[attr-defined]


def served(path: Path) -> str:
    return run_toy(path, METHOD, people=5, rounds=20).fingerprint


def forked(do: Callable[[], None]) -> int:
    """Do something in a process of its own; return its number."""
    child = os.fork()
    if not child:
        try:
            do()
        finally:
            os._exit(0)
    return child


def killed(where: str, share: float, whole: str, events: int, seconds: float) -> tuple[bool, bool]:
    """Kill a run, go on with it; tell whether it was killed, and whether the bits are the same."""
    with scratch() as home:

        def run() -> None:
            dying(where, max(round(share * events), 1))
            served(home)

        child = forked(run)
        if where == "at any time":
            time.sleep(share * seconds)
            os.kill(child, signal.SIGKILL)
        died = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        return died, served(home) == whole


PLACES = ("at any time", "inside a file", "inside a table", "opening a file")


def counted(where: str) -> int:
    """Return how many events of a kind a whole run has."""
    with scratch() as home:
        read, write = os.pipe()

        def run() -> None:
            dying(where, 0)
            served(home)
            os.write(write, str(-dying.left[0]).encode())  # type: ignore[attr-defined]

        os.waitpid(forked(run), 0)
        return int(os.read(read, 20))


def kills(where: str, number: int) -> tuple[int, int]:
    """Kill a run `number` times; return how often it was killed, and went on to the same bits.

    One that ended before it could be killed is no kill, and is done again.
    """
    with scratch() as home:
        served(home / "warm")
        began = time.monotonic()
        whole = served(home / "whole")
        seconds = time.monotonic() - began
    events = counted(where) if where != PLACES[0] else 0
    draw = random.Random(where)
    killings, same = 0, 0
    while killings < number:
        died, equal = killed(where, draw.random(), whole, events, seconds)
        killings += died
        same += died and equal
    return killings, same


def server(sizes: Sizes) -> Iterator[Row]:
    """Kill a run with SIGKILL, start it again, compare fingerprints."""
    shares = [sizes.kills // 4 + (i < sizes.kills % 4) for i in range(4)]
    tasks = list(zip(PLACES, shares, strict=True))
    found = list(spread(kills, tasks))
    for (where, number), (died, same) in zip(tasks, found, strict=True):
        yield Row(
            f"server kill -9 {where}",
            f"{number}/{number} equal fingerprints",
            f"{same}/{died}",
            same == died == number,
        )
    total = sum(same for _, same in found)
    yield Row(
        "server kill -9, all",
        f"{sizes.kills}/{sizes.kills}",
        f"{total}/{sizes.kills}",
        total == sizes.kills,
    )


# --- soak and full disk


def soaked(rounds: int) -> list[tuple[float, int]]:
    """Return memory in bytes and open files after every round."""
    seen, page = [], os.sysconf("SC_PAGE_SIZE")

    def look(*_: Any) -> None:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
        seen.append((float(resident), sum(1 for _ in Path("/proc/self/fd").iterdir())))

    with scratch() as home:
        folder = RunDirectory(home, STAMP)
        folder.open()
        plan = Plan(rounds=rounds, evaluate_every=0, workers=1, solver="sequential")
        run_rounds(
            METHOD,
            ToyTask(Linear()),
            federation=People(people=3).load(),
            plan=plan,
            folder=folder,
            tick=look,
        )
    return seen


def soak(sizes: Sizes) -> Iterator[Row]:
    """Run many rounds; the slope is that of a line through the second nine tenths."""
    (seen,) = spread(soaked, [(sizes.soak,)])
    late = seen[len(seen) // 10 :]
    memory = np.array([m for m, _ in late])
    slope = np.polyfit(np.arange(len(late)), memory, 1)[0] * 1000 / memory.mean()
    files = {f for _, f in late}
    yield Row(
        f"soak, {sizes.soak:,} rounds",
        "memory < 1 % per 1000 rounds, descriptors constant",
        f"{slope:+.3%} per 1000 rounds at {memory.mean() / 2**20:.0f} MiB; "
        f"{'/'.join(map(str, sorted(files)))} descriptors",
        slope < 0.01 and len(files) == 1,
    )


def command(*arguments: object, largest: int | None = None) -> tuple[int, str]:
    """Run the command in a process of its own, where no file may be larger; return code, stderr."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = StringIO()
        code = 99
        try:
            if largest is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
            argv = ["vergence", *map(str, arguments)]
            with patch.object(sys, "argv", argv), redirect_stderr(said), redirect_stdout(said):
                vergence()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            os.write(write, said.getvalue().encode()[-2000:])
            os._exit(code)
    os.close(write)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(read, "rb") as pipe:
        return code, pipe.read().decode()


def filled(largest: int) -> tuple[int, int, int, bool]:
    """Return the exit code on a full disk, the round kept, that of resuming, and whether equal."""
    with scratch() as home:
        (home / "toy.toml").write_text(ONE.replace("rounds = 3", "rounds = 30"))
        command("run", home / "toy.toml", "--out", home / "whole")
        out = home / "out"
        full, _ = command("run", home / "toy.toml", "--out", out, largest=largest)
        kept = run_directory.read_manifest(out)["round"] if (out / "state").exists() else -1
        again, _ = command("resume", out)
        prints = [
            json.loads((home / n / "results.json").read_text())["fingerprint"]
            for n in ("whole", "out")
            if (home / n / "results.json").exists()
        ]
        return full, kept, again, len(prints) == 2 and prints[0] == prints[1]


def disk(_: Sizes) -> Iterator[Row]:
    """Let the disk be full (no file may grow beyond a size) at three points of a run; go on."""
    found = spread(filled, [(largest,) for largest in FULL])
    for largest, (full, kept, again, same) in zip(FULL, found, strict=True):
        yield Row(
            f"disk full, files end at {largest:,} bytes",
            "exit code not 0, previous checkpoint loads",
            f"exit {full}, round {kept} of 30 kept, resumed with exit {again}, fingerprint "
            f"{'equal' if same else 'DIFFERENT'}",
            full not in (0, 99) and kept > 0 and again == 0 and same,
        )
