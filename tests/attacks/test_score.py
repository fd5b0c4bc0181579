"""Scores against closed forms, explicit sums and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest
from torch import nn

from benchmarks.reconstruction import gaze_error
from vergence.attacks import score
from vergence.attacks.score import Rate, least_epsilon, tpr_at
from vergence.errors import ConfigError


def noise(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_mse_by_hand():
    """(1 + 0 + 4 + 0) / 4 in quarters of a pixel."""
    a = torch.tensor([0.25, 0.5, 0.5, 1.0]).view(1, 1, 2, 2)
    b = torch.tensor([0.5, 0.5, 0.0, 1.0]).view(1, 1, 2, 2)
    assert score.mse(a, b).tolist() == [(0.0625 + 0.25) / 4]


def test_ssim_of_flat_images_is_the_luminance_term():
    """Variances are 0, so (2ab + C1) / (a^2 + b^2 + C1) is left: 0.2 against 0.8."""
    flat = torch.full((1, 1, 9, 15), 0.2)
    expected = (2 * 0.2 * 0.8 + 1e-4) / (0.04 + 0.64 + 1e-4)
    assert float(score.ssim(flat, 4 * flat)) == pytest.approx(expected)


def test_ssim_by_explicit_sums_over_every_window():
    """The window of Wang et al., 121 weights written out, at every pixel of a mirrored image."""
    x, y = (noise(1, 1, 31, 31, seed=s).double() for s in (1, 2))
    at = np.arange(-5, 6)
    w = np.exp(-(at[:, None] ** 2 + at[None, :] ** 2) / (2 * 1.5**2))
    w /= w.sum()

    def local(a, b):
        a, b = a[:11, :11], b[:11, :11]
        ma, mb = (w * a).sum(), (w * b).sum()
        va, vb = (w * (a - ma) ** 2).sum(), (w * (b - mb) ** 2).sum()
        cov = (w * (a - ma) * (b - mb)).sum()
        return ((2 * ma * mb + 1e-4) * (2 * cov + 9e-4)) / (
            (ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)
        )

    padded = [np.pad(t[0, 0].numpy(), 5, mode="symmetric") for t in (x, y)]
    values = [local(*(p[i:, j:] for p in padded)) for i in range(31) for j in range(31)]
    assert float(score.ssim(x, y)) == pytest.approx(np.mean(values), abs=1e-12)


def test_ssim_is_one_for_equals_and_falls_with_noise():
    image = noise(3, 1, 36, 60)
    assert score.ssim(image, image).tolist() == pytest.approx([1, 1, 1])
    near, far = (
        score.ssim(image, image + s * (noise(3, 1, 36, 60, seed=4) - 0.5)) for s in (0.1, 1)
    )
    assert bool((near > far).all())


@pytest.mark.parametrize(("hits", "of"), [(0, 20), (3, 20), (20, 20), (1, 1000)])
def test_bounds_are_those_of_clopper_and_pearson(hits, of):
    rate = Rate(hits, of)
    expected = binomtest(hits, of).proportion_ci(0.95, "exact")
    assert (rate.low, rate.high) == pytest.approx((expected.low, expected.high))
    if hits:  # the definition: at the lower bound, as many hits or more come 2.5 % of the time
        assert binom.sf(hits - 1, of, rate.low) == pytest.approx(0.025)


def test_impossible_rates_are_refused():
    for hits, of in ((3, 2), (0, 0), (-1, 4)):
        with pytest.raises(ConfigError, match="a rate is of 0 to n"):
            Rate(hits, of)


def test_true_positives_at_few_false_ones_by_hand():
    """Members 5 4 2 1, others 4.5 3 0 -1: none false catches the 5, one in four catches 5 and 4."""
    member = [True] * 4 + [False] * 4
    scores = [5, 4, 2, 1, 4.5, 3, 0, -1]
    assert [r.hits for r in tpr_at(member, scores, 0.0)] == [1, 0]
    assert [r.hits for r in tpr_at(member, scores, 0.25)] == [2, 1]
    assert [r.hits for r in tpr_at(member, scores, 0.24)] == [1, 0]
    assert [r.hits for r in tpr_at(member, scores, 1.0)] == [4, 4]


def test_ties_are_called_together_or_not_at_all():
    assert [r.hits for r in tpr_at([True, True, False, False], [1, 1, 1, 0], 0.0)] == [0, 0]


def test_a_true_positive_rate_needs_both_sides():
    with pytest.raises(ConfigError, match="members, others"):
        tpr_at([True, True], [1, 2], 0.1)
    with pytest.raises(ConfigError, match="numbers"):
        tpr_at([True, False], [math.nan, 2], 0.1)


def test_epsilon_from_rates_by_hand():
    """1000 of 1000 true, 0 of 1000 false: with b = 0.025^(1/1000) the bounds are b and 1 - b."""
    b = 0.025 ** (1 / 1000)
    sure = least_epsilon(Rate(1000, 1000), Rate(0, 1000), delta=0)
    assert sure == pytest.approx(math.log(b / (1 - b)))
    assert least_epsilon(Rate(10, 1000), Rate(10, 1000)) == 0


def test_epsilon_of_randomised_response_is_not_overstated():
    """Answers are true with e/(1+e): epsilon is 1; ten thousand answers show most of it."""
    share = math.e / (1 + math.e)
    true, false = (Rate(round(p * 10_000), 10_000) for p in (share, 1 - share))
    shown = least_epsilon(true, false)
    assert 0.9 < shown <= 1


def test_chance_is_another_image_and_never_the_same():
    images = torch.arange(5.0).view(5, 1, 1, 1)
    assert bool((score.other_images(images) != images).all())
    assert score.mean_image(images, 2).flatten().tolist() == [2.0, 2.0]


def test_gaze_error_of_a_network_that_is_off_by_three_degrees():
    class Off(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :2] + torch.tensor([math.radians(3), 0.0])

    images = torch.zeros(4, 1, 1, 2)
    assert gaze_error(Off(), images, torch.zeros(4, 2)) == pytest.approx(3, abs=1e-4)


def test_people_are_recognised_by_what_only_they_have():
    """Three people, each with a bright spot of their own: all right; on noise about a third."""
    people = torch.arange(90) % 3
    images = 0.2 * noise(90, 1, 9, 15)
    images[torch.arange(90), 0, 4, 3 + 4 * people] = 1
    known = score.Classifier(images[:60], 10 + people[:60], epochs=30)
    assert known.rank_1(images[60:], 10 + people[60:]).value == 1
    assert known.rank_1(noise(90, 1, 9, 15, seed=5), 10 + people).value < 0.6
