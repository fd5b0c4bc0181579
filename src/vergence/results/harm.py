"""Harm in a study: who fares worse than the best of training alone, FedAvg and one's own prior."""

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
"""First words of blocks with a number of the data set's own, the same one in every split."""
RUNS = 20
"""Runs of neighbours that samples are cut into, as samples that follow each other are alike."""


@dataclass(frozen=True)
class Harm:
    """Losses of people under one method, against the references that its run has.

    A person with fewer than `LEAST` blocks of test samples has no loss here, nor has anybody where
    the run keeps no scores of samples, or no reference has scores of the same ones.
    """

    references: tuple[str, ...]
    losses: Mapping[str, Loss]

    @property
    def people(self) -> list[str]:
        """Those who are harmed, the most certain first."""
        found = [person for person, loss in self.losses.items() if loss.harmed]
        return sorted(found, key=lambda person: -self.losses[person].bound)

    def worst(self) -> list[tuple[str, Loss]]:
        """Those who are harmed, the largest loss first."""
        found = [(person, self.losses[person]) for person in self.people]
        return sorted(found, key=lambda each: -each[1].loss)

    @property
    def shown(self) -> float:
        """Smallest loss that the test samples would have shown for every person, as a share.

        Intervals are taken to be as wide at that loss as they are at the one that was found.
        """
        return max((HARM + each.loss - each.bound for each in self.losses.values()), default=0.0)

    def __str__(self) -> str:
        count = f"{len(self.people)} of {len(self.losses)}" if self.losses else ""
        return count if self.people or not count else f"{count} (from {self.shown:.0%})"


def harms(study: StudyResults) -> dict[str, Harm]:
    """Return label -> harm in the headline; of several references each run has those beside it."""
    return {run.label: _harm(study, run) for run in study.runs}


def _harm(study: StudyResults, run: Run) -> Harm:
    near = tuple(each for each in study.runs if each.folder.parent == run.folder.parent)
    beside = StudyResults(study.folder, near, {})
    references: dict[str, Scores] = {}
    for name in METHODS:
        other = beside.find(name) or study.find(name)
        if other is None or other.label == run.label or _data(other) != _data(run):
            continue  # blocks are numbered: those of other data may have the same names
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
    """Scores of a run's test samples, all seeds together; nothing where it keeps none."""
    path = run.folder / SAMPLES
    return read_sample_scores(path) if path.exists() else {}


def read_sample_scores(path: Path, prior: str = "") -> Scores:
    """Scores of samples in a file, seeds and splits together; of one prior where it has several."""
    return _read(path, prior, path.stat().st_mtime_ns)


def own_prior(run: Run) -> dict[str, Scores]:
    """Name and scores of people's own prior, from the folder of the run or of its study."""
    for folder in (run.folder, run.folder.parent):
        path = folder / PRIORS
        if path.exists():
            names = table(path).prior.unique()
            return {name: read_sample_scores(path, name) for name in names}
    return {}


@lru_cache(maxsize=64)
def _read(path: Path, prior: str, _: int) -> Scores:
    """Scores of a file, read once for all tables; a run that is made anew has another time."""
    rows = table(path)
    rows = rows[rows.prior == prior] if prior else rows
    rows = rows.assign(total=rows.value * rows.counted)
    rows = rows.assign(known=rows.total.notna())  # a sum leaves out NaN, as if it were 0
    by_block = rows.groupby(["person", "block"], sort=False)
    sums = by_block[["total", "counted"]].sum().assign(known=by_block.known.all())
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for (person, block), total, counted, known in sums.itertuples():
        found.setdefault(person, {})[block] = (total if known else math.nan, counted)
    return found


def bootstrap_units(rows: Mapping[str, tuple[float, float]], order: Mapping[str, object]) -> Blocks:
    """Sums of what a bootstrap draws as one: a block, or a run of scenes by their numbers."""
    scenes = [block for block in order if block.startswith(SCENE)]
    numbered = sorted(scenes, key=lambda block: int(block.split()[1]))
    units = [[block] for block in order if not block.startswith(SCENE)]
    units += [part.tolist() for part in np.array_split(numbered, min(RUNS, len(numbered)) or 1)]
    sums = [np.sum([rows[block] for block in unit], axis=0) for unit in units if unit]
    return np.array(sums, dtype=np.float64).reshape(-1, 2)
