"""The One Euro filter: against the paper's own steps written out, at rest, and in a saccade."""

import math

import numpy as np
import pytest

from vergence.errors import ConfigError
from vergence.live.smoothing import BETA, OneEuro

RATE = 60.0


def by_the_paper(values, rate, cutoff):
    """Algorithm 1 of Casiez et al. 2012 with a fixed rate and a derivative cut-off of 1 Hz."""

    def alpha(hz):
        return 1 / (1 + (1 / (2 * math.pi * hz)) * rate)

    out, speed, last = [], 0.0, None
    for value in values:
        if last is not None:
            raw = (value - last) * rate
            speed = alpha(1.0) * raw + (1 - alpha(1.0)) * speed
            share = alpha(cutoff + BETA * abs(speed))
            value = share * value + (1 - share) * last
        last = value
        out.append(value)
    return out


def filtered(values, cutoff=1.0, rate=RATE):
    one = OneEuro(cutoff)
    return [one.smoothed((value,), n / rate)[0] for n, value in enumerate(values)]


def test_it_is_the_paper_s_algorithm():
    values = np.random.default_rng(0).normal(0, 0.1, 200).cumsum()
    np.testing.assert_allclose(filtered(values, 0.7), by_the_paper(values, RATE, 0.7), rtol=1e-9)


def test_noise_at_rest_is_taken_out_and_a_saccade_is_followed():
    """Noise of half a degree keeps at most 45 %; ten degrees are there to 90 % in 6 frames."""
    noise = np.deg2rad(0.5) * np.random.default_rng(1).normal(size=600)
    assert np.std(filtered(noise)[60:]) < 0.45 * np.std(noise)
    jump = np.deg2rad(10) * (np.arange(60) >= 30)
    after = np.array(filtered(jump))[30:] / np.deg2rad(10)
    assert int(np.argmax(after >= 0.9)) <= 6


def test_numbers_do_not_disturb_each_other_and_a_gap_begins_anew():
    one = OneEuro(1.0)
    assert one.smoothed((0.0, 5.0), 0.0) == (0.0, 5.0)
    assert one.smoothed((1.0, 5.0), 1 / RATE)[1] == 5.0
    assert one.smoothed((9.0, 9.0), 2.0) == (9.0, 9.0), "after a second without gaze"
    assert one.smoothed((1.0, 1.0), 2.0) == (9.0, 9.0), "two frames at one time"
    assert one.smoothed((2.0, 2.0), 0.0) == (2.0, 2.0), "a file that begins again"


@pytest.mark.parametrize("cutoff", [0.0, -1.0, math.inf, math.nan])
def test_a_frequency_that_is_none_is_refused(cutoff):
    with pytest.raises(ConfigError, match=r"--smooth is a frequency in Hz above 0"):
        OneEuro(cutoff)
