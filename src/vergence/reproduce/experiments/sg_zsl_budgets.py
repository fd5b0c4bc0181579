"""The SG-ZSL chapter: the runs behind Table 6.5, what a teacher's budget costs.

Source: the Durham thesis, section 6.4.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.experiments.pe_zsl import TEACHER, sentinel
from vergence.reproduce.protocols.membership import NOTHING

BUDGETS = (1, 3, 8, 30, 50, None)
COMPARED = {"profile": "", "samples": ", samples compared"}

MANY: Mapping[str, Table] = {
    "zsl_synthetic": {"images": 600},
    **{f"{name}_lists": {"share": 1.0} for name in ("awa1", "awa2", "apy")},
}
WIDE: Table = {"batch": 128, "lr": 3e-3}
"""Of Table 6.5: with the other tables' samples no budget up to 50 left a teacher above chance."""
FEW: Mapping[str, Table] = {"zsl_synthetic": {"images": 20}}
LEARNED: Table = {"batch": 32, "lr": 3e-3, "epochs": 100}
"""What an attacker finds samples in: few of them, learned for long."""
LONG = ", few samples, 100 epochs"


def within(epsilon: int | None, more: str = "") -> str:
    """Return the end of a row's label: the teacher's budget, and what else differs."""
    told = "no privacy" if epsilon is None else f"epsilon {epsilon}"
    return f" ({told}{COMPARED.get(more, more)})"


def private(epsilon: int | None, compare: str, more: str = "") -> TablePart:
    """Return the white box of a teacher with such a budget, of all classes, and who is found."""
    solver = {"name": "dp_sgd", "clip": 1.0, "epsilon": float(epsilon or 0), "delta": 1e-5}
    budget: Table = {} if epsilon is None else {"privacy": {"solver": solver}}

    def above(ground: Ground) -> Mapping[str, object]:
        many, local = (MANY, WIDE) if not more else (FEW, LEARNED)
        return {
            "federation": {"teacher": "omniscient", **many.get(ground.name, {})},
            "local": local,
            **budget,
        }

    suffix = within(epsilon, more or compare)
    return TablePart(
        f"epsilon_{epsilon or 'none'}_{'few' if more else compare}",
        lambda ground: [sentinel(ground, "white_box", compare=compare)],
        *(
            ("members", above, suffix, (TEACHER + suffix, NOTHING))
            if compare == "profile"
            else ("taught", above, suffix, (TEACHER + suffix,))
        ),
    )


def _epsilons(compare: str) -> tuple[TablePart, ...]:
    return tuple(private(epsilon, compare) for epsilon in BUDGETS)


BUDGETED = (
    *_epsilons("profile"),
    *_epsilons("samples"),
    *(private(epsilon, "profile", LONG) for epsilon in (None, 8)),
)
