"""Two Ray machines made on this one: seconds and bytes of a round, beside two forked processes.

python -m benchmarks.cluster_machines [--rounds 5] [--against FOLDER]: FedCPF, each machine with one
CPU; medians over rounds after the first. Bytes are those of the loopback device between the
processes, so nothing else on it may run. `--against` names the `src` folder of another version.
"""

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.toy import Toy
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.workers import ray_actors
from vergence.methods.fedcpf import FedCPF
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

WORK = {
    "1,000 people, 5 entries": (1000, 4, 30),
    "60 people, 100,001 entries, 5 MB of data each": (60, 100_000, 12),
}
"""Number of people, inputs of the line, samples a person."""
STORE = 150_000_000
"""Bytes of each machine's object store; the data of the second setting are twice both of them."""


def loopback() -> int:
    """Return the bytes that went through the loopback device so far."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def measure(work: str, engine: Literal["simulator", "ray"], rounds: int) -> dict[str, float | str]:
    """Run once; return seconds and bytes of the first round and of a later one."""
    torch.set_num_threads(1)
    count, inputs, samples = WORK[work]
    federation = Toy(people=count, inputs=inputs, samples=samples).load()
    machines = start_machines() if engine == "ray" else None
    method = FedCPF(local=LocalTraining(optimizer="sgd", epochs=1, batch=5, lr=1e-4), rate=0.1)
    plan = Plan(rounds=rounds + 1, evaluate_every=0, workers=2, solver="sequential", engine=engine)
    marks: list[tuple[float, int]] = []
    with run_folder() as folder:
        outcome = run_rounds(
            method,
            ToyTask(Linear(inputs=inputs)),
            federation=federation,
            plan=plan,
            folder=folder,
            tick=lambda *_: marks.append((time.perf_counter(), loopback())),
        )
    if machines is not None:
        ray_actors.ready().shutdown()
        machines.shutdown()
    # The first mark ends the set-up, the last one the evaluation.
    steps = [(b[0] - a[0], (b[1] - a[1]) / 1e6) for a, b in itertools.pairwise(marks[:-1])]
    return {
        "first": steps[0][0],
        "round": median(seconds for seconds, _ in steps[1:]),
        "first_mb": steps[0][1],
        "round_mb": median(megabytes for _, megabytes in steps[1:]),
        "fingerprint": outcome.fingerprint,
    }


def start_machines() -> Any:
    """Start two Ray machines of one CPU each, and name them to the run."""
    ray_actors.ready()
    from ray.cluster_utils import Cluster

    machine = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=machine)
    cluster.add_node(num_cpus=1, object_store_memory=STORE)
    os.environ[ray_actors.ADDRESS] = str(cluster.address)
    return cluster


def main() -> None:
    """Measure and print a CSV."""
    given = options(
        __doc__,
        rounds=5,
        against={"help": "`src` folder of another version"},
        one={"nargs": 2, "help": argparse.SUPPRESS},
    )
    if given.one:
        work, engine = given.one
        print(json.dumps(measure(work, engine, given.rounds)))
        return
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["work", "engine", "first_s", "round_s", "first_mb", "round_mb", "fingerprint"])
    versions = {"": os.environ.get("PYTHONPATH", "")}
    if given.against:
        versions["before"] = os.pathsep.join([given.against, str(Path.cwd())])
    for work in WORK:
        for engine, version in [("simulator", ""), *(("ray", version) for version in versions)]:
            command = [sys.executable, "-m", "benchmarks.cluster_machines"]
            done = subprocess.run(
                [*command, "--rounds", str(given.rounds), "--one", work, engine],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": versions[version]},
            )
            name = f"{engine}, {version}" if version else engine
            if done.returncode:
                rows.writerow([work, name, "failed"])
                continue
            run = json.loads(done.stdout.splitlines()[-1])
            numbers = [f"{run[k]:.3g}" for k in ("first", "round", "first_mb", "round_mb")]
            rows.writerow([work, name, *numbers, str(run["fingerprint"])[:8]])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
