"""FedCPF: recall, precision and F1 in percent, as printed, and the claims.

Source: "Personalized federated learning for egocentric video gaze estimation with comprehensive
parameter freezing", arXiv 2502.18123.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vergence.app.papers.base import PaperTable, Part, Table, better, order, peak
from vergence.app.papers.grounds import Ground

EGTEA, EGO4D = "EGTEA Gaze+", "Ego4D"
COLUMNS = ("recall", "precision", "main")
RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
STEPS = (0.01, 0.05, 0.10, 0.15, 0.20)
PARITY = 0.05
"""Share of the centralised score that FedCPF may lack and still be called comparable."""

Printed = dict[str, tuple[float, float, float]]

TABLE1: dict[str, Printed] = {
    EGTEA: {
        "local_only": (44.24, 23.17, 30.41),
        "fedavg": (27.42, 12.95, 17.59),
        "fedprox": (36.68, 21.36, 27.00),
        "fedpac": (52.78, 28.38, 36.91),
        "fedselect": (54.69, 30.65, 39.28),
        "fedcpf_random": (51.63, 27.79, 36.13),
        "fedcpf": (55.85, 31.74, 40.48),
    },
    EGO4D: {
        "local_only": (27.31, 16.83, 20.83),
        "fedavg": (17.62, 10.55, 13.20),
        "fedprox": (29.73, 19.65, 23.66),
        "fedpac": (30.85, 22.88, 26.27),
        "fedselect": (36.82, 24.63, 29.52),
        "fedcpf_random": (31.79, 21.46, 25.62),
        "fedcpf": (37.10, 25.07, 29.92),
    },
}


def rho(share: float) -> str:
    """Return the label of a row of Table 2."""
    return f"rho_{round(100 * share):02d}"


def acc(step: float) -> str:
    """Return the label of a row of Table 3."""
    return f"acc_{round(100 * step):02d}"


def _rows(labels: Sequence[str], *columns: tuple[float, ...]) -> Printed:
    return {label: (r, p, f) for label, r, p, f in zip(labels, *columns, strict=True)}


RHOS, ACCS = [rho(share) for share in RATES], [acc(step) for step in STEPS]
TABLE2: dict[str, Printed] = {
    EGTEA: _rows(
        RHOS,
        (52.40, 52.51, 54.79, 55.38, 55.85, 54.16, 52.46),
        (29.25, 29.17, 30.56, 31.06, 31.74, 29.49, 28.94),
        (37.56, 37.51, 39.24, 39.80, 40.48, 38.19, 37.32),
    ),
    EGO4D: _rows(
        RHOS,
        (34.19, 34.67, 35.96, 37.10, 36.69, 34.86, 33.67),
        (22.4, 23.43, 23.77, 25.07, 25.20, 22.55, 22.38),
        (27.07, 27.96, 28.62, 29.92, 29.88, 27.39, 26.89),
    ),
}
TABLE3: dict[str, Printed] = {
    EGTEA: _rows(
        ACCS,
        (54.61, 55.85, 54.79, 53.38, 54.81),
        (30.63, 31.74, 30.56, 30.06, 30.73),
        (39.25, 40.48, 39.24, 38.46, 39.38),
    ),
    EGO4D: _rows(
        ACCS,
        (36.17, 36.69, 35.13, 33.60, 33.49),
        (23.33, 25.20, 24.12, 23.76, 23.89),
        (28.36, 29.88, 28.60, 27.84, 27.89),
    ),
}


def methods(ground: Ground) -> list[Table]:
    """Return the rows of Table 1, and the two it lacks: fine-tuned FedAvg and pooled data."""
    masks = {"rate": ground.rate, "limit": ground.rho}
    return [
        {"name": "local_only"},
        {"name": "fedavg"},
        {"name": "fedprox"},
        {"name": "fedpac"},
        {"name": "fedselect", **masks},
        {"name": "fedcpf", "label": "fedcpf_random", "select": "random", **masks},
        {"name": "fedcpf", **masks},
        {"name": "fedavg_ft"},
        {"name": "centralised"},
    ]


def shares(ground: Ground) -> list[Table]:
    """Return the rows of Table 2."""
    return [
        {"name": "fedcpf", "label": rho(share), "limit": share, "rate": ground.rate}
        for share in RATES
    ]


def steps(ground: Ground) -> list[Table]:
    """Return the rows of Table 3."""
    return [
        {"name": "fedcpf", "label": acc(step), "step": step, "limit": 0.5, "rate": ground.rate}
        for step in STEPS
    ]


WHOLE = Part("methods", methods)
RIVALS = ("local_only", "fedavg", "fedprox", "fedpac", "fedselect")
OTHERS = tuple(label for label in RHOS if label not in (rho(0.4), rho(0.5)))
REST = tuple(label for label in ACCS if label != acc(0.05))

TABLES = (
    PaperTable(
        "fedcpf/table1", "methods compared: recall, precision, F1", COLUMNS, TABLE1,
        "gaze_map", (WHOLE,),
        (
            better("FedCPF improves on local-only", "3.2", "fedcpf", "local_only"),
            better("FedCPF improves on FedAvg", "3.2", "fedcpf", "fedavg"),
            better("FedCPF improves on FedProx", "3.2", "fedcpf", "fedprox"),
            better("FedCPF improves on FedPAC", "3.2", "fedcpf", "fedpac"),
            better("FedCPF improves on FedSelect", "3.2", "fedcpf", "fedselect"),
            better("FedCPF improves on FedSelect in recall", "3.2", "fedcpf", "fedselect",
                   quantity="recall"),
            better("FedCPF improves on FedSelect in precision", "3.2", "fedcpf", "fedselect",
                   quantity="precision"),
            better("choosing by change beats random freezing", "3.2", "fedcpf", "fedcpf_random"),
            better("local-only beats FedAvg", "Table 1", "local_only", "fedavg"),
            better("FedSelect beats local-only", "Table 1", "fedselect", "local_only"),
            better("random freezing beats local-only", "Table 1", "fedcpf_random", "local_only"),
            better("FedProx beats FedAvg", "Table 1", "fedprox", "fedavg"),
            order("order of EGTEA Gaze+", "Table 1", "fedavg", "fedprox", "local_only",
                  "fedcpf_random", "fedpac", "fedselect", "fedcpf"),
            order("order of Ego4D", "Table 1", "fedavg", "local_only", "fedprox",
                  "fedcpf_random", "fedpac", "fedselect", "fedcpf"),
            better("FedCPF is comparable to a centralised model (5 % of it at most worse)", "4",
                   "fedcpf", "centralised", margin=PARITY),
        ),
        rows={"fedcpf_random": "FedCPF (random freezing)"},
        note="FedCPF and random freezing share every setting but the selection; the paper's Ego4D "
        "row of FedCPF has rho 0.4, its random freezing 0.5.",
    ),
    PaperTable(
        "fedcpf/table2", "FedCPF by largest personal share rho", COLUMNS, TABLE2,
        "gaze_map", (Part("rho", shares),),
        (
            peak("F1 is best at rho 0.4 to 0.5", "3.2", (rho(0.4), rho(0.5)), OTHERS),
            peak("rho 0.5 beats rho 0.1", "Table 2", (rho(0.5),), (rho(0.1),)),
            peak("rho 0.5 beats rho 0.7", "Table 2", (rho(0.5),), (rho(0.7),)),
        ),
        rows={rho(share): f"rho {share:.1f}" for share in RATES},
    ),
    PaperTable(
        "fedcpf/table3", "FedCPF by score step acc", COLUMNS, TABLE3,
        "gaze_map", (Part("acc", steps),),
        (
            peak("F1 is best at acc 0.05", "3.2", (acc(0.05),), REST),
            peak("recall is best at acc 0.05", "3.2", (acc(0.05),), REST, quantity="recall"),
            peak("precision is best at acc 0.05", "3.2", (acc(0.05),), REST, quantity="precision"),
        ),
        rows={acc(step): f"acc {step:.2f}" for step in STEPS},
    ),
    PaperTable(
        "fedcpf/fig3", "heat maps of the methods on the same frames", ("precision", "map"),
        {data: {k: (v[1], math.nan) for k, v in rows.items()} for data, rows in TABLE1.items()},
        "gaze_map", (WHOLE,),
        (
            better("FedCPF's maps fit the true gaze better than those of the other methods", "3.3",
                   "fedcpf", *RIVALS, quantity="map"),
            better("FedCPF predicts a smaller, more accurate area", "3.3", "fedcpf", *RIVALS,
                   quantity="precision"),
        ),
        figure="strip",
        note="the paper shows pictures only; NSS stands for the fit of a map, precision for the "
        "share of the predicted area that is right.",
    ),
)  # fmt: skip


CENTRAL = {EGTEA: 44.8, EGO4D: 43.1}
"""F1 of centralised GLC on the official splits. Source: Lai et al. 2022."""


TESTS = (
    (EGTEA, "recall", ("55.85", "0.74"), ("54.69", "1.16"), "0.023"),
    (EGTEA, "precision", ("31.74", "0.82"), ("30.65", "1.15"), "0.025"),
    (EGO4D, "precision", ("25.2", "0.92"), ("24.63", "1.47"), "0.045"),
    (EGO4D, "recall", ("37.10", "0.28"), ("36.82", "0.31"), "0.05"),
)
"""Section 3.2: data set, quantity, FedCPF (mean, SD), FedSelect (mean, SD), p; as printed."""

CLIPS = {"train": (6456, 8140, 14596), "test": (1404, 2035, 3439)}
"""Section 3.1: clips of EGTEA Gaze+, of Ego4D, and both."""
