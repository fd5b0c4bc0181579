"""What the numbers tell that CFed-VS, FedGen and AP-FL have everybody tell, with and without noise.

python -m benchmarks.shared_numbers --root DIR, the folder with fashion_mnist and
video_summarisation; parts whose data are missing are left out, and said to be.

distances: one number each, or three, of thirty generated people in three communities with 15
clips, nine of them measured; agreement is the adjusted Rand of the groups that CFed-VS makes of
what it was told, with the communities. Videos: 19 videos of TVSum by their key frames, the
twentieth being the proxy. counts: a hundred people of Fashion-MNIST. generator: AP-FL on random
halves of ten people with two classes each (Table 3.1 of the Durham thesis); which classes anybody
had, and who took part, asked of what everybody is sent: the model and the generator. Each of the
runs is attacked in turn, the others tell what is usual (LiRA). Rates are of all seeds together,
chance beside them, bounds of Clopper and Pearson, 95 %.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.eyes import spread
from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.attacks.membership import leave_one_out_ratios, random_halves
from vergence.attacks.score import Rate
from vergence.audit.disclosed_statistics import (
    DisclosedNumbers,
    class_counts,
    class_rates,
    distance_rates,
    power_of_two_above,
    proxy_distances,
    video_rates,
)
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Reply
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Forward
from vergence.data.images.fashion_mnist import FILES, FashionMnist
from vergence.data.synthetic.clip_synthetic import ClipSynthetic
from vergence.data.video_summaries.tvsum import TVSum
from vergence.engine.plan import Plan
from vergence.engine.round_loop import run_rounds
from vergence.errors import DataError
from vergence.methods.clustered.cfedvs import CFedVS
from vergence.methods.fedavg import FedAvg
from vergence.methods.generative.ap_fl import GlobalMemory, Memory, layers_and_meaning
from vergence.methods.generative.sample_generator import (
    KIND,
    MEANING,
    NOISE,
    frozen_classifier,
    labelled_batch,
)
from vergence.metrics.clustering import adjusted_rand
from vergence.metrics.dtw import dtw
from vergence.models.softmax import Softmax
from vergence.models.vslstm import VsLSTM
from vergence.privacy.dp.disclosed_statistics import DisclosedStatistics, of_counts
from vergence.privacy.keyed_noise import NoiseKey
from vergence.tasks.images import Images
from vergence.tasks.summary import SummaryTask
from vergence.training.steps import Trainers

LOCAL = LocalTraining(steps=20, batch=20, optimizer="sgd", lr=0.1, momentum=0.0)
EPSILON = 1.0
"""Of the noise on counts that a generator is made with, for a person."""


def told_of(found: dict[str, list[dict[str, Any]]], prefix: str, rows: Iterator[Any]) -> None:
    """Put the lines of an audit together by name."""
    for row in rows:
        found.setdefault(f"{prefix} | {row['finds']}", []).append(row)


def pooled(rows: list[dict[str, Any]]) -> str:
    """Return the rate of lines of several seeds together, and chance."""
    hits, of = sum(row["hits"] for row in rows), sum(row["of"] for row in rows)
    rate, chance = Rate(hits, of), float(np.mean([row["by_chance"] for row in rows]))
    value, low, high, beside = map(percent, (rate.value, rate.low, rate.high, chance))
    return f"{value} ({low} to {high}) | {beside} | {rate.of}"


def percent(share: float) -> str:
    """Return a share in percent, to a tenth below one."""
    return f"{share:.1%}" if 0 < share < 0.01 else f"{share:.0%}"


def distances(seeds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of distances, and print how well groups are found behind noise."""
    found: dict[str, list[dict[str, Any]]] = {}
    kinds = {
        "one distance": CFedVS(),
        "one, a mean over frames": CFedVS(per_frame=True),
        "three distances": CFedVS(proxies=3),
    }
    agreed: dict[str, list[float]] = {}
    for seed in range(seeds):
        people = ClipSynthetic(people=30, clips=15, seed=seed).load()
        task = SummaryTask(VsLSTM(4, 8), seed)
        for name, method in kinds.items():
            saved: Any = SimpleNamespace(server=method.server(task), method=method, task=task)
            numbers, videos = proxy_distances(saved, people)
            told_of(found, name, distance_rates(numbers))
            told_of(found, name, video_rates(videos, numbers.bound))
            for level, value in agreement(numbers, method):
                agreed.setdefault(f"{name} | {level}", []).append(value)
    for name, values in agreed.items():
        print(
            f"| {name} | agreement of groups | {np.mean(values):.2f} "
            f"({min(values):.2f} to {max(values):.2f}) |"
        )
    return found


def agreement(numbers: DisclosedNumbers, method: CFedVS) -> Iterator[tuple[str, float]]:
    """Yield by noise how well the groups of what was told are the communities."""
    many = len(numbers.asked)
    made = [i % 3 for i in range(many)]
    for name, noisy in numbers.levels():
        draws = noisy(numbers.asked).split(many)
        yield (
            name,
            float(
                np.mean(
                    [adjusted_rand(made, method.make_groups(d.numpy()).tolist()) for d in draws]
                )
            ),
        )


def videos(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of TVSum's key frames."""
    people = TVSum(people=4, keyframes=True).load(str(root / "video_summarisation"))
    task = SummaryTask(VsLSTM(1280, 8))
    clips = [
        clip.numpy()
        for s in people.people.values()
        for part in (s.train, s.val, s.test)
        for clip in task.sequences(part)
    ]
    proxy, found = clips.pop(), {}
    for name, per_frame in (("a video's distance", False), ("a video's mean distance", True)):
        whole, cut = (
            torch.tensor(
                [[dtw(clip[: round(share * len(clip))], proxy, per_frame)] for clip in clips],
                dtype=torch.float64,
            )
            for share in (1.0, 0.9)
        )
        told_of(found, name, video_rates((cut, whole), power_of_two_above(float(whole.max()))))
    return found


def counts(root: Path, seeds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of counts of classes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(seeds):
        for name, data in {
            "counts, Dirichlet(0.1)": FashionMnist(100, "dirichlet", 0.1, split_seed=seed),
            "counts, Dirichlet(10)": FashionMnist(100, "dirichlet", 10.0, split_seed=seed),
            "counts, dealt at random": FashionMnist(100, "iid", split_seed=seed),
        }.items():
            people = data.load(str(root / "fashion_mnist"))
            told_of(found, name, class_rates(class_counts(Images(Softmax()), people)))
    return found


@dataclass(frozen=True)
class Noisy(GlobalMemory):
    """AP-FL whose clients tell counts with noise."""

    def on_tell(self, c: Any, msg: Any, site: Any) -> Any:
        """Tell counts with noise."""
        c, said = yield from super().on_tell(c, msg, site)
        kept = said.trees["counts"]
        bound = power_of_two_above(float(kept.flat.sum()))
        policy = DisclosedStatistics(bound, of_counts(bound).person, EPSILON)
        noise = NoiseKey(bytes(32)).child(site.id, site.task.seed).draws()
        hidden = policy.privatize(kept.flat, noise).clamp(min=0).float()
        return c, Reply({**said.trees, "counts": kept.like(hidden)}, said.weight, said.metrics)


def generators(root: Path, runs: int) -> None:
    """Print what the generator tells, and what the model that goes with it does."""
    whole = FashionMnist(10, "table").load(str(root / "fashion_mnist"))
    people = replace(
        whole,
        people={
            n: replace(s, train=spread(s.train, 200), test=spread(s.test, 100))
            for n, s in whole.people.items()
        },
    )
    people = Softmax().prepare(people)
    names, who = list(people.people), random_halves(len(people.people), runs, 0)
    kinds = torch.stack(
        [s.train.columns["label"].bincount(minlength=10) > 0 for s in people.people.values()]
    )
    for name, kind in (
        ("counts as they are", GlobalMemory),
        (f"counts, epsilon {EPSILON:g} for a person", Noisy),
    ):
        made, shown = [], []
        for run in range(runs):
            some = people.only([n for n, in_ in zip(names, who[run].tolist(), strict=True) if in_])
            method = kind(LOCAL, FedAvg(LOCAL), samples=60, passes=2, tune_epochs=1)
            task = Images(Softmax(), seed=run, names=FILES.classes)
            memory = trained(method, task, some)
            made.append(of_generator(method, task, memory))
            shown.append(of_model(task, memory.base.model, people))
        there = torch.stack([kinds[inside].any(0) for inside in who])
        for what, seen in (("the generator", made), ("the model", shown)):
            table = torch.stack(seen)
            print_line(f"{name} | was a class anybody's, by {what}", table, there)
            own = table @ (kinds.double() / kinds.sum(1, keepdim=True)).T
            print_line(f"{name} | was this person in, by {what}", own, who)


def print_line(finds: str, shown: Tensor, inside: Tensor) -> None:
    """Print how often each column of each run is rightly called in or out, by all other runs."""
    hits = of = often = 0
    mixed = (inside.sum(0) >= 3) & ((~inside).sum(0) >= 3)
    for ratio, truth in leave_one_out_ratios((-shown[:, mixed]).exp(), inside[:, mixed]):
        hits, of, often = (
            hits + int(((ratio > 0) == truth).sum()),
            of + len(truth),
            often + int(truth.sum()),
        )
    rate = Rate(hits, of)
    print(
        f"| {finds} | {rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%}) | "
        f"{max(often, of - often) / of:.0%} | {of} |"
    )


def trained(method: GlobalMemory, task: Images, people: Federation) -> Memory:
    """Return what the server of a run has in the end."""
    with run_folder() as folder:
        plan = Plan(rounds=5, evaluate_every=0, checkpoint_every=0, workers=1, solver="sequential")
        return run_rounds(method, task, federation=people, plan=plan, folder=folder).server


def remembered(outputs: Tensor, kinds: Tensor, classes: int) -> Tensor:
    """Return the share of made-up samples of every class that a network takes for it, `[classes]`.

    Args:
        outputs: `[samples, classes]`, what the network says.
        kinds: int64 `[samples]`, of which class each was made.
        classes: how many there are; 0 for one of which nothing was made.
    """
    right = (outputs.argmax(1) == kinds).double()
    total = torch.zeros(classes, dtype=torch.float64).index_add_(0, kinds, right)
    return total / torch.bincount(kinds, minlength=classes).clamp(min=1)


def of_generator(method: GlobalMemory, task: Images, memory: Memory) -> Tensor:
    """Return the share of made-up samples of each class that the model takes for it."""
    net, meaning = layers_and_meaning(memory.generator)
    kinds = torch.arange(10).repeat_interleave(50)
    noise = torch.randn(len(kinds), method.noise, generator=RandomStream("shared numbers").torch())
    ask, judge = Trainers(task), method.judge(task)
    batch = {NOISE: noise, MEANING: meaning[kinds], KIND: kinds}
    samples = ask.answer(Forward(net, batch, method.imagining), 1.0)
    theta = memory.base.model.only(frozen_classifier(judge)[0].names)
    outputs = ask.answer(Forward(theta, labelled_batch(judge, samples, kinds), method.judge), 1.0)
    return remembered(outputs, kinds, 10)


def of_model(task: Images, model: Params, people: Federation) -> Tensor:
    """Return the share of test pictures of each class that the model takes for it."""
    test = Samples.concatenate([s.test for s in people.people.values()])
    batch = test.take(slice(None))
    net = task.module()
    torch.nn.utils.vector_to_parameters(model.flat, net.parameters())
    with torch.no_grad():
        return remembered(task.forward(net.eval(), batch), batch["label"].long(), 10)


def main() -> None:
    """Measure, and print the tables."""
    given = options(
        __doc__.partition("\n")[0],
        root={"type": Path, "help": "folder of fashion_mnist, video_summarisation"},
        seeds=3,
        runs={"type": int, "default": 24, "help": "of AP-FL, an even number"},
    )
    torch.set_num_threads(1)
    print("| told | found | right | chance | decisions |\n|---|---|--:|--:|--:|")
    found = distances(given.seeds)
    if given.root is not None:
        for part in (lambda: videos(given.root), lambda: counts(given.root, given.seeds)):
            try:
                found |= part()
            except DataError as error:
                print(f"left out: {error}")
    for name, rows in found.items():
        print(f"| {name} | {pooled(rows)} |")
    if given.root is not None:
        generators(given.root, given.runs)


if __name__ == "__main__":
    main()
