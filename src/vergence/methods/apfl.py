"""APFL: each client learns how much of its own model to mix into the common one."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Gt

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.layers.averaged_statistics import with_statistics_of
from vergence.core.local_training import OptimizerState
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod
from vergence.core.options import Share
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.training.batches import batches


@tagged("Mixed")
@dataclass(frozen=True)
class Mixed:
    """A client's own model (v_i), and the share of this model in the mix (alpha_i)."""

    params: Params
    alpha: float


@dataclass(frozen=True)
class APFL(AveragingMethod[Mixed]):
    """Predict with alpha v + (1 - alpha) w; train w by its own loss and v by the loss of the mix.

    Per batch, both steps start from the last w and v:  w <- w - lr grad f(w);
    v <- v - lr alpha grad f(mix).  At the start of a turn, if `adaptive`:
    alpha <- alpha - alpha_lr <v - w, grad f(mix)>, clipped to [0, 1].

    Args:
        alpha: share of the client's own model at the start.
        adaptive: learn alpha, one step per turn; false leaves it as it is.
        alpha_lr: learning rate of alpha; default: that of `local`, with which alpha moves slowly.
        weights: clients count by their samples, or equally.

    Source: Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", arXiv 2003.13461,
    Algorithm 1 and section 4.2.
    Differs: steps are those of `local` (momentum or Adam kept over the batches of a turn), where
    the paper takes plain gradient steps.
    """

    alpha: Share = 0.5
    adaptive: bool = True
    alpha_lr: Annotated[float, Gt(0)] | None = None
    weights: Literal["samples", "equal"] = "samples"

    def client(self, task: Task) -> Mixed:
        """Return the state of a new client, whose own model is the task's initial model."""
        return Mixed(task.init(), self.alpha)

    def on_train(
        self, c: Mixed, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Mixed, Reply]]:
        """Train the received model and the client's own side by side, batch by batch."""
        w, v, alpha, loss, count = msg["model"], c.params, c.alpha, 0.0, 0
        of_w = of_v = OptimizerState({}, 0)
        all_rows = replace(self.local, steps=1, sampler="shuffle")
        for rows in batches(site.train, self.local, site.rng.child("order"), site.task):
            data, once = site.train.subset(rows), replace(all_rows, batch=len(rows))
            mix = alpha * v + (1 - alpha) * w
            # Once a turn, before both models move: the gradient is that of the received model's
            # mix.
            if self.adaptive and not count:
                gradient = yield from compute(mix, data, "gradient")
                rate = self.alpha_lr or self.local.learning_rate(site.progress)
                alpha = min(max(alpha - rate * (v - w).dot(gradient), 0.0), 1.0)
                mix = alpha * v + (1 - alpha) * w
            common = yield from fit(w, data, once, optimiser=of_w)
            # The gradient is taken at the mix. Its step, times alpha, is then taken from v.
            own = yield from fit(mix, data, once, optimiser=of_v)
            v = with_statistics_of(site.task, v + alpha * (own.params - mix), own.params)
            w, of_w, of_v = common.params, common.optimiser, own.optimiser
            loss, count = loss + common.metrics["loss"], count + 1
        weight, metrics = site.weight(self.weights), {"loss": loss / count}
        return Mixed(v, alpha), reply(model=w - msg["model"], weight=weight, metrics=metrics)

    def model_on(self, c: Mixed, msg: Message, site: ClientContext) -> Params:
        """Return the mix of the client's own model and the received model."""
        return c.alpha * c.params + (1 - c.alpha) * msg["model"]
