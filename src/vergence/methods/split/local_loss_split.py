"""Split learning with a local loss: no gradient comes back, so both sides train at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from torch import Tensor, nn

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, ask_several, forward, step
from vergence.core.data import Batch
from vergence.core.identifiers import ClientId
from vergence.core.local_training import FRESH
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.stages import SMASHED, PartialModel, Piece, Staged
from vergence.core.task import Model, Task
from vergence.errors import ConfigError
from vergence.methods.split.base import (
    BatchwiseSplit,
    ClientFront,
    ServerTail,
    SplitParts,
    examples,
    label_columns,
    nth_batch,
    pack,
    read_columns,
    read_raw,
)

AT_ONCE = 8
"""Batches that a client sends in one exchange: it needs no answer in between."""
GRID = 4
"""Rows and columns to which maps are averaged before the probe."""


@dataclass(frozen=True)
class Probed(Model):
    """The first stages of a network, followed by a linear probe with `outputs` outputs."""

    front: PartialModel
    outputs: int

    def build(self) -> Staged:
        """Return the stages and `probe`, which maps their output to the network's outputs.

        Initial values come from torch's global generator.
        """
        network = self.front.build()
        last = [p for p in network.parameters() if p.ndim > 1][-1]
        maps = last.ndim == 4
        pool = [nn.AdaptiveAvgPool2d(GRID)] if maps else []
        width = last.shape[0] * (GRID**2 if maps else 1)
        probe = nn.Sequential(*pool, nn.Flatten(), nn.Linear(width, self.outputs))
        network.add_module("probe", probe)
        return network


@dataclass(frozen=True)
class Probing(Piece):
    """The first stages, trained by the task's loss on their probe's outputs."""

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the probe's outputs."""
        return module.get_submodule("probe")(super().forward(module, batch))


@dataclass(frozen=True)
class LocalLossSplit(BatchwiseSplit[SplitParts, ClientFront]):
    """Clients train their layers by a probe's loss, the server its layers on smashed data.

    For every batch: smashed = front(x) and the labels go up; the client steps front and probe on
    loss(probe(smashed), y), the server's copy steps on loss(tail(smashed), y). Nothing comes down.
    Then both are averaged, as in SplitFed V1. The probe is dropped in predictions.

    Args:
        cut: the stage after which the network is cut; default: the network's own choice.
        number: how smashed data travel.
        weights: clients count equally or by their samples.
        ahead: 0; other values are refused, because no gradient comes back.

    Source: Han et al., "Accelerating federated learning with split learning on locally generated
    losses", FL-ICML 2021, Algorithm 1; the SplitFed gaze thesis, chapter 6.
    Differs: the probe is a linear layer on 4 x 4 averages.
    """

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure("each", ("smashed", "labels"), metrics=(), raw=True, down=("front",)),
        "release": Exposure(trees=("front",), metrics=(), down=()),
    }

    def check(self, task: Task) -> None:
        """Refuse `ahead`, because no gradient comes back, and a server without layers."""
        super().check(task)
        self.check_tail(task)
        if self.ahead:
            raise ConfigError(
                f"local_loss_split: no gradient comes back; leave out ahead = {self.ahead}"
            )

    def probing(self, task: Task) -> Probing:
        """Return the clients' part of the network with its probe."""
        return probed(self.front(task))

    def server(self, task: Task) -> SplitParts:
        """Return the first server state: the initial model, with a new probe."""
        return SplitParts(self.probing(task).init(), self.back(task).init())

    def serve(
        self, clients: Sequence[ClientId], templates: Mapping[str, Params]
    ) -> Conversation[Reply]:
        """Train a copy of the server's layers on one client's smashed data; return its update.

        The engine calls this for every client of a round.
        """
        copy = ServerTail(templates["tail"].copy())
        client, last = clients[0], None
        replies = yield from ask_several(client, "train", [None])
        while last is None:
            for trees in replies:
                smashed = yield from read_raw(client, trees["smashed"])
                if not len(smashed):
                    last = trees
                    break
                batch = {
                    SMASHED: smashed,
                    **(yield from read_columns(client, trees["labels"], smashed)),
                }
                done = yield from step(copy.tail, copy.optimiser, batch, self.local, self.back)
                copy.tail, copy.optimiser = done.params, done.optimiser
                if done.loss is not None:
                    copy.losses.append(done.loss)
            else:
                replies = yield from ask_several(client, "train", [{}] * AT_ONCE)
        copy.read_example_count = yield from examples(client, last["labels"])
        return copy.training_reply(self.weights, tail=copy.tail - templates["tail"])

    def on_train(
        self, c: ClientFront, msg: Message, site: ClientContext
    ) -> Conversation[tuple[ClientFront, Reply]]:
        """Send the layers' output for the next batch, and step the layers by the probe's loss."""
        if "front" in msg.trees:
            start = msg["front"]
            c = replace(c, front=start.copy(), start=start, optimiser=FRESH, batches_sent=0)
        assert c.front is not None
        rows = nth_batch(site.train, self.local, site, c.batches_sent)
        if rows is None:
            return c, self.last_reply(site)
        batch = site.train.take(rows)
        labels = label_columns(batch, self.back(site.task))
        smashed = yield from forward(bare(c.front), batch, self.front)
        done = yield from step(c.front, c.optimiser, batch, self.local, self.probing)
        c = replace(c, front=done.params, optimiser=done.optimiser, batches_sent=c.batches_sent + 1)
        return c, reply(smashed=pack(smashed, self.number), labels=labels)

    def model_on(self, c: ClientFront, msg: Message, site: ClientContext) -> Params:
        """Return the common first layers without their probe, followed by the server's layers."""
        return Params.join(bare(msg["front"]), msg["tail"])


@lru_cache(maxsize=16)
def probed(front: Piece) -> Probing:
    """Return first layers with a probe of as many outputs as the whole network has."""
    assert isinstance(front.network, PartialModel)
    outputs = front.task.init().layout.shapes[-1][0]
    return Probing(Probed(front.network, outputs), seed=front.seed, whole=front.whole)


def bare(front: Params) -> Params:
    """Return the first layers without their probe."""
    return front.only([name for name in front if not name.startswith("probe.")])
