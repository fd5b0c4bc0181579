"""Privacy budget for masks: groups of entries that become personal, and epsilon of each choice.

Used by `engine.protections.private_masks`, `experiment.privacy.schema`, `privacy.config` and
`privacy.dp.private_selection`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from vergence.core.masks import Mask
from vergence.core.options import NamedOptions
from vergence.core.params import Layout, Params
from vergence.core.tags import tagged
from vergence.errors import ConfigError
from vergence.privacy.dp.budget import Delta
from vergence.privacy.dp.exponential_mechanism import per_draw, private_top
from vergence.privacy.keyed_noise import NoiseStream

Kind = Literal["filter", "tensor", "entry"]


@tagged("MaskBudget")
@dataclass(frozen=True)
class MaskBudget(NamedOptions, label="privacy.mask"):
    """Privacy budget for one client's masks, over all its data and a run of one seed and method.

    Args:
        epsilon: budget of all choices together. Neighbouring data sets differ in all of the
            client's data.
        delta: the delta at which epsilon is computed.
        of: entries that become personal together: all entries of a `filter` (one output channel or
            neuron), all entries of a `tensor`, or a single `entry`. The entries of a filter have
            the same row index in those tensors of a layer that have equally many rows, such as
            weight and bias.
    """

    epsilon: Annotated[float, Interval(gt=0, le=1e9)]
    delta: Delta = 1e-5
    of: Kind = "filter"

    def epsilon_per_draw(self, draws: int) -> float:
        """Return the epsilon that each of a run's `draws` draws may spend."""
        return per_draw(self.epsilon, self.delta, draws)

    def epsilon_of(self, spent: Iterable[tuple[float, int]]) -> float:
        """Return epsilon of several draws together.

        A draw of epsilon e is e^2 / 8 concentrated; see `per_draw`.

        Args:
            spent: pairs of the epsilon of a draw and the number of draws with this epsilon.
        """
        spent = list(spent)
        rho = sum(count * each**2 / 8 for each, count in spent)
        plain = sum(count * each for each, count in spent)
        return min(plain, rho + 2 * math.sqrt(rho * math.log(1 / self.delta)))


@dataclass(frozen=True)
class Groups:
    """Partition of a network's entries into groups that become personal together.

    Attributes:
        of: the group of each entry, int64 `[entries]`.
        sizes: number of entries in each group, int64 `[groups]`.
    """

    of: Tensor
    sizes: Tensor

    def candidates(self, k: int, among: Mask) -> Mask:
        """Return a mask over groups: true for the groups that may be chosen.

        All entries of these groups are true in `among`, and no group has more than `k` entries.
        """
        inside = torch.bincount(self.of[among.bits], minlength=len(self.sizes))
        layout = Layout(("groups",), ((len(self.sizes),),))
        return Mask((inside == self.sizes) & (self.sizes <= k), layout)

    def share(self, k: int, candidates: Mask) -> int:
        """Return how many candidate groups to draw, so that the drawn groups have about k entries.

        It is k divided by the mean size of the candidate groups, rounded, and at least 1; 0 if
        there are no candidates.
        """
        if not candidates.count:
            return 0
        entries = int(self.sizes[candidates.bits].sum())
        return min(candidates.count, max(1, round(k * candidates.count / entries)))

    def best(self, score: Params, count: int, candidates: Mask) -> Mask:
        """Return a mask over groups: the `count` candidates with the highest mean score.

        The mean is over a group's entries; a score of NaN counts as 0.
        """
        known = score.flat.double().nan_to_num(nan=0.0)
        total = torch.bincount(self.of, known, minlength=len(self.sizes))
        return Mask.top(Params(total / self.sizes, candidates.layout), count, candidates)

    def draw_entries(
        self, best: Mask, k: int, candidates: Mask, each: float, draws: NoiseStream
    ) -> Tensor:
        """Draw groups by the exponential mechanism; return their entries, bool `[entries]`.

        As many groups are drawn as there are in `best`. A group scores 1 if it is in `best` and 0
        otherwise, so that no bound on scores is needed. In each draw a group of `best` is e^(each /
        2) times as likely as another candidate. Drawn groups are then taken in random order; a
        group is left out if the entries would become more than k. This is post-processing and
        costs no privacy.

        Args:
            best: the groups with the highest scores.
            k: largest number of entries in the result.
            candidates: the groups that may be drawn.
            each: epsilon of one draw.
            draws: secret random numbers of this choice.
        """
        score = Params(best.bits.double(), candidates.layout)
        got = private_top(score, best.count, candidates, 1.0, best.count * each, 0.0, draws).bits
        order = torch.from_numpy(draws.uniform(len(got))).argsort()
        personal, room = torch.zeros_like(got), k
        for group in order[got[order]].tolist():
            size = int(self.sizes[group])
            if size <= room:
                personal[group], room = True, room - size
        return personal[self.of]


@cache
def groups(layout: Layout, kind: Kind) -> Groups:
    """Return the groups of a network's entries."""
    if kind == "entry":
        return Groups(torch.arange(layout.n), torch.ones(layout.n, dtype=torch.int64))
    parts, first_group, count = list[Tensor](), dict[tuple[str, int], int](), 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        rows = shape[0] if shape and kind == "filter" else 1
        # A layer's weight and bias have as many rows and share their groups, one for each filter.
        key = (name.rpartition(".")[0] if kind == "filter" else name, rows)
        if key not in first_group:
            first_group[key], count = count, count + rows
        each = math.prod(shape) // max(rows, 1)
        parts.append((first_group[key] + torch.arange(rows)).repeat_interleave(each))
    of = torch.cat(parts)
    return Groups(of, torch.bincount(of, minlength=count))


def whole(k: int | Mapping[str, int]) -> int:
    """Return k, the number of entries to choose in the whole network, if it is one number.

    Raises:
        ConfigError: `k` is a number for each tensor instead.
    """
    if isinstance(k, int):
        return k
    raise ConfigError(
        "privacy.mask chooses among all of a network, and this method among the entries of each "
        'tensor; use scope = "global"'
    )
