"""What a person gains by joining, by number of own pictures, with models that stopped gaining.

    python -m benchmarks.pictures_by_samples --out docs/results/pictures_by_samples.csv

VERGENCE_DATA names the folder with `crowd` and `osie`. Each viewer has so many training pictures of
their own, chosen at random, and all validation and test pictures. Everybody trains in rounds of 20
steps until the mean NSS on validation pictures has not improved for 60 steps, or for 20 rounds, and
the scores are those of the evaluation with the best validation NSS. Fine-tuning trains for as many
rounds as FedAvg did, and then for three epochs (ten of 20 pictures; the short one for one). Every
row has the same search: two settings (learning rates; of the nearest picture two blurs), tried with
seed 0 on six viewers of `crowd`. OSIE gets the setting with the better mean there, so nothing was
chosen on its viewers.

A finished run is two lines of the file, without and with the own prior (`personal_prior = "auto"`,
the same trained model), appended at once; runs that are there are not run again. Columns: steps of
gradient descent that each person took, kB that each person sent, CPU seconds, the mean NSS on
validation pictures, the smallest loss against training alone that the test can show, and the NSS of
each viewer. The smallest loss is 2.8 (1.96 + 0.84: found in 80 of 100 tests) standard errors of the
difference over a viewer's test pictures, as a share of the NSS alone, for the viewer for whom it is
largest; each picture's NSS is kept in a folder beside the file for it. `--curves` is a second file
with a line for each evaluation on the way: the mean NSS without the own prior. `--tables` writes
the tables of the page into a folder, and measures nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

import vergence as vg
from benchmarks.common.options import options
from vergence.core.data import Samples, Splits
from vergence.data.few_data import FewSamples
from vergence.metrics import saliency
from vergence.metrics.gaze_maps import fixation_counts, smoothed
from vergence.metrics.intervals import interval
from vergence.metrics.map_priors import static_priors
from vergence.metrics.personal_priors import BANK, ROW

GRID = (30, 40)
LOCAL = vg.LocalTraining(steps=20, batch=10, optimizer="adamw", weight_decay=0.01)
STOPPING = vg.EarlyStopping(patience=3)
ROUNDS = 20
KEYS = ["set", "method", "samples", "seed", "setting"]
FACTS = [*KEYS, "prior", "round", "steps", "kB_up", "cpu_s", "validation", "smallest_loss"]
VIEWERS = [f"v{number:02d}" for number in range(15)]
POWER = 1.96 + 0.84
RATES = (1e-3, 3e-3)
BLURS = (0.1, 0.2)
CHOSEN_ON = "crowd"
BASELINES = "baselines"
STRANGERS = "FedAvg of others"
"""The model of other viewers, for somebody who gives no label."""
METHODS: Mapping[str, vg.Method] = {
    "alone": vg.methods.LocalOnly(),
    "FedAvg": vg.methods.FedAvg(),
    "fine-tuning": vg.methods.FedAvgFT(),
    "short fine-tuning": vg.methods.FedAvgFT(),
    "FedCPF": vg.methods.FedCPF(rate=0.1),
    "random choice": vg.methods.FedCPF(rate=0.1, select="random"),
    "interpolation": vg.methods.Interpolation(),
    "FedPer": vg.methods.FedPer(),
    "Ditto": vg.methods.Ditto(),
}
READERS = {"crowd": vg.data.Eyecrowd(viewers=(0, 1, 2, 3, 4, 6)), "osie": vg.data.Osie()}
"""Of `crowd` six viewers, for time; the gaze of viewer 5 is displaced on all pictures."""
FITS = {"interpolation": 3, "Ditto": 2}
"""Times that a person trains for `LOCAL.steps` in a round; others once."""


PICTURES: dict[float, Tensor] = {}
"""Mean NSS -> the NSS of each picture, of all that was measured: runs keep the means alone."""


@dataclass(frozen=True)
class Pictures(vg.tasks.GazeMap):
    """Gaze maps that are scored by NSS alone, without and with the own prior."""

    uses_validation: ClassVar[bool] = False

    def metrics(
        self, outputs: Tensor, samples: Samples, threshold: float | None = None
    ) -> dict[str, float]:
        """Return the NSS of the network's maps, and of these times the own prior."""
        prior = samples.banks[BANK].rows[samples.columns[ROW]][:, None]
        plain = self.nss(outputs - prior.to(outputs.dtype), samples)
        return {"nss": plain, "nss_own_prior": self.nss(outputs, samples), "score": plain}

    def evaluate(self, outputs: Tensor, samples: Samples, *validation: Any) -> dict[str, float]:
        """Return `metrics`: NSS needs no threshold."""
        return self.metrics(outputs, samples)

    def nss(self, outputs: Tensor, samples: Samples) -> float:
        """Return the mean NSS of these maps."""
        scored = self._scored(outputs, samples)
        each = saliency.nss(scored.maps, scored.points)
        mean = float(each.mean())
        PICTURES[mean] = each
        return mean


def task() -> Pictures:
    """Return the task of all runs."""
    network = vg.models.GlcFeatures(grid=GRID, width=32)
    how = {"sigma": 0.02, "score_from": "f1_best", "personal_prior": "auto"}
    return Pictures(network, criterion="kl", **how)


def viewers(name: str, samples: int) -> vg.Federation:
    """Return a set's viewers, each with so many training pictures of their own."""
    whole = READERS[name].load(str(Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA")) / name))
    return FewSamples(samples_per_person=samples).apply(whole)


def measure(out: Path, curves: Path, method: str, samples: int, seed: int) -> None:
    """Run what is missing for this method and number of pictures, and append each run."""
    for name in ("crowd", "osie"):
        everybody = viewers(name, samples)
        row: dict[str, Any] = {"set": name, "method": method, "samples": samples, "seed": seed}
        if method == BASELINES:
            baselines(out, everybody, row)
            continue
        for rate in RATES if (name, seed) == ("crowd", 0) else [chosen(out, method, samples)]:
            row["setting"] = rate
            if not present(out, row):
                train(out, curves, row, everybody)


def baselines(out: Path, everybody: vg.Federation, row: dict[str, Any]) -> None:
    """Append the rows without learning."""
    maps = static_priors(everybody, *GRID)
    for method, prior in (("crowd's map", "global prior"), ("own map", "personal prior")):
        if not present(out, known := {**row, "method": method, "setting": 0.0}):
            made = maps[prior]
            scores = {
                p: score(made(p)[None, None].expand(len(s.test), 1, -1, -1), s.test)
                for p, s in everybody.people.items()
            }
            append(out, [{**known, "prior": "none", **scores}], [*FACTS, *VIEWERS])
    for blur in BLURS:
        if not present(out, known := {**row, "method": "nearest picture", "setting": blur}):
            prepared = task().network.prepare(everybody)
            scores = {p: score(nearest(s, blur), s.test) for p, s in prepared.people.items()}
            append(out, [{**known, "prior": "none", **scores}], [*FACTS, *VIEWERS])


def nearest(splits: Splits, blur: float) -> Tensor:
    """Return the map of the own training picture with the most similar mean frozen features."""
    test, train = (
        normalize(part.take(slice(None))["frames"].float().mean((1, 3, 4)))
        for part in (splits.test, splits.train)
    )
    counts = fixation_counts(splits.train.columns["points"].double(), *GRID)
    return smoothed(counts[(test @ train.T).argmax(1)], blur)


def score(maps: Tensor, samples: Samples) -> float:
    """Return the mean NSS of maps `[samples, 1, rows, columns]`."""
    outputs = (maps / maps.sum((-1, -2), keepdim=True)).clamp(min=1e-12).log()
    return round(Pictures.nss(task(), outputs, samples), 4)


def train(out: Path, curves: Path, row: dict[str, Any], everybody: vg.Federation) -> None:
    """Train one row to the end, and append it."""
    began = sum(os.times()[:4])
    name, samples, seed = row["method"], row["samples"], row["seed"]
    method, tuning = replace(METHODS[name], local=replace(LOCAL, lr=row["setting"])), 0
    how: dict[str, Any] = {"seed": seed, "workers": 1, "progress": False}
    if isinstance(method, vg.methods.FedAvgFT):
        # Training alone is best after 60 to 100 steps: ten passes over 200 pictures are too many.
        epochs = 1 if name.startswith("short") else max(3, 200 // samples)
        method = replace(method, tune_epochs=epochs)
        tuning = method.tune_epochs * -(-samples // LOCAL.batch)
        how |= {"rounds": common_rounds(out, row), "evaluate_every": 0}
    else:
        how |= {"rounds": ROUNDS, "evaluate_every": 1, "early_stopping": STOPPING}
    run = vg.train(method, task(), everybody, **how)
    scores = run.curves.set_index(["point", "round", "person"]).sort_index()
    scores = scores[["nss", "nss_own_prior"]]
    means = scores.groupby(["point", "round"]).mean().nss
    best = int(means["V0"].idxmax()) if "V0" in means else how["rounds"]
    sent = run.history.bytes_up.cumsum() / 1000
    row = {**row, "round": best, "steps": FITS.get(name, 1) * LOCAL.steps * best + tuning}
    row |= {"kB_up": round(sent[best], 1), "cpu_s": round(sum(os.times()[:4]) - began, 1)}
    row["validation"] = round(means["V0"][best], 4) if "V0" in means else None
    own = scores.loc["P0", best]
    rows = []
    for prior, column in (("none", "nss"), ("own", "nss_own_prior")):
        pictures = {person: PICTURES[value].numpy() for person, value in own[column].items()}
        loss = smallest_loss(out.with_suffix(""), row, prior, pictures)
        known = {"prior": prior, "smallest_loss": loss}
        rows.append({**row, **known, **own[column].round(4).to_dict()})
    append(out, rows, [*FACTS, *VIEWERS])
    on_the_way = means["P0"].round(4).rename("nss").reset_index()
    append(curves, on_the_way.assign(**{key: row[key] for key in KEYS}), [*KEYS, "round", "nss"])
    print({**row, "nss": own.mean().round(3).to_dict()}, flush=True)


def strangers(out: Path, samples: int, seed: int) -> None:
    """Append the NSS of viewers of OSIE under the FedAvg model of others, without any label.

    Each third of the viewers is left out once; rate and rounds are those of FedAvg with everybody.
    """
    rate = chosen(out, "FedAvg", samples)
    row = {"set": "osie", "method": STRANGERS, "samples": samples, "seed": seed, "setting": rate}
    if present(out, row):
        return
    everybody, scores = viewers("osie", samples), {}
    method = vg.methods.FedAvg(local=replace(LOCAL, lr=rate))
    rounds = common_rounds(out, row)
    how: dict[str, Any] = {"seed": seed, "workers": 1, "progress": False, "evaluate_every": 0}
    for part in range(3):
        others = everybody.clients[part::3]
        rest = everybody.only([p for p in everybody.clients if p not in others])
        run = vg.train(method, task(), rest, rounds=rounds, **how)
        for person in others:
            test = everybody.people[person].test
            scores[person] = round(Pictures.nss(task(), run.predict(None, test), test), 4)
    append(out, [{**row, "prior": "none", "round": rounds, **scores}], [*FACTS, *VIEWERS])


def smallest_loss(
    folder: Path, row: Mapping[str, Any], prior: str, pictures: Mapping[str, np.ndarray]
) -> float:
    """Keep the NSS of each picture, and return the smallest loss that a test of them can show."""
    folder.mkdir(exist_ok=True)
    where = "{set}-{samples}-{seed}".format(**row)
    np.savez(
        folder / "{}-{method}-{setting}-{prior}.npz".format(where, **row, prior=prior), **pictures
    )
    rate = (
        row["setting"]
        if row["set"] == CHOSEN_ON
        else chosen(folder.with_suffix(".csv"), "alone", row["samples"])
    )
    against = folder / f"{where}-alone-{rate}-none.npz"
    if not against.exists():
        raise SystemExit(f"{against} is missing: run --methods alone into the same --out first")
    alone = np.load(against)
    losses = []
    for person, mine in pictures.items():
        error = (alone[person] - mine).std(ddof=1) / len(mine) ** 0.5
        losses.append(POWER * error / alone[person].mean())
    return round(float(max(losses)), 4)


def common_rounds(out: Path, row: Mapping[str, Any]) -> int:
    """Return after how many rounds FedAvg was best at this rate, on these viewers or `crowd`'s."""
    table = pd.read_csv(out)
    same = (table.method == "FedAvg") & (table.samples == row["samples"])
    runs = table[same & (table.setting == row["setting"])].set_index("set")
    return int(runs.loc[[row["set"] if row["set"] in runs.index else CHOSEN_ON], "round"].iloc[0])


def present(out: Path, row: Mapping[str, object]) -> bool:
    """Return whether the file has this run."""
    if not out.exists():
        return False
    done = set(pd.read_csv(out)[KEYS].itertuples(index=False, name=None))
    return tuple(row[key] for key in KEYS) in done


def chosen(out: Path, method: str, samples: int) -> float:
    """Return the setting with the better mean NSS of the viewers of `crowd`, with seed 0."""
    table = pd.read_csv(out)
    same = (table.set == CHOSEN_ON) & (table.method == method) & (table.samples == samples)
    tried = table[same & (table.seed == 0) & (table.prior == "none")]
    return float(tried.loc[tried[VIEWERS].mean(axis=1).idxmax(), "setting"])


def table(file: Path, name: str) -> pd.DataFrame:
    """Return one row for each number of pictures and method, of the viewers of one set.

    Gains are person by person, over training alone without the prior in the same seeds, and of the
    own prior over the same model without it, each with its 95 % interval over viewers. Seeds are
    averaged within a person; of the smallest losses shown the largest counts.
    """
    every = pd.read_csv(file)
    rows = []
    for samples in sorted(set(every.samples)):
        runs = every[(every.set == name) & (every.samples == samples)]
        best = {m: chosen(file, m, samples) for m in runs.method.unique() if m != STRANGERS}
        best[STRANGERS] = best.get("FedAvg", np.nan)
        runs = runs[[best[m] == s for m, s in zip(runs.method, runs.setting, strict=True)]]
        nss = runs.set_index(["method", "prior", "seed"])[VIEWERS].sort_index()
        nss = nss.astype(float).dropna(axis=1)
        alone = nss.loc["alone", "none"]
        for method, own_runs in runs[runs.prior == "none"].groupby("method", sort=False):
            own = nss.loc[method, "none"]
            gain = (own - alone).dropna().mean()
            row = {
                "own pictures": samples,
                "method": method,
                "rate": best[method] if own_runs["round"].notna().all() else "",
                "seeds": len(own),
                "NSS": f"{own.mean().mean():.2f} ({bounds(own.mean(), '.2f')})",
                "over alone": f"{gain.mean():+.2f} ({bounds(gain, '+.2f')})",
                "worse than alone": f"{int((gain < 0).sum())} of {len(gain)}",
            }
            if method == "alone":
                row |= {"over alone": "", "worse than alone": ""}
            loss = own_runs.smallest_loss.max() if method != "alone" else np.nan
            row["smallest loss shown"] = f"{100 * loss:.0f} %" if loss == loss else ""
            if (method, "own") in set(zip(runs.method, runs.prior, strict=True)):
                more = (nss.loc[method, "own"] - own).mean()
                row["by the own prior"] = f"{more.mean():+.3f} ({bounds(more, '+.3f')})"
                spent = own_runs[["steps", "kB_up"]].mean()
                row |= {"steps": f"{spent.steps:.0f}", "kB up": f"{spent.kB_up:.0f}"}
            rows.append(row)
    return pd.DataFrame(rows).fillna("")


def bounds(values: pd.Series, form: str) -> str:
    """Return the 95 % interval over viewers as text."""
    return " to ".join(format(bound, form) for bound in interval(values))


def equal_steps(curves: Path, name: str) -> pd.DataFrame:
    """Return the mean NSS of a set's viewers by number of gradient steps of each person."""
    every = pd.read_csv(curves)
    every = every[(every.set == name) & (~every.method.str.endswith("fine-tuning"))]
    fits = every.method.map(FITS).fillna(1)
    every = every.assign(steps=(fits * LOCAL.steps * every["round"]).astype(int))
    every = every[every.steps.isin((20, 40, 60, 120, 180))]
    keys = ["samples", "method"]
    wide = every.pivot_table("nss", keys, "steps", sort=False).round(2).reset_index()
    wide = wide.sort_values("samples", kind="stable").rename(columns={"samples": "own pictures"})
    wide = wide.rename(columns={n: f"{n} steps" for n in (20, 40, 60, 120, 180)})
    return wide.astype(object).where(wide.notna(), "")


def append(out: Path, rows: Any, columns: list[str]) -> None:
    """Append rows, with a header if the file is new."""
    table = pd.DataFrame(rows).reindex(columns=columns)
    table.to_csv(out, mode="a", header=not out.exists(), index=False)


def main() -> None:
    """Measure, and print the table."""
    asked = options(
        __doc__,
        out="runs/pictures_by_samples.csv",
        curves="runs/pictures_curves.csv",
        samples="200,20",
        seeds="0",
        methods="",
        tables="",
    )
    torch.set_num_threads(1)
    names = asked.methods.split(",") if asked.methods else [BASELINES, *METHODS, STRANGERS]
    sizes = [int(number) for number in asked.samples.split(",")]
    if asked.tables:
        folder = Path(asked.tables)
        for name in READERS:
            made = table(Path(asked.out), name)
            made.to_csv(folder / f"pictures_{name}.csv", index=False)
            print(made.to_string(index=False))
        made = equal_steps(Path(asked.curves), "osie")
        made.to_csv(folder / "pictures_equal_steps.csv", index=False)
        print(made.to_string(index=False))
        return
    for seed, method, samples in product(asked.seeds.split(","), names, sizes):
        if method == STRANGERS:
            strangers(Path(asked.out), samples, int(seed))
        else:
            measure(Path(asked.out), Path(asked.curves), method, samples, int(seed))


if __name__ == "__main__":
    main()
