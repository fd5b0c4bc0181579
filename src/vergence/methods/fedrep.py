"""FedRep: each client trains its own head first, then the common body under it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import BodyMethod, Exposure, Global, Layers


@dataclass(frozen=True)
class FedRep(BodyMethod[Layers]):
    """Train the head with the body fixed, then the body with the head fixed; average the bodies.

    Args:
        head_epochs: passes over the data for the head (of `local.steps` each, where given); the
            body is then trained by `local`.
        final_epochs: passes for every client's head after the last round, in place of
            `local.epochs`; 0: none.
        head: the personal parameters (patterns, "fc2.*"); default: the head that the model names,
            otherwise its last layer.
        weights: clients count by their samples, or equally.

    Source: Collins et al., "Exploiting shared representations for personalized federated learning",
    ICML 2021, Algorithm 1; defaults from the authors' code.
    """

    head_epochs: Annotated[int, Ge(1)] = 4
    final_epochs: Annotated[int, Ge(0)] = 10
    head: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("body",)),
        "tune": Exposure(trees=()),
    }
    finish_verbs: ClassVar[tuple[str, ...]] = ("tune",)

    def on_train(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Layers, Reply]]:
        """Train the client's head on the received body, then the body."""
        start = c.params.put(msg["body"])
        passes = self.passes(self.head_epochs)
        with_head = yield from fit(start, site.train, passes, trainable=c.mask)
        fitted = yield from fit(with_head.params, site.train, self.local, trainable=~c.mask)
        update = fitted.params.only(msg["body"]) - msg["body"]
        mine = Layers(fitted.params, c.personal)
        return mine, reply(body=update, weight=fitted.weight(self.weights), metrics=fitted.metrics)

    def passes(self, count: int) -> LocalTraining:
        """Return `local` with `count` passes, or `count` times its steps."""
        if self.local.steps is not None:
            return replace(self.local, steps=count * self.local.steps)
        return replace(self.local, epochs=count)

    def finish(self, s: Global, clients: Sequence[ClientId]) -> Conversation[Global]:
        """Let every client train its head on the final body, once after the last round."""
        if self.final_epochs:
            yield from aggregate("tune", to=clients)
        return s

    def on_tune(
        self, c: Layers, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Layers, Reply]]:
        """Train the client's head; nothing goes back but metrics."""
        local = replace(self.local, epochs=self.final_epochs, steps=None)
        start = c.params.put(msg["body"])
        fitted = yield from fit(start, site.train, local, trainable=c.mask)
        return Layers(fitted.params, c.personal), reply(metrics=fitted.metrics)
