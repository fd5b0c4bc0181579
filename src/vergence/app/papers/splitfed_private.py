"""The SplitFed gaze thesis: what its means of privacy do to the error, as printed, and the claims.

Source: the SplitFed gaze thesis, sections 4.3, 4.4, 4.6.1 and 4.6.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vergence.app.config import merge
from vergence.app.papers.adaptive import MPIIGAZE
from vergence.app.papers.base import Claim, PaperTable, Part, Table, alike, better
from vergence.app.papers.grounds import Ground
from vergence.app.papers.splitfed import (
    FL,
    NO_POSE,
    SFL,
    SFL_2,
    SMASHED,
    model,
    row,
    strangers,
)
from vergence.app.papers.splitfed_tables import (
    EVERYBODY,
    FIVE,
    NAN,
    PARITY,
    TABLE48,
    TABLE48_SFL,
    WITHIN,
)

LEVELS = (0.2, 0.5, 1.0, 2.0)
POSED, NO_HEAD = LEVELS[:2], " without head pose"
"""Noise that is looked at without head pose, and in averages of smashed data; and its rows."""
PRIVATE, TINY = row("fedavg", "2, DP-SGD"), row("fedavg", "2, DP-SGD at 0.01")
PARTIES = ("one", "two", "three", "four")
TABLE42 = {"": (3.7274, 7.9252, 4.2507, 6.2695), "3": (3.6731, 7.9376, 4.2696, 6.2593),
           "4": (3.6731, 7.9376, 4.2696, 6.2593)}  # fmt: skip
"""By parties that compute: errors of P00 to P03, of whom only P01 was left out of training."""
ROUNDING = 1e-3
"""Degrees that sums on a grid of 2^-36 may make of others', fixed before any run."""


def shared(parties: str) -> str:
    """Return the label of the row whose averages this many parties compute."""
    return row("splitfed", f"2, {parties} parties") if parties else row("splitfed", "2")


def guarded(name: str, words: str, entry: Table, pose: bool = True, **privacy: Any) -> Part:
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
    guarded(f"sfl_2_{n}_parties", f"{n} parties", SFL,
            aggregation={"name": "additive", "aggregators": list(PARTIES[:n])})
    for n in (3, 4)
)  # fmt: skip
DP_SGD, DP_TINY = (
    guarded(name, words, FL, solver={"name": "dp_sgd", "epsilon": epsilon, "delta": 1e-5})
    for name, words, epsilon in (
        ("fl_2_dp", "DP-SGD", 0.5), ("fl_2_dp_0.01", "DP-SGD at 0.01", 0.01),
    )
)  # fmt: skip
NOISY = tuple(
    guarded(f"sfl_2_l_{level:g}", f"l = {level:g}", SFL, cut=at_cut(level)) for level in LEVELS
)
POSELESS = tuple(
    guarded(f"no_pose_l_{level:g}", f"l = {level:g}{NO_HEAD}", SFL, False, cut=at_cut(level))
    for level in POSED
)
SMASHED_NOISY = tuple(
    guarded(f"smashed_l_{level:g}", f"l = {level:g}", {"name": "smashed_average"},
            cut=at_cut(level))
    for level in POSED
)  # fmt: skip


def rated(rate: float, clip: float = 0.0) -> str:
    """Return the label of the row of this learning rate under noise."""
    return f"splitfed model 2, rate {rate:g}{', clipped' if clip else ''}"


def paced(rate: float, clip: float = 0.0) -> Part:
    """Return Model 2 trained with noise at this learning rate, for everybody's own later data."""
    local = {"lr": rate, "clip": clip}

    def above(ground: Ground) -> Mapping[str, Any]:
        return merge(dict(model("2", local)(ground)), {"privacy": {"cut": at_cut(1.0)}})

    name = f"rate_{rate:g}{'_clipped' if clip else ''}"
    return Part(name, [SFL], "within", above, rated(rate, clip).removeprefix("splitfed"))


FAST, MIDDLE, SLOW = RATES = (0.1, 1e-3, 1e-5)
"""Learning rates of Figure 4.4, which prints none: ours, and a hundred times more and less."""


def noisy(level: float, pose: str = "") -> str:
    """Return the label of the row of this much noise on smashed data; `pose` may be `NO_HEAD`."""
    return row("splitfed", f"2, l = {level:g}{pose}")


def averaged(level: float) -> str:
    """Return the label of the row of this much noise on averaged smashed data."""
    return row("smashed_average", f"2, l = {level:g}")


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
        "splitfed/fig4.4", "loss under noise by learning rate, Model 2, l = 1", ("main",), {},
        "gaze_angle", (*map(paced, RATES), paced(FAST, 1.0)),
        (
            better("a rate too large overshoots: a smaller one is better", "Figure 4.4a",
                   rated(MIDDLE), rated(FAST)),
            better("a rate too small is slow: in as many rounds it is worse", "Figure 4.4c",
                   rated(MIDDLE), rated(SLOW)),
            better("gradients cut to norm 1 help where the rate is too large", "4.4.1",
                   rated(FAST, 1.0), rated(FAST)),
            Claim("without normalised weights sensitivity overflows", "4.4.1", untestable="noise "
                  "here always stands behind a layer of norm 1 (docs/cut.md)"),
        ),
        figure="rates",
        rows={rated(rate): f"rate {rate:g}" for rate in RATES}
        | {rated(FAST, 1.0): f"rate {FAST:g}, gradients cut"},
        note=f"{EVERYBODY}; the thesis draws the idea for one weight, without numbers; here it is "
        "the training itself, scored on everybody's own later pictures.",
        apart=("local",),
    ),
    PaperTable(
        "splitfed/fig4.5", "Model 2 with DP-SGD and with noise on smashed data", ("main",),
        {}, "gaze_angle", (SFL_2, DP_SGD, DP_TINY, *NOISY),
        (
            better("DP-SGD at epsilon 0.5 raises no error (10 % at most)", "4.4.2", PRIVATE,
                   shared(""), margin=PARITY),
            better("at epsilon 0.01 it does (to about 6.4)", "4.4.2", shared(""), TINY),
            better("noise on smashed data raises errors", "Figure 4.5", shared(""),
                   *map(noisy, LEVELS)),
            better("clearly so at l >= 1", "4.4.2", noisy(0.2), noisy(1.0), noisy(2.0)),
            Claim("clients' errors before the last average are larger than after it", "4.4.2",
                  untestable="errors of left-out people are measured on the averaged model alone"),
        ),
        figure="bars",
        rows={shared(""): "Basic Model 2", PRIVATE: "DP-SGD, epsilon 0.5",
              TINY: "DP-SGD, epsilon 0.01",
              **{noisy(level): f"l = {level:g}" for level in LEVELS}},
        note=f"{EVERYBODY}; DP-SGD stands on FedAvg, which without noise gives SplitFed's bits "
        "(Table 4.7), with a budget per client and whole run, where the thesis has it on both "
        "halves and for one round; noise is behind a first convolution of norm 1, as in the "
        "thesis, and gradients of both halves are cut to norm 1, there the server's; predictions "
        "pass the noise too.",
        apart=("privacy", "split", "local"),
    ),
    PaperTable(
        "splitfed/fig4.6", "Model 2 with and without the head pose", ("main", "best", "worst"), {},
        "gaze_angle", (SFL_2, NO_POSE, *NOISY[:2], *POSELESS),
        (
            alike("without the head pose errors are as with it (within 0.1 degrees)", "4.6.1",
                  WITHIN, f"splitfed{NO_POSE.suffix}", row("splitfed", "2")),
            *(alike(f"so they are with noise l = {level:g}", "4.6.1", WITHIN,
                    noisy(level, NO_HEAD), noisy(level)) for level in POSED),
        ),
        figure="bars",
        rows={shared(""): "Basic Model 2",
              f"splitfed{NO_POSE.suffix}": "Basic Model 2, no pose",
              **{noisy(level): f"l = {level:g}" for level in POSED},
              **{noisy(level, NO_HEAD): f"l = {level:g}, no pose" for level in POSED}},
        note=f"{EVERYBODY}; the thesis shows three settings of Figure 4.5 and does not say which.",
        apart=("model", "privacy", "local"),
    ),
    PaperTable(
        "splitfed/table4.8", "averaging smashed data, Model 2", ("main", "best", "worst"),
        {FIVE: {row("splitfed", "2"): (TABLE48_SFL, NAN, NAN),
                row("smashed_average", "2"): (TABLE48[0.0], NAN, NAN),
                **{averaged(level): (TABLE48[level], NAN, NAN) for level in POSED}}},
        "gaze_angle", (SFL_2, SMASHED, *SMASHED_NOISY),
        (
            better("averaging smashed data gives larger errors than SplitFed", "4.6.4",
                   row("splitfed", "2"), row("smashed_average", "2")),
            better("sorting by label before averaging lowers them (suggested)", "4.6.4",
                   row("smashed_alike", "2"), row("smashed_average", "2")),
            *(better(f"noise l = {level:g} raises the error further (to {TABLE48[level]} degrees)",
                     "Table 4.8", row("smashed_average", "2"), averaged(level))
              for level in POSED),
        ),
        rows={row("splitfed", "2"): "SplitFed", row("smashed_average", "2"): "averaged",
              row("smashed_alike", "2"): "averaged, sorted by label",
              **{averaged(level): f"averaged, l = {level:g}" for level in POSED}},
        note=f"{EVERYBODY}; the first layers stay as they were drawn (with noise: divided by their "
        "norm), so that a picture has the same noise whenever it is sent; predictions have new "
        "noise where training has any.",
        apart=("privacy", "local"),
    ),
)  # fmt: skip
