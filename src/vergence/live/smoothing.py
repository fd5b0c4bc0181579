"""The One Euro filter: steady numbers while the eye rests, little delay while it moves.

Used by `live.command` and `live.views`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vergence.errors import ConfigError

# At 60 frames a second, noise of half a degree and a cut-off of 1 Hz, this leaves some 35 % of the
# noise, and follows nine tenths of a saccade of ten degrees within five frames.
BETA = 10.0
"""Growth of the cut-off frequency in Hz, per unit of a number and second."""
SPEED_HZ = 1.0
"""Cut-off frequency of the smoothed speed, as in the paper."""
GAP_S = 1.0
"""Time without gaze after which the filter begins anew."""


class OneEuro:
    """Filter of a stream of numbers, each on its own: radians, or shares of a frame.

    A number is a low-pass filter's output, whose cut-off frequency grows with the number's speed.
    Source: Casiez, Roussel, Vogel: 1 Euro Filter. CHI 2012.

    Args:
        cutoff_hz: cut-off frequency of numbers that stand still; less is smoother and slower.

    Raises:
        ConfigError: the cut-off frequency is not above 0.
    """

    def __init__(self, cutoff_hz: float) -> None:
        if not 0 < cutoff_hz < math.inf:
            raise ConfigError(
                f"--smooth is a frequency in Hz above 0 (1 is usual), got {cutoff_hz}"
            )
        self.cutoff_hz = cutoff_hz
        self._last: list[tuple[float, float]] = []
        self._time_s = -math.inf

    def smoothed(self, values: Sequence[float], time_s: float) -> tuple[float, ...]:
        """Return the filtered numbers at a time in seconds, which does not run back."""
        step, self._time_s = time_s - self._time_s, time_s
        if not self._last or not 0 <= step <= GAP_S:
            self._last = [(value, 0.0) for value in values]
        elif step > 0:
            self._last = [
                self._next(value, *last, step)
                for value, last in zip(values, self._last, strict=True)
            ]
        return tuple(value for value, _ in self._last)

    def _next(self, value: float, last: float, speed: float, step: float) -> tuple[float, float]:
        speed += _share(SPEED_HZ, step) * ((value - last) / step - speed)
        return last + _share(self.cutoff_hz + BETA * abs(speed), step) * (value - last), speed


def _share(cutoff_hz: float, step_s: float) -> float:
    """Return the share of a new number in a low-pass filter's output."""
    return 1 / (1 + 1 / (2 * math.pi * cutoff_hz * step_s))
