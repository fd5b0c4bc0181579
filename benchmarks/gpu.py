"""One GPU: milliseconds per step of each solver, and whole rounds over their plain steps.

python -m benchmarks.gpu [steps] [rounds] [--only WORD...] [--precision P...] [--json FILE]: needs a
GPU that torch sees. `steps` trains people on generated eye pictures and video, and on GazeCom
where VERGENCE_DATA has it, by each solver on the GPU, beside the sequential solver on one core and
a loop in plain PyTorch on the GPU. `rounds` runs FedAvg and FedCPF whole (turns, aggregation,
checkpoint) on the same, with models that stay on the GPU and with models that come home.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.common.runs import run_folder
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining, Precision
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Task
from vergence.data.gaze_video.gazecom import Gazecom
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine import round_loop
from vergence.engine.round_loop import Plan, run_rounds
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.models.glc.glc_vit import GlcVit
from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap
from vergence.training.cuda_graphs import STREAMS, Graphed
from vergence.training.device import move_to_device
from vergence.training.gradients import training_loss
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked

GPU = torch.device("cuda")
SGD = LocalTraining(optimizer="sgd", batch=32, lr=0.01, clip=0.0, weight_decay=0.0, steps=19)
ADAMW = LocalTraining(batch=8, optimizer="adamw", lr=1e-4, weight_decay=0.05, clip=1.0, steps=6)
PAPER = replace(ADAMW, steps=20)


def gazecom() -> Federation | None:
    """Return five viewers of GazeCom at 256 x 256, None where the files are not."""
    root = Path(os.environ.get("VERGENCE_DATA", "")) / "gazecom_video"
    five = tuple(f"P{n:02d}" for n in range(1, 6))
    return Gazecom(people=five, size=(256, 256)).load(str(root)) if root.is_dir() else None


WORKLOADS: dict[str, tuple[Task, Callable[[], Federation | None], LocalTraining]] = {
    "LeNet, eyes": (GazeAngle(LeNet()), EyeSynthetic(people=15, samples=640).load, SGD),
    "glc_vit tiny64": (GazeMap(GlcVit("tiny64")), EgoSynthetic(people=5, clips=20).load, ADAMW),
    "glc_vit base": (
        GazeMap(GlcVit("base")),
        EgoSynthetic(people=5, clips=10, size=256, window=8, windows=1).load,
        PAPER,
    ),
    "glc_vit base, GazeCom": (GazeMap(GlcVit("base")), gazecom, PAPER),
}


def timed(work: Callable[[], Any], repeats: int = 3) -> float:
    """Return the median seconds of a piece of work, after one that warms up."""
    found = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return median(found[1:])


def plain(task: Task, data: Samples, local: LocalTraining, precision: Precision) -> Callable:
    """Return a client's steps in plain PyTorch on the GPU: fused optimiser, batches at hand."""
    module = task.module().to(GPU).train()
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    more = {"momentum": local.momentum} if local.optimizer == "sgd" else {}
    step = kinds[local.optimizer](module.parameters(), lr=local.lr, fused=True, **more)
    some = data.subset(slice(0, local.batch))  # type: ignore[arg-type]
    batch = {n: c.to(GPU) for n, c in some.take(slice(0, local.batch)).items()}

    def client() -> None:
        for _ in range(local.steps or 1):
            step.zero_grad(set_to_none=True)
            with GPU:
                training_loss(task, module, batch, precision).backward()
            if local.clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), local.clip)
            step.step()

    return client


def steps(
    name: str, task: Task, people: Federation, local: LocalTraining, precisions: Sequence[Precision]
) -> list[dict[str, Any]]:
    """Return milliseconds per step by solver and precision."""
    clients = list(move_to_device(people, GPU).people.values())
    start, rows = task.init(), []
    asks = [Fit(start, each.train, local) for each in clients]
    few = min(len(each.data) for each in asks)
    alike = [replace(a, data=a.data.subset(slice(0, few))) for a in asks]  # type: ignore[arg-type]
    streams = [RandomStream("bench", n) for n in range(len(asks))]
    total = len(asks) * (local.steps or 1)

    def add(solver: str, precision: str, seconds: float, count: int) -> None:
        ms = 1000 * seconds / count
        peak = torch.cuda.max_memory_allocated() / 2**30
        rows.append(
            {"network": name, "solver": solver, "precision": precision, "ms": ms, "gib": peak}
        )
        print(
            f"{name:21s} {solver:24s} {precision:5s} {ms:9.3f} ms a step  {peak:6.2f} GiB",
            flush=True,
        )
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    for precision in precisions:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        if precision != "half":
            loop = plain(task, clients[0].train, local, precision)
            add("plain loop", precision, timed(loop), local.steps or 1)
        ways = {
            "graph": Graphed(task, GPU, precision),
            "graphs in streams": Graphed(task, GPU, precision, STREAMS),
            "stack": Stacked(task, GPU, precision),
        }
        for solver, made in ways.items():
            if solver == "stack" and start.flat.numel() > 10_000_000:
                continue
            given = alike if solver == "stack" else asks
            train = partial(made.fit_all, given, streams)
            try:
                add(solver, precision, timed(train), total)
            except ConfigError as error:  # what a solver refuses is told, too
                print(f"{name:21s} {solver:24s} {precision:5s} {type(error).__name__}: {error}")
        del ways
    if start.flat.numel() < 10_000_000:
        home = next(iter(people.people.values())).train
        alone = Solver(task)
        ask = Fit(start, home, local)
        began = time.perf_counter()
        alone.fit(ask, streams[0])
        add("sequential, one core", "fp32", time.perf_counter() - began, local.steps or 1)
    return rows


def _mark(marks: list[float], *_: object) -> None:
    marks.append(time.perf_counter())


def rounds(
    name: str, task: Task, people: Federation, local: LocalTraining, precisions: Sequence[Precision]
) -> list[dict[str, Any]]:
    """Return seconds per round of whole runs, and of their steps in a plain loop.

    Each run has its models on the GPU between checkpoints, and then in main memory.
    """
    rows = []
    first = next(iter(move_to_device(people, GPU).people.values())).train
    places = {"stay": round_loop.stays_on, "come home": lambda *_: False}
    methods = (FedAvg(local=local), FedCPF(local=local, rate=0.1))
    for precision in precisions:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        floor = timed(plain(task, first, local, precision)) * len(people.people)
        for method, models in itertools.product(methods, places):
            round_loop.stays_on = places[models]
            marks: list[float] = []
            with run_folder() as folder:
                plan = Plan(
                    rounds=3, evaluate_every=0, workers=1, device="cuda", precision=precision
                )
                began = time.perf_counter()
                run_rounds(
                    method,
                    task,
                    federation=people,
                    plan=plan,
                    folder=folder,
                    tick=partial(_mark, marks),
                )
                whole = time.perf_counter() - began
            walls = [b - a for a, b in itertools.pairwise(marks[1:])]
            one = median(walls)
            rows.append(
                {
                    "network": name,
                    "method": type(method).__name__,
                    "precision": precision,
                    "models": models,
                    "round_s": one,
                    "floor_s": floor,
                    "run_s": whole,
                }
            )
            print(
                f"{name:21s} {type(method).__name__:8s} {precision:5s} models {models:9s} "
                f"{one:8.3f} s a round, "
                f"{one / floor:6.2f} x the plain loop's {floor:.3f} s; whole run {whole:.1f} s",
                flush=True,
            )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["steps", "rounds"])
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of networks")
    parser.add_argument("--precision", nargs="+", default=["fp32", "tf32", "bf16", "half"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU: nothing to measure")
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    found: dict[str, list] = {}
    for name, (task, load, local) in WORKLOADS.items():
        people = load() if any(word in name for word in options.only) else None
        if people is None:
            continue
        for what in options.what:
            found.setdefault(what, []).extend(
                {"steps": steps, "rounds": rounds}[what](
                    name, task, people, local, options.precision
                )
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
