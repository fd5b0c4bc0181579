"""The SplitFed gaze thesis: what each defence costs, alone and together, and what it leaves over.

Source: the SplitFed gaze thesis, sections 4.3, 4.4, 5.1 and 5.2.
"""

from __future__ import annotations

from typing import Any

from vergence.experiment.schema import merge
from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.experiments.splitfed import FL, SFL, model
from vergence.reproduce.experiments.splitfed_privacy import PARTIES
from vergence.reproduce.printed import paper_tables
from vergence.reproduce.protocols.defences import MEAN_PICTURE

U_SHAPE: Table = {"name": "splitfed_u", "last": "fc1"}
DEEP: Table = {**U_SHAPE, "cut": "narrow"}
"""Cut behind few features, as a clipped vector needs; which stage that is depends on the data."""
SHARES: Table = {"name": "additive", "aggregators": list(PARTIES[:3])}
CLIPPED: Table = {"name": "bottleneck", "clip": 0.85, "epsilon": 8.0, "frozen": True}
RANGE: Table = {"root": "p00"}
SAMPLES: Table = {"name": "dp_sgd", "epsilon": 0.5, "delta": 1e-5}
PEOPLE: Table = {"clip": 0.5, "epsilon": 8.0, "delta": 1e-5}
GROUPS: Table = {
    "robust": {"name": "median", "attackers": 0.1},
    "aggregation": {"groups": 3},
}

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
    "all printed": (
        "shares of 3 and PixelDP l = 2 (pixels)",
        SFL,
        {"aggregation": SHARES, "cut": {"name": "pixel_dp", "level": 2.0}},
    ),
    "all": (
        "all together: deep U-shape, bottleneck (pictures), shares of 3, range",
        DEEP,
        {"aggregation": SHARES, "cut": CLIPPED, "output_range": RANGE},
    ),
    "fl": ("FedAvg, no defence", FL, {}),
    "fl pads": ("FedAvg, pads", FL, {"aggregation": "secure"}),
    "fl shares": ("FedAvg, shares of 3", FL, {"aggregation": SHARES}),
    "fl dp-sgd": ("FedAvg, DP-SGD (samples)", FL, {"solver": SAMPLES}),
    "fl user": ("FedAvg, user-level DP (people)", FL, {"user": PEOPLE}),
    "fl median": ("FedAvg, median", FL, {"robust": {"name": "median", "attackers": 0.2}}),
    "fl groups": (
        "FedAvg, DP-SGD (samples), median of secure sums of 3",
        FL,
        {"solver": SAMPLES, **GROUPS},
    ),
    "fl all": (
        "FedAvg, all together: DP-SGD, user-level DP (people), shares of 3",
        FL,
        {"solver": SAMPLES, "user": PEOPLE, "aggregation": SHARES},
    ),
}
"""Key -> printed name, method, `privacy`. In brackets: whose epsilon stands in the row."""
TOGETHER = (
    "plain",
    "shares",
    "pixel 2",
    "deep",
    "bottleneck",
    "all printed",
    "all",
    "fl",
    "fl dp-sgd",
    "fl user",
    "fl shares",
    "fl groups",
    "fl all",
)


def label(key: str) -> str:
    """Return the label of a row."""
    return f"{ROWS[key][1]['name']}, {key}"


def part(key: str) -> TablePart:
    """Return Model 2 trained with a row's defence, everybody judged by own later data."""
    _, entry, privacy = ROWS[key]
    network = entry.get("cut", "2")

    def above(ground: Ground) -> dict[str, Any]:
        return merge(dict(model(network)(ground)), {"privacy": privacy})

    def methods(ground: Ground) -> list[Table]:
        return [{**entry, "cut": ground.cuts.get(network, "")} if "cut" in entry else entry]

    besides = () if entry is FL else (MEAN_PICTURE,)
    return TablePart(
        f"cost_{key.replace(' ', '_')}", methods, "attacked", above, f", {key}", besides
    )


PARTS = {key: part(key) for key in ROWS}
TABLES = paper_tables(
    "splitfed",
    {
        "splitfed/costs": tuple(PARTS.values()),
        "splitfed/all_defences": tuple(PARTS[key] for key in TOGETHER),
    },
)
