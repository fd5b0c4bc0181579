"""The SplitFed gaze thesis: what its means of privacy do to the error, as printed, and the claims.

Source: the SplitFed gaze thesis, sections 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vergence.app.config import merge
from vergence.app.papers.adaptive import MPIIGAZE
from vergence.app.papers.base import Claim, PaperTable, Part, Table, alike, better
from vergence.app.papers.grounds import Ground
from vergence.app.papers.splitfed import FL, SFL, SFL_2, model, row, strangers
from vergence.app.papers.splitfed_tables import EVERYBODY, PARITY, WITHIN

LEVELS = (0.2, 0.5, 1.0, 2.0)
PRIVATE = row("fedavg", "2, DP-SGD")
PARTIES = ("one", "two", "three", "four")
TABLE42 = {"": (3.7274, 7.9252, 4.2507, 6.2695), "3": (3.6731, 7.9376, 4.2696, 6.2593),
           "4": (3.6731, 7.9376, 4.2696, 6.2593)}  # fmt: skip
"""By parties that compute: errors of P00 to P03, of whom only P01 was left out of training."""
ROUNDING = 1e-3
"""Degrees that sums on a grid of 2^-36 may make of others', fixed before any run."""


def shared(parties: str) -> str:
    """Return the label of the row whose averages this many parties compute."""
    return row("splitfed", f"2, {parties} parties") if parties else row("splitfed", "2")


def guarded(name: str, words: str, entry: Table, **privacy: Any) -> Part:
    """Return Model 2 trained with means of privacy; `words` is what its row calls them."""

    def above(ground: Ground) -> Mapping[str, Any]:
        return merge(dict(model("2")(ground)), {"privacy": privacy})

    return strangers(name, "2", entry, above=above, as_=f"2, {words}")


SHARED = tuple(
    guarded(f"sfl_2_{n}_parties", f"{n} parties", SFL,
            aggregation={"name": "additive", "aggregators": list(PARTIES[:n])})
    for n in (3, 4)
)  # fmt: skip
DP_SGD = guarded("fl_2_dp", "DP-SGD", FL, solver={"name": "dp_sgd", "epsilon": 0.5, "delta": 1e-5})
NOISY = tuple(
    guarded(f"sfl_2_l_{level:g}", f"l = {level:g}", SFL,
            cut={"name": "pixel_dp", "level": level})
    for level in LEVELS
)  # fmt: skip


def noisy(level: float) -> str:
    """Return the label of the row of this much noise on smashed data."""
    return row("splitfed", f"2, l = {level:g}")


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
    PaperTable(
        "splitfed/fig4.5", "Model 2 with DP-SGD and with noise on smashed data", ("main",),
        {}, "gaze_angle", (SFL_2, DP_SGD, *NOISY),
        (
            better("DP-SGD at epsilon 0.5 raises no error (10 % at most)", "4.4.2", PRIVATE,
                   shared(""), margin=PARITY),
            Claim("at epsilon 0.01 it does (to about 6.4)", "4.4.2", untestable="two accountants "
                  "do not agree on the noise of so small an epsilon"),
            better("noise on smashed data raises errors", "Figure 4.5", shared(""),
                   *map(noisy, LEVELS)),
            better("clearly so at l >= 1", "4.4.2", noisy(0.2), noisy(1.0), noisy(2.0)),
            Claim("clients' errors before the last average are larger than after it", "4.4.2",
                  untestable="errors of left-out people are measured on the averaged model alone"),
        ),
        figure="bars",
        rows={shared(""): "Basic Model 2", PRIVATE: "DP-SGD, epsilon 0.5",
              **{noisy(level): f"l = {level:g}" for level in LEVELS}},
        note=f"{EVERYBODY}; DP-SGD stands on FedAvg, which without noise gives SplitFed's bits "
        "(Table 4.7), with a budget per client and whole run, where the thesis has it on both "
        "halves and for one round; noise is behind a first convolution of norm 1, as in the "
        "thesis; predictions pass it too.",
        apart=("privacy", "split"),
    ),
)  # fmt: skip
