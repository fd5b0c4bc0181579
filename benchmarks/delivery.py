"""Error against virtual time of runs that keep a clock: a picture and a Markdown table.

python -m benchmarks.delivery runs/async runs/async_quorum runs/async_fedbuff --out async.png: the
headline of people (P0), mean over seeds, between two evaluations interpolated linearly; bands run
from the lowest to the highest seed. All runs end where the first of their seeds does.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vergence.errors import StateError
from vergence.results.figure_style import SPARE, canvas, save, styled
from vergence.results.layout import metric_name
from vergence.results.read import Run, StudyResults
from vergence.studies.compare import ANYTHING, gather

Floats = NDArray[np.float64]


def timed(run: Run) -> list[tuple[Floats, Floats]]:
    """Return, per seed, virtual seconds and the headline where people were measured.

    Raises:
        StateError: the run kept no clock.
    """
    found = []
    for seed in run.seeds:
        rows = [row for row in run.rounds.itertuples() if row.seed == seed]
        clock = {row.round: row.value for row in rows if row.metric == "clock"}
        if not clock:
            raise StateError(f"{run.folder} kept no clock; set delivery.clock = true, or a name")
        error = {
            row.round: row.value
            for row in rows
            if (row.evaluation, row.metric) == ("P0", run.headline)
        }
        at = np.array([clock.get(round, 0.0) for round in sorted(error)])
        found.append((at, np.array([error[round] for round in sorted(error)])))
    return found


def curves(study: StudyResults, times: Floats) -> dict[str, Floats]:
    """Return, per run, the headline `[seeds, times]`."""
    return {
        run.title: np.array([np.interp(times, *one) for one in timed(run)]) for run in study.runs
    }


@styled
def figure(study: StudyResults, times: Floats) -> Figure:
    """Draw the curves."""
    page = canvas(6.4, 3.8)
    axes = page.add_subplot()
    for (name, values), colour in zip(curves(study, times).items(), SPARE, strict=False):
        axes.fill_between(times, values.min(0), values.max(0), color=colour, alpha=0.16, lw=0)
        axes.plot(times, values.mean(0), color=colour, lw=1.8, label=name)
    axes.set(xlabel="virtual seconds", ylabel=metric_name(study.headline))
    axes.set_ylim(
        top=float(np.median([v[:, len(times) // 12].max() for v in curves(study, times).values()]))
    )
    axes.legend()
    return page


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("async.png"))
    parser.add_argument("--times", nargs="+", type=float, default=[5.0, 10.0, 20.0, 35.0])
    given = parser.parse_args()
    study = gather(given.runs, ANYTHING)
    end = min(at[-1] for run in study.runs for at, _ in timed(run))
    times = np.array([t for t in given.times if t <= end])
    print(
        f"| delivery | replies by {times[-1]:g} s | " + " | ".join(f"{t:g} s" for t in times) + " |"
    )
    print("|---|--:|" + "--:|" * len(times))
    for run, (name, values) in zip(study.runs, curves(study, times).items(), strict=True):
        clock = {(r.seed, r.round): r.value for r in run.rounds.itertuples() if r.metric == "clock"}
        counted = sum(
            r.value
            for r in run.rounds.itertuples()
            if r.metric == "replies" and clock[r.seed, r.round] <= times[-1]
        )
        cells = " | ".join(f"{value:.2f}" for value in values.mean(0))
        print(f"| {name} | {counted / len(run.seeds):.0f} | {cells} |")
    save(figure(study, np.linspace(0, end, 200)), given.out)
    print(f"\nfigure: {given.out}")


if __name__ == "__main__":
    main()
