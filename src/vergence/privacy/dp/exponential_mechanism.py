"""Exponential mechanism for personal entries: the k highest scores under a privacy budget.

Adding Gumbel noise of scale 2 `bound` / eps0 to every score and taking the k highest is the same as
k draws of the exponential mechanism without replacement, each with epsilon eps0. Scores are clipped
to [0, `bound`] first, so that replacing a person's data moves each score by at most `bound`.

If k is in the thousands, eps0 is so small that the choice is nearly random: `private_top` is for
tens of layers or filters, not for 90 000 weights.

Used by `privacy.dp.mask_budget`.

Source: Durfee and Rogers, "Practical differentially private top-k selection with pay-what-you-get
composition", NeurIPS 2019, Section 3; composition: Dong, Durfee and Rogers, "Optimal differential
privacy composition for exponential mechanisms", ICML 2020, and Cesar and Rogers, 2021 (a draw of
eps0 is eps0^2 / 8 concentrated).
"""

from __future__ import annotations

import math

import torch

from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.errors import ConfigError
from vergence.privacy.keyed_noise import NoiseStream


def per_draw(epsilon: float, delta: float, k: int) -> float:
    """Return eps0, the epsilon that each of k draws may spend within a budget.

    It is the larger of two values. By basic composition, epsilon = k eps0. By concentrated
    composition, epsilon = rho + 2 sqrt(rho log(1 / delta)) with rho = k eps0^2 / 8.

    Args:
        epsilon: budget of all draws together.
        delta: delta of all draws together; 0: basic composition only.
        k: number of draws.

    Raises:
        ConfigError: epsilon or k is not positive, or delta is not in [0, 1).
    """
    if not (epsilon > 0 and 0 <= delta < 1 and k >= 1):
        raise ConfigError(
            f"a private choice needs epsilon > 0, delta in [0, 1) and k >= 1; got {epsilon:g}, "
            f"{delta:g} and {k}"
        )
    plain = epsilon / k
    if not delta:
        return plain
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    return max(plain, math.sqrt(8 * rho / k))


def private_top(
    score: Params,
    k: int,
    among: Mask,
    bound: float,
    epsilon: float,
    delta: float,
    draws: NoiseStream,
) -> Mask:
    """Choose k entries at random among candidates; entries with higher scores are more likely.

    Args:
        score: scores computed from one person or frame alone; they are clipped to [0, `bound`], and
            NaN counts as 0.
        k: number of entries to choose; if there are fewer candidates, all are chosen.
        among: the candidates, which must not depend on the data that is protected.
        bound: largest score, which must not be learned from the data.
        epsilon: epsilon of the whole choice.
        delta: delta of the whole choice; 0 for a pure guarantee.
        draws: secret random numbers of this person and round.

    Raises:
        ConfigError: the bound or the budget is out of range.
    """
    if not bound > 0:
        raise ConfigError(f"a private choice needs scores bounded by a number > 0; got {bound:g}")
    k = min(k, among.count)
    if k <= 0:
        return Mask.none(score.layout)
    scale = 2 * bound / per_draw(epsilon, delta, k)
    # NaN counts as 0: sorted as it is, it would win or lose whatever the noise says.
    known = score.flat.double().nan_to_num(nan=0.0).clamp(0, bound)
    noise = torch.from_numpy(draws.gumbel(score.layout.n))
    return Mask.top(score.like(known / scale + noise), k, among=among)
