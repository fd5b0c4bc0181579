"""Who is it? Masks, updates, smashed data and gaze labels of one session told by another's: top-1.

python -m benchmarks.identity --data crops: the same people train twice with the same start, once
with some of their pictures, once with others, of other days where days are known. Names are known
in the first session and asked in the second, or in the next round of the same one. Data: MPIIGaze
9x15 crops (eleven people), or the generator's; without the files the generator stands in, and says
so.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.eyes import eye_source, spread_rows
from benchmarks.common.options import options
from benchmarks.common.report import report
from benchmarks.common.runs import run_folder
from vergence.attacks.identity import IdentifiedSamples, matching_rate, nearest, votes
from vergence.attacks.malicious_parties import with_interception
from vergence.attacks.score import Classifier, Rate
from vergence.core.client import ClientContext
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Reply
from vergence.core.method import Method
from vergence.core.randomness import RandomStream
from vergence.core.requests import Forward
from vergence.core.stages import pieces
from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine.round_loop import Plan, run_rounds
from vergence.experiment.run import progress_bar
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedselect import FedSelect
from vergence.methods.split.splitfed import SplitFed
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.steps import Trainer

LOCAL = LocalTraining(optimizer="adamw", lr=2e-3)
TASK = GazeAngle(SmallEye(pose=False))
BATCH = 32
RESTATED = FedSelect(rule="restated")
Seen = dict[int, dict[str, tuple[Tensor, Tensor | None]]]
"""By round and person: the update, and the bits of the mask where there is one."""


def noted(method: Any, seen: Seen) -> Any:
    """Return a method whose replies are written down, as a server without sums has them."""

    def told(site: ClientContext, _: str, said: Reply) -> None:
        bits = said.weight.bits.float() if isinstance(said.weight, Mask) else None
        update = said.trees["model"].flat.clone()
        seen.setdefault(site.round, {})[site.id] = (update if bits is None else update * bits, bits)

    return with_interception(replace(method, local=LOCAL), told, lambda _, answer: answer)


def run(method: Method[Any, Any], federation: Federation, rounds: int) -> Any:
    with run_folder() as folder:
        plan = Plan(rounds=rounds, evaluate_every=0, workers=1, solver="sequential")
        return run_rounds(method, TASK, federation=federation, plan=plan, folder=folder).server


def sessions(data: str, count: int) -> tuple[str, Federation, Federation]:
    """Return the same people twice, with the pictures of some days and of others."""
    data, root = eye_source(data)
    if data == "crops":
        federation = MpiigazeCrops().load(root)
    else:
        federation = EyeSynthetic(people=count, samples=240, size="9x15").load()
    one, other = (
        replace(federation, people={p: taken(s, part, p) for p, s in federation.people.items()})
        for part in ("train", "test")
    )
    return data, one, other


def taken(splits: Splits, part: str, person: str, most: int = 200) -> Splits:
    """Return a person with pictures of one part to train on, in an order of their own.

    Clients shuffle by who they are: two sessions must not have alike pictures in alike places.
    """
    samples: Samples = getattr(splits, part)
    rows = spread_rows(samples, most)
    order = torch.randperm(len(rows), generator=RandomStream(f"{part} {person}").torch())
    return replace(splits, train=samples.subset(rows[order]))


def stacked(seen: Seen, round_: int, which: int) -> Tensor:
    """Return everybody's update (0) or mask (1) of a round, `[people, entries]`."""
    return torch.stack([values[which] for _, values in sorted(seen[round_].items())])  # type: ignore


def vectors(
    name: str, method: Method[Any, Any], pair: list[Federation], rounds: int
) -> list[dict[str, Any]]:
    """Return the lines of a method's updates and masks."""
    first, second = {}, {}
    for seen, federation in zip((first, second), pair, strict=True):
        run(noted(method, seen), federation, rounds)
    lines, last = [], max(first)
    for which, what in enumerate(("update", "mask")):
        if first[last][sorted(first[last])[0]][which] is None:
            continue
        known = stacked(first, last - 1, which)
        for where, asked in (
            ("next round", stacked(first, last, which)),
            ("other days", stacked(second, last, which)),
        ):
            lines.append(line(f"{name}: {what}", where, matching_rate(nearest(known, asked))))
    return lines


def labels(one: Federation, other: Federation) -> list[dict[str, Any]]:
    """Return the lines of gaze labels alone: by all of a session's, and by batches."""
    gaze = [[s.train.columns["gaze"] for s in part.people.values()] for part in (one, other)]
    known = IdentifiedSamples.of(gaze[0])
    whole = torch.tensor([known.named(labels) for labels in gaze[1]])
    parts = [
        (p, batch)
        for p, labels in enumerate(gaze[1])
        for batch in labels[torch.randperm(len(labels), generator=draws())].split(BATCH)
    ]
    hits = sum(known.named(batch) == p for p, batch in parts)
    return [
        line(f"gaze labels: a batch of {BATCH}", "other days", Rate(hits, len(parts))),
        line("gaze labels: a session's", "other days", matching_rate(whole)),
    ]


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def smashed(one: Federation, other: Federation, rounds: int) -> list[dict[str, Any]]:
    """Return the lines of smashed data, of images as they are, and of features deep inside."""
    server = run(SplitFed(local=LOCAL), one, rounds)
    lines = []
    for cut in ("pictures", "conv1", "fc1"):
        piece = pieces(TASK, "conv1" if cut == "pictures" else cut)[0]
        params = piece.init().like(
            torch.cat([server.front.flat, server.tail.flat])[: piece.init().layout.n]
        )
        trainer = Trainer(piece)

        def given(
            samples: Samples,
            cut: str = cut,
            piece: Any = piece,
            trainer: Any = trainer,
            params: Any = params,
        ) -> Tensor:
            batch = samples.take(slice(None))
            if cut == "pictures":
                return batch["image"].float() / 255
            out = trainer.forward(Forward(params, batch, lambda _: piece)).clone()
            return out if out.ndim == 4 else out.view(*out.shape, 1, 1)

        whose = [torch.full((len(s.train),), i) for i, s in enumerate(one.people.values())]
        network = Classifier(
            torch.cat([given(s.train) for s in one.people.values()]), torch.cat(whose)
        )
        named = [network.named(given(s.train)) for s in other.people.values()]
        name = cut if cut == "pictures" else f"smashed data after {cut}"
        lines.append(line(f"{name}: a frame", "other days", counted(named, 1)))
        lines.append(line(f"{name}: a batch of {BATCH}", "other days", counted(named, BATCH)))
    return lines


def counted(named: list[Tensor], size: int) -> Rate:
    """Return how often so many frames, by a majority, name their owner."""
    hits = of = 0
    for person, guesses in enumerate(named):
        mixed = guesses[torch.randperm(len(guesses), generator=draws())]
        _, most = votes(mixed, torch.arange(len(mixed)) // size)
        hits, of = hits + int((most == person).sum()), of + len(most)
    return Rate(hits, of)


def line(what: str, asked: str, rate: Rate) -> dict[str, Any]:
    return {
        "seen": what,
        "asked": asked,
        "top_1": rate.value,
        "low": rate.low,
        "high": rate.high,
        "of": rate.of,
    }


def measured(given: argparse.Namespace) -> tuple[str, int, list[dict[str, Any]]]:
    """Return the data's name, how many people, and the lines."""
    data, one, other = sessions(given.data, given.people)
    plan: list[Callable[[], list[dict[str, Any]]]] = [
        lambda: labels(one, other),
        lambda: vectors("FedAvg", FedAvg(), [one, other], given.rounds),
        lambda: vectors("FedCPF", FedCPF(), [one, other], given.rounds),
        lambda: vectors("FedSelect", RESTATED, [one, other], given.rounds),
        lambda: smashed(one, other, given.rounds),
    ]
    lines = []
    with progress_bar() as bar:
        task = bar.add_task("identity", total=len(plan), score="")
        for part in plan:
            lines += part()
            bar.update(task, advance=1, score=lines[-1]["seen"])
    if data == "crops":  # split at random: the days of MPIIGaze's crops are not known
        lines = [{**x, "asked": x["asked"].replace("days", "pictures")} for x in lines]
    return data, len(one.people), lines


def markdown(lines: list[dict[str, Any]], people: int) -> str:
    """Return the table."""
    rows = [
        f"| {x['seen']} | {x['asked']} | {x['top_1']:.0%} ({x['low']:.0%} to {x['high']:.0%}) | "
        f"{1 / people:.0%} | {x['of']} |"
        for x in lines
    ]
    return "\n".join(
        ["| seen | asked in | top-1 | chance | decisions |", "|---|---|--:|--:|--:|", *rows]
    )


def main() -> None:
    """Measure, print the table, write the numbers."""
    given = options(
        __doc__.splitlines()[0],
        data={"choices": ["crops", "synthetic"], "default": "synthetic"},
        people={"type": int, "default": 20, "help": "of the generator"},
        rounds=5,
        json=Path("identity.json"),
    )
    torch.set_num_threads(1)
    began = time.perf_counter()
    data, people, lines = measured(given)
    closing = f"{people} people, {data} eyes; {time.perf_counter() - began:.0f} s"
    report(given.json, lines, markdown(lines, people), closing)


if __name__ == "__main__":
    main()
