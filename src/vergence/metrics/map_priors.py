"""Baseline gaze maps without learning: uniform, centre, priors, motion, and others' gaze.

Used by `models.glc.reference_map` and `tasks.gaze_map`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize, pixel_shuffle

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.metrics.gaze_maps import centre_map, fixation_counts, smoothed
from vergence.metrics.personal_priors import width_for, width_within

Map = Float[Tensor, "height width"]

# On scenes the likeliest blur is wider, and lowers NSS: a weaker reference flatters methods.
SHARED_SIGMA = 0.03
"""Blur of many people's gaze on one scene, in widths, and of a global prior of one person."""
# Chosen on the training clips of one split of GazeCom.
MOTION_SIGMA = 0.04
"""Blur of motion, in widths."""
# It keeps KLD finite, and of the other scores moves only SIM.
# Of 0.05, 0.1 and 0.2 the best on six viewers of EyeCrowd, with 20 pictures and with 200.
NEAREST_SIGMA = 0.2
"""Blur of one picture's gaze, in widths."""
THUMBNAIL = 8
"""Rows and columns of the grey thumbnails by which pictures are compared."""
FLOOR = 0.01
"""Share of a uniform map that is mixed into every map."""


class SeenPriors(NamedTuple):
    """Samples that other people saw too, and the map of those others' gaze on each frame."""

    samples: Samples
    maps: Float[Tensor, "samples frames height width"]


def static_priors(
    federation: Federation, height: int, width: int
) -> dict[str, Callable[[str], Map]]:
    """Return prior name -> (person -> one map for all frames), from everybody's training gaze.

    The task `gaze_map` scores these maps as baselines without learning.

    The blur of a map is the one under which held-out gaze is likeliest: for the global prior each
    person's gaze in a map of the others, for the personal prior a fold of a person's gaze in a map
    of the other four folds.
    """
    counts = {
        person: fixation_counts(_points(splits.train), height, width).sum((0, 1))
        for person, splits in federation.people.items()
    }
    each = torch.stack(list(counts.values()))
    total = each.sum(0)
    sigma = width_for(each, total - each) if len(each) > 1 else SHARED_SIGMA
    everybody = _distribution(smoothed(total, sigma))
    own = {p: own_map(splits.train, height, width) for p, splits in federation.people.items()}
    uniform = torch.full((height, width), 1 / (height * width), dtype=torch.float64)
    centre = _distribution(centre_map(height, width))
    return {
        "uniform": lambda _: uniform,
        "centre": lambda _: centre,
        "global prior": lambda _: everybody,
        "personal prior": lambda person: own[person],
    }


def own_map(train: Samples, height: int, width: int) -> Map:
    """Return the personal prior of these training samples."""
    counts = fixation_counts(_points(train), height, width).sum((0, 1))
    return _distribution(smoothed(counts, width_within(_points(train), height, width)))


def nearest_maps(
    splits: Splits, looks: Tensor, height: int, width: int
) -> tuple[Float[Tensor, "val 1 height width"], Float[Tensor, "test 1 height width"]]:
    """Return for validation and test samples the gaze at the most alike own training sample.

    Args:
        splits: a person's data, with the bank `frames`.
        looks: what `looks_of` returns for the rows of that bank.
        height: rows of the maps.
        width: columns of the maps.
    """
    counts = fixation_counts(_points(splits.train), height, width).sum(1, keepdim=True)
    train, val, test = (
        normalize(looks[part.columns[part.banks["frames"].by]].mean(1))
        for part in (splits.train, splits.val, splits.test)
    )
    of_val, of_test = (
        _distribution(smoothed(counts[(part @ train.T).argmax(1)], NEAREST_SIGMA))
        for part in (val, test)
    )
    return of_val, of_test


def looks_of(frames: Tensor) -> Float[Tensor, "frames values"]:
    """Return a few values of each frame, by which alike frames are found.

    They are the means over all places of features `[n, channels, rows, columns]`, or for pictures,
    uint8 `[n, H, W, 3]`, a grey thumbnail less its mean.
    """
    if frames.dtype != torch.uint8:
        return torch.cat([part.float().mean((2, 3)) for part in frames.split(64)])
    grey = torch.cat(
        [
            adaptive_avg_pool2d(part.float().mean(-1), THUMBNAIL).flatten(1)
            for part in frames.split(64)
        ]
    )
    return grey - grey.mean(1, keepdim=True)


def motion_maps(
    motion: Float[Tensor, "samples frames 4 rows columns"],
) -> Float[Tensor, "samples frames rows2 columns2"]:
    """Return blurred motion times a broad Gaussian in the middle, each map with sum 1.

    The four channels are the quarters of a place, as `vergence.models.motion` gives them.
    """
    heat = smoothed(pixel_shuffle(motion.double(), 2)[:, :, 0], MOTION_SIGMA)
    return _distribution(heat * centre_map(*heat.shape[-2:]))


def seen_by_others(
    people: Mapping[str, Samples], height: int, width: int
) -> Iterator[tuple[str, SeenPriors]]:
    """Yield, for each person whose scenes others saw too, the others' blurred gaze on them.

    Frames are the same if scene and frame number are. Frames on which nobody else has gaze lose
    their own points, and samples without any other frame are left out, so that only comparable
    frames are scored. A person without such samples is not yielded, and nobody is if the data have
    no column `scene`.
    """
    if any("scene" not in samples.columns for samples in people.values()):
        return
    scenes = torch.cat([s.columns["scene"] for s in people.values()]).unique()
    scenes = scenes[scenes >= 0]
    if not len(scenes):
        return
    own = {p: _scene_counts(s, scenes, height, width) for p, s in people.items()}
    total = torch.stack(list(own.values())).sum(0)
    for person, samples in people.items():
        rows = (samples.columns["scene"] >= 0).nonzero()[:, 0]
        place = torch.searchsorted(scenes, samples.columns["scene"][rows])
        others = (total - own[person])[place].double()
        seen = ~samples.columns["points"][rows].isnan().any(-1)
        # The same frames as in `GazeMap.metrics`: where samples may hold several fixations, two.
        enough = seen.sum(-1) >= min(2, seen.shape[-1])
        shown = (others.sum((-1, -2)) > 0) & enough
        kept = shown.any(1)
        if kept.any():
            chosen = samples.subset(rows[kept])
            points = chosen.columns["points"].clone()
            points[~shown[kept]] = torch.nan
            chosen = replace(chosen, columns={**chosen.columns, "points": points})
            yield person, SeenPriors(chosen, _distribution(smoothed(others[kept], SHARED_SIGMA)))


def _scene_counts(samples: Samples, scenes: Tensor, height: int, width: int) -> Tensor:
    """Counts [scenes, frames, height, width] of one person's gaze; whole numbers, so exact."""
    rows = (samples.columns["scene"] >= 0).nonzero()[:, 0]
    counts = fixation_counts(samples.columns["points"][rows].float(), height, width)
    place = torch.searchsorted(scenes, samples.columns["scene"][rows])
    empty = counts.new_zeros((len(scenes), *samples.columns["points"].shape[1:2], height, width))
    return empty.index_add(0, place, counts)


def _points(samples: Samples) -> Tensor:
    return samples.columns["points"].double()


def _distribution(heat: Float[Tensor, "*batch height width"]) -> Float[Tensor, "*batch h w"]:
    """Scale to sum 1 and mix in the floor; without any gaze the floor alone remains."""
    total = heat.sum((-1, -2), keepdim=True)
    pixels = heat.shape[-1] * heat.shape[-2]
    even = torch.where(total > 0, FLOOR, 1.0)
    return (1 - even) * heat / torch.where(total > 0, total, 1.0) + even / pixels
