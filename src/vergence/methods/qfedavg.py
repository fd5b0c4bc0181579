"""q-FedAvg: clients with a higher loss weigh more in the average."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.layers.averaged_statistics import with_statistics_of
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, NoState
from vergence.errors import ConfigError

SMALLEST = 1e-10
"""Smallest loss in the formulas: they raise it to the power q - 1, which may be negative."""


@dataclass(frozen=True)
class QFedAvg(AveragingMethod[NoState]):
    """Average updates so that sum_k F_k^(q + 1) falls: a client of higher loss F_k counts more.

    With d_k = local_k - model and L:
    model <- model + sum_k F_k^q L d_k / sum_k (q F_k^(q - 1) ||L d_k||^2 + L F_k^q).

    Args:
        q: 0 is FedAvg with equal weights; larger q, more even losses.
        lipschitz: L, the factor that turns an update into a gradient; default 1 / learning rate.
            With many local steps or momentum this default is too large, and the model hardly moves:
            give a smaller one.

    Source: Li, Sanjabi, Beirami, Smith, "Fair resource allocation in federated learning",
    ICLR 2020, Algorithm 2.
    """

    local: LocalTraining = LocalTraining(optimizer="sgd")
    q: Annotated[float, Ge(0)] = 1.0
    lipschitz: Annotated[float, Gt(0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.q and self.lipschitz is None and self.local.optimizer != "sgd":
            raise ConfigError(
                f"qfedavg: L = 1 / lr takes local.optimizer = 'sgd', got "
                f"'{self.local.optimizer}'; use sgd, or give lipschitz = NUMBER"
            )

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train from the received model; weigh the update by that model's loss."""
        loss = yield from compute(msg["model"], site.train, "loss")
        fitted = yield from fit(msg["model"], site.train, self.local)
        update = fitted.params - msg["model"]
        scale = self.lipschitz or 1 / self.local.learning_rate(site.progress)
        loss = max(loss, SMALLEST)
        numerator = loss**self.q * scale
        # The server divides by the sum of weights, which are the h_k of Algorithm 2.
        # Running statistics of BatchNorm are no gradient: they add no length, and are averaged.
        gradient = with_statistics_of(site.task, update, update * 0.0)
        weight = self.q * loss ** (self.q - 1) * (scale * gradient.norm()) ** 2 + numerator
        # The weight cancels in the server's weighted sum, which leaves F_k^q L d_k.
        scaled = with_statistics_of(site.task, update * (numerator / weight), update)
        return c, reply(model=scaled, weight=weight, metrics=fitted.metrics)
