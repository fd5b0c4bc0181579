"""The SG-ZSL chapter: the runs behind its tables, but for those of Table 6.5.

Source: the Durham thesis, chapter 6, Tables 6.2 to 6.7, Figure 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.experiments.pe_zsl import (
    OM,
    TEACHER,
    described,
    every_way,
    sentinel,
    taught,
)
from vergence.reproduce.experiments.sg_zsl_budgets import BUDGETED
from vergence.reproduce.printed import paper_tables

WEIGHED = ("ce", "mmd", "kl", "profile")


DEPTHS = {1: " (1 hidden layer)", 2: " (2 hidden layers)", 3: " (3 hidden layers)"}


def constrained(name: str, guide: str) -> TablePart:
    """Return cross-entropy alone, with MMD, with KL, and with our KL to a profile."""

    def ways(ground: Ground) -> list[Table]:
        return [
            sentinel(ground, label, guide=guide, compare=compare, regulariser=regulariser)
            for label, regulariser, compare in zip(
                WEIGHED, ("none", "mmd", "kl", "kl"), ("samples",) * 3 + ("profile",), strict=True
            )
        ]

    return taught(name, ways, OM if guide != "estimates" else ESTIMATED)


ESTIMATED = " by estimates" + OM


def _semantics(ground: Ground) -> list[Table]:
    return [sentinel(ground, row, semantics=source) for row, source in described(ground).items()]


def _deep(depth: int) -> TablePart:
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
    return TablePart(f"depth_{depth}", ways, "taught", wide, suffix, (TEACHER + suffix,))


NOISES, ALPHAS = (20, 100, 400, 768), (0.1, 0.5, 1.0, 10.0)


def _varied(option: str, values: tuple[float, ...]) -> TablePart:
    def ways(ground: Ground) -> list[Table]:
        return [sentinel(ground, _with(option, v), **{option: v}) for v in values]

    return taught(option, ways)


def _with(option: str, value: float) -> str:
    return f"{option}_{value:g}".replace(".", "_")


TABLES = paper_tables(
    "sgzsl",
    {
        "sgzsl/table6.2": (
            every_way("omniscient", sentinel),
            every_way("quasi", partial(sentinel, knows="seen")),
        ),
        "sgzsl/table6.3": (constrained("constraints", "gradients"),),
        "sgzsl/table6.4": (
            constrained("constraints_black", "scores"),
            constrained("constraints_estimates", "estimates"),
        ),
        "sgzsl/table6.5": BUDGETED,
        "sgzsl/table6.6": (taught("semantics", _semantics),),
        "sgzsl/table6.7": tuple(map(_deep, DEPTHS)),
        "sgzsl/fig6.5": (_varied("noise", NOISES),),
        "sgzsl/fig6.5-alpha": (_varied("alpha", ALPHAS),),
    },
)
