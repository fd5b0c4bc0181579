"""The SplitFed gaze thesis: what each defence costs, alone and together, and what it leaves over.

Source: the SplitFed gaze thesis, sections 4.3, 4.4, 5.1 and 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vergence.app.config import merge
from vergence.app.papers.base import Claim, PaperTable, Part, Table, alike, better
from vergence.app.papers.defended import MEAN_PICTURE
from vergence.app.papers.grounds import Ground
from vergence.app.papers.splitfed import FL, SFL, model
from vergence.app.papers.splitfed_private import PARTIES
from vergence.app.papers.splitfed_tables import PARITY, WITHIN

TWICE = -0.5
"""Margin by which a rival must be worse to have cost at least twice as much."""
U_SHAPE: Table = {"name": "splitfed_u", "last": "fc1"}
DEEP: Table = {**U_SHAPE, "cut": "narrow"}
"""Cut behind few features, as a clipped vector needs; which stage that is depends on the data."""
SHARES: Table = {"name": "additive", "aggregators": list(PARTIES[:3])}
CLIPPED: Table = {"name": "bottleneck", "clip": 0.85, "epsilon": 8.0, "frozen": True}
RANGE: Table = {"root": "p00"}
SAMPLES: Table = {"name": "dp_sgd", "epsilon": 0.5, "delta": 1e-5}
PEOPLE: Table = {"clip": 0.5, "epsilon": 8.0, "delta": 1e-5}
GROUPS: Table = {
    "robust": {"name": "median", "attackers": 0.1}, "aggregation": {"groups": 3},
}  # fmt: skip

ROWS: dict[str, tuple[str, Table, Table]] = {
    "plain": ("SplitFed, no defence", SFL, {}),
    "pads": ("secure sums, pads", SFL, {"aggregation": "secure"}),
    "shares": ("secure sums, shares of 3", SFL, {"aggregation": SHARES}),
    "pixel 0.2": ("PixelDP l = 0.2 (pixels)", SFL, {"cut": {"name": "pixel_dp", "level": 0.2}}),
    "pixel 2": ("PixelDP l = 2 (pixels)", SFL, {"cut": {"name": "pixel_dp", "level": 2.0}}),
    "nopeek": ("NoPeek 0.1", SFL, {"cut": {"name": "nopeek", "weight": 0.1}}),
    "range": ("range of smashed data", SFL, {"output_range": RANGE}),
    "u": ("U-shape", U_SHAPE, {}),
    "deep": ("U-shape cut at few features", DEEP, {}),
    "bottleneck": ("the same, bottleneck (pictures)", DEEP, {"cut": CLIPPED}),
    "all printed": ("shares of 3 and PixelDP l = 2 (pixels)", SFL,
                    {"aggregation": SHARES, "cut": {"name": "pixel_dp", "level": 2.0}}),
    "all": ("all together: deep U-shape, bottleneck (pictures), shares of 3, range", DEEP,
            {"aggregation": SHARES, "cut": CLIPPED, "output_range": RANGE}),
    "fl": ("FedAvg, no defence", FL, {}),
    "fl pads": ("FedAvg, pads", FL, {"aggregation": "secure"}),
    "fl shares": ("FedAvg, shares of 3", FL, {"aggregation": SHARES}),
    "fl dp-sgd": ("FedAvg, DP-SGD (samples)", FL, {"solver": SAMPLES}),
    "fl user": ("FedAvg, user-level DP (people)", FL, {"user": PEOPLE}),
    "fl median": ("FedAvg, median", FL, {"robust": {"name": "median", "attackers": 0.2}}),
    "fl groups": ("FedAvg, DP-SGD (samples), median of secure sums of 3", FL,
                  {"solver": SAMPLES, **GROUPS}),
    "fl all": ("FedAvg, all together: DP-SGD, user-level DP (people), shares of 3", FL,
               {"solver": SAMPLES, "user": PEOPLE, "aggregation": SHARES}),
}  # fmt: skip
"""Key -> printed name, method, `privacy`. In brackets: whose epsilon stands in the row."""
TOGETHER = ("plain", "shares", "pixel 2", "deep", "bottleneck", "all printed", "all", "fl",
            "fl dp-sgd", "fl user", "fl shares", "fl groups", "fl all")  # fmt: skip


def label(key: str) -> str:
    """Return the label of a row."""
    return f"{ROWS[key][1]['name']}, {key}"


def part(key: str) -> Part:
    """Return Model 2 trained with a row's defence, everybody judged by own later data."""
    _, entry, privacy = ROWS[key]
    network = entry.get("cut", "2")

    def above(ground: Ground) -> dict[str, Any]:
        return merge(dict(model(network)(ground)), {"privacy": privacy})

    def methods(ground: Ground) -> list[Table]:
        return [{**entry, "cut": ground.cuts.get(network, "")} if "cut" in entry else entry]

    besides = () if entry is FL else (MEAN_PICTURE,)
    return Part(f"cost_{key.replace(' ', '_')}", methods, "attacked", above, f", {key}", besides)


PARTS = {key: part(key) for key in ROWS}
SUMS = (
    alike("secure sums leave the error as it is (within 0.1 degrees)", "4.3", WITHIN,
          label("plain"), label("shares")),
    better("sums by three parties double the time of training", "4.3, 5.2", label("plain"),
           label("shares"), quantity="seconds", margin=TWICE),
)  # fmt: skip
NOISE = (
    better("noise on smashed data raises the error", "4.4.2", label("plain"), label("pixel 2")),
    better("noise on smashed data doubles the time of training", "4.4.2, 5.2", label("plain"),
           label("pixel 2"), quantity="seconds", margin=TWICE),
    better("noise of l = 2 leaves an attacker the mean picture (90 % of its MSE or more)",
           "4.4.3", label("pixel 2"), MEAN_PICTURE, quantity="found", margin=PARITY),
)  # fmt: skip
FRAMES = (
    better("DP-SGD at epsilon 0.5 raises no error (10 % at most)", "4.4.2", label("fl dp-sgd"),
           label("fl"), margin=PARITY),
    better("DP-SGD doubles the time of training", "5.2", label("fl"), label("fl dp-sgd"),
           quantity="seconds", margin=TWICE),
)  # fmt: skip
ALL = (
    Claim("MPC for sums, PixelDP and DP-SGD together take 3.5 times as long (35 min)", "5.2",
          untestable="DP-SGD on halves of a network is refused: single samples pass the cut"),
    better("together they cost at least twice the time", "5.2", label("plain"),
           label("all printed"), quantity="seconds", margin=TWICE),
    better("every defence that goes together leaves the error within 10 % (not claimed)", "ours",
           label("all"), label("deep"), margin=PARITY),
    better("in FedAvg too (not claimed)", "ours", label("fl all"), label("fl"), margin=PARITY),
    better("all together leave an attacker the mean picture (not claimed)", "ours", label("all"),
           MEAN_PICTURE, quantity="found", margin=PARITY),
)  # fmt: skip
SPLIT = (
    alike(
        "one more split has no effect on the error (within 0.1 degrees)",
        "4.6.3, 5.1",
        WITHIN,
        label("plain"),
        label("u"),
    ),
)
MEDIAN = (
    better("the median raises no error where nobody lies (10 % at most; left open)", "5.1",
           label("fl median"), label("fl"), margin=PARITY),
)  # fmt: skip
NOTE = (
    "errors on everybody's own later data; CPU seconds of all ends in one process and thread, the "
    "mean of six rounds, and intervals of verdicts on time are over these rounds; KiB up and "
    "down, keys and boxes of pads left out; the attacker is the inverse network, trained on all "
    "others' pictures through the layers and the defence of the first seed's run, the first five "
    "people in turn its victims; a higher MSE is a worse picture; where no smashed data are sent "
    "it has nothing to look at; epsilon is per person, sample, picture or pixel, as the row says"
)


def table(name: str, title: str, keys: Sequence[str], claims: Sequence[Claim]) -> PaperTable:
    """Return a table of some of the rows."""
    return PaperTable(
        f"splitfed/{name}", title, ("main", "worst", "seconds", "sent", "found", "epsilon"), {},
        "gaze_angle", tuple(PARTS[key] for key in keys), tuple(claims),
        rows={label(key): ROWS[key][0] for key in keys}, note=NOTE,
        apart=("privacy", "split", "model"),
    )  # fmt: skip


TABLES = (
    table("costs", "what each defence costs, and what it leaves an attacker", tuple(ROWS),
          (*SUMS, *SPLIT, *NOISE, *FRAMES, *MEDIAN, *ALL)),
    table("all_defences", "all defences together", TOGETHER, (*SUMS, *NOISE, *FRAMES, *ALL)),
)  # fmt: skip
