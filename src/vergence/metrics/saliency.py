"""Scores of gaze maps, one value per frame: NSS, AUC-Judd, shuffled AUC, CC, SIM, KLD, angles.

`maps` are predicted probabilities (each frame sums to 1), `labels` the label maps of
`metrics.gaze_maps`, `points` the gaze [frames, fixations, 2] with NaN for none; every frame
has at least one point. A map without any structure (all pixels equal) has defined scores: NSS and
CC 0, both AUCs 0.5.

Used by `tasks.gaze_map` and `video.predict_maps`.

Source: Bylinskii et al. 2019, "What do different evaluation metrics tell us about saliency
models?", unless a function says otherwise.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vergence.metrics.angles import between_rad
from vergence.metrics.gaze_maps import fixation_counts, pixels

Maps = Float[Tensor, "frames height width"]
Points = Float[Tensor, "frames fixations 2"]
PerFrame = Float[Tensor, " frames"]


def nss(maps: Maps, points: Points) -> PerFrame:
    """Return the z-scored map's mean over the fixations (normalised scanpath saliency)."""
    index, valid = pixels(points, *maps.shape[-2:])
    flat = maps.flatten(1)
    z = (flat - flat.mean(1, keepdim=True)) / flat.std(1, correction=0, keepdim=True).clamp(
        min=torch.finfo(flat.dtype).tiny
    )
    return _over_fixations(z.masked_fill(_structureless(flat), 0.0).gather(1, index), valid)


def auc_judd(maps: Maps, points: Points) -> PerFrame:
    """Return the area under the ROC of fixations against all pixels that hold none.

    Runs compute it by `aucs`, together with the shuffled AUC.

    Differs: Judd's code puts thresholds at the fixations' values only and joins them by straight
    lines, so a single fixation scores 1 - FP/2 and chance is 0.75; here every value is a
    threshold, ties count one half, and chance is 0.5.
    """
    return aucs(maps, points)[0]


def auc_shuffled(maps: Maps, points: Points) -> PerFrame:
    """Return the area under the ROC of a frame's fixations against all other frames' fixations.

    Runs compute it by `aucs`, together with AUC-Judd.

    Those are the same person's, so a map of where the person always looks scores 0.5. With one
    frame only there are no negatives and the score is 0.5.

    Source: Zhang et al. 2008 (SUN).
    """
    return aucs(maps, points)[1]


def aucs(maps: Maps, points: Points) -> tuple[PerFrame, PerFrame]:
    """Return AUC-Judd and shuffled AUC, which take little more together than one alone.

    Each is the share of the negatives' weight below a fixation's value, where ties count one half;
    0.5 without negatives. NaN ranks above all values.
    """
    index, valid = pixels(points, *maps.shape[-2:])
    flat = maps.flatten(1)
    value, order = flat.gather(1, index).sort(1)
    # Each pixel is placed among the few fixations' values; sorting the pixels would take longer.
    sides = (value.contiguous(), flat.contiguous())
    places = [torch.searchsorted(*sides, right=right) for right in (True, False)]

    def area(negatives: Maps) -> PerFrame:
        weight = negatives.flatten(1)
        total = weight.sum(1, keepdim=True)
        half = torch.zeros_like(value)
        for place in places:
            # Weights are whole numbers: their sums are exact, whatever the order of additions.
            bins = weight.new_zeros(len(flat), value.shape[1] + 1).scatter_add_(1, place, weight)
            half += torch.where(value.isnan(), total, bins.cumsum(1)[:, :-1])
        share = torch.where(total > 0, half / 2 / total.clamp(min=1.0), 0.5)
        return _over_fixations(torch.empty_like(share).scatter_(1, order, share), valid)

    counts = fixation_counts(points.to(maps.dtype), *maps.shape[-2:])
    return area((counts == 0).to(maps.dtype)), area(counts.sum(0) - counts)


def cc(maps: Maps, labels: Maps) -> PerFrame:
    """Return Pearson's correlation between map and label map."""
    one, other = (m.flatten(1) - m.flatten(1).mean(1, keepdim=True) for m in (maps, labels))
    tiny = torch.finfo(maps.dtype).tiny
    scale = (torch.linalg.vector_norm(one, dim=1) * torch.linalg.vector_norm(other, dim=1)).clamp(
        min=tiny
    )
    return ((one * other).sum(1) / scale).masked_fill(_structureless(maps.flatten(1))[:, 0], 0.0)


def sim(maps: Maps, labels: Maps) -> PerFrame:
    """Return the overlap of map and label map: the sum of the smaller value, in [0, 1]."""
    return torch.minimum(maps, labels).sum((-1, -2))


def kld(maps: Maps, labels: Maps) -> PerFrame:
    """Return KL(label || map) in nats; smaller is better."""
    safe = maps.clamp(min=torch.finfo(maps.dtype).tiny)
    return (torch.xlogy(labels, labels) - torch.xlogy(labels, safe)).sum((-1, -2))


def centre_of_mass(maps: Maps) -> Float[Tensor, "frames 2"]:
    """Return x, y in [0, 1] of each map's centre of mass (soft argmax)."""
    height, width = maps.shape[-2:]
    y, x = ((torch.arange(n, dtype=maps.dtype) + 0.5) / n for n in (height, width))
    mass = maps / maps.sum((-1, -2), keepdim=True)
    return torch.stack([mass.sum(-2) @ x, mass.sum(-1) @ y], -1)


def peak(maps: Maps) -> Float[Tensor, "frames 2"]:
    """Return x, y in [0, 1] of each map's greatest value; of several, their mean place."""
    return centre_of_mass((maps == maps.amax((-1, -2), keepdim=True)).to(maps.dtype))


def angle_error_deg(
    place: Float[Tensor, "frames 2"], points: Points, field_of_view_deg: float, aspect: float
) -> PerFrame:
    """Return the angle between a place and the gaze through a pinhole, mean over fixations.

    `field_of_view_deg` is the horizontal one and `aspect` the frame's height over its width.

    Source: the AAE of the official GLC code, which has 60 degrees and square frames built in.
    """
    half = math.tan(math.radians(field_of_view_deg) / 2)
    scale = place.new_tensor([2 * half, 2 * half * aspect])

    def ray(point: Tensor) -> Tensor:
        return torch.nn.functional.pad((point - 0.5) * scale, (0, 1), value=1.0)

    valid = ~points.isnan().any(-1)
    error = between_rad(
        ray(place)[:, None].expand(*points.shape[:2], 3), ray(points.nan_to_num(0.0).to(place))
    )
    return torch.rad2deg(_over_fixations(error, valid))


def _over_fixations(
    values: Float[Tensor, "frames fixations"], valid: Bool[Tensor, "frames fixations"]
) -> PerFrame:
    return (values * valid).sum(1) / valid.sum(1)


def _structureless(flat: Float[Tensor, "frames pixels"]) -> Bool[Tensor, "frames 1"]:
    # Relative to the values: a softmax over equal logits is equal only up to rounding.
    low, high = flat.aminmax(dim=1, keepdim=True)
    return high - low <= 1e-12 * high
