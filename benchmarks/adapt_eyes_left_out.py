"""What `vergence adapt` gains for eyes that a run left out, by number of labelled samples.

    python -m benchmarks.adapt_eyes_left_out --runs runs/ridge_left_out/leave-one-out/fedridge

The runs are those of `vergence study evaluate leave-one-out`. For every person and number of
samples the samples are drawn several times from the training part, and errors are degrees on the
test part. `earlier adapt` chooses without the two kernel ways, and has `--earlier` draws, as its
fine-tuning takes long.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from benchmarks.common.options import options
from vergence.adaptation.choice import PULLS, candidates, choose
from vergence.adaptation.fine_tuning import KERNEL_ALONE, SHARED, Adapter, FineTuning
from vergence.adaptation.other_people import RESIDUAL, own_priors
from vergence.core.randomness import RandomStream
from vergence.experiment.newcomers import find_held_out, fit_residuals
from vergence.metrics.calibration import orders
from vergence.results.read import read

COUNTS = (1, 3, 9, 27, 81)
OWN = "residual kernel, residuals.json"
"""Variances as a run keeps them."""
CHOSEN_ON = ("p00", "p01", "p02")
"""People on whom settings were chosen."""


def measure(folder: Path, draws: int, earlier_draws: int) -> pd.DataFrame:
    """Return the error in degrees by person, number of samples, draw and way."""
    everybody = find_held_out(folder)
    people = tuple(everybody.folders)
    seed = everybody.run(people[0]).task.seed
    priors = own_priors(everybody, people, seed)
    rows = []
    for person in people:
        run, stream = everybody.run(person), RandomStream("adapt eyes left out", person)
        adapter = Adapter(run, person, FineTuning(pulls=PULLS), priors[person])
        corrections = {way: kind for way, kind in priors[person].items() if way != RESIDUAL}
        earlier = Adapter(run, person, FineTuning(pulls=PULLS), corrections)
        # The run's own people took part in its training, which those of `priors` did not.
        took_part = read(everybody.folders[person]).runs[0].people
        kernel, _ = fit_residuals(run, took_part)
        assert kernel is not None
        own = Adapter(run, person, FineTuning(), {RESIDUAL: kernel})
        # Without others' residuals the default variances are used.
        other = {"residual kernel, default": earlier.ways.pop(RESIDUAL)}
        earlier.ways.pop(KERNEL_ALONE)
        fast = [way for way in candidates(adapter) if way in {*corrections, RESIDUAL, KERNEL_ALONE}]
        order = orders(len(adapter.labelled), draws, stream.numpy())
        for k in COUNTS:
            for draw in range(draws):
                some = order[draw, :k]
                models = {w: adapter.fit(w, some, stream) for w in (SHARED, RESIDUAL, KERNEL_ALONE)}
                models |= {name: fit(some, stream, 0) for name, fit in other.items()}
                models[OWN] = own.fit(RESIDUAL, some, stream)
                way = choose(adapter, fast, some, stream).way
                models["adapt"] = adapter.fit(way, some, stream)
                if draw < earlier_draws:
                    way = choose(earlier, candidates(earlier), some, stream).way
                    models["earlier adapt"] = earlier.fit(way, some, stream)
                errors = {name: adapter.error(model) for name, model in models.items()}
                rows += [(person, k, draw, name, error) for name, error in errors.items()]
        print(person, flush=True)
    return pd.DataFrame(rows, columns=["person", "samples", "draw", "way", "degrees"])


def table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return mean errors and the number of people harmed by more than 1 %, by way and samples."""
    each = errors.groupby(["way", "samples", "person"]).degrees.mean().unstack("way")
    harmed = each.gt(1.01 * each[SHARED], axis=0).groupby("samples").sum()
    degrees = each.groupby("samples").mean().round(2)
    return pd.concat({"degrees": degrees.T, "harmed": harmed.T}, axis=1)


def main() -> None:
    """Measure, and print the tables of everybody and of those on whom nothing was chosen."""
    asked = options(__doc__, runs="", out="runs/adapt_eyes.csv", draws=5, earlier=1)
    torch.set_num_threads(1)
    errors = measure(Path(asked.runs), asked.draws, asked.earlier)
    errors.round(4).to_csv(asked.out, index=False)
    print(table(errors).to_string())
    print(table(errors.loc[~errors.person.isin(CHOSEN_ON)]).to_string())


if __name__ == "__main__":
    main()
