"""Scores of video summaries: the exact knapsack over shots, F against people, rank agreement.

The protocol of SumMe and TVSum. Scores are given at sampled frames (picks) and spread to all
frames; a shot is worth the mean score of its frames; the most valuable shots that fit into 15 % of
the frames are the summary. F depends mostly on how long the shots are: print a random row on the
same shots beside it, and rank agreement before it.

Used by `tasks.summary` and `video.summarise`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike, NDArray

from vergence.errors import ConfigError, DataError

SHARE = 0.15
"""Share of a video's frames that a summary may have, in every published number."""
# Comparing all pairs of steps at once would need too much memory for long videos.
BLOCK = 64
"""Rows of Kendall's comparisons at a time."""
Floats = NDArray[np.float64]


class Overlap(NamedTuple):
    """Overlap of two summaries, all values in [0, 1]."""

    f: float
    precision: float
    recall: float


class HumanSelections(NamedTuple):
    """Counts of the frames that people chose, from which F follows.

    Attributes:
        inside: number of each shot's frames that each person chose.
        both: number of frames that two people both chose; on the diagonal, that one person chose.
    """

    inside: Int[np.ndarray, "shots users"]
    both: Int[np.ndarray, "users users"]


class Agreement(NamedTuple):
    """Kendall's tau-b and Spearman's rho, each a mean over people."""

    tau: float
    rho: float


def capacity(frames: int, share: float = SHARE) -> int:
    """Return the number of frames that a summary may have, `int(share * frames)` as published.

    Raises:
        ConfigError: the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ConfigError(f"a summary's share of the frames must lie in (0, 1], got {share}")
    return int(share * frames)


def spread(
    scores: Float[np.ndarray, " picks"], picks: Int[np.ndarray, " picks"], frames: int
) -> Float[np.ndarray, " frames"]:
    """Return a score for every frame: that of the last pick at or before it, 0 before the first."""
    last = np.searchsorted(picks, np.arange(frames), side="right")
    return np.concatenate([[0.0], np.asarray(scores, np.float64)])[last]


def shot_values(
    per_frame: Float[np.ndarray, " frames"], shots: Int[np.ndarray, "shots 2"]
) -> Float[np.ndarray, " shots"]:
    """Return the mean score of each shot; `shots` are first and last frame, both included."""
    return np.array([per_frame[first : last + 1].mean() for first, last in shots], np.float64)


def knapsack(
    values: Float[np.ndarray, " items"], weights: Int[np.ndarray, " items"], room: int
) -> Bool[np.ndarray, " items"]:
    """Return the items of greatest total value whose weights sum to at most `room`: exact.

    Of equal totals the one without the later item wins. It takes items x room steps, and as many
    bits of memory.

    Raises:
        DataError: a weight is not positive.

    Source: Bellman 1957, the 0/1 table.
    """
    if (weights < 1).any():
        raise DataError(f"every shot needs at least one frame, got a weight of {weights.min()}")
    best = np.zeros(room + 1)
    taken: list[NDArray[np.uint8]] = []
    for value, weight in zip(values, weights, strict=True):
        with_it = np.full(room + 1, -np.inf)
        with_it[weight:] = best[: max(0, room + 1 - weight)] + value
        # Strictly greater, so that ties go as in the published programs.
        taken.append(np.packbits(with_it > best))
        best = np.maximum(best, with_it)
    selection = np.zeros(len(weights), bool)
    for item in range(len(weights) - 1, -1, -1):
        if taken[item][room >> 3] >> (7 - (room & 7)) & 1:
            selection[item] = True
            room -= int(weights[item])
    return selection


def summary(
    per_frame: Float[np.ndarray, " frames"],
    shots: Int[np.ndarray, "shots 2"],
    share: float = SHARE,
) -> Bool[np.ndarray, " frames"]:
    """Return for every frame whether it is in the summary, the best shots that fit the share."""
    lengths = shots[:, 1] - shots[:, 0] + 1
    selection = knapsack(shot_values(per_frame, shots), lengths, capacity(len(per_frame), share))
    kept = np.zeros(len(per_frame), bool)
    for first, last in shots[selection]:
        kept[first : last + 1] = True
    return kept


def overlap(machine: Bool[np.ndarray, " frames"], user: Bool[np.ndarray, " frames"]) -> Overlap:
    """Return F, precision and recall of a summary against one person's; 0 where nothing meets."""
    both = float(np.count_nonzero(machine & user))
    if not both:
        return Overlap(0.0, 0.0, 0.0)
    precision, recall = both / np.count_nonzero(machine), both / np.count_nonzero(user)
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def f_score(
    machine: Bool[np.ndarray, " frames"],
    users: Bool[np.ndarray, "users frames"],
    over: Literal["max", "mean"],
) -> float:
    """Return F against several people: the `max` over them for SumMe, the `mean` for TVSum."""
    each = [overlap(machine, user).f for user in users]
    return float(np.max(each) if over == "max" else np.mean(each))


def counted_f(
    in_summary: Bool[np.ndarray, " shots"],
    shots: Int[np.ndarray, "shots 2"],
    people: HumanSelections,
    over: Literal["max", "mean"],
) -> float:
    """Return `f_score` of the summary made of these shots, from counts alone.

    People who chose nothing are left out; 0 where nobody chose anything.
    """
    there = np.diag(people.both) > 0
    if not there.any():
        return 0.0
    frames = int((shots[in_summary, 1] - shots[in_summary, 0] + 1).sum())
    each = 2 * people.inside[in_summary].sum(0)[there] / (frames + np.diag(people.both)[there])
    return float(each.max() if over == "max" else each.mean())


def counted_human_f(people: HumanSelections, over: Literal["max", "mean"]) -> float:
    """Return `human_f` from counts alone; people who chose nothing are left out."""
    there = np.diag(people.both) > 0
    both = people.both[np.ix_(there, there)]
    if len(both) < 2:
        return 0.0
    sizes = np.diag(both)
    f = 2 * both / (sizes[:, None] + sizes)
    others = f[~np.eye(len(f), dtype=bool)].reshape(len(f), -1)
    return float(np.mean(others.max(1) if over == "max" else others.mean(1)))


def random_f(
    shots: Int[np.ndarray, "shots 2"],
    users: Bool[np.ndarray, "users frames"],
    over: Literal["max", "mean"],
    rng: np.random.Generator,
    share: float = SHARE,
) -> float:
    """Return F of one summary chosen by random scores, one for every 15th frame.

    Benchmarks compare it with published values.
    """
    frames = users.shape[1]
    picks = np.arange(0, frames, 15)
    return f_score(
        summary(spread(rng.random(len(picks)), picks, frames), shots, share), users, over
    )


def human_f(users: Bool[np.ndarray, "users frames"], over: Literal["max", "mean"]) -> float:
    """Return F of each person's summary against the others', averaged over people.

    Tasks compute the same from counts, by `counted_human_f`.
    """
    each = [f_score(users[i], np.delete(users, i, axis=0), over) for i in range(len(users))]
    return float(np.mean(each))


def agreement(scores: ArrayLike, people: Float[np.ndarray, "people steps"]) -> Agreement:
    """Return the rank agreement of scores with each person over steps, averaged over people.

    For SumMe give the mean of the user summaries as the only row.

    Source: Otani et al., "Rethinking the evaluation of video summaries", CVPR 2019.
    """
    # Ranks against the mean of all people would be three to four times as high on TVSum.
    rows = np.vstack([np.asarray(scores, np.float64), np.asarray(people, np.float64)])
    return Agreement(float(kendall(rows)[0, 1:].mean()), float(spearman(rows)[0, 1:].mean()))


def human_agreement(people: Float[np.ndarray, "people steps"]) -> Agreement:
    """Return the rank agreement between people over steps, a mean over all pairs of people."""
    pairs = np.triu_indices(len(people), 1)
    return Agreement(float(kendall(people)[pairs].mean()), float(spearman(people)[pairs].mean()))


def rest_agreement(people: Float[np.ndarray, "people steps"]) -> Agreement:
    """Return the rank agreement of people with the mean of the others, averaged over people."""
    rest = (people.sum(0) - people) / (len(people) - 1)
    each = [agreement(own, others[None]) for own, others in zip(people, rest, strict=True)]
    tau, rho = np.mean(each, 0)
    return Agreement(float(tau), float(rho))


def kendall(rows: Float[np.ndarray, "rows steps"]) -> Float[np.ndarray, "rows rows"]:
    """Return Kendall's tau-b between all rows; 0 where a row is constant.

    tau-b is the cosine of two rows' signs of all pairwise differences, so that all pairs of rows
    are one matrix product.

    Source: Kendall 1945.
    """
    # Ranks, and sums of up to 2^24 signs, are exact in float32, whose products are faster.
    values = np.ascontiguousarray(scipy.stats.rankdata(rows, axis=1), np.float32)
    met = np.zeros((len(values), len(values)))
    for start in range(0, values.shape[1], BLOCK):
        signs = np.sign(values[:, start : start + BLOCK, None] - values[:, None])
        flat = signs.reshape(len(values), -1)
        met += flat @ flat.T
    return _cosines(met)


def spearman(rows: Float[np.ndarray, "rows steps"]) -> Float[np.ndarray, "rows rows"]:
    """Return Spearman's rho between all rows; 0 where a row is constant."""
    ranks = scipy.stats.rankdata(rows, axis=1)
    centred = ranks - ranks.mean(1, keepdims=True)
    return _cosines(centred @ centred.T)


def _cosines(products: Floats) -> Floats:
    """Return a Gram matrix scaled to a diagonal of 1, with 0 in rows of length 0."""
    length = np.sqrt(np.diag(products))
    scale = np.outer(length, length)
    return np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
