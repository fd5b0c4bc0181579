"""What samples buy new generated people, whose common model was trained on whole eye patches.

    python -m benchmarks.adapt_generated_people --out docs/results/adapt_generated_people.csv

For each generator seed a common model is made of the 36x60 patches of 30 people: `ridge` is
`fedridge` on pixels, in closed form; `small_eye` is a small network by FedAvg, whose learning rate
falls along a cosine. Twelve further people of that seed are new: their k samples are drawn from
their training days, and errors are degrees on their test days, which are others. Variances of the
residual kernel are those of the run's residuals.json. `as adapt chooses` chooses among corrections
and kernel ways; with `--whole K` also among ways that train the network, for K samples and one
draw, which takes most of the time. With `--real FOLDER` the new people are those of MPIIGaze in
that folder, who are left out of the table. Runs and people that are there are not made again. Seeds
0 to 4 are those on which settings are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import vergence as vg
from benchmarks.common.options import options
from vergence.adaptation.choice import PULLS, candidates, choose
from vergence.adaptation.fine_tuning import (
    KERNEL_ALONE,
    LAST,
    SHARED,
    WHOLE,
    Adapter,
    FineTuning,
    pull_name,
)
from vergence.adaptation.other_people import RESIDUAL, priors_of_run
from vergence.core.randomness import RandomStream
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.metrics.calibration import orders
from vergence.metrics.intervals import interval

LOCAL = vg.LocalTraining(
    steps=8, batch=32, optimizer="adamw", lr=3e-3, weight_decay=0.01, schedule="cosine"
)
ROUNDS = 100
SMALL = vg.models.SmallEye(size=(36, 60), shrink=2, standardize=True, side=True, hidden=64)
TRAINED, NEW, SAMPLES = 30, 12, 400
COUNTS = (1, 3, 9, 27, 81)
FIXED, CHOSEN, CHOSEN_OF_ALL = "fixed variances", "as adapt chooses", "as adapt chooses, of all"
BY_STEPS = (LAST, WHOLE, *map(pull_name, PULLS))
COLUMNS = ("model", "seed", "person", "samples", "way", "degrees")


def people(count: int, seed: int) -> vg.data.EyeSynthetic:
    """Return so many generated people; the first are the same for any number."""
    return vg.data.EyeSynthetic(people=count, samples=SAMPLES, seed=seed)


def trained_run(folder: Path, model: str, seed: int) -> TrainedRun:
    """Return the run of one common model and generator seed, trained now if it is not there."""
    network: vg.Model = SMALL
    method, rounds = vg.methods.FedAvg(weights="equal", local=LOCAL), ROUNDS
    if model == "ridge":
        network = vg.models.KernelEye(image=(1, 36, 60), own_centres=0)
        method, rounds = vg.methods.FedRidge(own_part=False), 1
    run = vg.train(
        method,
        vg.tasks.GazeAngle(network),
        people(TRAINED, seed),
        plan=vg.Plan(rounds=rounds, evaluate_every=0, workers=1, solver="sequential"),
        seed=seed,
        out=folder,
        resume=True,
        progress=False,
    )
    return read_run(folder, seed, run.experiment)


def on_new_people(trained: TrainedRun, seed: int, real: str) -> TrainedRun:
    """Return the run with the new people's samples, prepared for its network."""
    whole = people(TRAINED + NEW, seed).load()
    raw = vg.data.Mpiigaze().load(real) if real else whole.only(whole.clients[TRAINED:])
    ready = trained.task.prepare(trained.experiment.model.prepare(raw))
    return trained.on_data(ready, stream=RandomStream("adapt", seed))


def measure(trained: TrainedRun, person: str, draws: int) -> list[tuple[str, int, str, float]]:
    """Return (person, samples, way, degrees) of one new person, means over draws."""
    stream = RandomStream("adapt generated people", person)
    adapter = Adapter(trained, person, FineTuning(), priors_of_run(trained))
    fixed = Adapter(trained, person, FineTuning())
    fast = [way for way in candidates(adapter) if way not in BY_STEPS]
    order = orders(len(adapter.labelled), draws, stream.numpy())
    rows = []
    for k in COUNTS:
        errors: dict[str, list[float]] = {}
        for each in order[:, :k]:
            ways = (SHARED, KERNEL_ALONE, RESIDUAL)
            models = {way: adapter.fit(way, each, stream) for way in ways}
            models[FIXED] = fixed.fit(RESIDUAL, each, stream)
            way = choose(adapter, fast, each, stream).way
            models[CHOSEN] = adapter.fit(way, each, stream)
            for name, model in models.items():
                errors.setdefault(name, []).append(adapter.error(model))
        rows += [(person, k, way, float(np.mean(e))) for way, e in errors.items()]
    return rows


def measure_whole(trained: TrainedRun, person: str, k: int) -> tuple[str, int, str, float]:
    """Return the error of one new person by the choice among all ways, for one draw."""
    stream = RandomStream("adapt generated people", person)
    adapter = Adapter(trained, person, FineTuning(pulls=PULLS), priors_of_run(trained))
    some = orders(len(adapter.labelled), 1, stream.numpy())[0, :k]
    model = adapter.fit(choose(adapter, candidates(adapter), some, stream).way, some, stream)
    return person, k, CHOSEN_OF_ALL, adapter.error(model)


def table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return degrees by way and number of samples, with the gain, its interval, and harm."""
    each = errors.set_index(["way", "samples", "seed", "person"]).degrees.unstack("samples")
    cells: dict[str, Mapping[int, str]] = {}
    for way in dict.fromkeys((SHARED, KERNEL_ALONE, FIXED, RESIDUAL, CHOSEN, CHOSEN_OF_ALL)):
        if way in each.index:
            means = each.loc[way].mean()
            cells[way] = {k: "" if np.isnan(v) else f"{v:.2f}" for k, v in means.items()}
    gain, harmed = each.loc[SHARED] - each.loc[CHOSEN], {}
    cells["gain of that choice over the shared model"] = {
        k: f"{gain[k].mean():.2f} [{low:.2f}, {high:.2f}]"
        for k in gain
        for low, high in [interval(gain[k].to_numpy())]
    }
    for way in (RESIDUAL, CHOSEN):
        worse = each.loc[way].gt(1.01 * each.loc[SHARED]).sum()
        harmed[f"people harmed by {way}, of {len(gain)}"] = worse.astype(str).to_dict()
    return pd.DataFrame.from_dict({**cells, **harmed}, orient="index")


def main() -> None:
    """Train and measure what is missing, and print the table."""
    asked = options(
        __doc__,
        out="runs/adapt_generated_people.csv",
        runs="runs/adapt_generated_people",
        model="ridge",
        seeds="11,12,13",
        draws=3,
        whole=0,
        real="",
        table="",
    )
    torch.set_num_threads(1)
    out, model = Path(asked.out), asked.model
    for seed in map(int, asked.seeds.split(",")):
        trained = trained_run(Path(asked.runs) / model / str(seed), model, seed)
        trained = on_new_people(trained, seed, asked.real)
        done = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=list(COLUMNS))
        for person in trained.ready.clients:
            same = (done.model == model) & (done.seed == seed) & (done.person == person)
            of_person = done[same]
            rows = [] if CHOSEN in set(of_person.way) else measure(trained, person, asked.draws)
            known = set(of_person.loc[of_person.way == CHOSEN_OF_ALL, "samples"])
            if asked.whole and asked.whole not in known:
                rows.append(measure_whole(trained, person, asked.whole))
            whole = [(model, seed, *row) for row in rows]
            made = pd.DataFrame(whole, columns=list(COLUMNS)).round(4)
            made.to_csv(out, mode="a", index=False, header=not out.exists())
            print(model, seed, person, flush=True)
    # Generated people have numbers from 30 on; p00 is real.
    errors = pd.read_csv(out).query("model == @model and person != 'p00'")
    shown = table(errors.drop(columns="model"))
    print(shown.to_string())
    if asked.table:
        shown.to_csv(asked.table, index_label="labelled samples")


if __name__ == "__main__":
    main()
