"""Time of CFed-VS and of video summaries, by frames of a clip and by clients.

    python -m benchmarks.summary_time [--features 1024] [--repeats 3]

Per clip of so many frames, in milliseconds of processor time: a training step of either network
(forward and backward, one clip), the one number that a client tells before training (dynamic time
warping to a proxy of 120 frames), and the choice of shots (knapsack). Then what the server does
once, by clients: groups of CFed-VS from one number each, and of FedGroup from the updates, of
`--entries` each, of at most 60 clients. Values are random: none of these times depends on them.
Medians over repeats; one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from torch import Tensor

from vergence.methods.clustered.cfedvs import CFedVS
from vergence.methods.clustered.fedgroup import cosines_to_directions
from vergence.metrics.clustering import kmeans
from vergence.metrics.dtw import dtw
from vergence.metrics.summaries import summary
from vergence.models.mixture_transformer import MixtureTransformer
from vergence.models.vslstm import VsLSTM

FRAMES = (60, 120, 240, 480, 960)
CLIENTS = (10, 30, 100, 300, 1000)
PROXY, SHOT, GROUPS, WIDTH = 120, 15, 3, 32


def cpu_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the median of milliseconds of processor time; once before, unmeasured."""
    work()
    found = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        found.append(1000 * (time.process_time() - begun))
    return median(found)


def step(network: torch.nn.Module, clip: Tensor) -> Callable[[], None]:
    """Return a training step on one clip `[1, frames, features]`."""
    length, wanted = torch.tensor([clip.shape[1]]), torch.rand(1, clip.shape[1])

    def once() -> None:
        network.zero_grad()
        torch.nn.functional.mse_loss(torch.sigmoid(network(clip, length)), wanted).backward()

    return once


def by_frames(frames: int, features: int, repeats: int) -> list[float]:
    """Return the times of a clip."""
    rng = np.random.default_rng(0)
    clip, proxy = rng.random((frames, features)), rng.random((PROXY, features))
    given = torch.from_numpy(clip).float()[None]
    starts = np.arange(0, frames, SHOT)
    shots = np.stack([starts, np.append(starts[1:], frames) - 1], 1)
    works: list[Callable[[], object]] = [
        step(VsLSTM(features, WIDTH).build(), given),
        step(MixtureTransformer(features, WIDTH).build(), given),
        lambda: dtw(clip, proxy),
        lambda: summary(clip[:, 0], shots),
    ]
    return [cpu_ms(work, repeats) for work in works]


def by_clients(clients: int, entries: int, repeats: int) -> list[float]:
    """Return the times of making groups."""
    rng = np.random.default_rng(0)
    told, updates = rng.random((clients, 1)), rng.random((min(clients, 20 * GROUPS), entries))

    def directions() -> None:
        kmeans(cosines_to_directions(updates, GROUPS), GROUPS, np.random.default_rng(0))

    return [cpu_ms(lambda: CFedVS().make_groups(told), repeats), cpu_ms(directions, repeats)]


def row(name: object, values: Sequence[float]) -> str:
    """Return a line of a table."""
    return f"| {name} | " + " | ".join(f"{value:.3g}" for value in values) + " |"


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| frames | vsLSTM | Mixture Transformer | number told | shots |")
    print("|---:|---:|---:|---:|---:|")
    for frames in FRAMES:
        print(row(frames, by_frames(frames, given.features, given.repeats)), flush=True)
    print("\n| clients | groups, CFed-VS | groups, FedGroup |\n|---:|---:|---:|")
    for clients in CLIENTS:
        print(row(clients, by_clients(clients, given.entries, given.repeats)), flush=True)


if __name__ == "__main__":
    main()
