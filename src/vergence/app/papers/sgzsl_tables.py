"""The SG-ZSL chapter: printed accuracies in percent, and the claims.

Table 6.5 is in `sgzsl_private`.

Source: the Durham thesis, chapter 6, Tables 6.2 to 6.7, Figure 6.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from vergence.app.papers.base import PaperTable, Part, Table, alike, better, order, peak
from vergence.app.papers.grounds import Ground
from vergence.app.papers.pezsl import (
    ATTRIBUTES,
    BERT,
    OM,
    RANDOM,
    TEACHER,
    VECTORS,
    described,
    every_way,
    sentinel,
    taught,
)
from vergence.app.papers.pezsl_tables import (
    ALONE,
    APY,
    AWA1,
    AWA2,
    COLUMNS,
    COSTED,
    NOTE,
    SEEDS,
    SPENT,
    TABLE52,
    two_boxes,
)
from vergence.app.papers.sgzsl_private import AS_PRINTED, PRIVATE

NAN = math.nan
Rows = Mapping[str, Mapping[str, tuple[float, ...]]]
WEIGHED = ("ce", "mmd", "kl", "profile")


def _printed(
    labels: Sequence[str], numbers: Mapping[str, Sequence[tuple[float, float, float]]]
) -> Rows:
    """Return data set -> row -> H, T1, u, s from H, u, s of every row: T1 is not printed."""
    return {data: {label: (h, NAN, u, s)
                   for label, (h, u, s) in zip(labels, found, strict=True)}
            for data, found in numbers.items()}  # fmt: skip


CONSTRAINTS = ("ce" + OM, "mmd" + OM, "kl" + OM)
WHITE = _printed(CONSTRAINTS, {
    AWA2: ((79.8, 76.1, 83.8), (82.5, 79.9, 85.1), (82.7, 79.0, 86.7)),
    APY: ((83.7, 83.0, 84.5), (83.5, 81.5, 85.5), (84.8, 83.9, 85.7)),
})  # fmt: skip
BLACK = _printed(CONSTRAINTS, {
    AWA1: ((26.8, 26.8, 26.7), (28.2, 31.8, 25.3), (30.9, 33.5, 28.6)),
    AWA2: ((23.4, 23.7, 23.2), (25.5, 33.8, 20.5), (27.0, 29.0, 25.3)),
    APY: ((24.3, 23.2, 25.6), (30.3, 26.0, 36.3), (35.2, 30.2, 42.2)),
})  # fmt: skip
TABLE66 = _printed((ATTRIBUTES + OM, VECTORS + OM, BERT + OM), {
    AWA1: ((72.0, 64.7, 81.1), (69.5, 61.6, 80.0), (79.8, 77.9, 81.8)),
    AWA2: ((79.6, 76.8, 82.7), (76.3, 71.4, 81.9), (82.7, 79.0, 86.7)),
})  # fmt: skip
DEPTHS = {1: " (1 hidden layer)", 2: " (2 hidden layers)", 3: " (3 hidden layers)"}
TABLE67 = _printed(["black_box" + end for end in DEPTHS.values()], {
    AWA1: ((28.6, 31.9, 25.9), (30.9, 33.5, 28.6), (27.1, 27.9, 26.3)),
    APY: ((32.3, 30.4, 34.4), (35.2, 30.2, 42.2), (32.0, 28.5, 36.4)),
})  # fmt: skip
NEAR = 0.05
"""Accuracy within which depths, or weights of R, are "closely aligned", fixed before any run."""


def constrained(name: str, guide: str) -> Part:
    """Return cross-entropy alone, with MMD, with KL, and with our KL to a profile."""

    def ways(ground: Ground) -> list[Table]:
        return [
            sentinel(ground, label, guide=guide, compare=compare, regulariser=regulariser)
            for label, regulariser, compare in zip(
                WEIGHED, ("none", "mmd", "kl", "kl"), ("samples",) * 3 + ("profile",), strict=True)
        ]  # fmt: skip

    return taught(name, ways, OM if guide != "estimates" else ESTIMATED)


ESTIMATED = " by estimates" + OM


def _semantics(ground: Ground) -> list[Table]:
    return [sentinel(ground, row, semantics=source) for row, source in described(ground).items()]


def _deep(depth: int) -> Part:
    def wide(ground: Ground) -> Mapping[str, object]:
        first, last = ground.table["model"]["hidden"]
        hidden = {1: [first], 2: [first, last], 3: [first, last, last // 2]}[depth]
        return {"federation": {"teacher": "omniscient"}, "model": {"hidden": hidden}}

    def ways(ground: Ground) -> list[Table]:
        return [
            sentinel(ground, label, guide=guide)
            for label, guide in (("black_box", "scores"), ("by_estimates", "estimates"))
        ]

    suffix = DEPTHS[depth]
    return Part(f"depth_{depth}", ways, "taught", wide, suffix, (TEACHER + suffix,))


NOISES, ALPHAS = (20, 100, 400, 768), (0.1, 0.5, 1.0, 10.0)


def _varied(option: str, values: tuple[float, ...]) -> Part:
    def ways(ground: Ground) -> list[Table]:
        return [sentinel(ground, _with(option, v), **{option: v}) for v in values]

    return taught(option, ways)


def _with(option: str, value: float) -> str:
    return f"{option}_{value:g}".replace(".", "_")


def _rows(option: str, values: tuple[float, ...]) -> dict[str, str]:
    return {_with(option, value) + OM: f"{value:g}" for value in values}


BY_ALPHA = tuple(_rows("alpha", ALPHAS))
TABLES = (
    PaperTable(
        "sgzsl/table6.2", "both teachers, white box and black boxes, compared with a profile",
        COSTED, TABLE52, "zero_shot",
        (every_way("omniscient", sentinel), every_way("quasi", partial(sentinel, knows="seen"))),
        two_boxes("Table 6.2"), apart=ALONE, spread=("T1",), over=SEEDS,
        note=f"{NOTE}. The printed rows are those of Table 5.2; pezsl/table5.2 compares with "
        f"samples. {SPENT}.",
    ),
    PaperTable(
        "sgzsl/table6.3", "constraints of the generator, white box", COLUMNS, WHITE, "zero_shot",
        (constrained("constraints", "gradients"),),
        (
            better("MMD helps", "6.4.3", "mmd" + OM, "ce" + OM),
            better("KL helps", "6.4.3", "kl" + OM, "ce" + OM),
            better("KL is better than MMD", "Table 6.3", "kl" + OM, "mmd" + OM),
            better("KL to a profile helps", "not in the thesis", "profile" + OM, "ce" + OM),
        ),
        spread=("u",), over=SEEDS, note=f"{NOTE}. {AS_PRINTED}.",
    ),
    PaperTable(
        "sgzsl/table6.4", "constraints of the generator, black boxes", COLUMNS, BLACK, "zero_shot",
        (constrained("constraints_black", "scores"),
         constrained("constraints_estimates", "estimates")),
        tuple(
            better(f"{text}, {way}", "6.4.3", mine + end, other + end)
            for end, way in ((OM, "as printed"), (ESTIMATED, "by estimates"))
            for text, mine, other in (("MMD helps", "mmd", "ce"), ("KL helps", "kl", "ce"),
                                      ("KL is better than MMD", "kl", "mmd"))
        ),
        spread=("u",), over=SEEDS, note=f"{NOTE}. {AS_PRINTED}.",
    ),
    PRIVATE,
    PaperTable(
        "sgzsl/table6.6", "descriptions of classes, white box", COLUMNS, TABLE66, "zero_shot",
        (taught("semantics", _semantics),),
        (
            better("BERT is better than attributes and word vectors", "6.4.4", BERT + OM,
                   ATTRIBUTES + OM, VECTORS + OM),
            alike("attributes and word vectors are alike (within 5 points)", "6.4.4", NEAR,
                  ATTRIBUTES + OM, VECTORS + OM),
            better("attributes tell more than random vectors", "not in the thesis",
                   ATTRIBUTES + OM, RANDOM + OM),
        ),
        spread=("T1",), over=SEEDS,
        note=f"{NOTE}. Word vectors are the set's own, or GloVe's. A teacher of all classes needs "
        "no descriptions: the student learns unseen classes from its answers.",
    ),
    PaperTable(
        "sgzsl/table6.7", "black boxes by depth", COLUMNS,
        TABLE67, "zero_shot", tuple(map(_deep, DEPTHS)),
        tuple(
            alike(f"depth makes no difference (within 5 points), {way}", "6.4.5", NEAR,
                  label + DEPTHS[2], label + DEPTHS[1], label + DEPTHS[3])
            for label, way in (("black_box", "as printed"), ("by_estimates", "by estimates"))
        ),
        apart=("model",), spread=("u",), over=SEEDS,
        note=f"{NOTE}. Here teacher and student share a depth; in the thesis the student's alone "
        "varies. Two hidden layers are the thesis's.",
    ),
    PaperTable(
        "sgzsl/fig6.5", "the white box by size of the noise", COLUMNS, {}, "zero_shot",
        (_varied("noise", NOISES),),
        (order("the student is worse the larger the noise", "6.4.3",
               *reversed(_rows("noise", NOISES))),),
        figure="settings", rows=_rows("noise", NOISES), spread=("u",),
        over=SEEDS, note=NOTE,
    ),
    PaperTable(
        "sgzsl/fig6.5-alpha", "the white box by weight of the regulariser", COLUMNS, {},
        "zero_shot", (_varied("alpha", ALPHAS),),
        (
            peak("0.5 and 1 are best", "6.4.3", (BY_ALPHA[1], BY_ALPHA[2]),
                 (BY_ALPHA[0], BY_ALPHA[3])),
            alike("alpha makes little difference (within 5 points)", "6.4.3", NEAR,
                  BY_ALPHA[1], BY_ALPHA[0], *BY_ALPHA[2:]),
        ),
        figure="settings", rows=_rows("alpha", ALPHAS), spread=("u",),
        over=SEEDS, note=NOTE,
    ),
)  # fmt: skip
