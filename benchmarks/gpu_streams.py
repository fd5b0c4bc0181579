"""What a GPU waits for: a profile of rounds, data from main memory, and scores of many people.

python -m benchmarks.gpu_streams [profile] [data] [scores] [--only WORD...] [--precision P]: needs a
GPU that torch sees. `profile` runs FedAvg and FedCPF for some rounds, and names what the host did
while the GPU had nothing to do for more than 5 ms. `data` trains people whose data lie on the GPU,
and whose batches come from main memory. `scores` evaluates people one by one and together.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.profiler import record_function

from benchmarks.common.runs import run_folder
from benchmarks.gpu import GPU, WORKLOADS, timed
from vergence import profiling
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining, Precision
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Task
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.records import ClientState, ClientTask
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.training import cuda_graphs
from vergence.training.device import move_to_device

Span = tuple[float, float]
LONG_MS = 5.0
"""Gaps that are named."""
WARM_UP, ROUNDS = 1, 3
"""Rounds before the profile, and up to its end: the first records steps."""


def gaps(work: Iterable[Span], begin: float, end: float) -> list[Span]:
    """The times between `begin` and `end` at which none of the work, which may overlap, goes on."""
    found, free = [], begin
    for start, stop in sorted(work):
        if min(start, end) > free:
            found.append((free, min(start, end)))
        free = max(free, stop)
    return found if free >= end else [*found, (free, end)]


def doing(gap: Span, host: Iterable[tuple[float, float, str]]) -> str:
    """Name the innermost host work that goes on during nearly all of a gap; "" for none."""
    length, inside = gap[1] - gap[0], []
    for start, stop, name in host:
        if min(stop, gap[1]) - max(start, gap[0]) >= 0.8 * length:
            inside.append((stop - start, name))
    return min(inside, default=(0, ""))[1]


def profile(name: str, task: Task, people: Federation, local: LocalTraining, precision: Precision):
    """Print the share of time at which the GPU works, and what the host did in its long gaps."""
    for method in (FedAvg(local=local), FedCPF(local=local, rate=0.1)):
        seen: list[Any] = []

        def tick(summary: Any, seen: list[Any] = seen) -> None:
            if summary.round == WARM_UP and not seen:
                torch.cuda.synchronize()
                seen.append(torch.profiler.profile())
                seen[0].start()
            elif summary.round == ROUNDS and len(seen) == 1:
                torch.cuda.synchronize()
                seen[0].stop()
                seen.append(None)

        honest, profiling.phase = profiling.phase, lambda phase: record_function(f"phase {phase}")
        try:
            with run_folder() as folder:
                plan = Plan(
                    rounds=ROUNDS, evaluate_every=0, workers=1, device="cuda", precision=precision
                )
                run_rounds(method, task, federation=people, plan=plan, folder=folder, tick=tick)
        finally:
            profiling.phase = honest
        events = seen[0].profiler.kineto_results.events()
        spans = [(e.start_ns() / 1e6, e.end_ns() / 1e6, e.name()) for e in events]
        places = [str(e.device_type()) for e in events]
        kernels = [s[:2] for s, at in zip(spans, places, strict=True) if at.endswith("CUDA")]
        host = [span for span, at in zip(spans, places, strict=True) if at.endswith("CPU")]
        begin, end = min(s[0] for s in host), max(s[1] for s in host)
        free = gaps(kernels, begin, end)
        idle = sum(stop - start for start, stop in free)
        print(
            f"{name:21s} {type(method).__name__:8s} {precision:5s} "
            f"{(end - begin) / 1000 / (ROUNDS - WARM_UP):7.3f} s a round, "
            f"GPU busy {100 * (1 - idle / (end - begin)):5.1f} %"
        )
        long = [gap for gap in free if gap[1] - gap[0] > LONG_MS]
        named: dict[str, float] = defaultdict(float)
        for gap in long:
            phases = doing(gap, [each for each in host if each[2].startswith("phase ")])
            named[f"{phases or 'between phases'}: {doing(gap, host)}"] += gap[1] - gap[0]
        for what, ms in sorted(named.items(), key=lambda each: -each[1])[:12]:
            print(f"    {ms:8.1f} ms in gaps over {LONG_MS:g} ms: {what}")


def data(name: str, task: Task, people: Federation, local: LocalTraining, precision: Precision):
    """Print milliseconds a step with data on the GPU and in main memory, and compare the bits."""
    start, honest = task.init(), cuda_graphs.AT_ONCE
    start = start.like(start.flat.to(GPU))
    flats = {}
    for where, there in {"on the GPU": move_to_device(people, GPU), "streamed": people}.items():
        asks = [Fit(start, each.train, local) for each in there.people.values()]
        streams = [RandomStream("bench", n) for n in range(len(asks))]
        cuda_graphs.AT_ONCE = 0
        torch.cuda.reset_peak_memory_stats()
        graphed = cuda_graphs.Graphed(task, GPU, precision, cuda_graphs.STREAMS)
        seconds = timed(partial(graphed.fit_all, asks, streams), 2)
        fitted = graphed.fit_all(asks, streams)
        cuda_graphs.AT_ONCE = honest
        flats[where] = [each.params.flat for each in fitted]
        steps = sum(each.steps for each in fitted)
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(
            f"{name:21s} data {where:10s} {precision:5s} {1000 * seconds / steps:8.3f} ms a step "
            f"in {len(graphed.lanes)} lanes, {peak:.1f} GiB",
            flush=True,
        )
    equal = all(map(torch.equal, *flats.values()))
    print(f"    equal bits: {equal}", flush=True)


def scores(name: str, task: Task, people: Federation, local: LocalTraining, precision: Precision):
    """Print seconds of an evaluation of everybody, one by one and together, and compare scores."""
    everybody = LocalData(people, people, all_here=True)
    how = Computation(precision, device=GPU)
    worker = ClientExecutor(FedAvg(local=local), task, everybody, RandomStream("bench"), how)
    model = worker.solver.task.init()
    sent = Message("evaluate", {"model": model.like(model.flat.to(GPU))})
    tasks, state = [ClientTask(person, sent) for person in people.people], ClientState()
    ways: dict[str, Callable[[], Any]] = {
        "one by one": lambda: [worker.evaluate(t.client, sent, state, ("P0",)) for t in tasks],
        "together": lambda: worker.evaluate_all(tasks, [state] * len(tasks), ("P0",)),
    }
    for way, work in ways.items():
        print(f"{name:21s} scores {way:10s} {timed(work):8.3f} s for {len(tasks)} people")
    pairs = zip(*(work() for work in ways.values()), strict=True)
    apart = [abs(a.measured["P0"][n] - v) for a, b in pairs for n, v in b.measured["P0"].items()]
    print(f"    largest difference of a score: {max(apart):.1e}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["profile", "data", "scores"])
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of networks")
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU: nothing to measure")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    for name, (task, load, local) in WORKLOADS.items():
        people = load() if any(word in name for word in options.only) else None
        if people is not None:
            for what in options.what:
                measure = {"profile": profile, "data": data, "scores": scores}[what]
                measure(name, task, people, local, options.precision)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
