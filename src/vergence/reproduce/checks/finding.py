"""Finding: a statement of a paper, and what comes out when it is computed."""

from __future__ import annotations

from dataclasses import dataclass


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
