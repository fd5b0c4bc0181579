"""Runs whose seeds have partitions of their own: seed s divides images by `split_seed` s."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vergence.experiment.schema import Experiment, check
from vergence.results.read import Run, StudyResults
from vergence_papers.running import settle

Frame = Any


@dataclass(frozen=True)
class PartitionedRun(Run):
    """One run for each partition, read as one run of several seeds; the folder is the first's."""

    parts: tuple[Run, ...] = ()

    @cached_property
    def values(self) -> Frame:
        """People's scores of all partitions."""
        return _all(part.values for part in self.parts)

    @cached_property
    def rounds(self) -> Frame:
        """Means by round of all partitions."""
        return _all(part.rounds for part in self.parts)

    @cached_property
    def turns(self) -> Frame:
        """Clients' turns of all partitions."""
        return _all(part.turns for part in self.parts)


@dataclass(frozen=True)
class Partitions:
    """An experiment on each of its partitions.

    Attributes:
        study: its methods, each as one run of several seeds.
        each: seed -> experiment and runs of its partition.
    """

    study: StudyResults
    each: dict[int, tuple[Experiment, StudyResults]]


def settle_partitions(experiment: Experiment, out: Path) -> Partitions:
    """Run an experiment once for each seed, on a partition of this seed; or go on with it.

    Raises:
        StateError: a folder holds an experiment with other settings.
    """
    each = {}
    for seed in experiment.plan.seeds:
        table = deepcopy(dict(experiment.table))
        table["federation"] = {**table["federation"], "split_seed": seed}
        table["run"] = {**table["run"], "seeds": [seed]}
        own = check(table)
        each[seed] = own, settle(own, out / f"partition{seed}")
    first = next(iter(each.values()))[1]
    runs = []
    for run in first.runs:
        parts = tuple(study.run(run.label) for _, study in each.values())
        seconds = sum(float(part.results["seconds"]) for part in parts)
        results = {**run.results, "seeds": [*each], "seconds": seconds}
        runs.append(PartitionedRun(run.folder, run.label, results, parts))
    return Partitions(StudyResults(first.folder, tuple(runs), {}), each)


def _all(frames: Any) -> Frame:
    import pandas as pd

    return pd.concat([*frames], ignore_index=True)
