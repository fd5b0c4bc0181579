"""Personal priors: where a person looks, whatever is shown, from that person's training data alone.

A prior is a bank of maps beside a person's samples. Training samples are given a map that was made
without them, so that a network does not learn to trust a map that knows the answer.

Used in `adaptation`, `metrics`, `model_tools`, `tasks` and `video`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vergence.core.data import Batch, Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.errors import ConfigError
from vergence.metrics.gaze_maps import centre_map, fixation_counts, smoothed
from vergence.metrics.held_out import BLOCKS, runs_of_neighbours, simplest_near_best

WIDTHS = (0.03, 0.045, 0.07, 0.1, 0.15, 0.2)
"""Blurs that cross-validation chooses from, in widths."""
SHARES = (0.02, 0.1, 0.3, 0.6, 1.0)
"""Shares of the common map that cross-validation chooses from; 1: nothing personal."""
FOLDS = 5
PSEUDO = 5
"""Number of samples with the common offset that are added to everybody's own."""
BANK, ROW = "prior", "prior_row"
"""Names of the bank that holds a person's maps, and of the column that points into it."""

Maps = Float[Tensor, "folds height width"]


def fold_numbers(count: int) -> Int[Tensor, " samples"]:
    """Return the fold of every sample: neighbours in a recording are in one."""
    # Neighbours are alike: a map that saw one would know the answer for the other.
    return torch.arange(count) * FOLDS // max(count, 1)


def common_map(height: int, width: int) -> Float[Tensor, "height width"]:
    """Return the map of a person of whom nothing is known: a broad Gaussian in the middle."""
    return centre_map(height, width)


def cross_fitted(
    points: Float[Tensor, "samples frames fixations 2"], grid: tuple[int, int]
) -> Maps:
    """For each fold return a map made without it; then the map of all samples.

    Each map sums to 1.

    Blur and share of the common map are those under which held-out gaze is likeliest, over folds.
    A person with gaze in fewer than two folds gets the common map.
    """
    common = common_map(*grid)
    held = _by_fold(points, grid)
    whole = held.sum(0)
    if int((held.sum((1, 2)) > 0).sum()) < 2:
        return common.expand(FOLDS + 1, *grid).clone()
    seen = torch.cat([whole - held, whole[None]])
    made = {
        choice: mixture(smoothed(seen, choice[0]), common, choice[1])
        for choice in product(WIDTHS, SHARES)
    }
    best = max(made, key=lambda choice: float((held * made[choice][:FOLDS].log()).sum()))
    return made[best]


def width_within(
    points: Float[Tensor, "samples frames fixations 2"], height: int, width: int
) -> float:
    """Return the blur of a person's own map, chosen over folds of that person's samples.

    `map_priors.own_map` calls this.
    """
    held = _by_fold(points, (height, width))
    return width_for(held, held.sum(0) - held)


def _by_fold(points: Tensor, grid: tuple[int, int]) -> Float[Tensor, "folds height width"]:
    counts = fixation_counts(points.double(), *grid).sum(1)
    return counts.new_zeros((FOLDS, *grid)).index_add(0, fold_numbers(len(counts)), counts)


def width_for(
    counts: Float[Tensor, "parts height width"], seen: Float[Tensor, "parts height width"]
) -> float:
    """Return the blur of `seen` under which the gaze counts `counts` are likeliest, over parts.

    0.01 of a uniform map is mixed in.
    """
    # Without it gaze where nobody looked would be impossible, and decide between all blurs alone.
    even = 1 / counts[0].numel()

    def fit(width: float) -> float:
        heat = smoothed(seen, width)
        total = heat.sum((-1, -2), keepdim=True).clamp(min=torch.finfo(heat.dtype).tiny)
        return float((counts * (0.99 * heat / total + 0.01 * even).log()).sum())

    return max(WIDTHS, key=fit)


def mixture(heat: Maps, common: Float[Tensor, "height width"], share: float) -> Maps:
    """Return (1 - share) * heat, scaled to sum 1, + share * common; `common` where heat is 0."""
    total = heat.sum((-1, -2), keepdim=True)
    own = heat / total.clamp(min=torch.finfo(heat.dtype).tiny)
    return torch.where(total > 0, (1 - share) * own + share * common, common)


def offsets(gaze: Float[Tensor, "samples 2"], centre: Tensor, spread: Tensor) -> Tensor:
    """Return mean and deviation of angles without each fold, then of all: `[folds + 1, 2, 2]`.

    Both are shrunk towards `centre` and `spread` `[2]`, as if `PSEUDO` more samples had this mean
    and deviation.
    """
    fold, made = fold_numbers(len(gaze)), []
    for left_out in range(FOLDS + 1):
        own = gaze[fold != left_out].double()
        n = len(own)
        mean = (own.sum(0) + PSEUDO * centre) / (n + PSEUDO)
        square = ((own - mean) ** 2).sum(0)
        deviation = ((square + PSEUDO * spread**2) / (n + PSEUDO)).sqrt()
        made.append(torch.stack([mean, deviation]))
    return torch.stack(made)


def attach_priors(
    federation: Federation, made: Callable[[Splits], Tensor], common: Tensor, through: bool
) -> Federation:
    """Return the federation with a bank of priors added to everybody's samples.

    The tasks `gaze_angle` and `gaze_map` prepare their data with it.

    Args:
        federation: the people, and public samples.
        made: function that returns a person's priors `[folds + 1, ...]`: one without each fold of
            the training samples, then one of all of them. More such blocks may follow, one for each
            higher exponent that validation data may choose.
        common: the prior of a person of whom nothing is known.
        through: whether training samples get their owner's prior; else they get the common one.
    """
    federation.refuse_many("the personal prior")
    people = {}
    for person, splits in federation.people.items():
        rows = torch.cat([made(splits), common[None]]).float()
        bank, unknown = SharedRows(rows, ROW), len(rows) - 1
        count = len(splits.train)
        own = fold_numbers(count) if through else torch.full((count,), unknown)
        # Validation and test samples are in no fold: their prior uses all training samples.
        rest = [
            _with_bank(p, bank, torch.full((len(p),), FOLDS)) for p in (splits.val, splits.test)
        ]
        people[person] = Splits(_with_bank(splits.train, bank, own), *rest)
    if (held := federation.proxies) is not None:
        held = replace(
            held, train=with_one_prior(held.train, common), val=with_one_prior(held.val, common)
        )
    return replace(federation, people=people, proxies=held)


def with_each_exponent(samples: Samples) -> list[Samples]:
    """Return the samples once for every exponent of their priors, the lowest first."""
    bank, rows = samples.banks[BANK], samples.columns[ROW]
    # Every exponent has so many priors; a bank of one has the common prior alone.
    each = FOLDS + 1
    own = rows if len(bank.rows) == 1 else rows % each
    return [
        replace(samples, columns={**samples.columns, ROW: own + exponent * each})
        for exponent in range(max(len(bank.rows) // each, 1))
    ]


def prior_batches(samples: Samples, device: torch.device) -> list[Batch]:
    """Return all samples as a batch for every exponent of their priors, the lowest first."""
    # A batch of all samples would copy all their pictures, which no prior needs.
    bare = replace(samples, banks={BANK: samples.banks[BANK]})
    return [
        {name: column.to(device) for name, column in each.take(slice(None)).items()}
        for each in with_each_exponent(bare)
    ]


def losses(
    loss: Callable[[Tensor, Batch], Tensor], outputs: Tensor, samples: Samples
) -> list[float]:
    """Return the loss of the outputs for every exponent of the prior, the lowest first."""
    return [float(loss(outputs, batch)) for batch in prior_batches(samples, outputs.device)]


def choose_prior_amount(
    splits: Splits, validation_outputs: Tensor, loss: Callable[[Tensor, Batch], Tensor]
) -> Splits:
    """Return a person's data with the exponent that their validation data choose.

    It is the lowest exponent whose loss is within one standard error of the least, over runs of
    neighbours. With fewer than two validation samples there is no standard error, and the lowest
    exponent is chosen.

    Args:
        splits: prepared data.
        validation_outputs: outputs of a model on the validation data, with the lowest exponent.
        loss: function of outputs without a prior and a batch with one.
    """
    blocks = runs_of_neighbours(splits.val, BLOCKS)
    if len(blocks) < 2:
        return splits
    outputs = validation_outputs.tensor_split(BLOCKS)
    table = [losses(loss, *each) for each in zip(outputs, blocks, strict=False)]
    best = simplest_near_best(table, [len(block) for block in blocks], 1.0)
    return replace(
        splits, val=with_each_exponent(splits.val)[best], test=with_each_exponent(splits.test)[best]
    )


def with_one_prior(samples: Samples, prior: Tensor) -> Samples:
    """Return samples with one prior, `[...]`, for all of them."""
    rows = torch.zeros(len(samples), dtype=torch.int64)
    return _with_bank(samples, SharedRows(prior[None].float(), ROW), rows)


def prior_of(batch: Batch, task: str) -> Tensor:
    """Return the priors of a batch, `[batch, ...]`.

    Raises:
        ConfigError: the batch's samples have no priors.
    """
    if BANK not in batch:
        raise ConfigError(
            f"{task}: these samples have no prior, which task.personal_prior needs: pass the data "
            "through task.prepare, or new samples through task.prepare_for"
        )
    return batch[BANK]


def whole_prior(samples: Samples) -> Tensor:
    """Return the prior that was made of all of a person's training samples.

    `samples` are the person's test samples, which hold this prior.
    """
    return samples.banks[BANK].rows[int(samples.columns[ROW][0])]


def common_prior(samples: Samples) -> Tensor:
    """Return the prior of a person of whom nothing is known, the last in everybody's bank.

    An exported model gets it.
    """
    return samples.banks[BANK].rows[-1]


def _with_bank(samples: Samples, bank: SharedRows, rows: Tensor) -> Samples:
    columns = {**samples.columns, ROW: rows}
    return replace(samples, columns=columns, banks={**samples.banks, BANK: bank})
