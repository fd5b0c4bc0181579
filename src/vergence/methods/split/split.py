"""Split learning: a network is cut in two, and its first half goes from client to client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, NoReplyCounted, ask, attend
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.methods.split.base import BatchwiseSplit, ClientFront, ServerTail, SplitParts


@dataclass(frozen=True)
class SplitLearning(BatchwiseSplit[SplitParts, ClientFront]):
    """Serve one client after the other; each starts from the layers of its predecessor.

    Args:
        cut: the stage after which the network is cut; default: the network's own choice.
        number: how smashed data and their gradients travel.
        ahead: batches that a client sends before the first gradient comes back.
        weights: `equal`; other values are refused, because nothing is averaged.

    Source: Gupta & Raskar, "Distributed learning of deep neural network over multiple agents",
    Journal of Network and Computer Applications 2018, Algorithm 1; methods design note, 3.15.
    Differs: the server relays the clients' layers, and so sees them; the server's optimiser lasts
    a round, a client's optimiser its own turn.
    """

    passes_layers_on: ClassVar[bool] = True
    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": BatchwiseSplit.exposure["train"],
        "hand_over": Exposure("each", trees=("front",), metrics=(), down=()),
    }

    def check(self, task: Task) -> None:
        """Refuse the option `weights`, because nothing is averaged."""
        super().check(task)
        if self.weights != "equal":
            raise ConfigError("split averages no clients; leave out weights")

    def round(self, s: SplitParts, cohort: Sequence[ClientId]) -> Conversation[SplitParts]:
        """Train with one client after the other."""
        served = yield from attend([cohort], front=s.front, tail=s.tail)
        return SplitParts(s.front + served.sum.mean("front"), s.tail + served.sum.mean("tail"))

    def serve(
        self, clients: Sequence[ClientId], templates: Mapping[str, Params]
    ) -> Conversation[Reply]:
        """Train both halves with each client; a client that drops out leaves no trace.

        The engine calls this in every round. Return the updates of both halves.
        """
        copy, front = ServerTail(templates["tail"].copy()), templates["front"]
        for client in clients:
            # A client that drops out half-way must not leave half of its steps in the server's
            # layers.
            before = copy.copy()
            try:
                yield from self.train_copy(client, copy, {"front": front})
                front = front + (yield from ask(client, "hand_over", {}, templates))["front"]
            except NoReplyCounted:
                copy = before
        return copy.training_reply(
            "equal", front=front - templates["front"], tail=copy.tail - templates["tail"]
        )

    def on_hand_over(
        self, c: ClientFront, msg: Message, site: ClientContext
    ) -> tuple[ClientFront, Reply]:
        """Send the layers for the next client."""
        state, release = self.on_release(c, msg, site)
        return state, Reply(release.trees)
