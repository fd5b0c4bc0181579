"""What may be spent, and how much noise follows from it: common to the tables of `privacy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt, Interval

from vergence.core.ranges import check_ranges
from vergence.errors import ConfigError
from vergence.privacy.accounting import noise_for

Delta = Annotated[float, Interval(gt=0, lt=1)]


@dataclass(frozen=True)
class Budget:
    """What may be spent, and how much noise follows from it.

    Attributes:
        clip: L2 norm that what one unit sends may have.
        epsilon: for a whole run; the noise follows from it.
        noise: standard deviation of the noise on a sum, as a multiple of `clip`.
        delta: at which epsilon is counted.
    """

    clip: Annotated[float, Gt(0)] = 1.0
    epsilon: Annotated[float, Gt(0)] | None = None
    noise: Annotated[float, Gt(0)] | None = None
    delta: Delta = 1e-5

    where: ClassVar[str]

    def __post_init__(self) -> None:
        check_ranges(self, self.where)
        if self.epsilon is None and self.noise is None:
            raise ConfigError(
                f"{self.where} needs epsilon, a budget for the whole run, or noise, a multiple of "
                "clip"
            )

    def multiplier(self, rate: float, steps: int) -> float:
        """Return the noise, as a multiple of `clip`, of so many sums of units drawn at a rate."""
        if self.noise is not None:
            return self.noise
        return noise_for(self.epsilon or 0.0, self.delta, rate, max(steps, 1))
