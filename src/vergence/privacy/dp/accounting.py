"""Privacy accounting: epsilon of Gaussian noise, noise for an epsilon, a ledger of spent budget.

Two independent libraries of the extra `dp` do the accounting: Opacus's PRV accountant is the
default, and the PLD accountant of dp-accounting checks it. If everybody takes part in every step,
epsilon has a closed form, and no library is needed.

Used in `engine`, `experiment`, `privacy` and `studies`.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, cast

import numpy as np
import scipy
from annotated_types import Ge, Gt, Interval
from scipy.special import log_ndtr, ndtr

from vergence.core.files import JsonObject
from vergence.core.optional import import_optional
from vergence.core.options import NamedOptions
from vergence.errors import ConfigError, StateError

Accountant = Literal["prv", "pld"]
MOST, SMALLEST = 1000.0, 1e-12
"""Largest epsilon and smallest delta that are computed; see `_prv` for the reason."""
POINTS = 2**25
"""Largest number of points of the grid on which PRV convolves; it then takes 5 GB of memory."""
AGREE = 0.05
"""Largest difference of the two accountants, as a fraction of the larger epsilon."""
NEAR, LEAST = 0.04, 5e-4
"""PRV's epsilon is too large by at most `NEAR` times epsilon or `LEAST`, whichever is larger."""
MANY = 3
"""Largest number of kinds of charges (noise and rate) whose epsilon `quick_epsilon` computes."""
FINE = 1e-3
"""Largest relative error of a noise multiplier, which may only be too large."""


@dataclass(frozen=True)
class Charge(NamedOptions, label="dp"):
    """Equal steps of the sampled Gaussian mechanism: noise on a sum of randomly drawn units.

    Attributes:
        noise: standard deviation as a multiple of the sensitivity (the clip bound).
        rate: probability that a unit (a frame, or a person) takes part in a step, independently of
            other units and steps (Poisson sampling); 1: always.
        steps: number of such steps.
    """

    noise: Annotated[float, Gt(0)]
    rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    steps: Annotated[int, Ge(0)] = 1


@dataclass(frozen=True)
class Ledger:
    """Privacy budget spent so far, as a list of charges.

    Attributes:
        charges: steps of the sampled Gaussian mechanism.
    """

    charges: tuple[Charge, ...] = ()

    def epsilon(self, delta: float, by: Accountant = "prv") -> float:
        """Epsilon of all charges together; 0 if nothing was spent."""
        return epsilon(self.charges, delta, by)


def ledger_of(charges: Iterable[tuple[float, float, int]]) -> Ledger:
    """Return the ledger of charges from one run or several; equal noise and rate are one charge."""
    alike: Counter[tuple[float, float]] = Counter()
    for noise, rate, steps in charges:
        alike[noise, rate] += steps
    return Ledger(tuple(Charge(*what, steps) for what, steps in sorted(alike.items())))


def epsilon(charges: Sequence[Charge], delta: float, by: Accountant = "prv") -> float:
    """Return epsilon of all charges together at this delta, for one unit added or removed.

    Raises:
        ConfigError: delta is not in [1e-12, 1), or the extra `dp` is not installed.
    """
    if not SMALLEST <= delta < 1:
        raise ConfigError(f"dp: delta must be >= {SMALLEST:g} and < 1; got {delta:g}")
    spent = [charge for charge in charges if charge.steps]
    if not spent:
        return 0.0
    if by == "prv" and all(charge.rate == 1 for charge in spent):
        return gaussian_epsilon(math.sqrt(sum(c.steps / c.noise**2 for c in spent)), delta)
    return _counted(by, tuple(spent), delta)


def is_bounded(charges: Sequence[Charge]) -> bool:
    """Return whether `quick_epsilon` of these charges is a bound, and not epsilon itself."""
    return len(charges) > MANY and any(charge.rate != 1 for charge in charges)


def quick_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Return epsilon of all charges together, or a bound on it if they are of many kinds.

    Kinds of sampled noise take seconds each; of more than `MANY`, the bound by RDP is returned,
    which may be several times larger where little was spent (see `is_bounded`).
    """
    if not is_bounded(charges):
        return epsilon(charges, delta)
    with warnings.catch_warnings():
        # Opacus warns where an order of RDP that it does not try might give a smaller bound.
        warnings.simplefilter("ignore")
        return float(_rdp(charges).get_epsilon(delta))


# Accounting takes about a second, and the same charges are asked about in every round.
@functools.lru_cache(maxsize=256)
def _counted(by: Accountant, spent: tuple[Charge, ...], delta: float) -> float:
    return _COUNTED[by](spent, delta)


def cross_checked(charges: Sequence[Charge], delta: float) -> dict[str, float]:
    """Return epsilon of all charges together, by accountant (`prv` and `pld`).

    `largest_epsilon` calls this.

    Raises:
        StateError: the two differ by more than 5 %, so that neither number may be published.
    """
    epsilons = {by: epsilon(charges, delta, by) for by in _COUNTED}
    low, high = min(epsilons.values()), max(epsilons.values())
    # A bug of one accountant would publish a promise that does not hold: both must agree.
    if not (math.isfinite(high) and high - low <= AGREE * high):
        both = ", ".join(f"{by} {value:.4g}" for by, value in epsilons.items())
        share = f"{(high - low) / high:.1%}" if math.isfinite(high) else "without bound"
        raise StateError(
            f"the accountants differ by {share} ({both}), at most 5 % is allowed; take a delta "
            "that is not so small, more noise, or fewer steps"
        )
    return epsilons


def largest_epsilon(ledgers: Sequence[Ledger], delta: float) -> JsonObject:
    """Return the ledger with the largest epsilon, as JSON.

    The object has `epsilon`; `check`, epsilon by the PLD accountant (None if nothing was spent or
    the extra `dp` is not installed); and `charges`, triples of noise, rate and steps.
    """
    alike = {ledger: ledger.epsilon(delta) for ledger in set(ledgers)}
    worst = max(alike, key=alike.__getitem__, default=Ledger())
    checked = worst.charges and accountant() != "closed form"
    return {
        "epsilon": alike.get(worst, 0.0),
        "check": cross_checked(worst.charges, delta)["pld"] if checked else None,
        "charges": [[c.noise, c.rate, c.steps] for c in worst.charges],
    }


def accountant() -> str:
    """Return names and versions of the installed accountants; "closed form" without them."""
    try:
        return f"prv, opacus {version('opacus')}; pld, dp-accounting {version('dp-accounting')}"
    except PackageNotFoundError:
        return "closed form"


def noise_for(
    target: float,
    delta: float,
    rate: float,
    steps: int,
    by: Accountant = "prv",
    other_charges: tuple[Charge, ...] = (),
) -> float:
    """Return the smallest noise multiplier, to 0.1 %, whose epsilon is at most `target`.

    Args:
        target: epsilon that may be spent.
        delta: the delta at which epsilon is computed.
        rate: probability that a unit (a person or a sample) takes part in a step.
        steps: number of steps.
        by: the accountant.
        other_charges: charges to the same budget whose noise is already known.

    Raises:
        ConfigError: the target is not positive, or the extra `dp` is not installed.
    """
    if not target > 0:
        raise ConfigError(f"dp: epsilon must be > 0; got {target:g}")
    # More noise cannot lower what other charges cost: without this the search would never end.
    if other_charges and (spent := epsilon([*other_charges], delta, by)) >= target:
        raise ConfigError(
            f"dp: other steps spend epsilon {spent:.3g} already, and {target:g} may be spent: "
            "allow more, or give those steps more noise"
        )

    @functools.cache
    def over(power: float) -> float:
        # Epsilon is nearly a power of the noise: in logarithms the root search takes few steps.
        spent = epsilon([Charge(math.exp(power), rate, steps), *other_charges], delta, by)
        return math.log(min(max(spent, 1e-9), 1e9) / target)

    low = high = 0.0
    while over(high) > 0:
        low, high = high, high + 0.7
    while low == high or over(low) < 0:
        low, high = low - 0.7, low
        if low < -5:
            return math.exp(low)
    power = _root(over, low, high, FINE / 2)
    # The root may lie on the side of too little noise: go up until the budget is kept for certain.
    while over(power) > 0:
        power += FINE / 2
    return math.exp(power)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of Gaussian mechanisms that are composed.

    Epsilon solves delta = Phi(-eps / mu + mu / 2) - e^eps Phi(-eps / mu - mu / 2).

    Args:
        mu: sqrt(sum (sensitivity / standard deviation)^2) over all mechanisms.
        delta: the delta at which epsilon is computed.

    Source: Balle and Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018,
    Theorem 8; composition: Dong et al., "Gaussian differential privacy", 2019, Corollary 3.3.
    """
    if _delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while _delta(mu, high) > delta:
        high *= 2
    return _root(lambda eps: _delta(mu, eps) - delta, 0.0, high, 1e-9)


def gaussian_noise(target: float, delta: float, sensitivity: float, releases: int = 1) -> float:
    """Return the standard deviation of Gaussian noise that keeps releases within a budget.

    Args:
        target: epsilon of all releases together.
        delta: delta of all releases together.
        sensitivity: largest L2 distance by which one unit (such as an image) can move a release.
        releases: number of releases.

    Raises:
        ConfigError: epsilon or delta is out of range.
    """
    if not (target > 0 and 0 < delta < 1):
        raise ConfigError(
            f"dp: epsilon must be > 0 and delta in (0, 1); got {target:g} and {delta:g}"
        )
    low = high = 1.0
    while _delta(low, target) > delta:
        low /= 2
    while _delta(high, target) < delta:
        high *= 2
    mu = _root(lambda m: _delta(m, target) - delta, low, high, 1e-12)
    return sensitivity * math.sqrt(releases) / mu


_library = functools.partial(import_optional, doing="counting epsilon under sampling", extra="dp")


def _root(function: Callable[[float], float], low: float, high: float, near: float) -> float:
    return cast(float, scipy.optimize.brentq(function, low, high, xtol=near))


def _delta(mu: float, eps: float) -> float:
    return float(ndtr(-eps / mu + mu / 2) - np.exp(eps + log_ndtr(-eps / mu - mu / 2)))


def _prv(charges: Sequence[Charge], delta: float) -> float:
    """Return epsilon by PRV; infinity if the grid would have more than `POINTS` points.

    Raises:
        ConfigError: Opacus is not installed.
    """
    accountant = _library("opacus.accountants").PRVAccountant()
    accountant.history = [(c.noise, c.rate, c.steps) for c in charges]
    # Opacus's own default; a third of it takes three times as long.
    error = 0.01
    with warnings.catch_warnings():
        # Opacus warns about its RDP bound, which here only says how wide the grid must be.
        warnings.simplefilter("ignore")
        if not _points(charges, delta, error) <= POINTS:
            return math.inf
        value = accountant.get_epsilon(delta, eps_error=error)
        while error > max(NEAR * value, LEAST):
            error /= 3
            value = accountant.get_epsilon(delta, eps_error=error)
    return float(value)


def _rdp(charges: Sequence[Charge]) -> Any:
    """Return Opacus's accountant of Renyi differential privacy with these charges."""
    accountant = _library("opacus.accountants").RDPAccountant()
    accountant.history = [(c.noise, c.rate, c.steps) for c in charges]
    return accountant


def _points(charges: Sequence[Charge], delta: float, error: float) -> float:
    """Return the number of points of PRV's grid.

    RDP's bound on epsilon gives the width of the grid, and `error` its step.

    Source: Gopi et al., "Numerical composition of differential privacy", NeurIPS 2021, Theorem 5.5,
    as Opacus implements it, with delta / 1000 as the error of delta.
    """
    with np.errstate(all="ignore"):
        wide = _rdp(charges).get_epsilon(delta / 4000)
    steps = sum(charge.steps for charge in charges)
    return 2 * (wide + 3) / (error / math.sqrt(steps * math.log(12_000 / delta) / 2))


def _pld(charges: Sequence[Charge], delta: float) -> float:
    dp = _library("dp_accounting")
    accountant = _library("dp_accounting.pld").PLDAccountant()
    for charge in charges:
        event = dp.GaussianDpEvent(charge.noise)
        sampled = event if charge.rate == 1 else dp.PoissonSampledDpEvent(charge.rate, event)
        accountant.compose(sampled, charge.steps)
    return float(accountant.get_epsilon(delta))


_COUNTED: dict[Accountant, Callable[[Sequence[Charge], float], float]] = {"prv": _prv, "pld": _pld}
