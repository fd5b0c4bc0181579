"""Per-FedAvg: a common model that is good after one gradient step on a person's data."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.data import Samples
from vergence.core.layers.averaged_statistics import with_statistics_of
from vergence.core.local_training import LocalTraining, OptimizerState, Sampler
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, NoState
from vergence.core.params import Params
from vergence.training.batches import batches, random_subset


@dataclass(frozen=True)
class PerFedAvg(AveragingMethod[NoState]):
    """Train the model that is good after one step of rate alpha on a few own samples.

    Per batch D', with D and D'' drawn anew and g' = grad f(w - alpha grad f(w, D), D'):
    FO: w <- w - beta g';  HF: w <- w - beta (g' - alpha d), where
    d = (grad f(w + delta g', D'') - grad f(w - delta g', D'')) / (2 delta).

    Args:
        variant: `fo` leaves the second derivative out, `hf` estimates its product with g'.
        alpha: rate of the step on D, and of those before a prediction.
        shots: samples of D and of D''; all, where a person has fewer.
        delta: step of the finite difference of gradients; `hf` only.
        steps: steps of rate alpha on the client's training data before a prediction; 0
            predicts with the common model.
        weights: clients count equally, or by their samples.

    Source: Fallah, Mokhtari, Ozdaglar, "Personalized federated learning with theoretical
    guarantees: A model-agnostic meta-learning approach", NeurIPS 2020, Algorithm 1, section 5.
    Differs: the step of w is that of `local`'s optimiser, which is the paper's with plain SGD.
    """

    variant: Literal["fo", "hf"] = "fo"
    alpha: Annotated[float, Gt(0)] = 0.01
    shots: Annotated[int, Ge(1)] = 9
    delta: Annotated[float, Gt(0)] = 0.001
    steps: Annotated[int, Ge(0)] = 1
    weights: Literal["samples", "equal"] = "equal"

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train the received model w on batch after batch, and send the update."""
        w, optimiser, loss, count = msg["model"], OptimizerState({}, 0), 0.0, 0
        for rows in batches(site.train, self.local, site.rng.child("query"), site.task):
            support, third = (
                random_subset(
                    site.train, self.shots, self.local, site.rng.child(name, count), site.task
                )
                for name in ("support", "curvature")
            )
            near = yield from self.adapt(w, support, 1, "shuffle")
            query = site.train.subset(rows)
            correction = None
            if self.variant == "hf":
                correction = yield from self.curvature_correction(w, near, query, third)
            # The gradient is taken at w - alpha grad f; its step is then taken from w.
            local = replace(self.local, steps=1, batch=len(rows), sampler="shuffle")
            fitted = yield from fit(near, query, local, optimiser=optimiser, correction=correction)
            w = with_statistics_of(site.task, w + (fitted.params - near), fitted.params)
            optimiser = fitted.optimiser
            loss, count = loss + fitted.metrics["loss"], count + 1
        weight, metrics = site.weight(self.weights), {"loss": loss / count}
        return c, reply(model=w - msg["model"], weight=weight, metrics=metrics)

    def curvature_correction(
        self, w: Params, near: Params, query: Samples, third: Samples
    ) -> Conversation[Params]:
        """Return -alpha d, the second-order correction of g'; its gradients are in evaluation mode.

        Args:
            w: the common model.
            near: w after its step on D.
            query: D', on which g' is taken.
            third: D'', on which the difference of gradients is taken.
        """
        g = yield from compute(near, query, "gradient")
        # A central difference, so that its error is of second order in delta.
        ahead = yield from compute(w + self.delta * g, third, "gradient")
        behind = yield from compute(w - self.delta * g, third, "gradient")
        return (-self.alpha / (2 * self.delta)) * (ahead - behind)

    def adapt(self, w: Params, data: Samples, steps: int, sampler: Sampler) -> Conversation[Params]:
        """Take plain steps of rate alpha from w, each on as many of these samples as there are."""
        # The paper's inner step is plain gradient descent, whatever optimiser `local` names.
        plain = LocalTraining(
            steps=steps,
            batch=len(data),
            lr=self.alpha,
            optimizer="sgd",
            momentum=0.0,
            weight_decay=0.0,
            clip=0.0,
            sampler=sampler,
        )
        fitted = yield from fit(w, data, plain)
        return fitted.params

    def model_on(self, c: NoState, msg: Message, site: ClientContext) -> Conversation[Params]:
        """Return the common model after `steps` steps on the client's training data."""
        if not self.steps or not len(site.train):
            return msg["model"]
        return (yield from self.adapt(msg["model"], site.train, self.steps, self.local.sampler))
