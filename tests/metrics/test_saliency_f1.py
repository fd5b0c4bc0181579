"""Pixel F1 and hit@0.7: the rows of a published table, hand-made maps, transcribed loops."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from vergence.metrics.gaze_maps import label_maps
from vergence.metrics.saliency_f1 import (
    FULL_GRID,
    OFFICIAL_GRID,
    harmonic,
    hits,
    min_max,
    over_clips,
    pixel_f1,
)

NAN = math.nan
SIZE = 64


@pytest.fixture(scope="module")
def gaze():
    """2000 simulated gaze points with SD 0.13 x 0.12 of the frame, and their labels."""
    g = torch.Generator().manual_seed(0)
    spread = torch.tensor([0.13, 0.12], dtype=torch.float64)
    points = torch.randn(2000, 1, 2, generator=g, dtype=torch.float64) * spread + 0.5
    points = points.clamp(0, 1)
    return points, label_maps(points, SIZE, SIZE)


def gaussians(points, sigma):
    place = (torch.arange(SIZE, dtype=torch.float64) + 0.5) / SIZE
    across, down = (
        torch.exp(-((place - points[:, 0, i, None]) ** 2) / 2 / sigma**2) for i in (0, 1)
    )
    heat = down[:, :, None] * across[:, None]
    return heat / heat.sum((1, 2), keepdim=True)


def hit_f1(maps, labels, points):
    found = hits(maps, labels, points)
    recall, precision = over_clips(found.share, found.area, torch.zeros(len(maps)).long())
    return harmonic(recall, precision)


def test_label_map_itself_scores_083_on_the_official_grid_and_1_on_the_full_one(gaze):
    """At the last threshold, 0.02, a disc of 249 px is predicted where 177 px count: 0.71."""
    points, labels = gaze
    official = pixel_f1(labels, labels)
    assert official.f1 == pytest.approx(0.831, abs=0.005)
    assert official.recall == pytest.approx(1.0, abs=1e-6)
    assert official.precision == pytest.approx(0.71, abs=0.005)
    assert official.threshold == pytest.approx(0.02)
    assert pixel_f1(labels, labels, FULL_GRID).f1 == pytest.approx(1.0, abs=1e-5)
    assert hit_f1(labels, labels, points) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("sigma", "expected"), [(0.03, 0.894), (0.05, 0.825), (0.10, 0.301)])
def test_gaussian_at_the_truth(gaze, sigma, expected):
    """egovideo design note, 1.4: official F1 by width; hit@0.7 does not mind the width."""
    points, labels = gaze
    maps = gaussians(points, sigma)
    assert pixel_f1(maps, labels).f1 == pytest.approx(expected, abs=0.01)
    assert hit_f1(maps, labels, points) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("sigma", "official", "hit"), [(0.05, 0.339, 0.10), (0.125, 0.195, 0.42), (0.25, 0.084, 0.39)]
)
def test_centre_prior(gaze, sigma, official, hit):
    points, labels = gaze
    maps = gaussians(torch.full_like(points, 0.5), sigma)
    assert pixel_f1(maps, labels).f1 == pytest.approx(official, abs=0.01)
    assert hit_f1(maps, labels, points) == pytest.approx(hit, abs=0.02)


def test_uniform_and_noise(gaze):
    """A constant map predicts nothing; noise predicts everything: F1 = 2P/(1+P), P = 4.3 %."""
    points, labels = gaze
    even = torch.full_like(labels, 1 / SIZE**2)
    assert pixel_f1(even, labels).f1 == 0
    assert pixel_f1(even, labels, FULL_GRID).f1 == 0
    assert hit_f1(even, labels, points) == 0
    g = torch.Generator().manual_seed(1)
    noise = torch.rand(labels.shape, generator=g, dtype=torch.float64)
    noise = noise / noise.sum((1, 2), keepdim=True)
    assert pixel_f1(noise, labels).f1 == pytest.approx(0.083, abs=0.005)


def test_equals_the_loop_over_thresholds():
    """The official procedure, written out: threshold, count, average over frames, F1, best."""
    g = torch.Generator().manual_seed(2)
    maps = torch.rand(6, 9, 11, generator=g, dtype=torch.float64) ** 8
    labels = label_maps(torch.rand(6, 2, 2, generator=g, dtype=torch.float64), 9, 11, 0.1)
    marked = labels > 0.064 * labels.amax((1, 2), keepdim=True)
    scores = []
    for tau in FULL_GRID:
        predicted = min_max(maps) > tau
        both = (predicted & marked).sum((1, 2))
        r = float((both / (marked.sum((1, 2)) + 1e-6)).mean())
        p = float((both / (predicted.sum((1, 2)) + 1e-6)).mean())
        scores.append(2 * r * p / (r + p + 1e-6))
    found = pixel_f1(maps, labels, FULL_GRID)
    assert found.f1 == pytest.approx(max(scores), rel=1e-6)
    assert found.threshold == FULL_GRID[int(np.argmax(scores))]
    for tau in (0.004, 0.3):
        assert pixel_f1(maps, labels, (tau,)).f1 == pytest.approx(
            scores[FULL_GRID.index(tau)], rel=1e-6
        )


def test_full_grid_contains_the_official_one_and_ends_at_one():
    assert FULL_GRID[:11] == OFFICIAL_GRID
    assert list(OFFICIAL_GRID) == pytest.approx([0.002 * k for k in range(11)])
    assert list(FULL_GRID) == sorted(set(FULL_GRID))
    assert FULL_GRID[-1] == 1


MAP = [[1.0, 0.8, 0.0, 0.1], [0.0, 0.0, 0.2, 0.0], [0.0, 0.0, 0.0, 0.9], [0.0, 0.0, 0.75, 0.7]]
LABEL = [[0.6, 0.0, 0.0, 0.0], [0.4, 0.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4]


@pytest.mark.parametrize(
    ("fixations", "share", "area", "component"),
    [
        ([(0, 1)], 1.0, 0.25, 0.5),
        ([(1, 1)], 0.0, 0.0, 0.0),
        ([(3, 3)], 0.0, 0.0, 0.0),
        ([(0, 0), (2, 1)], 0.5, 0.25, 0.5),
        ([(0, 0), (2, 3)], 1.0, 0.25, 1.0),
    ],
)
def test_hit_on_a_4_by_4_map(fixations, share, area, component):
    """Above 0.7: (0,0), (0,1) and (2,3), (3,2), which touch at a corner: 4 pixels, 2 parts.

    0.7 itself, at (3,3), is not above. The label's region is (0,0), (1,0): 1 of the 4 pixels.
    """
    maps, labels = (torch.tensor([m], dtype=torch.float64) for m in (MAP, LABEL))
    points = [[(c + 0.5) / 4, (r + 0.5) / 4] for r, c in fixations] + [[NAN, NAN]]
    found = hits(maps, labels, torch.tensor([points], dtype=torch.float64))
    assert found.component is not None
    assert [float(v) for v in (found.share, found.area, found.component)] == pytest.approx(
        [share, area, component]
    )


def test_components_equal_those_counted_frame_by_frame():
    g = torch.Generator().manual_seed(3)
    maps = torch.rand(12, 9, 9, generator=g, dtype=torch.float64)
    points = torch.rand(12, 3, 2, generator=g, dtype=torch.float64)
    found = hits(maps, label_maps(points, 9, 9), points, threshold=0.6)
    assert found.component is not None
    for k in range(12):
        parts, n = ndimage.label((min_max(maps)[k] > 0.6).numpy(), np.ones((3, 3)))
        held = {parts[int(y * 9), int(x * 9)] for x, y in points[k].tolist()} - {0}
        assert float(found.component[k]) == pytest.approx(len(held) / n)


def test_clips_are_averaged_before_they_are_pooled():
    """Clip 4: hits 1, 0 of 2 frames, precision 0.5 in the hit one. Clip 9: one frame, no hit.

    Recall (0.5 + 0) / 2, precision (0.5 + 0) / 2; pooled: recall 1/3, precision 0.5.
    """
    share, precision = torch.tensor([1.0, 0, 0]).double(), torch.tensor([0.5, 0, 0]).double()
    assert over_clips(share, precision, torch.tensor([4, 4, 9])) == (0.25, 0.25)
    pooled = over_clips(share, precision, torch.tensor([0, 0, 0]))
    assert pooled == pytest.approx((1 / 3, 0.5))
