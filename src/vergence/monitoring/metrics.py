"""Health and metrics of a run, for programs that watch machines (Prometheus, Zabbix, systemd).

Used by `monitoring.page`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from vergence.errors import StateError
from vergence.monitoring.status import Status

TURNS = ("counted", "lost", "late", "dropped", "quarantined", "left_out")
"""Outcomes of a client's turn, as fields of `PersonProgress`."""
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
Labels = tuple[tuple[str, str], ...]
"""Names and values that tell one number of a metric from the others."""


def health(status: Status) -> str:
    """Return "ok" if a process works on the run, or the run is finished.

    Raises:
        StateError: no process works on the run, although it is not finished.
    """
    if status.running is None and any(run.state != "finished" for run in status.runs):
        raise StateError(
            f"no process works on {status.folder}, and it is not finished: start `vergence deploy "
            "serve`, or `vergence resume`, again"
        )
    return "ok\n"


def as_metrics(status: Status) -> str:
    """Return the status in the text format of Prometheus, without any name of a person."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in _numbers(status):
        pairs = ",".join(f'{key}="{text.translate(ESCAPES)}"' for key, text in labels)
        text = f"{{{pairs}}}" if pairs else ""
        lines.setdefault(f"vergence_{name}", []).append(f"{text} {value:.15g}")
    return "".join(
        f"# TYPE {name} gauge\n" + "".join(f"{name}{line}\n" for line in values)
        for name, values in lines.items()
    )


def _numbers(status: Status) -> Iterator[tuple[str, Labels, float]]:
    """Yield name, labels and value of every number."""
    yield "running", (), float(status.running is not None)
    if status.deployed is not None:
        yield "clients_expected", (), len(status.deployed.expected)
        yield "clients_connected", (), len(status.deployed.connected)
    for run in status.runs:
        label: Labels = (("method", run.label),)
        written = run.written and datetime.fromisoformat(run.written).timestamp()
        values = {"rounds_done": run.done, "rounds": run.total, "round_seconds": run.pace}
        values["last_written_seconds"] = written
        yield from ((name, label, float(v)) for name, v in values.items() if v is not None)
        for way, value in (("up", run.bytes_up), ("down", run.bytes_down)):
            yield "bytes", (*label, ("way", way)), value
        for outcome in TURNS:
            turns = sum(getattr(person, outcome) for person in run.people)
            yield "turns", (*label, ("outcome", outcome)), turns
