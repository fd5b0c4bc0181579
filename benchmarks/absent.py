"""What somebody gets who was away while everybody else trained, by method.

python -m benchmarks.absent --rounds 10: ten people of Fashion-MNIST with two classes each, as in
Table 3.1 of the Durham thesis. Person 8, who alone has bags and boots, or whom `--away` says, is
away in every round and back at the end. Accuracy in percent on that person's test images (`own`)
and on everybody's (`pooled`): means over seeds, with the 95 % interval of their mean (Student's t),
and below the same of AP-FL less FedAvg with fine-tuning. `made up` is the share of made-up samples
of the person's classes, and of all classes, that the common model takes for their class. A seed is
of the network, of who gets which images and of everything drawn.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Forward
from vergence.data.images.fashion_mnist import FILES, FashionMnist
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.round_loop import RunOutcome, run_rounds
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.generative.ap_fl import GlobalMemory, Memory, layers_and_meaning, mix_models
from vergence.methods.generative.sample_generator import (
    KIND,
    MEANING,
    NOISE,
    frozen_classifier,
    labelled_batch,
)
from vergence.methods.local_only import LocalOnly
from vergence.models.small_cnn import SmallCnn
from vergence.tasks.images import Images
from vergence.training.sequential import Solver
from vergence.training.steps import Trainers

OWNED = ((0, 1), (2, 3), (6, 7), (4, 5), (2, 4), (2, 3), (6, 7), (4, 5), (8, 9), (0, 1))
"""Who has which classes; only person 8 has bags and boots."""
SHARES = (0.01, 0.1, 0.5, 1.0)
"""Values of beta."""
PROMPTS = {"minilm": "a photo of a {}"}
Scores = dict[str, tuple[float, float]]


def dealt(args: argparse.Namespace, seed: int) -> Federation:
    """Deal so many training images to each of the ten, and a sixth as many for testing.

    The person who is away gets `own` for training.
    """
    (whole,) = FashionMnist(people=1, split_seed=seed).load(args.root).people.values()
    people = {f"p{i}": Splits(*_parts(whole, i, args.images)) for i in range(len(OWNED))}
    few = people[args.away]
    own = args.own or len(few.train)
    rows = torch.arange(own) * len(few.train) // own
    people[args.away] = replace(few, train=few.train.subset(rows))
    return Federation("fashion_mnist by Table 3.1", people)


def _parts(whole: Splits, person: int, images: int) -> list[Samples]:
    found = []
    for part, count in (
        (whole.train, images),
        (whole.val, images // 10),
        (whole.test, images // 6),
    ):
        label, rows = part.columns["label"], []
        for kind in OWNED[person]:
            owners = [i for i, kinds in enumerate(OWNED) if kind in kinds]
            mine = (label == kind).nonzero().squeeze(1)[owners.index(person) :: len(owners)]
            rows.append(mine[: count // 2])
        found.append(part.subset(torch.cat(rows)))
    return found


def methods(args: argparse.Namespace, local: LocalTraining) -> dict[str, Method]:
    """Return the methods by their rows' names."""
    tune = local.epochs * 10
    made = {
        f"AP-FL {space}, {source}": GlobalMemory(
            local,
            FedAvg(local),
            space=space,
            semantics=source,
            prompt=PROMPTS.get(source, "{}"),
            distances=args.distances,
            passes=args.passes,
            tune_epochs=tune,
        )
        for space in args.spaces
        for source in args.semantics
    }
    return {
        "local": LocalOnly(local),
        "FedAvg": FedAvg(local),
        "FedAvg-FT": FedAvgFT(local, tune_epochs=tune),
        **made,
    }


def trained(
    args: argparse.Namespace, method: Method, task: Images, people: Federation
) -> RunOutcome:
    """Run a method without the person, or, where everybody trains alone, with nobody else."""
    alone = isinstance(method, LocalOnly)
    presence = Participation() if alone else Participation(gone={args.away: 0}, back=(args.away,))
    plan = Plan(rounds=args.rounds, evaluate_every=0, workers=1, presence=presence)
    with run_folder() as folder:
        found = run_rounds(
            method,
            task,
            federation=people.only([args.away]) if alone else people,
            plan=plan,
            folder=folder,
        )
        return RunOutcome(found.fingerprint, found.server, dict(found.clients))


def rows_of(
    args: argparse.Namespace, name: str, method: Method, task: Images, people: Federation
) -> Scores:
    """Return a method's rows: accuracies on the person's and on everybody's test images."""
    outcome, solver = trained(args, method, task, people), Solver(task)
    state = outcome.clients.get(args.away)
    tests = [
        people.people[args.away].test,
        Samples.concatenate([splits.test for splits in people.people.values()]),
    ]

    def scored(params: Params) -> tuple[float, float]:
        own, pooled = (100 * solver.score(params, test) for test in tests)
        return own, pooled

    if not isinstance(method, GlobalMemory):
        kept = None if state is None else getattr(state, "params", None)
        return {name: scored(outcome.server.model if kept is None else kept)}
    mixes = {
        f"{name}, beta {share:g}": mix_models(state.mine, state.friend, share) for share in SHARES
    }
    return {
        f"{name}, made up": recognised(method, task, outcome.server, args.away),
        **{row: scored(params) for row, params in mixes.items()},
    }


def recognised(
    method: GlobalMemory, task: Images, memory: Memory, away: str
) -> tuple[float, float]:
    """Return how many made-up samples of one's, and of all classes show their class, in percent."""
    net, meaning = layers_and_meaning(memory.generator)
    kinds = torch.arange(10).repeat_interleave(50)
    noise = torch.randn(len(kinds), method.noise, generator=RandomStream("absent").torch())
    batch = {NOISE: noise, MEANING: meaning[kinds], KIND: kinds}
    judge, ask = method.judge(task), Trainers(task)
    samples = ask.answer(Forward(net, batch, method.imagining), 1.0)
    theta = memory.base.model.only(frozen_classifier(judge)[0].names)
    scores = ask.answer(Forward(theta, labelled_batch(judge, samples, kinds), method.judge), 1.0)
    right = (scores.argmax(1) == kinds).double()
    own = torch.isin(kinds, torch.tensor(OWNED[int(away[1:])]))
    return 100 * float(right[own].mean()), 100 * float(right.mean())


def seed_of(args: argparse.Namespace, seed: int) -> Scores:
    """Return every row of one seed."""
    people = dealt(args, seed)
    task = Images(SmallCnn(), seed=seed, names=FILES.classes)
    local = LocalTraining(
        epochs=args.epochs, batch=50, optimizer="adam", lr=args.lr, weight_decay=0.0
    )
    found: Scores = {}
    for name, method in methods(args, local).items():
        found |= rows_of(args, name, method, task, people)
    return found


def interval(values: np.ndarray) -> str:
    """Return a mean and its 95 % interval."""
    mean, n = values.mean(), len(values)
    if n < 2:
        return f"{mean:6.2f}"
    half = stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5
    return f"{mean:6.2f} ({mean - half:.2f} to {mean + half:.2f})"


def show(found: Sequence[Mapping[str, tuple[float, float]]]) -> None:
    """Print the two tables."""
    table = {name: np.array([rows[name] for rows in found]) for name in found[0]}
    for name, values in table.items():
        print(f"{name:36} own {interval(values[:, 0]):28} pooled {interval(values[:, 1])}")
    print("less FedAvg-FT:")
    for name in (name for name in table if "beta" in name):
        gain = table[name] - table["FedAvg-FT"]
        print(f"{name:36} own {interval(gain[:, 0]):28} pooled {interval(gain[:, 1])}")


def main() -> None:
    """Print the tables."""
    args = options(
        __doc__.partition("\n")[0],
        root="../shared/data/fashion_mnist",
        images=600,
        away="p8",
        own={"type": int, "help": "images of who is away; default: as many"},
        rounds=10,
        epochs=1,
        lr=1e-3,
        passes=5,
        seeds=3,
        spaces={"nargs": "+", "default": ["input", "features"]},
        distances="relative",
        semantics={"nargs": "+", "default": ["names", "random"]},
    )
    torch.set_num_threads(1)
    show([seed_of(args, seed) for seed in range(args.seeds)])


if __name__ == "__main__":
    main()
