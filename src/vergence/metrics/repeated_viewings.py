"""How much of a person's gaze is personal, by repeated viewings of the same pictures.

No command calls this; `vergence.data.PSM` reads such data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vergence.core.data import Samples
from vergence.core.randomness import RandomStream
from vergence.errors import DataError
from vergence.metrics.gaze_maps import fixation_counts, smoothed
from vergence.metrics.map_priors import SHARED_SIGMA
from vergence.metrics.saliency import nss

# On PSM, own viewings help all 30 people with .1 and .2. With .3 they help a little more on average
# (.17 instead of .14 NSS), and some people lose where the maps are blurred less.
SHARE = 0.2
"""Share of one person's gaze in a map of others' gaze."""


class ViewingScores(NamedTuple):
    """NSS of one person's viewings under three maps, each a mean over the viewings.

    Attributes:
        others: under the gaze of everybody but the person and one other person.
        with_own: the same map with the person's other viewings of the picture mixed in.
        with_another: the same map with as many viewings by that other person mixed in instead. It
            shows what the weight on one person costs, if that person is somebody else.
    """

    others: float
    with_own: float
    with_another: float

    @property
    def personal(self) -> float:
        """What the person's own other viewings add to the gaze of others."""
        return self.with_own - self.others


def viewing_scores(
    people: Mapping[str, Samples],
    height: int,
    width: int,
    *,
    share: float = SHARE,
    sigma: float = SHARED_SIGMA,
    seed: int = 0,
) -> dict[str, ViewingScores]:
    """Measure how well other people and the same person predict a person's viewing of a picture.

    No model is trained: the scores are ceilings for models with and without anything personal. A
    person may remember a picture that was shown before, which counts as personal here.

    Args:
        people: person -> samples with several samples of a `scene`, each of which is a viewing.
        height: rows of the maps.
        width: columns of the maps.
        share: share of one person's gaze in the map of others' gaze.
        sigma: blur of all maps, in widths.
        seed: seed of the choice of the other person, anew for each person and picture.

    Returns:
        The scores of every person who saw a picture several times which two others saw.

    Raises:
        DataError: there is no such person.
    """
    scores: dict[str, list[Float[Tensor, "maps viewings"]]] = {}
    scenes = torch.cat([samples.columns["scene"] for samples in people.values()]).unique()
    for scene in scenes[scenes >= 0].tolist():
        points = {
            person: samples.columns["points"][samples.columns["scene"] == scene].flatten(1, 2)
            for person, samples in people.items()
        }
        points = {person: own.double() for person, own in points.items() if len(own)}
        heat = {p: smoothed(fixation_counts(xy, height, width), sigma) for p, xy in points.items()}
        whole = {person: own.sum(0) for person, own in heat.items()}
        total = torch.stack(list(whole.values())).sum(0)
        rng = RandomStream("another person", seed, scene).numpy()
        for person, own in heat.items():
            rest = [name for name in heat if name != person]
            if len(own) < 2 or len(rest) < 2:
                continue
            another = rest[int(rng.integers(len(rest)))]
            again = _scaled(whole[person] - own)
            others = _scaled(total - whole[person] - whole[another]).expand_as(again)
            theirs = _scaled(heat[another][: len(own) - 1].sum(0))
            mixed = [(1 - share) * others + share * one for one in (others, again, theirs)]
            values = nss(torch.cat(mixed), points[person].repeat(3, 1, 1))
            scores.setdefault(person, []).append(values.unflatten(0, (3, -1)))
    if not scores:
        raise DataError(
            "nobody saw a scene several times which two others saw: give the samples of a data set "
            "with repeated viewings, such as psm"
        )
    return {p: ViewingScores(*torch.cat(own, 1).mean(1).tolist()) for p, own in scores.items()}


def _scaled(heat: Float[Tensor, "*batch height width"]) -> Float[Tensor, "*batch height width"]:
    # What is left of a difference of equal maps may be below 0 by rounding.
    heat = heat.clamp(min=0)
    return heat / heat.sum((-1, -2), keepdim=True)
