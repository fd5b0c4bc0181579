"""SG-ZSL: PE-ZSL whose teacher, and comparison with real samples, can be private."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, mean
from vergence.core.data import Batch
from vergence.core.messages import Message, Reply
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.methods.generative.losses import REAL, Guidance
from vergence.methods.generative.teacher import Owner, TeacherMethod

FLOOR = 1e-6
"""The least share of an entry in a profile: noise may push one below 0."""


def longest(entries: int, low: float, high: float) -> float:
    """Return the largest L2 norm of softmax(x) for x in [low, high]^entries.

    The norm is largest where every entry of x is low or high. With a share t of them high and
    r = exp(high - low) its square is  (1 + t (r^2 - 1)) / (entries (1 + t (r - 1))^2),  at most
    that at t = 1 / (r + 1).
    """
    return min(1.0, math.cosh((high - low) / 2) / math.sqrt(entries))


def squares(x: Tensor, low: float, high: float) -> tuple[Tensor, float]:
    """Return rows `[n, 2 entries]` whose mean has the moments of `x` `[n, entries]`, and a bound.

    With c and h the middle and half the width of [low, high], a row is x - c and (x - c)^2 - h^2/2.
    For x in [low, high] no row is longer than  h sqrt(entries (1 + h^2 / 4)),  as its corners are.
    """
    # Centred: what lies around 0 is shortest, and so needs the least noise.
    middle, half = (low + high) / 2, (high - low) / 2
    centred = x - middle
    rows = torch.cat([centred, centred.square() - half**2 / 2], 1)
    return rows, half * math.sqrt(x.shape[1] * (1 + half**2 / 4))


def moments_of(mean_row: Tensor, low: float, high: float) -> Tensor:
    """Return means and standard deviations `[2, entries]` from the mean row of `squares`."""
    middle, half = (low + high) / 2, (high - low) / 2
    first, second = mean_row.chunk(2)
    # Noise may put a mean outside, and push a variance below 0 or above what the range allows.
    first = first.clamp(-half, half)
    variance = (second + half**2 / 2 - first.square()).clamp(0, half**2)
    return torch.stack([first + middle, variance.sqrt()])


@dataclass(frozen=True)
class SgZsl(TeacherMethod):
    """PE-ZSL that compares with real samples only through one private mean.

    1. The owner trains its teacher, by DP-SGD where `privacy.solver` says so, and forms its profile
       p = mean of softmax(x) over its samples, of the same budget: one release, with noise.
    2. to 4. As PE-ZSL, with  R(x) = KL(p || softmax(x)): answers depend on teacher and profile
       only, and never on single samples.
    With `regulariser = "moments"` the profile has the means and standard deviations of features,
    from one release too.

    Args:
        compare: compare made-up samples with the `profile`, or as printed with `samples`, which are
            drawn anew for every question and which no budget covers.

    Source: the Durham thesis, section 6.3, Equations 6.3 to 6.7; docs/reference/methods/sg_zsl.md.
    Differs: the thesis compares with real samples although its teacher is private; weights are not
    cut to (-c, c), as the thesis gives no c; Equation 6.4's plus is a minus.
    """

    compare: Literal["profile", "samples"] = "profile"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compare == "profile" and self.regulariser == "mmd":
            raise ConfigError(
                "sg_zsl: mmd compares with single real samples, of which a profile has none; set "
                'regulariser = "kl" or "none", or compare = "samples", which no budget covers'
            )
        if self.looks:
            compared = {
                verb: replace(exposed, beyond="made-up samples are compared with real ones")
                for verb, exposed in self.exposure.items()
                if verb in ("guide", "compare")
            }
            object.__setattr__(self, "exposure", {**self.exposure, **compared})

    @property
    def looks(self) -> bool:
        """Return whether each question compares made-up samples with single real ones."""
        return self.compares and self.compare == "samples"

    def guidance(self, task: Task) -> Guidance:
        """Return the objective that an owner computes on made-up samples."""
        guidance = super().guidance(task)
        profile = "moments_profile" if self.regulariser == "moments" else "profile"
        return guidance if self.looks else replace(guidance, regulariser=profile)

    def on_teach(
        self, c: Owner, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Owner, Reply]]:
        """Train the teacher, and form the profile."""
        c, answer = yield from super().on_teach(c, msg, site)
        if not self.compares or self.looks:
            return c, answer
        inputs = site.task.inputs(site.train.take(torch.arange(len(site.train))))[0]
        x, ends = inputs.flatten(1).cpu(), site.task.input_range()[1:]
        # The longest row bounds one sample's influence, from which the noise is computed.
        if self.regulariser == "moments":
            p = yield from mean(*squares(x, *ends))
            profile = Params.named(moments=moments_of(p, *ends))
        else:
            p = yield from mean(x.softmax(1), longest(x.shape[1], *ends))
            # KL needs positive shares, and noise may push one below 0.
            p = p.clamp(min=FLOOR)
            profile = Params.named(shares=(p / p.sum())[None])
        return replace(c, profile=profile), answer

    def real(self, c: Owner, msg: Message, site: ClientContext) -> Batch:
        """Return the profile, or as many real samples as made-up ones, drawn anew."""
        if self.looks:
            return self.real_samples(msg, site)
        name = "moments" if self.regulariser == "moments" else "shares"
        return {REAL: c.profile[name]} if c.profile is not None else {}
