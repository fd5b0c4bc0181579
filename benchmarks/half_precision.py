"""Equality of training in float32 and in half precision, by data set and person.

`python -m benchmarks.half_precision --out runs/half` trains each case below twice with the same
seeds, with `run.precision` "fp32" and "half". What counts is a person's headline, seeds averaged
(of an accuracy the error, 1 - it), and by how much half differs. Two one-sided t tests over people
ask whether the mean of these relative differences lies within 1 %. Runs that are there are taken as
they are, and interrupted ones go on; `--case NAME` (several times) trains only some. Needs the data
below VERGENCE_DATA.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import vergence
from vergence.console import out as console
from vergence.metrics.statistics import ALPHA, tost

MARGIN = 0.01
"""Largest relative difference of the mean that counts as none."""
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "osie": ("experiments/osie.toml", ("run.rounds=4",)),
    "mpiigaze_crops": ("experiments/mpiigaze_crops.toml", ("run.rounds=10",)),
    "gazecom": ("experiments/gazecom.toml", ()),
    "ego_synthetic": ("experiments/ego_synthetic.toml", ("run.rounds=20",)),
    "eye_synthetic": (
        "experiments/eye_people.toml",
        ("federation.people=10", "run.rounds=5"),
    ),
    "fashion_mnist": ("experiments/images_dirichlet.toml", ()),
    "cifar10": (
        "experiments/images_dirichlet.toml",
        (
            "federation.name=cifar10",
            "federation.root=cifar10",
            "model.image=[3, 32, 32]",
        ),
    ),
    "tvsum": ("experiments/keyframes.toml", ("run.rounds=10",)),
}
"""Experiment of each case, and what is set in it, so that all of them take minutes."""


@dataclass(frozen=True)
class Found:
    """A case: its headline, and everybody's error in either precision, by seed."""

    name: str
    headline: str
    exact: pd.DataFrame
    half: pd.DataFrame

    @property
    def apart(self) -> pd.Series:
        """Relative difference of everybody's error, seeds averaged."""
        exact = self.exact.mean(axis=1)
        return (self.half.mean(axis=1) - exact) / exact.abs()

    @property
    def spread(self) -> float:
        """Mean over people of the deviation between seeds in float32, relative to the error."""
        return float((self.exact.std(axis=1) / self.exact.mean(axis=1).abs()).mean())

    def row(self) -> str:
        """One line of the table by data set."""
        d = self.apart
        p = tost(d.to_numpy(), MARGIN)
        verdict = "yes" if p < ALPHA else "not shown"
        told = "1 - accuracy" if self.headline == "accuracy" else self.headline
        return (
            f"| {self.name} | {told} | {len(d)} | {self.exact.shape[1]} | "
            f"{self.exact.to_numpy().mean():.4f} | {self.half.to_numpy().mean():.4f} | "
            f"{d.mean():+.2%} | {d.min():+.2%} to {d.max():+.2%} | {self.spread:.2%} | {p:.2g} | "
            f"{verdict} |"
        )


def errors(folder: Path, headline: str) -> pd.DataFrame:
    """Return everybody's headline, person x seed; of an accuracy, 1 - it."""
    rows = pd.read_csv(folder / "people.csv", dtype={"person": str})
    rows = rows[(rows.evaluation == "P0") & (rows.metric == headline)]
    found = rows.pivot_table(index="person", columns="seed", values="value")
    return 1 - found if headline == "accuracy" else found


def train(name: str, out: Path, method: str, seeds: Sequence[int]) -> Found:
    """Train a case in both precisions, or read what is there."""
    file, sets = CASES[name]
    found: dict[str, pd.DataFrame] = {}
    headline = ""
    for precision in ("fp32", "half"):
        sets_all = [*sets, f"methods=[{method!r}]".replace("'", '"'), f"run.seeds={list(seeds)}"]
        sets_all += [f"run.precision={precision}", "run.evaluate_every=0"]
        experiment = vergence.load_experiment(file, sets_all)
        folder = out / name / precision
        folder.parent.mkdir(parents=True, exist_ok=True)
        run = vergence.run_experiment(experiment, folder, resume=True, progress=False)[method]
        headline = run.headline
        found[precision] = errors(next(folder.rglob("people.csv")).parent, headline)
    return Found(name, headline, found["fp32"], found["half"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/half_precision"))
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    every = [
        train(name, options.out, options.method, options.seeds) for name in options.case or CASES
    ]
    lines = [
        "| data | headline | people | seeds | fp32 | half | difference | people, from and to | "
        "between seeds | p | within 1 % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        *(found.row() for found in every),
        "",
        "| data | person | fp32 | half | difference |",
        "|---|---|---:|---:|---:|",
    ]
    for found in every:
        for person, apart in found.apart.items():
            one, other = (float(np.mean(f.loc[person])) for f in (found.exact, found.half))
            lines.append(f"| {found.name} | {person} | {one:.4f} | {other:.4f} | {apart:+.2%} |")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
