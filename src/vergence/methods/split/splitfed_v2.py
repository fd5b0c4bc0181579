"""SplitFed V2: one server network visits the clients in random order; their layers are averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vergence.core.conversation import Conversation, NoReplyCounted, attend, release
from vergence.core.identifiers import ClientId
from vergence.core.messages import Reply
from vergence.core.params import Params
from vergence.methods.split.base import BatchwiseSplit, ClientFront, ServerTail, SplitParts


@dataclass(frozen=True)
class SplitFedV2(BatchwiseSplit[SplitParts, ClientFront]):
    """Serve one client after the other, in random order, by the same server layers.

    All clients start from the same front; tail goes from client to client and is never averaged;
    front <- mean of front_i.

    Args:
        cut: the stage after which the network is cut; default: the network's own choice.
        number: how smashed data and their gradients travel.
        ahead: batches that a client sends before the first gradient comes back.
        weights: clients' layers count equally or by their samples; the server's are never averaged.

    Source: Thapa et al., "SplitFed: When federated learning meets split learning", AAAI 2022,
    section 3.3 (SFLV2).
    """

    def round(self, s: SplitParts, cohort: Sequence[ClientId]) -> Conversation[SplitParts]:
        """Train with one client after the other; then average the clients' layers."""
        served = yield from attend([cohort], shuffled=True, tail=s.tail)
        got = yield from release("release", served.clients, self.offer(s, ""))
        return SplitParts(s.front + got.mean("front"), s.tail + served.sum.mean("tail"))

    def serve(
        self, clients: Sequence[ClientId], templates: Mapping[str, Params]
    ) -> Conversation[Reply]:
        """Train the server's layers with each client; a client that drops out leaves no trace.

        The engine calls this in every round, with the clients in random order. Return the update of
        the server's layers.
        """
        copy = ServerTail(templates["tail"].copy())
        for client in clients:
            # A client that drops out half-way must not leave half of its steps in the server's
            # layers.
            before = copy.copy()
            try:
                yield from self.train_copy(client, copy)
            except NoReplyCounted:
                copy = before
        return copy.training_reply("equal", tail=copy.tail - templates["tail"])
