"""Protocol of FedCPF's Tables 2 and 3: own held-out data, and when averaging windows restarted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import read_run
from vergence_papers.claims import TablePart
from vergence_papers.running import PartResult, within

LEVELS, LAST = "score steps climbed", "last restart (round)"


def windowed(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody on their own held-out data, and read their windows' last restart.

    A window restarts when the score climbs one step or more, until the mask is full. Rounds count
    from 1; if the last restart is in round 1, all changes were averaged in a single window.
    """
    found = within(part, experiment, out)
    facts: dict[str, dict[str, dict[str, float]]] = {LEVELS: {}, LAST: {}}
    for run in found.study.runs:
        seeds = [read_run(run.folder, seed).clients for seed in run.seeds]
        windows = {person: [states[person].window for states in seeds] for person in run.people}
        label = run.label + part.suffix
        # The step of 0 is reached by every score.
        facts[LEVELS][label] = {p: mean([w.level - 1 for w in own]) for p, own in windows.items()}
        facts[LAST][label] = {p: mean([w.since + 1 for w in own]) for p, own in windows.items()}
    return replace(found, facts=facts)


def mean(values: list[int]) -> float:
    """Return the mean of numbers, such as those of a person's seeds."""
    return float(np.mean(values))


PROTOCOLS = {"windows": windowed}
