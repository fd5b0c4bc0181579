"""Adaptive FL for gaze: the runs behind its tables.

Source: "Federated learning for appearance-based gaze estimation in the wild", arXiv 2211.07330.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vergence.reproduce.claims import (
    LEFT_OUT,
    Table,
    TablePart,
)
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.printed import paper_tables

SEED = "fedadam_seed"
"""Adaptive FL as printed (Algorithm 1); `fedadam` is that of Reddi et al., its reference."""
COHORT = {"presence": {"cohort": 0.8}}
"""Of every part, so that all may be judged against each other; a data centre is not bound by it."""
RATE = {"local": {"lr": 2e-5, "weight_decay": 0.0, "clip": 0.0}}
"""The paper's 1e-5 on the sum of two losses, as a rate on their mean."""
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Of noisy people; the paper draws a curve and claims more than 70 %."""
STD = 0.5


def _servers(options: Mapping[str, float]) -> list[Table]:
    return [
        {"name": "fedavg", "weights": "equal"},
        {"name": "fedadam", **options},
        {"name": "fedadam", "label": SEED, "variant": "seed_exact", **options},
    ]


def servers(ground: Ground) -> list[Table]:
    """Return FedAvg and both FedAdams, which differ in the server's step alone."""
    return _servers(ground.server)


def slow_servers(ground: Ground) -> list[Table]:
    """Return the same for clients that train at the paper's rate."""
    return _servers(ground.server_printed)


def federated(ground: Ground) -> list[Table]:
    """Return the servers, and FedAvg with fine-tuning, which the paper lacks."""
    return [*servers(ground), {"name": "fedavg_ft", "weights": "equal"}]


INDIVIDUAL = TablePart("individual", [{"name": "local_only"}], above=COHORT)
POOLED = TablePart("pooled", [{"name": "centralised"}], above=COHORT)
MATRIX = replace(INDIVIDUAL, protocol="matrix")
FEDERATED = TablePart("federated", federated, above=COHORT)


def noisy(label: str, share: float) -> str:
    """Return the label of a row trained with a share of noisy people."""
    return f"{label} {round(100 * share)} % noisy"


def left_out(label: str) -> str:
    """Return the label of a row scored on people who took no part."""
    return label + LEFT_OUT


INDEPENDENT = (
    TablePart("left_out", servers, "leave_one_out", above=COHORT, suffix=LEFT_OUT),
    TablePart("left_out_pooled", POOLED.methods, "leave_one_out", above=COHORT, suffix=LEFT_OUT),
)
AS_PRINTED = tuple(
    replace(
        part,
        name=f"{part.name}_as_printed",
        above={**COHORT, **RATE},
        methods=slow_servers if part.methods is servers else part.methods,
    )
    for part in (*INDEPENDENT, MATRIX)
)
NOISE = tuple(
    TablePart(
        f"noise_{round(100 * share):02d}",
        servers,
        above={**COHORT, **({"noise": {"share": share, "std": STD}} if share else {})},
        suffix=noisy("", share),
    )
    for share in SHARES
)

TABLES = paper_tables(
    "adaptive",
    {
        "adaptive/fig2": (MATRIX,),
        "adaptive/fig3": (FEDERATED, INDIVIDUAL, POOLED, *INDEPENDENT),
        "adaptive/fig4": NOISE,
        "adaptive/headline": (*INDEPENDENT, MATRIX),
        "adaptive/headline-as-printed": AS_PRINTED,
    },
)
