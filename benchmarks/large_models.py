"""What a run of a large model costs on a CPU beside its gradient steps: sums, states, checkpoints.

python -m benchmarks.large_models [--million 70] [--people 5] [--rounds 5] [--runs 3]
    [--against FOLDER]: CPU and wall seconds of a round beside the steps, and of a person who takes
part, and seconds of whole rounds, for FedAvg and FedCPF; medians over rounds. `--against` names the
`src` folder of another version, whose runs alternate with this one's.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.task import Model
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver

WIDTH = 1024
METHODS = {"fedavg": FedAvg, "fedcpf": FedCPF}


@dataclass(frozen=True)
class Deep(Model):
    """Square layers of a million numbers each, whose step costs little beside their size."""

    layers: int = 66

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, WIDTH), *(Added() for _ in range(self.layers)), nn.Linear(WIDTH, 1)
        )


class Added(nn.Linear):
    """A square layer whose output is added to its input, so that every layer learns."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input) / 8


class Clock:
    """CPU and wall seconds of this process outside of gradient steps, wall seconds, and pages."""

    def __init__(self) -> None:
        self.trained, fit = [0.0, 0.0], Solver.fit

        def timed(*rest, **more):
            begun = time.thread_time(), time.perf_counter()
            result = fit(*rest, **more)
            self.trained[0] += time.thread_time() - begun[0]
            self.trained[1] += time.perf_counter() - begun[1]
            return result

        mock.patch.object(Solver, "fit", timed).start()

    def read(self) -> tuple[float, float, float, int]:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        cpu, wall = time.process_time(), time.perf_counter()
        return cpu - self.trained[0], wall - self.trained[1], wall, faults


def people(count: int) -> Federation:
    """Clients with one row each, so that a round has one step for each of them."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(count, 5, generator=generator).split([4, 1], 1)
    parts = {f"c{i}": Samples({"x": x[i : i + 1], "y": y[i]}) for i in range(count)}
    return Federation("few", {name: Splits(p, p, p) for name, p in parts.items()})


def one_run(method: str, million: int, count: int, rounds: int) -> dict[str, list[float]]:
    """Run a method; return by what is measured its values of every round but the first two."""
    torch.set_num_threads(1)
    local = LocalTraining(optimizer="sgd", lr=1e-3, batch=1, clip=0.0)
    clock, marks = Clock(), []
    task = ToyTask(Deep(million * 1_000_000 // WIDTH**2))
    plan = Plan(rounds=rounds + 2, evaluate_every=0, workers=1, solver="sequential", device="cpu")
    with run_folder() as folder:
        run = run_rounds(
            METHODS[method](local=local),
            task,
            federation=people(count),
            plan=plan,
            folder=folder,
            tick=lambda *_: marks.append(clock.read()),
        )
    # The last mark is that of the evaluation at the end. First rounds touch all memory.
    spans = list(itertools.pairwise(marks[2:-1]))
    names = ("cpu", "wall", "round", "pages")
    spent = {name: [b[i] - a[i] for a, b in spans] for i, name in enumerate(names)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return spent | {"peak": [peak], "fingerprint": run.fingerprint}


def child(source: str, *arguments: object) -> dict[str, list[float]]:
    """Measure one run in a process of its own, of the version in the folder `source`."""
    path = os.pathsep.join([source, *sys.path])
    call = [sys.executable, "-m", "benchmarks.large_models", "--child", json.dumps(arguments)]
    done = subprocess.run(call, env={**os.environ, "PYTHONPATH": path}, stdout=-1, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    given = options(__doc__, million=70, people=5, rounds=5, runs=3, against="", only="", child="")
    if given.child:
        print(json.dumps(one_run(*json.loads(given.child))))
        return
    here = next(place for place in sys.path if place.endswith("src"))
    sources = [here, *([given.against] if given.against else [])]
    for method in [given.only] if given.only else METHODS:
        runs: dict[str, list[dict]] = {source: [] for source in sources}
        for _ in range(given.runs):
            for source in sources:
                at = (method, given.million, given.people, given.rounds)
                runs[source].append(child(source, *at))
        prints = {run["fingerprint"] for some in runs.values() for run in some}
        for source, some in runs.items():
            names = ("cpu", "wall", "round", "pages")
            whole = {n: [v for run in some for v in run[n]] for n in names}
            cpu, wall, round_, pages = (median(values) for values in whole.values())
            print(
                f"{method}, {source}: {cpu:.2f} CPU s and {wall:.2f} s a round beside the steps, "
                f"{cpu / given.people:.3f} and {wall / given.people:.3f} a person, "
                f"{round_:.2f} s a round with them, "
                f"{pages / 1000:.0f} thousand pages, "
                f"peak {median(run['peak'][0] for run in some):.1f} GiB, "
                f"{len(prints)} fingerprint(s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
