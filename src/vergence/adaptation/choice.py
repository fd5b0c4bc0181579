"""Choice of a way to adapt a model, by cross-validation on the person's own samples alone.

Used by `adaptation.adapted_run` and `studies.calibration`.
"""

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
    KERNEL_ALONE,
    LAST,
    SHARED,
    WHOLE,
    Adapter,
    Rows,
    prior_name,
    pull_name,
)
from vergence.adaptation.other_people import RESIDUAL
from vergence.core.data import Samples
from vergence.core.randomness import RandomStream
from vergence.core.task import Task
from vergence.metrics.held_out import BLOCKS, simplest_near_best

# Largest number of samples for leave-one-out, and the number of folds of more samples.
# Leave-one-out uses the most of few samples; more folds cost more fits and change little.
SMALL, FOLDS = 10, 5
# Smallest number of samples for cross-validation: of one, nothing is left to fit.
FEWEST = 2
PULLS = (10.0, 1.0)
"""Strengths of the penalty on the distance to the shared model that fine-tuning tries."""
SIMPLEST_FIRST = (
    "shrunk offset",
    "fitted offset",
    "shrunk affine",
    "fitted affine",
    "fitted eyes",
    RESIDUAL,
    KERNEL_ALONE,
    *map(prior_name, EXPONENTS),
    LAST,
    *map(pull_name, PULLS),
    WHOLE,
    ADAPTED,
)
"""Ways that are tried where a run has them, those with the fewest free parameters first."""
# Standard errors that are needed to leave the shared model, and a correction fitted to others.
# The latter already shrinks to their spread: it takes more evidence to leave it.
AGAINST_SHARED, AGAINST_OTHERS = 1.0, 2.0


@dataclass(frozen=True)
class AdaptationChoice:
    """Choice of a way to adapt the model to one person.

    Attributes:
        way: name of the way; `SHARED` keeps the shared model.
        errors: cross-validated mean of the task's headline (of tasks that choose by it, of the
            loss) for every way; NaN for one that diverged; empty where there are too few samples
            for cross-validation.
        folds: number of folds of the cross-validation.
        held_out: error of the chosen way on each unit of samples that was left out, lower is
            better: what the mean in `errors` is of. Empty without cross-validation.
    """

    way: str
    errors: Mapping[str, float]
    folds: int
    held_out: tuple[float, ...] = ()


def candidates(adapter: Adapter) -> list[str]:
    """Names of the ways to choose among, simplest first."""
    return [way for way in SIMPLEST_FIRST if way in adapter.ways]


def choose(
    adapter: Adapter, ways: Sequence[str], rows: Rows, stream: RandomStream
) -> AdaptationChoice:
    """Choose among ways, simplest first, by cross-validation on some of a person's samples.

    Every way is fitted without one fold of the samples and measured on that fold. The default,
    the shared model or a correction fitted to other people, is kept unless another is better by
    more than one standard error of the difference. Where gaze angles have a residual kernel, or a
    correction is fitted to others, that one is kept unless another is better by more than two
    standard errors. With one sample there is no
    cross-validation, and the default is kept; with none it is the shared model. Samples on which
    the shared model has no score do not count; a way without a score on any other sample has
    diverged. Samples of one target, or of one frame, are in one fold and count as one.
    """
    # A correction whose priors are the spread over the run's own people changes hardly anything
    # where there are few samples, or where people hardly differ. The last one has the most terms.
    unsure = list(adapter.fitted)[-1] if adapter.fitted and len(rows) else SHARED
    unit = units(adapter.labelled.subset(rows))
    fold = fold_numbers(len(set(unit.tolist())))[unit]
    if len(set(fold.tolist())) < FEWEST:
        return AdaptationChoice(unsure, {}, 0)
    # What others' residuals do not support it hardly fits: it takes more evidence to leave it.
    first = RESIDUAL if RESIDUAL in adapter.ways else unsure
    tried = dict.fromkeys((first, SHARED, *ways))
    values = {way: held_out_errors(adapter, way, rows, fold, stream) for way in tried}
    # Samples that even the shared model has no score for, such as frames without gaze, judge no
    # way.
    counted = ~np.isnan(values[SHARED])
    number = np.unique(unit[counted], return_inverse=True)[1]
    size = np.bincount(number)
    # Cross-validated errors of one unit have no standard error.
    if len(size) < FEWEST:
        return AdaptationChoice(unsure, {}, 0)
    means = {way: np.bincount(number, each[counted]) / size for way, each in values.items()}
    errors = {way: float(mean.mean()) for way, mean in means.items()}
    task = adapter.trained.task
    sign = 1.0 if task.chooses_by_loss or task.headline in task.lower_is_better else -1.0
    # A way that diverged must lose against every other one.
    losses = {way: np.nan_to_num(sign * each, nan=np.inf) for way, each in means.items()}
    block = block_numbers(len(size), of_video(adapter.labelled))
    needed = AGAINST_SHARED if first == SHARED else AGAINST_OTHERS
    way = simplest_way(losses, block, needed)
    return AdaptationChoice(way, errors, int(fold.max()) + 1, tuple(losses[way].tolist()))


def units(samples: Samples) -> NDArray[np.int64]:
    """Number of the unit that each sample belongs to, in order of appearance.

    A sample is a unit by itself, except that frames of one target (column `target`) form one, and
    samples of one gaze, as both eyes of a frame, whose angles mirror each other, and viewings of
    one picture: they are nearly the same sample, or the same one twice.
    """
    columns = samples.columns
    keys: list[object] = list(range(len(samples)))
    if "target" in columns:
        keys = [tuple(each) for each in columns["target"].reshape(len(samples), -1).tolist()]
    elif "gaze" in columns:
        side = columns["side"].reshape(-1) if "side" in columns else torch.zeros(len(samples))
        facing = torch.stack([torch.ones(len(samples)), 1.0 - 2.0 * side], 1)
        # The yaw of a right eye is mirrored, as its picture is: turned back, both eyes agree.
        keys = [tuple(each) for each in (columns["gaze"] * facing).tolist()]
    elif "frame_ids" in columns:
        # A picture that was viewed several times is in one fold.
        keys = [tuple(each) for each in columns["frame_ids"].tolist()]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([number[key] for key in keys], dtype=np.int64)


def of_video(samples: Samples) -> bool:
    """True if samples are frames of recordings, whose neighbours are alike, and not pictures."""
    columns = samples.columns
    scene = columns.get("scene")
    return "frame_ids" in columns and (scene is None or bool((scene < 0).all()))


def block_numbers(count: int, video: bool, blocks: int = BLOCKS) -> NDArray[np.int64]:
    """Number of the block of each unit, for standard errors: neighbours of a video share a block.

    Units that are not of a video are independent: each is a block of its own. Those of a video form
    at most `blocks` blocks.
    """
    return np.arange(count) * min(count, blocks) // count if video else np.arange(count)


def fold_numbers(count: int) -> NDArray[np.int64]:
    """Number of the fold of each unit: neighbours, which are alike in recordings, share a fold."""
    number = count if count <= SMALL else FOLDS
    return np.arange(count) * number // count


def held_out_errors(
    adapter: Adapter, way: str, rows: Rows, fold: NDArray[np.int64], stream: RandomStream
) -> NDArray[np.float64]:
    """Error by `errors_by_sample` of a way on each sample, fitted without its fold."""
    outputs, order = [], []
    for number in range(int(fold.max()) + 1):
        out = torch.from_numpy(fold == number)
        model = adapter.fit(way, rows[~out], stream.child("without", number))
        outputs.append(adapter.outputs_at(model, rows[out]))
        order.append(out.nonzero()[:, 0])
    # Outputs came fold by fold: put them back into the order of the samples.
    back = torch.cat(order).argsort()
    samples = adapter.labelled.subset(rows)
    return errors_by_sample(adapter.trained.task, torch.cat(outputs)[back], samples)


def errors_by_sample(task: Task, outputs: torch.Tensor, samples: Samples) -> NDArray[np.float64]:
    """Headline metric of every sample, or the loss if the task chooses by it; NaN without one."""
    if task.chooses_by_loss:
        each = [slice(at, at + 1) for at in range(len(samples))]
        return np.array([float(task.loss(outputs[at], samples.take(at))) for at in each])
    if task.by_sample:
        total, count = task.per_sample(outputs, samples).double().unbind(1)
        return (total / count).numpy()
    each = torch.arange(len(samples)).split(1)
    return np.array([task.metrics(outputs[at], samples.subset(at))[task.headline] for at in each])


def is_better(
    after: Sequence[float], before: Sequence[float], block: NDArray[np.int64] | None = None
) -> bool:
    """Return whether the mean loss fell by more than two standard errors of the difference.

    Args:
        after: loss on each of two or more samples.
        before: likewise, of the same samples in the same order.
        block: number of the block of each sample, from 0, of two or more blocks; None: each sample
            is its own block.
    """
    change = np.array(before) - np.array(after)
    block = np.arange(len(change)) if block is None else block
    counts = np.bincount(block)
    mean, blocks, weight = change.mean(), len(counts), counts / len(change)
    # The mean is over samples, so a block counts by its size, as in `simplest_near_best`.
    apart = weight * (np.bincount(block, change) / counts - mean)
    error = ((apart**2).sum() * blocks / (blocks - 1)) ** 0.5
    wide = float(t.ppf(norm.cdf(AGAINST_OTHERS), blocks - 1))
    # Written as "above", so that a NaN is no gain.
    return bool(mean > wide * error)


def simplest_way(
    losses: Mapping[str, NDArray[np.float64]],
    block: NDArray[np.int64] | None = None,
    needed: float = AGAINST_SHARED,
) -> str:
    """Simplest way that is worse than the best by at most `needed` standard errors.

    Standard errors are those of the paired difference from the best; with few samples they are
    widened by Student's t. A way that is worse than the first in the mean is never chosen.

    Args:
        losses: way -> loss of each of two or more samples, lower is better. The first way is the
            default, and simpler ways come before others.
        block: number of the block of each sample, from 0; None: each sample is its own block.
        needed: standard errors that another way must gain.

    Source: Breiman, Friedman, Olshen, Stone: Classification and Regression Trees, 1984, 3.4.3.
    Differs: the error is that of paired differences, and Student's.
    """
    first = next(iter(losses.values()))
    # Being within the error of the best is no reason to be worse than with no change at all.
    ways = [way for way, loss in losses.items() if loss.mean() <= first.mean()]
    block = np.arange(len(first)) if block is None else block
    counts = np.bincount(block)
    table = np.stack([np.bincount(block, losses[way]) / counts for way in ways], 1)
    # With two samples, chance alone exceeds one standard error in one case of four, not of six.
    wide = float(t.ppf(norm.cdf(needed), len(table) - 1))
    return ways[simplest_near_best(table.tolist(), counts.tolist(), wide)]
