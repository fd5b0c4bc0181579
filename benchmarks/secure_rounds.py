"""What secure sums add to a round of gaze15 (15 people, 608 images each, LeNet of 1.83 M).

python -m benchmarks.secure_rounds [--rounds 2] [--people 15] [--turns 1] [--only WORDS]: prints a
Markdown table, of rows whose name begins with WORDS. Seconds are CPU seconds of a round, all ends
in one process and one thread, the least of the rounds; "added" is beside the plain row of the same
method and engine. All rows run in turn, and medians over the turns are told. Bytes are those of all
messages that a client sends in a round, packed as they travel, beside its update as float32.
"""

import platform
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import median

from benchmarks.bench import workloads
from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.method import Method
from vergence.engine import secure_sum_attempts
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig

OPEN, PADS, SHARES = (
    Privacy(),
    Privacy(aggregation=SecureAggregationConfig()),
    Privacy(aggregation=SecureAggregationConfig("additive")),
)
NARROW = Privacy(aggregation=SecureAggregationConfig(range=1.0, weight=1000.0, entry_bits=32))
FOUR = Privacy(
    aggregation=SecureAggregationConfig("additive", aggregators=("one", "two", "three", "four"))
)
USER = UserLevelConfig(clip=1.0, epsilon=8.0)
HIDDEN = [replace(policy, user=USER) for policy in (OPEN, PADS, SHARES)]
ROWS: list[tuple[str, type[Method], str, Privacy]] = [
    ("FedAvg, simulated", FedAvg, "simulator", OPEN),
    ("FedAvg, simulated", FedAvg, "simulator", PADS),
    ("FedAvg, through bytes", FedAvg, "bytes", OPEN),
    ("FedAvg, through bytes: pads", FedAvg, "bytes", PADS),
    ("FedAvg, through bytes: pads, entry_bits = 32", FedAvg, "bytes", NARROW),
    ("FedAvg, through bytes: shares, 2 aggregators", FedAvg, "bytes", SHARES),
    ("FedAvg, through bytes: shares, 4 aggregators", FedAvg, "bytes", FOUR),
    ("FedCPF, through bytes", FedCPF, "bytes", OPEN),
    ("FedCPF, through bytes: shares with a threshold, 2 aggregators", FedCPF, "bytes", SHARES),
    ("FedAdam, through bytes", FedAdam, "bytes", OPEN),
    ("FedAdam, through bytes: privacy.user, noise by the server", FedAdam, "bytes", HIDDEN[0]),
    ("FedAdam, through bytes: privacy.user, noise by clients, pads", FedAdam, "bytes", HIDDEN[1]),
    ("FedAdam, through bytes: the same, shares, 2 aggregators", FedAdam, "bytes", HIDDEN[2]),
]


class Counted:
    """Counts the bytes of what clients say."""

    def __init__(self) -> None:
        self.bytes, self.honest = Counter(), secure_sum_attempts.through_bytes

    def __call__(self, message):
        self.bytes[getattr(message, "sender", "server")] += len(secure_sum_attempts.pack(message))
        return message  # what is packed again would be timed twice


def one(kind: type[Method], engine: str, privacy: Privacy, rounds: int, people: int):
    """Return the CPU seconds of the fastest round, and the state's parameters."""
    workload = workloads.find("gaze15")
    job = workload.job("gaze15", rounds)
    federation = workloads.federation(job, workload.scored)
    few = federation.only(federation.clients[:people])
    method, task = kind(local=workloads.local(job)), workloads.task("lenet", workload.loss)
    plan = Plan(
        rounds=rounds,
        engine=engine,
        workers=1,
        solver="sequential",
        evaluate_every=0,
        privacy=privacy,
    )
    ticks = []
    with run_folder() as folder:
        run_rounds(
            method,
            task,
            federation=few,
            plan=plan,
            folder=folder,
            tick=lambda *_: ticks.append(time.process_time()),
        )
    return min(b - a for a, b in pairwise(ticks)), task.init().layout.n


def main() -> None:
    given = options(__doc__, rounds=2, people=15, turns=1, only="")
    print(f"{given.people} people; {platform.machine()}, one thread\n", flush=True)
    rows = [row for row in ROWS if row[0].startswith(given.only)]
    found: list[dict[tuple[type[Method], str, Privacy], float]] = []
    for turn in range(given.turns):
        order = rows if turn % 2 == 0 else rows[::-1]
        runs = {row[1:]: one(*row[1:], given.rounds, given.people) for row in order}
        found.append({row: seconds for row, (seconds, _) in runs.items()})
        n = next(iter(runs.values()))[1]
    print("| round | CPU s | added | up / float32 |")
    print("|---|---|---|---|")
    for name, kind, engine, privacy in rows:
        added, up, secure = "", "", privacy.aggregation is not None
        if privacy != OPEN:
            ratios = (turn[kind, engine, privacy] / turn[kind, engine, OPEN] for turn in found)
            added = f"{100 * (median(ratios) - 1):.1f} %"
        if secure and engine == "bytes":
            up = f"{sent(kind, privacy, given.people) / (4 * n):.3f}"
        words = name + (", as words" if secure and engine == "simulator" else "")
        seconds = median(turn[kind, engine, privacy] for turn in found)
        print(f"| {words} | {seconds:.2f} | {added} | {up} |", flush=True)


def sent(kind: type[Method], privacy: Privacy, people: int) -> int:
    """Return the most bytes that a client sends in the sum of a round."""
    counted, honest = Counted(), secure_sum_attempts.through_bytes
    secure_sum_attempts.through_bytes = counted
    try:
        one(kind, "bytes", privacy, 1, people)
    finally:
        secure_sum_attempts.through_bytes = honest
    return max(count for name, count in counted.bytes.items() if name.startswith("c0"))


if __name__ == "__main__":
    main()
