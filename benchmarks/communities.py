"""Which groups one number per person makes of generated clips, beside what people were made from.

python -m benchmarks.communities: ten people with three clips each, whose distance to a proxy is the
sum of DTW, that sum over the frames of both clips, or DTW as a mean over frames. Agreement
(adjusted Rand) with three communities that differ in speed, length and mean, and with the lengths
of people who differ in nothing else: there 1 is a fault.
"""

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist

from benchmarks.common.options import options
from vergence.data.synthetic.clip_synthetic import COMMUNITIES, PROXY, draw_clip
from vergence.metrics.clustering import adjusted_rand, kmeans
from vergence.metrics.dtw import dtw

PEOPLE, CLIPS = 10, 3
DISTANCES: dict[str, Callable] = {
    "sum": dtw,
    "sum / (frames + frames')": lambda x, y: dtw(x, y) / (len(x) + len(y)),
    "mean over frames": lambda x, y: dtw(x, y, per_frame=True),
}


def agreement(kind: str, seed: int) -> list[float]:
    """Return the adjusted Rand of the groups by each distance."""
    rng, made = np.random.default_rng(seed), [i % 3 for i in range(PEOPLE)]
    proxy = draw_clip(rng, *PROXY)
    people = [[draw_clip(rng, *COMMUNITIES[kind][group]) for _ in range(CLIPS)] for group in made]
    found = []
    for far in DISTANCES.values():
        d = np.array([[np.mean([far(x, proxy) for x in clips])] for clips in people])
        groups = kmeans(cdist(d, d), 3, np.random.default_rng(0))
        found.append(adjusted_rand(made, groups.tolist()))
    return found


def main() -> None:
    """Print the table."""
    seeds = options(__doc__.partition("\n")[0], seeds=20).seeds
    for kind in COMMUNITIES:
        for name, values in zip(
            DISTANCES, np.array([agreement(kind, s) for s in range(seeds)]).T, strict=True
        ):
            print(
                f"{kind:8} {name:26} {values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"
            )


if __name__ == "__main__":
    main()
