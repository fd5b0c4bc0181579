"""Privacy budgets and the noise that follows from them: common to the tables of `privacy`.

Used by `privacy.config`, `privacy.dp.mask_budget`, `privacy.release_log` and
`privacy.split.defense`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from vergence.core.options import check_ranges
from vergence.errors import ConfigError
from vergence.privacy.dp.accounting import MOST, SMALLEST, noise_for

Delta = Annotated[float, Interval(ge=SMALLEST, lt=1)]
Epsilon = Annotated[float, Interval(ge=1e-3, le=MOST)]
"""Range in which the accountants are precise and in which epsilon still promises something."""
Norm = Annotated[float, Interval(ge=1e-9, le=1e9)]
"""Range in which vectors in single precision, with noise on them, neither vanish nor overflow."""


@dataclass(frozen=True)
class Budget:
    """Privacy budget that may be spent, and the amount of noise that follows from it.

    Attributes:
        clip: largest L2 norm of the vector that one unit (such as a person or a sample) adds.
        epsilon: budget of a whole run; the noise follows from it.
        noise: standard deviation of the noise on a sum, as a multiple of `clip`.
        delta: the delta at which epsilon is computed.
    """

    clip: Norm = 1.0
    epsilon: Epsilon | None = None
    noise: Annotated[float, Interval(gt=0, le=1e9)] | None = None
    delta: Delta = 1e-5

    where: ClassVar[str]

    def __post_init__(self) -> None:
        check_ranges(self, self.where)
        if self.epsilon is None and self.noise is None:
            raise ConfigError(
                f"{self.where} needs epsilon, a budget for the whole run, or noise, a multiple of "
                "clip"
            )

    def refuse(self, spent: float, why: str) -> None:
        """Refuse a run that would spend too large an epsilon.

        Args:
            spent: epsilon that the whole run would spend.
            why: what spends it, for the message.

        Raises:
            ConfigError: `spent` is above `MOST`: it cannot be computed precisely, and it would
                guarantee nothing.
        """
        if not spent <= MOST:
            raise ConfigError(
                f"{self.where}: {why} spends epsilon {spent:.3g} at delta {self.delta:g}, and more "
                f"than {MOST:g} hides nobody and is not counted; take more noise, or less training"
            )

    def refuse_delta(self, units: int, what: str) -> None:
        """Refuse a delta so large that a mechanism could publish all data of one unit.

        Args:
            units: number of units, such as people or samples.
            what: name of the units, for the message.

        Raises:
            ConfigError: delta is not below 1 / `units`.
        """
        # A mechanism that publishes one random unit whole is (0, 1 / units)-private.
        if self.delta * units >= 1:
            raise ConfigError(
                f"{self.where}: delta must be below 1 / {units}, the number of {what}, or the "
                f"promise allows to publish one of them whole; got {self.delta:g}"
            )

    def multiplier(self, rate: float, steps: int) -> float:
        """Return the noise on a sum in multiples of `clip`: `noise`, or else what `epsilon` needs.

        Args:
            rate: probability that a unit is in a sum.
            steps: number of sums in a run.
        """
        if self.noise is not None:
            return self.noise
        return noise_for(self.epsilon or 0.0, self.delta, rate, max(steps, 1))
