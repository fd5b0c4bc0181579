"""Negative transfer in a study: people harmed by a method, whom a simpler one serves better.

The references are training alone, FedAvg, and the baseline from a person's own training data.

Used by `experiment.sample_scores`, `studies.compare`, `studies.comparison_tables`,
`studies.merge_splits` and `studies.protocols`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from vergence.metrics.fairness import HARM
from vergence.metrics.harm import Blocks, Loss, loss_of
from vergence.results.read import Run, StudyResults, table

Scores = Mapping[str, Mapping[str, tuple[float, float]]]
"""Person -> block of test samples -> sum of the headline and number of what it sums."""
METHODS = ("local_only", "fedavg")
SAMPLES, PRIORS = "samples.csv", "prior_samples.csv"
PICTURE, SCENE = "picture", "scene"
"""First words of blocks that have a number of the data set's own, the same one in every split."""
# Samples that follow each other are alike: a bootstrap over single ones would be too certain.
RUNS = 20
"""Runs of neighbouring samples that a person's samples are cut into."""


@dataclass(frozen=True)
class Harm:
    """Losses of people under one method, compared with the best reference for each of them.

    People are left out who have fewer than `LEAST` blocks of test samples, no scores of samples in
    the run, or no reference with scores of the same samples.
    """

    references: tuple[str, ...]
    losses: Mapping[str, Loss]

    @property
    def people(self) -> list[str]:
        """The people harmed, the most certain first."""
        harmed = [person for person, loss in self.losses.items() if loss.harmed]
        return sorted(harmed, key=lambda person: -self.losses[person].bound)

    def worst(self) -> list[tuple[str, Loss]]:
        """Return the people harmed, the largest loss first."""
        pairs = [(person, self.losses[person]) for person in self.people]
        return sorted(pairs, key=lambda each: -each[1].loss)

    @property
    def shown(self) -> float:
        """Smallest loss, as a share, that the test samples would have shown in every person.

        The interval of such a loss is assumed to be as wide as that of the measured loss.
        """
        return max((HARM + each.loss - each.bound for each in self.losses.values()), default=0.0)

    def __str__(self) -> str:
        count = f"{len(self.people)} of {len(self.losses)}" if self.losses else ""
        return count if self.people or not count else f"{count} (from {self.shown:.0%})"


def harms(study: StudyResults) -> dict[str, Harm]:
    """Return label -> harm in the headline metric.

    Each run is compared with the references of its own experiment, where that has any.
    """
    return {run.label: _harm(study, run) for run in study.runs}


def _harm(study: StudyResults, run: Run) -> Harm:
    near = tuple(each for each in study.runs if each.folder.parent == run.folder.parent)
    same_experiment = StudyResults(study.folder, near, {})
    references: dict[str, Scores] = {}
    for name in METHODS:
        other = same_experiment.find(name) or study.find(name)
        # Blocks are numbered, so that those of other data may have the same names.
        if other is None or other.label == run.label or _data(other) != _data(run):
            continue
        if scores := sample_scores(other):
            references[other.title] = scores
    references |= own_prior(run)
    losses: dict[str, Loss] = {}
    for person, mine in sample_scores(run).items():
        same = {
            name: bootstrap_units(scores[person], mine)
            for name, scores in references.items()
            if scores.get(person, {}).keys() == mine.keys()
        }
        loss = loss_of(bootstrap_units(mine, mine), same, run.headline in run.lower_is_better)
        if loss is not None and person in run.people:
            losses[person] = loss
    return Harm(tuple(references), losses)


def _data(run: Run) -> object:
    return run.provenance.get("data", {}).get("sha256")


def sample_scores(run: Run) -> Scores:
    """Return the scores of a run's test samples, all seeds together; empty if it has none."""
    path = run.folder / SAMPLES
    return read_sample_scores(path) if path.exists() else {}


def read_sample_scores(path: Path, prior: str = "") -> Scores:
    """Read the scores of samples in a file, all seeds and splits together.

    Args:
        path: samples.csv or prior_samples.csv.
        prior: the baseline to read, in a file with several.
    """
    return _read(path, prior, path.stat().st_mtime_ns)


def own_prior(run: Run) -> dict[str, Scores]:
    """Return the name and scores of the baseline from people's own data."""
    for folder in (run.folder, run.folder.parent):
        path = folder / PRIORS
        if path.exists():
            names = table(path).prior.unique()
            return {name: read_sample_scores(path, name) for name in names}
    return {}


@lru_cache(maxsize=64)
def _read(path: Path, prior: str, _: int) -> Scores:
    """Read a file once for all tables; its time of change, the last argument, shows a new run."""
    rows = table(path)
    rows = rows[rows.prior == prior] if prior else rows
    rows = rows.assign(total=rows.value * rows.counted)
    # The sum of pandas treats NaN as 0, so blocks with a NaN are marked.
    rows = rows.assign(known=rows.total.notna())
    by_block = rows.groupby(["person", "block"], sort=False)
    sums = by_block[["total", "counted"]].sum().assign(known=by_block.known.all())
    scores: dict[str, dict[str, tuple[float, float]]] = {}
    for (person, block), total, counted, known in sums.itertuples():
        scores.setdefault(person, {})[block] = (total if known else math.nan, counted)
    return scores


def bootstrap_units(rows: Mapping[str, tuple[float, float]], order: Mapping[str, object]) -> Blocks:
    """Return the sums of the units that a bootstrap draws: blocks, or series of video scenes.

    Args:
        rows: block -> sum of the scores, and number of samples.
        order: its keys are the blocks to sum, in the order of the returned units; video scenes come
            last, by their number.
    """
    # Scenes of neighbouring numbers follow each other in a video, and are drawn together.
    scenes = [block for block in order if block.startswith(SCENE)]
    numbered = sorted(scenes, key=lambda block: int(block.split()[1]))
    units = [[block] for block in order if not block.startswith(SCENE)]
    units += [part.tolist() for part in np.array_split(numbered, min(RUNS, len(numbered)) or 1)]
    sums = [np.sum([rows[block] for block in unit], axis=0) for unit in units if unit]
    return np.array(sums, dtype=np.float64).reshape(-1, 2)
