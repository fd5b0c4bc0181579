"""Noise of a key, from the words of its cipher on, by plain numpy and by hand."""

import hmac
import math

import numpy as np
import pytest
import torch
from scipy.special import log1p

from vergence.privacy.keyed_noise import NoiseKey, add_noise, grid, hidden
from vergence.privacy.secure_aggregation.masking import derived, stream

KEY = bytes(range(3, 35))
SECRET = NoiseKey(KEY)


class Words:
    """Stands for a stream, and gives words that are known."""

    def __init__(self, *words):
        self.given = np.array(words, np.uint64)

    def words(self, count):
        return self.given[:count]


def box_muller(words, count):
    """Radius from the high 52 bits of a word, angle from half of another word, in plain numpy."""
    pairs = -(-count // 2)
    assert len(words) == pairs + -(-pairs // 2)
    uniform = ((words[:pairs] >> np.uint64(12)).astype(float) + 0.5) / 2**52
    halves = [[int(w) & 0xFFFFFFFF, int(w) >> 32] for w in words[pairs:]]
    turns = (np.array(halves).ravel()[:pairs] + 0.5) / 2**32
    radius = np.sqrt(-2 * np.log(uniform))
    both = [np.cos(2 * math.pi * turns) * radius, np.sin(2 * math.pi * turns) * radius]
    return np.concatenate(both)[:count]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 1001])
def test_normal_numbers_are_those_of_box_and_muller(count):
    pairs = (count + 1) // 2
    words = SECRET.draws().words(pairs + (pairs + 1) // 2)
    found = SECRET.draws().gaussian(count)
    np.testing.assert_allclose(found, box_muller(words, count), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bits", [0, 1 << 11, 1 << 12, 2**64 - 1])
def test_the_words_at_the_ends_give_finite_numbers(bits):
    """The largest radius is that of 2^-53, 8.57; bits below the 52 highest count for nothing."""
    from vergence.privacy.keyed_noise import _normal

    found = _normal(Words(bits, 0), 2).numpy()
    wanted = box_muller(np.array([bits, 0], np.uint64), 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert np.abs(found).max() < 8.6


def test_words_of_a_key_and_its_children():
    """A stream derives a key for each call; children are named by `repr` of their purpose."""
    child = derived(KEY, bytes(32), repr(("a", 1)))
    assert SECRET.child("a", 1).words(3).tobytes() == stream(child, 24)
    assert SECRET.child("1", "23").words(1) != SECRET.child("12", "3").words(1)
    draws = SECRET.draws()
    for call in (1, 2, 3):
        assert np.array_equal(draws.words(5), SECRET.child("draw", call).words(5))
    assert repr(SECRET) == "NoiseKey(...)"
    assert not hmac.compare_digest(
        NoiseKey.new().words(4).tobytes(), NoiseKey.new().words(4).tobytes()
    )


def test_other_distributions_are_those_of_their_uniform_numbers():
    words = SECRET.draws().words(8)
    uniform = ((words >> np.uint64(12)).astype(float) + 0.5) / 2**52
    np.testing.assert_array_equal(SECRET.draws().uniform(8), uniform)
    laplace = np.log(uniform[:4]) - np.log(uniform[4:])
    np.testing.assert_allclose(SECRET.draws().laplace(4), laplace)
    np.testing.assert_allclose(SECRET.draws().gumbel(8), -np.log(-np.log(uniform)))
    np.testing.assert_array_equal(SECRET.draws().standard("laplace", 4), SECRET.draws().laplace(4))
    gaussian = SECRET.draws().gaussian(5)
    np.testing.assert_array_equal(SECRET.draws().standard("gaussian", 5), gaussian)
    assert log1p(-NoiseKey(KEY).draws().uniform(100)).min() > -math.inf


@pytest.mark.parametrize(
    ("scale", "step"), [(1.0, 2**-16), (1.999, 2**-16), (2.0, 2**-15), (0.75, 2**-17)]
)
def test_steps_of_the_grid_by_hand(scale, step):
    assert grid(scale) == step


def test_hidden_values_are_rounded_sums_and_keep_their_gradient():
    values = torch.tensor([[0.3, -1.7], [100.0, 0.0]], dtype=torch.float64, requires_grad=True)
    noise = np.array([0.1, -0.2, 0.3, 1e-9])
    found = hidden(values, 1.5, noise)
    wanted = np.round((values.detach().numpy().ravel() + 1.5 * noise) * 2**16) / 2**16
    assert found.detach().numpy().ravel().tolist() == wanted.tolist()
    found.sum().backward()
    assert values.grad.tolist() == [[1, 1], [1, 1]]


def test_noise_in_place_is_rounded_piece_by_piece(monkeypatch):
    """Pieces of 4 take a draw each; every entry is a rounded sum; no deviation is no noise."""
    monkeypatch.setattr("vergence.privacy.keyed_noise.CHUNK", 4)
    flat = torch.linspace(-2, 2, 10, dtype=torch.float64)
    draws, before = SECRET.draws(), flat.clone()
    assert add_noise(flat, 0.0, SECRET.draws()) is flat
    assert torch.equal(flat, before)
    noise = np.concatenate([draws.gaussian(n) for n in (4, 4, 2)])
    assert add_noise(flat, 3.0, SECRET.draws()) is flat
    wanted = np.round((before.numpy() + 3 * noise) * 2**15) / 2**15
    np.testing.assert_allclose(flat.numpy(), wanted, atol=1e-12)
