"""Compatibility matrix: every method with every setting, and settings with each other.

This module holds no rules of its own: for every cell an experiment is built and checked exactly as
an experiment file is.

Used by `cli.privacy`.
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
from vergence.experiment.packaged import Table
from vergence.experiment.registry import names
from vergence.experiment.schema import Experiment, check, merge
from vergence.results.text_tables import TextTable

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
    "early stopping": {"early_stopping": {"patience": 3}, "run": {"evaluate_every": 1}},
}
"""Columns of the matrix: name of a setting -> the tables that it adds to an experiment."""
# Other tables are dropped: the user's own protections would make every cell a refusal.
KEPT = ("task", "model", "federation", "local")
ROWS = (*AMONG_SETTINGS, *WITH_METHODS)
RUNS, SAME = "yes", "-"
GAP = re.compile(r"(?<!\{)\{\w[\w.]*\}")
"""A placeholder such as {module} in a rule's sentence; doubled braces are literal ones."""


def blocks(table: Mapping[str, Any]) -> list[TextTable]:
    """Return three tables: methods by settings, settings by settings, and the numbered rules."""
    base = {key: table[key] for key in KEPT if key in table}
    by_method = {
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
    seen = {number for line in (*by_method.values(), *pairs.values()) for number in line}
    return [
        TextTable("methods and settings", ["method", *SETTINGS], _lines(by_method)),
        TextTable("settings with each other, for fedavg", ["", *SETTINGS], _lines(pairs)),
        TextTable(
            "why not",
            ["number", "what", "does not go with", "seen above", "said"],
            [
                [
                    number,
                    clash.one,
                    clash.other,
                    "yes" if number in seen else "",
                    rule_sentence(clash),
                ]
                for number, clash in zip(map(str, range(1, len(ROWS) + 1)), ROWS, strict=True)
            ],
            keys=5,
        ),
    ]


def rule_sentence(clash: Incompatibility) -> str:
    """Return a rule's sentence, with dots in place of the words of a particular experiment."""
    # One rule takes its whole sentence from the method: dots alone would say nothing.
    text = GAP.sub("...", clash.why).replace("{{", "{").replace("}}", "}")
    return "what else of the training samples the method looks at" if text == "..." else text


def show(experiment: Experiment, console: Console, style: str) -> None:
    """Print the matrices of an experiment's task and network."""
    tables = blocks(experiment.table)
    if style == "markdown":
        # Not through the console, which would wrap long rows and break the table.
        sys.stdout.write("\n".join(block.markdown() for block in tables))
        return
    for block in tables:
        block.show(console)


def clashing(first: Table, second: Table) -> bool:
    """Return whether two settings set the same key of an experiment."""
    # Protections share the table `privacy`, and clash only where they set the same protection.
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
        # A refusal may be wrapped by the error that names the method in the file.
        reason = error if isinstance(error, InvalidCombination) else error.__cause__
        if isinstance(reason, InvalidCombination):
            return reason.clash
        raise
    return None


def _lines(cells: Mapping[str, Iterable[str]]) -> list[list[str]]:
    return [[name, *line] for name, line in cells.items()]
