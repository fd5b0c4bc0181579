"""How long a round of split learning takes: pipelines small enough to be drawn by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vergence.errors import ConfigError
from vergence.model_tools.split_cost import CUT, FEDAVG, U_SHAPE, CutChoice, Load, Work
from vergence.model_tools.split_pace import Hops, Speeds, hops, pass_seconds, seconds

PART = Hops(first=1, up=2, server=3, down=1, again=1, delay=0)
LOAD = Load(samples=40, batches=4, size=10)
NOTHING = Work(0, 0, 0, 0)


def test_in_turn_every_batch_waits_for_the_one_before():
    """1 + 2 + 3 + 1 + 1 = 8 a batch."""
    assert [pass_seconds(PART, n, 0) for n in (1, 2, 5)] == [8, 16, 40]
    assert pass_seconds(replace(PART, delay=10), 2, 0) == 2 * (8 + 20)


def test_one_ahead_by_hand():
    """Two batches: sent at 1 and 2, at the server from 3 to 6 and 6 to 9, back at 7 and 10.

    The device steps at 7-8 and 10-11. A third batch, sent at 9 after the first step, is up at 11,
    served by 14, back at 15 and stepped on by 16.
    """
    assert pass_seconds(PART, 2, 1) == 11
    assert pass_seconds(PART, 3, 1) == 16


@given(st.tuples(*[st.floats(0, 10)] * 6), st.integers(1, 30), st.integers(0, 5))
def test_more_ahead_is_never_slower_than_in_turn_nor_faster_than_the_busiest(parts, n, ahead):
    part = Hops(*parts)
    busiest = max(part.first + part.again, part.up, part.server, part.down)
    whole = sum(parts[:5]) + 2 * part.delay
    took = pass_seconds(part, n, ahead)
    assert n * busiest - 1e-6 <= took <= n * whole + 1e-6
    assert took <= pass_seconds(part, n, 0) + 1e-6


def test_long_pipelines_wait_for_the_busiest_part():
    assert PART.busiest == "server"
    assert pass_seconds(PART, 1000, 8) == pytest.approx(3 * 1000, rel=0.01)
    assert replace(PART, up=9).busiest == "uplink"


def test_a_choice_by_hand():
    """10 samples of 100 values and 2 bytes of labels: 4020 B up, 4000 down; 1000 parameters.

    At 1 Mbit/s up and 8 down: .03216 and .004 s. The device takes 1e6 of its 3e6 FLOPs first:
    .01 s and .02 s; the server 5e6: .005 s. Layers: .032 s up, .004 down.
    """
    choice = CutChoice(
        CUT,
        ("a",),
        (100,),
        2,
        Work(1000, 2_000_000, 1_000_000, 0),
        Work(0, 2_000_000, 3_000_000, 0),
        again=1_000_000,
    )
    speeds = Speeds(device=1, server=10, up=1, down=8, delay=0)
    found = hops(choice, LOAD, speeds)
    assert [found.first, found.up, found.server, found.down, found.again] == pytest.approx(
        [0.01, 0.03216, 0.005, 0.004, 0.02]
    )
    assert seconds(choice, LOAD, speeds) == pytest.approx(4 * 0.07116 + 0.036)
    whole = CutChoice(FEDAVG, (), (), 0, Work(1000, 2_000_000, 1_000_000, 0), NOTHING, 0)
    assert seconds(whole, LOAD, speeds) == pytest.approx(40 * 0.003 + 0.036)


def test_in_a_u_the_server_waits_for_the_last_layers():
    """Of the device's 3e6 FLOPs 5e5 are the last layers'; 50 values go there and back."""
    u = CutChoice(
        U_SHAPE,
        ("a", "b"),
        (100, 50),
        0,
        Work(0, 2_000_000, 1_000_000, 0),
        Work(0, 2_000_000, 3_000_000, 0),
        again=1_000_000,
        last=500_000,
    )
    found = hops(u, LOAD, Speeds(device=1, server=10, up=1, down=8, delay=5))
    assert found.server == pytest.approx(0.005 + 0.005 + 0.016 + 0.002 + 0.010)
    assert found.again == pytest.approx(0.015)


def test_speeds_are_positive():
    with pytest.raises(ConfigError, match="up"):
        Speeds(up=0)
