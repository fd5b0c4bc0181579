"""What generators of chapters 5 and 6 make: Figures 5.4 and 6.4, and numbers beside the pictures.

A picture by t-SNE shows neighbours, and these are counted in the features themselves. Source: the
Durham thesis, sections 5.4.2 and 6.4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.app.config import Experiment
from vergence.app.papers.base import Claim, PaperTable, Part, alike, better
from vergence.app.papers.defended import kept
from vergence.app.papers.grounds import MADE
from vergence.app.papers.pezsl import KINDS, OM, QUASI, every_way, sentinel
from vergence.app.papers.pezsl_tables import ALONE, CHANCE, CLOSE, SEEDS
from vergence.app.papers.running import Result, settle
from vergence.app.run import load_data
from vergence.app.runs import Run
from vergence.app.saved import read_saved
from vergence.core.extras import needed
from vergence.core.fitting import Solver
from vergence.core.generator import KIND, MEANING, NOISE
from vergence.core.provider import Taught
from vergence.core.site import Samples
from vergence.core.stream import Stream
from vergence.data.owner import OWNER
from vergence.metrics.neighbours import among_own, nearest

REAL = "real samples"
EACH, DRAWS = 12, 20
"""Samples of a class, real and made-up: shares of neighbours depend on it; and times made up."""
NEAR, APART, FAR, CLUSTERED = (metric for (metric,) in MADE.values())
COLUMNS, LESS = tuple(MADE), ("apart", "far")
NOTE = (
    f"of unseen classes alone, up to {EACH} test samples of each and as many made up, in the mean "
    f"over {DRAWS} draws; nearest by Euclidean distance of features. `nearest real sample`: how "
    "often it is of the class that was asked for; `told from real`: how often the nearest other "
    "sample, real or not, is of the same sort, 50 where both are alike; `distance`: the mean, over "
    "that of real samples to the nearest other real one; `nearest of its like`: how often the "
    "nearest other made-up (real) sample is of the same class. Pictures are of seed 0; t-SNE keeps "
    "neighbours, not distances"
)


@dataclass(frozen=True)
class Made:
    """Real samples `[n, d]` of unseen classes, made-up ones `[draws, n, d]`, the classes `[n]`."""

    real: Tensor
    made: Tensor
    kinds: Tensor
    names: tuple[str, ...]

    @property
    def scores(self) -> dict[str, float]:
        """How made-up samples lie among real ones and among themselves, means over draws."""
        sort = torch.arange(2).repeat_interleave(len(self.kinds))
        each = [
            (among_own(made, self.kinds, (self.real, self.kinds)),
             among_own(torch.cat([self.real, made]), sort),
             float(nearest(made, self.real)[0].mean() / nearest(self.real)[0].mean()),
             among_own(made, self.kinds))
            for made in self.made
        ]  # fmt: skip
        return dict(zip((NEAR, APART, FAR, CLUSTERED), np.mean(each, 0).tolist(), strict=True))

    @property
    def known(self) -> dict[str, float]:
        """The same of real samples: their class by the nearest other one."""
        found = among_own(self.real, self.kinds)
        return {NEAR: found, FAR: 1.0, CLUSTERED: found}


def made(run: Run, seed: int, draws: int = DRAWS) -> Made:
    """Return test samples of unseen classes, and as many of the provider's generator."""
    saved = read_saved(run.folder, seed)
    task, method, s = saved.task, saved.method, saved.server
    assert isinstance(method, Taught)
    test = load_data(saved.experiment).ready.people[OWNER].test
    rows = torch.randperm(len(test), generator=Stream("real", seed).torch())
    label = task.class_of(test.take(rows))
    chosen = torch.cat([rows[label == kind][:EACH] for kind in task.unseen_classes])
    kinds = task.class_of(test.take(chosen))
    asked = {KIND: kinds.repeat(draws), MEANING: s.meaning["vectors"][kinds].repeat(draws, 1),
             NOISE: torch.randn(draws * len(kinds), method.noise,
                                generator=Stream("made", seed).torch())}  # fmt: skip
    found = Solver(method.synthesis(task)).outputs(s.generator, Samples(asked))
    real = task.inputs(test.take(chosen))[0].flatten(1)
    return Made(real, found.flatten(1).unflatten(0, (draws, len(kinds))), kinds, task.class_names())


def pictured(part: Part, experiment: Experiment, out: Path) -> Result:
    """Score what generators make, seed by seed, beside real samples and what is of no class."""
    needed("sklearn", "drawing pictures by t-SNE", "tsne")
    study = settle(experiment, out)
    first = study.runs[0]
    hidden = len(read_saved(first.folder, first.seeds[0]).task.unseen_classes)
    blind = {NEAR: 1 / hidden, APART: 0.5}
    scores = {
        run.label + part.suffix: kept(out / f"{run.label}_made.json", partial(by_seed, run))
        for run in study.runs
    }
    scores[REAL + part.suffix] = told(first, lambda seed: made(first, seed, 1).known)
    scores[CHANCE] = told(first, lambda _: blind)
    return Result(scores, study, lower=frozenset({APART, FAR}))


def by_seed(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> the score of what a run's generator makes."""
    return told(run, lambda seed: made(run, seed).scores)


def told(run: Run, measure: Callable[[int], Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> what is measured of a seed."""
    found: dict[str, dict[str, float]] = {}
    for seed in run.seeds:
        for metric, value in measure(seed).items():
            found.setdefault(metric, {})[f"seed {seed}"] = value
    return found


PROTOCOLS = {"pictured": pictured}
"""Protocol -> how a part is run under it."""


def _ways(teacher: str, **more: Callable[..., dict]) -> Part:
    """Return the runs of Table 5.2 or 6.2 of a teacher, which are not run again, as pictures."""
    part = every_way(teacher, **more)
    return replace(part, protocol="pictured", rows=(REAL + KINDS[teacher],))


def _like_their_class(suffix: str, whose: str, where: str) -> tuple[Claim, ...]:
    return tuple(
        better(f"samples of unseen classes lie near real ones of their class, {way}, {whose}",
               place, label + suffix, CHANCE, quantity="near")
        for label, way, place in (
            ("white_box", "white box", where), ("black_box", "black box as printed", where),
            ("by_estimates", "by estimates", "not in the thesis"))
    )  # fmt: skip


TABLES = (
    PaperTable(
        "pezsl/fig5.4", "samples of unseen classes, real and made up", COLUMNS, {}, "zero_shot",
        (_ways("omniscient"),),
        (
            *_like_their_class(OM, "teacher of all classes", "5.4.2"),
            alike("the white box's have a distribution close to real ones' (told apart within 10 "
                  "points of chance)", "5.4.2", CLOSE, "white_box" + OM, CHANCE, quantity="apart"),
            better("they are more clustered by class than real ones, white box", "5.4.2",
                   "white_box" + OM, REAL + OM, quantity="clustered"),
        ),
        figure="embedding", spread=COLUMNS, less=LESS, over=SEEDS, note=NOTE,
    ),
    PaperTable(
        "sgzsl/fig6.4", "samples of unseen classes by what the teacher saw", COLUMNS, {},
        "zero_shot",
        (_ways("omniscient", method=sentinel),
         _ways("quasi", method=partial(sentinel, knows="seen"))),
        (
            *_like_their_class(QUASI, "teacher of seen classes", "6.4.3"),
            better("a teacher of seen classes makes them lie farther from real ones, white box",
                   "6.4.3", "white_box" + OM, "white_box" + QUASI, quantity="far"),
            better("and less near those of their class", "6.4.3",
                   "white_box" + OM, "white_box" + QUASI, quantity="near"),
        ),
        figure="embedding", apart=ALONE, spread=COLUMNS, less=LESS, over=SEEDS, note=NOTE,
    ),
)  # fmt: skip
