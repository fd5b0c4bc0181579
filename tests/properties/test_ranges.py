"""Ranges of options hold for every sequence and every kind of number, place by place."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt

from vergence.core.options import Positive, check_ranges
from vergence.errors import ConfigError


@dataclass(frozen=True)
class Options:
    scale: Annotated[int | float, Ge(1)] | tuple[float, ...] = 1
    pair: tuple[Annotated[float, Gt(0)], Annotated[float, Gt(10)]] = (1, 11)
    count: Positive | Literal["auto"] | None = None
    sizes: tuple[Annotated[int, Ge(1)], ...] = (1,)
    plain: tuple[float, float] = (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.5}, "scale must be >= 1; got 0.5"),
        ({"scale": np.float32(0.5)}, "scale must be >= 1; got 0.5"),
        ({"pair": (5, 5)}, r"pair must be > 10; got \(5, 5\)"),
        ({"pair": [0, 11]}, r"pair must be > 0; got \[0, 11\]"),
        ({"pair": [1]}, "pair must be 2 numbers"),
        ({"count": np.int64(0)}, "count must be >= 1; got 0"),
        ({"count": "aut"}, "count must be one of auto, or a number >= 1"),
        ({"sizes": [3, 0]}, r"sizes must be >= 1; got \[3, 0\]"),
        ({"sizes": (3, np.int64(0))}, "sizes must be >= 1"),
    ],
)
def test_a_number_out_of_range_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_ranges(Options(**options), "options")


@pytest.mark.parametrize(
    "options",
    [
        {"scale": (0.5,)},
        {"scale": (0.5, 2)},
        {"plain": (1, 2, 3)},
        {"pair": [5, 11]},
        {"count": "auto"},
        {"sizes": []},
        {"sizes": [1, 2, 3]},
    ],
)
def test_a_number_in_range_is_taken(options):
    check_ranges(Options(**options), "options")
