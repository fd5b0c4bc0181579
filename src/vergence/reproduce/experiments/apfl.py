"""Runs of the AP-FL chapter: partitions of classes, absent clients, and the methods compared.

Source: the Durham thesis, chapter 3, section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from vergence.data.images.partition import TABLE_3_1
from vergence.data.io.checks import below_data
from vergence.data.zero_shot.semantics import meanings
from vergence.errors import VergenceError
from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.printed import paper_tables

ALPHAS = (0.01, 0.05, 0.1)
"""Of the Dirichlet distribution; the most unequal first."""
AWAY = "p008"
"""Device 8 of Table 3.1, who alone has the last classes."""
ONE_LESS = (*TABLE_3_1[:9], (0, 8))
"""Table 3.1, but device 9 has class 8 in the place of 1: only the last class goes with device 8."""
MISSING = {"10 %": ONE_LESS, "20 %": TABLE_3_1}
"""Share of classes that nobody but device 8 has -> who has which classes."""
GIVEN = 0.05
"""Share of everybody's training images that the server gets, without labels, for FedDF."""

OWN_MODEL, FRIEND = "ap_fl beta 0", "ap_fl beta 1"
"""Rows of the client's own model and of the friend alone, from the run of `ap_fl`."""
MIXED = {OWN_MODEL: 0.0, "ap_fl beta 0.5": 0.5, FRIEND: 1.0}
"""Row -> share of the friend, besides the method's own."""

BASES: tuple[Table, ...] = (
    {"name": "local_only"},
    {"name": "fedavg"},
    {"name": "fedprox"},
    {"name": "scaffold", "option": "I"},
    {"name": "fedgen"},
    {"name": "feddf", "steps": 20, "batch": 50},
    {"name": "fedavg_ft"},
)
"""The chapter's rivals, and FedAvg with fine-tuning, which it leaves out of Table 3.2.

Adam everywhere, so SCAFFOLD by option I; FedDF's 20 batches a round are about a client's 10 twice.
"""


def friendly(**options: Any) -> Table:
    """Return AP-FL with two passes of its generator; the thesis does not say how long it trains."""
    return {"name": "ap_fl", "passes": 2, **options}


def dealt(people: int, alpha: float) -> str:
    """Return the end of a row's label.

    >>> dealt(5, 0.1)
    ' (5 people, alpha 0.1)'
    """
    return f" ({people} people, alpha {alpha:g})"


def at(label: str, people: int, alpha: float) -> str:
    """Return the label of a row of Table 3.2."""
    return label + dealt(people, alpha)


def away(label: str, missing: str) -> str:
    """Return the label of a row of Table 3.3."""
    return f"{label} ({missing} missing)"


def shares(suffix: str) -> tuple[str, ...]:
    """Return the rows of AP-FL with other shares of the friend."""
    return tuple(row + suffix for row in MIXED)


def participated(people: int, alpha: float) -> TablePart:
    """Return all methods on one Dirichlet partition, where everybody takes part."""
    above = {
        "federation": {"split": "dirichlet", "people": people, "alpha": alpha},
        "proxy": {"share": GIVEN},
    }
    methods = [*BASES, friendly()]
    name = f"dirichlet_{people}_{alpha:g}".replace(".", "")
    suffix = dealt(people, alpha)
    return TablePart(name, methods, "both_tests", above, suffix, shares(suffix))


EVEN = TablePart(
    "even_10",
    [{"name": "local_only"}, {"name": "fedavg"}],
    "both_tests",
    {"federation": {"split": "iid", "people": 10}, "proxy": {"share": GIVEN}},
    " (10 people, alike)",
)


def gone(missing: str) -> Mapping[str, Any]:
    """Settings that make device 8 absent until the last round is over."""
    return {**owned(missing), "presence": {"gone": {AWAY: 0}, "back": [AWAY]}}


def owned(missing: str) -> Mapping[str, Any]:
    """Settings for the classes of each person."""
    table = [list(row) for row in MISSING[missing]]
    return {"federation": {"split": "table", "people": len(table), "table": table}}


def dropped(missing: str) -> tuple[TablePart, TablePart]:
    """Return the parts of Table 3.3 at one share of missing classes: one trains alone, or is away.

    Who trains alone is away from nothing.
    """
    name, suffix = missing.replace(" %", ""), f" ({missing} missing)"
    served = [{"name": "fedavg"}, {"name": "fedavg_ft"}, friendly()]
    return (
        TablePart(f"alone_{name}", [{"name": "local_only"}], "absent", owned(missing), suffix),
        TablePart(f"away_{name}", served, "absent", gone(missing), suffix, shares(suffix)),
    )


PHOTO = "a photo of a {}"
SEMANTICS = {
    "random": "{}",
    "names": "{}",
    "glove": "{}",
    "minilm": PHOTO,
    "bert": PHOTO,
    "clip": PHOTO,
}
"""Where vectors of class names come from -> what a text model is given."""
FILES = ("bert", "clip")
"""Come with no package: read from bert.npz and clip.npz in the folder where the command runs."""


def meant(source: str) -> str:
    """Return the label of a row of Table 3.4."""
    return f"ap_fl_{source}"


@cache
def unreadable(source: str, prompt: str, classes: tuple[str, ...]) -> str:
    """Reason why vectors of class names cannot be had here; "" where they can."""
    try:
        meanings(classes, source, prompt)
    except VergenceError as error:
        return str(error).replace(below_data(source), source)  # reports travel, machines do not
    return ""


MEANT = TablePart(
    "semantics",
    [
        friendly(
            label=meant(source),
            semantics=f"{source}.npz" if source in FILES else source,
            prompt=prompt,
        )
        for source, prompt in SEMANTICS.items()
    ],
    "friends",
    gone("20 %"),
    barrier=lambda entry, ground: unreadable(entry["semantics"], entry["prompt"], ground.classes),
)

NOISES, COUNTS = (20, 100, 400, 512), (50, 200, 600, 1000)
HUNDRED, SIX_HUNDRED = 100, 600
"""What the other of the two is while one is varied."""


def sized(noise: int, samples: int) -> Table:
    """Return AP-FL with so many entries of noise and made-up samples of a class in a pass."""
    return friendly(label=f"noise_{noise}_samples_{samples}", noise=noise, samples=samples)


BY_NOISE = [sized(noise, SIX_HUNDRED) for noise in NOISES]
BY_COUNT = [sized(HUNDRED, count) for count in COUNTS if count != SIX_HUNDRED]
SIZED = TablePart(
    "generator",
    [*BY_NOISE, *BY_COUNT],
    "friends",
    {"federation": {"split": "dirichlet", "people": 10, "alpha": 0.1}},
)

ENDS, MIDDLE = (ALPHAS[0], ALPHAS[2]), ALPHAS[1]
TABLES = paper_tables(
    "apfl",
    {
        "apfl/table3.2": tuple(participated(10, alpha) for alpha in ENDS),
        "apfl/table3.2-middle": (participated(10, MIDDLE),),
        "apfl/table3.2-five": tuple(participated(5, alpha) for alpha in ALPHAS),
        "apfl/fig3.2": (EVEN, *(participated(10, alpha) for alpha in reversed(ENDS))),
        "apfl/fig3.4": tuple(participated(5, alpha) for alpha in ALPHAS),
        "apfl/table3.3": tuple(part for missing in MISSING for part in dropped(missing)),
        "apfl/table3.4": (MEANT,),
        "apfl/fig3.5": (SIZED,),
    },
)
