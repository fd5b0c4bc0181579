"""The AP-FL chapter: accuracies in percent as printed, and the claims.

Source: the Durham thesis, chapter 3, Tables 3.2 to 3.4, Figures 3.2, 3.4 and 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vergence.app.papers.apfl import (
    ALPHAS,
    BY_COUNT,
    BY_NOISE,
    EVEN,
    MEANT,
    MISSING,
    OWN_MODEL,
    RIVALS,
    SIZED,
    dealt,
    dropped,
    meant,
    participated,
    sized,
)
from vergence.app.papers.base import Claim, PaperTable, alike, better, order

NAN = math.nan
CIFAR10, CIFAR100, EMNIST, FASHION = "CIFAR10", "CIFAR100", "EMNIST", "Fashion-MNIST"
ROWS = ("local_only", "fedavg", "fedprox", "scaffold", "fedgen", "feddf", "ap_fl")
Settings = Sequence[tuple[float, ...]]
ENDS, MIDDLE = (ALPHAS[0], ALPHAS[2]), ALPHAS[1]
TABLE32: Mapping[int, Mapping[str, Settings]] = {
    5: {
        CIFAR10: ((15.71, 43.83, 51.48, 54.47, 28.66, 44.66, 61.84),
                  (28.72, 61.61, 60.08, 64.28, 41.86, 60.27, 65.14),
                  (33.00, 65.77, 65.07, 67.37, 46.61, 64.58, 69.46)),
        CIFAR100: ((13.89, 30.16, 29.28, 33.80, 30.04, 30.47, 35.28),
                   (24.53, 32.19, 34.58, 36.74, 32.17, 35.34, 38.47),
                   (25.23, 34.63, 34.89, 37.18, 34.93, 36.84, 39.95)),
        EMNIST: ((24.36, 86.56, 85.43, 85.30, 82.41, 88.06, 89.07),
                 (33.20, 89.33, 87.97, 89.22, 86.86, 89.27, 91.24),
                 (36.86, 90.85, 89.36, 91.88, 90.12, 90.32, 91.60)),
        FASHION: ((49.15, 88.28, 87.68, 88.60, 87.05, 88.79, 89.36),),
    },
    10: {
        CIFAR10: ((15.76, 38.79, 45.98, 46.09, 26.67, 37.06, 56.28),
                  (24.95, 52.96, 51.68, 53.01, 27.51, 52.07, 58.73),
                  (35.04, 58.15, 56.36, 60.04, 43.08, 57.89, 61.39)),
        CIFAR100: ((14.47, 28.37, 28.11, 30.32, 28.18, 28.39, 31.74),
                   (23.40, 30.01, 32.16, 33.49, 29.55, 33.12, 35.86),
                   (24.09, 32.34, 32.78, 34.95, 31.88, 33.51, 36.74)),
        EMNIST: ((13.38, 65.98, 77.09, 69.23, 66.74, 65.72, 82.48),
                 (19.03, 82.32, 83.23, 84.06, 81.05, 83.19, 85.27),
                 (32.22, 88.69, 87.68, 87.88, 88.45, 89.12, 88.94)),
        FASHION: ((41.61, 85.94, 85.74, 85.50, 85.23, 83.97, 87.04),),
    },
}  # fmt: skip
"""People -> data set -> alpha (none of Fashion-MNIST is printed) -> accuracy of `ROWS`."""
TABLE33: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    CIFAR10: {"10 %": (29.47, 31.43, 34.18), "20 %": (26.74, 29.82, 32.97)},
    CIFAR100: {"10 %": (22.61, 23.15, 23.12), "20 %": (21.97, 24.73, 24.65)},
    EMNIST: {"10 %": (30.15, 34.81, 37.91), "20 %": (29.73, 34.05, 36.29)},
    FASHION: {"10 %": (47.51, 51.78, 58.97), "20 %": (47.63, 51.96, 56.83)},
}
"""Data set -> missing classes -> local training, FedAvg with fine-tuning, AP-FL."""
TABLE34: Mapping[str, Mapping[str, tuple[float, float]]] = {
    CIFAR10: {"glove": (50.74, 41.32), "bert": (55.92, 51.63), "clip": (58.21, 49.79)},
    CIFAR100: {"glove": (18.92, 15.49), "bert": (21.76, 22.05), "clip": (25.62, 26.43)},
    EMNIST: {"glove": (59.86, 44.25), "bert": (65.14, 51.27), "clip": (70.72, 54.60)},
    FASHION: {"glove": (62.14, 50.43), "bert": (73.31, 52.84), "clip": (74.16, 58.63)},
}
"""Data set -> BERT, CLIP and GloVe, which stands in the place of word2vec -> A_n, A_d."""

ALIKE = 0.10
"""Accuracy within which semantics are "comparable", fixed before any run."""
STABLE = 0.05
"""Accuracy within which more samples leave a friend "stable", fixed before any run."""

SEEDS = "people, seeds averaged within a person, for own tests; over seeds for pooled ones"
PRINTED = (
    "the printed numbers are pooled-test ones, though the text says that tests share the person's "
    "classes: local training with two of ten classes has 15.71 %. "
    "Those of Fashion-MNIST are of a partition that it does not name (ten people: local 41.61, "
    "FedAvg 85.94, AP-FL 87.04 %) and have no row"
)
POOLED = (
    "pooled test: everybody's test images; of personal models the mean over people. All seeds "
    "share one partition. AP-FL and fine-tuning get ten epochs at the end; beta 0 is AP-FL's own "
    "model of a person, beta 1 the friend alone, from the same run; everybody gives 5 % of their "
    "training images to the server, without labels, which FedDF alone uses"
)
APART = ("federation", "split", "data")


def at(label: str, people: int, alpha: float) -> str:
    """Return the label of a row of Table 3.2."""
    return label + dealt(people, alpha)


def _printed32(people: int, alphas: Sequence[float]) -> dict[str, dict[str, tuple[float, float]]]:
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for data, settings in TABLE32[people].items():
        known = dict(zip(ALPHAS, settings, strict=False)) if data != FASHION else {}
        found[data] = {at(label, people, alpha): (value, NAN)
                       for alpha in alphas if alpha in known
                       for label, value in zip(ROWS, known[alpha], strict=True)}  # fmt: skip
    return found


def _ahead(people: int, alphas: Sequence[float]) -> tuple[Claim, ...]:
    """Return what is said of AP-FL at each alpha, on both tests."""
    found: list[Claim] = []
    for alpha in alphas:
        mine = at("ap_fl", people, alpha)
        rivals = [at(rival, people, alpha) for rival in RIVALS if rival != "fedavg_ft"]
        found += [
            better(f"AP-FL is best at alpha {alpha:g}", "Table 3.2", mine, *rivals),
            better(f"the same on own classes, as the text describes the tests, alpha {alpha:g}",
                   "3.4.1", mine, *rivals, quantity="own"),
            better(f"AP-FL beats FedAvg with fine-tuning at alpha {alpha:g}, own test",
                   "not in the thesis", mine, at("fedavg_ft", people, alpha), quantity="own"),
            better(f"the friend adds to one's own model at alpha {alpha:g}", "3.3.2", mine,
                   at(OWN_MODEL, people, alpha)),
        ]  # fmt: skip
    return tuple(found)


def _participation(name: str, people: int, alphas: Sequence[float]) -> PaperTable:
    words = {5: "five", 10: "ten"}[people]
    told = " and ".join(f"{alpha:g}" for alpha in alphas)
    return PaperTable(
        name, f"methods compared, all of {words} take part, alpha {told}", ("main", "own"),
        _printed32(people, alphas), "images",
        tuple(participated(people, alpha) for alpha in alphas), _ahead(people, alphas),
        note=f"{PRINTED}. {POOLED}.", apart=APART, spread=("own",), over=SEEDS,
    )  # fmt: skip


FULL = (
    _participation("apfl/table3.2", 10, ENDS),
    _participation("apfl/table3.2-middle", 10, (MIDDLE,)),
    _participation("apfl/table3.2-five", 5, ALPHAS),
    PaperTable(
        "apfl/fig3.2", "FedAvg, one's own classes and the partition", ("main", "own"), {}, "images",
        (EVEN, *(participated(10, alpha) for alpha in reversed(ENDS))),
        (
            better("FedAvg is better where everybody's data are alike than at alpha 0.1", "3.3.1",
                   "fedavg (10 people, alike)", at("fedavg", 10, 0.1)),
            better("FedAvg is worse the more people differ", "3.3.1", at("fedavg", 10, 0.1),
                   at("fedavg", 10, 0.01)),
            better("the common model may be worse than one's own, alpha 0.01, own test", "3.3.1",
                   at("local_only", 10, 0.01), at("fedavg", 10, 0.01), quantity="own"),
        ),
        figure="rounds", apart=APART, spread=("own",), over=SEEDS,
        note="the thesis draws a sketch of drifting clients; here are the accuracies over rounds "
        f"behind it. {POOLED}.",
    ),
    PaperTable(
        "apfl/fig3.4", "methods over rounds, five people, by alpha", ("main", "own"), {}, "images",
        tuple(participated(5, alpha) for alpha in ALPHAS),
        (
            order("AP-FL is better where people differ less", "3.4.2", at("ap_fl", 5, 0.01),
                  at("ap_fl", 5, 0.05), at("ap_fl", 5, 0.1)),
            Claim("AP-FL is more stable than others as heterogeneity grows", "3.4.2",
                  untestable="a difference of differences between partitions that share no test "
                  "sets; the curves are drawn"),
        ),
        figure="rounds", apart=APART, spread=("own",), over=SEEDS, note=f"{POOLED}.",
    ),
)  # fmt: skip


def away(label: str, missing: str) -> str:
    """Return the label of a row of Table 3.3."""
    return f"{label} ({missing} missing)"


def _gains(missing: str) -> tuple[Claim, ...]:
    mine, rivals = away("ap_fl", missing), ("local_only", "fedavg_ft")
    found: list[Claim] = []
    for rival in rivals:
        name = {"local_only": "local training", "fedavg_ft": "FedAvg with fine-tuning"}[rival]
        text = f"AP-FL gives who was away more than {name}, {missing} of classes missing"
        found += [better(text, "Table 3.3", mine, away(rival, missing)),
                  better(f"{text}, own test", "Table 3.3", mine, away(rival, missing),
                         quantity="own")]  # fmt: skip
    found.append(better(f"AP-FL's friend adds to fine-tuning alone (beta 0), {missing} missing",
                        "3.3.2", mine, away(OWN_MODEL, missing)))  # fmt: skip
    return tuple(found)


DROPOUT = (
    PaperTable(
        "apfl/table3.3", "people who were away while others trained", ("main", "own"),
        {data: {away(label, missing): (value, NAN)
                for missing, row in by_missing.items()
                for label, value in zip(("local_only", "fedavg_ft", "ap_fl"), row, strict=True)}
         for data, by_missing in TABLE33.items()},
        "images", tuple(part for missing in MISSING for part in dropped(missing)),
        tuple(claim for missing in MISSING for claim in _gains(missing)),
        apart=("federation", "split", "data", "presence"), spread=("own",),
        over="seeds: one person is away",
        note="device 8 of Table 3.1 is away in all rounds, back at the end, and alone is scored. "
        "With 20 % missing it alone has two classes; with 10 % device 9 has the first of them, "
        "too, as the thesis prints no such partition. FedAvg is the model that device 8 would get. "
        "Its own test has two classes, on which fine-tuning alone is all but perfect; on the "
        "pooled test two of ten classes give 20 % at most: the printed numbers fit neither. "
        "Fine-tuning, and AP-FL's, is ten epochs; beta 0 is fine-tuning alone.",
    ),
    PaperTable(
        "apfl/table3.4", "friends alone, by what names of classes mean",
        ("A_n", "A_d", "A_n pooled", "A_d pooled"),
        {data: {meant(source): (*values, NAN, NAN) for source, values in rows.items()}
         for data, rows in TABLE34.items()},
        "images", (MEANT,),
        (
            alike("all semantics give comparable friends (within 10 points)", "3.4.3", ALIKE,
                  meant("minilm"), meant("glove"), quantity="A_n"),
            better("a language model tells the friend more than random vectors", "3.4.3",
                   meant("minilm"), meant("random"), quantity="A_n"),
            better("also of people who were away", "3.4.3", meant("minilm"), meant("random"),
                   quantity="A_d"),
            better("CLIP is best", "3.4.3", meant("clip"), meant("bert"), meant("glove"),
                   quantity="A_n"),
        ),
        rows={meant("random"): "random vectors (control)", meant("names"): "spelling (control)",
              meant("glove"): "GloVe (printed: word2vec)",
              meant("minilm"): "MiniLM", meant("bert"): "BERT (bert.npz)",
              meant("clip"): "CLIP (clip.npz)"},
        note="A_n: mean over people who took part, A_d: device 8, whose classes nobody else has; "
        "models of friends alone (beta 1). GloVe stands where word2vec did; BERT's and "
        "CLIP's vectors come with no package and are read from bert.npz and clip.npz in the folder "
        "where the command runs, MiniLM is a row of our own. The thesis does not say "
        "on which test; own ones come first.",
        spread=("A_d", "A_n pooled", "A_d pooled"), over=SEEDS + ", and for A_d",
    ),
)  # fmt: skip


def _label(noise: int, samples: int) -> str:
    return sized(noise, samples)["label"]


SIZES = (
    PaperTable(
        "apfl/fig3.5", "the friend by size of the noise and number of made-up samples",
        ("A_n", "A_n pooled"), {}, "images", (SIZED,),
        (
            order("the friend is worse the more noise", "3.4.3",
                  *(entry["label"] for entry in reversed(BY_NOISE)), quantity="A_n"),
            alike("it is stable from 600 samples on (within 5 points)", "3.4.3", STABLE,
                  _label(100, 1000), _label(100, 600), quantity="A_n"),
            better("fewer than 600 samples are not enough", "3.4.3", _label(100, 600),
                   _label(100, 50), quantity="A_n"),
        ),
        figure="generator",
        rows={entry["label"]: f"{entry['noise']} numbers of noise, {entry['samples']} samples"
              for entry in (*BY_NOISE, *BY_COUNT)},
        note="friends alone (beta 1), alpha 0.1, ten people, everybody takes part; a pass of the "
        "generator has so many samples of each class.",
        spread=("A_n pooled",), over=SEEDS,
    ),
)  # fmt: skip

TABLES = (*FULL, *DROPOUT, *SIZES)
