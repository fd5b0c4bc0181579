"""CPU seconds of `vg.train` on networks that nobody tuned for, beside a plain loop of torch.

    python -m benchmarks.own_networks

Three networks as notebooks have them: an LSTM, a ResNet-18 of 16 channels whose BatchNorm is
averaged, a small transformer; all made by a lambda. Both programs do FedAvg over the same people
with the same batches' sizes, optimiser and number of steps, on one thread; they take turns, and the
ratio of their CPU seconds (children included) is shown with the median of the repetitions. Then one
and two workers train the same run: the fingerprints must be equal.
"""

from __future__ import annotations

import argparse
import copy
import resource
import statistics
import sys

import torch
from torch import Tensor, nn

import vergence as vg

PEOPLE, ROWS, CLASSES, BATCH = 8, 80, 4, 16


class Block(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.skip = (
            nn.Identity()
            if inside == outside and stride == 1
            else nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + skip(x))."""
        return torch.relu(self.body(x) + self.skip(x))


def resnet18(width: int = 16) -> nn.Module:
    """ResNet-18 for small pictures, of `width` channels in the first stage."""
    stages, inside = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)], width
    for number in range(4):
        outside = width << number
        stages += [Block(inside, outside, 1 + (number > 0)), Block(outside, outside, 1)]
        inside = outside
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))
    return nn.Sequential(*stages, *ends)


class Sequences(nn.Module):
    """LSTM over `[samples, steps, 8]`, or a transformer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = (
            nn.LSTM(8, 64, batch_first=True)
            if kind == "lstm"
            else nn.Sequential(
                nn.Linear(8, 64),
                nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
                nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
            )
        )
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the classes from the last step."""
        states = self.inner(x)
        return self.head((states[0] if isinstance(states, tuple) else states)[:, -1])


NETWORKS = {
    "lstm": (lambda: Sequences("lstm"), (24, 8)),
    "resnet18": (resnet18, (3, 32, 32)),
    "transformer": (lambda: Sequences("transformer"), (24, 8)),
}


def cpu_seconds() -> float:
    """Processor time of this process and its children so far."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def plain(network, people, rounds: int) -> None:
    """FedAvg in a loop as one writes it, whole `state_dict`s averaged; then everybody's loss."""
    common = network()
    for _ in range(rounds):
        states = []
        for x, y in people.values():
            local = copy.deepcopy(common).train()
            steps = torch.optim.SGD(local.parameters(), 0.05, 0.9, weight_decay=1e-4)
            for rows in torch.randperm(int(0.6 * len(x))).split(BATCH):
                steps.zero_grad()
                nn.functional.cross_entropy(local(x[rows]), y[rows]).backward()
                nn.utils.clip_grad_norm_(local.parameters(), 5.0)
                steps.step()
            states.append(local.state_dict())
        mean = {n: torch.stack([s[n].float() for s in states]).mean(0) for n in states[0]}
        common.load_state_dict(mean)
    common.eval()
    with torch.no_grad():
        for x, y in people.values():
            nn.functional.cross_entropy(common(x[int(0.8 * len(x)) :]), y[int(0.8 * len(x)) :])


def main() -> int:
    """Print a row per network."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_networks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | plain loop, CPU s | vg.train, CPU s | ratio | workers 1 = 2 |")
    for name, (network, shape) in NETWORKS.items():
        draw = torch.Generator().manual_seed(0)
        people = {
            f"p{number}": (
                torch.randn(ROWS, *shape, generator=draw),
                torch.randint(CLASSES, (ROWS,), generator=draw),
            )
            for number in range(PEOPLE)
        }
        made = vg.Federation.from_arrays(people)
        factory = (lambda: vg.average_batch_norm(resnet18())) if name == "resnet18" else network
        task = vg.task_from(factory, nn.functional.cross_entropy)
        method = vg.methods.FedAvg(local=vg.LocalTraining(optimizer="sgd", batch=BATCH, lr=0.05))
        common = {"rounds": options.rounds, "evaluate_every": 0, "progress": False}
        times: list[tuple[float, float]] = []
        for _ in range(options.repeat):
            began = cpu_seconds()
            plain(network, people, options.rounds)
            half = cpu_seconds()
            one = vg.train(method, task, made, workers=1, **common)
            times.append((half - began, cpu_seconds() - half))
        two = vg.train(method, task, made, workers=2, **common)
        theirs, ours = (statistics.median(each) for each in zip(*times, strict=True))
        ratio = statistics.median(o / t for t, o in times)
        equal = "yes" if one.fingerprint == two.fingerprint else "NO"
        print(f"| {name} | {theirs:.2f} | {ours:.2f} | {ratio:.2f} | {equal} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
