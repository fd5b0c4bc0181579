"""Protocol for video summaries: own later data, how far people are apart, and the pace.

Source: the Durham thesis, sections 4.3 and 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.spatial.distance import cdist

from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import read_run
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
LEVELS = {"tvsum": 0.48, "summe": 0.30}
"""Of F, whose first round Table 4.1 prints."""


def paced(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody on their own held-out data; and how far people are apart, and the pace.

    Both are told seed by seed, so that verdicts on them are over seeds. A run that never reaches
    the level counts as if it did one round after its last. Of groups that CFed-VS makes, their
    silhouette, the same for every seed.
    """
    study = settle(experiment, out)
    level = level_of(experiment, study)
    scores = {}
    for run in study.runs:
        by_metric = {metric: run.scores(metric) for metric in run.results["metrics"]}
        by_metric |= {SPREAD: spread(run), ROUNDS: rounds_to(level, run)}
        method = experiment.methods[run.label]
        if isinstance(method, CFedVS):
            by_metric[SILHOUETTE] = {"groups": separation(run, method.per_frame)}
        scores[run.label + part.suffix] = by_metric
    floors = {
        label.removesuffix(PRIOR) + part.suffix + PRIOR: told
        for label, told in priors_of(study).items()
    }
    return PartResult({**scores, **floors}, study, lower=frozenset({SPREAD, ROUNDS}))


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
