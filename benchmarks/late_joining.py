"""How quickly somebody who joins late is served: error by person, 0 to ten rounds after joining.

    python -m benchmarks.late_joining experiments/late_eyes.toml --out runs/docs/late_eyes.csv

Everybody in turn is away, by a presence trace, until `--join` rounds are done, and then takes part
as all others do. The experiment is run up to every round that is asked about: its runs differ in
their ends alone, so that a row follows one person through one training. Measured is what the late
person predicts with (P0), on the own test samples; after 0 rounds that is what a newcomer gets. The
last column is the mean of all others in the last run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from vergence import load_experiment, run_experiment
from vergence.api.finished_run import FinishedRun
from vergence.core.files import csv_of, write_whole
from vergence.errors import ConfigError
from vergence.experiment.validation import validate
from vergence.results.layout import digits, metric_name

Key = tuple[str, str]
"""Method's label and person."""


def trace(folder: Path, people: Sequence[str], late: str, join: int) -> Path:
    """Write when everybody is there."""
    rows = [(p, join if p == late else 0, 1, 1) for p in people]
    path = folder / f"late_{late}.csv"
    write_whole(path, csv_of([("client", "round", "idle", "charging"), *rows]).encode())
    return path


def after_joining(
    file: Path, late: str, people: Sequence[str], join: int, after: Sequence[int], out: Path
) -> Iterator[tuple[Key, int, float, float]]:
    """Yield a late person's error, and the mean of the others, by method and round."""
    out.mkdir(parents=True, exist_ok=True)
    path = trace(out, people, late, join)
    for rounds in after:
        sets = [f"presence.trace={path.resolve()}", f"run.rounds={join + rounds}"]
        sets += ["run.evaluate_every=0"]
        experiment = load_experiment(file, sets)
        folder = out / f"{late}_{rounds}"
        runs = run_experiment(experiment, folder, resume=True, progress=False)
        for label, run in runs.items():
            scores = means(run)
            others = mean(score for person, score in scores.items() if person != late)
            yield (label, late), rounds, scores[late], others


def means(run: FinishedRun) -> dict[str, float]:
    """Everybody's headline, the mean over seeds."""
    return run.record.scores(run.headline)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table of each method, and write all rows."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.late_joining")
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--join", type=int, default=10, help="rounds before a person joins")
    parser.add_argument("--after", type=int, nargs="+", default=[0, 1, 5, 10])
    parser.add_argument("--people", nargs="+", help="who is late, in turn; default everybody")
    parser.add_argument("--runs", type=Path, default=Path("runs/late_joining"))
    parser.add_argument("--out", type=Path, default=Path("late_joining.csv"))
    chosen = parser.parse_args(arguments)
    experiment = load_experiment(chosen.experiment)
    if any(method.local.schedule != "constant" for method in experiment.methods.values()):
        raise ConfigError(
            "late_joining: local.schedule must be constant: others depend on the number of rounds, "
            "and so would what happened before"
        )
    people = validate(experiment).raw.clients
    found: dict[Key, dict[int, tuple[float, float]]] = {}
    for late in chosen.people or people:
        folder = chosen.runs / f"join{chosen.join}"
        rows = after_joining(chosen.experiment, late, people, chosen.join, chosen.after, folder)
        for key, rounds, own, others in rows:
            found.setdefault(key, {})[rounds] = own, others
    show(found, chosen.after, experiment.task(experiment.plan.seeds[0]).headline, chosen.out)


def show(
    found: dict[Key, dict[int, tuple[float, float]]], after: Sequence[int], metric: str, out: Path
) -> None:
    """Print a table of every method, and write the file."""
    places = digits(own for at in found.values() for own, _ in at.values())
    print(f"{metric_name(metric)} of the late person, by rounds since joining")
    for label in dict.fromkeys(label for label, _ in found):
        print(f"\n| {label} | " + " | ".join(map(str, after)) + " | all others |")
        print("|---|" + "---:|" * (len(after) + 1))
        table = [
            (person, [*(at[n][0] for n in after), at[after[-1]][1]])
            for (name, person), at in found.items()
            if name == label
        ]
        columns = zip(*(values for _, values in table), strict=True)
        for person, values in [*table, ("mean", [mean(column) for column in columns])]:
            print(f"| {person} | " + " | ".join(f"{v:.{places}f}" for v in values) + " |")
    rows = [
        (label, person, rounds, repr(own), repr(others))
        for (label, person), at in found.items()
        for rounds, (own, others) in at.items()
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, csv_of([("method", "person", "rounds", metric, "others"), *rows]).encode())


if __name__ == "__main__":
    main()
