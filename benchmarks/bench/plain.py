"""What is trained in a benchmark, in plain PyTorch: networks, rows and a job that lies on disk.

Imports torch and numpy alone: the peers' scripts load this file by its path, in environments that
hold no vergence. One sample of the gaze workloads is a packed row, 36 x 60 grey pixels followed by
the head pose.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

HEIGHT, WIDTH = 36, 60
PIXELS = HEIGHT * WIDTH
ROW = PIXELS + 2


class GazeConv(nn.Module):
    """Two 5 x 5 convolutions with pooling, two linear layers; rows `[B, 2162]` to gaze `[B, 2]`."""

    def __init__(self, first: int, second: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.fc1 = nn.Linear(second * 6 * 12, hidden)
        self.fc2 = nn.Linear(hidden + 2, 2)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the gaze."""
        x = rows[:, :PIXELS].reshape(-1, 1, HEIGHT, WIDTH)
        x = functional.max_pool2d(self.conv1(x), 2)
        x = functional.max_pool2d(self.conv2(x), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc2(torch.cat([x, rows[:, PIXELS:]], 1))


class GazePerceptron(nn.Module):
    """One hidden layer on pixels pooled two by two; rows `[B, 2162]` to gaze `[B, 2]`."""

    def __init__(self, hidden: int = 54) -> None:
        super().__init__()
        self.fc1 = nn.Linear(PIXELS // 4 + 2, hidden)
        self.fc2 = nn.Linear(hidden, 2)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the gaze."""
        x = rows[:, :PIXELS].reshape(-1, 1, HEIGHT, WIDTH)
        x = functional.avg_pool2d(x, 2).flatten(1)
        return self.fc2(functional.relu(self.fc1(torch.cat([x, rows[:, PIXELS:]], 1))))


class ColourConv(nn.Module):
    """Two 5 x 5 convolutions with pooling, two linear layers; rows `[B, 3072]` to `[B, 10]`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.fc1 = nn.Linear(32 * 5 * 5, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Return a score for each class."""
        x = rows.reshape(-1, 3, 32, 32)
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lambda: GazeConv(20, 50, 500),  # 1.83 million parameters
    "cnn": lambda: GazeConv(8, 16, 24),  # 31 thousand
    "perceptron": GazePerceptron,  # 29 thousand
    "logistic": lambda: nn.Linear(784, 10),
    "colours": ColourConv,  # 66 thousand
    "line": lambda: nn.Linear(6, 2),  # for tests
}
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "cross_entropy": functional.cross_entropy,
}


@dataclass
class Job:
    """One federated training: who holds which rows, and how a client trains on them.

    Clients are numbered; `sizes` are their rows, which lie one client after another in `x` and
    `y`. `cohorts` holds the clients of each round. `start` is the network before round 0, tensor
    by tensor in plain (contiguous) layout.
    """

    name: str
    network: str
    sizes: list[int]
    batch: int
    cohorts: list[list[int]]
    loss: str = "mse"
    lr: float = 0.01
    momentum: float = 0.9
    x: Tensor = field(default_factory=lambda: torch.empty(0))
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    start: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Number of rounds, the warm-up included."""
        return len(self.cohorts)

    def rows(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the training rows of a client, as views."""
        end = self._ends[client]
        return self.x[end - self.sizes[client] : end], self.y[end - self.sizes[client] : end]

    @cached_property
    def _ends(self) -> list[int]:
        return np.cumsum(self.sizes).tolist()

    def steps(self, client: int) -> int:
        """Return the gradient steps of a client in a round: one pass, smaller last batch kept."""
        return -(-self.sizes[client] // self.batch)

    def steps_of_round(self, number: int) -> int:
        """Return the gradient steps of a round."""
        return sum(self.steps(c) for c in self.cohorts[number % self.rounds])

    def module(self) -> nn.Module:
        """Return the network with its start values."""
        module = NETWORKS[self.network]()
        if self.start:
            module.load_state_dict(self.start)
        return module

    def cost(self, module: nn.Module) -> float:
        """Return the mean loss over everybody's rows."""
        total, chunk = 0.0, 256
        with torch.no_grad():
            for x, y in zip(self.x.split(chunk), self.y.split(chunk), strict=True):
                total += float(LOSSES[self.loss](module(x), y)) * len(x)
        return total / len(self.x)

    def save(self, folder: Path) -> None:
        """Write the job: job.json, x.npy, y.npy and start.npz."""
        tensors = ("x", "y", "start")
        about = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in tensors}
        (folder / "job.json").write_text(json.dumps(about))
        np.save(folder / "x.npy", self.x.numpy())
        np.save(folder / "y.npy", self.y.numpy())
        start = {name: tensor.numpy() for name, tensor in self.start.items()}
        np.savez(folder / "start.npz", allow_pickle=False, **start)

    @classmethod
    def load(cls, folder: Path, mapped: bool = False) -> Job:
        """Read a job; with `mapped` several processes share the rows' memory."""
        about = json.loads((folder / "job.json").read_text())
        mode = "c" if mapped else None
        x, y = (torch.from_numpy(np.load(folder / f"{n}.npy", mmap_mode=mode)) for n in "xy")
        with np.load(folder / "start.npz") as file:
            start = {name: torch.from_numpy(file[name]) for name in file.files}
        return cls(**about, x=x, y=y, start=start)


def gaze_rows(people: int, each: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Make rows `[people * each, 2162]` and gaze `[people * each, 2]` that a network can learn.

    Brightness rises across the image with yaw and down it with pitch, under noise.
    """
    generator = torch.Generator().manual_seed(seed)
    n = people * each
    gaze = torch.rand(n, 2, generator=generator) - 0.5
    across = torch.linspace(-1, 1, WIDTH).expand(HEIGHT, WIDTH).reshape(-1)
    down = torch.linspace(-1, 1, HEIGHT)[:, None].expand(HEIGHT, WIDTH).reshape(-1)
    rows = torch.rand(n, ROW, generator=generator)
    pixels = rows[:, :PIXELS]
    pixels.mul_(0.4).add_(0.3).addmm_(gaze, torch.stack([down, across]), alpha=0.3)
    return rows, gaze
