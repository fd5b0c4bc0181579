"""FedCPF: the runs behind its tables.

Source: "Personalized federated learning for egocentric video gaze estimation with comprehensive
parameter freezing", arXiv 2502.18123.
"""

from __future__ import annotations

from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.printed import paper_tables

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
STEPS = (0.01, 0.05, 0.10, 0.15, 0.20)


def rho(share: float) -> str:
    """Return the label of a row of Table 2."""
    return f"rho_{round(100 * share):02d}"


def acc(step: float) -> str:
    """Return the label of a row of Table 3."""
    return f"acc_{round(100 * step):02d}"


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


WHOLE = TablePart("methods", methods)
TABLES = paper_tables(
    "fedcpf",
    {
        "fedcpf/table1": (WHOLE,),
        "fedcpf/table2": (TablePart("rho", shares),),
        "fedcpf/table3": (TablePart("acc", steps),),
        "fedcpf/fig3": (WHOLE,),
    },
)
