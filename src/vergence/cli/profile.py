"""The time profile of a command, printed at its end and written to the folder of its run.

Used by `cli.runs`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from vergence import profiling
from vergence.profiling import PHASES, WORK, Row


@contextmanager
def profiled(wanted: bool, folder: Path | None = None) -> Iterator[None]:
    """Measure the time spent in this context, and print at its end which phases it went to.

    Args:
        wanted: whether to measure at all.
        folder: run directory in which the table is written as profile.csv.
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
        # The file is in no fingerprint and no SHA256SUMS: times differ between two equal runs.
        from vergence.results.write import write_csv

        cells = [(*key, f"{wall:.3f}", f"{cpu:.3f}") for *key, wall, cpu in rows]
        write_csv(folder / profiling.FILE, profiling.HEAD, cells)
    heads, lines = _by_method(rows)
    for heading, head, body, notes in (
        ("Where the seconds went", ("phase", "wall", "share", "CPU"), *_by_phase(rows)),
        ("Wall seconds by method", heads, lines, ()),
    ):
        # A table of one line repeats the other: with a single method there is nothing to compare.
        if len(body) > 1:
            TextTable(heading, head, body, notes=notes).show(out)


def _by_phase(rows: Sequence[Row]) -> tuple[list[list[str]], list[str]]:
    """Return one line per phase, then their sum; and the sentence below the table."""
    wall, cpu = _sums(rows, 2), _sums(rows, 3)
    whole = sum(wall.values())
    lines = [
        [phase, f"{wall[phase]:.2f}", f"{wall[phase] / whole:.0%}", f"{cpu[phase]:.2f}"]
        for phase in PHASES
        if phase in wall
    ]
    lines.append(["all", f"{whole:.2f}", "100%", f"{sum(cpu.values()):.2f}"])
    work = sum(wall.get(phase, 0.0) for phase in WORK)
    rest = f"{1 - work / whole:.1%} of the wall time is neither {' nor '.join(WORK)}."
    return lines, [rest]


def _by_method(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and lines of a table with a row per method and a column per phase."""
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
