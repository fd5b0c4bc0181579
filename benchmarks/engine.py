"""Seconds per round: FedCPF beside FedAvg, interleaved, five synthetic wearers.

python -m benchmarks.engine [--preset cpu64] [--rounds 2]: wall and CPU seconds of whole rounds
(turns, aggregation, checkpoint), without evaluation, median over rounds; the first round warms up.
"""

import argparse
import itertools
import os
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.models.glc.glc_vit import GlcVit
from vergence.tasks.gaze_map import GazeMap


def cpu_seconds() -> float:
    """Return user and system seconds of this process and its finished children."""
    whos = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whos))


def measure(method, task, people, rounds, workers) -> tuple[list[float], float]:
    """Run a method; return the wall seconds of each round after the first, and CPU per round."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder = RunDirectory(Path(place), {"config": "benchmark"})
        folder.open()
        began = cpu_seconds()
        plan = Plan(rounds=rounds + 1, evaluate_every=0, workers=workers)
        run_rounds(method, task, people, plan, folder, lambda *_: marks.append(time.perf_counter()))
        cpu = (cpu_seconds() - began) / (rounds + 1)
    return [b - a for a, b in itertools.pairwise(marks[1:])], cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="cpu64", choices=["tiny64", "cpu64"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    people = EgoSynthetic(people=5, clips=40).load()
    task = GazeMap(GlcVit(preset=options.preset))
    local = LocalTraining(epochs=1, batch=8, optimizer="adamw", lr=1e-3)
    sizes = [len(s.train) for s in people.people.values()]
    print(f"{options.preset}, 5 people with {sizes} clips, 1 epoch, {options.workers} workers")
    for turn in range(2):
        for method in (FedAvg(local=local), FedCPF(local=local, rate=0.1)):
            walls, cpu = measure(method, task, people, options.rounds, options.workers)
            name = type(method).__name__
            print(f"  {turn} {name:8s} wall {median(walls):6.2f} s   CPU {cpu:6.2f} s per round")


if __name__ == "__main__":
    main()
