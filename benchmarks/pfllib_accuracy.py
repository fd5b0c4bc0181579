"""PFLlib's own program and ours on the same people: everybody's accuracy, and CPU seconds.

    PFLLIB=CHECKOUT/system python -m benchmarks.pfllib_accuracy --out docs/results/pfllib.csv
    PFLLIB=CHECKOUT/system python -m benchmarks.pfllib_accuracy --order file --out same.csv

PFLLIB names the folder `system` of a checkout of github.com/TsingZ0/PFLlib, and VERGENCE_DATA the
folder with `fashion_mnist`. Both programs get the same people (PFLlib's rule: each class by shares
from Dirichlet(0.1), a quarter of each person's pictures for test), the same network with the same
first weights, and the same settings. PFLlib leaves out the last batch of an epoch if it is not
full, we do not: so each person's training pictures are cut to whole batches, and both take the same
steps. Both score the models with which the last round ends on each person's test pictures, once,
after training. Each runs in this process with one thread.

With `--order file` both programs train on the batches in the order of the file, for a few rounds:
then programs that do the same arithmetic give everybody the same accuracy, and no interval is
needed. Only the CNN has this mode. The ResNet with BatchNorm amplifies rounding: a change of its
first weights by 1e-7 changes weights by 0.09 within six steps of plain PyTorch.

A finished run is one row of the file (network, method, seed, program, CPU seconds, and the accuracy
of each person), appended at once; rows that are there are not run again. The table at the end has,
by network and method, the mean over people and seeds of both programs, the mean difference with its
95 % interval over people (seeds averaged first), and the ratio of CPU seconds.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import copy
import csv
import importlib
import io
import os
import random
import sys
import tempfile
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir, nullcontext, redirect_stdout
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import nn

import vergence as vg
from benchmarks.common.options import options
from vergence.metrics.intervals import interval

# Of the CNN PFLlib's default, as are one local epoch and plain SGD. Batches of 10 would take the
# ResNet, whose steps are mostly overhead, twice as long.
BATCH = {"cnn": 10, "resnet18": 20}
# PFLlib's default is 0 for both, with which FedProx is FedAvg and Ditto trains alone.
PROX_MU, DITTO_MU = 0.01, 0.1
AT_HOME = "FedAvg, own statistics"


@dataclass(frozen=True)
class Setting:
    """How much is trained; `rates` are learning rates of the networks."""

    pictures: int
    people: int
    rounds: int
    seeds: tuple[int, ...]
    rates: Mapping[str, float]


SETTINGS = {
    "random": Setting(3000, 20, 20, (0, 1, 2), {"cnn": 0.005, "resnet18": 0.02}),
    "file": Setting(1000, 10, 2, (0,), {"cnn": 0.05}),
}
"""By the order of batches; 0.005 is PFLlib's default."""
OURS: dict[str, vg.Method] = {
    "FedAvg": vg.methods.FedAvg(),
    # What PFLlib's FedAvg does with BatchNorm: running statistics stay where they were counted.
    AT_HOME: vg.methods.FedBN(at_home="statistics"),
    "FedBN": vg.methods.FedBN(),
    "FedProx": vg.methods.FedProx(mu=PROX_MU),
    "SCAFFOLD": vg.methods.Scaffold(),
    "FedPer": vg.methods.FedPer(),
    "FedRep": vg.methods.FedRep(head_epochs=1, final_epochs=0),
    "Ditto": vg.methods.Ditto(mu=DITTO_MU),
}
FILES = {"FedAvg": "avg", "FedPer": "per", "FedRep": "rep", "FedProx": "prox", "FedBN": "bn"}
"""Ends of PFLlib's file names, where they are not the method's name in small letters."""
HEADS = ("FedAvg", "FedPer", "FedRep")
"""Methods whose network PFLlib's main.py cuts into base and head."""
NEEDS_BATCH_NORM = ("FedBN", AT_HOME)
PROGRAMS = ("PFLlib", "vergence")
KEYS = ("network", "method", "seed", "program")


class LastScores(Exception):
    """Everybody's accuracy after the last round; PFLlib's loop has no other end."""


def cnn() -> nn.Module:
    """Return PFLlib's own network for Fashion-MNIST."""
    return importlib.import_module("flcore.trainmodel.models").FedAvgCNN(1, 10, 1024)


def resnet(width: int = 16) -> nn.Module:
    """Return a ResNet-18 with BatchNorm: torchvision's layout and names, but grey and narrow.

    PFLlib takes it from torchvision; its FedBN leaves at home what has "bn" in its name.
    """
    parts: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(1, width, 7, 2, 3, bias=False)),
        ("bn1", nn.BatchNorm2d(width)),
        ("relu", nn.ReLU()),
        ("maxpool", nn.MaxPool2d(3, 2, 1)),
    ]
    before = width
    for layer, after in enumerate((width, 2 * width, 4 * width, 8 * width), 1):
        blocks = Block(before, after, 1 if layer == 1 else 2), Block(after, after, 1)
        parts.append((f"layer{layer}", nn.Sequential(*blocks)))
        before = after
    parts += [("avgpool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
    return nn.Sequential(OrderedDict([*parts, ("fc", nn.Linear(before, 10))]))


class Block(nn.Module):
    """Two convolutions with BatchNorm, plus the input, projected where its shape is another."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        projected = nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        self.downsample = nn.Identity() if before == after else nn.Sequential(*projected)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the maps."""
        inner = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(inner)) + self.downsample(x)).relu()


def people(batch: int, how: Setting) -> vg.Federation:
    """Return everybody's pictures in [-1, 1], of which those for training fill whole batches."""
    source = vg.data.FashionMnist(
        people=how.people,
        split="dirichlet_by_class",
        alpha=0.1,
        take=how.pictures / 70_000,
        val=0,
        test=0.25,
    ).load(str(Path(os.environ["VERGENCE_DATA"]) / "fashion_mnist"))

    def cut(part: vg.Samples, rows: int) -> vg.Samples:
        image, label = part.columns["image"][:rows], part.columns["label"][:rows]
        return vg.Samples({"x": image.float() / 127.5 - 1, "y": label})

    return vg.Federation(
        "fashion_mnist_cut",
        {
            person: vg.Splits(
                cut(own.train, len(own.train) // batch * batch),
                cut(own.val, 0),
                cut(own.test, len(own.test)),
            )
            for person, own in source.people.items()
        },
    )


def write_for_pfllib(federation: vg.Federation, folder: Path) -> None:
    """Write PFLlib's files `train/0.npz` and so on; uncompressed, which it reads faster."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for number, own in enumerate(federation.people.values()):
            data = {name: column.numpy() for name, column in getattr(own, part).columns.items()}
            np.savez(folder / part / f"{number}.npz", data=np.array(data, dtype=object))


def theirs(network: str, name: str, net: nn.Module, seed: int, how: Setting) -> list[float]:
    """Train with PFLlib and return everybody's accuracy; data are in `../dataset/{network}`."""
    args = types.SimpleNamespace(
        device="cpu",
        dataset=network,
        model=net,
        algorithm=name,
        num_classes=10,
        num_clients=how.people,
        global_rounds=how.rounds,
        eval_gap=how.rounds,
        batch_size=BATCH[network],
        local_learning_rate=how.rates[network],
        mu=DITTO_MU if name == "Ditto" else PROX_MU,
        # All that follows has the default of PFLlib's main.py.
        local_epochs=1,
        plocal_epochs=1,
        server_learning_rate=1.0,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        join_ratio=1.0,
        random_join_ratio=False,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10_000,
        few_shot=0,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
        top_cnt=100,
        auto_break=False,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        goal="test",
        save_folder_name="items",
    )
    if name in HEADS:
        split = importlib.import_module("flcore.trainmodel.models").BaseHeadSplit
        args.head, net.fc = copy.deepcopy(net.fc), nn.Identity()
        args.model = split(net, args.head)
    module = importlib.import_module(f"flcore.servers.server{FILES.get(name, name.lower())}")
    server = getattr(module, name)(args, 0)
    personal = "_personalized" if name == "Ditto" else ""
    visits: list[int] = []

    def evaluate() -> None:
        # PFLlib scores before round 0 and after the last round, and then trains once more.
        visits.append(len(visits))
        if len(visits) == 2:
            _, rows, right, _ = getattr(server, f"test_metrics{personal}")()
            raise LastScores([r / n for r, n in zip(right, rows, strict=True)])

    server.evaluate = lambda: None
    setattr(server, f"evaluate{personal}", evaluate)
    # Every client of PFLlib sets torch's seed to 0 when it is made.
    for set_seed in (torch.manual_seed, np.random.seed, random.seed):
        set_seed(seed)
    try:
        server.train()
    except LastScores as end:
        return end.args[0]
    raise RuntimeError(f"PFLlib's {name} ended without scores")


def ours(
    network: str, method: str, net: nn.Module, seed: int, federation: vg.Federation, how: Setting
) -> list[float]:
    """Train with vergence and return everybody's accuracy."""
    batch_norm = vg.personalize_batch_norm if method == AT_HOME else vg.average_batch_norm
    accuracy: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda out, y: (  # noqa: E731
        (out.argmax(1) == y).double().mean()
    )
    task = vg.task_from(
        lambda: batch_norm(copy.deepcopy(net)),
        nn.functional.cross_entropy,
        {"accuracy": accuracy},
        lower_is_better=False,
    )
    local = vg.LocalTraining(
        optimizer="sgd",
        batch=BATCH[network],
        lr=how.rates[network],
        momentum=0,
        weight_decay=0,
        clip=0,
    )
    run = vg.train(
        OURS[method],
        task,
        federation,
        rounds=how.rounds,
        seed=seed,
        local=local,
        evaluate_every=0,
        workers=1,
        progress=False,
    )
    return run.scores["accuracy"].tolist()


def measure(file: Path, how: Setting) -> None:
    """Run what the file lacks, one after the other, and append a row for each."""
    federations = {network: people(BATCH[network], how) for network in how.rates}
    if not file.exists():
        names = next(iter(federations.values())).people
        file.write_text(",".join((*KEYS, "cpu_s", *names)) + "\n", encoding="utf-8")
    done = set(map(tuple, pd.read_csv(file, dtype=str)[list(KEYS)].to_numpy()))
    with tempfile.TemporaryDirectory() as place:
        for network, federation in federations.items():
            write_for_pfllib(federation, Path(place) / "dataset" / network)
        (Path(place) / "system").mkdir()
        for seed, network, method, program in product(how.seeds, how.rates, OURS, PROGRAMS):
            key = (network, method, str(seed), program)
            lacking = network == "cnn" and method in NEEDS_BATCH_NORM
            # PFLlib's FedAvg is the other side of this one, too.
            if key in done or lacking or (method, program) == (AT_HOME, "PFLlib"):
                continue
            torch.manual_seed(seed)
            net, began = NETWORKS[network](), sum(os.times()[:4])
            with chdir(Path(place) / "system"), redirect_stdout(io.StringIO()):
                if program == "PFLlib":
                    scores = theirs(network, method, net, seed, how)
                else:
                    scores = ours(network, method, net, seed, federations[network], how)
            seconds = f"{sum(os.times()[:4]) - began:.1f}"
            with file.open("a", newline="", encoding="utf-8") as out:
                row = [*key, seconds, *(f"{score:.4f}" for score in scores)]
                csv.writer(out, lineterminator="\n").writerow(row)


def table(file: Path, seeds: Iterable[int]) -> str:
    """Return the table of a file of runs as CSV; seeds that one of the programs lacks are not in.

    Means are over people and seeds, intervals over people.
    """
    runs = pd.read_csv(file).set_index(list(KEYS))
    lines = [
        "network,method,PFLlib,vergence,difference,95 % interval,seeds,PFLlib CPU s,vergence CPU s,"
        "CPU ratio"
    ]
    for network, method in product(BATCH, OURS):
        pairs = [
            (runs.loc[one], runs.loc[other])
            for seed in seeds
            for one in [(network, method.partition(",")[0], seed, "PFLlib")]
            for other in [(network, method, seed, "vergence")]
            if one in runs.index and other in runs.index
        ]
        if not pairs:
            continue
        theirs, ours = (pd.concat(side, axis=1).mean(axis=1) for side in zip(*pairs, strict=True))
        seconds = theirs.pop("cpu_s"), ours.pop("cpu_s")
        low, high = interval(ours - theirs)
        lines.append(
            f"{network},{method.replace(',', ':')},{theirs.mean():.3f},{ours.mean():.3f},"
            f"{(ours - theirs).mean():+.3f},{low:+.3f} to {high:+.3f},{len(pairs)},"
            f"{seconds[0]:.0f},{seconds[1]:.0f},{seconds[1] / seconds[0]:.2f}"
        )
    return "\n".join(lines)


NETWORKS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "resnet18": resnet}


def main() -> None:
    """Measure, and print the table."""
    given = options(__doc__, out="runs/pfllib.csv", order="random")
    how = SETTINGS[given.order]
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(os.environ["PFLLIB"]).resolve()))
    sys.modules.setdefault("torchvision", types.ModuleType("torchvision"))
    # Both programs draw the order of an epoch by this function.
    in_order = patch("torch.randperm", lambda n, **_: torch.arange(n))
    with in_order if given.order == "file" else nullcontext():
        measure(Path(given.out).resolve(), how)
    print(table(Path(given.out), how.seeds))


if __name__ == "__main__":
    main()
