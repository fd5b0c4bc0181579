"""What many clients cost: a million registered, and memory as the number of trained ones grows.

python -m benchmarks.scale [--registered 1000000] [--rounds 20]: processor time that the main
process spends per round on choosing a cohort and on bookkeeping (training happens in the workers),
the peak memory of the whole process tree (PSS), and that peak for cohorts of 10 to 1000 clients
less the bytes of the data (always of as many people).
"""

import itertools
import os
import threading
import time
from dataclasses import dataclass
from statistics import median

import psutil
import torch

from benchmarks.bench.workloads import Network, Packed
from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.crowd import Crowd
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask


@dataclass
class Peak:
    """Watches the memory of this process and its children, fifty times a second."""

    top: int = 0
    stop: bool = False

    def __enter__(self) -> "Peak":
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self) -> None:
        me = psutil.Process()
        while not self.stop:
            now = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    now += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.top = max(self.top, now)
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self.stop = True
        self.thread.join()


def run(method, task, people, plan, tick=None) -> None:
    with run_folder() as folder:
        run_rounds(method, task, federation=people, plan=plan, folder=folder, tick=tick)


def registered(count: int, rounds: int) -> None:
    """A crowd, a hundred a round: main process's time per round, peak memory."""
    marks: list[float] = []
    plan = Plan(
        rounds=rounds, evaluate_every=0, evaluate_people=100, presence=Participation(cohort=100)
    )
    methods = {
        "fedavg": FedAvg(local=LocalTraining(optimizer="sgd", lr=0.05, batch=8)),
        "fedcpf": FedCPF(local=LocalTraining(optimizer="sgd", lr=0.05, batch=8)),
    }
    for name, method in methods.items():
        marks.clear()
        with Peak() as peak:
            run(
                method,
                ToyTask(Linear()),
                Crowd(people=count).load(),
                plan,
                lambda *_: marks.append(time.process_time()),
            )
        spent = [1e3 * (b - a) for a, b in itertools.pairwise(marks[1:])]
        print(
            f"{count:,} registered, 100 a round, {rounds} rounds, {name}: {median(spent):.1f} ms "
            f"of the main process per round, {median(spent[-5:]):.1f} in the last five, peak "
            f"{peak.top / 2**20:.0f} MB",
            flush=True,
        )


def people(count: int, rows: int) -> Federation:
    """Clients with a few made-up rows each."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(count * rows, 2162, generator=generator), torch.rand(count * rows, 2)
    parts = [Samples({"x": a, "y": b}) for a, b in zip(x.split(rows), y.split(rows), strict=True)]
    few = {f"c{i:06}": Splits(p, p, p) for i, p in enumerate(parts)}
    return Federation("few", few)


def trained(network: str, method, counts: list[int]) -> None:
    """Everybody takes part, in two rounds or more; peak memory less the data."""
    for count in counts:
        child = os.fork()  # each count in a process of its own, as memory is not given back
        if child:
            os.waitpid(child, 0)
            continue
        data = people(max(counts), 2)
        size = sum(s.train.bytes() for s in data.people.values())
        some = data.only(data.clients[:count])
        rounds = max(2, 400 // count)
        plan = Plan(rounds=rounds, evaluate_every=0, evaluate_people=2, solver="sequential")
        with Peak() as peak:
            run(method, Packed(Network(network)), some, plan)
        print(
            f"{network}, {type(method).__name__}, {count} of {len(data.clients)} clients trained: "
            f"{(peak.top - size) / 2**20:.0f} MB beside {size / 2**20:.0f} MB of data",
            flush=True,
        )
        os._exit(0)


def main() -> None:
    given = options(__doc__, registered=1_000_000, rounds=20)
    torch.set_num_threads(1)
    local = LocalTraining(optimizer="sgd", lr=0.05, batch=2, clip=0.0)
    trained("lenet", FedAvg(local=local), [10, 100, 1000])
    trained("cnn", FedCPF(local=local), [10, 100, 1000])
    registered(given.registered, given.rounds)


if __name__ == "__main__":
    main()
