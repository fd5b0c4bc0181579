"""FedCPF: keep personal the parameters that change most over many updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.masks import Mask
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, Exposure
from vergence.core.options import Share
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task

Restart = Literal["while", "if", "always"]


@tagged("Window")
@dataclass(frozen=True)
class MaskWindow:
    """The rounds over which changes are averaged: from `since` (r_th) to now.

    `total` is the sum of changes and `count` their number; `level` is k, the next multiple of
    the score step that restarts the window. All persist per client.
    """

    total: Params
    count: int = 0
    level: int = 0
    since: int = 0

    def restarts(self, score: float, step: float, how: Restart) -> tuple[MaskWindow, bool]:
        """Climb the score levels reached and tell whether the window starts anew (Alg. 2, 8-11).

        A jump of several steps climbs them all at once (`while`). With `if` it keeps firing in
        later rounds without progress; `always` is the printed k <- 0 on every call.
        """
        level = 0 if how == "always" else self.level
        reached = min(score, 1.0) + 1e-9  # 0.6 has climbed twelve steps of 0.05
        hit = reached >= level * step
        while reached >= level * step:
            level += 1
            if how != "while":
                break
        return replace(self, level=level), hit

    def add(
        self, change: Params, round: int, hit: bool, inclusive: bool
    ) -> tuple[MaskWindow, Params]:
        """Take in this round's change; return the window and the mean change (Eq. 4).

        The printed denominator r_cu - r_th is 0 in the round of a restart, while its sum has
        r_cu - r_th + 1 terms: divide by the number of terms.
        """
        if hit and not inclusive:
            return replace(self, total=change * 0.0, count=0, since=round), change
        total = change if hit else self.total + change
        count = 1 if hit else self.count + 1
        since = round if hit else self.since
        mean = total if count == 1 else total / float(count)
        return replace(self, total=total, count=count, since=since), mean


@tagged("Personal")
@dataclass(frozen=True)
class Personal:
    """A client's own parameters after its last turn, and its masks.

    `mask` (eta^r) is what stays home in the coming round; `kept` (eta^{r-1}) is what stayed home
    in the last one, and so was not overwritten by the server's model.
    """

    params: Params
    kept: Mask
    mask: Mask
    window: MaskWindow


@dataclass(frozen=True)
class FedCPF(AveragingMethod[Personal]):
    """Keep personal the parameters that change most on average, average the rest entry by entry.

    Each round a client trains all its parameters, sends those its mask leaves shared, and adds to
    the mask the `rate` * n entries whose absolute change, averaged since its validation score
    last climbed a `step`, is largest; up to a share `limit`. Masks only grow.

    Args:
        rate: p, share of all entries that become personal per round.
        limit: rho, largest personal share.
        step: acc, climb of the validation score that restarts the averaging window.
        select: `change` is the method; `random` and `inverted` (lowest change first) are controls
            that share everything else.
        scope: rank all entries together, or each tensor's among themselves.
        relative: rank change / |parameter| instead of change.
        window: whether the round of a restart counts in the next rounds' averages.
        restart: how the score restarts the window: `while` it exceeds a level; `if`, one level per
            round; `always` makes every window one round long.
        rate_of: `rate` is a share of all entries, or of those still shared.
        frozen_trainable: personal entries go on training; false is a different method.
        weights: clients count equally, or by their samples.
        enough: training samples from which on `limit` holds; of n fewer it is n / `enough` of it.
            0: whatever there is, as in the paper.
        guard: personal entries stay as they were, and the mask too, after a turn whose training
            raised the validation loss; not in the paper.

    Source: "Personalized federated learning for egocentric video gaze estimation with
    comprehensive parameter freezing", arXiv 2502.18123, Algorithms 1 and 2, Equation 4.
    Differs: k and r_th persist (the printed k <- 0 makes every window one round long); Eq. 4
    divides by the number of terms; the masked sum of lines 11-12, taken literally, depends on
    the order of clients, so it is the sum of masked terms over the count of masks; where nobody
    shares an entry the server keeps its value. See docs/reference/methods/fedcpf.md.
    """

    rate: Share = 0.05
    limit: Share = 0.5
    step: Annotated[float, Ge(0.001)] = 0.05
    select: Literal["change", "random", "inverted"] = "change"
    scope: Literal["global", "per_tensor"] = "global"
    relative: bool = False
    window: Literal["inclusive", "exclusive"] = "inclusive"
    restart: Restart = "while"
    rate_of: Literal["all", "remaining"] = "all"
    frozen_trainable: bool = True
    weights: Literal["equal", "samples"] = "equal"
    enough: Annotated[int, Ge(0)] = 0
    guard: bool = False

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(weight="mask")}
    keeps: ClassVar[Mapping[str, str]] = {
        "params": "the person's own model",
        "kept": "which numbers of the model were personal",
        "mask": "which numbers of the model are personal",
    }

    def client(self, task: Task) -> Personal:
        """Start with nothing personal."""
        start = task.init()
        none = Mask.none(start.layout)
        return Personal(start, none, none, MaskWindow(start * 0.0))

    def on_train(
        self, c: Personal, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Personal, Reply]]:
        """Train, send the shared entries, and let the mask grow."""
        if self.enough:
            limit = self.limit * min(1.0, len(site.train) / self.enough)
            return (yield from replace(self, limit=limit, enough=0).on_train(c, msg, site))
        start = self.model_on(c, msg, site)  # Alg. 1 line 17 of the round before
        trainable = None if self.frozen_trainable else ~c.mask
        grows = self.room(c.mask) > 0
        val = site.val if grows and self.select != "random" else None
        fitted = yield from fit(
            start, site.train, self.local, trainable=trainable, score_on=val
        )  # Alg. 2 lines 3-5
        own, mask, window = fitted.params, c.mask, c.window
        if self.guard and (yield from self.worsened(start, own, site)):
            own, grows = c.mask.merge(start, own), False
        if grows:
            change = self.change(start, fitted.params, c.mask)
            score = fitted.metrics.get("score", 0.0)
            window, hit = window.restarts(score, self.step, self.restart)
            window, mean = window.add(change, site.round, hit, self.window == "inclusive")
            mask = c.mask | self.chosen(mean, c.mask, site)
        weight = ~c.mask  # Alg. 1 lines 11-12: the mask the round began with
        if self.weights == "samples":
            bits = weight.bits.to(start.flat.dtype)
            weight = start.like(bits * fitted.examples)
        update = fitted.params - msg["model"]
        mine = Personal(params=own, kept=c.mask, mask=mask, window=window)
        told = {"loss": fitted.metrics["loss"]}  # the validation score stays home
        return mine, reply(model=update, weight=weight, metrics=told)

    def worsened(self, start: Params, end: Params, site: ClientContext) -> Conversation[bool]:
        """True if training raised the loss on validation data."""
        before = yield from compute(start, site.val, "loss")
        after = yield from compute(end, site.val, "loss")
        return after > before

    def change(self, start: Params, end: Params, mask: Mask) -> Params:
        """Return |theta+ - theta| on shared entries, 0 on personal ones (Alg. 2 line 12)."""
        if not self.relative:
            return (~mask).distance(end, start)
        change = abs(end - start).flat / (start.flat.abs() + 1e-8)
        return (~mask).keep(start.like(change))

    def room(self, mask: Mask, n: int | None = None, taken: int | None = None) -> int:
        """Number of entries that may become personal now, in one tensor or in the whole model."""
        n = mask.layout.n if n is None else n
        taken = mask.count if taken is None else taken
        base = n if self.rate_of == "all" else n - taken
        return max(min(floor(self.rate * base), floor(self.limit * n) - taken), 0)

    def chosen(self, mean: Params, mask: Mask, site: ClientContext) -> Mask:
        """Return the entries that become personal (Alg. 2 line 14)."""
        rooms = self.room(mask) if self.scope == "global" else self.rooms(mask)
        if self.select == "random":
            chance = torch.rand(len(mean.flat), generator=site.rng.child("select").torch())
            return Mask.best(mean.like(chance), rooms, among=~mask)
        score = -mean if self.select == "inverted" else mean
        return site.choose(score, rooms, among=~mask)

    def rooms(self, mask: Mask) -> dict[str, int]:
        """Number of entries of each tensor that may become personal now."""
        parts, taken = mask.layout.slices, mask.counts()
        return {n: self.room(mask, p.stop - p.start, taken[n]) for n, p in parts.items()}

    def model_on(self, c: Personal, msg: Message, site: ClientContext) -> Params:
        """Predict with one's own entries where they are personal, the server's elsewhere."""
        return c.kept.merge(c.params, msg["model"])


def floor(x: float) -> int:
    """Round down, forgiving the last bit: 0.3 * 10 is 3."""
    return math.floor(x + 1e-9)
