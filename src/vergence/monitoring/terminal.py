"""Status of a run, printed in a terminal or as JSON.

Used by `cli.runs` and `monitoring.page`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vergence.monitoring.method_progress import MethodProgress
from vergence.monitoring.status import Status, reasons, silent_first, status
from vergence.results.layout import finite

# Number of people and reasons in a terminal, of which all should be seen at once.
FEW = 10
# Seconds between two looks, each of which reads the run's tables anew.
AGAIN = 2.0


def show(folder: Path, out: Console, lines: int = FEW) -> None:
    """Print the status of a run."""
    for part in parts(status(folder), lines):
        out.print(part, soft_wrap=isinstance(part, Text))


def watch(folder: Path, out: Console, lines: int = FEW) -> None:
    """Print the status of a run again and again, until the run ends or Ctrl-C."""
    with Live(console=out, auto_refresh=False) as live:
        while True:
            now = status(folder)
            live.update(Group(*parts(now, lines)), refresh=True)
            if now.running is None:
                return
            time.sleep(AGAIN)


def as_json(status: Status) -> str:
    """Return the whole status as JSON, with all people."""
    # JSON has no NaN: it becomes null.
    return json.dumps(finite({**asdict(status), "seconds_left": status.seconds_left}), indent=1)


def parts(status: Status, lines: int = FEW) -> list[RenderableType]:
    """Return the lines and tables of a status, to print."""
    state = "not running" if status.running is None else "running"
    number = f" (process {status.running})" if status.running else ""
    head = f"{status.folder}: {state}{number}{_when(status.now.written)}"
    if status.seconds_left is not None:
        head += f"; about {duration(status.seconds_left)} left, without evaluations"
    run, events = status.now, status.events[-lines:] if lines else ()
    poison = f"{run.label} is POISONED on purpose: {run.poison}"
    return [
        plain(head),
        _runs(status.runs),
        *map(plain, connected(status)),
        *([plain(poison)] if run.poison else []),
        *_missed(run, lines),
        *(plain(f"{str(e['time'])[:19].replace('T', ' ')}  {e['text']}") for e in events),
    ]


def _missed(run: MethodProgress, lines: int) -> list[RenderableType]:
    """Return a table of clients whose turns did not count, and the reasons; empty without any."""
    missed = [p for p in silent_first(run)[0] if p.missed][:lines]
    if not missed:
        return []
    heads = "client", "last heard", "rounds ago", "counted", "lost", "late", "dropped"
    title = f"{run.label}: whose turns did not count"
    table = Table(*heads, "quarantined", "left out", title=title)
    for p in missed:
        last = "never" if p.last_reply is None else f"round {p.last_reply}"
        cells = last, p.silence, f"{p.counted} of {p.asked}", p.lost, p.late, p.dropped
        table.add_row(plain(p.name), *map(str, cells), str(p.quarantined), str(p.left_out))
    some = [f"{many} × {reason}" for reason, many in reasons(run)[:lines]]
    return [table, plain("Turns that did not count: " + "; ".join(some))]


def _runs(runs: Sequence[MethodProgress]) -> Table:
    table = Table(
        "method",
        "state",
        "seed",
        "rounds",
        "replies",
        "metric",
        "since before",
        "up",
        "down",
        "s/round",
        "left",
    )
    for run in runs:
        last = run.traffic[-1] if run.traffic else None
        replies = f"{last.counted} of {last.asked}" if last else ""
        value, trend = headline(run)
        table.add_row(
            run.label,
            run.state,
            "" if run.seed is None else str(run.seed),
            f"{run.done} of {run.total}",
            replies,
            value,
            trend,
            amount(run.bytes_up),
            amount(run.bytes_down),
            "" if run.pace is None else f"{run.pace:.3g}",
            "" if run.seconds_left is None else duration(run.seconds_left),
        )
    return table


def headline(run: MethodProgress) -> tuple[str, str]:
    """Return the headline metric with its value, and its change since the last measurement."""
    now = run.headline
    if now is None:
        return "", ""
    # P0 is the usual point, what each person would use next, and needs no mention.
    at = "" if now.point == "P0" else f" ({now.point})"
    value = f"{now.metric}{at} {now.value:.3f}"
    if now.before is None:
        return value, ""
    word = {True: " better", False: " worse", None: ""}[now.better]
    return value, f"{now.value - now.before:+.3f}{word}"


def connected(status: Status) -> list[str]:
    """Return lines on a deployment's connected clients, and on why others are not connected."""
    side = status.deployed
    if side is None:
        return []
    here = f": {', '.join(side.connected)}" if side.connected else ""
    lines = [
        f"{side.address}: {len(side.connected)} of {len(side.expected)} clients are connected{here}"
    ]
    if side.insecure:
        lines.append("INSECURE: nothing is encrypted, and any node may connect")
    away = [c for c in side.expected if c not in side.connected]
    return lines + [
        f"not connected: '{c}'" + (f" ({side.reasons[c]})" if c in side.reasons else "")
        for c in (away if status.running is not None else ())
    ]


def plain(text: str) -> Text:
    """Return text without control characters and markup."""
    # Clients send some of these texts: an escape sequence could rewrite what the operator sees.
    return Text("".join(c if c.isprintable() else " " for c in text))


def unit_of(size: float) -> tuple[float, str]:
    """Return the largest unit below a number of bytes, and its name."""
    units = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
    return next(unit for unit in reversed(units) if size >= unit[0] or unit[0] == 1)


def amount(size: float) -> str:
    """Return bytes in three figures with their unit."""
    unit, name = unit_of(size)
    # From 999.5 on three figures would print as 1e+03.
    return f"{size / unit:.3g} {name}" if size < 999.5 * unit else f"{size / unit:.0f} {name}"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes, hours or days."""
    for most, unit, per in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            return f"{seconds / per:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _when(written: str | None) -> str:
    if written is None:
        return ""
    ago = (datetime.now().astimezone() - datetime.fromisoformat(written)).total_seconds()
    return f", last round written {duration(max(ago, 0))} ago"
