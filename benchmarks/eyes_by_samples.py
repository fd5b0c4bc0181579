"""What a person gains by joining, by number of own eye images, with models that stopped gaining.

    python -m benchmarks.eyes_by_samples --out docs/results/eyes_by_samples.csv --samples 9,81,2100

VERGENCE_DATA names the folder with `eyes/mpiigaze_9x15`. Each of eleven people has the first so
many of their training images (dealt at random) and all their validation and test images. Networks
train until the mean validation error of all people has not improved for four evaluations, or for
150 rounds of 20 steps, and the model is the one of the round with the smallest validation error.
Every row has the same search: two settings, tried with seed 0. The setting with the smaller mean
error of p00 to p02 on test images is taken for the other seeds, and tables are of p03 to p10, for
whom nothing was chosen.

A finished run is one line of the file (method, samples, seed, setting, rounds, CPU seconds, and the
error of each person in degrees), appended at once; runs that are there are not run again.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import vergence as vg
from benchmarks.common.options import options
from vergence.core.data import Splits
from vergence.metrics.intervals import interval

LOCAL = vg.LocalTraining(steps=20, batch=32, optimizer="adamw", weight_decay=0.01)
STOPPING = vg.EarlyStopping(patience=4)
ROUNDS, EVERY = 150, 5
CHOSEN_ON = ("p00", "p01", "p02")
KEYS = ("method", "samples", "seed", "setting")
ALONE = ("kernel ridge alone", "network alone")
SETTINGS: Mapping[str, tuple[float, float]] = {
    "kernel ridge alone": (2.0, 3.0),
    "FedRidge, common part": (1.0, 3.0),
    "FedRidge": (1.0, 3.0),
}
"""Two values of the own kernel's width, or of the penalty; of networks two learning rates."""
RATES = (1e-3, 3e-3)


def ridge(common: bool, own: bool) -> Callable[[float, int], tuple[vg.Method, vg.Model]]:
    """Return what makes a closed-form learner from a setting and a number of own samples."""

    def made(value: float, samples: int) -> tuple[vg.Method, vg.Model]:
        penalty, width = (value, 2.0) if common else (1.0, value)
        method = vg.methods.FedRidge(ridge=penalty, common=common, own_part=own)
        return method, vg.models.KernelEye(own_width=width, own_centres=samples if own else 0)

    return made


def network(method: vg.Method) -> Callable[[float, int], tuple[vg.Method, vg.Model]]:
    """Return what makes a method with the eye network from a learning rate and own samples."""

    def made(value: float, samples: int) -> tuple[vg.Method, vg.Model]:
        own = replace(method, local=replace(LOCAL, lr=value))
        if hasattr(method, "tune_epochs"):
            # At least 200 steps, and ten passes.
            own = replace(own, tune_epochs=max(10, 200 * LOCAL.batch // samples))
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
    "FedRidge, common part": ridge(common=True, own=False),
    "FedRidge": ridge(common=True, own=True),
}


def people(samples: int) -> vg.Federation:
    """Return the eleven people, each with so many training images."""
    root = Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA")) / "eyes" / "mpiigaze_9x15"
    whole = vg.data.MpiigazeCrops().load(str(root))
    few = {}
    for person, splits in whole.people.items():
        # Either eye lies in one half of the rows: first rows would be one eye's.
        order = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(0))
        few[person] = Splits(splits.train.subset(order[:samples]), splits.val, splits.test)
    return vg.Federation("mpiigaze_crops", few)


def measure(out: Path, samples: int, seeds: Iterable[int]) -> None:
    """Run what is missing for this number of samples, and append each run to the file."""
    everybody = people(samples)
    for seed, name in product(seeds, LEARNERS):
        settings = SETTINGS.get(name, RATES)
        for setting in settings if seed == 0 else (chosen(out, name, samples),):
            row = {"method": name, "samples": samples, "seed": seed, "setting": setting}
            if present(out, row):
                continue
            began = sum(os.times()[:4])
            run, rounds = trained(*LEARNERS[name](setting, samples), everybody, seed)
            row |= {"rounds": rounds, "cpu_s": round(sum(os.times()[:4]) - began, 1)}
            append(out, {**row, **run.scores["angle_error_deg"].round(4).to_dict()})
            print(row, run.scores["angle_error_deg"].mean(), flush=True)


def trained(
    method: vg.Method, model: vg.Model, everybody: vg.Federation, seed: int
) -> tuple[vg.Run, int]:
    """Return a run that ends where the validation error is smallest, and its number of rounds."""
    task = vg.tasks.GazeAngle(model)
    how = {"seed": seed, "workers": 1, "progress": False}
    if isinstance(method, vg.methods.FedRidge):
        return vg.train(method, task, everybody, rounds=1, evaluate_every=0, **how), 1
    until = {"rounds": ROUNDS, "evaluate_every": EVERY, "early_stopping": STOPPING}
    history = vg.train(method, task, everybody, **until, **how).history
    best = int(np.nanargmin(history["V0_angle_error_deg"].to_numpy()))
    # The same bits as after this round of the first run.
    return vg.train(method, task, everybody, rounds=best, evaluate_every=0, **how), best


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
    alone with its interval, and the number of people for whom that row is better.
    """
    runs = pd.read_csv(file)
    folk = [c for c in runs.columns if c.startswith("p") and c not in CHOSEN_ON]
    rows = []
    for samples in sorted(set(runs.samples)):
        some = runs[runs.samples == samples]
        errors = {}
        for name, tried in some.groupby("method"):
            setting = chosen(file, str(name), samples)
            errors[name] = tried[tried.setting == setting][folk].mean()
        best = errors[min(errors.keys() & set(ALONE), key=lambda name: errors[name].mean())]
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
                    "gain over alone": f"{gain.mean():+.2f} ({less:+.2f} to {more:+.2f})",
                    "worse than alone": f"{int((gain < 0).sum())} of {len(folk)}",
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, and print the table."""
    given = options(__doc__, out="runs/eyes_by_samples.csv", samples="9,81,2100", seeds="0,1,2")
    torch.set_num_threads(1)
    out = Path(given.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for samples in given.samples.split(","):
        measure(out, int(samples), map(int, given.seeds.split(",")))
    print(table(out).to_string(index=False))


if __name__ == "__main__":
    main()
