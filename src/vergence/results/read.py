"""Run directories and their index, read: every figure, table and report starts here."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from vergence.core.federation import POOLED
from vergence.core.files import fields_of
from vergence.errors import ConfigError, DataError, StateError, nearest
from vergence.results.mask_files import Masks
from vergence.results.run_files import POISONED, read_json, read_text

Priors = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Prior name -> person -> metric -> value."""


class PersonValue(NamedTuple):
    """One row of people.csv."""

    seed: int
    person: str
    evaluation: str
    metric: str
    value: float


class RoundValue(NamedTuple):
    """One row of rounds.csv; `value` is the mean over people."""

    seed: int
    round: int
    evaluation: str
    metric: str
    value: float
    bytes_up: float
    bytes_down: float
    seconds: float
    personal_fraction: float


class TurnRecord(NamedTuple):
    """One row of turns.csv: one tree of one client in one round."""

    seed: int
    round: int
    client: str
    verb: str
    tree: str
    bytes_up: float
    bytes_down: float
    examples: float
    weight: float
    steps: float
    personal_fraction: float
    status: str


class PriorValue(NamedTuple):
    """One row of priors.csv."""

    prior: str
    person: str
    metric: str
    value: float


class Estimate(NamedTuple):
    """A metric over people: mean, 95 % interval, standard deviation, worst person's value."""

    mean: float
    lo: float
    hi: float
    std: float
    worst: float


@dataclass(frozen=True)
class Maps:
    """Heat maps on fixed test samples: frames uint8 `[k, H, W, 3]`, maps `[k, h, w]`.

    `points` is `[k, P, 2]`, x and y in [0, 1], NaN where there is none; `person` names whose gaze.
    """

    frames: NDArray[np.uint8]
    truth: NDArray[np.float32]
    pred: NDArray[np.float32]
    points: NDArray[np.float32]
    person: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One finished run directory."""

    folder: Path
    label: str
    results: Mapping[str, Any] = field(repr=False)

    @property
    def method(self) -> str:
        """The method's module name."""
        return self.results["method"]

    @property
    def headline(self) -> str:
        """The metric tables and plots put first."""
        return self.results["headline"]

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Metrics where less is better."""
        return frozenset(self.results.get("lower_is_better", ()))

    @property
    def people(self) -> list[str]:
        """Names, in client order."""
        return self.results["people"]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the run."""
        return self.results["seeds"]

    @property
    def poison(self) -> str:
        """People who lied in this run on purpose, and how; "" where nobody did."""
        return self.provenance.get("data", {}).get(POISONED, "")

    @property
    def federation(self) -> str:
        """Name of the federation, with its options where the run recorded them."""
        told = self.results["federation"]
        return told if isinstance(told, str) else json.dumps(told, sort_keys=True)

    @cached_property
    def values(self) -> list[PersonValue]:
        """Rows of people.csv."""
        return _rows(self.folder / "people.csv", PersonValue)

    @cached_property
    def rounds(self) -> list[RoundValue]:
        """Rows of rounds.csv."""
        return _rows(self.folder / "rounds.csv", RoundValue)

    @cached_property
    def turns(self) -> list[TurnRecord]:
        """Rows of turns.csv."""
        return _rows(self.folder / "turns.csv", TurnRecord)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Content of provenance.json."""
        return read_json(self.folder / "provenance.json")

    @cached_property
    def config(self) -> str:
        """Text of config.toml, resolved."""
        return read_text(self.folder / "config.toml")

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Metrics over people, headline first; no interval (NaN) over one person."""
        names = sorted(self.results["metrics"], key=lambda name: name != self.headline)
        found = {}
        for name in names:
            m = self.results["metrics"][name]
            low, high = (float("nan") if end is None else end for end in m["ci95"])
            found[name] = Estimate(m["mean"], low, high, m["std"], m["worst"])
        return found

    def scores(self, metric: str, evaluation: str = "P0") -> dict[str, float]:
        """Return person -> value, mean over seeds, in client order."""
        found: dict[str, list[float]] = {}
        for row in self.values:
            if row.metric == metric and row.evaluation == evaluation:
                found.setdefault(row.person, []).append(row.value)
        order = [p for p in self.people if p in found] + [p for p in found if p not in self.people]
        return {person: float(np.mean(found[person])) for person in order}

    def curve(
        self, metric: str, evaluation: str = "P0"
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the evaluated rounds `[k]` and values `[seeds, k]`; NaN where a seed has none."""
        chosen = [r for r in self.rounds if r.metric == metric and r.evaluation == evaluation]
        return _by_round([(r.seed, r.round, r.value) for r in chosen])

    def growth(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return rounds `[k]` and the mean personal share `[seeds, k]`; no round without masks."""
        told = [(r.seed, r.round, r.personal_fraction) for r in self.rounds]
        return _by_round([row for row in told if np.isfinite(row[2])])

    def growth_of_people(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return person -> rounds `[k]` and personal share `[seeds, k]`, for methods with masks."""
        told: dict[str, list[tuple[int, int, float]]] = {}
        for turn in self.turns:
            if np.isfinite(turn.personal_fraction):
                here = (turn.seed, turn.round, turn.personal_fraction)
                told.setdefault(turn.client, []).append(here)
        return {person: _by_round(rows) for person, rows in told.items()}

    def traffic(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return rounds `[k]` and bytes up and down per client so far `[2, k]`, seeds averaged."""
        rounds = np.unique([t.round for t in self.turns]).astype(np.int64)
        total = np.zeros((2, len(rounds)))
        for turn in self.turns:
            at = int(np.searchsorted(rounds, turn.round))
            total[:, at] += (turn.bytes_up, turn.bytes_down)
        clients = max(len({t.client for t in self.turns} - {POOLED}), 1)
        seeds = max(len({t.seed for t in self.turns}), 1)
        return rounds, total.cumsum(axis=1) / clients / seeds

    @cached_property
    def masks(self) -> Masks | None:
        """Personal masks, where the method keeps any."""
        path = self.folder / "masks.safetensors"
        return Masks.load(path, self.people) if path.exists() else None

    @cached_property
    def maps(self) -> Maps | None:
        """Heat maps on fixed test samples, where the task has any."""
        path = self.folder / "maps.npz"
        return _maps(path) if path.exists() else None


@dataclass(frozen=True)
class StudyResults:
    """Runs that may be compared, in order, and the priors they share."""

    folder: Path
    runs: tuple[Run, ...]
    priors: Priors

    @property
    def headline(self) -> str:
        """The metric tables and plots put first."""
        return self.runs[0].headline

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Metrics where less is better."""
        return self.runs[0].lower_is_better

    @property
    def several(self) -> bool:
        """True if these are run directories below `folder`, not `folder` itself."""
        return self.runs[0].folder != self.folder

    def find(self, name: str) -> Run | None:
        """Return the run with this label, else the first of this method."""
        named = [r for r in self.runs if r.label == name] or [
            r for r in self.runs if r.method == name
        ]
        return named[0] if named else None

    def run(self, name: str) -> Run:
        """Return the run with this label or method.

        Raises:
            ConfigError: there is none.
        """
        found = self.find(name)
        if found is None:
            known = [r.label for r in self.runs]
            raise ConfigError(f"{self.folder} has no run '{name}'{nearest(name, known)}")
        return found


def read(folder: Path | str) -> StudyResults:
    """Read what `vergence run --out` wrote: an OUT with its index, or one run directory below it.

    Raises:
        StateError: neither is there, or a run is unfinished.
    """
    folder = Path(folder)
    if (folder / "index.json").exists():
        index = read_json(folder / "index.json")
        runs = tuple(_run(folder / entry["dir"], entry["label"]) for entry in index["runs"])
        if not runs:
            raise StateError(f"{folder / 'index.json'} lists no run; start one with vergence run")
        return StudyResults(folder, runs, _priors(folder, index.get("priors")))
    if not folder.is_dir():
        beside = sorted(p.name for p in folder.parent.glob("*") if p.is_dir())
        there = f"; in {folder.parent} there are: {', '.join(beside)}" if beside else ""
        raise StateError(f"there is no folder {folder}{there}")
    if not (folder / "results.json").exists():
        raise StateError(
            f"{folder} holds no results (no index.json, no results.json); "
            "name a folder that vergence run wrote, or finish it with vergence resume"
        )
    above = folder.parent / "index.json"
    if not above.exists():
        return StudyResults(folder, (_run(folder),), _priors(folder, "priors.csv"))
    return StudyResults(
        folder, (_run(folder),), _priors(folder.parent, read_json(above).get("priors"))
    )


def _run(folder: Path, label: str | None = None) -> Run:
    if not (folder / "results.json").exists():
        raise StateError(
            f"{folder} has no results.json: this run is unfinished; "
            f"continue it with vergence resume {folder}"
        )
    results = read_json(folder / "results.json")
    return Run(folder, label or results.get("label") or folder.name, results)


def _priors(folder: Path, name: str | None) -> Priors:
    if not name or not (folder / name).exists():
        return {}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in _rows(folder / name, PriorValue):
        found.setdefault(row.prior, {}).setdefault(row.person, {})[row.metric] = row.value
    return found


_Row = TypeVar("_Row", PersonValue, RoundValue, TurnRecord, PriorValue)


def _rows(path: Path, kind: type[_Row]) -> list[_Row]:
    """Read a CSV into records of `kind`; an empty number is NaN, further columns are left alone."""
    rows = csv.DictReader(fields_of(read_text(path)))
    missing = [name for name in kind._fields if name not in (rows.fieldnames or ())]
    if missing:
        raise StateError(f"{path} lacks the columns {', '.join(missing)}; run it again")
    casts = [_CASTS[kind.__annotations__[name]] for name in kind._fields]
    try:
        return [
            kind(*(cast(row[name]) for cast, name in zip(casts, kind._fields, strict=True)))
            for row in rows
        ]
    except (TypeError, ValueError, csv.Error) as error:
        raise StateError(f"{path} line {rows.line_num}: {error}; the file is damaged") from error


def _number(text: str) -> float:
    return float(text) if text else float("nan")


_CASTS: Mapping[type, Callable[[str], Any]] = {int: int, float: _number, str: str}


def _by_round(
    rows: Sequence[tuple[int, int, float]],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    seeds = sorted({seed for seed, _, _ in rows})
    rounds = sorted({number for _, number, _ in rows})
    table = np.full((len(seeds), len(rounds)), np.nan)
    at = {number: i for i, number in enumerate(rounds)}
    for seed, number, value in rows:
        table[seeds.index(seed), at[number]] = value
    return np.array(rounds, dtype=np.int64), table


def _maps(path: Path) -> Maps:
    try:
        with np.load(path, allow_pickle=False) as file:
            return Maps(
                file["frames"],
                file["truth"],
                file["pred"],
                file["points"],
                tuple(str(p) for p in file["person"]),
            )
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); run again") from error
