"""The profile of a command: printed at its end, kept in the folder of its run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from vergence import profiling
from vergence.profiling import PHASES, WORK, Row


@contextmanager
def profiled(wanted: bool, folder: Path | None = None) -> Iterator[None]:
    """Measure what is done in this context, if that is wanted, and say at the end where it went.

    Args:
        wanted: whether to measure at all.
        folder: of a run, which keeps the table as profile.csv; no fingerprint or sum counts it.
    """
    if not wanted:
        yield
        return
    profile = profiling.start()
    try:
        yield
    finally:
        profiling.stop()
    from vergence.console import out
    from vergence.results.text_tables import TextTable

    rows = profile.rows()
    if folder is not None:
        from vergence.results.write import write_csv

        told = [(*key, f"{wall:.3f}", f"{cpu:.3f}") for *key, wall, cpu in rows]
        write_csv(folder / profiling.FILE, profiling.HEAD, told)
    heads, lines = _by_method(rows)
    for heading, head, body, notes in (
        ("Where the seconds went", ("phase", "wall", "share", "CPU"), *_by_phase(rows)),
        ("Wall seconds by method", heads, lines, ()),
    ):
        if len(body) > 1:
            TextTable(heading, head, body, notes=notes).show(out)


def _by_phase(rows: Sequence[Row]) -> tuple[list[list[str]], list[str]]:
    """Lines of the phases, the sum last, and the sentence below them."""
    wall, cpu = _sums(rows, 2), _sums(rows, 3)
    whole = sum(wall.values())
    lines = [
        [phase, f"{wall[phase]:.2f}", f"{wall[phase] / whole:.0%}", f"{cpu[phase]:.2f}"]
        for phase in PHASES
        if phase in wall
    ]
    lines.append(["all", f"{whole:.2f}", "100%", f"{sum(cpu.values()):.2f}"])
    work = sum(wall.get(phase, 0.0) for phase in WORK)
    beside = f"{1 - work / whole:.1%} of the wall time is neither {' nor '.join(WORK)}."
    return lines, [beside]


def _by_method(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of the methods, whose phases are columns."""
    wall = {(method, phase): spent for method, phase, spent, _ in rows}
    phases = [phase for phase in PHASES if any(m and p == phase for m, p in wall)]
    methods = dict.fromkeys(method for method, _ in wall if method)
    lines = [[m, *(f"{wall.get((m, p), 0.0):.2f}" for p in phases)] for m in methods]
    return ["method", *phases], lines


def _sums(rows: Sequence[Row], column: int) -> Mapping[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row[1]] += float(row[column])
    return sums
