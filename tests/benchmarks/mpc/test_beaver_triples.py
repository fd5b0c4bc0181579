"""Fixed point, shares with codes, triples, truncation, comparison: exact, and safe from tampering.

Bounds are certain, not likely: what is random may change no assertion here, but for a forged code
(probability 2^-126).
"""

import numpy as np
import pytest

from tests.benchmarks.mpc.beaver_triples import TripleTable
from tests.benchmarks.mpc.fixed_point import BITS, PRIME, FixedPoint, drawn, signed
from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation.session import Aborted

FORM = FixedPoint(20)
STEP = 2.0**-20


def shared(table, values):
    return table.share(np.array(values, object) % PRIME)


def test_the_field_is_one():
    """2^127 - 1 is prime, by Lucas and Lehmer: s -> s^2 - 2 from 4 ends at 0 after 125 steps."""
    s = 4
    for _ in range(125):
        s = (s * s - 2) % PRIME
    assert s == 0


def test_numbers_come_back_within_half_a_step():
    x = np.array(
        [0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 2.0**22, -(2.0**22), STEP, STEP / 2, 3 * STEP / 2]
    )
    found = FORM.decode(FORM.encode(x))
    assert np.abs(found - x).max() <= STEP / 2
    assert found[-2:].tolist() == [0.0, 2 * STEP]  # ties to even


@pytest.mark.parametrize("bad", [2.0**23, -(2.0**23), np.nan, np.inf])
def test_numbers_that_do_not_fit_are_refused_not_clipped(bad):
    with pytest.raises(ConfigError, match=r"smaller than 8\.38861e"):
        FORM.encode(np.array([0.0, bad]))


@pytest.mark.parametrize("fraction", [0, 31])
def test_a_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(ConfigError, match="1 to 30 bits"):
        FixedPoint(fraction)


def test_one_party_is_none():
    with pytest.raises(ConfigError, match="at least two"):
        TripleTable(1)


def test_drawn_numbers_fill_their_bits():
    """Every bit of 4000 numbers is set 2000 times, give or take six deviations of 32."""
    found = drawn((4000,), 90)
    assert found.min() >= 0
    assert found.max() < 2**90
    counts = [int((found >> bit & 1).sum()) for bit in range(90)]
    assert max(abs(count - 2000) for count in counts) < 6 * 32


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_linear_steps_need_no_word_among_the_parties(parties):
    table = TripleTable(parties)
    x, y = shared(table, [3, -5]), shared(table, [10, 20])
    z = (x + y * 7 - x * 2).each(lambda p: p.sum(keepdims=True))
    assert not table.opens
    assert not table.triples
    assert signed(table.reveal(z)).tolist() == [-3 + 70 + 5 + 140]
    assert table.opens == {"reveal": 1}


def test_fewer_than_all_shares_say_nothing():
    """Any third share completes two to any secret, and a share of 0 is as random as one of 1."""
    table = TripleTable(3)
    one, other = shared(table, [0] * 400), shared(table, [2**62] * 400)
    for rank in range(3):
        for held in (one.shares[rank], other.shares[rank], one.codes[rank]):
            ups = sum(int(v) >> 126 & 1 for v in held)
            assert 100 < ups < 300  # 200, give or take ten deviations


@pytest.mark.parametrize("parties", [2, 3])
def test_a_product_is_exact_and_takes_a_triple_and_two_opens(parties):
    table = TripleTable(parties)
    x, y = [2**31, -(2**31), 0, -1, 7], [2**31, 2**31 - 1, 5, -1, -3]
    found = table.reveal(table.multiply(shared(table, x), shared(table, y)))
    assert signed(found).tolist() == [a * b for a, b in zip(x, y, strict=True)]
    assert table.triples == {"product": 5}
    assert table.opens == {"product": 10, "reveal": 5}


@pytest.mark.slow
def test_100_000_random_products_are_within_their_bound():
    """Of |x|, |y| <= 30, each off by 2^-21, and a truncation off by less than a step:
    30 * 2^-21 * 2 + 2^-42 + 2^-20 = 2.96e-5, for every one of them."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-30, 30, (2, 100_000))
    x[:4], y[:4] = [30, -30, 30, 0], [30, 30, -30, -30]
    table = TripleTable(2)
    a, b = table.share(FORM.encode(x)), table.share(FORM.encode(y))
    found = FORM.decode(table.reveal(table.truncate(table.multiply(a, b), 20)))
    assert np.abs(found - x * y).max() <= 60 * STEP / 2 + STEP**2 + STEP < 1e-4
    assert table.opens == {"product": 200_000, "truncation": 100_000, "reveal": 100_000}


def words(count):
    """Words of all sizes, and the ends of their range."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(0, BITS - 1, count)
    found = [int(rng.integers(2**62)) % 2 ** int(s) * (-1) ** int(s) for s in sizes]
    found[:8] = [0, 1, -1, 2**20, -(2**20), 2**63 - 1, -(2**63), 2**20 - 1]
    return found


def test_truncation_is_right_to_one_step_over_the_whole_range():
    x = words(20_000)
    table = TripleTable(2)
    found = signed(table.reveal(table.truncate(shared(table, x), 20)))
    off = found - np.array([v >> 20 for v in x], object)
    assert set(off) == {0, 1}
    even = np.array([v % 2**20 == 0 for v in x])
    assert not off[even].any()  # nothing is cut off, nothing is rounded up


def test_truncation_rounds_up_as_often_as_what_is_cut_off_is_large():
    """A quarter of a step: 5,000 of 20,000, give or take six deviations of 61."""
    table = TripleTable(2)
    found = table.reveal(table.truncate(shared(table, [2**18] * 20_000), 20))
    assert abs(int(found.sum()) - 5_000) < 6 * 61


def test_exact_truncation_and_sign_equal_whole_numbers():
    x = words(120)
    table = TripleTable(3)
    exact = signed(table.reveal(table.truncate(shared(table, x), 20, exact=True)))
    assert exact.tolist() == [v >> 20 for v in x]
    below = signed(table.reveal(table.negative(shared(table, x))))
    assert below.tolist() == [int(v < 0) for v in x]
    assert table.triples == {"comparison": 120 * (20 + 63)}


class Liar:
    """Adds `by` to one number of what one party sends at the n-th step, codes or shares."""

    def __init__(self, step, rank, entry, by):
        self.at, self.rank, self.entry, self.by, self.count = step, rank, entry, by, 0

    def __call__(self, step, honest):
        self.count += 1
        if self.count - 1 != self.at:
            return honest
        sent = honest.copy()
        flat = sent.reshape(len(sent), -1)
        at = self.rank, self.entry % flat.shape[1]
        flat[at] = (flat[at] + self.by) % PRIME
        return sent


def three_answers(send):
    """A product, truncated: two opens, a truncation's, a check, the result's, a check."""
    table = TripleTable(3, send)
    x = table.multiply(shared(table, [2**30, -5, 2**21]), shared(table, [2**30, 2**20, 3]))
    return signed(table.reveal(table.truncate(x, 20))).tolist()


def test_a_flipped_share_aborts_in_1000_of_1000():
    """One bit of one share of one party, at any step, the answers to the check among them."""
    rng = np.random.default_rng(2)
    aborted, places = 0, set()
    for _ in range(1000):
        step, rank, entry, bit = (int(rng.integers(n)) for n in (6, 3, 3, 127))
        try:
            three_answers(Liar(step, rank, entry, 2**bit))
        except Aborted:
            aborted += 1
            places.add((step, rank))
    assert aborted == 1000
    assert len(places) == 18


def test_without_a_lie_nothing_aborts():
    honest = Liar(6, 0, 0, 1)
    found = three_answers(honest)
    assert honest.count == 6
    assert [f - e in (0, 1) for f, e in zip(found, [2**40, -5, 6], strict=True)] == [True] * 3


def test_a_lie_is_noticed_before_anything_is_told():
    """The result's own shares are sent only after all before them was checked."""
    steps = []

    def send(step, honest):
        steps.append(step)
        return honest + (1 if step == "truncation" else 0)

    with pytest.raises(Aborted, match="nothing is told"):
        three_answers(send)
    assert steps == ["product", "product", "truncation", "check"]


def test_lies_that_cancel_in_a_plain_sum_are_noticed():
    """Two errors whose sum is 0: a check without random factors would pass."""

    def send(step, honest):
        sent = honest.copy()
        if step == "reveal":
            sent[0, 0], sent[0, 1] = sent[0, 0] + 1, sent[0, 1] - 1
        return sent

    with pytest.raises(Aborted):
        three_answers(send)
