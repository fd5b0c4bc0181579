"""Arithmetic of the printed tables of chapters 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping

from vergence.app.papers import pezsl_tables, sgzsl_tables
from vergence.app.papers.checks import Finding
from vergence.data.xlsa17_splits import COUNTS
from vergence.metrics.zero_shot import harmonic

PRINTED_IMAGES = {"AWA1": 30_475, "AWA2": 37_322, "APY": 15_539}


def check_pezsl() -> list[Finding]:
    """Return the findings about chapter 5's tables."""
    lists = {name: sum(counts[4:7]) for name, counts in COUNTS.items()}
    off = [f"{name}: {lists[name]:,}" for name, told in PRINTED_IMAGES.items()
           if told != lists[name]]  # fmt: skip
    told = ", ".join(f"{name} {count:,}" for name, count in PRINTED_IMAGES.items())
    return [
        Finding(f"Table 5.1: images are {told}", f"lists sum to another for {', '.join(off)}",
                not off),
        _means("Table 5.2", pezsl_tables.TABLE52),
        _means("Table 5.3", pezsl_tables.TABLE53),
    ]  # fmt: skip


def check_sgzsl() -> list[Finding]:
    """Return the findings about chapter 6's tables."""
    tables = {"Table 6.3": sgzsl_tables.WHITE, "Table 6.4": sgzsl_tables.BLACK,
              "Table 6.6": sgzsl_tables.TABLE66}  # fmt: skip
    return [
        Finding("Table 6.2: SG-ZSL, with a private teacher at will, is another method than PE-ZSL",
                "its rows are those of Table 5.2, number for number", False),
        *(_means(name, table) for name, table in tables.items()),
    ]  # fmt: skip


def _means(name: str, table: Mapping[str, Mapping[str, tuple[float, ...]]]) -> Finding:
    off, count = [], 0
    for data, rows in table.items():
        for label, (h, _, u, s) in rows.items():
            count += 1
            if abs(h - round(harmonic(u, s), 1)) > 1e-9:
                off.append(f"{data} {label}: {h}, computed {harmonic(u, s):.2f}")
    return Finding(f"{name}: every H is 2us / (u + s)",
                   f"{count - len(off)} of {count} rows" + "".join(f"; {line}" for line in off),
                   not off)  # fmt: skip
