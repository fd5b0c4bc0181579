"""A step of DP-SGD beside a plain one, on one thread: processor seconds, interleaved, medians.

    python -m benchmarks.dp_sgd [--rounds 15]

LeNet on patches of 36 x 60, batches of 32 (on average), as MPIIGaze is trained with; made-up
pictures, since time does not depend on them. Both are the solvers that a run uses, with everything
they do: drawing a batch, gradients, clipping, noise from the run's secret, the optimiser.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from vergence.core.client import ClientContext
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.models.lenet import LeNet
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.sequential import Solver

STEPS = 10
NOISE = 2.5
"""Epsilon 0.5 at delta 1e-5 for 940 steps of 32 among 3,000 samples."""


def people(samples: int) -> Samples:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(samples, 1, 36, 60, generator=generator)
    angles = torch.randn(2, samples, 2, generator=generator) * 0.3
    return Samples({"image": (255 * image).to(torch.uint8), "gaze": angles[0], "pose": angles[1]})


def seconds(work) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / STEPS


def measure(channels: tuple[int, int], rounds: int) -> None:
    task, data = GazeAngle(LeNet(channels)), people(3000)
    local = LocalTraining(optimizer="sgd", steps=STEPS, batch=32, lr=0.01)
    site = ClientContext("p00", data, data, task, 0, RandomStream("bench"))
    with tempfile.TemporaryDirectory() as folder:
        plain = Solver(task)
        private = DpSolver(task, DpSgd(noise=NOISE), Path(folder), 0, [TrainingPass(local, 1.0, 1)])
        ask, times, ratios = Fit(task.init(), data, local), {"plain": [], "private": []}, []
        for at in range(-2, rounds):
            stream = RandomStream("bench", at + 2)
            one = seconds(lambda stream=stream: plain.fit(ask, stream))
            other = seconds(lambda stream=stream: private.train(site, ask, stream))
            if at >= 0:
                times["plain"].append(one)
                times["private"].append(other)
                ratios.append(other / one)
    told = ", ".join(f"{n} {1e3 * statistics.median(t):.1f} ms" for n, t in times.items())
    size = sum(p.numel() for p in plain.module.parameters())
    low, high = sorted(ratios)[len(ratios) // 10], sorted(ratios)[-1 - len(ratios) // 10]
    print(
        f"LeNet {channels}, {size:,} parameters: {told} a step; "
        f"ratio {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    torch.set_num_threads(1)
    for channels in ((20, 50), (20, 80)):
        measure(channels, parser.parse_args().rounds)


if __name__ == "__main__":
    main()
