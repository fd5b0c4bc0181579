"""Was this frame, or this person, in the training? LiRA on a small gaze network, beside chance.

python -m benchmarks.membership: the generator's people (9x15), many small_eye networks, each
trained on a random half of the frames, or of the people. Every network is the attacked one in turn
and all others are its shadows. A person is looked for twice: by the very frames they may have
trained with, and by frames of other days, which nobody trained with.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.options import options
from benchmarks.common.report import report
from vergence.attacks.membership import leave_one_out_ratios, random_halves, sum_by_person
from vergence.attacks.score import least_epsilon, tpr_at
from vergence.attacks.training import learn
from vergence.core.data import Samples
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.experiment.run import progress_bar
from vergence.models.small_eye import SmallEye

FPR = 0.01


def columns(parts: list[Samples]) -> tuple[Tensor, Tensor, Tensor]:
    """Return images in [0, 1], gaze, and whose they are."""
    whose = [torch.full((len(part),), i) for i, part in enumerate(parts)]
    together = Samples.concatenate(parts).columns
    return together["image"].float() / 255, together["gaze"], torch.cat(whose)


def trained(images: Tensor, gaze: Tensor, epochs: int, seed: int) -> nn.Module:
    """Return a gaze network that learned these samples."""
    torch.manual_seed(seed)
    network = SmallEye(pose=False).build()

    def loss(rows: Tensor, _: object) -> Tensor:
        return (network(images[rows]) - gaze[rows]).abs().mean()

    learn(network, loss, len(images), epochs, seed=seed)
    return network


def losses(networks: list[nn.Module], images: Tensor, gaze: Tensor) -> Tensor:
    """Return the loss of every network on every sample, `[models, samples]`."""
    with torch.no_grad():
        return torch.stack([(net(images) - gaze).abs().mean(1) for net in networks])


def told(name: str, scores: list[Tensor], truth: list[Tensor]) -> dict[str, Any]:
    """Return a line of the table."""
    true, false = tpr_at(torch.cat(truth), torch.cat(scores), FPR)
    return {
        "question": name,
        "tpr": true.value,
        "low": true.low,
        "high": true.high,
        "fpr": false.value,
        "members": true.of,
        "others": false.of,
        "least_epsilon": least_epsilon(true, false),
    }


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Train all networks twice, by frame and by person; return the table."""
    made = list(EyeSynthetic(people=given.people, samples=80, size="9x15").load().people.values())
    images, gaze, whose = columns([splits.train for splits in made])
    later, later_gaze, later_whose = columns([splits.test for splits in made])
    lines = []
    with progress_bar() as bar:
        line = bar.add_task("membership", total=2 * given.models, score="")
        for unit, units in (("frame", len(images)), ("person", given.people)):
            who = random_halves(units, given.models, given.seed)
            inside = who if unit == "frame" else who[:, whose]
            networks = []
            for model in range(given.models):
                rows = inside[model]
                networks.append(trained(images[rows], gaze[rows], given.epochs, model))
                bar.update(line, advance=1)
            seen = losses(networks, images, gaze)
            if unit == "frame":
                scores, truth = zip(*leave_one_out_ratios(seen, inside), strict=True)
                lines.append(told("this frame", list(scores), list(truth)))
                continue
            unseen = losses(networks, later, later_gaze)
            for name, values, owner in (
                ("this person, by the frames in question", seen, whose),
                ("this person, by frames of other days", unseen, later_whose),
            ):
                pairs = leave_one_out_ratios(values, who[:, owner])
                scores = [sum_by_person(ratio, owner)[1] for ratio, _ in pairs]
                lines.append(told(name, scores, list(who)))
    return lines


def markdown(lines: list[dict[str, Any]]) -> str:
    """Return the table."""
    heads = f"| question | TPR at {FPR:.0%} FPR | chance | decisions | epsilon at least |"
    rows = [
        f"| {line['question']} | {line['tpr']:.1%} ({line['low']:.1%} to {line['high']:.1%}) | "
        f"{FPR:.0%} | {line['members'] + line['others']:,} | {line['least_epsilon']:.2f} |"
        for line in lines
    ]
    return "\n".join([heads, "|---|--:|--:|--:|--:|", *rows])


def main() -> None:
    """Measure, print the table, write the numbers."""
    given = options(
        __doc__.splitlines()[0],
        people=40,
        models=20,
        epochs=60,
        seed=0,
        json=Path("membership.json"),
    )
    torch.set_num_threads(1)
    began = time.perf_counter()
    lines = measured(given)
    report(given.json, lines, markdown(lines), f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
