"""Generated samples of chapters 5 and 6: Figures 5.4 and 6.4, and numbers beside the pictures.

A picture by t-SNE shows neighbours, and these are counted in the features themselves. Source: the
Durham thesis, sections 5.4.2 and 6.4.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.core.data import Samples
from vergence.core.optional import import_optional
from vergence.core.randomness import RandomStream
from vergence.data.owner import OWNER
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import read_run
from vergence.methods.generative.provider import Taught
from vergence.methods.generative.sample_generator import KIND, MEANING, NOISE
from vergence.metrics.nearest_neighbours import nearest, own_kind_share
from vergence.results.read import Run
from vergence.training.sequential import Solver
from vergence_papers.claims import TablePart
from vergence_papers.data_sets import MADE
from vergence_papers.running import PartResult, load_or_measure, settle
from vergence_papers.teachers import CHANCE, measured_by_seed

REAL = "real samples"
EACH, DRAWS = 12, 20
"""Samples of a class, real and made-up: shares of neighbours depend on it; and times made up."""
NEAR, APART, FAR, CLUSTERED = (metric for (metric,) in MADE.values())


@dataclass(frozen=True)
class Made:
    """Real samples `[n, d]` of unseen classes, made-up ones `[draws, n, d]`, the classes `[n]`."""

    real: Tensor
    made: Tensor
    kinds: Tensor
    names: tuple[str, ...]

    @property
    def scores(self) -> dict[str, float]:
        """Scores of made-up samples among real ones and among themselves, means over draws."""
        sort = torch.arange(2).repeat_interleave(len(self.kinds))
        each = [
            (
                own_kind_share(made, self.kinds, (self.real, self.kinds)),
                own_kind_share(torch.cat([self.real, made]), sort),
                float(nearest(made, self.real)[0].mean() / nearest(self.real)[0].mean()),
                own_kind_share(made, self.kinds),
            )
            for made in self.made
        ]
        return dict(zip((NEAR, APART, FAR, CLUSTERED), np.mean(each, 0).tolist(), strict=True))

    @property
    def known(self) -> dict[str, float]:
        """The same of real samples: their class by the nearest other one."""
        found = own_kind_share(self.real, self.kinds)
        return {NEAR: found, FAR: 1.0, CLUSTERED: found}


def made(run: Run, seed: int, draws: int = DRAWS) -> Made:
    """Return test samples of unseen classes, and as many of the provider's generator."""
    saved = read_run(run.folder, seed)
    task, method, s = saved.task, saved.method, saved.server
    assert isinstance(method, Taught)
    test = saved.ready.people[OWNER].test
    rows = torch.randperm(len(test), generator=RandomStream("real", seed).torch())
    label = task.class_of(test.take(rows))
    chosen = torch.cat([rows[label == kind][:EACH] for kind in task.unseen_classes])
    kinds = task.class_of(test.take(chosen))
    asked = {
        KIND: kinds.repeat(draws),
        MEANING: s.meaning["vectors"][kinds].repeat(draws, 1),
        NOISE: torch.randn(
            draws * len(kinds), method.noise, generator=RandomStream("made", seed).torch()
        ),
    }
    found = Solver(method.synthesis(task)).outputs(s.generator, Samples(asked))
    real = task.inputs(test.take(chosen))[0].flatten(1)
    return Made(real, found.flatten(1).unflatten(0, (draws, len(kinds))), kinds, task.class_names())


def pictured(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score what generators make, seed by seed, beside real samples and what is of no class."""
    import_optional("sklearn", "drawing pictures by t-SNE", "tsne")
    study = settle(experiment, out)
    first = study.runs[0]
    hidden = len(read_run(first.folder, first.seeds[0]).task.unseen_classes)
    blind = {NEAR: 1 / hidden, APART: 0.5}
    scores = {
        run.label + part.suffix: load_or_measure(
            out / f"{run.label}_made.json", partial(by_seed, run)
        )
        for run in study.runs
    }
    scores[REAL + part.suffix] = measured_by_seed(first, lambda seed: made(first, seed, 1).known)
    scores[CHANCE] = measured_by_seed(first, lambda _: blind)
    return PartResult(scores, study, lower=frozenset({APART, FAR}))


def by_seed(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> the score of what a run's generator makes."""
    return measured_by_seed(run, lambda seed: made(run, seed).scores)
