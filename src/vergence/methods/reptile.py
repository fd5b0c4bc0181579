"""Reptile: the common model moves towards models trained on a few samples of a person."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.identifiers import ClientId
from vergence.core.layers.averaged_statistics import with_statistics_of
from vergence.core.local_training import LocalTraining, Sampler
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Global, Method, NoState
from vergence.core.params import Params
from vergence.training.batches import random_subset


@dataclass(frozen=True)
class Reptile(Method[Global, NoState]):
    """Adapt to episodes of a few samples, and move part of the way to each adapted model.

    Per episode D: w <- w + rate (U(w, D) - w), where U takes `inner_steps` steps of `local` on D;
    server: model <- model + server_lr mean(w_i - model).

    Args:
        episodes: number of episodes in a client's training in a round.
        shots: samples of an episode; all, where a person has fewer.
        inner_steps: k, steps on an episode, in batches of `local.batch`.
        rate: epsilon, the share of the way from w to the end of an episode.
        server_lr: how far the server moves to the mean.
        steps: steps on the client's training data before a prediction; 0 predicts with the common
            model.
        weights: clients count equally, or by their samples.

    Source: Nichol, Achiam, Schulman, "On first-order meta-learning algorithms", 2018,
    arXiv 1803.02999, Algorithm 1 and its batched version.
    Differs: a person is a task, and all episodes of a turn run between two messages.
    """

    episodes: Annotated[int, Ge(1)] = 10
    shots: Annotated[int, Ge(1)] = 9
    inner_steps: Annotated[int, Ge(1)] = 5
    rate: Annotated[float, Gt(0)] = 0.5
    server_lr: Annotated[float, Gt(0)] = 1.0
    steps: Annotated[int, Ge(0)] = 5
    weights: Literal["samples", "equal"] = "equal"

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort run its episodes, and move the model by the mean update."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + self.server_lr * got.mean("model"))

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Move the received model w in episode after episode, and send the update."""
        w, loss = msg["model"], 0.0
        for number in range(self.episodes):
            episode = random_subset(
                site.train, self.shots, self.local, site.rng.child("episode", number), site.task
            )
            fitted = yield from fit(w, episode, self.inner(self.inner_steps, "shuffle"))
            moved = w + self.rate * (fitted.params - w)
            w = with_statistics_of(site.task, moved, fitted.params)
            loss += fitted.metrics["loss"] / self.episodes
        weight = site.weight(self.weights)
        return c, reply(model=w - msg["model"], weight=weight, metrics={"loss": loss})

    def inner(self, steps: int, sampler: Sampler) -> LocalTraining:
        """Return the settings `local` with this number of steps, and this sampler."""
        return replace(self.local, steps=steps, sampler=sampler)

    def model_on(self, c: NoState, msg: Message, site: ClientContext) -> Conversation[Params]:
        """Return the common model after `steps` steps on the client's training data."""
        if not self.steps or not len(site.train):
            return msg["model"]
        # The schedule of a run ends at a hundredth of the rate; adapting takes the whole of it.
        local = replace(self.inner(self.steps, self.local.sampler), schedule="constant")
        fitted = yield from fit(msg["model"], site.train, local)
        return fitted.params
