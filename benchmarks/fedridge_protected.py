"""FedRidge under secure sums and user-level differential privacy: error, bytes and seconds.

    python -m benchmarks.fedridge_protected --out docs/results/fedridge_protected.csv

People are generated (`eye_synthetic`, crops of 9 x 15, 100 images each): 30 and 300 of them. The
common part alone predicts, as the own part of a person needs no protection. Under secure sums the
largest difference of a prediction from that of the plain sum is given in degrees. Under user-level
privacy (epsilon 8, delta 1e-5) the number of features matters, since noise is added to every
product of two features, and so does the penalty, which has to outweigh the noise. Generator seed 0
is for choosing both; the table is of seeds 5, 6 and 7. A finished run is a row of the file.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import torch

import vergence as vg
from benchmarks.common.options import options
from vergence.metrics.angles import angular_error_deg

SUMS = {"aggregation": {"name": "pairwise"}}
USER = {"user": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.6, "bits": 15}}
FEATURES, PENALTIES = (10, 50, 100), (3.0, 10.0, 30.0)
MANY = 2000


def run(
    everybody: vg.Federation, features: int, ridge: float, privacy: dict | None
) -> tuple[vg.Run, float]:
    """Return the run of the common part with so many features, and its CPU seconds."""
    began = sum(os.times()[:4])
    done = vg.train(
        vg.methods.FedRidge(
            own_part=False, weights="equal" if privacy is USER else "samples", ridge=ridge
        ),
        vg.tasks.GazeAngle(vg.models.KernelEye(features=features, own_centres=0)),
        everybody,
        rounds=1,
        evaluate_every=0,
        workers=1,
        privacy=privacy,
        progress=False,
    )
    return done, sum(os.times()[:4]) - began


def predictions(done: vg.Run, everybody: vg.Federation) -> torch.Tensor:
    """Return the run's predictions for everybody's test images."""
    parts = [
        torch.as_tensor(done.predict(person, splits.test))
        for person, splits in everybody.people.items()
    ]
    return torch.cat(parts)


def main() -> None:
    """Measure, and print the table."""
    given = options(__doc__, out="runs/fedridge_protected.csv", people="30,300", seeds="0,5,6,7")
    torch.set_num_threads(1)
    columns = ("people", "seed", "kind", "features", "ridge")
    numbers = ("degrees", "mean_gaze", "largest_difference_deg", "bytes_up", "cpu_s")
    with Path(given.out).open("a", newline="") as file:
        out = csv.DictWriter(file, [*columns, *numbers], restval="")
        if not file.tell():
            out.writeheader()
        for count in map(int, given.people.split(",")):
            for seed in map(int, given.seeds.split(",")):
                for row in rows(count, seed):
                    out.writerow(row)
                    file.flush()
                    print(row, flush=True)


def rows(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield the results of so many people generated with this seed."""
    data = vg.data.EyeSynthetic(people=count, samples=100, size="9x15", seed=seed)
    everybody = data.load()
    priors = vg.tasks.GazeAngle(vg.models.KernelEye()).priors(everybody)
    gaze = [metrics["angle_error_deg"] for metrics in priors["mean gaze"].values()]
    plain, _ = pair = run(everybody, MANY, 1.0, None)
    cases = [("plain", MANY, 1.0, pair), ("secure sums", MANY, 1.0, None)]
    cases += [("plain", d, 1.0, None) for d in FEATURES]
    cases += [("epsilon 8", d, r, None) for d in FEATURES for r in PENALTIES]
    for kind, features, ridge, ready in cases:
        privacy = {"plain": None, "secure sums": SUMS, "epsilon 8": USER}[kind]
        done, took = ready or run(everybody, features, ridge, privacy)
        row = {"people": count, "seed": seed, "kind": kind, "features": features, "ridge": ridge}
        row["degrees"] = round(float(done.scores["angle_error_deg"].mean()), 3)
        row["mean_gaze"] = round(sum(gaze) / count, 3)
        if kind == "secure sums":
            both = [predictions(each, everybody).double() for each in (plain, done)]
            row["largest_difference_deg"] = float(angular_error_deg(*both).max())
        row["bytes_up"] = int(done.history["bytes_up"].sum())
        yield {**row, "cpu_s": round(took, 1)}


if __name__ == "__main__":
    main()
