"""The SplitFed gaze thesis: what its means of privacy do to the error, as printed, and the claims.

Source: the SplitFed gaze thesis, sections 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vergence.app.config import merge
from vergence.app.papers.adaptive import MPIIGAZE
from vergence.app.papers.base import Claim, PaperTable, alike
from vergence.app.papers.grounds import Ground
from vergence.app.papers.splitfed import SFL, SFL_2, model, row, strangers
from vergence.app.papers.splitfed_tables import EVERYBODY, WITHIN

PARTIES = ("one", "two", "three", "four")
TABLE42 = {"": (3.7274, 7.9252, 4.2507, 6.2695), "3": (3.6731, 7.9376, 4.2696, 6.2593),
           "4": (3.6731, 7.9376, 4.2696, 6.2593)}  # fmt: skip
"""By parties that compute: errors of P00 to P03, of whom only P01 was left out of training."""
ROUNDING = 1e-3
"""Degrees that sums on a grid of 2^-36 may make of others', fixed before any run."""


def shared(parties: str) -> str:
    """Return the label of the row whose averages this many parties compute."""
    return row("splitfed", f"2, {parties} parties") if parties else row("splitfed", "2")


def _above(parties: int) -> Any:
    secure = {"name": "additive", "aggregators": list(PARTIES[:parties])}

    def above(ground: Ground) -> Mapping[str, Any]:
        return merge(dict(model("2")(ground)), {"privacy": {"aggregation": secure}})

    return above


SHARED = tuple(
    strangers(f"sfl_2_{n}_parties", "2", SFL, above=_above(n), as_=f"2, {n} parties")
    for n in (3, 4)
)

TABLES = (
    PaperTable(
        "splitfed/table4.2", "averages computed by several parties, Model 2", ("main",),
        {f"{MPIIGAZE} P00-P03": {shared(n): (sum(e) / 4,) for n, e in TABLE42.items()}},
        "gaze_angle", (SFL_2, *SHARED),
        (
            alike("errors are almost equal with and without MPC (within 0.1 degrees)", "4.3",
                  WITHIN, shared(""), shared("3"), shared("4")),
            alike("but for rounding they are the same (1e-3 degrees for everybody)", "4.3",
                  ROUNDING, shared(""), shared("3"), shared("4"), everybody=True),
            alike("three and four parties give the same", "Table 4.2", 1e-9, shared("3"),
                  shared("4"), everybody=True),
            Claim("training takes twice (3 parties) and three times (4) as long", "4.3",
                  untestable="times are no errors: benchmarks/secure_rounds.py measures them"),
        ),
        rows={shared(""): "no MPC", shared("3"): "3 parties", shared("4"): "4 parties"},
        note=f"{EVERYBODY}; additive shares among aggregators, where the thesis has MASCOT; the "
        "simulator gives the protocol's bits; the printed errors are of people of whom only P01 "
        "was left out.",
        apart=("privacy",),
    ),
)  # fmt: skip
