"""FedSelect: parameters that changed most since the mask last grew become personal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.masks import Mask
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, Exposure
from vergence.core.options import Share
from vergence.core.params import Params
from vergence.core.tags import IN_CONFIG, tagged
from vergence.core.task import Task

EVERY = 3
"""Rounds from one growth of the mask to the next in the authors' code."""


@tagged("Selected", last_mask="kept")
@dataclass(frozen=True)
class Selected:
    """A client's parameters after its last turn, and the masks of the last and the coming round.

    `reference` holds the parameters when the mask last grew; only rule `code` needs them.
    """

    params: Params
    last_mask: Mask
    mask: Mask
    reference: Params | None


@dataclass(frozen=True)
class FedSelect(AveragingMethod[Selected]):
    """Parameters that changed most since the mask last grew stay personal.

    A client alternates passes over its data (LocalAlt): one trains the personal entries only, the
    next the shared entries only. Then the `rate` * n shared entries with the largest
    |theta+ - theta| of the round become personal (GradSelect), up to exactly `limit` * n.

    Args:
        rule: `published`: as above. `restated`: the same growth, but all entries are trained
            together; this is the FedSelect that the FedCPF paper describes, and is FedCPF with a
            window of one round. `code`: the authors' programme. It alternates, and grows in every
            third round: per tensor named "weight", by all entries at or above the (1 - rate)
            quantile of the change since the last growth. The limit can be overshot, and biases
            always stay shared.
        rate: p; default 0.05 of all entries, or with `code` 0.25 of the entries still shared.
        limit: alpha, largest personal share; default 0.5, or with `code` 0.8.
        epochs: with `code`, how often a client alternates in a round. With `published`,
            `local.epochs` is this number. In both, `local.steps` is the length of each pass.

    Source: Tamirisa et al., "FedSelect: Personalized federated learning with customized selection
    of parameters for fine-tuning", CVPR 2024, arXiv 2404.02478 (alternation, growth, aggregation by
    entry); the order of the passes, and `code`: repository lapisrocks/fedselect.
    Differs: p is a share of all entries, as in FedCPF, so that both have equally many personal
    entries after a round; the last round is aggregated too; p = 0 selects nothing.
    """

    # A run's config names the rule: before 0.2.0 the default was what is `restated` now.
    rule: Literal["published", "restated", "code"] = field(
        default="published", metadata={IN_CONFIG: True}
    )
    rate: Share | None = None
    limit: Share | None = None
    epochs: Annotated[int, Ge(1)] = 1

    resident: ClassVar[bool] = False
    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(weight="mask")}
    state_labels: ClassVar[Mapping[str, str]] = {
        "params": "the person's own model",
        "last_mask": "which numbers of the model were personal",
        "mask": "which numbers of the model are personal",
        "reference": "an earlier model",
    }

    @property
    def share(self) -> float:
        """The rate in force: the option, or the default of the rule."""
        default = 0.25 if self.rule == "code" else 0.05
        return default if self.rate is None else self.rate

    @property
    def cap(self) -> float:
        """The limit in force: the option, or the default of the rule."""
        default = 0.8 if self.rule == "code" else 0.5
        return default if self.limit is None else self.limit

    def client(self, task: Task) -> Selected:
        """Return the state of a new client: the initial model, with nothing personal."""
        start = task.init()
        none = Mask.none(start.layout)
        return Selected(start, none, none, start if self.rule == "code" else None)

    def on_train(
        self, c: Selected, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Selected, Reply]]:
        """Train, send the shared entries, and let the mask grow."""
        start = self.model_on(c, msg, site)
        # With a single part there is nothing to alternate with.
        whole = self.rule == "published" and c.mask.count in (0, c.mask.layout.n)
        if self.rule == "restated" or whole:
            fitted = yield from fit(start, site.train, self.local)
            end, metrics = fitted.params, fitted.metrics
        else:
            end, metrics = yield from self.alternate(start, c.mask, site)
        mask, reference = c.mask, c.reference
        if self.rule != "code":
            mask = c.mask | self.largest(abs(end - start), c.mask, site)
        # In round 0 the reference is the initial model, which is no step of the mask.
        elif reference is not None and site.round > 0 and site.round % EVERY == 0:
            mask, reference = c.mask | self.above(abs(end - reference), c.mask), end
        mine = replace(c, params=end, last_mask=c.mask, mask=mask, reference=reference)
        return mine, reply(model=end - msg["model"], weight=~c.mask, metrics=metrics)

    def alternate(
        self, params: Params, mask: Mask, site: ClientContext
    ) -> Conversation[tuple[Params, Mapping[str, float]]]:
        """Train personal entries, then shared ones, as often as the rule says (LocalAlt)."""
        metrics: Mapping[str, float] = {}
        local = replace(self.local, epochs=1)
        # `local.steps` stands in the place of `local.epochs`, here as everywhere.
        times = 1 if self.local.steps else self.local.epochs
        for _ in range(self.epochs if self.rule == "code" else times):
            for part in (mask, ~mask):
                if part.count:
                    fitted = yield from fit(params, site.train, local, trainable=part)
                    params, metrics = fitted.params, fitted.metrics
        return params, metrics

    def largest(self, change: Params, mask: Mask, site: ClientContext) -> Mask:
        """Return the shared entries of largest change, within the limit (GradSelect)."""
        n = mask.layout.n
        # Forgive the last bit: 0.3 * 10 has to be 3.
        room = math.floor(self.cap * n + 1e-9) - mask.count
        return site.choose(change, min(math.floor(self.share * n + 1e-9), room), among=~mask)

    def above(self, change: Params, mask: Mask) -> Mask:
        """Return the shared entries at or above their tensor's quantile of change (rule `code`)."""
        grown = np.zeros(mask.layout.n, dtype=bool)
        bits, values = mask.bits.numpy(), change.flat.numpy()
        for name, part in mask.layout.slices.items():
            personal, here = bits[part], values[part]
            shared = np.compress(~personal, here)
            position = round((1 - self.share) * len(shared))
            # In float32, as torch's mean of the authors' boolean mask.
            full = float(personal.mean(dtype=np.float32)) > self.cap
            # The authors' code ranks tensors named weight only, and indexes the sorted changes at
            # `position`: a full tensor or an index past the end selects nothing.
            if "weight" not in name or full or position >= len(shared):
                continue
            threshold = np.partition(shared, position)[position]
            grown[part] = (here >= threshold) & ~personal
        return Mask(torch.from_numpy(grown), mask.layout)

    def model_on(self, c: Selected, msg: Message, site: ClientContext) -> Params:
        """Return the client's values of personal entries, and the server's of all others."""
        return c.last_mask.merge(c.params, msg["model"])
