"""SplitFed V2: one server network visits the clients in random order; their layers are averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vergence.core.conversation import ClientId, Conversation, Silent, attend, release
from vergence.core.params import Params
from vergence.core.splitting import Copy, Half, Parts, Splitting
from vergence.core.wire import Reply


@dataclass(frozen=True)
class SplitFedV2(Splitting[Parts, Half]):
    """Serve one client after the other, in random order, by the same server layers.

    All clients start from the same front; tail goes from client to client and is never averaged;
    front <- mean of front_i.

    Args:
        cut: the stage after which the network is cut; default: the network's own choice.
        number: how smashed data and their gradients travel.
        ahead: batches that a client sends before the first gradient comes back.
        weights: clients' layers count equally or by their samples.

    Source: Thapa et al., "SplitFed: When federated learning meets split learning", AAAI 2022,
    section 3.3 (SFLV2).
    """

    def round(self, s: Parts, cohort: Sequence[ClientId]) -> Conversation[Parts]:
        """Serve everybody in turn, then average the clients' layers."""
        served = yield from attend([cohort], shuffled=True, tail=s.tail)
        got = yield from release("release", served.clients, self.offer(s, ""))
        return Parts(s.front + got.mean("front"), s.tail + served.sum.mean("tail"))

    def serve(self, clients: Sequence[ClientId], held: Mapping[str, Params]) -> Conversation[Reply]:
        """Train the server's layers with everybody; whoever falls silent leaves no trace."""
        copy = Copy(held["tail"].copy())
        for client in clients:
            before = copy.copy()
            try:
                yield from self.lesson(client, copy)
            except Silent:
                copy = before
        return copy.told("equal", tail=copy.tail - held["tail"])
