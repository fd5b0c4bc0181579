"""Finding: a statement of a paper, and what comes out when it is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vergence.metrics.zero_shot import harmonic


@dataclass(frozen=True)
class Finding:
    """Statement or implication of a paper, the computed result, and whether they agree."""

    says: str
    computed: str
    ok: bool

    @property
    def verdict(self) -> str:
        """`ok` or `does not hold`."""
        return "ok" if self.ok else "does not hold"


def harmonic_means(name: str, table: Mapping[str, Mapping[str, tuple[float, ...]]]) -> Finding:
    """Check that every H of a table is the harmonic mean of its u and s."""
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
