"""Two worker processes against two Ray workers: seconds per round, and beside the rounds.

python -m benchmarks.cluster [--repeats 3] [--rounds 6]: FedCPF, 8 people, one epoch; every
measurement in a process of its own, the two engines in turn; median over rounds after the first.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from statistics import median

import torch

from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedcpf import FedCPF
from vergence.models.glc.glc_vit import GlcVit
from vergence.models.linear import Linear
from vergence.tasks.gaze_map import GazeMap
from vergence.tasks.toy import ToyTask

ENGINES = {"simulator": "2 processes", "ray": "2 Ray workers"}
WORK = {
    "a line of 5 entries": lambda: (ToyTask(Linear()), People(people=8), 8),
    "a line of 100,001 entries": lambda: (
        ToyTask(Linear(inputs=100_000)),
        People(people=8, inputs=100_000, samples=5),
        8,
    ),
    "GlcVit tiny64": lambda: (
        GazeMap(GlcVit(preset="tiny64")),
        EgoSynthetic(people=8, clips=12),
        4,
    ),
}
"""A task, its people, and the batch size."""


def measure(work: str, engine: str, rounds: int) -> dict[str, float | str]:
    """Run twice; return the median round, and the seconds of both runs that are no round's."""
    torch.set_num_threads(1)
    task, people, batch = WORK[work]()
    method = FedCPF(local=LocalTraining(optimizer="sgd", epochs=1, batch=batch, lr=1e-3), rate=0.1)
    federation, beside = people.load(), []
    plan = Plan(rounds=rounds + 1, evaluate_every=0, workers=2, solver="sequential", engine=engine)
    marks: list[float] = []
    for _ in range(2):
        marks.clear()
        with run_folder() as folder:
            began = time.perf_counter()
            outcome = run_rounds(
                method,
                task,
                federation=federation,
                plan=plan,
                folder=folder,
                tick=lambda *_: marks.append(time.perf_counter()),
            )
            beside.append(marks[0] - began + time.perf_counter() - marks[-1])
    return {
        "round": median(b - a for a, b in itertools.pairwise(marks[1:])),
        "first": beside[0],
        "next": beside[1],
        "fingerprint": outcome.fingerprint,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, repeats=3, rounds=6, one={"nargs": 2, "help": argparse.SUPPRESS})
    if given.one:
        print(json.dumps(measure(*given.one, given.rounds)))
        return
    print(
        f"{'FedCPF, 8 people':28s} {'seconds':14s} {'round':>8s} {'first start':>12s} {'next':>6s}"
    )
    for work in WORK:
        found = {engine: [] for engine in ENGINES}
        for _, engine in itertools.product(range(given.repeats), ENGINES):
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.cluster",
                    "--rounds",
                    str(given.rounds),
                    "--one",
                    work,
                    engine,
                ],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found[engine].append(json.loads(done.stdout))
        assert len({run["fingerprint"] for runs in found.values() for run in runs}) == 1
        for engine, runs in found.items():
            a, b, c = (median(run[what] for run in runs) for what in ("round", "first", "next"))
            print(f"{work:28s} {ENGINES[engine]:14s} {a:8.4f} {b:12.2f} {c:6.2f}", flush=True)


if __name__ == "__main__":
    main()
