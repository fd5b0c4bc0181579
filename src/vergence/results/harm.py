"""Negative transfer in a study: people for whom a simpler method has better scores.

The simpler methods (references) are training alone, FedAvg, and the baseline made of a person's own
training data.

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
"""Person -> block of test samples -> (sum of the headline metric, number of summed values)."""
METHODS = ("local_only", "fedavg")
SAMPLES, PRIORS = "samples.csv", "prior_samples.csv"
PICTURE, SCENE = "picture", "scene"
"""First words of the names of blocks whose numbers come from the data set.

A block has the same number in every split.
"""
# Samples that follow each other are alike: a bootstrap over single ones would be too certain.
RUNS = 20
"""Number of stretches of neighbouring samples into which a person's samples are cut."""


@dataclass(frozen=True)
class Harm:
    """Losses of people under one method, compared with each person's best reference.

    A reference is a simpler method or baseline. People with fewer than `LEAST` blocks of test
    samples are left out. So are people whose single samples have no scores in the run, or none in
    any reference.
    """

    references: tuple[str, ...]
    losses: Mapping[str, Loss]

    @property
    def people(self) -> list[str]:
        """The people harmed; those for whom this is most certain come first."""
        harmed = [person for person, loss in self.losses.items() if loss.harmed]
        return sorted(harmed, key=lambda person: -self.losses[person].bound)

    def worst(self) -> list[tuple[str, Loss]]:
        """Return (person, loss) of the people harmed, the largest loss first."""
        pairs = [(person, self.losses[person]) for person in self.people]
        return sorted(pairs, key=lambda each: -each[1].loss)

    @property
    def shown(self) -> float:
        """Smallest relative loss that the test samples would have revealed for every person.

        For this, the interval of such a loss is assumed to be as wide as that of the measured loss.
        """
        return max((HARM + each.loss - each.bound for each in self.losses.values()), default=0.0)

    def __str__(self) -> str:
        count = f"{len(self.people)} of {len(self.losses)}" if self.losses else ""
        if self.people or not count:
            return count
        # A reference near 0 makes every relative loss large, and its test shows nothing.
        return f"{count} (from {self.shown:.0%})" if self.shown <= 1 else f"{count} (no test)"


def harms(study: StudyResults) -> dict[str, Harm]:
    """Return label of a run -> people harmed in the headline metric.

    A run is compared with the references of its own experiment. A reference that its experiment
    does not have is taken from the study.
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
    """Return the scores of a run's test samples, summed over seeds; empty if it has none."""
    path = run.folder / SAMPLES
    return read_sample_scores(path) if path.exists() else {}


def read_sample_scores(path: Path, prior: str = "") -> Scores:
    """Read the scores of test samples from a file, summed over seeds and splits.

    `sample_scores` and `own_prior` call this.

    Args:
        path: samples.csv or prior_samples.csv.
        prior: the baseline to read, if the file has several; "": read all rows.
    """
    return _read(path, prior, path.stat().st_mtime_ns)


def own_prior(run: Run) -> dict[str, Scores]:
    """Return name -> scores, for the baselines made of people's own training data."""
    for folder in (run.folder, run.folder.parent):
        path = folder / PRIORS
        if path.exists():
            names = table(path).prior.unique()
            return {name: read_sample_scores(path, name) for name in names}
    return {}


@lru_cache(maxsize=64)
def _read(path: Path, prior: str, _: int) -> Scores:
    """Read a file once for all tables.

    The last argument, the file's time of change, makes the cache notice a new run.
    """
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
    """Return the units that a bootstrap draws: rows (sum of scores, number of samples).

    A unit is one block of samples, or a series of neighbouring video scenes.

    Args:
        rows: block -> (sum of the scores, number of samples).
        order: its keys are the blocks to use, in the order of the units. Video scenes come last, in
            the order of their numbers.
    """
    # Scenes of neighbouring numbers follow each other in a video, and are drawn together.
    scenes = [block for block in order if block.startswith(SCENE)]
    numbered = sorted(scenes, key=lambda block: int(block.split()[1]))
    units = [[block] for block in order if not block.startswith(SCENE)]
    units += [part.tolist() for part in np.array_split(numbered, min(RUNS, len(numbered)) or 1)]
    sums = [np.sum([rows[block] for block in unit], axis=0) for unit in units if unit]
    return np.array(sums, dtype=np.float64).reshape(-1, 2)
