"""Operator norms by brute force over every pixel, after steps; noise, and what it promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import nn

from vergence.errors import ConfigError
from vergence.privacy.keyed_noise import GRID, NoiseKey, hidden
from vergence.privacy.split.pixel_dp import (
    noisy,
    normalise_,
    normalise_filters_,
    promise,
    promised,
    sensitivity,
)

SECRET = NoiseKey(bytes(range(32)))


def layer(seed=0, inputs=1, outputs=4, kernel=5, **options):
    torch.manual_seed(seed)
    return nn.Conv2d(inputs, outputs, kernel, **options).double()


def unrolled(conv, height, width):
    """The operator as a matrix `[outputs, pixels]`, pixel by pixel."""
    with torch.no_grad():
        count = conv.in_channels * height * width
        pixels = torch.eye(count, dtype=torch.float64)
        images = pixels.view(count, conv.in_channels, height, width)
        flat = conv(images) - conv(torch.zeros_like(images[:1]))
        return flat.flatten(1).T.numpy()


@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 2),
    inputs=st.integers(1, 2),
    groups=st.booleans(),
    seed=st.integers(0, 9),
)
def test_norms_by_brute_force(kernel, stride, padding, dilation, inputs, groups, seed):
    groups = inputs if groups else 1
    conv = layer(
        seed,
        inputs,
        2 * groups,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    matrix = unrolled(conv, 8, 9)
    assert sensitivity(conv, 8, 9, "l1_l1") == pytest.approx(np.abs(matrix).sum(axis=0).max())
    assert sensitivity(conv, 8, 9, "l1_l2") == pytest.approx(np.linalg.norm(matrix, axis=0).max())
    spectral = np.linalg.norm(matrix, 2)
    bound = sensitivity(conv, 8, 9, "l2_l2")
    assert spectral <= bound * (1 + 1e-9)
    if stride == 1 and dilation * (kernel - 1) < 6:  # else it covers most of so small an image
        assert bound <= spectral * 1.6


def test_the_spectral_bound_is_tight_on_images_larger_than_the_kernel():
    conv = layer(1)
    spectral = np.linalg.norm(unrolled(conv, 24, 24), 2)
    assert spectral <= sensitivity(conv, 24, 24, "l2_l2") <= 1.03 * spectral


def test_by_hand():
    """One tap of 2 and one filter of -3 on one pixel: L1 5, L2 sqrt(13), and no bias."""
    conv = nn.Conv2d(1, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([2.0, -3.0]).view(2, 1, 1, 1))
        conv.bias.fill_(100)  # type: ignore[union-attr]
    assert sensitivity(conv, 3, 3) == 5
    assert sensitivity(conv, 3, 3, "l1_l2") == pytest.approx(13**0.5)
    assert sensitivity(conv, 3, 3, "l2_l2") == pytest.approx(13**0.5)


def test_the_two_common_mistakes_are_too_small():
    """Per-filter sums and the flattened kernel's spectral norm are below the operator's norms."""
    conv = layer(0, outputs=20)
    weight = conv.weight.detach()
    assert weight.abs().sum((1, 2, 3)).max() < 0.2 * sensitivity(conv, 14, 18)
    flat = float(torch.linalg.matrix_norm(weight.flatten(1), 2))
    assert flat < 0.6 * np.linalg.norm(unrolled(conv, 14, 18), 2)


def test_no_change_of_pixels_moves_the_output_further():
    conv = layer(2, stride=2, padding=1)
    limit = sensitivity(conv, 9, 9)
    a, b = torch.rand(2, 500, 1, 9, 9, dtype=torch.float64, generator=torch.manual_seed(0))
    moved = (conv(a) - conv(b)).flatten(1).abs().sum(1)
    assert bool((moved <= limit * (a - b).flatten(1).abs().sum(1)).all())


@pytest.mark.parametrize("norm", ["l1_l1", "l1_l2", "l2_l2"])
def test_after_every_step_the_norm_is_at_most_one(norm):
    conv = nn.Conv2d(1, 6, 5, padding=2)  # float32, as in training
    optimiser = torch.optim.SGD(conv.parameters(), lr=10.0)
    images = torch.rand(4, 1, 12, 12, generator=torch.manual_seed(1))
    for _ in range(20):
        conv(images).square().mean().backward()
        optimiser.step()
        measured = normalise_(conv, 12, 12, norm)
        assert 0.999 < measured <= 1
        assert measured == sensitivity(conv, 12, 12, norm)


@pytest.mark.parametrize("options", [{}, {"inputs": 4, "groups": 2}, {"stride": 2, "padding": 2}])
def test_a_norm_of_each_filter_lets_a_pixel_move_all_of_them(options):
    """By brute force: each filter by at most 1, all six together by at most 6, but more than 1."""
    conv = layer(3, **({"outputs": 6} | options))
    normalise_filters_(conv)
    before = conv.weight.clone()
    normalise_filters_(conv)
    assert torch.equal(conv.weight, before)
    moved = np.abs(unrolled(conv, 11, 11)).reshape(6, -1, conv.in_channels * 121).sum(1)
    assert 0.2 < moved.max() <= 1
    assert 1 < moved.sum(0).max() <= 6


def test_a_layer_of_zeros_stays():
    conv = nn.Conv2d(1, 2, 3)
    nn.init.zeros_(conv.weight)
    assert normalise_(conv, 5, 5) == 0
    normalise_filters_(conv)
    assert not conv.weight.any()


def test_noise_has_its_distribution_and_lets_gradients_pass():
    smashed = torch.zeros(10, 2000, dtype=torch.float64, requires_grad=True)
    laplace = noisy(smashed, 2.0, "l1_l1", SECRET.child("a").draws())
    gaussian = noisy(smashed, 2.0, "l2_l2", SECRET.child("b").draws())
    assert kstest(laplace.detach().flatten() / 2, "laplace").pvalue > 0.01
    assert kstest(gaussian.detach().flatten() / 2, "norm").pvalue > 0.01
    laplace.sum().backward()
    assert smashed.grad is not None
    assert bool((smashed.grad == 1).all())


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "gumbel"])
@pytest.mark.parametrize("count", [20_000, 20_001])
def test_draws_have_their_distributions(kind, count):
    found = getattr(SECRET.child(kind).draws(), kind)(count)
    name = {"gaussian": "norm", "laplace": "laplace", "gumbel": "gumbel_r"}[kind]
    assert found.shape == (count,)
    assert kstest(found, name).pvalue > 0.01
    halves = np.corrcoef(found[: count // 2], found[count - count // 2 :])[0, 1]
    assert abs(halves) < 0.03  # the two of a pair, cosine and sine


def test_noise_and_what_it_hides_lie_on_one_grid_whatever_the_values():
    """Scale 3: the step is 2^(1 - 16). Values of 1/3 and pi leave no trace of their last bits."""
    step = 2.0 ** (1 - GRID)
    for value in (0.0, 1 / 3, -math.pi):
        values = torch.full((1000,), value, dtype=torch.float64)
        found = hidden(values, 3.0, SECRET.child("grid").draws().gaussian(1000))
        assert torch.equal(found / step, (found / step).round())
        assert float((found - values).std()) == pytest.approx(3, rel=0.1)
    quiet = hidden(torch.tensor([1 / 3, -math.pi]), 3.0, np.zeros(2))
    assert quiet.tolist() == [round(v / step) * step for v in (1 / 3, -math.pi)]


def test_noise_belongs_to_its_secret_and_is_never_drawn_twice():
    draws, again = SECRET.child(3, "p01").draws(), SECRET.child(3, "p01").draws()
    first = draws.gaussian(100)
    np.testing.assert_array_equal(first, again.gaussian(100))
    others = [draws, SECRET.child(4, "p01").draws(), NoiseKey.new().child(3, "p01").draws()]
    for other in others:
        assert abs(np.corrcoef(first, other.gaussian(100))[0, 1]) < 0.4
    assert repr(SECRET) == "NoiseKey(...)"


def test_training_seeds_do_not_reach_the_noise():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    one = NoiseKey.new().draws().words(4)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(one, NoiseKey.new().draws().words(4))


@pytest.mark.parametrize(
    ("level", "pixel", "image"), [(0.2, 5, 10_800), (0.5, 2, 4_320), (1, 1, 2_160), (2, 0.5, 1_080)]
)
def test_the_table_of_promises(level, pixel, image):
    """Laplace noise of scale l: L / l per pass, 36x60 pixels in [0, 1], ten epochs ten times."""
    assert promised(level, "l1_l1", 1, 1) == pytest.approx(pixel)
    assert promised(level, "l1_l1", 36 * 60, 1) == pytest.approx(image)
    assert promised(level, "l1_l1", 36 * 60, 10) == pytest.approx(10 * image)


def test_the_wording_claims_nothing_about_images():
    told = promise(2.0, 36, 60, 10)
    assert told.startswith("empirical obfuscation: epsilon 0.5 per unit of L1 change")
    assert "epsilon 10,800: no image-level or user-level guarantee" in told


def test_gaussian_noise_composes_with_the_root_of_passes():
    once, four = (promised(3.0, "l2_l2", c, p) for c, p in ((2.0, 1), (1.0, 4)))
    assert once == pytest.approx(four)


def test_other_padding_is_refused():
    with pytest.raises(ConfigError, match="padding_mode 'zeros'; got 'reflect'"):
        sensitivity(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), 5, 5)
