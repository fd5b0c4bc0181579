"""How far closed-form zero-shot learning gets, with descriptions that mean something and without.

python -m benchmarks.zero_shot: ESZSL (features of unit length, lambda = gamma = 1, nothing tuned),
learned from seen classes alone, on generated features; above it who knows how they were generated.
--root DIR: on the real attributes and lists of an att_splits.mat, features generated.
--pictures DIR: on pictures of CIFAR-10 as a frozen network sees them, in the mean over every choice
of two unseen classes among the seven that aPY has, or all ten (--among all).
--semantics: descriptions, with a prompt behind "=" ("minilm=a photo of a {}"); `random` is the mean
of --draws draws of vectors that mean nothing.
"""

import argparse
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.common.options import options
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.data.images.cifar10_unseen import NAMES, SHARED, Cifar10Unseen
from vergence.data.io.checks import data_path
from vergence.data.owner import OWNER
from vergence.data.synthetic.zsl_synthetic import ZslSynthetic
from vergence.data.zero_shot.semantics import meanings
from vergence.metrics.zero_shot import eszsl, zero_shot_scores
from vergence.models.pretrained import in_place_of_images

COLUMNS = ("T1", "u", "s", "H")


def main() -> None:
    args = options(
        __doc__.splitlines()[0],
        root={},
        pictures={},
        among={"choices": ("apy", "all"), "default": "apy"},
        semantics={"nargs": "+"},
        draws=5,
        lamda=1.0,
        features={"type": int, "help": "of generated data"},
        share={"type": float, "default": 1.0, "help": "of the images of real lists"},
    )
    torch.set_num_threads(1)
    print("| descriptions | T1 | u | s | H |\n|---|---:|---:|---:|---:|")
    if args.pictures:
        told = pictures(args)
    else:
        data = ZslSynthetic(teacher="quasi", features=args.features, share=args.share)
        federation, means = data.made(args.root and data_path(args.root))
        test = federation.people[OWNER].test.columns
        best = likelihood(test["x"], means, data.noise)
        line("(the likeliest class)", [zero_shot_scores(best, test["y"], hidden(federation))])
        told = [federation]
    for source in args.semantics or [told[0].about["semantics"], "random"]:
        count = args.draws if source == "random" else 1
        line(source, [floor(f, source, args.lamda, draw) for f in told for draw in range(count)])


def pictures(args: argparse.Namespace) -> list[Federation]:
    """Return the data of every choice of two unseen classes."""
    names = SHARED if args.among == "apy" else NAMES
    root = data_path(args.pictures)
    return [
        in_place_of_images(Cifar10Unseen("quasi", unseen=two, among=args.among).load(root))
        for two in combinations(names, 2)
    ]


def likelihood(
    x: Float[Tensor, "n d"], means: Float[Tensor, "classes d"], noise: float = 1.5
) -> Float[Tensor, "n classes"]:
    """Return the log-likelihood of every class, up to what all have in common.

    Gamma noise of shape k = 1 / noise^2 around a mean m: -k sum(log m + x / m).
    """
    return -(means.log().sum(1) + x @ means.reciprocal().T) / noise**2


def floor(federation: Federation, source: str, lamda: float, draw: int) -> dict[str, float]:
    """Score ESZSL, learned on what a quasi-omniscient teacher has."""
    splits = federation.people[OWNER]
    learned = Samples.concatenate([splits.train, splits.val]).columns
    source, _, prompt = source.partition("=")
    names = tuple(federation.about["classes"].split(", "))
    meaning = meanings(names, source, f"{draw} {{}}" if draw else prompt or "{}").vectors
    x, test = (unit(part["x"]) for part in (learned, splits.test.columns))
    scores = test @ eszsl(x, learned["y"], meaning, lamda) @ meaning.T
    return zero_shot_scores(scores, splits.test.columns["y"], hidden(federation))


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def hidden(federation: Federation) -> list[int]:
    names = federation.about["classes"].split(", ")
    return [names.index(name) for name in federation.about["unseen"].split(", ")]


def line(what: str, scores: Sequence[dict[str, float]]) -> None:
    cells = (f"{100 * np.mean([s[column] for s in scores]):.1f}" for column in COLUMNS)
    print(f"| {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
