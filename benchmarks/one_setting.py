"""What one setting costs and gains: error, fairness and bytes, by its values.

    python -m benchmarks.one_setting EXPERIMENT KEY VALUE [VALUE ...] [--set a.b=c ...] [--out FILE]

The experiment runs once with each value, which is written as after `--set`; `KEY` may be a whole
table, such as `wire`, with values such as '{ codec = "int8" }'. All else stays the same, seeds
included, so that people are compared with themselves where they are the same: `against the first`
is the mean over people of their difference to the first value, with its 95 % interval (Student's t,
seeds averaged within a person first). A bold difference is worse, with an interval that excludes 0.
`worst` is the person served worst, `SD` the standard deviation over people. A client is in so many
`rounds`, and sends and receives so many `bytes` in the whole run. With `--of` a column more tells
the mean of these people alone. Runs are kept below `--runs`, where the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from vergence import load_experiment, run_experiment
from vergence.core.files import csv_of, write_whole
from vergence.errors import ConfigError
from vergence.metrics.intervals import interval
from vergence.results.layout import digits, metric_name
from vergence.results.read import Run

RUNS = Path("runs/one_setting")


@dataclass(frozen=True)
class Row:
    """One method under one value: everybody's headline, and what it costs."""

    value: str
    method: str
    scores: Mapping[str, float]
    bytes_up: float
    bytes_down: float
    rounds: Mapping[str, float]

    @classmethod
    def of(cls, value: str, run: Run) -> Row:
        """The row of a finished run; bytes and rounds are those of a seed."""
        seeds = len(run.seeds)
        sent = run.turns[["bytes_up", "bytes_down"]].sum() / seeds / len(run.people)
        there = run.turns[run.turns["round"] > 0].drop_duplicates(["seed", "round", "client"])
        counted = there.groupby("client").size() / seeds
        return cls(
            value,
            run.title,
            run.scores(run.headline),
            float(sent.bytes_up),
            float(sent.bytes_down),
            {person: float(counted.get(person, 0)) for person in run.people},
        )


def measured(
    file: Path, key: str, values: Sequence[str], sets: Sequence[str], runs: Path
) -> tuple[str, bool, list[Row]]:
    """Run the experiment with each value; return the headline, whether less is better, and rows."""
    experiments = [load_experiment(file, [*sets, f"{key}={value}"]) for value in values]
    rows, headline, lower = [], "", False
    for at, (value, experiment) in enumerate(zip(values, experiments, strict=True)):
        found = run_experiment(experiment, runs / f"{at:02}", resume=True, progress=False)
        for run in found.values():
            rows.append(Row.of(value, run.record))
            headline, lower = run.headline, run.headline in run.record.lower_is_better
    return headline, lower, rows


def against(row: Row, first: Row) -> list[float]:
    """Return everybody's difference to the first value."""
    return [row.scores[person] - first.scores[person] for person in row.scores]


def told(values: Sequence[float], places: int, sign: str = "") -> str:
    """Return a mean with its interval."""
    low, high = interval(values)
    return f"{mean(values):{sign}.{places}f} [{low:{sign}.{places}f}, {high:{sign}.{places}f}]"


def table(headline: str, lower: bool, rows: Sequence[Row], of: Sequence[str], paired: bool) -> str:
    """Return the table in Markdown: a row for each value and method."""
    places = digits(score for row in rows for score in row.scores.values())
    heads = ["setting", "method", metric_name(headline), "worst", "SD"]
    heads += [f"of {', '.join(of)}"] if of else []
    heads += ["against the first"] if paired else []
    heads += ["rounds", "bytes up", "bytes down"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    first: dict[str, Row] = {}
    for row in rows:
        scores = [*row.scores.values()]
        begun = first.setdefault(row.method, row)
        cells = [f"`{row.value}`", row.method, told(scores, places)]
        cells += [f"{(max if lower else min)(scores):.{places}f}"]
        cells += [f"{stdev(scores) if len(scores) > 1 else 0:.{places}f}"]
        cells += [f"{mean(row.scores[person] for person in of):.{places}f}"] if of else []
        cells += [difference(row, begun, lower, places)] if paired else []
        cells += [f"{mean(row.rounds.values()):.1f}", f"{row.bytes_up:,.0f}"]
        cells += [f"{row.bytes_down:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(row: Row, first: Row, lower: bool, places: int) -> str:
    """Return what a value adds to people's scores, bold where that is shown to be worse."""
    if row is first:
        return ""
    found = against(row, first)
    low, high = interval(found)
    text = told(found, places, "+")
    return f"**{text}**" if (low > 0 if lower else high < 0) else text


def save(path: Path, key: str, headline: str, rows: Sequence[Row]) -> None:
    """Write one line for each value, method and person."""
    head = (key, "method", "person", headline, "rounds", "bytes_up", "bytes_down")
    lines = [
        (r.value, r.method, p, repr(s), r.rounds[p], r.bytes_up, r.bytes_down)
        for r in rows
        for p, s in r.scores.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, csv_of([head, *lines]).encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="benchmarks.one_setting",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", type=Path)
    parser.add_argument("key", help="such as wire, presence.cohort, method.limit")
    parser.add_argument("values", nargs="+", metavar="value")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="a.b=c")
    parser.add_argument("--of", nargs="+", default=[], metavar="PERSON")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--out", type=Path, default=RUNS / "one_setting.csv")
    given = parser.parse_args(arguments)
    headline, lower, rows = measured(
        given.experiment, given.key, given.values, given.sets, given.runs
    )
    if unknown := set(given.of) - rows[0].scores.keys():
        raise ConfigError(
            f"one_setting: nobody is called {', '.join(sorted(unknown))}; the people are "
            f"{', '.join(rows[0].scores)}"
        )
    paired = all(row.scores.keys() == rows[0].scores.keys() for row in rows)
    print(table(headline, lower, rows, given.of, paired))
    save(given.out, given.key, headline, rows)


if __name__ == "__main__":
    main()
