"""The SplitFed gaze thesis: runs with its means of privacy.

Source: the SplitFed gaze thesis, sections 4.3, 4.4, 4.6.1 and 4.6.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vergence.experiment.schema import merge
from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.experiments.splitfed import (
    FL,
    NO_POSE,
    SFL,
    SFL_2,
    SMASHED,
    model,
    row,
    strangers,
)
from vergence.reproduce.printed import paper_tables

LEVELS = (0.2, 0.5, 1.0, 2.0)
POSED, NO_HEAD = LEVELS[:2], " without head pose"
"""Noise that is looked at without head pose, and in averages of smashed data; and its rows."""
PARTIES = ("one", "two", "three", "four")


def guarded(name: str, words: str, entry: Table, pose: bool = True, **privacy: Any) -> TablePart:
    """Return Model 2 trained with means of privacy; `words` is what its row calls them."""

    def above(ground: Ground) -> Mapping[str, Any]:
        own = model("2") if pose else model("2", pose=False)
        # Section 4.4.1: where there is noise, the server's gradients are cut to norm 1.
        clip = {"local": {"clip": 1.0}} if "cut" in privacy else {}
        return merge(merge(dict(own(ground)), {"privacy": privacy}), clip)

    return strangers(name, "2", entry, above=above, as_=f"2, {words}")


def at_cut(level: float) -> Table:
    """Return the noise at a cut."""
    return {"name": "pixel_dp", "level": level}


SHARED = tuple(
    guarded(
        f"sfl_2_{n}_parties",
        f"{n} parties",
        SFL,
        aggregation={"name": "additive", "aggregators": list(PARTIES[:n])},
    )
    for n in (3, 4)
)
DP_SGD, DP_TINY = (
    guarded(name, words, FL, solver={"name": "dp_sgd", "epsilon": epsilon, "delta": 1e-5})
    for name, words, epsilon in (
        ("fl_2_dp", "DP-SGD", 0.5),
        ("fl_2_dp_0.01", "DP-SGD at 0.01", 0.01),
    )
)
NOISY = tuple(
    guarded(f"sfl_2_l_{level:g}", f"l = {level:g}", SFL, cut=at_cut(level)) for level in LEVELS
)
POSELESS = tuple(
    guarded(f"no_pose_l_{level:g}", f"l = {level:g}{NO_HEAD}", SFL, False, cut=at_cut(level))
    for level in POSED
)
SMASHED_NOISY = tuple(
    guarded(
        f"smashed_l_{level:g}", f"l = {level:g}", {"name": "smashed_average"}, cut=at_cut(level)
    )
    for level in POSED
)


def rated(rate: float, clip: float = 0.0) -> str:
    """Return the label of the row of this learning rate under noise."""
    return f"splitfed model 2, rate {rate:g}{', clipped' if clip else ''}"


def paced(rate: float, clip: float = 0.0) -> TablePart:
    """Return Model 2 trained with noise at this learning rate, for everybody's own later data."""
    local = {"lr": rate, "clip": clip}

    def above(ground: Ground) -> Mapping[str, Any]:
        return merge(dict(model("2", local)(ground)), {"privacy": {"cut": at_cut(1.0)}})

    name = f"rate_{rate:g}{'_clipped' if clip else ''}"
    return TablePart(name, [SFL], "within", above, rated(rate, clip).removeprefix("splitfed"))


FAST, *_ = RATES = (0.1, 1e-3, 1e-5)
"""Learning rates of Figure 4.4, which prints none: ours, and a hundred times more and less."""


def averaged(level: float) -> str:
    """Return the label of the row of this much noise on averaged smashed data."""
    return row("smashed_average", f"2, l = {level:g}")


TABLES = paper_tables(
    "splitfed",
    {
        "splitfed/table4.2": (SFL_2, *SHARED),
        "splitfed/fig4.4": (*map(paced, RATES), paced(FAST, 1.0)),
        "splitfed/fig4.5": (SFL_2, DP_SGD, DP_TINY, *NOISY),
        "splitfed/fig4.6": (SFL_2, NO_POSE, *NOISY[:2], *POSELESS),
        "splitfed/table4.8": (SFL_2, SMASHED, *SMASHED_NOISY),
    },
)
