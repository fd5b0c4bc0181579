"""Label maps: the kernel of the official code, pixels, borders, several fixations."""

import math

import pytest
import torch

from vergence.metrics.gaze_maps import centre_map, fixation_counts, label_maps, pixels, smoothed

NONE = [math.nan, math.nan]


def points(*frames):
    return torch.tensor(frames, dtype=torch.float64)


@pytest.mark.parametrize(("size", "sigma", "reach"), [(64, 3.2, 9), (16, 0.8, 2)])
def test_kernel_is_that_of_the_official_code(size, sigma, reach):
    """19 x 19 with sigma 3.2 at 64 x 64 (OpenCV: 0.3 ((19 - 1)/2 - 1) + 0.8 = 3.2); 5 x 5 at 16."""
    middle = size // 2
    label = label_maps(points([[0.5, 0.5]]), size, size)[0]
    line = torch.tensor([math.exp(-(k**2) / 2 / sigma**2) for k in range(-reach, reach + 1)])
    line = (line / line.sum()).double()
    expected = torch.zeros(size, size, dtype=torch.float64)
    window = slice(middle - reach, middle + reach + 1)
    expected[window, window] = torch.outer(line, line)
    torch.testing.assert_close(label, expected, atol=1e-8, rtol=0)


def test_official_threshold_marks_177_pixels():
    """Of the 64 x 64 label 177 pixels exceed 0.001, and as many exceed 0.064 of the peak."""
    label = label_maps(points([[0.5, 0.5]]), 64, 64)[0]
    assert int((label > 0.001).sum()) == 177
    assert int((label > 0.064 * label.max()).sum()) == 177
    small = label_maps(points([[0.5, 0.5]]), 16, 16)[0]
    assert int((small > 0.064 * small.max()).sum()) == 9


def test_kernel_is_cut_at_the_border_and_scaled_to_sum_one():
    """In a corner a quarter of the kernel and its two axes remain; the ratio of pixels stays."""
    label = label_maps(points([[0.0, 0.0]]), 64, 64)[0]
    assert float(label.sum()) == pytest.approx(1)
    assert int((label > 0).sum()) == 100
    assert float(label[0, 1] / label[0, 0]) == pytest.approx(math.exp(-1 / 2 / 3.2**2))


def test_gaussian_is_round_in_pixels_on_a_wide_grid():
    """On 30 x 40 sigma is 2 px both ways."""
    label = label_maps(points([[20.5 / 40, 15.5 / 30]]), 30, 40)[0]
    assert float(label[15, 23] / label[15, 20]) == pytest.approx(math.exp(-9 / 8))
    assert float(label[18, 20]) == pytest.approx(float(label[15, 23]))


def test_fixations_add_up_and_missing_ones_count_for_nothing():
    one, other = [0.25, 0.25], [0.75, 0.75]
    both = label_maps(points([one, other, NONE]), 32, 32)
    single = label_maps(points([one], [other]), 32, 32)
    torch.testing.assert_close(both[0], single.mean(0))


def test_frame_without_gaze_has_an_empty_label():
    assert label_maps(points([NONE, NONE]), 8, 8).abs().sum() == 0


def test_pixel_is_the_one_that_contains_the_point():
    """floor(x W), floor(y H); 1.0 belongs to the last pixel; number = row * width + column."""
    index, valid = pixels(points([[0.49, 0.5], [1.0, 1.0], [0.0, 0.0], NONE]), 4, 2)
    assert index.tolist() == [[4, 7, 0, 0]]
    assert valid.tolist() == [[True, True, True, False]]


def test_counts_keep_repeated_fixations():
    counts = fixation_counts(points([[0.1, 0.1], [0.1, 0.1], [0.9, 0.1], NONE]), 2, 2)
    assert counts.tolist() == [[[2, 1], [0, 0]]]


def test_smoothing_is_a_gaussian_around_a_single_count():
    """sigma 0.125 of 8 pixels is 1 px: neighbours at exp(-1/2), diagonals at exp(-1)."""
    counts = torch.zeros(6, 8, dtype=torch.float64)
    counts[3, 4] = 2
    heat = smoothed(counts, 0.125)
    assert float(heat[3, 4]) == pytest.approx(2)
    assert float(heat[3, 5]) == pytest.approx(2 * math.exp(-0.5))
    assert float(heat[2, 5]) == pytest.approx(2 * math.exp(-1))


def test_centre_map_is_symmetric_and_as_wide_as_stated():
    """Columns 4 and 7 of 10 lie 0.05 and 0.25 of the width off the middle, sigma is 0.2."""
    heat = centre_map(6, 10)
    torch.testing.assert_close(heat, heat.flip(0, 1))
    assert float(heat.sum()) == pytest.approx(1)
    across = math.exp(-((0.05**2 - 0.25**2) / 2 / 0.2**2))
    assert float(heat[2, 4] / heat[2, 7]) == pytest.approx(across)
