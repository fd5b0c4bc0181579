"""Arithmetic of the printed tables of chapters 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping

from vergence.data.zero_shot.splits import COUNTS
from vergence.metrics.zero_shot import harmonic
from vergence.reproduce.checks.finding import Finding
from vergence.reproduce.printed import numbers, paper

PRINTED = {
    id_: table.printed for name in ("pezsl", "sgzsl") for id_, table in paper(name).tables.items()
}


def check_pezsl() -> list[Finding]:
    """Return the findings about chapter 5's tables."""
    printed = numbers("pezsl")["images"]
    lists = {name: sum(counts[4:7]) for name, counts in COUNTS.items()}
    off = [f"{name}: {lists[name]:,}" for name, told in printed.items() if told != lists[name]]
    told = ", ".join(f"{name} {count:,}" for name, count in printed.items())
    return [
        Finding(
            f"Table 5.1: images are {told}", f"lists sum to another for {', '.join(off)}", not off
        ),
        _means("Table 5.2", PRINTED["pezsl/table5.2"]),
        _means("Table 5.3", PRINTED["pezsl/table5.3"]),
    ]


def check_sgzsl() -> list[Finding]:
    """Return the findings about chapter 6's tables."""
    tables = {
        "Table 6.3": PRINTED["sgzsl/table6.3"],
        "Table 6.4": PRINTED["sgzsl/table6.4"],
        "Table 6.6": PRINTED["sgzsl/table6.6"],
    }
    return [
        Finding(
            "Table 6.2: SG-ZSL, with a private teacher at will, is another method than PE-ZSL",
            "its rows are those of Table 5.2, number for number",
            False,
        ),
        *(_means(name, table) for name, table in tables.items()),
    ]


def _means(name: str, table: Mapping[str, Mapping[str, tuple[float, ...]]]) -> Finding:
    off, count = [], 0
    for data, rows in table.items():
        for label, (h, _, u, s) in rows.items():
            count += 1
            if abs(h - round(harmonic(u, s), 1)) > 1e-9:
                off.append(f"{data} {label}: {h}, computed {harmonic(u, s):.2f}")
    return Finding(
        f"{name}: every H is 2us / (u + s)",
        f"{count - len(off)} of {count} rows" + "".join(f"; {line}" for line in off),
        not off,
    )
