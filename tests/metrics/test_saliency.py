"""Map scores on maps of four pixels, worked out by hand, and against direct transcriptions."""

import math

import pytest
import torch

from vergence.metrics import saliency
from vergence.metrics.gaze_maps import fixation_counts, pixels

NAN = math.nan
CORNERS = {0: [0.25, 0.25], 1: [0.75, 0.25], 2: [0.25, 0.75], 3: [0.75, 0.75], None: [NAN, NAN]}


def gaze(*frames):
    """Points in the pixels of a 2 x 2 map, by number."""
    return torch.tensor([[CORNERS[p] for p in frame] for frame in frames], dtype=torch.float64)


def heat(*frames):
    return torch.tensor(frames, dtype=torch.float64).view(-1, 2, 2)


RISING = heat([0.1, 0.2, 0.3, 0.4])
EVEN = heat([0.25, 0.25, 0.25, 0.25])


def random_maps(frames=7, height=5, width=6, fixations=4, seed=0):
    """Maps with ties, and one to `fixations` fixations per frame."""
    g = torch.Generator().manual_seed(seed)
    maps = torch.randint(1, 9, (frames, height, width), generator=g).double()
    points = torch.rand(frames, fixations, 2, generator=g, dtype=torch.float64)
    points[:, 1:][torch.rand(frames, fixations - 1, generator=g) < 0.4] = NAN
    return maps / maps.sum((1, 2), keepdim=True), points


def test_nss_is_the_z_score_at_the_fixation():
    """Mean 0.25, SD sqrt(0.05 / 4) = 0.1118; at 0.4: 0.15 / 0.1118 = 1.3416; at 0.3: 0.4472."""
    found = saliency.nss(RISING.expand(3, 2, 2), gaze([3, None], [3, 2], [3, 0]))
    assert found.tolist() == pytest.approx([1.3416408, (1.3416408 + 0.4472136) / 2, 0.0])


def test_nss_of_the_mean_over_all_pixels_is_zero():
    """Looking once at every pixel gives the mean of all z-scores."""
    assert float(saliency.nss(RISING, gaze([0, 1, 2, 3]))) == pytest.approx(0, abs=1e-12)


def test_auc_judd_by_hand():
    """At 0.3, of 0.1, 0.2, 0.4 two lie below: 2/3. Two fixations on top: 1. Below all: 0.

    With [0.1, 0.3, 0.3, 0.3] and one fixation at 0.3: one below, two ties: (1 + 2/2) / 3.
    """
    found = saliency.auc_judd(
        torch.cat([RISING, RISING, RISING, heat([0.1, 0.3, 0.3, 0.3])]),
        gaze([2, None], [2, 3], [0, None], [1, None]),
    )
    assert found.tolist() == pytest.approx([2 / 3, 1, 0, 2 / 3])


def test_auc_judd_equals_counting_pairs():
    maps, points = random_maps()
    index, valid = pixels(points, 5, 6)
    for found, flat, at, there in zip(
        saliency.auc_judd(maps, points), maps.flatten(1), index, valid, strict=True
    ):
        looked = at[there].tolist()
        rest = [float(flat[q]) for q in range(30) if q not in looked]
        pairs = [(flat[p] > q) + 0.5 * (flat[p] == q) for p in looked for q in rest]
        assert float(found) == pytest.approx(float(sum(pairs)) / len(pairs))


@pytest.mark.parametrize("spoilt", ["nothing", "ties", "NaN"])
def test_both_aucs_have_the_bits_of_sorting_the_pixels(spoilt):
    """Weight below and up to a fixation's value, read from the pixels in their order."""
    maps, points = random_maps()
    if spoilt == "ties":
        maps = (8 * maps / maps.amax((-1, -2), keepdim=True)).round()
    if spoilt == "NaN":  # of a network that diverged
        maps[1:] = NAN
    index, valid = pixels(points, 5, 6)
    counts = fixation_counts(points, 5, 6)
    ranked, order = maps.flatten(1).sort(1)
    value = maps.flatten(1).gather(1, index)
    for found, negatives in zip(
        saliency.aucs(maps, points), ((counts == 0).double(), counts.sum(0) - counts), strict=True
    ):
        weight = negatives.flatten(1).gather(1, order).cumsum(1)
        weight = torch.nn.functional.pad(weight, (1, 0))
        sides = [torch.searchsorted(ranked, value, right=right) for right in (False, True)]
        below, upto = (weight.gather(1, side) for side in sides)
        share = (below + upto) / 2 / weight[:, -1:]
        expected = (share * valid).sum(1) / valid.sum(1)
        assert found.tolist() == expected.tolist()


def test_shuffled_auc_takes_other_frames_gaze_as_negatives():
    """Frame 0 looks at 0.3; the others look at 0.4 and 0.1: one of two is below.

    Frame 1 looks at 0.4 against 0.3 and 0.1: 1. Frame 2 at 0.1 against 0.3 and 0.4: 0.
    """
    found = saliency.auc_shuffled(RISING.expand(3, 2, 2), gaze([2], [3], [0]))
    assert found.tolist() == pytest.approx([0.5, 1, 0])


def test_shuffled_auc_gives_a_static_map_chance():
    """Summed over all pairs of frames of one fixation each, a win for one is a loss for the other.

    With as many fixations in each frame the mean over frames is exactly one half.
    """
    g = torch.Generator().manual_seed(0)
    points = torch.rand(20, 1, 2, generator=g, dtype=torch.float64)
    one = torch.rand(1, 8, 8, generator=g, dtype=torch.float64)
    assert float(saliency.auc_shuffled(one.expand(20, 8, 8), points).mean()) == pytest.approx(0.5)


def test_shuffled_auc_of_a_single_frame_is_one_half():
    assert saliency.auc_shuffled(RISING, gaze([2])).tolist() == [0.5]


def test_identical_maps_agree_fully():
    maps, _ = random_maps()
    ones = torch.ones(7, dtype=torch.float64)
    torch.testing.assert_close(saliency.cc(maps, maps), ones)
    torch.testing.assert_close(saliency.sim(maps, maps), ones)
    torch.testing.assert_close(saliency.kld(maps, maps), 0 * ones, atol=1e-12, rtol=0)


def test_agreement_by_hand():
    """Label (0.5, 0.5, 0, 0) and the even map: SIM 0.5, KLD ln 2, CC 0; its opposite: CC -1."""
    label, opposite = heat([0.5, 0.5, 0, 0]), heat([0, 0, 0.5, 0.5])
    assert float(saliency.sim(EVEN, label)) == pytest.approx(0.5)
    assert float(saliency.kld(EVEN, label)) == pytest.approx(math.log(2))
    assert float(saliency.cc(EVEN, label)) == 0
    assert float(saliency.cc(opposite, label)) == pytest.approx(-1)
    assert float(saliency.sim(opposite, label)) == 0
    assert math.isfinite(float(saliency.kld(opposite, label)))


def test_map_without_structure_scores_chance():
    even = torch.full((1, 3, 7), 1 / 21, dtype=torch.float64)
    points = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]], dtype=torch.float64)
    assert saliency.nss(even, points).tolist() == [0]
    assert saliency.auc_judd(even, points).tolist() == [0.5]
    assert saliency.peak(even)[0].tolist() == pytest.approx([0.5, 0.5])


def test_places_are_pixel_centres():
    """(0.1, 0.2, 0.3, 0.4) has 0.6 of its mass in the right column, 0.7 in the lower row."""
    assert saliency.peak(RISING)[0].tolist() == [0.75, 0.75]
    expected = [0.4 * 0.25 + 0.6 * 0.75, 0.3 * 0.25 + 0.7 * 0.75]
    assert saliency.centre_of_mass(RISING)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("place", "aspect", "expected"),
    [
        ([1.0, 0.5], 1.0, 45.0),
        ([0.5, 1.0], 0.5, math.degrees(math.atan(0.5))),
        ([0.5, 0.5], 1.0, 0.0),
    ],
)
def test_angle_goes_through_the_pinhole(place, aspect, expected):
    """With 90 degrees of view the right border is 45 degrees off, at any aspect.

    The lower border of a frame half as high as wide is atan(0.5 tan 45) off.
    """
    middle = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    points = torch.tensor([[place, [NAN, NAN]]], dtype=torch.float64)
    found = saliency.angle_error_deg(middle, points, 90.0, aspect)
    assert float(found) == pytest.approx(expected, abs=1e-9)
