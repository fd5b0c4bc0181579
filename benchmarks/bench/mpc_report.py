"""What `benchmarks.bench mpc` shows: progress, the columns of the thesis's Table 4.1, files."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bench.mpc import Installed, Subject, find, fresh, measure
from benchmarks.bench.report import progress
from vergence.errors import ConfigError, PartialRun, VergenceError

NOTES = (
    "s: median over the batches, and the best of them, from shared inputs to shared answers, "
    "offline material included; all parties on this machine.",
    "MB sent: by all parties. messages: by the one that sent most, no fewer than rounds; of "
    "malicious protocols, its rounds.",
    "error: largest difference from the network in float64, in radians.",
    "Where a model says semi-honest, a party that lies is not noticed: "
    "docs/results/private_inference.md.",
)


def run(
    names: Sequence[str],
    out: Console,
    installed: Installed,
    file: Path,
    batches: int | None = None,
    given: Subject | None = None,
) -> None:
    """Measure cases (none named: all of SPU's), print the table, write FILE and the JSON beside it.

    Args:
        names: see `CASES`.
        out: where the table goes.
        installed: what computes.
        file: a CSV; the JSON of the same name also has every batch's seconds, and the machine.
        batches: instead of a case's own number.
        given: network and images; by default the thesis's Model 2, not trained.

    Raises:
        ConfigError: an unknown case, nothing that computes it, or psutil missing.
        PartialRun: it ended early, or could not be written; what was measured is kept.
    """
    if find_spec("psutil") is None:
        raise ConfigError("bench: needs psutil; pip install psutil")
    if batches is not None and batches < 1:
        raise ConfigError(f"bench mpc: --batches must be 1 or more; got {batches}")
    if file.suffix != ".csv":
        raise ConfigError(f"bench mpc: --out is a .csv file; got {file}")
    from benchmarks.bench.machine import describe

    chosen = find(names)
    for case in chosen.values():
        installed.check(case)
    most = max(case.images * (batches or case.batches) for case in chosen.values())
    given = given or fresh(most)
    found: dict[str, dict[str, Any]] = {}
    failure: VergenceError | None = None
    try:
        with progress() as say:
            for name, measured in measure(chosen, given, installed, say, batches):
                found[name] = measured.row()
    except VergenceError as error:
        if not found:
            raise
        failure = error
    out.print(table(found))
    out.print(f"network: {given.name}; {len(given.x)} images", soft_wrap=True, highlight=False)
    for line in NOTES:
        out.print(line, soft_wrap=True, highlight=False)
    write(file, found, {"network": given.name, "images": len(given.x), "machine": describe()})
    out.print(f"written: {file}, {file.with_suffix('.json')}", soft_wrap=True, highlight=False)
    if failure is not None:
        raise PartialRun(f"{len(found)} of {len(chosen)} cases measured: {failure}")


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table."""
    drawn = Table(
        "protocol",
        "parties",
        "images",
        "network",
        "weights",
        "s, online + offline",
        "best",
        "CPU s / image",
        "products / image",
        "MB sent",
        "messages",
        "error",
        "security model",
    )
    for row in found.values():
        drawn.add_row(*cells(row))
    return drawn


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return a row as text."""
    images = str(row["images"]) + (f" x {row['runs']}" if row["runs"] > 1 else "")
    weights, best = "public" if row["public"] else "secret", min(row["seconds"])
    return [
        row["protocol"],
        str(row["parties"]),
        images,
        row["what"],
        weights,
        f"{row['s']:.2f}",
        f"{best:.2f}",
        f"{row['cpu']:.2f}",
        f"{row['products']:,}",
        f"{sum(row['sent']) / 1e6:.1f}",
        f"{row['messages']:.0f}",
        f"{row['error']:.1e}",
        row["security"],
    ]


def write(file: Path, found: Mapping[str, Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """Write the rows as CSV, and with what they were measured on as JSON.

    Raises:
        PartialRun: they cannot be written; the table is printed already.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, ["case", *next(iter(found.values()))])
            writer.writeheader()
            for name, row in found.items():
                flat = {
                    k: " ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in row.items()
                }
                writer.writerow({"case": name, **flat})
        told = json.dumps({"rows": found, **about}, indent=1) + "\n"
        file.with_suffix(".json").write_text(told)
    except OSError as error:
        raise PartialRun(f"bench mpc: cannot write {file}: {error.strerror}") from None
