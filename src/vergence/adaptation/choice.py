"""Choice of a way to adapt a model, by cross-validation on the person's own samples alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, t

from vergence.adaptation.fine_tuning import (
    ADAPTED,
    EXPONENTS,
    LAST,
    SHARED,
    WHOLE,
    Adapter,
    Rows,
    prior_way,
    pulled,
)
from vergence.core.data import Samples
from vergence.core.randomness import RandomStream
from vergence.core.task import Task
from vergence.metrics.held_out import BLOCKS, smallest

SMALL, FOLDS = 10, 5
"""Up to so many samples each is left out in turn; more are dealt to so many folds."""
FEWEST = 2
"""Samples that can be held out from one another."""
PULLS = (10.0, 1.0)
"""Pulls to the start that are tried in fine-tuning."""
SIMPLEST_FIRST = (
    "shrunk offset",
    "fitted offset",
    "shrunk affine",
    "fitted affine",
    "fitted eyes",
    *map(prior_way, EXPONENTS),
    LAST,
    *map(pulled, PULLS),
    WHOLE,
    ADAPTED,
)
"""Ways that are tried, where a run has them."""
AGAINST_SHARED, AGAINST_OTHERS = 1.0, 2.0
"""Standard errors that speak against the shared model, and against what other people's data say."""


@dataclass(frozen=True)
class AdaptationChoice:
    """A way that was chosen for a person.

    Attributes:
        way: its name; `SHARED` keeps the shared model.
        errors: cross-validated mean of the task's headline, of every way; NaN of one that diverged;
            none where there are too few samples to hold any out.
        folds: of the cross-validation.
    """

    way: str
    errors: Mapping[str, float]
    folds: int


def candidates(adapter: Adapter) -> list[str]:
    """Ways to choose among, simplest first."""
    return [way for way in SIMPLEST_FIRST if way in adapter.ways]


def usual(adapter: Adapter) -> str:
    """The way that samples must speak against: the shared model, or a correction fitted to others.

    A correction whose priors are the spread over the run's own people is near no change by itself
    where there are few samples, or where people hardly differ. Of several the fullest is taken.
    """
    return list(adapter.fitted)[-1] if adapter.fitted else SHARED


def choose(
    adapter: Adapter, ways: Sequence[str], rows: Rows, stream: RandomStream
) -> AdaptationChoice:
    """Choose among ways, simplest first, for these of a person's samples.

    Every way is fitted without a fold of the samples and measured on it. The `usual` one is kept
    unless another is better by more than one error of the difference (two, where it is a correction
    fitted to others). With one sample nothing can be held out, and it is kept; with none it is the
    shared model. Samples that the shared model has no score on count for no way; a way without a
    score on any other one has diverged. Samples of one target, or of one frame, are left out
    together, and count as one.
    """
    first = usual(adapter) if len(rows) else SHARED
    unit = units(adapter.labelled.subset(rows))
    fold = folds(len(set(unit.tolist())))[unit]
    if len(set(fold.tolist())) < FEWEST:
        return AdaptationChoice(first, {}, 0)
    tried = dict.fromkeys((first, SHARED, *ways))
    found = {way: held_out(adapter, way, rows, fold, stream) for way in tried}
    counted = ~np.isnan(found[SHARED])
    number = np.unique(unit[counted], return_inverse=True)[1]
    size = np.bincount(number)
    if len(size) < FEWEST:
        return AdaptationChoice(first, {}, 0)
    means = {way: np.bincount(number, values[counted]) / size for way, values in found.items()}
    errors = {way: float(values.mean()) for way, values in means.items()}
    task = adapter.trained.task
    sign = 1.0 if task.headline in task.lower_is_better else -1.0
    losses = {way: np.nan_to_num(sign * each, nan=np.inf) for way, each in means.items()}
    block = blocks(len(size), of_video(adapter.labelled))
    needed = AGAINST_SHARED if first == SHARED else AGAINST_OTHERS
    way = simplest(losses, block, needed)
    return AdaptationChoice(way, errors, int(fold.max()) + 1)


def units(samples: Samples) -> NDArray[np.int64]:
    """Number of what each sample counts with: itself, or what it looks at, in order of appearance.

    Frames of one target (column `target`), and both eyes of a frame, whose angles mirror each
    other, are nearly the same sample.
    """
    columns = samples.columns
    keys: list[object] = list(range(len(samples)))
    if "target" in columns:
        keys = columns["target"].tolist()
    elif "side" in columns and "gaze" in columns:
        facing = torch.stack([torch.ones(len(samples)), 1.0 - 2.0 * columns["side"]], 1)
        keys = [tuple(each) for each in (columns["gaze"] * facing).tolist()]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([number[key] for key in keys], dtype=np.int64)


def of_video(samples: Samples) -> bool:
    """True if samples are frames of recordings, of which neighbours are alike, and not pictures."""
    columns = samples.columns
    scene = columns.get("scene")
    return "frame_ids" in columns and (scene is None or bool((scene < 0).all()))


def blocks(count: int, video: bool) -> NDArray[np.int64]:
    """Block of each of so many units, from which errors are counted: of video, runs of neighbours.

    Other units are independent, and blocks of their own.
    """
    return np.arange(count) * min(count, BLOCKS) // count if video else np.arange(count)


def folds(count: int) -> NDArray[np.int64]:
    """Fold of each of so many units: neighbours, which are alike in recordings, share one."""
    number = count if count <= SMALL else FOLDS
    return np.arange(count) * number // count


def held_out(
    adapter: Adapter, way: str, rows: Rows, fold: NDArray[np.int64], stream: RandomStream
) -> NDArray[np.float64]:
    """The headline of a way on each sample, fitted without its fold; NaN of one with no score."""
    outputs, order = [], []
    for number in range(int(fold.max()) + 1):
        out = torch.from_numpy(fold == number)
        model = adapter.fit(way, rows[~out], stream.child("without", number))
        outputs.append(adapter.outputs_at(model, rows[out]))
        order.append(out.nonzero()[:, 0])
    back = torch.cat(order).argsort()
    samples = adapter.labelled.subset(rows)
    return by_sample(adapter.trained.task, torch.cat(outputs)[back], samples)


def by_sample(task: Task, outputs: torch.Tensor, samples: Samples) -> NDArray[np.float64]:
    """The headline of every sample; NaN where it has nothing to be scored."""
    if task.by_sample:
        total, count = task.per_sample(outputs, samples).double().unbind(1)
        return (total / count).numpy()
    each = torch.arange(len(samples)).split(1)
    found = [task.metrics(outputs[at], samples.subset(at))[task.headline] for at in each]
    return np.array(found)


def simplest(
    losses: Mapping[str, NDArray[np.float64]],
    block: NDArray[np.int64] | None = None,
    needed: float = AGAINST_SHARED,
) -> str:
    """The simplest way that is no worse than the best by more than so many standard errors.

    Errors are of the difference from the best, sample by sample; with few samples an error is as
    wide as Student's t makes it. No way is chosen that is worse than the first in the mean.

    Args:
        losses: way -> loss of each of two or more samples, lower is better; the first is the one
            to speak against, and simpler ways come before others.
        block: number of the block that each sample is judged in, 0 to the last; None: each alone.
        needed: standard errors that speak for another way.

    Source: Breiman, Friedman, Olshen, Stone: Classification and Regression Trees, 1984, 3.4.3.
    Differs: the error is that of paired differences, and Student's.
    """
    first = next(iter(losses.values()))
    ways = [way for way, loss in losses.items() if loss.mean() <= first.mean()]
    block = np.arange(len(first)) if block is None else block
    counts = np.bincount(block)
    table = np.stack([np.bincount(block, losses[way]) / counts for way in ways], 1)
    wide = float(t.ppf(norm.cdf(needed), len(table) - 1))
    return ways[smallest(table.tolist(), counts.tolist(), wide)]
