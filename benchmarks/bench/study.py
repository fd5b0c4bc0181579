"""One benchmark: our engine and the peers, each beside the floor, turn by turn."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmarks.bench.clock import Lane, Turn
from benchmarks.bench.machine import describe
from benchmarks.bench.others import PEERS, Peer, check_names
from benchmarks.bench.workloads import WORKLOADS, Workload, find
from vergence.errors import ConfigError, DataError, PartialRun

CHECKOUT = Path(__file__).parents[2]
AGREE = 0.05
"""Two trainings agree when their final losses differ by no more of what training gained."""
ALL, ONE = "floor_all", "floor_one"
"""The floor with a process per core, and with one process."""
Turns = dict[str, list[Turn]]


class Say(Protocol):
    """Takes progress: what is measured now, and the share of the workload that is done."""

    def __call__(self, what: str, share: float) -> None:
        """Show it."""
        ...


def bench(
    names: Sequence[str],
    say: Say,
    rounds: int | None = None,
    pythons: Mapping[str, str] | None = None,
    plan: Mapping[str, Any] | None = None,
    precisions: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Measure workloads; the keys of the result are described in docs/results/bench.md.

    `rounds` replaces the workload's own number of timed rounds, `pythons` names the interpreter a
    peer is run with, `plan` holds further fields of the engine's plan. The engine also runs in each
    of `precisions`, in the same turns, and no peer.

    Raises:
        ConfigError: no such workload or peer, or no rounds.
        DataError: a workload asked for by name lacks its data; of all, such a one is left out.
        PartialRun: the engine or the floor ended early.
    """
    chosen = {name: find(name) for name in (names or WORKLOADS)}
    check_names(pythons or {})
    if rounds is not None and rounds < 1:
        raise ConfigError(f"bench: --rounds must be 1 or more; got {rounds}")
    lacking = {name: why for name, w in chosen.items() if (why := w.missing()) is not None}
    if names and lacking:
        raise DataError(next(iter(lacking.values())))
    found: dict[str, dict[str, Any]] = {name: {"missing": why} for name, why in lacking.items()}
    for name, workload in chosen.items():
        if name not in lacking:
            count = rounds or workload.rounds
            found[name] = measure(name, workload, count, pythons or {}, plan or {}, say, precisions)
    return found


def measure(
    name: str,
    workload: Workload,
    rounds: int,
    pythons: Mapping[str, str],
    plan: Mapping[str, Any],
    say: Say,
    precisions: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure one workload."""
    stint = min(workload.stint, rounds)
    turns = -(-rounds // stint)
    say(f"{name}: making data", 0.0)
    job = workload.job(name, 1 + turns * stint)
    apart = bool(precisions) or not workload.peers
    peers = PEERS if len(workload.methods) == 1 and not apart else {}
    blocks = 1 + len(peers)
    with tempfile.TemporaryDirectory(prefix="vergence-bench-") as place, ExitStack() as stack:
        folder = Path(place)
        job.save(folder)
        floors = {
            ALL: stack.enter_context(floor(folder, ALL, cores(), 1)),
            ONE: stack.enter_context(floor(folder, ONE, 1, workload.thin)),
        }
        options = {"scored": workload.scored, "saves": workload.saves, "plan": dict(plan)}
        lanes = {m: ours(folder, m, options) for m in workload.methods}
        for precision in precisions:
            how = {**options, "plan": {**plan, "precision": precision}}
            lanes[precision] = ours(folder, workload.methods[0], how, precision)
        told = block(
            lanes,
            floors,
            (turns, stint),
            at(say, name, 0, blocks),
        )
        first, *others = workload.methods
        planned = sum(map(job.steps_of_round, range(job.rounds)))
        result = told[first] | {
            "rounds": turns * stint,
            "same_steps": all(found["steps"] == planned for found in told.values()),
            "start_loss": job.cost(job.module()),
        }
        if precisions:
            result["precisions"] = {name: told[name] for name in precisions}
        if others:
            result["beside"] = {m: told[m] for m in others}
            result |= versus(*(told[m] for m in workload.methods))
        result["peers"] = {}
        for number, (peer, spec) in enumerate(peers.items(), start=1):
            missing = spec.missing(pythons.get(peer))
            if missing:
                result["peers"][peer] = {"missing": missing}
                continue
            found = against(
                Start(spec, peer, pythons.get(peer), folder),
                floors,
                (turns, stint),
                at(say, name, number, blocks),
            )
            result["peers"][peer] = compared(found, result)
    result["machine"] = describe()
    return result


def at(say: Say, name: str, block: int, blocks: int) -> Say:
    """Return how a block of a workload tells its progress."""
    return lambda what, share: say(f"{name}: {what}", (block + share) / blocks)


@dataclass(frozen=True)
class Start:
    """A peer about to be started: on which Python, on the job in which folder."""

    spec: Peer
    name: str
    python: str | None
    folder: Path

    def lane(self) -> Lane:
        """Start it."""
        command = self.spec.command(self.folder, self.python)
        log = self.folder / f"{self.name}.log"
        return Lane(self.name, command, log, self.spec.env(self.folder))


@contextmanager
def floor(folder: Path, name: str, processes: int, thin: int) -> Iterator[Lane]:
    """Start a floor, and end it."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench.floor",
        str(folder),
        str(processes),
        str(thin),
    ]
    with closing(Lane(name, command, folder / f"{name}.log", importable())) as lane:
        yield lane


def ours(folder: Path, method: str, options: Mapping[str, Any], name: str | None = None) -> Lane:
    """Start our engine; `name` is the lane's, and the method's if there is none."""
    command = [sys.executable, "-m", "benchmarks.bench.lane", str(folder), method]
    log = folder / f"{name or method}.log"
    return Lane(name or method, [*command, json.dumps(options)], log, importable())


def importable() -> dict[str, str]:
    """Return an environment in which `benchmarks` is ours from any working directory."""
    paths = [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def against(
    start: Start, floors: Mapping[str, Lane], pace: tuple[int, int], say: Say
) -> dict[str, Any]:
    """Measure a peer; one that fails says so and stops nobody else."""
    try:
        return block({start.name: start.lane()}, floors, pace, say)[start.name]
    except PartialRun as error:
        return {"error": str(error)}


def block(
    lanes: Mapping[str, Lane],
    floors: Mapping[str, Lane],
    pace: tuple[int, int],
    say: Say,
) -> dict[str, dict[str, Any]]:
    """Time lanes and floors in turn, `pace` = (turns, rounds per turn), forth and back again.

    The first round of a lane is its warm-up: not timed, its memory is read.
    """
    turns, stint = pace
    both = {**lanes, **floors}
    taken: Turns = {name: [] for name in both}
    with ExitStack() as stack:
        for lane in lanes.values():
            stack.enter_context(closing(lane))
        for name, lane in lanes.items():
            say(f"{name}, warm-up", 0.0)
            lane.turn(1, watch=True)
        before = [floors[name].turn(1) for name in (ALL, ONE)]
        for number in range(turns):
            order = list(both) if number % 2 == 0 else list(reversed(both))
            for name in order:
                say(f"{name}, turn {number + 1} of {turns}", number / turns)
                taken[name].append(both[name].turn(stint))
        ends = {name: lane.finish() for name, lane in lanes.items()}
    base = plain(taken[ALL], taken[ONE], before)
    return {
        name: ratios(taken[name], base) | {"peak_mb": lane.peak / 1e6} | ends[name]
        for name, lane in lanes.items()
    }


def plain(wide: Sequence[Turn], one: Sequence[Turn], before: Sequence[Turn]) -> list[Turn]:
    """Return what a round of plain steps costs: wall with all cores, processor time with one.

    The one-thread floor may have done a share of a round's steps only.
    """
    base, (last_wide, last_one) = [], before
    for now_wide, now_one in zip(wide, one, strict=True):
        share = (now_one.steps - last_one.steps) / (now_wide.steps - last_wide.steps)
        base.append(Turn(now_wide.wall, now_one.cpu / share))
        last_wide, last_one = now_wide, now_one
    return base


def ratios(turns: Sequence[Turn], base: Sequence[Turn]) -> dict[str, Any]:
    """Return medians over turns, and medians of the ratios to the floor of the same turn."""
    pairs = list(zip(turns, base, strict=True))
    return {
        "wall_over_floor": median(t.wall / b.wall for t, b in pairs),
        "cpu_over_floor": median(t.cpu / b.cpu for t, b in pairs),
        "wall_s": median(t.wall for t in turns),
        "cpu_s": median(t.cpu for t in turns),
        "floor_wall_s": median(b.wall for b in base),
        "floor_cpu_s": median(b.cpu for b in base),
        "turns": [[t.wall, t.cpu, b.wall, b.cpu] for t, b in pairs],
    }


def versus(
    mine: Mapping[str, Any], scored: Mapping[str, Any], bare: Mapping[str, Any]
) -> dict[str, float]:
    """Return FedCPF's round over FedAvg's, both scoring, and what scoring alone costs."""
    pairs = list(zip(mine["turns"], scored["turns"], strict=True))
    return {
        "wall_over_fedavg": median(a[0] / b[0] for a, b in pairs),
        "cpu_over_fedavg": median(a[1] / b[1] for a, b in pairs),
        "scoring_wall_s": scored["wall_s"] - bare["wall_s"],
        "scoring_cpu_s": scored["cpu_s"] - bare["cpu_s"],
    }


def compared(found: dict[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Say whether a peer did the same work: as many steps, and a final loss as near as stated."""
    if "error" in found:
        return found
    gained = abs(ours["start_loss"] - ours["loss"])
    apart = abs(found["loss"] - ours["loss"]) / gained if gained else 0.0
    return found | {
        "same_steps": found["steps"] == ours["steps"],
        "loss_apart": apart,
        "agrees": apart <= AGREE,
    }


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
