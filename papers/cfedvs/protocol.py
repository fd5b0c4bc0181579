"""Protocol for video summaries: own later data or videos, how far people are apart, and the pace.

Source: the Durham thesis, sections 4.3 and 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.task import Task
from vergence.data.io.checks import data_path
from vergence.data.video_summaries.tvsum import KEYFRAMES, keyframes
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.methods.clustered.cfedvs import CFedVS
from vergence.metrics.clustering import silhouette
from vergence.metrics.dtw import dtw
from vergence.results.read import Run, StudyResults
from vergence_papers.claims import PRIOR, TablePart
from vergence_papers.data_sets import SUMMARY
from vergence_papers.running import PartResult, priors_of, settle

F, (SPREAD,), (ROUNDS,), (SILHOUETTE,) = (
    "f",
    *(SUMMARY[name] for name in ("spread", "rounds", "silhouette")),
)
RIDGE, PENALTIES = "ridge", (1.0, 10.0, 100.0, 1000.0)
"""The row of a ridge regression of single frames, and its penalties."""
Videos = Mapping[bytes, str]
"""Feature vector of a key frame, as bytes -> its video."""
LEVELS = {"tvsum": 0.48, "summe": 0.30}
"""Of F, whose first round Table 4.1 prints."""


def paced(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody on their own held-out data; and how far people are apart, and the pace.

    Both are told seed by seed, so that verdicts on them are over seeds. A run that never reaches
    the level counts as if it did one round after its last. Of groups that CFed-VS makes, their
    silhouette, the same for every seed. Where data are cut into folds, clips are scored by video
    and not by person, as every video is tested once. A part that names the row `ridge` has that of
    a linear map of single frames, learned from everybody's clips.
    """
    study = settle(experiment, out)
    level = level_of(experiment, study)
    saved = read_run(study.runs[0].folder)
    videos = videos_of(experiment.table["federation"])
    scores = {}
    for run in study.runs:
        by_metric = {metric: run.scores(metric) for metric in run.results["metrics"]}
        if videos:
            by_metric = mean_of([by_video(videos, read_run(run.folder, s)) for s in run.seeds])
        by_metric |= {SPREAD: spread(run), ROUNDS: rounds_to(level, run)}
        method = experiment.methods[run.label]
        if isinstance(method, CFedVS):
            by_metric[SILHOUETTE] = {"groups": separation(run, method.per_frame)}
        scores[run.label + part.suffix] = by_metric
    floors = video_floors(videos, saved) if videos else priors_of(study)
    scores |= {
        label.removesuffix(PRIOR) + part.suffix + PRIOR: told for label, told in floors.items()
    }
    closed = frozenset({RIDGE} & {*part.rows})
    if closed:
        scores[RIDGE] = by_video(videos, saved, ridge(saved.task, saved.ready))
    return PartResult(scores, study, lower=frozenset({SPREAD, ROUNDS}), closed=closed)


def videos_of(data: Mapping[str, object]) -> Videos:
    """Return the video of every key frame of data in folds; of other data, none."""
    if data.get("fold") is None:
        return {}
    clips = keyframes(Path(data_path(str(data["root"]))) / KEYFRAMES)
    return {row.tobytes(): name for name, clip in clips.items() for row in clip.features}


def by_video(
    videos: Videos, saved: TrainedRun, outputs: Callable[[Samples], Tensor] | None = None
) -> dict[str, dict[str, float]]:
    """Return metric -> video -> mean over its test clips; without videos, person -> mean.

    `outputs` predicts in the place of everybody's own model.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for person, splits in saved.ready.people.items():
        test = splits.test
        output = outputs(test) if outputs else saved.outputs(saved.model(person), test)
        for row in range(len(test)):
            own = test.subset(torch.tensor([row]))
            who = video_of(videos, test, row) if videos else person
            for metric, value in saved.task.metrics(output[row : row + 1], own).items():
                found.setdefault(metric, {}).setdefault(who, []).append(value)
    return {
        metric: {who: float(np.mean(values)) for who, values in told.items()}
        for metric, told in found.items()
    }


def video_of(videos: Videos, samples: Samples, row: int) -> str:
    """Return the name of the video that a clip is cut from."""
    first = samples.banks["features"].rows[samples.columns["rows"][row, 0]]
    return f"video {videos[first.numpy().tobytes()]}"


def mean_of(seeds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return metric -> video -> mean over seeds."""
    first = seeds[0]
    return {
        metric: {who: float(np.mean([s[metric][who] for s in seeds])) for who in told}
        for metric, told in first.items()
    }


def video_floors(videos: Videos, saved: TrainedRun) -> dict[str, dict[str, dict[str, float]]]:
    """Return label -> metric -> video -> value of the predictors that need no learning."""
    clips: dict[str, list[Samples]] = {}
    for splits in saved.ready.people.values():
        for row in range(len(splits.test)):
            own = splits.test.subset(torch.tensor([row]))
            clips.setdefault(video_of(videos, splits.test, row), []).append(own)
    tests = {video: Samples.concatenate(own) for video, own in clips.items()}
    people = {video: Splits(test, test, test) for video, test in tests.items()}
    floors = saved.task.priors(Federation("videos", people, saved.ready.about))
    return {
        f"{name}{PRIOR}": {
            metric: {video: told[metric] for video, told in by_person.items()}
            for metric in next(iter(by_person.values()))
        }
        for name, by_person in floors.items()
    }


def ridge(task: Task, ready: Federation) -> Callable[[Samples], Tensor]:
    """Fit importance to single frames of everybody's clips; the penalty by tau of validation."""
    train, val = (
        Samples.concatenate([getattr(splits, part) for splits in ready.people.values()])
        for part in ("train", "val")
    )
    rows = np.concatenate(
        [own[:n] for own, n in zip(train.columns["rows"], train.columns["steps"], strict=True)]
    )
    x, y = (train.banks[name].rows.numpy()[rows].astype(float) for name in ("features", "target"))
    middle, level = x.mean(0), y.mean()
    square, dot = (x - middle).T @ (x - middle), (x - middle).T @ (y - level)

    def fitted(penalty: float) -> Callable[[Samples], Tensor]:
        weights = np.linalg.solve(square + penalty * np.eye(len(square)), dot)

        def outputs(samples: Samples) -> Tensor:
            features = samples.banks["features"].rows.numpy()
            told = ((features - middle) @ weights + level).clip(1e-6, 1 - 1e-6)
            # Tasks take logits.
            return torch.from_numpy(np.log(told / (1 - told)))[samples.columns["rows"]]

        return outputs

    return max(map(fitted, PENALTIES), key=lambda one: task.metrics(one(val), val)["tau"])


def level_of(experiment: Experiment, study: StudyResults) -> float:
    """Return the F to be reached: as printed; of data that the thesis has not, half way.

    Between random importance and people, each judged by the others.
    """
    data = experiment.table["federation"]
    if data["name"] in LEVELS and not data.get("keyframes"):
        return LEVELS[data["name"]]
    floors = priors_of(study)
    ends = [list(floors[f"{who}{PRIOR}"][F].values()) for who in ("random", "people")]
    return float(np.mean(ends))


def spread(run: Run) -> dict[str, float]:
    """Return per seed how far the best person's F is above the worst one's, in points."""
    by_seed = run.final(F).groupby("seed").value
    apart = 100 * (by_seed.max() - by_seed.min())
    return {f"seed {seed}": float(apart[seed]) for seed in run.seeds}


def rounds_to(level: float, run: Run) -> dict[str, float]:
    """Return per seed the first round whose mean F is at the level.

    Training before round 1, as FedGroup's to find its groups, counts as rounds of the same length.
    """
    rounds, curves = run.curve(F)
    rounds = rounds + rounds_before(run)
    late = float(rounds[-1] + 1)
    return {
        f"seed {seed}": next(
            (float(r) for r, f in zip(rounds, curve, strict=True) if f >= level), late
        )
        for seed, curve in zip(run.seeds, curves, strict=True)
    }


def rounds_before(run: Run) -> int:
    """Return the rounds that training before round 1 is worth, by a client's steps, rounded up."""
    steps = run.turns[run.turns.steps > 0]
    first, later = steps[steps["round"] < 1], steps[steps["round"] == 1]
    if not len(first) or not len(later):
        return 0
    each = [own.groupby(["seed", "client"]).steps.sum().mean() for own in (first, later)]
    return math.ceil(each[0] / each[1])


def separation(run: Run, per_frame: bool) -> float:
    """Return the silhouette of CFed-VS's groups by |d_i - d_j|; 0 for one group."""
    saved = read_run(run.folder)
    proxies = [clip.numpy() for clip in saved.server.proxies.values()]
    if not proxies:
        return 0.0
    everybody = saved.ready.people
    groups_of: Mapping[str, int] = saved.server.groups
    d = []
    for person in groups_of:
        clips = saved.task.sequences(everybody[person].train)
        d.append(
            [np.mean([dtw(clip.numpy(), proxy, per_frame) for clip in clips]) for proxy in proxies]
        )
    return silhouette(cdist(d, d), np.array(list(groups_of.values())))


PROTOCOLS = {"paced": paced}
