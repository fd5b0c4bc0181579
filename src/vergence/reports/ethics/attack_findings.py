"""Attack findings of `vergence privacy audit`, as facts on a page for an ethics board.

Used by `reports.ethics.facts`.
"""

from __future__ import annotations

from typing import Any

from vergence.audit.findings import NOT_TRIED, PICTURES, RATES
from vergence.audit.images import ANOTHER, AS_IT_RAN, MEAN
from vergence.reports.ethics.wording import nearness
from vergence.results.read import Run, text_rows


def attacks(run: Run | None) -> list[dict[str, Any]]:
    """Return how near attackers came to the pictures; empty if none were reconstructed."""
    rows = {(row["what the server has"], row["seen"]): row for row in _rows(run, PICTURES)}
    if run is None or not rows:
        return []
    # The better of the two baselines: an attack counts only if it beats both.
    chance = min(float(row["mse"]) for (name, _), row in rows.items() if name in (MEAN, ANOTHER))
    return [
        {
            "what": "rebuilding pictures"
            if name.endswith(AS_IT_RAN)
            else f"the same, had there been {name}",
            "as_it_ran": name.endswith(AS_IT_RAN),
            "seen": seen,
            "success": float(row["mse"]),
            "similarity": float(row["ssim"]),
            "chance": chance,
            "better": float(row["mse"]) < chance,
            "so": nearness(chance / float(row["mse"])),
            "error_then": float(row[run.headline]) if row.get(run.headline) else None,
        }
        for (name, seen), row in rows.items()
        if name not in (MEAN, ANOTHER)
    ]


def rates(run: Run | None) -> list[dict[str, Any]]:
    """Return the rates at which attackers were right about people, with those of chance."""
    return [
        {
            "what": row["finds"],
            "as_it_ran": row["as_it_ran"] == "True",
            "success": row["right"],
            "chance": row["chance"],
            "better": row["better"] == "True",
            "value": float(row["value"]),
            "low": float(row["low"]) if row["low"] else None,
            "high": float(row["high"]) if row["high"] else None,
        }
        for row in _rows(run, RATES)
    ]


def not_tried(run: Run | None) -> list[dict[str, str]]:
    """Return the attacks that were not tried, and the reasons."""
    return [{"what": row["attack"], "why": row["why"]} for row in _rows(run, NOT_TRIED)]


def rebuilt(tried: list[dict[str, Any]]) -> float | None:
    """Return the ratio of chance's error to the best attack's on what was sent, None if untried."""
    plain = [a["chance"] / a["success"] for a in tried if a["as_it_ran"]]
    return max(plain, default=None)


def _rows(run: Run | None, name: str) -> list[dict[str, str]]:
    if run is None or not (path := run.folder / "audit" / name).exists():
        return []
    head, *rows = text_rows(path) or [[]]
    return [dict(zip(head, row, strict=False)) for row in rows]
