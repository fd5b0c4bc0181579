"""The workloads: each defined once, as a job for floor and peers and in vergence's own terms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmarks.bench.plain import LOSSES, NETWORKS, Job, gaze_rows
from benchmarks.bench.video import CLIP, FEATURES, video_rows
from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.data import Batch, Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Method, NoState
from vergence.core.randomness import RandomStream
from vergence.core.task import Model, Task
from vergence.engine.participation import Participation
from vergence.errors import ConfigError, nearest
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF

SEED = 0
Rows = Callable[[], tuple[list[int], Tensor, Tensor]]
"""Gives the clients' sizes, and rows and targets of all of them."""


@dataclass(frozen=True)
class Network(Model):
    """One of the benchmark's networks."""

    name: str = "lenet"

    def build(self) -> nn.Module:
        """Return a fresh network."""
        return NETWORKS[self.name]()


@dataclass(frozen=True)
class Packed(Task):
    """Predict `y` from packed rows `x`."""

    criterion: str = "mse"

    headline: ClassVar[str] = "loss"
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss"})

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the network's output."""
        return module(batch["x"])

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss."""
        return LOSSES[self.criterion](output, batch["y"])

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return the loss and, as score, 1 / (1 + loss)."""
        loss = float(LOSSES[self.criterion](outputs, samples.columns["y"]))
        return {"loss": loss, "score": 1 / (1 + loss)}


@dataclass(frozen=True)
class ScoredFedAvg(FedAvg):
    """FedAvg whose clients score validation data after training, as FedCPF's must."""

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train from the received model and score."""
        fitted = yield from fit(msg["model"], site.train, self.local, score_on=site.val)
        update = fitted.params - msg["model"]
        return c, reply(model=update, weight=fitted.examples, metrics={})


METHODS: Mapping[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg_scored": ScoredFedAvg,
    "fedcpf": FedCPF,
}


@dataclass(frozen=True)
class Workload:
    """One benchmark.

    Attributes:
        about: one line for the table.
        network: a name of `plain.NETWORKS`.
        rows: who holds what.
        cohort: clients per round.
        rounds: timed rounds unless the caller says otherwise.
        stint: rounds timed in one go, so that a reading is long beside the clock's own cost.
        thin: the one-thread floor trains every so manieth client of a round.
        methods: what runs on our engine, the first is compared with the floor.
        scored: validation rows per client.
        saves: a checkpoint after every round; else one at the end.
        peers: whether peers can run it: those of video have networks of ours.
        missing: what to do before the data can be read, None if nothing.
    """

    about: str
    network: str
    rows: Rows
    cohort: int
    batch: int
    rounds: int
    stint: int = 1
    thin: int = 1
    methods: tuple[str, ...] = ("fedavg",)
    scored: int = 1
    saves: bool = True
    peers: bool = True
    loss: str = "mse"
    missing: Callable[[], str | None] = lambda: None

    def job(self, name: str, rounds: int) -> Job:
        """Return the work of so many rounds."""
        sizes, x, y = self.rows()
        presence, stream = Participation(cohort=self.cohort), RandomStream("run", SEED)
        names = [client_name(c) for c in range(len(sizes))]
        number = {name: c for c, name in enumerate(names)}
        cohorts = [[number[c] for c in presence.ask(names, at, stream)] for at in range(rounds)]
        start = task(self.network, self.loss).module().state_dict()
        return Job(name, self.network, sizes, self.batch, cohorts, self.loss, x=x, y=y, start=start)


def client_name(number: int) -> str:
    """Return a client's id; ids sort like the numbers."""
    return f"c{number:06}"


def task(network: str, loss: str) -> Packed:
    """Return the task of a job."""
    return Packed(Network(network), seed=SEED, criterion=loss)


def federation(job: Job, scored: int) -> Federation:
    """Return a job's clients; a client's first rows are also its validation and test data.

    What is scored matters to nobody here, only what scoring costs.
    """
    people = {}
    for client in range(len(job.sizes)):
        x, y = job.rows(client)
        few = Samples({"x": x[:scored], "y": y[:scored]})
        people[client_name(client)] = Splits(Samples({"x": x, "y": y}), few, few)
    return Federation(job.name, people)


def local(job: Job) -> LocalTraining:
    """Return how a client of the job trains."""
    return LocalTraining(
        optimizer="sgd",
        batch=job.batch,
        lr=job.lr,
        momentum=job.momentum,
        weight_decay=0.0,
        clip=0.0,
    )


def made(people: int, each: int) -> Rows:
    """Return made-up gaze data of so many people."""
    return lambda: ([each] * people, *gaze_rows(people, each))


def films(each: int, clip: tuple[int, ...], grid: tuple[int, int]) -> Rows:
    """Return made-up clips and maps of four people."""
    return lambda: ([each] * 4, *video_rows(4, each, clip, grid))


def pictures(name: str, people: int) -> Rows:
    """Return the training images of a data set, dealt to so many people, pixels in [0, 1].

    Validation data is trained on too: 60 images of Fashion-MNIST or 200 of CIFAR-10 each make whole
    batches, and a peer that drops a smaller last batch does as many steps.
    """

    def rows() -> tuple[list[int], Tensor, Tensor]:
        from vergence.data.images.cifar10 import Cifar10
        from vergence.data.images.fashion_mnist import FashionMnist

        kind = {"fashion_mnist": FashionMnist, "cifar10": Cifar10}[name]
        dealt = kind(people=people).load(str(home(name))).people
        parts = [p for s in dealt.values() for p in (s.train, s.val)]
        pixels = torch.cat([p.columns["image"].flatten(1) for p in parts]).float() / 255
        labels = torch.cat([p.columns["label"] for p in parts])
        return [len(s.train) + len(s.val) for s in dealt.values()], pixels, labels

    return rows


def home(name: str) -> Path:
    """Return the folder of a data set, whether it is there or not."""
    return Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA")) / name


def absent(workload: str, name: str) -> Callable[[], str | None]:
    """Return what tells what to do before a data set can be read, None if nothing."""
    return lambda: (
        None
        if home(name).is_dir()
        else f"{workload}: no {name} at {home(name)}; set VERGENCE_DATA to the folder that holds "
        f"{name}"
    )


WORKLOADS: dict[str, Workload] = {
    "gaze15": Workload(
        "15 people, 608 images each, LeNet (1.83 M)",
        "lenet",
        made(15, 608),
        15,
        32,
        rounds=5,
        thin=3,
    ),
    "gaze15s": Workload(
        "15 people, 96 images each, LeNet (1.83 M)", "lenet", made(15, 96), 15, 32, rounds=9
    ),
    "xdev": Workload(
        "100 of 1000 devices, 20 images each, CNN (31 k)",
        "cnn",
        made(1000, 20),
        100,
        10,
        rounds=24,
        stint=3,
    ),
    "xdevmlp": Workload(
        "100 of 1000 devices, 20 images each, MLP (29 k)",
        "perceptron",
        made(1000, 20),
        100,
        10,
        rounds=100,
        stint=10,
    ),
    "logistic": Workload(
        "10 of 1000 devices, Fashion-MNIST, logistic regression",
        "logistic",
        pictures("fashion_mnist", 1000),
        10,
        20,
        rounds=100,
        stint=20,
        saves=False,
        loss="cross_entropy",
        missing=absent("logistic", "fashion_mnist"),
    ),
    "cifar10": Workload(
        "10 of 100 devices, 200 images of CIFAR-10 each, CNN (66 k)",
        "colours",
        pictures("cifar10", 100),
        10,
        20,
        rounds=24,
        stint=3,
        loss="cross_entropy",
        missing=absent("cifar10", "cifar10"),
    ),
    "glc_tiny64": Workload(
        "4 people, 8 clips of 64 x 64 each, glc_vit tiny64",
        "glc_tiny64",
        films(8, CLIP, (16, 16)),
        4,
        4,
        rounds=5,
        peers=False,
    ),
    "glc_cpu64": Workload(
        "4 people, 8 clips of 64 x 64 each, glc_vit cpu64",
        "glc_cpu64",
        films(8, CLIP, (16, 16)),
        4,
        4,
        rounds=5,
        peers=False,
    ),
    "glc_features": Workload(
        "4 people, 16 clips of two frames' features each, glc_features",
        "glc_features",
        films(16, FEATURES, (30, 40)),
        4,
        4,
        rounds=7,
        peers=False,
    ),
    "fedcpf": Workload(
        "FedCPF beside FedAvg, both scoring 96 images, else gaze15",
        "lenet",
        made(15, 608),
        15,
        32,
        rounds=4,
        thin=5,
        methods=("fedcpf", "fedavg_scored", "fedavg"),
        scored=96,
    ),
}


def find(name: str) -> Workload:
    """Return a workload by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"bench: no workload '{name}'{nearest(name, WORKLOADS)}")
    return WORKLOADS[name]
