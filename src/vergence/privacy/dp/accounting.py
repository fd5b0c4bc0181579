"""Privacy accounting: epsilon of Gaussian noise, noise for an epsilon, a ledger of what was spent.

Two independent libraries of the extra `dp` count: Opacus's PRV accountant, the default, and the PLD
accountant of dp-accounting as its check. Where everybody takes part in every step there is a closed
form, which needs neither.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, cast

import numpy as np
import scipy
from annotated_types import Ge, Gt, Interval
from scipy.special import log_ndtr, ndtr

from vergence.core.optional import needed
from vergence.core.options import NamedOptions
from vergence.errors import ConfigError, StateError

Accountant = Literal["prv", "pld"]
MOST, SMALLEST = 1000.0, 1e-12
"""Epsilons up to here and deltas from here on are counted: see `_prv` for what cannot be."""
POINTS = 2**25
"""Of the grid on which PRV convolves: 5 GB."""
AGREE = 0.05
"""So far may the two accountants differ, as a share of the larger epsilon."""
NEAR, LEAST = 0.04, 5e-4
"""PRV says up to so much too much, as a share of epsilon, unless that is less than `LEAST`."""
FINE = 1e-3
"""Noise is found within this share, from above."""


@dataclass(frozen=True)
class Charge(NamedOptions, label="dp"):
    """Some steps alike: Gaussian noise on a sum, each unit in it with the same chance.

    Attributes:
        noise: standard deviation as a multiple of the sensitivity (the clip bound).
        rate: chance that a unit (a frame, or a person) takes part in a step, drawn by itself for
            every unit and step (Poisson sampling); 1: always.
        steps: how many.
    """

    noise: Annotated[float, Gt(0)]
    rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    steps: Annotated[int, Ge(0)] = 1


@dataclass(frozen=True)
class Ledger:
    """Privacy budget spent so far: plain data in a state, so that a resume forgets nothing."""

    charges: tuple[Charge, ...] = ()

    def epsilon(self, delta: float, by: Accountant = "prv") -> float:
        """Epsilon of all charges together; 0 if nothing was spent."""
        return epsilon(self.charges, delta, by)


def epsilon(charges: Sequence[Charge], delta: float, by: Accountant = "prv") -> float:
    """Return epsilon of some charges together at this delta, of one unit added or removed.

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


@functools.lru_cache(maxsize=256)
def _counted(by: Accountant, spent: tuple[Charge, ...], delta: float) -> float:
    return _COUNTED[by](spent, delta)  # takes a second


def cross_checked(charges: Sequence[Charge], delta: float) -> dict[str, float]:
    """Return epsilon by both accountants.

    Raises:
        StateError: they differ by more than 5 %: neither number may be published.
    """
    found = {by: epsilon(charges, delta, by) for by in _COUNTED}
    low, high = min(found.values()), max(found.values())
    if not (math.isfinite(high) and high - low <= AGREE * high):
        told = ", ".join(f"{by} {value:.4g}" for by, value in found.items())
        share = f"{(high - low) / high:.1%}" if math.isfinite(high) else "without bound"
        raise StateError(
            f"the accountants differ by {share} ({told}), at most 5 % is allowed; take a delta "
            "that is not so small, more noise, or fewer steps"
        )
    return found


def checked(ledgers: Sequence[Ledger], delta: float) -> dict[str, Any]:
    """Largest epsilon of some ledgers, what the other accountant says of it, and its charges."""
    alike = {ledger: ledger.epsilon(delta) for ledger in set(ledgers)}
    worst = max(alike, key=alike.__getitem__, default=Ledger())
    check = None
    if worst.charges and accountant() != "closed form":
        check = cross_checked(worst.charges, delta)["pld"]
    charges = [[c.noise, c.rate, c.steps] for c in worst.charges]
    return {"epsilon": alike.get(worst, 0.0), "check": check, "charges": charges}


def accountant() -> str:
    """Names and versions of the accountants that are installed."""
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
    beside: tuple[Charge, ...] = (),
) -> float:
    """Return the least noise multiplier, within 0.1 %, whose epsilon is at most `target`.

    What is spent `beside` counts too.

    Raises:
        ConfigError: the target is not positive, or the extra `dp` is not installed.
    """
    if not target > 0:
        raise ConfigError(f"dp: epsilon must be > 0; got {target:g}")

    @functools.cache
    def over(power: float) -> float:  # nearly linear in the logarithms
        spent = epsilon([Charge(math.exp(power), rate, steps), *beside], delta, by)
        return math.log(min(max(spent, 1e-9), 1e9) / target)

    low = high = 0.0
    while over(high) > 0:
        low, high = high, high + 0.7
    while low == high or over(low) < 0:
        low, high = low - 0.7, low
        if low < -5:
            return math.exp(low)
    power = _root(over, low, high, FINE / 2)
    while over(power) > 0:
        power += FINE / 2
    return math.exp(power)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of Gaussian mechanisms that compose to mu = sqrt(sum (sensitivity / std)^2).

    delta = Phi(-eps / mu + mu / 2) - e^eps Phi(-eps / mu - mu / 2), which falls with eps.

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
    """Return the standard deviation of noise that makes so many releases (epsilon, delta)-private.

    `sensitivity` is the L2 distance that replacing, or adding, one unit can move a release.

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


_library = functools.partial(needed, doing="counting epsilon under sampling", extra="dp")


def _root(function: Callable[[float], float], low: float, high: float, near: float) -> float:
    return cast(float, scipy.optimize.brentq(function, low, high, xtol=near))


def _delta(mu: float, eps: float) -> float:
    return float(ndtr(-eps / mu + mu / 2) - np.exp(eps + log_ndtr(-eps / mu - mu / 2)))


def _prv(charges: Sequence[Charge], delta: float) -> float:
    """Count by PRV; infinite where that would take more memory than there is.

    Raises:
        ConfigError: Opacus is not installed.
    """
    accountant = _library("opacus.accountants").PRVAccountant()
    accountant.history = [(c.noise, c.rate, c.steps) for c in charges]
    error = 0.01  # Opacus's own; a third of it takes three times as long
    with warnings.catch_warnings():  # of the RDP bound that only says how wide to look
        warnings.simplefilter("ignore")
        if not _points(charges, delta, error) <= POINTS:
            return math.inf
        found = accountant.get_epsilon(delta, eps_error=error)
        while error > max(NEAR * found, LEAST):
            error /= 3
            found = accountant.get_epsilon(delta, eps_error=error)
    return float(found)


def _points(charges: Sequence[Charge], delta: float, error: float) -> float:
    """Number of points of PRV's grid: as wide as RDP's bound, as fine as its error asks for.

    Source: Gopi et al., "Numerical composition of differential privacy", NeurIPS 2021, Theorem 5.5,
    as Opacus has it, with delta / 1000 as the error of delta.
    """
    bound = _library("opacus.accountants").RDPAccountant()
    bound.history = [(c.noise, c.rate, c.steps) for c in charges]
    with np.errstate(all="ignore"):
        wide = bound.get_epsilon(delta / 4000)
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
