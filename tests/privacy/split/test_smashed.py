"""Distance correlation by brute force; clipped vectors with noise drawn once per image."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.bottleneck import Bottleneck, releases, version
from vergence.privacy.split.nopeek import distance_correlation, penalty

SECRET = NoiseKey(bytes(range(2, 34)))


def layers(*values):
    return Params(torch.tensor(values), Layout(("w",), ((len(values),),)))


def brute(x, z):
    """The definition, sum by sum."""
    n = len(x)

    def centred(v):
        d = [[math.dist(v[i], v[j]) for j in range(n)] for i in range(n)]
        rows = [sum(r) / n for r in d]
        every = sum(rows) / n
        return [[d[i][j] - rows[i] - rows[j] + every for j in range(n)] for i in range(n)]

    a, b = centred(x), centred(z)

    def covariance(p, q):
        return sum(p[i][j] * q[i][j] for i in range(n) for j in range(n)) / n**2

    return math.sqrt(covariance(a, b) / math.sqrt(covariance(a, a) * covariance(b, b)))


@given(seed=st.integers(0, 40), n=st.integers(3, 7))
def test_distance_correlation_by_brute_force(seed, n):
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    z[:, 0] += x[:, 0]
    found = float(distance_correlation(torch.tensor(x), torch.tensor(z)))
    assert found == pytest.approx(brute(x.tolist(), z.tolist()), abs=1e-6)


def test_distance_correlation_by_hand():
    """Two points each: distances 0 and d, centred -d/2 and d/2 everywhere, correlation 1."""
    x, z = torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    assert float(distance_correlation(x, z)) == pytest.approx(1, abs=1e-6)


@given(seed=st.integers(0, 40), scale=st.sampled_from([0.1, 3.0]))
def test_moved_scaled_turned_copies_correlate_fully_and_order_changes_nothing(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
    z = scale * x @ turn + 7
    assert float(distance_correlation(x, z)) == pytest.approx(1, abs=1e-6)
    other = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    order = torch.randperm(6, generator=generator)
    one = distance_correlation(x, other)
    torch.testing.assert_close(distance_correlation(x[order], other[order]), one)
    torch.testing.assert_close(distance_correlation(scale * x + 1, other), one)
    torch.testing.assert_close(distance_correlation(other, x), one)


def test_independent_batches_correlate_less_the_more_samples_there_are():
    generator = torch.Generator().manual_seed(0)
    few, many = (
        float(distance_correlation(*torch.randn(2, n, 1, generator=generator))) for n in (10, 400)
    )
    assert many < 0.15 < few


def test_where_the_distance_covariance_rounds_below_zero_nothing_correlates():
    """Every x beside every z: the covariance is 0, and in single precision -3e-9 of its scale."""
    x, z = torch.cartesian_prod(100 * torch.arange(5.0), 7.7 * torch.arange(5.0)).split(1, 1)
    assert float(distance_correlation(x, z)) == pytest.approx(1e-6, rel=1e-3)


def test_the_penalty_trains_and_its_gradient_is_finite_where_all_are_alike():
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    smashed = images.flatten(1)[:, :5].clone().requires_grad_(True)
    before = float(distance_correlation(images, smashed.detach()))
    optimiser = torch.optim.Adam([smashed], lr=0.05)
    for _ in range(50):
        optimiser.zero_grad()
        penalty(images, smashed, 2.0).backward()
        optimiser.step()
    assert float(distance_correlation(images, smashed.detach())) < before - 0.1
    alike = torch.ones(4, 3, requires_grad=True)
    penalty((255 * images[:4]).to(torch.uint8), alike, 1.0).backward()
    assert alike.grad is not None
    assert bool(alike.grad.isfinite().all())


def test_clipping_bounds_every_sample_and_leaves_short_ones():
    found = Bottleneck(1.0, 1.0).clipped(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_noise_has_its_deviation():
    sent = Bottleneck(1.0, 7.5).released(torch.zeros(200, 4, 5), range(200), layers(1.0), SECRET)
    assert kstest(sent.flatten() / 7.5, "norm").pvalue > 0.01


def test_an_image_has_one_noise_while_the_layers_stay_whatever_batch_it_is_in():
    rule, now = Bottleneck(1.0, 2.0), layers(1.0, 2.0)
    z = torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
    first = rule.released(z, [4, 5, 6], now, SECRET)
    again = rule.released(z[[2, 0]], [6, 4], layers(1.0, 2.0), SECRET)
    assert torch.equal(again, first[[2, 0]])
    moved = rule.released(z, [4, 5, 6], layers(1.0, 2.5), SECRET)
    other = rule.released(z, [4, 5, 6], now, SECRET.child("p02"))
    for fresh in (moved, other):
        assert float((fresh - first).abs().min()) > 0
    assert len(rule.released(z[:0], [], now, SECRET)) == 0
    with pytest.raises(ConfigError, match="3 samples came with 2 numbers"):
        rule.released(z, [4, 5], now, SECRET)


def test_releases_are_versions_not_epochs():
    a, b = version(layers(1.0, 2.0)), version(layers(1.0, 2.5))
    assert version(layers(1.0, 2.0)) == a != b
    assert releases([a, a, a]) == 1
    assert releases([a, b, a]) == 2


def test_the_budget_of_an_image():
    """privacy.md 4.4: 7.5 C for epsilon 1, one release; 23.6 C for ten."""
    assert Bottleneck.for_budget(2.0, 1.0, 1e-5, 1).deviation == pytest.approx(15, rel=0.01)
    ten = Bottleneck.for_budget(1.0, 1.0, 1e-5, 10)
    assert ten.deviation == pytest.approx(23.6, rel=0.01)
    assert ten.epsilon(1e-5, 10) == pytest.approx(1, rel=1e-6)
    assert ten.epsilon(1e-5, 1) < 1
    with pytest.raises(ConfigError, match="clip must be > 0; got 0"):
        Bottleneck(0.0, 1.0)
