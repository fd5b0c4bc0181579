"""Skew between people's data: one measure for each kind, of every client against all others.

Four compare distributions, P(x), P(y), P(x|y) and P(y|x), by the energy coefficient; the others are
the dependence of a client's samples on each other and the amount of data. docs/how-to/skew.md gives
the formulas, and says which skews cannot be told apart.
Used by `studies.skew`.

Source: taxonomy of the adaptive-FL paper, section 3.1; energy coefficient of Szekely and Rizzo,
"Energy statistics", Journal of Statistical Planning and Inference 143(8), 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.spatial.distance import cdist
from scipy.special import ndtri
from scipy.stats import wasserstein_distance

from vergence.errors import DataError
from vergence.metrics.sample_features import Compact

Array = NDArray[np.float64]
MEASURES = ("covariate", "label", "x_given_y", "y_given_x", "dependence", "quantity")
"""P(x), P(y), P(x|y), P(y|x), samples that depend on each other, amount."""
RUNS = 20
"""A client's samples are cut into so many runs of neighbours, or fewer where they are few."""
FEWEST = 8
# Every client has six measures: at 95 % one of them would often be above chance by chance.
CHANCE = 0.99
"""Quantile of chance above which a share counts."""
FOLDS, RIDGE, RELUS = 5, 0.02, 300
COMPONENTS, SHOWN = 40, 8
"""Principal components that predict labels, and those P(x) is compared on."""
BOX = 7


@dataclass(frozen=True)
class Skew:
    """Every measure of every client, `[clients, 6]` in the order of `MEASURES`.

    `value` is in `units`. `share` puts the measures side by side: 0 without skew, at most 1.
    `chance` is the 99 % quantile of the share where there is no skew. `samples` counts all that a
    client has, `gini` is their inequality.
    """

    clients: tuple[str, ...]
    samples: NDArray[np.int64]
    units: tuple[str, ...]
    value: Array
    share: Array
    chance: Array

    @property
    def is_beyond_chance(self) -> NDArray[np.bool_]:
        """True where the share is above its `chance`."""
        return self.share > self.chance

    @property
    def gini(self) -> float:
        """Gini coefficient of the numbers of samples: 0 if equal, towards 1 if one has all."""
        gaps = np.abs(self.samples[:, None] - self.samples)
        return float(gaps.mean() / (2 * self.samples.mean()))

    def dominating(self, client: int) -> str | None:
        """Return the measure with the largest share of those beyond chance; None without any.

        `vergence data skew` prints it.
        """
        shares = np.where(self.is_beyond_chance[client], self.share[client], -1)
        return MEASURES[int(shares.argmax())] if self.is_beyond_chance[client].any() else None


def measure_skew(
    people: Mapping[str, Compact], samples: Sequence[int], draws: int = 400, seed: int = 0
) -> Skew:
    """Measure every skew of every client against all others together.

    Args:
        people: each client's training samples, in order of recording.
        samples: number of samples of each client, validation and test included.
        draws: number of permutations from which the level of chance is estimated.
        seed: seed of the permutations.

    Raises:
        DataError: fewer than two clients, or one with fewer than 8 samples.
    """
    if len(people) < 2:
        raise DataError(f"skew compares people: at least 2 are needed, there is {len(people)}")
    for client, own in people.items():
        if len(own) < FEWEST:
            raise DataError(
                f"'{client}' has {len(own)} training samples with a label, skew needs "
                f"{FEWEST}: leave this person out"
            )
    rng = np.random.default_rng(seed)
    parts = list(people.values())
    runs = Runs.of([len(own) for own in parts])
    views, marks = _views(parts, runs)
    unit = parts[0].unit
    units = ("SD", unit, "SD", unit, "effective samples", "of the mean")
    columns = [_distribution(v, u, runs, rng, draws) for v, u in zip(views, units, strict=False)]
    scaled = np.hstack([views[0], marks])
    columns += [_dependence(scaled, runs, [p.total for p in parts], rng, draws)]
    # Return n / mean n, |n - mean| / (n + mean), and what dealing all samples at random gives.
    n = np.asarray(samples, float)
    ratio = n / n.mean()
    luck = ndtri((1 + CHANCE) / 2) * np.sqrt((1 - 1 / len(n)) / n.mean())
    columns += [(ratio, np.abs(ratio - 1) / (ratio + 1), np.full(len(n), luck / (2 + luck)))]
    value, share, chance = (np.stack(c, 1) for c in zip(*columns, strict=True))
    return Skew(tuple(people), np.asarray(samples), units, value, share, chance)


@dataclass(frozen=True)
class Runs:
    """Starts, sizes and owners of clients' runs of neighbouring samples; rows are in order."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    owner: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Runs:
        """Cut each client's samples into `RUNS` runs, at least four samples each where possible."""
        sizes, owner = [], []
        for client, length in enumerate(lengths):
            count = min(RUNS, max(length // 4, 2))
            sizes += [b - a for a, b in pairwise(np.arange(count + 1) * length // count)]
            owner += [client] * count
        return cls(np.cumsum([0, *sizes[:-1]]), np.array(sizes), np.array(owner))

    @property
    def rows(self) -> NDArray[np.int64]:
        """The owner of every sample."""
        return np.repeat(self.owner, self.sizes)

    @property
    def folds(self) -> NDArray[np.int64]:
        """The fold of every sample: whole runs, so that neighbours stay together."""
        return np.repeat(np.arange(len(self.sizes)) % FOLDS, self.sizes)


def _views(parts: Sequence[Compact], runs: Runs) -> tuple[list[Array], Array]:
    """Return the samples as P(x), P(y), P(x|y) and P(y|x) are compared on, and scaled labels."""
    y = np.concatenate([own.labels for own in parts])
    pictures = np.concatenate([own.pictures for own in parts]).astype(float)
    numbers = np.concatenate([own.numbers for own in parts])
    detail, summary, inputs = numbers, [numbers], [numbers]
    if pictures.size:
        flat = pictures.reshape(len(y), -1)
        centred = flat - flat.mean(0)
        # The small matrix of pixels by pixels has the same axes as the long one of all samples.
        axes = np.linalg.svd(centred.T @ centred)[0][:, :COMPONENTS]
        components = centred @ axes
        looks = np.stack([flat.mean(1), flat.std(1)], 1)
        summary += [looks, components[:, :SHOWN]]
        inputs += [looks, components]
        # Without its local mean a picture tells of edges and places, not of light and skin.
        detail = (pictures - uniform_filter(pictures, BOX, axes=(1, 2))).reshape(len(y), -1)
    marks = _standard(y)
    rich = _random_features(_standard(np.hstack(inputs)))
    away = y - _crossfit(rich, y, runs.folds)
    # Places of inputs along the directions in which labels move them, given the label. The part of
    # the inputs that the label does not explain (cross-fitted, quadratic), projected on the slopes
    # of the inputs over the label; one standardised column for each label column.
    squares = [marks[:, i] * marks[:, j] for i in range(marks.shape[1]) for j in range(i + 1)]
    terms = marks if marks.shape[1] > 3 else np.column_stack([marks, *squares])
    rest = detail - _crossfit(_standard(terms), detail, runs.folds, 1e-4)
    slopes = np.linalg.lstsq(marks, detail - detail.mean(0), rcond=None)[0]
    there = _standard(rest @ np.linalg.pinv(slopes, rcond=1e-6))
    return [_standard(np.hstack(summary)), y, there, away], marks


def _standard(columns: Array) -> Array:
    """Return columns with mean 0 and deviation 1, without those that are constant."""
    centred, spread = columns - columns.mean(0), columns.std(0)
    varied = spread > 1e-9 * max(1.0, float(np.abs(columns).max(initial=0)))
    return centred[:, varied] / spread[varied]


def _random_features(inputs: Array) -> Array:
    """Return the inputs and fixed random ReLU features of them."""
    # A seed of its own: the measures must not change with that of the permutations.
    rng, width = np.random.default_rng(0), inputs.shape[1]
    weights = rng.normal(size=(width, RELUS)) / np.sqrt(max(width, 1))
    return np.hstack([inputs, np.maximum(inputs @ weights + rng.normal(size=RELUS), 0)])


def _crossfit(inputs: Array, target: Array, folds: NDArray, ridge: float = RIDGE) -> Array:
    """Return ridge predictions of every fold from the other folds, of all people alike."""
    found = np.empty_like(target)
    for fold in range(FOLDS):
        held = folds == fold
        x, y = inputs[~held], target[~held]
        middle = x.mean(0)
        gram = (x - middle).T @ (x - middle)
        gram[np.diag_indices_from(gram)] += ridge * len(x)
        slopes = np.linalg.solve(gram, (x - middle).T @ (y - y.mean(0)))
        found[held] = (inputs[held] - middle) @ slopes + y.mean(0)
    return found


def _distribution(
    view: Array, unit: str, runs: Runs, rng: Generator, draws: int
) -> tuple[Array, ...]:
    """Return Wasserstein distance in the unit, energy coefficient and its chance level."""
    gaps = cdist(view, view)
    gaps = np.add.reduceat(np.add.reduceat(gaps, runs.starts, 0), runs.starts, 1)
    share = energy_coefficients(gaps, runs.sizes, runs.owner)
    # Whole runs change owners: single neighbours are alike, and would make chance look too small.
    dealt = [
        energy_coefficients(gaps, runs.sizes, rng.permutation(runs.owner)) for _ in range(draws)
    ]
    # Return each owner's distance to all others, Euclidean over the columns.
    found = []
    for client in range(runs.rows.max() + 1):
        mine = runs.rows == client
        each = [wasserstein_distance(column[mine], column[~mine]) for column in view.T]
        found.append(np.linalg.norm(each))
    value = np.array(found)
    # Per column: the length of a vector would grow with the number of columns.
    if unit == "SD":
        value /= np.sqrt(max(view.shape[1], 1))
    return value, share, np.quantile(dealt, CHANCE, 0)


def energy_coefficients(gaps: Array, sizes: NDArray, owner: NDArray) -> Array:
    """Return each owner's (2 E|X-Y| - E|X-X'| - E|Y-Y'|) / 2 E|X-Y| against all others.

    It is 0 on average if both have the same distribution, and near 1 if they lie far apart.

    Args:
        gaps: sums of distances between the samples of two runs, `[runs, runs]`.
        sizes: samples of each run.
        owner: number of the client who owns each run.
    """
    whose = np.eye(owner.max() + 1)[owner]
    sums, n = whose.T @ gaps @ whose, whose.T @ sizes
    others, within = n.sum() - n, np.diag(sums)
    across = sums.sum(1) - within
    rest = sums.sum() - 2 * across - within
    own_mean, rest_mean = within / (n * (n - 1)), rest / (others * (others - 1))
    twice = 2 * across / (n * others)
    # Where all samples are one point, nothing differs.
    return (twice - own_mean - rest_mean) / np.maximum(twice, np.finfo(float).tiny)


def _dependence(
    columns: Array, runs: Runs, totals: Sequence[int], rng: Generator, draws: int
) -> tuple[Array, ...]:
    """Return effective sample sizes, and the intraclass correlation of runs as the share."""
    values, shares, chances = [], [], []
    for client, total in enumerate(totals):
        own, sizes = columns[runs.rows == client], runs.sizes[runs.owner == client]
        share = intraclass(own, sizes)
        dealt = [intraclass(rng.permutation(own), sizes) for _ in range(draws)]
        # Kish's design effect: in runs of m samples with correlation r, n are worth
        # n / (1 + (m - 1) r) independent ones.
        values.append(total / (1 + (total / len(sizes) - 1) * max(share, 0.0)))
        shares.append(share)
        chances.append(np.quantile(dealt, CHANCE))
    return np.array(values), np.array(shares), np.array(chances)


def intraclass(columns: Array, sizes: NDArray) -> float:
    """Return the share of the variance of all columns together that lies between runs.

    It is computed by a one-way analysis of variance with runs of unequal length. It is below 0 if
    the means of the runs differ less than by chance.
    """
    n, groups = len(columns), len(sizes)
    sums = np.add.reduceat(columns, np.cumsum([0, *sizes[:-1]]), 0)
    means = sums / sizes[:, None]
    between = float((sizes[:, None] * (means - columns.mean(0)) ** 2).sum()) / (groups - 1)
    inside = float(((columns - np.repeat(means, sizes, 0)) ** 2).sum()) / (n - groups)
    typical = (n - (sizes**2).sum() / n) / (groups - 1)
    extra = (between - inside) / typical
    return extra / max(extra + inside, np.finfo(float).tiny)
