"""Fairness, robustness and privacy from one sweep: method x robust rule x epsilon.

Source: the SplitFed gaze thesis, sections 4.4.2 and 5.1, which leaves the rules' cost open.
"""

from __future__ import annotations

from typing import Any

from vergence.app.config import merge
from vergence.app.papers.base import Claim, Pair, PaperTable, Part, Table, better
from vergence.app.papers.defended import LIARS
from vergence.app.papers.grounds import Ground
from vergence.app.papers.splitfed import FL, model
from vergence.app.papers.splitfed_tables import PARITY

RULES = ("sum", "median", "trimmed_mean")
BUDGETS = (None, 8.0, 0.5)
"""Epsilon of DP-SGD, per sample and client over the run; None: no noise."""
METHODS = ("fedavg", "fedcpf")


def setting(rule: str, budget: float | None) -> str:
    """Return what rows of a setting are called."""
    noise = "no noise" if budget is None else f"epsilon {budget:g}"
    return f"{rule.replace('_', ' ')}, {noise}"


def label(method: str, rule: str, budget: float | None = None) -> str:
    """Return the label of a row."""
    return f"{method}, {setting(rule, budget)}"


def methods(ground: Ground) -> list[Table]:
    """Return what is tried under every setting: a shared model, and one that is part personal."""
    return [FL, {"name": "fedcpf", "rate": ground.rate, "limit": ground.rho}]


def part(rule: str, budget: float | None) -> Part:
    """Return both methods under a rule and a budget, judged with and without liars."""
    privacy: Table = {}
    if rule != "sum":
        privacy["robust"] = {"name": rule, "attackers": LIARS["share"]}
    if budget is not None:
        privacy["solver"] = {"name": "dp_sgd", "epsilon": budget, "delta": 1e-5}

    def above(ground: Ground) -> dict[str, Any]:
        return merge(dict(model("2")(ground)), {"privacy": privacy})

    named = setting(rule, budget)
    return Part(f"front_{named.replace(', ', '_').replace(' ', '_')}", methods, "lied_to", above,
                f", {named}")  # fmt: skip


def every(text: str, where: str, pairs: list[tuple[str, str]], **more: Any) -> Claim:
    """Return the claim that the first row of every pair is better than the second."""
    return Claim(text, where, tuple(Pair((one,), other) for one, other in pairs), **more)


AGAINST = [(label(method, rule), label(method, "sum"))
           for method in METHODS for rule in RULES[1:]]  # fmt: skip
TABLES = (
    PaperTable(
        "splitfed/front", "fairness, robustness and privacy from one sweep",
        ("main", "worst", "lied to", "epsilon"), {}, "gaze_angle",
        tuple(part(rule, budget) for budget in BUDGETS for rule in RULES),
        (
            every("median and trimmed mean limit what liars do", "5.1", AGAINST,
                  quantity="lied to"),
            every("they raise no error where nobody lies (10 % at most; left open)", "5.1", AGAINST,
                  margin=PARITY),
            better("DP-SGD at epsilon 0.5 raises no error (10 % at most)", "4.4.2",
                   label("fedavg", "sum", 0.5), label("fedavg", "sum"), margin=PARITY),
            every("what liars do is limited with DP-SGD at epsilon 0.5 as well (not claimed)",
                  "ours", [(label(m, r, 0.5), label(m, "sum", 0.5))
                           for m in METHODS for r in RULES[1:]], quantity="lied to"),
        ),
        figure="front",
        rows={label(method, rule, budget): f"{name}, {setting(rule, budget)}"
              for method, name in zip(METHODS, ("FedAvg", "FedCPF"), strict=True)
              for rule in RULES for budget in BUDGETS},
        note="everybody's own later data, liars' too; fairness is the worst person's error where "
        "nobody lies, robustness everybody's where a fifth of the people send minus 4 times what "
        "they learned, privacy the epsilon of DP-SGD for one sample of a client over the run "
        "(none: infinite; FedCPF's choice of entries looks at validation samples, which it does "
        "not cover); on the front: no other row is as good in all three and better in one.",
        apart=("privacy",), front=("worst", "lied to", "epsilon"),
    ),
)  # fmt: skip
