"""SplitFed V1: the clients' first layers and a server's copy per client, both averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vergence.core.conversation import Conversation
from vergence.core.identifiers import ClientId
from vergence.core.messages import Reply
from vergence.core.params import Params
from vergence.methods.split.base import BatchwiseSplit, ClientFront, ServerTail, SplitParts


@dataclass(frozen=True)
class SplitFed(BatchwiseSplit[SplitParts, ClientFront]):
    """Serve every client by its own copy of the server's layers; average both halves.

    For every batch: smashed = front_i(x); the copy steps on loss(tail_i(smashed), y) and returns
    d loss / d smashed; the client steps with it. Then front <- mean of front_i, tail <- mean of
    tail_i. With any cut this is FedAvg of the whole network.

    Args:
        cut: the stage after which the network is cut; default: the network's own choice.
        number: how smashed data and their gradients travel.
        ahead: batches that a client sends before the first gradient comes back.
        weights: clients count equally (the thesis and the public code) or by their samples.

    Source: Thapa et al., "SplitFed: When federated learning meets split learning", AAAI 2022,
    Algorithms 1 and 2 (SFLV1); the SplitFed gaze thesis, Algorithm 2.1.
    Differs: optimisers last a round, on both sides; the public code makes the server's
    anew for every batch.
    """

    def serve(
        self, clients: Sequence[ClientId], templates: Mapping[str, Params]
    ) -> Conversation[Reply]:
        """Train a copy of the server's layers with one client, and return the copy's update.

        The engine calls this for every client of a round.
        """
        copy = ServerTail(templates["tail"].copy())
        yield from self.train_copy(clients[0], copy)
        return copy.training_reply(self.weights, tail=copy.tail - templates["tail"])
