"""What `python -m benchmarks.bench` shows: progress on stderr, a table, and a JSON file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from vergence.errors import ConfigError, PartialRun

if TYPE_CHECKING:
    from benchmarks.bench.study import Say

QUIET_S = 2.0
"""Where stderr is no terminal, a line at most this often."""


def run(
    names: Sequence[str],
    out: Console,
    file: Path | None = None,
    rounds: int | None = None,
    peers: Sequence[str] = (),
    precisions: Sequence[str] = (),
) -> None:
    """Measure workloads (none named: all), print the table, write the file.

    `peers` are NAME=PATH, the Python a peer is run with; `precisions` are measured beside fp32.

    Raises:
        ConfigError: an unknown workload, peer or precision, psutil missing.
        PartialRun: the file cannot be written; the table is printed all the same.
    """
    if find_spec("psutil") is None:
        raise ConfigError("bench: needs psutil; pip install psutil")
    if odd := set(precisions) - {"fp32", "bf16", "half"}:
        raise ConfigError(f"bench: --precision takes fp32, bf16 or half; got '{min(odd)}'")
    from benchmarks.bench.study import bench

    with progress() as say:
        found = bench(names, say, rounds, pythons(peers), precisions=precisions)
    out.print(table(found))
    for line in notes(found):
        out.print(line, soft_wrap=True, highlight=False, markup=False)
    if file is not None:
        try:
            file.write_text(json.dumps(found, indent=1) + "\n")
        except OSError as error:
            raise PartialRun(f"bench: cannot write {file}: {error.strerror}") from None


def pythons(given: Sequence[str]) -> dict[str, str]:
    """Read NAME=PATH.

    Raises:
        ConfigError: no name or no path.
    """
    split = [text.partition("=") for text in given]
    for text, (name, _, path) in zip(given, split, strict=True):
        if not name or not path:
            raise ConfigError(f"bench: --peer-python takes NAME=PATH; got '{text}'")
    return {name: path for name, _, path in split}


@contextmanager
def progress() -> Iterator[Say]:
    """Show what is measured: a bar on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = [0.0]

        def line(what: str, share: float) -> None:
            if time.monotonic() - last[0] >= QUIET_S:
                last[0] = time.monotonic()
                console.print(f"{share:4.0%} {what}", soft_wrap=True, highlight=False)

        yield line
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, completed=share, description=what)


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table: a workload's floor, our engine, whatever ran beside it, the peers."""
    drawn = Table(
        "workload",
        "who",
        "wall / floor",
        "CPU / floor",
        "wall s",
        "CPU s",
        "peak MB",
        "kB up",
        "kB down",
        "same work",
    )
    for name, result in measured(found).items():
        floor = {"wall_s": result["floor_wall_s"], "cpu_s": result["floor_cpu_s"]}
        drawn.add_row(name, "floor", "1", "1", *cells(floor)[2:])
        drawn.add_row("", "vergence", *cells(result), "" if result["same_steps"] else "other steps")
        also = {**result.get("beside", {}), **result.get("precisions", {})}
        for who, other in also.items():
            drawn.add_row("", who, *cells(other))
        for peer, other in result["peers"].items():
            if "wall_s" in other:
                drawn.add_row("", peer, *cells(other), verdict(other))
        drawn.add_section()
    return drawn


def measured(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the workloads whose data was there."""
    return {name: result for name, result in found.items() if "missing" not in result}


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the numbers of a row as text; what was not measured stays empty."""
    forms = {
        "wall_over_floor": "{:.3f}",
        "cpu_over_floor": "{:.3f}",
        "wall_s": "{:.3f}",
        "cpu_s": "{:.3f}",
        "peak_mb": "{:.0f}",
    }
    told = [form.format(row[key]) if key in row else "" for key, form in forms.items()]
    sent = [f"{row[key] / 1e3:.1f}" if key in row else "" for key in ("bytes_up", "bytes_down")]
    return [*told, *sent]


def verdict(peer: Mapping[str, Any]) -> str:
    """Say whether a peer took as many steps and ended at the same loss."""
    steps = "same steps" if peer["same_steps"] else f"{peer['steps']} steps"
    near = "" if peer["agrees"] else " (apart)"
    return f"{steps}, loss {peer['loss']:.5f}{near}"


def notes(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what the table has no place for."""
    from benchmarks.bench.study import AGREE

    told = [result["missing"] for result in found.values() if "missing" in result]
    for name, result in measured(found).items():
        told.append(
            f"{name}: {result['rounds']} rounds, loss {result['start_loss']:.5f} -> "
            f"{result['loss']:.5f} (a peer agrees within {AGREE:.0%} of the difference)"
        )
        if "wall_over_fedavg" in result:
            told.append(
                f"{name}: FedCPF / FedAvg, both scoring: wall {result['wall_over_fedavg']:.3f}, "
                f"CPU {result['cpu_over_fedavg']:.3f}; scoring costs "
                f"{result['scoring_wall_s']:.3f} s wall, {result['scoring_cpu_s']:.3f} s CPU"
            )
        for peer, other in result["peers"].items():
            told += [f"{name}: {peer}: {other[k]}" for k in ("missing", "error") if k in other]
    return told
