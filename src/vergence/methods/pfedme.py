"""pFedMe: personal models as proximal points of the common one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.identifiers import ClientId
from vergence.core.layers.averaged_statistics import with_statistics_of
from vergence.core.local_training import OptimizerState
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Global, Method
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.training.batches import batches


@tagged("Own")
@dataclass(frozen=True)
class PFedMeState:
    """A client's personal model (theta_i); None before the client first trains."""

    params: Params | None


@dataclass(frozen=True)
class PFedMe(Method[Global, PFedMeState]):
    """For every batch, approach the proximal point theta of w, then move w towards theta.

    theta ~ argmin F_i(theta) + lamda / 2 ||theta - w||^2 by `inner_steps` steps of `local`;
    w <- w - w_lr lamda (w - theta);  server: model <- (1 - beta) model + beta mean(w).

    Args:
        lamda: strength of the pull between personal and common model.
        inner_steps: K, steps towards the proximal point on each batch.
        w_lr: eta, rate of w.
        beta: how far the server moves to the mean.
        weights: clients count equally, or by their samples.

    Source: T Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes",
    NeurIPS 2020, Algorithm 1.
    Differs: the optimiser of the inner steps keeps its momentum over the batches of a turn, and
    theta starts from its last value, where the authors' code starts it at w in every turn.
    """

    lamda: Annotated[float, Gt(0)] = 15.0
    inner_steps: Annotated[int, Ge(1)] = 5
    w_lr: Annotated[float, Gt(0)] = 0.005
    beta: Annotated[float, Gt(0)] = 1.0
    weights: Literal["samples", "equal"] = "equal"

    def client(self, task: Task) -> PFedMeState:
        """Return the state of a new client: no personal model yet."""
        return PFedMeState(None)

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and move towards the mean."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + self.beta * got.mean("model"))

    def on_train(
        self, c: PFedMeState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[PFedMeState, Reply]]:
        """Train theta on each batch, and let w follow it."""
        w, loss, count = msg["model"], 0.0, 0
        theta = w if c.params is None else c.params
        optimiser = OptimizerState({}, 0)
        for rows in batches(site.train, self.local, site.rng.child("order"), site.task):
            inner = replace(self.local, steps=self.inner_steps, batch=len(rows), sampler="shuffle")
            fitted = yield from fit(
                theta, site.train.subset(rows), inner, anchor=(w, self.lamda), optimiser=optimiser
            )
            theta, optimiser = fitted.params, fitted.optimiser
            w = with_statistics_of(site.task, w - self.w_lr * self.lamda * (w - theta), theta)
            loss, count = loss + fitted.metrics["loss"], count + 1
        weight, metrics = site.weight(self.weights), {"loss": loss / count}
        return PFedMeState(theta), reply(model=w - msg["model"], weight=weight, metrics=metrics)

    def model_on(self, c: PFedMeState, msg: Message, site: ClientContext) -> Params:
        """Return the personal model; before the client first trains, the received model."""
        return msg["model"] if c.params is None else c.params
