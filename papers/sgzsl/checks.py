"""Arithmetic of the printed tables of chapter 6."""

from __future__ import annotations

from vergence_papers.finding import Finding, harmonic_means
from vergence_papers.printed import paper


def findings() -> list[Finding]:
    """Return the findings about chapter 6's tables."""
    tables = paper("sgzsl").tables
    return [
        Finding(
            "Table 6.2: SG-ZSL, with a private teacher at will, is another method than PE-ZSL",
            "its rows are those of Table 5.2, number for number",
            False,
        ),
        *(
            harmonic_means(f"Table {number}", tables[f"sgzsl/table{number}"].printed)
            for number in ("6.3", "6.4", "6.6")
        ),
    ]
