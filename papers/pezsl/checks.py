"""Arithmetic of the printed tables of chapter 5."""

from __future__ import annotations

from vergence.data.zero_shot.splits import COUNTS
from vergence_papers.finding import Finding, harmonic_means
from vergence_papers.printed import numbers, paper

TABLES = paper("pezsl").tables


def findings() -> list[Finding]:
    """Return the findings about chapter 5's tables."""
    printed = numbers("pezsl")["images"]
    lists = {name: sum(counts[4:7]) for name, counts in COUNTS.items()}
    off = [f"{name}: {lists[name]:,}" for name, told in printed.items() if told != lists[name]]
    told = ", ".join(f"{name} {count:,}" for name, count in printed.items())
    return [
        Finding(
            f"Table 5.1: images are {told}", f"lists sum to another for {', '.join(off)}", not off
        ),
        harmonic_means("Table 5.2", TABLES["pezsl/table5.2"].printed),
        harmonic_means("Table 5.3", TABLES["pezsl/table5.3"].printed),
    ]
