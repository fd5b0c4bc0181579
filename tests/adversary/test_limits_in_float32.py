"""Words of numbers in float32: a number beyond the limit is refused, and no sum turns over.

float32 has no 0.999999999: rounded to it, that limit is 1, and 1 does not fit.
"""

import numpy as np
import pytest

from vergence.privacy.secure_aggregation.packing import Packing, RangeFault

ODD = [-np.inf, np.inf, np.nan]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("people", "limit"), [(1, 1 - 1e-9), (2, 1 - 1e-9), (3, 0.1), (7, 1e-7)])
def test_a_number_just_beyond_the_limit_is_refused(people, limit, bits):
    packing = Packing(limit, people, bits=bits)
    values = np.zeros(5, np.float32)
    values[3] = limit
    if float(values[3]) <= limit:
        values[3] = np.nextafter(values[3], np.float32(2))
    assert float(values[3]) > limit
    for sign in (1, -1):
        with pytest.raises(RangeFault, match="largest allowed"):
            packing.encode(sign * values)


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_number_is_refused(odd):
    with pytest.raises(RangeFault, match="largest allowed"):
        Packing(1.0, 3).encode(np.array([0, odd], np.float32))


def test_zeros_and_the_least_numbers_are_zero_words():
    least = np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)
    assert not Packing(1.0, 3).encode(least).any()
