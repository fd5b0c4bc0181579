"""Status of a run, read from its folder alone: no process is asked, nothing locked or written.

Used by `cli.runs`, `monitoring.mlflow_export`, `monitoring.page`, `monitoring.terminal` and
`monitoring.unfinished`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from vergence.core.files import parse_json
from vergence.deployment import folders
from vergence.errors import StateError
from vergence.experiment.code_names import default_label
from vergence.monitoring.method_progress import MethodProgress, stand
from vergence.results.run_files import read_config
from vergence.system.file_locks import lock_owner

# Number of people and events shown to readers: in a longer table nobody finds those who matter.
# Programs get all people.
SHOWN = 50


@dataclass(frozen=True)
class Deployed:
    """State of a deployment's server: expected clients, connected ones, reasons for the others."""

    address: str
    expected: tuple[str, ...]
    connected: tuple[str, ...]
    reasons: Mapping[str, str]
    insecure: bool


@dataclass(frozen=True)
class Status:
    """State of all runs of a folder.

    Attributes:
        folder: its name.
        looked: time of this status, ISO 8601.
        running: the process that writes there; 0 if its number is unknown, None if there is none.
        runs: one per method, in the experiment's order.
        deployed: state of the server, for deployments only.
        events: last events of a deployment, oldest first: time, level, event, text and subject.
    """

    folder: str
    looked: str
    running: int | None
    runs: tuple[MethodProgress, ...]
    deployed: Deployed | None = None
    events: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def now(self) -> MethodProgress:
        """The run that is under way, else the last that began, else the first."""
        going = [run for run in self.runs if run.state in ("running", "interrupted")]
        begun = [run for run in self.runs if run.state != "waiting"]
        return (going or begun[-1:] or self.runs)[0]

    @property
    def seconds_left(self) -> float | None:
        """Seconds left for all runs; those that have not begun take the mean pace of the others."""
        paces = [run.pace for run in self.runs if run.pace is not None]
        if not paces or all(run.state == "finished" for run in self.runs):
            return None
        guess = sum(paces) / len(paces)
        return sum(
            run.seconds_left if run.seconds_left is not None else guess * run.total
            for run in self.runs
            if run.state != "finished"
        )


def status(folder: Path) -> Status:
    """Read the status of a run that is going on, has stopped, or is finished.

    Args:
        folder: a run directory, what `vergence run --out` wrote, or a deployment's DIR or
            DIR/server.

    Raises:
        StateError: it is none of these, or a table in it is damaged.
    """
    home = server_of(folder)
    out = folder if home is None else home / "run"
    table = _experiment(out / "config.toml" if home is None else home / folders.EXPERIMENT, folder)
    running = lock_owner((home or out) / ".lock")
    splits = table.get("run", {}).get("split_seeds", ())
    # A merged run of one method lies next to the folders of its splits.
    above = out if "methods" in table else out.parent
    places = {
        (label, f"{label}, split {seed}"): above / f"split{seed}" / label
        for seed in splits
        for label in labels(table)
    } or {(label, label): out / label if "methods" in table else out for label in labels(table)}
    runs, free = [], running is not None
    # Methods run one after the other: a process writes to the first that is not finished.
    for (label, name), path in places.items():
        runs.append(stand(path, name, {**table, "method": labels(table)[label]}, free))
        free = free and runs[-1].state == "finished"
    events = list(_records(home)) if home is not None else []
    return Status(
        str(folder),
        datetime.now().astimezone().isoformat(timespec="seconds"),
        running,
        tuple(runs),
        None if home is None else _deployed(home, events, running),
        tuple(events[-SHOWN:]),
    )


def server_of(folder: Path) -> Path | None:
    """Return the server's folder of a deployment, None if the folder is of no deployment.

    Raises:
        StateError: the folder is a client's.
    """
    if (folder / "server" / folders.SETTINGS).is_file():
        return folder / "server"
    if not (folder / folders.SETTINGS).is_file():
        return None
    if not (folder / "keys").is_dir():
        raise StateError(
            f"{folder} is a client's folder, and holds no run: `vergence deploy "
            "status` tells of it, `vergence status` of the server's"
        )
    return folder


def _experiment(path: Path, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise StateError(f"there is no folder {folder}")
    if not path.exists():
        raise StateError(
            f"{folder} holds no run (no {path.name}): give what `vergence run --out` wrote, a run "
            "directory below it, or a deployment's folder"
        )
    table = read_config(path)
    if "method" not in table and "methods" not in table:
        raise StateError(f"{path} names no method, so {folder} holds no run")
    return table


def labels(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return label -> entry of an experiment's methods."""
    entries = table["methods"] if "methods" in table else [table["method"]]
    whole = [{"name": e} if isinstance(e, str) else e for e in entries]
    return {e.get("label", default_label(e["name"])): e for e in whole}


def _records(home: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a deployment; a line that is no record is left out."""
    path = home / folders.RECORDS
    for line in (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    ):
        # The last line may be half written.
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"time", "event", "text"} <= record.keys():
            yield {"level": "info", **record}


def _deployed(home: Path, events: list[Mapping[str, Any]], running: int | None) -> Deployed:
    side = folders.settings(home, folders.ServerSide)
    there: dict[str, bool] = {}
    reasons: dict[str, str] = {}
    insecure = False
    for event in events:
        client, kind = str(event.get("client", "")), event["event"]
        # A server that starts anew knows nobody: earlier connections are gone.
        if kind == "serving":
            there, insecure = {}, False
        elif kind == "insecure":
            insecure = True
        elif kind in ("here", "gone", "revoked"):
            there[client] = kind == "here"
        # After a revocation the connection is lost too: the revocation is the reason to show.
        revoked = "revoked" in reasons.get(client, "") and kind != "here"
        if (
            kind in ("here", "gone", "lost", "refused", "revoked")
            and client in side.clients
            and not revoked
        ):
            reasons[client] = "" if kind == "here" else str(event["text"])
    # A server that was killed wrote no "gone": without a process nobody is connected.
    connected = [c for c in side.clients if there.get(c)] if running is not None else []
    left = {c: r for c, r in reasons.items() if r and c not in connected}
    return Deployed(side.address, side.clients, tuple(connected), left, insecure)


def silent_first(run: MethodProgress) -> tuple[list[Any], int]:
    """Return the people to show, longest silence first, and how many are left out."""
    people = sorted(run.people, key=lambda p: (-p.silence, -p.missed, p.name))
    return people[:SHOWN], max(len(people) - SHOWN, 0)


def reasons(run: MethodProgress) -> list[tuple[str, int]]:
    """Return the reasons why turns did not count with their numbers, most frequent first."""
    return Counter(t.reason for t in run.troubles).most_common()
