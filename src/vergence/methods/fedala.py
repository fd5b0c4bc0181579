"""FedALA: each client learns, entry by entry, how far to follow the common model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod
from vergence.core.options import Share
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.training.batches import batches, random_subset


@tagged("Aggregating")
@dataclass(frozen=True)
class AdaptiveAggregation:
    """A client's last trained model, and the learned mix W for each entry of the higher layers.

    Before W is first learned, it is 1: the client follows the common model. `turns` counts the
    client's local trainings.
    """

    params: Params
    mix: Params
    turns: int = 0


@dataclass(frozen=True)
class FedALA(AveragingMethod[AdaptiveAggregation]):
    """Start each turn from own + (model - own) W with a learned W in [0, 1]; average as FedAvg.

    W <- clip(W - rate * grad * (model - own)) over batches of the client's data. Lower layers are
    those of the common model. A turn is a client's local training in one round. W is learned from
    the second turn on: in the second turn for `first_epochs` passes, later for one.

    Args:
        rate: eta, learning rate of the mix.
        share: part of the client's data on which the mix is learned, drawn anew each turn.
        first_epochs: passes when the mix is first learned.
        layers: parameters with a mix (patterns, "fc*"); default: the head that the model names,
            otherwise its last layer.
        weights: clients count by their samples, or equally.

    Source: Zhang et al., "FedALA: Adaptive local aggregation for personalized federated learning",
    AAAI 2023, Algorithm 1.
    Differs: the first learning takes a fixed number of passes, where the authors' code goes on
    until losses settle within 0.1, which gaze losses do at once; predictions use the mix as last
    learned.
    """

    rate: Annotated[float, Gt(0)] = 1.0
    share: Share = 0.8
    first_epochs: Annotated[int, Ge(1)] = 10
    layers: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    state_labels: ClassVar[Mapping[str, str]] = {
        "params": "the person's own model",
        "mix": "a mix of models",
    }

    def client(self, task: Task) -> AdaptiveAggregation:
        """Return the state of a new client: the initial model, and a mix W of 1 everywhere."""
        start = task.init()
        higher = start.only(task.parts(*self.layers)[1])
        return AdaptiveAggregation(start, higher * 0.0 + 1.0)

    def on_train(
        self, c: AdaptiveAggregation, msg: Message, site: ClientContext
    ) -> Conversation[tuple[AdaptiveAggregation, Reply]]:
        """Learn the mix, train from the mixed model, and send the update."""
        # Before the first turn own and common model are equal, so W would have no gradient.
        mix, passes = c.mix, {0: 0, 1: self.first_epochs}.get(c.turns, 1)
        for number in range(passes):
            mix = yield from self.learn_mix(c.params, msg["model"], mix, site, number)
        start = mix_models(c.params, msg["model"], mix)
        fitted = yield from fit(start, site.train, self.local)
        update = fitted.params - msg["model"]
        mine = AdaptiveAggregation(fitted.params, mix, c.turns + 1)
        return mine, reply(model=update, weight=fitted.weight(self.weights), metrics=fitted.metrics)

    def learn_mix(
        self, own: Params, model: Params, mix: Params, site: ClientContext, number: int
    ) -> Conversation[Params]:
        """Return the mix after one pass over a share of the client's data."""
        difference, size = (model - own).only(mix), max(round(self.share * len(site.train)), 1)
        data = random_subset(site.train, size, self.local, site.rng.child("share"), site.task)
        once = replace(self.local, epochs=1, steps=None, sampler="shuffle")
        for rows in batches(data, once, site.rng.child("mix", number), site.task):
            gradient = yield from compute(
                mix_models(own, model, mix), data.subset(rows), "gradient"
            )
            moved = mix - self.rate * gradient.only(mix) * difference
            # Algorithm 1, line 11: the element-wise clip keeps the start between both models.
            mix = mix.like(torch.clamp(moved.flat, 0.0, 1.0))
        return mix

    def model_on(self, c: AdaptiveAggregation, msg: Message, site: ClientContext) -> Params:
        """Return the mix of the client's last trained model and the received one."""
        return mix_models(c.params, msg["model"], c.mix)


def mix_models(own: Params, model: Params, mix: Params) -> Params:
    """Return own + (model - own) * mix in the layers with a mix, and `model` elsewhere."""
    mine = own.only(mix)
    return model.put(mine + (model.only(mix) - mine) * mix)
