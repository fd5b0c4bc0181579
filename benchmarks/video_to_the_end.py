"""Gaze maps on video, with models that stopped gaining: what a person gains by joining.

    python -m benchmarks.video_to_the_end --out docs/results/video_to_the_end.csv \
        --clips docs/results/video_clips.csv

VERGENCE_DATA names the folder with `hevc_video`: the first eight of its 24 viewers, for time, with
23 clips to train on, 3 for validation and 7 to test on, the same for everybody. With `--set
gazecom` it is the one with `gazecom_video`, of whose 36 viewers the first eight count, with 12, 2
and 4 clips. A step trains on 72 frames (three windows of 24, causal network) or on 64 (eight
windows of 8: the windowed network, and once the causal one).
Everybody trains in rounds of 10 steps until the mean NSS on validation clips has not improved for
30 steps, or for 15 rounds, and the scores are those of the evaluation with the best validation NSS.
Fine-tuning trains for as many rounds as FedAvg did, and then for two epochs. All rows have one
learning rate, the better one of `benchmarks.pictures_by_samples` for most of its rows, and one
seed.

A finished run is two lines of the file, without and with the own prior (`personal_prior = "auto"`,
the same trained model), appended at once; runs that are there are not run again. Columns: the round
that is scored, steps of gradient descent that each person took until then, kB that each person
sent, CPU seconds of the whole run, the mean NSS on validation clips, and the NSS of each viewer.
`--clips` is a second file with a line for each run and test clip: the NSS of each viewer on it,
without the own prior. `--tables` writes the table of the page into a folder, and measures nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import vergence as vg
from benchmarks.common.options import options
from benchmarks.pictures_by_samples import FITS, METHODS, POWER, Pictures, append, bounds
from vergence.core.data import Samples
from vergence.metrics import saliency
from vergence.metrics.map_priors import static_priors

GRID = (24, 40)
SETS = {
    "hevc_video": (vg.data.HEVCVideo, "hevc_video", [f"v{number:02d}" for number in range(8)]),
    "gazecom": (vg.data.GazeCom, "gazecom_video", [f"P{number:02d}" for number in range(1, 9)]),
}
"""Name -> class of the data, its folder, and the viewers that are measured."""
LOCAL = vg.LocalTraining(steps=10, optimizer="adamw", lr=3e-3, weight_decay=0.01)
STOPPING = vg.EarlyStopping(patience=3)
ROUNDS, TUNING_EPOCHS = 15, 2
MODELS = {
    "causal": (vg.models.GlcCausal(grid=GRID), 24, 3),
    "windowed": (vg.models.GlcFeatures(grid=GRID, width=32), 8, 8),
    "causal, 8 frames": (vg.models.GlcCausal(grid=GRID), 8, 8),
}
"""Name -> network, frames of a window and windows of a batch."""
ROWS = (
    ("causal", "FedAvg"),
    ("windowed", "FedAvg"),
    ("causal", "alone"),
    ("causal", "FedCPF"),
    ("causal", "fine-tuning"),
    ("causal", "random choice"),
    ("causal, 8 frames", "FedAvg"),
)
KEYS = ["model", "method"]
FACTS = [*KEYS, "prior", "round", "steps", "kB_up", "cpu_s", "validation"]
STARTS = 1000
"""A window's `scene` is its clip's number times this, plus its first frame."""
CLIPS: dict[float, pd.Series] = {}
"""Mean NSS -> the mean NSS on each clip, of all that was measured: runs keep the means alone."""


@dataclass(frozen=True)
class Video(Pictures):
    """Gaze maps that are scored by NSS alone, and remember it for each clip."""

    def nss(self, outputs: Tensor, samples: Samples) -> float:
        """Return the mean NSS over all frames with gaze."""
        scored = self._scored(outputs, samples)
        each = saliency.nss(scored.maps, scored.points)
        clip = samples.columns["scene"][scored.sample] // STARTS
        mean = float(each.mean())
        CLIPS[mean] = pd.Series(each.numpy()).groupby(clip.numpy()).mean()
        return mean


def task(model: str) -> Video:
    """Return the task of one network, scored without and with the own prior."""
    how = {"sigma": 0.03, "score_from": "f1_best", "personal_prior": "auto"}
    return Video(MODELS[model][0], criterion="kl", **how)


def viewers(model: str, data: str) -> vg.Federation:
    """Return the viewers, with windows as long as the network takes them."""
    dataset, folder, people = SETS[data]
    root = Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA")) / folder
    return dataset(window=MODELS[model][1], people=tuple(people)).load(str(root))


def train(
    data: str, model: str, name: str, rounds: int
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Train one row to the end; fine-tuning begins after `rounds`.

    Returns:
        The two lines of the file, and those of the clips.
    """
    began = sum(os.times()[:4])
    everybody, batch = viewers(model, data), MODELS[model][2]
    method, tuning = replace(METHODS[name], local=replace(LOCAL, batch=batch)), 0
    how: dict[str, Any] = {"rounds": ROUNDS, "evaluate_every": 1, "early_stopping": STOPPING}
    if isinstance(method, vg.methods.FedAvgFT):
        method = replace(method, tune_epochs=TUNING_EPOCHS)
        windows = max(len(splits.train) for splits in everybody.people.values())
        tuning = TUNING_EPOCHS * -(-windows // batch)
        how = {"rounds": rounds, "evaluate_every": 0}
    run = vg.train(method, task(model), everybody, workers=1, progress=False, **how)
    scores = run.curves.set_index(["point", "round", "person"]).sort_index()
    means = scores.groupby(["point", "round"]).mean()["nss"]
    best = int(means["V0"].idxmax()) if "V0" in means else how["rounds"]
    row = {"model": model, "method": name, "round": best}
    row |= {"steps": FITS.get(name, 1) * LOCAL.steps * best + tuning}
    row |= {"kB_up": round(run.history.bytes_up.cumsum()[best] / 1000, 1)}
    row |= {"cpu_s": round(sum(os.times()[:4]) - began, 1)}
    row |= {"validation": round(means["V0"][best], 4)} if "V0" in means else {}
    own = scores.loc["P0", best]
    print(row, own.nss.mean(), own.nss_own_prior.mean(), flush=True)
    clips = pd.DataFrame({person: CLIPS[value] for person, value in own.nss.items()}).round(4)
    return [
        {**row, "prior": prior, **own[column].round(4).to_dict()}
        for prior, column in (("none", "nss"), ("own", "nss_own_prior"))
    ], clips.rename_axis("clip").reset_index().assign(model=model, method=name)


def baselines(data: str) -> list[dict[str, Any]]:
    """Return the rows without learning, of the windows of the causal network."""
    everybody, scored = viewers("causal", data), task("causal")
    maps = static_priors(everybody, *GRID)
    rows = []
    for name, prior in (
        ("centre", "centre"),
        ("crowd's map", "global prior"),
        ("own map", "personal prior"),
    ):
        scores = {
            p: scored.nss(
                maps[prior](p).log().expand(*s.test.columns["points"].shape[:2], -1, -1), s.test
            )
            for p, s in everybody.people.items()
        }
        rows.append({"method": name, "prior": "none", **pd.Series(scores).round(4).to_dict()})
    return rows


def table(runs: Path, clips: Path) -> pd.DataFrame:
    """Return one row for each run, with gains person by person and their 95 % intervals.

    Gains are over the causal network alone without the prior, and of the own prior over the same
    model without it. The smallest loss against training alone that the test can show is 2.8 (1.96 +
    0.84: found in 80 of 100 tests) standard errors of the difference over a viewer's test clips, as
    a share of the NSS alone, for the viewer for whom it is largest.
    """
    every = pd.read_csv(runs).fillna({"model": ""})
    nss = every.set_index(FACTS)
    nss.index = nss.index.droplevel(FACTS[3:])
    by_clip = pd.read_csv(clips).set_index([*KEYS, "clip"]).sort_index()
    alone = ("causal", "alone")
    rows = []
    for _, run in every[every.prior == "none"].iterrows():
        key = (run.model, run.method)
        own, known = nss.loc[(*key, "none")], key in by_clip.index
        row = {
            "network": run.model,
            "method": run.method,
            "NSS": f"{own.mean():.2f} ({bounds(own, '.2f')})",
        }
        if (*alone, "none") in nss.index and key != alone:
            gain = own - nss.loc[(*alone, "none")]
            row["over alone"] = f"{gain.mean():+.2f} ({bounds(gain, '+.2f')})"
            row["worse than alone"] = f"{int((gain < 0).sum())} of {len(own)}"
            if known and alone in by_clip.index:
                difference = by_clip.loc[alone] - by_clip.loc[key]
                error = difference.std(ddof=1) / len(difference) ** 0.5
                loss = POWER * error / by_clip.loc[alone].mean()
                row["smallest loss shown"] = f"{100 * loss.max():.0f} %"
        if (*key, "own") in nss.index:
            more = nss.loc[(*key, "own")] - own
            row["by the own prior"] = f"{more.mean():+.3f} ({bounds(more, '+.3f')})"
            row |= {"steps": f"{run.steps:.0f}", "kB up": f"{run.kB_up:.0f}"}
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def main() -> None:
    """Measure what is missing, or write the table."""
    asked = options(
        __doc__,
        out="runs/video_to_the_end.csv",
        clips="runs/video_clips.csv",
        tables="",
        set="hevc_video",
    )
    torch.set_num_threads(1)
    out, clips = Path(asked.out), Path(asked.clips)
    if asked.tables:
        made = table(out, clips)
        name = "video_to_the_end" if asked.set == "hevc_video" else f"video_{asked.set}"
        made.to_csv(Path(asked.tables) / f"{name}.csv", index=False)
        print(made.to_string(index=False))
        return
    columns = [*FACTS, *SETS[asked.set][2]]
    if not out.exists():
        append(out, baselines(asked.set), columns)
    for model, name in ROWS:
        every = pd.read_csv(out)
        rounds = every[(every.model == model) & (every.prior == "none")].set_index("method")
        if name not in rounds.index:
            common = int(rounds["round"].get("FedAvg", ROUNDS))
            rows, by_clip = train(asked.set, model, name, common)
            append(out, rows, columns)
            append(clips, by_clip, [*KEYS, "clip", *SETS[asked.set][2]])


if __name__ == "__main__":
    main()
