"""Compatibility matrix: every method with every setting, and settings with each other.

Nothing here decides; every cell is an experiment that is checked as a file is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from vergence.core.method import Method
from vergence.engine.compatibility import (
    AMONG_SETTINGS,
    WITH_METHODS,
    Incompatibility,
    InvalidCombination,
)
from vergence.errors import ConfigError
from vergence.experiment.registry import names
from vergence.experiment.schema import Experiment, check, merge
from vergence.results.text_tables import TextTable

Table = dict[str, Any]
SETTINGS: Mapping[str, Table] = {
    "pads": {"privacy": {"aggregation": "secure"}},
    "shares": {"privacy": {"aggregation": {"name": "additive"}}},
    "DP people": {"privacy": {"user": {"noise": 1.0}}},
    "tree": {"privacy": {"user": {"noise": 1.0, "turns": 2}}},
    "DP-SGD": {"privacy": {"solver": {"noise": 1.0}}},
    "mask": {"privacy": {"mask": {"epsilon": 8.0, "of": "entry"}}},
    "median": {"privacy": {"robust": "median"}},
    "Krum": {"privacy": {"robust": {"name": "krum", "attackers": 0.1}}},
    "groups": {"privacy": {"robust": "median", "aggregation": {"groups": 4}}},
    "cut": {"privacy": {"cut": {"name": "bottleneck", "noise": 1.0}}},
    "guard": {"privacy": {"split_guard": {"every": 3}}},
    "poison": {"poison": {"attack": "sign_flip", "share": 0.2}},
    "quorum": {"delivery": {"name": "quorum", "replies": 5}},
    "deadline": {"delivery": {"name": "deadline"}},
    "FedBuff": {"delivery": {"name": "fedbuff", "replies": 5}},
    "FedAsync": {"delivery": {"name": "fedasync"}},
    "codec": {"wire": {"codec": "int8"}},
    "pruning": {"pruning": {"amount": 0.5}},
}
"""Columns: what is added to an experiment."""
KEPT = ("task", "model", "federation", "local")
ROWS = (*AMONG_SETTINGS, *WITH_METHODS)
RUNS, SAME = "yes", "-"
GAP = re.compile(r"(?<!\{)\{\w[\w.]*\}")


def blocks(table: Mapping[str, Any]) -> list[TextTable]:
    """Return the matrix of methods and settings, that of settings, and the rules refused by."""
    base = {key: table[key] for key in KEPT if key in table}
    met = {
        name: [cell(base, name, more) for more in SETTINGS.values()]
        for name in names("methods", Method)
    }
    pairs = {
        one: [
            SAME if clashing(first, second) else cell(base, "fedavg", merge(first, second))
            for second in SETTINGS.values()
        ]
        for one, first in SETTINGS.items()
    }
    found = {number for line in (*met.values(), *pairs.values()) for number in line}
    return [
        TextTable("methods and settings", ["method", *SETTINGS], _lines(met)),
        TextTable("settings with each other, for fedavg", ["", *SETTINGS], _lines(pairs)),
        TextTable(
            "why not",
            ["number", "what", "does not go with", "seen above", "said"],
            [
                [
                    number,
                    clash.one,
                    clash.other,
                    "yes" if number in found else "",
                    rule_sentence(clash),
                ]
                for number, clash in zip(map(str, range(1, len(ROWS) + 1)), ROWS, strict=True)
            ],
            keys=5,
        ),
    ]


def rule_sentence(clash: Incompatibility) -> str:
    """Return a rule's sentence, with dots where an experiment's own words stand."""
    text = GAP.sub("...", clash.why).replace("{{", "{").replace("}}", "}")
    return "what else of the training samples the method looks at" if text == "..." else text


def show(experiment: Experiment, console: Console, style: str) -> None:
    """Print the matrices of an experiment's task and network."""
    made = blocks(experiment.table)
    if style == "markdown":
        sys.stdout.write("\n".join(block.markdown() for block in made))
        return
    for block in made:
        block.show(console)


def clashing(first: Table, second: Table) -> bool:
    """True if two settings give the same key of an experiment two values."""
    both = first.keys() & second.keys()
    return any(key != "privacy" or first[key].keys() & second[key].keys() for key in both)


def cell(base: Table, method: str, more: Table) -> str:
    """Return `yes`, or the number of the rule by which a method with these settings is refused."""
    clash = refused(merge(base, {"method": {"name": method}, **more}))
    return RUNS if clash is None else str(ROWS.index(clash) + 1)


def refused(table: Table) -> Incompatibility | None:
    """Return the rule by which an experiment is refused, None where it is not.

    Raises:
        ConfigError: it is refused for another reason.
    """
    try:
        check(table)
    except ConfigError as error:
        reason = error if isinstance(error, InvalidCombination) else error.__cause__
        if isinstance(reason, InvalidCombination):
            return reason.clash
        raise
    return None


def _lines(cells: Mapping[str, Iterable[str]]) -> list[list[str]]:
    return [[name, *line] for name, line in cells.items()]
