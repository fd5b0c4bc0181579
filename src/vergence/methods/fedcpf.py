"""FedCPF: parameters that change most over many updates become personal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.layers.averaged_statistics import maskable
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
        """Return the window at the level of a score, and whether it starts anew (Alg. 2, 8-11).

        A window starts anew if the score reaches `level` steps. `how` is `while`: the level then
        rises above the score at once. `if`: it rises by one per call, so that the window may also
        start anew in later rounds without progress. `always`: the printed k <- 0 on every call.
        """
        level = 0 if how == "always" else self.level
        # Rounding must not cost a level: a score of 0.6 has climbed twelve steps of 0.05.
        reached = min(score, 1.0) + 1e-9
        hit = reached >= level * step
        while reached >= level * step:
            level += 1
            if how != "while":
                break
        return replace(self, level=level), hit

    def add(
        self, change: Params, round: int, hit: bool, inclusive: bool
    ) -> tuple[MaskWindow, Params]:
        """Add this round's change; return the window and the mean change (Eq. 4).

        `hit` says whether a new window starts in this round; `inclusive`, whether the change of
        this round then counts in the next rounds' means.
        """
        if hit and not inclusive:
            return replace(self, total=change * 0.0, count=0, since=round), change
        total = change if hit else self.total + change
        count = 1 if hit else self.count + 1
        since = round if hit else self.since
        # The printed denominator r_cu - r_th is 0 in the round of a restart, while its sum has r_cu
        # - r_th + 1 terms: divide by the number of terms.
        mean = total if count == 1 else total / float(count)
        return replace(self, total=total, count=count, since=since), mean


@tagged("Personal", last_mask="kept")
@dataclass(frozen=True)
class Personal:
    """A client's own parameters after its last turn, and its masks.

    `mask` (eta^r): entries that stay on the client in the coming round. `last_mask` (eta^{r-1}):
    entries that stayed in the last round, which the server's model did not overwrite.
    """

    params: Params
    last_mask: Mask
    mask: Mask
    window: MaskWindow


@dataclass(frozen=True)
class FedCPF(AveragingMethod[Personal]):
    """Parameters that change most on average stay personal; the others are averaged by entry.

    Each round a client trains all its parameters, and sends those that its mask leaves shared. Then
    the `rate` * n entries with the largest mean change join the mask, up to a share `limit`. The
    mean is that of absolute changes since the client's validation score last rose by a `step`.
    Masks only grow.

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
        frozen_trainable: personal entries are trained on; false is a different method.
        weights: clients count equally, or by their samples.
        enough: number of training samples from which on `limit` holds. With n fewer, the limit is
            `limit` * n / `enough`. 0: it always holds, as in the paper.
        guard: discard a turn's change of personal entries and mask if training raised the
            validation loss; not in the paper.

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
    state_labels: ClassVar[Mapping[str, str]] = {
        "params": "the person's own model",
        "last_mask": "which numbers of the model were personal",
        "mask": "which numbers of the model are personal",
    }

    def client(self, task: Task) -> Personal:
        """Return the state of a new client: the initial model, with nothing personal."""
        start = task.init()
        none = Mask.none(start.layout)
        return Personal(start, none, none, MaskWindow(start * 0.0))

    @property
    def uses_validation(self) -> bool:
        """True if masks follow validation scores, or validation losses guard them."""
        return self.select != "random" or self.guard

    def on_train(
        self, c: Personal, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Personal, Reply]]:
        """Train, send the shared entries, and let the mask grow."""
        if self.enough:
            limit = self.limit * min(1.0, len(site.train) / self.enough)
            return (yield from replace(self, limit=limit, enough=0).on_train(c, msg, site))
        # Alg. 1, line 17 of the round before.
        start = self.model_on(c, msg, site)
        trainable = None if self.frozen_trainable else ~c.mask
        grows = self.room(c.mask) > 0
        # A random choice needs no score, and a full mask none either: validation data stay unread.
        val = site.val if grows and self.select != "random" else None
        # Alg. 2, lines 3-5.
        fitted = yield from fit(start, site.train, self.local, trainable=trainable, score_on=val)
        own, mask, window = fitted.params, c.mask, c.window
        if self.guard and (yield from self.raised_loss(start, own, site)):
            own, grows = c.mask.merge(start, own), False
        if grows:
            change = self.change(start, fitted.params, c.mask)
            score = fitted.metrics.get("score", 0.0)
            window, hit = window.restarts(score, self.step, self.restart)
            window, mean = window.add(change, site.round, hit, self.window == "inclusive")
            mask = c.mask | self.newly_personal(mean, c.mask, site)
        # Alg. 1, lines 11-12: the mask with which the round began, not the one that just grew.
        weight = ~c.mask
        if self.weights == "samples":
            bits = weight.bits.to(start.flat.dtype)
            weight = start.like(bits * fitted.examples)
        update = fitted.params - msg["model"]
        mine = Personal(params=own, last_mask=c.mask, mask=mask, window=window)
        # The validation score stays on the client: the server has no use for it.
        metrics = {"loss": fitted.metrics["loss"]}
        return mine, reply(model=update, weight=weight, metrics=metrics)

    def raised_loss(self, start: Params, end: Params, site: ClientContext) -> Conversation[bool]:
        """Return whether training raised the loss on validation data."""
        before = yield from compute(start, site.val, "loss")
        after = yield from compute(end, site.val, "loss")
        return after > before

    def change(self, start: Params, end: Params, mask: Mask) -> Params:
        """Return |theta+ - theta| on shared entries, 0 on personal ones (Alg. 2 line 12)."""
        if not self.relative:
            return (~mask).distance(end, start)
        # Parameters that are exactly 0 would make the ratio infinite.
        change = abs(end - start).flat / (start.flat.abs() + 1e-8)
        return (~mask).keep(start.like(change))

    def room(self, mask: Mask, n: int | None = None, personal: int | None = None) -> int:
        """Return how many entries may become personal now, in one tensor or in the whole model."""
        n = mask.layout.n if n is None else n
        personal = mask.count if personal is None else personal
        base = n if self.rate_of == "all" else n - personal
        return max(min(floor(self.rate * base), floor(self.limit * n) - personal), 0)

    def newly_personal(self, mean: Params, mask: Mask, site: ClientContext) -> Mask:
        """Return the entries that become personal (Alg. 2 line 14)."""
        rooms = self.room(mask) if self.scope == "global" else self.rooms(mask)
        if self.select == "random":
            # A stream of its own, so that the control draws the same batches as the method.
            chance = torch.rand(len(mean.flat), generator=site.rng.child("select").torch())
            return Mask.best(mean.like(chance), rooms, among=maskable(site.task, ~mask))
        score = -mean if self.select == "inverted" else mean
        return site.choose(score, rooms, among=~mask)

    def rooms(self, mask: Mask) -> dict[str, int]:
        """Return for each tensor how many entries may become personal now."""
        parts, counts = mask.layout.slices, mask.counts()
        return {n: self.room(mask, p.stop - p.start, counts[n]) for n, p in parts.items()}

    def model_on(self, c: Personal, msg: Message, site: ClientContext) -> Params:
        """Return the client's values of personal entries, and the server's of all others."""
        return c.last_mask.merge(c.params, msg["model"])


def floor(x: float) -> int:
    """Round down, forgiving the last bit: 0.3 * 10 is 3."""
    return math.floor(x + 1e-9)
