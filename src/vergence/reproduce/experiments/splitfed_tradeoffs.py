"""Fairness, robustness and privacy from one sweep: method x robust rule x epsilon.

Source: the SplitFed gaze thesis, sections 4.4.2 and 5.1, which leaves the rules' cost open.
"""

from __future__ import annotations

from typing import Any

from vergence.experiment.schema import merge
from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.experiments.splitfed import FL, model
from vergence.reproduce.printed import paper_tables
from vergence.reproduce.protocols.defences import LIARS

RULES = ("sum", "median", "trimmed_mean")
BUDGETS = (None, 8.0, 0.5)
"""Epsilon of DP-SGD, per sample and client over the run; None: no noise."""
METHODS = ("fedavg", "fedcpf")


def setting(rule: str, budget: float | None) -> str:
    """Name of the rows of a setting."""
    noise = "no noise" if budget is None else f"epsilon {budget:g}"
    return f"{rule.replace('_', ' ')}, {noise}"


def label(method: str, rule: str, budget: float | None = None) -> str:
    """Return the label of a row."""
    return f"{method}, {setting(rule, budget)}"


def methods(ground: Ground) -> list[Table]:
    """Methods tried under every setting: a shared model, and one that is part personal."""
    return [FL, {"name": "fedcpf", "rate": ground.rate, "limit": ground.rho}]


def part(rule: str, budget: float | None) -> TablePart:
    """Return both methods under a rule and a budget, judged with and without liars."""
    privacy: Table = {}
    if rule != "sum":
        privacy["robust"] = {"name": rule, "attackers": LIARS["share"]}
    if budget is not None:
        privacy["solver"] = {"name": "dp_sgd", "epsilon": budget, "delta": 1e-5}

    def above(ground: Ground) -> dict[str, Any]:
        return merge(dict(model("2")(ground)), {"privacy": privacy})

    named = setting(rule, budget)
    return TablePart(
        f"front_{named.replace(', ', '_').replace(' ', '_')}",
        methods,
        "lied_to",
        above,
        f", {named}",
    )


TABLES = paper_tables(
    "splitfed",
    {"splitfed/front": tuple(part(rule, budget) for budget in BUDGETS for rule in RULES)},
)
