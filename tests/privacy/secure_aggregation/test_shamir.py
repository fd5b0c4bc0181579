"""Shares of secrets."""

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation.shamir import PRIME, SHARE, join, split


@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.integers(0, 4), st.randoms())
@settings(max_examples=60)
def test_any_threshold_of_shares_give_the_secret(secret, threshold, more, random):
    people = threshold + more
    shares = dict(enumerate(split(secret, threshold, people), 1))
    some = dict(random.sample(sorted(shares.items()), threshold))
    assert join(some) == secret
    assert join(shares) == secret


def test_the_ends_of_the_range_are_secrets():
    for secret in (bytes(32), b"\xff" * 32):
        assert join(dict(enumerate(split(secret, 2, 3), 1))) == secret


def test_every_secret_fits_fewer_shares():
    """Two shares of threshold 3 and any third one are shares of some field element: none is ruled
    out. Checked by completing them to a wanted secret."""
    secret, wanted = os.urandom(32), os.urandom(32)
    shares = dict(enumerate(split(secret, 3, 3), 1))
    a, b = (int.from_bytes(shares[x]) for x in (1, 2))
    s = int.from_bytes(wanted)
    # The quadratic through (0, s), (1, a), (2, b), at 3: s - 3 a + 3 b, by third differences.
    third = (s - 3 * a + 3 * b) % PRIME
    assert join({1: shares[1], 2: shares[2], 3: third.to_bytes(SHARE)}) == wanted


def test_too_few_or_wrong_shares_do_not_give_the_secret():
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, 4, 6), 1))
    wrong = {**shares, 2: (int.from_bytes(shares[2]) ^ 1).to_bytes(SHARE)}
    few = [dict(some) for some in itertools.combinations(shares.items(), 3)]
    for given_ in [*few, wrong]:
        try:
            found = join(given_)
        except StateError:
            continue
        assert found != secret


def test_shares_of_the_same_secret_are_new_each_time():
    secret = os.urandom(32)
    assert not set(split(secret, 2, 5)) & set(split(secret, 2, 5))


@pytest.mark.parametrize(("size", "threshold", "people"), [(31, 2, 3), (32, 0, 3), (32, 4, 3)])
def test_what_cannot_be_shared(size, threshold, people):
    with pytest.raises(ConfigError):
        split(bytes(size), threshold, people)


@pytest.mark.parametrize("share", [b"", bytes(32), b"\xff" * 33])
def test_what_is_no_share(share):
    with pytest.raises(StateError, match="person 2"):
        join({1: bytes(SHARE), 2: share})


def test_the_field_has_no_divisor():
    """Fermat to the first 20 bases, and no smaller number above 2^256 passes."""
    bases = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71]
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in bases)
    smaller = range(2**256 + 1, PRIME, 2)
    assert not any(all(pow(base, n - 1, n) == 1 for base in bases[:2]) for n in smaller)
