"""F1 scores of gaze maps: the pixel F1 of GLC, the same on a full grid, and hit@0.7 of FedCPF.

All of them read M = (P - min) / (max - min + 1e-6) per frame and the label's region
B = [L > 0.064 max L], a disc of 4.3 % of a 64 x 64 map. The threshold grid is part of the number:
the label map itself scores 0.83 on the official grid and 1.0 on the full one.

Used by `tasks.gaze_map`.
"""

from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vergence.metrics.gaze_maps import pixels
from vergence.metrics.saliency import Maps, PerFrame, Points

EPS = 1e-6
"""Number added to denominators, as in the official GLC code."""
OFFICIAL_GRID = tuple(np.linspace(0, 0.02, 11).tolist())
"""Thresholds of the official GLC code."""
FULL_GRID = OFFICIAL_GRID + tuple(np.round(np.arange(0.03, 1.005, 0.01), 2).tolist())
"""The official grid, which resolves sharp maps, carried on to 1."""
LABEL_SHARE = 0.064
"""The official threshold 0.001 as a share of the peak, 1/64: holds at every resolution."""


class F1(NamedTuple):
    """An F1 score with the recall, precision and threshold it belongs to."""

    f1: float
    recall: float
    precision: float
    threshold: float


class Hits(NamedTuple):
    """Per frame: share of fixations hit, and the precisions of the frames with a hit (else 0)."""

    share: PerFrame
    area: PerFrame
    component: PerFrame | None


def min_max(maps: Maps) -> Maps:
    """Return maps scaled to [0, 1) per frame; a constant map becomes all zero."""
    low, high = maps.amin((-1, -2), keepdim=True), maps.amax((-1, -2), keepdim=True)
    return (maps - low) / (high - low + EPS)


def region(labels: Maps) -> Bool[Tensor, "frames height width"]:
    """Return the pixels that count as looked at."""
    return labels > LABEL_SHARE * labels.amax((-1, -2), keepdim=True)


def harmonic(recall: float, precision: float) -> float:
    """Return F1 = 2RP / (R + P + 1e-6)."""
    return 2 * recall * precision / (recall + precision + EPS)


def pixel_f1(maps: Maps, labels: Maps, thresholds: tuple[float, ...] = OFFICIAL_GRID) -> F1:
    """Return the best F1 over the thresholds, from recall and precision averaged over frames.

    Per frame, Q = [M > threshold], recall = |Q and B| / |B|, precision = |Q and B| / |Q|. With one
    threshold this is the F1 there; the official number is the best of `OFFICIAL_GRID`, chosen on
    the scored frames themselves.

    Source: official GLC code, `adaptive_f1`.
    """
    grid = torch.tensor(thresholds, dtype=maps.dtype)
    frames, bins = len(maps), len(thresholds) + 1
    # Counting pixels between thresholds, summed up from the top, takes one pass for all thresholds.
    above = torch.bucketize(min_max(maps).flatten(1), grid)
    slot = above + torch.arange(frames)[:, None] * bins
    marked = region(labels).flatten(1)

    def counted(slots: Int[Tensor, " slots"]) -> Float[Tensor, "frames thresholds"]:
        per_bin = torch.bincount(slots, minlength=frames * bins).view(frames, bins)
        return per_bin.flip(1).cumsum(1).flip(1)[:, 1:].double()

    both, predicted = counted(slot[marked]), counted(slot.flatten())
    recall = (both / (marked.sum(1, keepdim=True) + EPS)).mean(0)
    precision = (both / (predicted + EPS)).mean(0)
    f1 = 2 * recall * precision / (recall + precision + EPS)
    # Equal scores must not be told apart by rounding: the lowest such threshold, in any order.
    best = int((f1 >= f1.max() - 1e-9).int().argmax())
    r, p = float(recall[best]), float(precision[best])
    return F1(harmonic(r, p), r, p, thresholds[best])


def hits(
    maps: Maps, labels: Maps, points: Points, threshold: float = 0.7, components: bool = True
) -> Hits:
    """Return the share of each frame's fixations in the salient area A = [M > threshold].

    Of the two precisions, `area` is |A and B| / |A|, and `component` is the share of A's
    8-connected parts that contain a fixation. The latter takes long: it is computed only with
    `components`.

    Source: FedCPF, section 4, which leaves normalisation and precision open; made unambiguous here.
    """
    index, valid = pixels(points, *maps.shape[-2:])
    salient = min_max(maps) > threshold
    inside = salient.flatten(1).gather(1, index) & valid
    share = inside.sum(1) / valid.sum(1).to(maps.dtype)
    right = (salient & region(labels)).sum((-1, -2)) / salient.sum((-1, -2)).clamp(min=1)
    parts = _component_share(salient, index, inside).to(maps.dtype) if components else None
    return Hits(share, torch.where(share > 0, right.to(maps.dtype), 0.0), parts)


def over_clips(
    share: PerFrame, precision: PerFrame, clip: Int[Tensor, " frames"]
) -> tuple[float, float]:
    """Return recall and precision, averaged inside each clip, then over clips.

    A clip's recall is the mean over its frames; its precision the mean over its frames with a hit,
    0 without any. `clip` numbers each frame's clip.
    """
    _, member = clip.unique(return_inverse=True)
    hit = (share > 0).double()
    frames = torch.bincount(member).double()
    hit_frames = torch.bincount(member, hit)
    recall = torch.bincount(member, share.double()) / frames
    right = torch.bincount(member, (precision * hit).double()) / hit_frames.clamp(min=1)
    return float(recall.mean()), float(right.mean())


def _component_share(
    salient: Bool[Tensor, "frames height width"],
    index: Int[Tensor, "frames fixations"],
    inside: Bool[Tensor, "frames fixations"],
) -> Float[Tensor, " frames"]:
    # Neighbours in the plane of one frame: areas of successive frames are not connected.
    within_a_frame = np.zeros((3, 3, 3), int)
    within_a_frame[1] = 1
    numbered = np.zeros(salient.shape, np.int32)
    scipy.ndimage.label(salient.numpy(), within_a_frame, output=numbered)
    parts = torch.from_numpy(numbered).long().flatten(1)
    frame_of = torch.zeros(int(parts.max()) + 1, dtype=torch.long)
    frame, pixel = parts.nonzero(as_tuple=True)
    frame_of[parts[frame, pixel]] = frame
    everything = torch.bincount(frame_of[1:], minlength=len(parts))
    held = parts.gather(1, index)[inside].unique()
    return torch.bincount(frame_of[held], minlength=len(parts)) / everything.clamp(min=1).double()
