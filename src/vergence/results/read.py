"""Reading of run directories and their index, for every figure, table and report.

Used in most packages.
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vergence.core.federation import POOLED
from vergence.core.files import fields_of
from vergence.core.naming import by_key
from vergence.errors import ConfigError, DataError, StateError, nearest
from vergence.metrics.intervals import Bounds
from vergence.results.layout import COLUMNS, TABLES, method_name
from vergence.results.mask_files import Masks
from vergence.results.run_files import (
    AGAIN,
    POISONED,
    nearest_runs,
    read_json,
    read_text,
    whole_lines,
)

Frame = Any
"""A pandas DataFrame. The type is `Any`, as pandas is imported only when it is needed."""
Priors = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Name of a baseline without learning -> person -> metric -> value."""


class Estimate(NamedTuple):
    """A metric over people: mean, its 95 % interval, standard deviation, worst person's value."""

    mean: float
    lo: float
    hi: float
    std: float
    worst: float

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Self:
        """Make an estimate from a metric's entry in results.json; interval ends may be NaN."""
        low, high = (float("nan") if end is None else end for end in summary["ci95"])
        return cls(summary["mean"], low, high, summary["std"], summary["worst"])


@dataclass(frozen=True)
class Maps:
    """Heat maps of gaze on fixed test samples, the true and the predicted ones.

    `frames` is uint8 `[k, H, W, 3]`; `truth` and `pred` are maps `[k, h, w]`. `points` are gaze
    points `[k, P, 2]`, x and y in [0, 1]; NaN means no gaze point. `person` has k names.
    """

    frames: NDArray[np.uint8]
    truth: NDArray[np.float32]
    pred: NDArray[np.float32]
    points: NDArray[np.float32]
    person: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One finished run, read from its directory."""

    folder: Path
    label: str
    results: Mapping[str, Any] = field(repr=False)

    @property
    def method(self) -> str:
        """The method's module name."""
        return self.results["method"]

    @property
    def headline(self) -> str:
        """Name of the headline metric, which tables and plots put first."""
        return self.results["headline"]

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Metrics of which less is better."""
        return frozenset(self.results.get("lower_is_better", ()))

    def bounds(self, metric: str) -> Bounds | None:
        """Return the smallest and largest possible value of a metric; None: it has no bounds."""
        return bounds_of(self.results.get("bounds", {}), metric)

    @property
    def people(self) -> list[str]:
        """Names of the people who were evaluated, in client order."""
        return self.results["people"]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the run."""
        return self.results["seeds"]

    @property
    def poison(self) -> str:
        """The malicious clients of this run and their attack, in words; "" if there were none."""
        return self.provenance.get("data", {}).get(POISONED, "")

    @property
    def federation(self) -> str:
        """Name of the run's data.

        If the run recorded options of the data, this is the name and options as JSON.
        """
        name = self.results["federation"]
        return name if isinstance(name, str) else json.dumps(name, sort_keys=True)

    @property
    def title(self) -> str:
        """The run's printed name."""
        return method_name(self.label)

    @cached_property
    def values(self) -> Frame:
        """Content of people.csv."""
        return table(self.folder / "people.csv")

    @cached_property
    def rounds(self) -> Frame:
        """Content of rounds.csv."""
        return table(self.folder / "rounds.csv")

    @cached_property
    def turns(self) -> Frame:
        """Content of turns.csv."""
        return table(self.folder / "turns.csv")

    @cached_property
    def curves(self) -> Frame:
        """Scores of people by round, from curves.csv and people.csv.

        Columns are seed, round, person, point, and one for each metric.
        """
        import pandas as pd

        ends = self.final_rounds
        last = self.values.assign(round=[ends[seed] for seed in self.values.seed])
        path = self.folder / "curves.csv"
        every: Frame = pd.concat([table(path), last] if path.exists() else [last])
        keys = ["seed", "round", "person", "evaluation"]
        # A run that was stopped, or went back, has measured the models of this round twice.
        cells = every.drop_duplicates([*keys, "metric"], keep="last")
        wide = cells.pivot(index=keys, columns="metric", values="value")
        names = sorted(wide.columns, key=lambda name: name != self.headline)
        order = pd.MultiIndex.from_frame(cells[keys].drop_duplicates())
        frame = wide[names].reindex(order).reset_index().rename(columns={"evaluation": "point"})
        frame.columns.name = None
        return frame.sort_values(["seed", "round"], kind="stable", ignore_index=True)

    @property
    def final_rounds(self) -> dict[int, int]:
        """Seed -> round in which the final models were trained last.

        It is the last round, or that of the best evaluation if early stopping went back to it.
        """
        stopped = {seed: end["round"] for seed, end in self.results.get("stopped", {}).items()}
        rounds = {**stopped, **self.results.get("best_round", {})}
        planned = self.results.get("rounds", 0)
        return {seed: rounds.get(str(seed), planned) for seed in self.seeds}

    @cached_property
    def _means(self) -> dict[tuple[str, str], dict[str, float]]:
        return {
            point: {p: means[p] for p in dict.fromkeys([*self.people, *means]) if p in means}
            for point, means in means_over_seeds(self.values).items()
        }

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Content of provenance.json."""
        return read_json(self.folder / "provenance.json")

    @cached_property
    def config(self) -> str:
        """Text of config.toml, with all settings of the run."""
        return read_text(self.folder / "config.toml")

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Metric -> estimate over people, the headline metric first.

        With one person, the intervals are NaN.
        """
        names = sorted(self.results["metrics"], key=lambda name: name != self.headline)
        return {name: Estimate.of(self.results["metrics"][name]) for name in names}

    def scores(self, metric: str, evaluation: str = "P0") -> dict[str, float]:
        """Return person -> value of a metric, mean over seeds, in client order.

        `evaluation` is the evaluation point; P0 is the model with which a person predicts.
        """
        return dict(self._means.get((evaluation, metric), {}))

    def final(self, *metrics: str) -> Frame:
        """Return the rows of people.csv for the final models (P0).

        Only rows of `metrics` are returned; without arguments, rows of all metrics.
        """
        rows = self.values[self.values.evaluation == "P0"]
        return rows[rows.metric.isin(metrics)] if metrics else rows

    def curve(
        self, metric: str, evaluation: str = "P0"
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return a metric by round: rounds `[k]` and means over people `[seeds, k]`.

        `evaluation` is the evaluation point. A value is NaN if a seed has none for the round.
        """
        rows = self.rounds
        return _by_round(rows[(rows.metric == metric) & (rows.evaluation == evaluation)], "value")

    def growth(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return rounds `[k]` and the mean personal fraction of parameters, `[seeds, k]`.

        Both are empty for methods without masks.
        """
        return _by_round(self.rounds[np.isfinite(self.rounds.personal_fraction)])

    def growth_of_people(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return person -> (rounds `[k]`, personal fraction of parameters `[seeds, k]`).

        The result is empty for methods without masks.
        """
        rows = self.turns[np.isfinite(self.turns.personal_fraction)]
        return {person: _by_round(own) for person, own in rows.groupby("client", sort=False)}

    def traffic(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return rounds `[k]`, and bytes per client from the start to each round, `[2, k]`.

        The rows are bytes up and bytes down, averaged over seeds.
        """
        total = self.turns.groupby("round")[["bytes_up", "bytes_down"]].sum()
        clients = max(len({*self.turns.client.unique()} - {POOLED}), 1)
        seeds = max(self.turns.seed.nunique(), 1)
        return total.index.to_numpy(), total.to_numpy().T.cumsum(axis=1) / clients / seeds

    @cached_property
    def steps(self) -> float:
        """Gradient steps per client over the whole run, averaged over seeds, from turns.csv.

        Steps before round 1 count as well. The steps of a data centre are divided by its number of
        people. The value is NaN if replies do not say how many steps they took, as under secure
        sums.
        """
        turns = self.turns
        total = self._all_steps
        if not total:
            return float("nan")
        clients = self.results.get("clients") or len({*turns.client.unique()} - {POOLED})
        return total / max(int(clients), 1) / max(turns.seed.nunique(), 1)

    @property
    def closed_form(self) -> bool:
        """Whether clients are known to have taken no gradient steps, as under `fedridge`."""
        return len(self.turns) > 0 and self._all_steps == 0

    @cached_property
    def _all_steps(self) -> float:
        turns = self.turns
        # A turn has a row per tree, in alphabetical order, and its steps count once.
        where = turns[["seed", "round", "client", "verb"]]
        first = (where != where.shift()).any(axis=1) | (
            turns.tree <= turns.tree.shift(fill_value="")
        )
        return float(turns.steps[first].sum(skipna=False))

    @cached_property
    def masks(self) -> Masks | None:
        """Personal masks; None: the method keeps no masks."""
        path = self.folder / "masks.safetensors"
        return Masks.load(path, self.people) if path.exists() else None

    @cached_property
    def maps(self) -> Maps | None:
        """Heat maps on fixed test samples; None: the task has none."""
        path = self.folder / "maps.npz"
        return _maps(path) if path.exists() else None


@dataclass(frozen=True)
class StudyResults:
    """Runs that may be compared, in order, and the baselines (priors) that they share."""

    folder: Path
    runs: tuple[Run, ...]
    priors: Priors

    @property
    def headline(self) -> str:
        """Name of the headline metric, which tables and plots put first."""
        return self.runs[0].headline

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Metrics of which less is better."""
        return self.runs[0].lower_is_better

    @property
    def several(self) -> bool:
        """True if the runs are in folders below `folder`, and not in `folder` itself."""
        return self.runs[0].folder != self.folder

    def find(self, name: str) -> Run | None:
        """Return the run with this label, or else the first run of the method of this name.

        None: there is neither.
        """
        matches = [r for r in self.runs if r.label == name] or [
            r for r in self.runs if r.method == name
        ]
        return matches[0] if matches else None

    def run(self, name: str) -> Run:
        """Return the run with this label, or else the first run of the method of this name.

        Raises:
            ConfigError: there is neither.
        """
        run = self.find(name)
        if run is None:
            known = [r.label for r in self.runs]
            raise ConfigError(f"{self.folder} has no run '{name}'{nearest(name, known)}")
        return run


def read(folder: Path | str) -> StudyResults:
    """Read the runs in a folder of `vergence run --out` with its index, or one run directory.

    Raises:
        StateError: the folder is neither, or a run in it is unfinished.
    """
    folder = Path(folder)
    if (folder / "index.json").exists():
        index = read_json(folder / "index.json")
        runs = tuple(_run(folder / entry["dir"], entry["label"]) for entry in index["runs"])
        if not runs:
            raise StateError(f"{folder / 'index.json'} lists no run; start one with vergence run")
        return StudyResults(folder, runs, _priors(folder, index.get("priors")))
    if not folder.is_dir():
        siblings = sorted(p.name for p in folder.parent.glob("*") if p.is_dir())
        hint = f"; in {folder.parent} there are: {', '.join(siblings)}" if siblings else ""
        raise StateError(f"there is no folder {folder}{nearest_runs(folder) or hint}")
    if not (folder / "results.json").exists():
        raise StateError(
            f"{folder} holds no results (no index.json, no results.json); "
            "name a folder that vergence run wrote, or finish it with vergence resume"
        )
    # Several methods share their priors, which are next to the index.
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
    rows = table(folder / name, *TABLES["priors.csv"])
    priors: dict[str, dict[str, dict[str, float]]] = {}
    for prior, person, metric, value in rows.itertuples(index=False):
        priors.setdefault(prior, {}).setdefault(person, {})[metric] = value
    return priors


def table(path: Path, *names: str, growing: bool = False) -> Frame:
    """Read a CSV table from a run's folder, which may come from somebody else.

    A number has the bits of `float(text)`; an empty number is NaN. Other columns are ignored.

    Args:
        path: the file.
        names: columns to read; default: those of `TABLES` for a file of this name.
        growing: whether a run may still be writing the file. Then an unfinished last line is
            ignored, and a missing file has no rows.

    Returns:
        The columns, with the types in `COLUMNS`; a column that `COLUMNS` does not name is text.

    Raises:
        StateError: the file is missing or too large, lacks a column, or has a value of another type
            than its column.
    """
    # Importing pandas takes a third of a second, for which other commands need not wait.
    import pandas as pd

    names = names or TABLES[path.name]
    rows = csv.reader(fields_of(whole_lines(path)[0] if growing else read_text(path)))
    kinds = {name: COLUMNS[name].kind if name in COLUMNS else str for name in names}
    try:
        head = next(rows, list(names) if growing else [])
        if missing := [name for name in names if name not in head]:
            raise StateError(f"{path} lacks the columns {', '.join(missing)}; run it again")
        columns: list[list[Any]] = [[] for _ in kinds]
        picked = [
            (head.index(name), kind, "nan" * (kind is float), column.append)
            for (name, kind), column in zip(kinds.items(), columns, strict=True)
        ]
        # `pd.read_csv` rounds some numbers in another way than Python does.
        for row in _whole(rows, len(head)):
            for at, cast, empty, append in picked:
                append(cast(row[at] or empty))
        return pd.DataFrame(dict(zip(names, columns, strict=True))).astype(kinds)
    except (ValueError, OverflowError, csv.Error) as error:
        raise StateError(f"{path} is damaged: line {rows.line_num}: {error}; {AGAIN}") from None


def text_rows(path: Path) -> list[list[str]]:
    """Read the rows of a CSV table as texts; the first row has the columns' names.

    Raises:
        StateError: the file is missing or damaged.
    """
    rows = csv.reader(fields_of(read_text(path)))
    try:
        return list(rows)
    except csv.Error as error:
        raise StateError(f"{path} is damaged: line {rows.line_num}: {error}; {AGAIN}") from None


def _whole(rows: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    for row in rows:
        if row and len(row) != width:
            raise ValueError(f"{len(row)} of {width} columns")
        if row:
            yield row


def bounds_of(declared: Mapping[str, Sequence[float]], metric: str) -> Bounds | None:
    """Return a metric's bounds among those that a task declares; None: it has none."""
    low, high = declared.get(metric.removeprefix("pooled_"), (-math.inf, math.inf))
    return (low, high) if math.isfinite(high - low) else None


def means_over_seeds(values: Frame) -> dict[tuple[str, str], dict[str, float]]:
    """Return (evaluation point, metric) -> person -> mean over seeds.

    A mean is NaN if the value of one seed is NaN.
    """
    columns = (values[name].tolist() for name in ("evaluation", "metric", "person", "value"))
    points = by_key(
        ((point, metric), (who, value)) for point, metric, who, value in zip(*columns, strict=True)
    )
    # NumPy adds, as pandas does so in another order, which gives other bits. These are the bits of
    # `np.mean`, which takes twice as long for the few seeds of each of many people.
    return {
        point: {who: float(np.add.reduce(own) / len(own)) for who, own in by_key(pairs).items()}
        for point, pairs in points.items()
    }


def _by_round(
    rows: Frame, column: str = "personal_fraction"
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    last = rows.drop_duplicates(["seed", "round"], keep="last")
    grid = last.pivot(index="seed", columns="round", values=column)
    return grid.columns.to_numpy(np.int64), grid.to_numpy(np.float64)


def _maps(path: Path) -> Maps:
    try:
        # A pickle in a folder from somebody else could run any code.
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
