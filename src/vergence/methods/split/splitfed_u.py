"""U-shaped SplitFed: labels and head pose never leave a client, which has the last layers too."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from vergence.core.client import ClientContext
from vergence.core.conversation import (
    Conversation,
    ask,
    ask_several,
    attend,
    forward,
    quarantine_client,
    release,
    step,
)
from vergence.core.identifiers import ClientId
from vergence.core.local_training import FRESH, OptimizerState
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Method, Tree
from vergence.core.params import Params
from vergence.core.stages import PULL, SMASHED, Piece, pieces, reads_side_inputs, stages_of
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.methods.split.base import (
    BatchwiseSplit,
    ClientFront,
    ServerTail,
    SplitParts,
    pack,
    read_columns,
    read_raw,
    unpack,
)


@tagged("Ends")
@dataclass(frozen=True)
class Ends(SplitParts):
    """Server state: the clients' first and last layers, and the server's between them (`tail`)."""

    end: Params


@tagged("EndHalf", batches_sent="drawn")
@dataclass(frozen=True)
class EndHalf(ClientFront):
    """A client between two messages, with its last layers and their optimiser."""

    end: Params | None = None
    end_start: Params | None = None
    end_optimiser: OptimizerState = FRESH


@dataclass(frozen=True)
class SplitFedU(BatchwiseSplit[Ends, EndHalf]):
    """Serve every client by a copy of the middle layers; average all three parts.

    For every batch: smashed = front(x) goes up, t = middle(smashed) comes down; the client steps
    its end on loss(end(t), y) and sends d loss / d t; the copy steps and returns d loss / d
    smashed; the client steps its front. With any cuts this is FedAvg of the whole network.

    Args:
        cut: the stage after which the server's layers begin; default: the network's own choice.
        last: the stage after which the client's last layers begin; default: all but the last stage.
        number: number format in which everything but labels, which stay, travels.
        ahead: batches that a client sends before the first answer comes back.
        weights: clients count equally or by their samples.

    Source: Vepakomma et al., "Split learning for health", arXiv:1812.00564, Figure 2b; the SplitFed
    gaze thesis, section 5.1 ("add one split").
    Differs: with copies per client, as in SplitFed V1. Gradients through few labels still
    reveal them.
    """

    last: str = ""

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(
            "each", ("smashed", "public"), metrics=(), raw=True, down=("front", "end", "gradient")
        ),
        "judge": Exposure("each", ("pull",), metrics=("loss",), raw=True, down=("t",)),
        "release": Exposure(trees=("front", "end"), metrics=(), down=()),
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        **BatchwiseSplit.trees,
        "end": Tree("last layers (end)"),
        "public": Tree("of every picture: {public}, as numbers", "public"),
        "t": Tree("what the middle layers make of every picture", "own"),
        "pull": Tree("how each of those should change; it tells of {labels}", "loss gradients"),
    }
    state_labels: ClassVar[Mapping[str, str]] = {
        **BatchwiseSplit.state_labels,
        "end": "last layers while training",
        "end_start": "last layers before training",
    }

    def parts(self, task: Task) -> tuple[Piece, ...]:
        """Return the pieces of the network: first, middle and last."""
        stages = stages_of(task.network)
        if len(stages) < 3:
            raise ConfigError(
                f"splitfed_u cuts a network twice, which takes three stages; this one has "
                f"{', '.join(stages)}"
            )
        return pieces(task, self.cut, self.last or stages[-2])

    def check(self, task: Task) -> None:
        """Refuse cuts for which the server would need the head pose or another private column."""
        Method.check(self, task)
        self.check_inputs(task)
        if self.weights == "samples" and self.local.steps is not None:
            raise ConfigError(
                "splitfed_u: with weights = 'samples' the server counts the samples it sees; give "
                "local.epochs instead of local.steps"
            )
        middle = self.back(task)
        private = [name for name in side_input_names(middle) if name not in task.public]
        if private:
            stages = ", ".join(stages_of(middle.network))
            raise ConfigError(
                f"splitfed_u: the server's stages {stages} take what must stay with the client "
                f"({', '.join(private)}); name an earlier stage with last = ..."
            )
        if not self.last_piece(task).init().layout.n:
            raise ConfigError(
                f"splitfed_u: last = '{self.last}' leaves the client no last layers: the server "
                f"would make the predictions; name one of "
                f"{', '.join(stages_of(task.network)[:-1])}"
            )

    def last_piece(self, task: Task) -> Piece:
        """Return the clients' last layers."""
        return self.parts(task)[2]

    def server(self, task: Task) -> Ends:
        """Return the first server state: the task's initial model in three parts."""
        front, middle, end = (piece.init() for piece in self.parts(task))
        return Ends(front, middle, end)

    def client(self, task: Task) -> EndHalf:
        """Return the state of a client without layers: it has none between rounds."""
        return EndHalf()

    def offer(self, s: Ends, client: ClientId) -> Mapping[str, Params]:
        """Return the first and the last layers, which every client downloads."""
        return {"front": s.front, "end": s.end}

    def round(self, s: Ends, cohort: Sequence[ClientId]) -> Conversation[Ends]:
        """Train with all clients at once; then average the server's copies and clients' layers."""
        served = yield from attend([[client] for client in cohort], tail=s.tail)
        got = yield from release("release", served.clients, self.offer(s, ""))
        tail = s.tail + served.sum.mean("tail")
        return Ends(s.front + got.mean("front"), tail, s.end + got.mean("end"))

    def serve(
        self, clients: Sequence[ClientId], templates: Mapping[str, Params]
    ) -> Conversation[Reply]:
        """Train a copy of the middle layers with one client, and return the copy's update.

        The engine calls this for every client of a round.
        """
        copy, client = ServerTail(templates["tail"].copy()), clients[0]
        coming = deque((yield from ask_several(client, "train", [None, *[{}] * self.ahead])))
        while len(smashed := (yield from read_raw(client, (trees := coming.popleft())["smashed"]))):
            batch = {
                SMASHED: smashed,
                **(yield from read_columns(client, trees["public"], smashed)),
            }
            t = yield from forward(copy.tail, batch, self.back)
            answer = yield from ask(client, "judge", {"t": pack(t, self.number)})
            pull = yield from read_raw(client, answer["pull"])
            # Raw data pass no guard: a gradient of another shape would fail in the server's step.
            if pull.shape != t.shape:
                yield from quarantine_client(
                    client, "shape: its gradient is not of what it was sent"
                )
            pulled = {**batch, PULL: pull}
            done = yield from step(
                copy.tail, copy.optimiser, pulled, self.local, self.back, SMASHED
            )
            copy.tail, copy.optimiser = done.params, done.optimiser
            copy.read_example_count += len(smashed)
            assert done.gradient is not None
            pull = {"gradient": pack(done.gradient, self.number)}
            coming.append((yield from ask(client, "train", pull)))
        return copy.training_reply(self.weights, tail=copy.tail - templates["tail"])

    def on_train(
        self, c: EndHalf, msg: Message, site: ClientContext
    ) -> Conversation[tuple[EndHalf, Reply]]:
        """Step the first layers with the returned gradient, and send the next batch's output."""
        if "front" in msg.trees:
            end = msg["end"]
            c = replace(c, end=end.copy(), end_start=end, end_optimiser=FRESH)
        c, rows = yield from self.advance(c, msg, site)
        if rows is None:
            nothing = pack(torch.empty(0), self.number)
            return c, reply(smashed=nothing, public=Params.named())
        assert c.front is not None
        batch = site.train.take(rows)
        smashed = yield from forward(c.front, batch, self.front, rows)
        # The server's layers need to know which rows are equal, and nothing of their values.
        public = Params.named(
            **{
                name: batch[name].unique(return_inverse=True)[1]
                for name in side_input_names(self.back(site.task))
            }
        )
        return c, reply(smashed=pack(smashed, self.number), public=public)

    def on_judge(
        self, c: EndHalf, msg: Message, site: ClientContext
    ) -> Conversation[tuple[EndHalf, Reply]]:
        """Step the last layers on the client's labels, and send the gradient by their input."""
        assert c.end is not None
        batch = {**site.train.take(c.waiting[0]), SMASHED: unpack(msg["t"])}
        done = yield from step(c.end, c.end_optimiser, batch, self.local, self.last_piece, SMASHED)
        assert done.gradient is not None
        assert done.loss is not None
        c = replace(c, end=done.params, end_optimiser=done.optimiser)
        return c, reply(pull=pack(done.gradient, self.number), metrics={"loss": done.loss})

    def on_release(self, c: EndHalf, msg: Message, site: ClientContext) -> tuple[EndHalf, Reply]:
        """Send the updates of the first and last layers, for the averages."""
        assert c.front is not None
        assert c.start is not None
        assert c.end is not None
        assert c.end_start is not None
        weight = site.weight(self.weights)
        return EndHalf(), reply(weight, front=c.front - c.start, end=c.end - c.end_start)

    def model_on(self, c: EndHalf, msg: Message, site: ClientContext) -> Params:
        """Return the common first and last layers, and the server's layers between them."""
        return Params.join(msg["front"], msg["tail"], msg["end"])


def side_input_names(middle: Piece) -> tuple[str, ...]:
    """Return the names of the columns that the server's stages take."""
    return middle.task.side_inputs if reads_side_inputs(middle) else ()
