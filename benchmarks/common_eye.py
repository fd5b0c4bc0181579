"""What makes a common eye model better: one change at a time, for unseen and for known people.

    python -m benchmarks.common_eye --out docs/results/common_eye.csv

VERGENCE_DATA names the folder with `eyes/mpiigaze_9x15`. A fold leaves people out, and trains by
FedAvg on the others (equal weights, 100 rounds of 8 steps of 64 crops). Fold 0 leaves out p00 to
p02, on whom changes are chosen (`--chosen`); folds 1 and 2 leave out p03 to p06 and p07 to p10, of
whom the table is. The last model and the mean of the last rounds' models (stochastic weight
averaging, SWA) come from the same run. `closed form` is the common part of `fedridge`, which has no
seeds.

A finished run is two lines of the file, one for each model, with everybody's mean test error in
degrees; runs that are there are not run again.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import vergence as vg
from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.conversation import Conversation, aggregate
from vergence.core.tags import tagged
from vergence.engine.round_loop import run_rounds
from vergence.metrics.intervals import interval
from vergence.models.small_eye import standardized

ROUNDS, LONG, LAST = 100, 240, 20
LOCAL = vg.LocalTraining(steps=8, batch=64, optimizer="adamw", lr=2e-3, weight_decay=0.01)
FOLDS = (("p00", "p01", "p02"), ("p03", "p04", "p05", "p06"), ("p07", "p08", "p09", "p10"))
FOLK = [person for fold in FOLDS for person in fold]
SMALL = vg.models.SmallEye(standardize=True)
KEYS = ("change", "fold", "seed")
NONE, CLOSED, PRETRAINED = "none", "closed form", "pre-training on generated eyes"


def warm_up(done: float) -> float:
    """Return the factor of the learning rate: a tenth of the rounds to full, then a cosine."""
    return min(1.0, 0.1 + 9 * done) * (0.01 + 0.99 * 0.5 * (1 + float(np.cos(np.pi * done))))


@tagged("AveragedRounds")
@dataclass(frozen=True)
class AveragedRounds:
    """Server state: the model, the number of rounds, and the sum of the last rounds' models."""

    model: vg.Params
    rounds: int
    total: vg.Params


@dataclass(frozen=True)
class FedAvgWithSum(vg.methods.FedAvg):
    """FedAvg that also adds up the models of the last rounds."""

    length: int = ROUNDS

    def server(self, task: vg.Task) -> AveragedRounds:
        """Return the first state: the initial model, and an empty sum."""
        start = task.init()
        return AveragedRounds(start, 0, start * 0.0)

    def round(
        self, s: AveragedRounds, cohort: Sequence[vg.ClientId]
    ) -> Conversation[AveragedRounds]:
        """Let the cohort train, add the mean update, and in the last rounds add up the models."""
        got = yield from aggregate("train", to=cohort)
        model, rounds = s.model + got.mean("model"), s.rounds + 1
        total = s.total + model if rounds > self.length - LAST else s.total
        return AveragedRounds(model, rounds, total)


class NormedNet(nn.Module):
    """The network of `small_eye` with BatchNorm after each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 24, 3, 2, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.Conv2d(24, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(24 * 3 * 6, 32), nn.ReLU()),
        )
        self.fc2 = nn.Linear(32 + 2, 2)

    def forward(self, image: Tensor, pose: Tensor) -> Tensor:
        """Return the angles `[B, 2]` of crops `[B, 1, 9, 15]` and head poses `[B, 2]`."""
        return self.fc2(torch.cat([self.body(standardized(image)), pose], 1))


@dataclass(frozen=True)
class Normed(vg.Model):
    """`NormedNet` with averaged running statistics."""

    def build(self) -> nn.Module:
        """Return the network."""
        return vg.average_batch_norm(NormedNet())


FEDAVG = FedAvgWithSum(weights="equal", local=LOCAL)
WARM = replace(FEDAVG, local=replace(LOCAL, schedule=warm_up))
CHANGES: Mapping[str, tuple[vg.Model, vg.Method]] = {
    NONE: (SMALL, FEDAVG),
    CLOSED: (vg.models.KernelEye(own_centres=0), vg.methods.FedRidge(own_part=False)),
    "first filters of 5 x 5": (replace(SMALL, kernel=5), FEDAVG),
    "twice the channels, hidden 128": (replace(SMALL, channels=(32, 48), hidden=128), FEDAVG),
    "both": (replace(SMALL, kernel=5, channels=(32, 48), hidden=128), FEDAVG),
    "warm-up and cosine": (SMALL, WARM),
    "cosine": (SMALL, replace(FEDAVG, local=replace(LOCAL, schedule="cosine"))),
    "side of the eye": (replace(SMALL, side=True), FEDAVG),
    PRETRAINED: (SMALL, FEDAVG),
    "BatchNorm, averaged": (Normed(), FEDAVG),
    "without standardised input": (replace(SMALL, standardize=False), FEDAVG),
    "without head pose": (replace(SMALL, pose=False), FEDAVG),
    "240 rounds": (SMALL, replace(FEDAVG, length=LONG)),
}


@cache
def pretrained(seed: int) -> vg.Model:
    """Return the network with the weights of a run on generated people."""
    # Seeds from 100 on, which no table uses.
    made = vg.data.EyeSynthetic(people=10, samples=300, size="9x15", seed=100 + seed)
    task = vg.tasks.GazeAngle(SMALL)
    method = vg.methods.FedAvg(weights="equal", local=LOCAL)
    how: dict[str, Any] = {"evaluate_every": 0, "workers": 1, "progress": False}
    run = vg.train(method, task, made, rounds=ROUNDS, seed=seed, **how)
    return replace(SMALL, start=run.common_model())


def errors(change: str, whole: vg.Federation, fold: int, seed: int) -> dict[str, dict[str, float]]:
    """Train one run; return everybody's mean test error in degrees, by model and person."""
    model, method = CHANGES[change]
    model = pretrained(seed) if change == PRETRAINED else model
    task = vg.tasks.GazeAngle(model, seed=seed)
    ready = task.prepare(model.prepare(whole))
    known = ready.only([person for person in FOLK if person not in FOLDS[fold]])
    rounds = getattr(method, "length", 1)
    plan = vg.Plan(
        rounds=rounds, evaluate_every=0, checkpoint_every=0, workers=1, solver="sequential"
    )
    with run_folder() as folder:
        run_rounds(method, task, federation=known, plan=plan, folder=folder)
        saved: Any = folder.load(seed, method.state_records(task))
    state = saved.server
    models = {"last": state.model}
    if isinstance(state, AveragedRounds):
        models["average"] = state.total * (1 / LAST)
    network, found = task.module().eval(), {}
    for name, params in models.items():
        network.load_state_dict(dict(params.items()))
        tests = {person: ready.people[person].test for person in FOLK}
        with torch.no_grad():
            found[name] = {
                p: task.metrics(task.forward(network, dict(t.columns)), t)["angle_error_deg"]
                for p, t in tests.items()
            }
    return found


def measure(out: Path, seeds: list[int], folds: list[int], changes: list[str]) -> None:
    """Run what is missing, and append each run to the file."""
    root = Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA")) / "eyes" / "mpiigaze_9x15"
    whole = vg.data.MpiigazeCrops().load(str(root))
    for seed in seeds:
        for change in changes:
            for fold in folds:
                row = {"change": change, "fold": fold, "seed": seed}
                if (change == CLOSED and seed > 0) or present(out, row):
                    continue
                began = sum(os.times()[:4])
                for name, by_person in errors(change, whole, fold, seed).items():
                    spent = {"cpu_s": round(sum(os.times()[:4]) - began, 1)}
                    rounded = {p: round(e, 4) for p, e in by_person.items()}
                    append(out, {**row, "model": name, **spent, **rounded})


def present(out: Path, row: Mapping[str, object]) -> bool:
    """Return whether the file has this run."""
    if not out.exists():
        return False
    done = set(pd.read_csv(out)[list(KEYS)].itertuples(index=False, name=None))
    return tuple(row[key] for key in KEYS) in done


def append(out: Path, row: Mapping[str, object]) -> None:
    """Append one row, with a header if the file is new."""
    new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return degrees of p03 to p10 by change and model, and gains over no change.

    A row has the changes that both folds have, and the interval of the gain is over people.
    """
    both = runs.groupby(["change", "seed", "model"]).fold.transform(lambda f: {1, 2} <= set(f))
    tall: Any = runs[both & (runs.fold > 0)].melt([*KEYS, "model"], FOLK, "person", "degrees")
    fold_of = {person: fold for fold, people in enumerate(FOLDS) for person in people}
    tall["group"] = np.where(tall.fold == tall.person.map(fold_of), "unseen", "known")
    tall = tall[tall.person.map(fold_of) > 0]
    cells: dict[str, dict[str, object]] = {}
    for (change, model), each in tall.groupby(["change", "model"], sort=False):
        base = tall[(tall.change == NONE) & (tall.model == "last") & tall.seed.isin(each.seed)]
        row = cells[named(change, model)] = {"seeds": each.seed.nunique()}
        for group in ("unseen", "known"):
            error, without = (
                some[some.group == group].groupby("person").degrees.mean() for some in (each, base)
            )
            low, high = interval(without - error)
            row[f"degrees, {group}"] = f"{error.mean():.2f}"
            row[f"gain, {group}"] = f"{(without - error).mean():.2f} [{low:.2f}, {high:.2f}]"
    return pd.DataFrame.from_dict(cells, orient="index")


def chosen_on(runs: pd.DataFrame) -> pd.DataFrame:
    """Return mean degrees of p00 to p02, left out, by change and model."""
    rows: dict[str, str] = {}
    first: Any = runs[runs.fold == 0]
    for (change, model), each in first.groupby(["change", "model"], sort=False):
        rows[named(change, model)] = f"{each[list(FOLDS[0])].to_numpy().mean():.2f}"
    return pd.DataFrame({"degrees, p00 to p02": rows})


def named(change: str, model: str) -> str:
    """Return the name of a row."""
    return f"{change}, SWA" if model == "average" else change


def main() -> None:
    """Measure what is missing, and print the table."""
    asked = options(
        __doc__,
        out="runs/common_eye.csv",
        seeds="0,1,2",
        folds="0,1,2",
        changes=";".join(CHANGES),
        table="",
        chosen="",
    )
    torch.set_num_threads(1)
    out = Path(asked.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    seeds, folds = ([*map(int, each.split(","))] for each in (asked.seeds, asked.folds))
    measure(out, seeds, folds, asked.changes.split(";"))
    runs = pd.read_csv(out)
    for name, shown in ((asked.table, table(runs)), (asked.chosen, chosen_on(runs))):
        print(shown.to_string())
        if name:
            shown.to_csv(name, index_label="change")


if __name__ == "__main__":
    main()
