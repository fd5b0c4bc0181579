"""q-FedAvg: whoever the model serves worst pulls it hardest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from vergence.core.conversation import ClientId, Conversation, aggregate, compute, fit
from vergence.core.method import Global, Method, Nothing
from vergence.core.site import Site
from vergence.core.task import Task
from vergence.core.wire import Message, Reply, reply

SMALLEST = 1e-10
"""Losses are raised to powers below 1: a loss of 0 has none."""


@dataclass(frozen=True)
class QFedAvg(Method[Global, Nothing]):
    """Average updates so that sum_k F_k^(q + 1) falls: a client of higher loss F_k counts more.

    With L = 1 / lr and d_k = local_k - model:
    model <- model + sum_k F_k^q L d_k / sum_k (q F_k^(q - 1) ||L d_k||^2 + L F_k^q).

    Args:
        q: 0 is FedAvg with equal weights; larger q, more even losses.

    Source: Li, Sanjabi, Beirami, Smith, "Fair resource allocation in federated learning",
    ICLR 2020, Algorithm 2.
    """

    q: Annotated[float, Ge(0)] = 1.0

    def server(self, task: Task) -> Global:
        """Start from the task's initial model."""
        return Global(task.init())

    def client(self, task: Task) -> Nothing:
        """Keep nothing between rounds."""
        return Nothing()

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the normalised sum of updates."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean("model"))

    def on_train(self, c: Nothing, msg: Message, site: Site) -> Conversation[tuple[Nothing, Reply]]:
        """Train from the received model; weigh the update by that model's loss."""
        loss = yield from compute(msg["model"], site.train, "loss")
        fitted = yield from fit(msg["model"], site.train, self.local)
        update, scale = fitted.params - msg["model"], 1 / self.local.rate(site.progress)
        loss = max(loss, SMALLEST)
        numerator = loss**self.q * scale
        weight = self.q * loss ** (self.q - 1) * (scale * update.norm()) ** 2 + numerator
        sent = update * (numerator / weight)
        return c, reply(model=sent, weight=weight, metrics=fitted.metrics)
