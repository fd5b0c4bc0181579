"""Progress of one method's run: rounds, curves, cost, people, and turns that did not count.

Used by `monitoring.mlflow_export`, `monitoring.page`, `monitoring.status` and
`monitoring.terminal`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from vergence.core.naming import by_key
from vergence.errors import StateError
from vergence.experiment.code_names import default_label
from vergence.results.read import Frame, table
from vergence.results.run_files import read_json

State = Literal["waiting", "running", "interrupted", "finished"]
Curve = list[tuple[int, int, float]]
"""Points of a curve: seed, round, value."""
# The pace is the median over this many rounds: one slow round, such as an evaluation's, must not
# change the time left.
WINDOW = 10
MISSED = ("lost", "late", "dropped", "quarantined", "left out")
"""Kinds of turns that did not count, as statuses begin."""


class Headline(NamedTuple):
    """The headline metric: where it was last measured, its value, the one before, and the trend."""

    metric: str
    point: str
    value: float
    before: float | None
    better: bool | None


class Trouble(NamedTuple):
    """A client's turn that did not count, with the reason: lost, late, dropped, quarantined ..."""

    seed: int
    round: int
    client: str
    reason: str


class MethodTraffic(NamedTuple):
    """Bytes of all clients in a round, and numbers of replies requested and counted."""

    seed: int
    round: int
    up: float
    down: float
    asked: int
    counted: int


@dataclass(frozen=True)
class PersonProgress:
    """One client's turns in all seeds.

    Attributes:
        name: of the client.
        asked, counted, lost, late, dropped, quarantined, left_out: numbers of turns.
        last_reply: the last round of the last seed in which it replied.
        silence: number of rounds since then.
        bytes_up, bytes_down: over all turns.
        examples: number of samples in its last turn.
        share: share of the parameters that are personal.
        reason: status of its last turn that did not count.
    """

    name: str
    asked: int = 0
    counted: int = 0
    lost: int = 0
    late: int = 0
    dropped: int = 0
    quarantined: int = 0
    left_out: int = 0
    last_reply: int | None = None
    silence: int = 0
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    examples: float = 0.0
    share: float | None = None
    reason: str = ""

    @property
    def missed(self) -> int:
        """Turns that did not count."""
        return self.asked - self.counted


@dataclass(frozen=True)
class MethodProgress:
    """Progress of one run.

    Attributes:
        seed: the seed under way, or the last one.
        round: rounds done with this seed; `done`: with all seeds.
        pace: seconds a round, over the last rounds; `seconds_left` assumes the same pace.
        poison: attack by which the run is poisoned on purpose, "" if it is not.
    """

    label: str
    method: str
    state: State
    seed: int | None
    seeds: tuple[int, ...]
    round: int
    rounds: int
    done: int
    headline: Headline | None = None
    pace: float | None = None
    seconds_left: float | None = None
    written: str | None = None
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    curves: Mapping[str, Curve] = field(default_factory=dict, repr=False)
    traffic: tuple[MethodTraffic, ...] = field(default=(), repr=False)
    people: tuple[PersonProgress, ...] = field(default=(), repr=False)
    troubles: tuple[Trouble, ...] = field(default=(), repr=False)
    poison: str = ""

    @property
    def total(self) -> int:
        """Rounds of all seeds."""
        return self.rounds * len(self.seeds)


def stand(path: Path, label: str, experiment: Mapping[str, Any], writing: bool) -> MethodProgress:
    """Read the progress of a run from its directory.

    Args:
        path: the directory, which may not exist yet.
        label: label of the run.
        experiment: its config.
        writing: whether a process is running it, if it is not finished.

    Raises:
        StateError: a table is damaged.
    """
    method, plan = default_label(experiment["method"]["name"]), experiment.get("run", {})
    seeds, rounds = tuple(plan.get("seeds", (0,))), int(plan.get("rounds", 20))
    tables = path / "rounds.csv", path / "turns.csv"
    finished = (path / "results.json").exists()
    if finished and not tables[0].exists():
        raise StateError(f"{tables[0]} is missing; the run is incomplete, run it again")
    curves, took = _read_rounds(tables[0], rounds)
    if not (took or finished):
        state = "running" if writing else "interrupted" if tables[0].exists() else "waiting"
        return MethodProgress(label, method, state, None, seeds, 0, rounds, 0)
    state = "finished" if finished else "running" if writing else "interrupted"
    # A finished run has done all rounds, also those that it did not measure.
    at = _ends(path, seeds, rounds) if finished else _reached(took)
    seed = next(s for s in reversed(seeds) if s in at)
    here = at[seed]
    traffic, people, troubles = _read_turns(tables[1], here)
    best = read_json(path / "results.json").get("best_round", {}) if finished else {}
    last = [took[key] for key in sorted(took) if key[0] == seed and key[1]][-WINDOW:]
    pace = median(last) if last else None
    done = sum(at.values())
    left = None if pace is None or finished else pace * (rounds * len(seeds) - done)
    written = datetime.fromtimestamp(tables[0].stat().st_mtime).astimezone()
    return MethodProgress(
        label,
        method,
        state,
        seed,
        seeds,
        here,
        rounds,
        done,
        _headline(path, experiment, curves, seed, best.get(str(seed), here)),
        pace,
        left,
        written.isoformat(timespec="seconds"),
        sum(t.up for t in traffic),
        sum(t.down for t in traffic),
        curves,
        tuple(traffic),
        tuple(people),
        tuple(troubles),
        _poison(experiment),
    )


def _poison(table: Mapping[str, Any]) -> str:
    poison = table.get("poison", {})
    return poison.get("attack", "sign_flip") if poison.get("share") else ""


def _ends(path: Path, seeds: Sequence[int], rounds: int) -> dict[int, int]:
    """Return the number of rounds of each seed of a finished run: the planned one, or fewer."""
    stopped = read_json(path / "results.json").get("stopped", {})
    return {seed: stopped.get(str(seed), {}).get("round", rounds) for seed in seeds}


def _reached(took: Mapping[tuple[int, int], float]) -> dict[int, int]:
    rounds: dict[int, int] = {}
    for seed, at in took:
        rounds[seed] = max(rounds.get(seed, 0), at)
    return rounds


def _read_rounds(path: Path, rounds: int) -> tuple[dict[str, Curve], dict[tuple[int, int], float]]:
    """Return every curve by "point/metric", and the seconds of every seed's rounds."""
    # `growing`: the run may be writing the last line at this moment.
    measured = table(path, growing=True)
    # Evaluations after the last round, such as of unseen clients, are no point of a curve.
    measured = measured[measured["round"] <= rounds]
    curves = {
        f"{point}/{metric}": list(zip(own.seed, own["round"], own.value, strict=True))
        for (point, metric), own in measured.groupby(["evaluation", "metric"], sort=False)
    }
    first = measured.drop_duplicates(["seed", "round"])
    took = zip(zip(first.seed, first["round"], strict=True), first.seconds, strict=True)
    return curves, dict(took)


def _read_turns(
    path: Path, done: int
) -> tuple[list[MethodTraffic], list[PersonProgress], list[Trouble]]:
    """Return the traffic of every round, the clients, and the turns that did not count.

    `done` is the number of rounds that are done with the last seed.
    """
    log = table(path, growing=True)
    # A late upload is logged in a line of its own, and is no turn.
    asked = log[log.verb != "upload"]
    # Reversed, so that the first failure of several in a round is the one that stays.
    failed = asked[asked.status != "ok"].iloc[::-1]
    turns = dict.fromkeys(_keys(asked), "ok") | dict(zip(_keys(failed), failed.status, strict=True))
    troubles = [Trouble(*key, status) for key, status in turns.items() if status != "ok"]
    by_client = by_key((key[2], (*key[:2], status)) for key, status in turns.items())
    # "Last heard" is a round of the last seed: a new seed starts without replies.
    last = next((seed for seed, *_ in reversed(turns)), None)
    people = [
        _person(client, own, by_client.get(client, []), last, done)
        for client, own in log.groupby("client", sort=False)
    ]
    replies = Counter((seed, at) for seed, at, _ in turns)
    counted = Counter((seed, at) for (seed, at, _), status in turns.items() if status == "ok")
    sizes = log.groupby(["seed", "round"], sort=False, as_index=False)[["bytes_up", "bytes_down"]]
    traffic = [
        MethodTraffic(seed, at, up, down, replies[seed, at], counted[seed, at])
        for seed, at, up, down in sizes.sum().itertuples(index=False)
    ]
    return traffic, people, troubles


def _keys(turns: Frame) -> list[tuple[int, int, str]]:
    return list(zip(turns.seed, turns["round"], turns.client, strict=True))


def _last(column: Any) -> float | None:
    return float(column.iloc[-1]) if len(column) else None


def _person(
    client: str, log: Frame, turns: list[tuple[int, int, str]], last: int | None, done: int
) -> PersonProgress:
    """Return a client's progress from its lines of the log, and its turns (seed, round, status)."""
    kinds = Counter(status.partition(":")[0] for *_, status in turns)
    # Of a turn that was left out the reply came: for the client this was no silence.
    heard = [at for seed, at, how in turns if seed == last and how.startswith(("ok", "left out"))]
    reply = min(heard[-1], done) if heard else None
    missed = {kind.replace(" ", "_"): kinds[kind] for kind in MISSED}
    return PersonProgress(
        client,
        len(turns),
        kinds["ok"],
        **missed,
        last_reply=reply,
        silence=done - (reply or 0),
        bytes_up=float(log.bytes_up.sum()),
        bytes_down=float(log.bytes_down.sum()),
        examples=float(_last(log.examples[log.examples > 0]) or 0),
        share=_last(log.personal_fraction.dropna()),
        reason=next((how for *_, how in reversed(turns) if how != "ok"), ""),
    )


def _headline(
    path: Path, table: Mapping[str, Any], curves: Mapping[str, Curve], seed: int, last: int
) -> Headline | None:
    """Return the headline metric of a seed's models, which were trained up to the round `last`."""
    metric, lower = _first_metric(path, table, curves)
    for point in ("P0", "P1", "P2"):
        rows = curves.get(f"{point}/{metric}", ())
        # Models that took a last step are measured twice after this round.
        curve = {n: v for s, n, v in rows if s == seed and n <= last}
        if curve:
            *_, before, value = None, *(curve[n] for n in sorted(curve))
            gain = None
            if before is not None and value != before and lower is not None:
                gain = (value < before) == lower
            return Headline(metric, point, value, before, gain)
    return None


def _first_metric(
    path: Path, table: Mapping[str, Any], curves: Mapping[str, Curve]
) -> tuple[str, bool | None]:
    """Return the headline metric, and whether lower values are better, None if that is unknown.

    Of a task that is a user's Python code this is unknown until the run is finished; the first
    metric that was measured stands for its headline.
    """
    file = path / "results.json"
    if file.exists():
        results = read_json(file)
        return results["headline"], results["headline"] in results.get("lower_is_better", ())
    from vergence.core.task import Task
    from vergence.experiment.registry import find
    from vergence.experiment.trust import python_files

    if "task" not in table:
        raise StateError(f"{path} has no task in its config.toml; restore it from a copy")
    # Whoever looks at a folder must not run its code, which may be somebody else's.
    if python_files(table["task"]["name"]) or "task" in table.get("python", []):
        measured = [n.partition("/")[2] for n in curves if not n.startswith("train/")]
        return (measured[0] if measured else ""), None
    task = find("tasks", table["task"]["name"], Task)
    return task.headline, task.headline in task.lower_is_better
