"""What a person gains by joining, by number of own eye images, with models that stopped gaining.

    python -m benchmarks.eyes_by_samples --out docs/results/eyes_by_samples.csv --samples 9,81,2100
    python -m benchmarks.eyes_by_samples --out docs/results/eyes_beside_2100.csv \
        --samples 9,81 --others 2100 --seeds 0

VERGENCE_DATA names the folder with `eyes/mpiigaze_9x15`. Each of eleven people has the first so
many of their training images (dealt at random) and all their validation and test images. Networks
train until the mean validation error of all people has not improved for 75 rounds of 20 steps, or
for 195 rounds, and scores are those of the round with the smallest validation error. A shorter wait
ends some runs at the first of two minima. Fine-tuning begins where FedAvg's validation error is
smallest. Every row has the same search: two settings, tried with seed 0. The setting with the
smaller mean error of p00 to p02 on test images is taken for the other seeds, and tables are of p03
to p10, for whom nothing was chosen.

With `--others 2100` every second person has so few images, and the others have 2,100. After a
second run, in which they change places, everybody was measured with few images once. A network
alone is left out there: it does not learn from the others.

A finished run is one line of the file (method, samples, seed, setting, rounds, CPU seconds, and the
error of each person in degrees), appended at once; runs that are there are not run again.
`--curves` is a second file, with the mean validation error of each evaluation on the way.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import torch

import vergence as vg
from benchmarks.common.options import options
from vergence.core.data import Splits
from vergence.metrics.intervals import interval

LOCAL = vg.LocalTraining(steps=20, batch=32, optimizer="adamw", weight_decay=0.01)
STOPPING = vg.EarlyStopping(patience=15)
ROUNDS, EVERY = 195, 5
FOLK = tuple(f"p{number:02}" for number in range(11))
CHOSEN_ON = FOLK[:3]
KEYS = ("method", "samples", "seed", "setting")
ALONE = ("kernel ridge alone", "network alone")
SETTINGS: Mapping[str, tuple[float, float]] = {
    "kernel ridge alone": (2.0, 3.0),
    "FedRidge common part": (1.0, 3.0),
    "FedRidge": (2.0, 3.0),
}
"""Two widths of the own kernel; without an own part two penalties; of networks two rates."""
RATES = (1e-3, 3e-3)


Numbers = tuple[int, ...]
"""How many training images each of `FOLK` has."""
Learner = Callable[[float, Numbers], tuple[vg.Method, vg.Model]]
"""From a setting and everybody's number of images to a method and a model."""


def ridge(common: bool, own: bool) -> Learner:
    """Return what makes a closed-form learner."""

    def made(value: float, samples: Numbers) -> tuple[vg.Method, vg.Model]:
        penalty, width = (1.0, value) if own else (value, 2.0)
        method = vg.methods.FedRidge(ridge=penalty, common=common, own_part=own)
        return method, vg.models.KernelEye(own_width=width, own_centres=max(samples) if own else 0)

    return made


def network(method: vg.Method) -> Learner:
    """Return what makes a method with the eye network, of a learning rate."""

    def made(value: float, samples: Numbers) -> tuple[vg.Method, vg.Model]:
        own = replace(method, local=replace(LOCAL, lr=value))
        if hasattr(method, "tune_epochs"):
            # At least 200 steps, and ten passes.
            own = replace(own, tune_epochs=max(10, 200 * LOCAL.batch // min(samples)))
        return own, vg.models.SmallEye(standardize=True)

    return made


LEARNERS = {
    "kernel ridge alone": ridge(common=False, own=True),
    "network alone": network(vg.methods.LocalOnly()),
    "FedAvg": network(vg.methods.FedAvg()),
    "fine-tuning": network(vg.methods.FedAvgFT()),
    "FedCPF": network(vg.methods.FedCPF(rate=0.1)),
    "random choice": network(vg.methods.FedCPF(rate=0.1, select="random")),
    "interpolation": network(vg.methods.Interpolation()),
    "FedPer": network(vg.methods.FedPer()),
    "Ditto": network(vg.methods.Ditto()),
    "FedRidge common part": ridge(common=True, own=False),
    "FedRidge": ridge(common=True, own=True),
}


@cache
def people(numbers: Numbers) -> vg.Federation:
    """Return the eleven people, each with so many training images."""
    root = Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA")) / "eyes" / "mpiigaze_9x15"
    whole = vg.data.MpiigazeCrops().load(str(root))
    few = {}
    for person, samples in zip(FOLK, numbers, strict=True):
        splits = whole.people[person]
        # Either eye lies in one half of the rows: first rows would be one eye's.
        order = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(0))
        few[person] = Splits(splits.train.subset(order[:samples]), splits.val, splits.test)
    return vg.Federation("mpiigaze_crops", few)


def dealt(samples: int, others: int) -> list[tuple[Numbers, tuple[str, ...]]]:
    """Return everybody's number of images and who is measured, for each run.

    Args:
        samples: number of training images of those who are measured.
        others: number of the others, of whom there is every second; 0: there are no others.
    """
    if not others:
        return [((samples,) * len(FOLK), FOLK)]
    halves = FOLK[::2], FOLK[1::2]
    return [(tuple(samples if p in few else others for p in FOLK), few) for few in halves]


def measure(
    files: tuple[Path, Path], methods: Iterable[str], samples: int, others: int, seeds: list[int]
) -> None:
    """Run what is missing for this number of samples, and append each run to both files."""
    out, curves = files
    for seed, name in product(seeds, methods):
        if others and name == "network alone":
            continue
        settings = SETTINGS.get(name, RATES)
        for setting in settings if seed == 0 else (chosen(out, name, samples),):
            row = {"method": name, "samples": samples, "seed": seed, "setting": setting}
            if present(out, row):
                continue
            began, errors, rounds = sum(os.times()[:4]), pd.Series(dtype=float), 0
            for numbers, few in dealt(samples, others):
                scores, validation = trained(name, setting, numbers, seed)
                errors = pd.concat([errors, scores.loc[list(few)]])
                rounds = best_round(validation)
                for done, error in validation.dropna().round(4).items():
                    append(curves, {**row, "half": few[0], "round": done, "degrees": error})
            row |= {"rounds": rounds, "cpu_s": round(sum(os.times()[:4]) - began, 1)}
            append(out, {**row, **errors.loc[list(FOLK)].round(4).to_dict()})
            print(row, errors.mean(), flush=True)


@cache
def trained(name: str, setting: float, numbers: Numbers, seed: int) -> tuple[pd.Series, pd.Series]:
    """Train everybody, and keep the scores of the round with the smallest validation error.

    Returns:
        The errors of people in degrees on test images; and the mean error on validation images
        after every fifth round, which is NaN after the one round of a closed form.
    """
    method, model = LEARNERS[name](setting, numbers)
    task, metric = vg.tasks.GazeAngle(model), "angle_error_deg"
    how = {"seed": seed, "workers": 1, "progress": False}
    if isinstance(method, vg.methods.FedRidge):
        run = vg.train(method, task, people(numbers), rounds=1, evaluate_every=0, **how)
        return pd.Series(run.scores[metric]), pd.Series({1: math.nan})
    if isinstance(method, vg.methods.FedAvgFT):
        validation = trained("FedAvg", setting, numbers, seed)[1]
        rounds = best_round(validation)
        run = vg.train(method, task, people(numbers), rounds=rounds, evaluate_every=0, **how)
        return pd.Series(run.scores[metric]), validation
    until = {"rounds": ROUNDS, "evaluate_every": EVERY, "early_stopping": STOPPING}
    run = vg.train(method, task, people(numbers), **until, **how)
    curves = run.curves[run.curves.point == "V0"]
    validation = pd.Series(curves.groupby("round")[metric].mean())
    return pd.Series(run.scores[metric]), validation


def best_round(validation: pd.Series) -> int:
    """Return the round with the smallest error."""
    return int(validation.index[int(validation.to_numpy().argmin())])


def present(out: Path, row: Mapping[str, object]) -> bool:
    """Return whether the file has this run."""
    if not out.exists():
        return False
    table = pd.read_csv(out)
    done = set(table[list(KEYS)].itertuples(index=False, name=None))
    return tuple(row[key] for key in KEYS) in done


def chosen(out: Path, name: str, samples: int) -> float:
    """Return the setting with the smaller mean error of `CHOSEN_ON`, with seed 0."""
    table = pd.read_csv(out)
    tried = table[(table.method == name) & (table.samples == samples) & (table.seed == 0)]
    return float(tried.loc[tried[list(CHOSEN_ON)].mean(axis=1).idxmin(), "setting"])


def append(out: Path, row: Mapping[str, object]) -> None:
    """Append one row, with a header if the file is new."""
    new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


def table(file: Path) -> pd.DataFrame:
    """Return one row for each number of samples and method, of the people nothing was chosen on.

    Columns: mean error in degrees with its 95 % interval over people, the gain over the better row
    alone with its interval, and the number of people for whom that row is better. The last two are
    left out where no row alone was run.
    """
    runs = pd.read_csv(file)
    folk = list(FOLK[len(CHOSEN_ON) :])
    rows = []
    for samples in sorted(set(runs.samples)):
        some = runs[runs.samples == samples]
        errors = {}
        for name, tried in some.groupby("method"):
            setting = chosen(file, str(name), samples)
            errors[name] = tried[tried.setting == setting][folk].mean()
        alone = [errors[name] for name in ALONE if name in errors]
        best = min(alone, key=lambda error: error.mean(), default=pd.Series(math.nan, folk))
        for name in LEARNERS:
            if name not in errors:
                continue
            own, gain = errors[name], best - errors[name]
            low, high = interval(own)
            less, more = interval(gain)
            rows.append(
                {
                    "samples": samples,
                    "method": name,
                    "seeds": len(set(some.loc[some.method == name, "seed"])),
                    "degrees": f"{own.mean():.2f} ({low:.2f} to {high:.2f})",
                    **(
                        {
                            "gain over alone": f"{gain.mean():+.2f} ({less:+.2f} to {more:+.2f})",
                            "worse than alone": f"{int((gain < 0).sum())} of {len(folk)}",
                        }
                        if alone
                        else {}
                    ),
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, and print the table."""
    given = options(
        __doc__,
        out="runs/eyes_by_samples.csv",
        curves="runs/eyes_curves.csv",
        samples="9,81,2100",
        methods=",".join(LEARNERS),
        seeds="0,1,2",
        others="0",
    )
    torch.set_num_threads(1)
    files = Path(given.out), Path(given.curves)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    methods, seeds = given.methods.split(","), [int(seed) for seed in given.seeds.split(",")]
    for samples in given.samples.split(","):
        measure(files, methods, int(samples), int(given.others), seeds)
    print(table(files[0]).to_string(index=False))


if __name__ == "__main__":
    main()
