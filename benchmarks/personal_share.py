"""How much of a person's gaze on a picture is personal, by repeated viewings, and what it is.

    python -m benchmarks.personal_share --out docs/results/tables/personal_share.csv

VERGENCE_DATA names the folder with `psm` and `osie`: 30 people saw 59 pictures about four times
each. Nothing is trained. Each row is the NSS of people's viewings under a map, less that under the
map of all other people on the same picture, with its 95 % interval over people:

- all other viewings of the picture by the person, mixed in with a share of one fifth; and as many
  viewings by one other person instead, which shows what so much weight on one person costs;
- one viewing by the person, from each pair of viewings: what is remembered of a picture would make
  later viewings more alike than a first and a second one are;
- the person's mean map on the other pictures, divided by that of everybody else there: what
  somebody prefers on any picture, and all that a personal prior can know.

With `--models` common and personal models are trained on 38 of the pictures, until validation stops
gaining, and the second file has what personal models gain over FedAvg on 13 others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas as pd
import torch

import vergence as vg
from benchmarks.common.options import options
from benchmarks.pictures_by_samples import LOCAL, METHODS, ROUNDS, STOPPING, task
from vergence.core.data import Samples
from vergence.metrics.gaze_maps import fixation_counts, smoothed
from vergence.metrics.intervals import interval
from vergence.metrics.map_priors import SHARED_SIGMA
from vergence.metrics.repeated_viewings import viewing_scores
from vergence.metrics.saliency import nss

GRID = (30, 40)
EXPONENTS = (0.25, 0.5, 1.0)
# The mean map of a person has few fixations, and the blur of the own maps of OSIE is about this.
OWN_SIGMA = 0.1


def viewings(*numbers: int) -> dict[str, Samples]:
    """Return person -> all samples, of these viewings of a picture or of all."""
    root = Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA"))
    reader = vg.data.PSM(viewings=numbers or None, pictures=str(root / "osie"), size=(32, 32))
    people = reader.load(str(root / "psm")).people
    return {p: Samples.concatenate([s.train, s.val, s.test]) for p, s in people.items()}


def preferences(people: Mapping[str, Samples]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield a person's gain by the own map of the other pictures, by the exponent of that map."""
    counts = {}
    for person, samples in people.items():
        scenes = samples.columns["scene"]
        each = fixation_counts(samples.columns["points"].double(), *GRID).sum(1)
        empty = each.new_zeros(int(scenes.max()) + 1, *GRID)
        counts[person] = empty.index_add(0, scenes, each)
    total = torch.stack(list(counts.values())).sum(0)
    for person, samples in people.items():
        others = total - counts[person]
        own = _map(counts[person].sum(0) - counts[person], OWN_SIGMA)
        ratio = own / _map(others.sum(0) - others, OWN_SIGMA)
        same = _map(others, SHARED_SIGMA)
        scenes = samples.columns["scene"]
        points = samples.columns["points"].flatten(1, 2).double()
        before = nss(same[scenes], points).mean()
        gains = {}
        for exponent in EXPONENTS:
            after = nss((same * ratio**exponent)[scenes], points).mean()
            gains[f"own map of other pictures, exponent {exponent:g}"] = float(after - before)
        yield person, gains


def _map(counts: torch.Tensor, sigma: float) -> torch.Tensor:
    heat = smoothed(counts, sigma)
    return heat / heat.sum((-1, -2), keepdim=True) + 1e-6


def measure() -> pd.DataFrame:
    """Return gains in NSS, a row for each person and a column for each map."""
    everybody = viewings()
    scores = viewing_scores(everybody, *GRID)
    gains = {
        person: {
            "all own other viewings": each.personal,
            "as many of one other person": each.with_another - each.others,
        }
        for person, each in scores.items()
    }
    for pair in combinations((1, 2, 3, 4), 2):
        for person, each in viewing_scores(viewings(*pair), *GRID).items():
            gains[person]["one own viewing, of {} and {}".format(*pair)] = each.personal
    for person, each in preferences(everybody):
        gains[person] |= each
    return pd.DataFrame.from_dict(gains, orient="index")


def models(rate: float) -> pd.DataFrame:
    """Return the NSS of trained models: a row for each person, a column for each method."""
    root = Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA"))
    everybody = vg.data.PSM(pictures=str(root / "osie")).load(str(root / "psm"))
    columns, rounds = {}, ROUNDS
    for name in ("FedAvg", "FedCPF", "fine-tuning", "alone"):
        method = replace(METHODS[name], local=replace(LOCAL, lr=rate))
        how: dict[str, object] = {"evaluate_every": 1, "early_stopping": STOPPING}
        if isinstance(method, vg.methods.FedAvgFT):
            method, how = replace(method, tune_epochs=3), {"evaluate_every": 0}
        count = rounds if name == "fine-tuning" else ROUNDS
        run = vg.train(method, task(), everybody, rounds=count, workers=1, progress=False, **how)
        scores = run.curves.set_index(["point", "round", "person"]).sort_index()
        means = scores.groupby(["point", "round"])["nss"].mean()
        best = int(means["V0"].idxmax()) if "V0" in means else count
        rounds = best if name == "FedAvg" else rounds
        own = scores.loc["P0", best]
        columns |= {name: own.nss, f"{name}, own prior": own.nss_own_prior}
        print(name, best, own[["nss", "nss_own_prior"]].mean().to_dict(), flush=True)
    return pd.DataFrame(columns)


def table(gains: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each map: mean gain, interval over people, and how many people gain."""
    rows = []
    for name, column in gains.items():
        low, high = interval(column.dropna())
        rows.append(
            {
                "map": name,
                "gain in NSS": f"{column.mean():+.3f} ({low:+.3f} to {high:+.3f})",
                "people who gain": f"{int((column > 0).sum())} of {column.notna().sum()}",
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, and write and print the table."""
    asked = options(__doc__, out="runs/personal_share.csv", people="", models="", rate=3e-3)
    torch.set_num_threads(1)
    if asked.models:
        scores = models(asked.rate)
        gains = scores.drop(columns="FedAvg").sub(scores.FedAvg, axis=0)
        made = table(gains).rename(columns={"map": "model", "gain in NSS": "NSS over FedAvg"})
        made.insert(1, "NSS", [f"{scores[name].mean():.2f}" for name in made.model])
        made.to_csv(asked.models, index=False)
        print(made.to_string(index=False))
        return
    gains = measure()
    if asked.people:
        gains.round(4).to_csv(asked.people, index_label="person")
    made = table(gains)
    made.to_csv(asked.out, index=False)
    print(made.to_string(index=False))
    later = gains[[f"one own viewing, of {a} and {b}" for a, b in ((2, 3), (3, 4))]].mean(axis=1)
    first = gains["one own viewing, of 1 and 2"]
    low, high = interval((later - first).dropna())
    print(f"later pairs less the first: {(later - first).mean():+.3f} ({low:+.3f} to {high:+.3f})")


if __name__ == "__main__":
    main()
