"""Base of split learning methods: clients have the first layers, the server has the rest.

A client sends its layers' output for a batch (smashed data) and the batch's labels, gets the
gradient of that output, and steps. When the gradient arrives the client computes its layers again:
so no graph has to outlive a message, and a turn can be taken in a new process.

Used in `audit`, `engine`, `methods`, `model_tools` and `reports`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from annotated_types import Ge
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import (
    Conversation,
    ask_several,
    attend,
    forward,
    quarantine_client,
    release,
    step,
)
from vergence.core.data import Batch, Samples
from vergence.core.identifiers import ClientId
from vergence.core.local_training import FRESH, LocalTraining, OptimizerState
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Method, Tree
from vergence.core.naming import registry_name
from vergence.core.params import Params
from vergence.core.serialization import is_finite
from vergence.core.stages import PULL, SMASHED, Piece, pieces, reads_side_inputs, stages_of
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.training.batches import batches

EXAMPLES = "examples"
"""The column that a client sends after its last batch in place of labels: its sample count."""
# The client weighs itself: without a limit a malicious one could outweigh all others in the
# average.
HEAVIEST = 1e9
"""The largest number of examples a client may claim."""
Number = Literal["float32", "float16", "int8"]


@tagged("Parts")
@dataclass(frozen=True)
class SplitParts:
    """Server state: the clients' first layers and the server's own."""

    front: Params
    tail: Params


@tagged("Half", batches_sent="drawn")
@dataclass(frozen=True)
class ClientFront:
    """A client between two messages: its layers, their start, and the batches under way.

    `waiting` are the batches whose gradients have not arrived, `batches_sent` counts all that were
    sent. Between rounds everything is empty.
    """

    front: Params | None = None
    start: Params | None = None
    optimiser: OptimizerState = FRESH
    waiting: tuple[Tensor, ...] = ()
    batches_sent: int = 0


P = TypeVar("P", bound=SplitParts)
H = TypeVar("H", bound=ClientFront)


@dataclass
class ServerTail:
    """A server's copy of its layers during a round, with its example count and losses."""

    tail: Params
    optimiser: OptimizerState = FRESH
    read_example_count: float = 0.0
    losses: list[float] = field(default_factory=list)

    def copy(self) -> ServerTail:
        """Return a copy in its own memory, to which the server can return."""
        # Steps change moments in place, so they are copied as the layers are.
        slots = {name: slot.copy() for name, slot in self.optimiser.slots.items()}
        optimiser = OptimizerState(slots, self.optimiser.steps)
        return ServerTail(self.tail.copy(), optimiser, self.read_example_count, list(self.losses))

    def training_reply(self, weights: str, **trees: Params) -> Reply:
        """Return the reply with trained trees and their mean loss."""
        metrics = {"loss": sum(self.losses) / len(self.losses)} if self.losses else {}
        return reply(self.read_example_count if weights == "samples" else 1.0, metrics, **trees)


@dataclass(frozen=True)
class Cutting(Method[P, H]):
    """A method whose network is cut after the stage `cut` (default: the network's own choice)."""

    cut: str = ""

    served: ClassVar[bool] = True
    fixed: ClassVar[bool] = False
    """Whether the clients' layers stay as they were initialised."""
    unfit_for_statistics: ClassVar[str] = (
        "the parts of its network compute every batch more than once, and each time would count"
    )
    trees: ClassVar[Mapping[str, Tree]] = {
        "front": Tree("first layers (front)"),
        "tail": Tree("server's layers (tail)"),
        "smashed": Tree("what the first layers make of every picture", "smashed"),
        "labels": Tree("of every picture: {columns}", "labels"),
        "gradient": Tree("how each of these should change", "own"),
    }
    state_labels: ClassVar[Mapping[str, str]] = {
        "front": "first layers while training",
        "start": "first layers before training",
    }

    def check(self, task: Task) -> None:
        """Refuse networks without stages, and tasks whose labels must stay with their owner."""
        super().check(task)
        self.check_inputs(task)
        private = [name for name in needed_columns(self.back(task)) if name in task.never_sent]
        if private:
            raise ConfigError(
                f"{registry_name(self)} sends the server the inputs of its loss, and here these "
                f"are the pictures themselves ({', '.join(private)}); use splitfed_u, which "
                "computes the loss on the client"
            )

    def check_inputs(self, task: Task) -> None:
        """Refuse a task that does not feed its network by stages, or that has a personal prior."""
        if task.own_prior:
            raise ConfigError(
                f"{registry_name(self)} cuts a network in two, and task.personal_prior is applied "
                "on the client after the whole of it; leave the prior out (0), or use a method "
                "that trains whole networks"
            )
        if task.augments:
            raise ConfigError(
                f"{registry_name(self)} cuts a network in two, and the task's transform is applied "
                "before the whole of it; leave it out, or use a method that trains whole networks"
            )
        if type(task).inputs is Task.inputs:
            raise ConfigError(
                f"{registry_name(self)} cuts a network in two, and task '{registry_name(task)}' "
                "feeds its network as a whole; use gaze_angle, images or cross_encoder"
            )

    def check_tail(self, task: Task) -> None:
        """Refuse a cut that leaves the server nothing to train."""
        if not self.back(task).init().layout.n:
            last = stages_of(task.network)[-1]
            raise ConfigError(
                f"{registry_name(self)}: a cut after '{self.cut or last}' leaves the server "
                f"nothing to train; name one of {', '.join(stages_of(task.network)[:-1])}"
            )

    def parts(self, task: Task) -> tuple[Piece, ...]:
        """Return the pieces of the network: the clients' first, then the server's."""
        return pieces(task, self.cut)

    def front(self, task: Task) -> Piece:
        """Return the clients' part of the network."""
        return self.parts(task)[0]

    def back(self, task: Task) -> Piece:
        """Return the server's part of the network."""
        return self.parts(task)[1]

    def server(self, task: Task) -> Any:
        """Return the first server state: the task's initial model, cut in two."""
        front, tail = (piece.init() for piece in self.parts(task))
        return SplitParts(front, tail)

    def client(self, task: Task) -> Any:
        """Return the state of a client without layers: it has none between rounds."""
        return ClientFront()

    def offer(self, s: P, client: ClientId) -> Mapping[str, Params]:
        """Return the first layers, which every client downloads."""
        return {"front": s.front}

    def server_part(self, s: P) -> Mapping[str, Params]:
        """Return the server's layers, which predictions need after the client's."""
        return {"tail": s.tail}

    def model_on(self, c: H, msg: Message, site: ClientContext) -> Params:
        """Return the common first layers, followed by the server's layers."""
        return Params.join(msg["front"], msg["tail"])


@dataclass(frozen=True)
class BatchwiseSplit(Cutting[P, H]):
    """A method whose clients and server train batch by batch.

    `number` is the number format in which smashed data and gradients travel. `weights` says how
    clients count in averages. `ahead` is the number of batches that a client sends before the first
    gradient comes back. With one or more, client and server compute at the same time, and a batch's
    output comes from layers that lack the steps of the `ahead` batches before it.
    """

    number: Number = "float32"
    weights: Literal["equal", "samples"] = "equal"
    ahead: Annotated[int, Ge(0)] = 0

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(
            "each", ("smashed", "labels"), metrics=(), raw=True, down=("front", "gradient")
        ),
        "release": Exposure(trees=("front",), metrics=(), down=()),
    }

    def round(self, s: P, cohort: Sequence[ClientId]) -> Conversation[Any]:
        """Train with all clients at once; then average the server's copies and clients' layers."""
        served = yield from attend([[client] for client in cohort], tail=s.tail)
        got = yield from release("release", served.clients, self.offer(s, ""))
        return SplitParts(s.front + got.mean("front"), s.tail + served.sum.mean("tail"))

    def train_copy(
        self, client: ClientId, copy: ServerTail, first: Mapping[str, Params] | None = None
    ) -> Conversation[None]:
        """Train one copy of the server's layers with one client, until its last batch.

        The client starts from the trees `first`, or from the offer. Each exchange carries the
        1 + `ahead` batches that are under way.
        """
        replies = yield from ask_several(client, "train", [first, *[{}] * self.ahead])
        while True:
            pulls, last = [], None
            for trees in replies:
                if list(trees["labels"]) == [EXAMPLES]:
                    last = trees
                    break
                smashed = yield from read_raw(client, trees["smashed"])
                batch = {
                    SMASHED: smashed,
                    **(yield from read_columns(client, trees["labels"], smashed)),
                }
                done = yield from step(
                    copy.tail, copy.optimiser, batch, self.local, self.back, SMASHED
                )
                copy.tail, copy.optimiser = done.params, done.optimiser
                if done.loss is not None:
                    copy.losses.append(done.loss)
                assert done.gradient is not None
                pulls.append({"gradient": pack(done.gradient, self.number)})
            if pulls:
                replies = yield from ask_several(client, "train", pulls)
            if last is not None:
                break
        copy.read_example_count += yield from examples(client, last["labels"])

    def on_train(self, c: H, msg: Message, site: ClientContext) -> Conversation[tuple[H, Reply]]:
        """Step with the returned gradient, and send the layers' output for the next batch.

        After the last batch the client sends only its number of examples.
        """
        c, rows = yield from self.advance(c, msg, site)
        assert c.front is not None
        if rows is None:
            return c, self.last_reply(site)
        batch = site.train.take(rows)
        smashed = yield from forward(c.front, batch, self.front, rows)
        labels = label_columns(batch, self.back(site.task))
        return c, reply(smashed=pack(smashed, self.number), labels=labels)

    def last_reply(self, site: ClientContext) -> Reply:
        """Return a client's reply after its last batch: only its number of examples."""
        examples = torch.tensor([site.task.weigh(site.train)])
        nothing = pack(torch.empty(0), self.number)
        return reply(smashed=nothing, labels=Params.named(**{EXAMPLES: examples}))

    def advance(
        self, c: H, msg: Message, site: ClientContext
    ) -> Conversation[tuple[H, Tensor | None]]:
        """Return the client at its next batch, and the rows of that batch; None after the last.

        A gradient belongs to the batch that has waited longest. The layers compute that batch again
        when its gradient arrives; with `ahead` they have moved since the batch was sent.
        """
        if "front" in msg.trees:
            start = msg["front"]
            # A copy: steps change parameters in place, and the update needs the start.
            c = replace(
                c, front=start.copy(), start=start, optimiser=FRESH, waiting=(), batches_sent=0
            )
        elif "gradient" in msg.trees:
            assert c.front is not None
            first, *rest = c.waiting
            batch = {**site.train.take(first), PULL: unpack(msg["gradient"])}
            done = yield from step(c.front, c.optimiser, batch, self.local, self.front)
            c = replace(c, front=done.params, optimiser=done.optimiser, waiting=tuple(rest))
        rows = nth_batch(site.train, self.local, site, c.batches_sent)
        if rows is None:
            return c, None
        return replace(c, waiting=(*c.waiting, rows), batches_sent=c.batches_sent + 1), rows

    def on_release(self, c: H, msg: Message, site: ClientContext) -> tuple[Any, Reply]:
        """Send the update of the first layers, for the average."""
        assert c.front is not None
        assert c.start is not None
        return ClientFront(), reply(site.weight(self.weights), front=c.front - c.start)


def nth_batch(data: Samples, local: LocalTraining, site: ClientContext, at: int) -> Tensor | None:
    """Return the sample numbers of batch `at` as `fit` would draw them; None after the last.

    Under DP-SGD the privacy solver draws the batches (`site.draw`), and a batch may be empty.
    """
    if site.draw is not None:
        return site.draw(at)
    for number, rows in enumerate(batches(data, local, site.rng.child("batches", 0), site.task)):
        # Values that hold NaN or infinity travel as they are, for the guards to refuse.
        if number == at:
            return rows
    return None


def needed_columns(back: Piece) -> tuple[str, ...]:
    """Return the names of the columns that the server's layers and their loss need."""
    return back.task.labels + (back.task.side_inputs if reads_side_inputs(back) else ())


def label_columns(batch: Batch, back: Piece) -> Params:
    """Return the columns that the server's layers and their loss need."""
    return Params.named(**{name: batch[name] for name in needed_columns(back)})


def pack(values: Tensor, number: Number) -> Params:
    """Return values in the number format of the wire: smaller numbers, one scale per tensor.

    The largest entry becomes 127 as int8, and 1 as float16, whose bits travel as int16.
    """
    if number == "float32" or not is_finite(values):
        return Params.named(values=values.float())
    # int16 has the bits of float16, and those of the float32 scale fit behind them: one tree has
    # one type.
    top, kind = (127, torch.int8) if number == "int8" else (1, torch.int16)
    scale = values.abs().amax() / top if values.numel() else torch.zeros(())
    # A batch of zeros has a scale of 0.
    shrunk = values / scale.clamp(min=1e-30)
    small = shrunk.round().to(kind) if number == "int8" else shrunk.half().view(kind)
    return Params.named(values=small, scale=scale.float().reshape(1).view(kind))


def unpack(sent: Params) -> Tensor:
    """Return the float32 values of what `pack` returned."""
    values = sent["values"]
    if "scale" not in sent:
        return values.float()
    if values.dtype == torch.int16:
        values = values.view(torch.float16)
    return values.float() * sent["scale"].clone().view(torch.float32)


def read_raw(client: ClientId, sent: Params) -> Conversation[Tensor]:
    """Unpack raw data of a client; exclude the client if they are malformed."""
    names = list(sent)
    scale = sent["scale"] if names == ["values", "scale"] else None
    # A scale is four bytes, as integers. No guard looks into raw data, so a malicious client could
    # send any trees here.
    if names != ["values"] and (
        scale is None or scale.numel() * scale.element_size() != 4 or scale.is_floating_point()
    ):
        yield from quarantine_client(
            client, f"names: it sent {', '.join(names) or 'nothing'} as raw data"
        )
    values = unpack(sent)
    # Small numbers become infinite only when a malicious scale multiplies them, after the guards.
    if len(names) > 1 and not is_finite(values):
        yield from quarantine_client(client, "finite: it sent NaN or infinity")
    return values


def read_columns(
    client: ClientId, sent: Params, smashed: Tensor
) -> Conversation[dict[str, Tensor]]:
    """Read a client's columns, one row per sample; exclude the client if they do not fit."""
    columns = dict(sent)
    if any(not column.ndim or len(column) != len(smashed) for column in columns.values()):
        yield from quarantine_client(client, f"shape: its columns have not {len(smashed)} rows")
    return columns


def examples(client: ClientId, sent: Params) -> Conversation[float]:
    """Read a client's claimed number of examples; exclude the client if it is not a count."""
    count = float(sent[EXAMPLES]) if list(sent) == [EXAMPLES] and sent.flat.numel() == 1 else -1
    if not 0 <= count <= HEAVIEST:
        yield from quarantine_client(client, "weight: it did not say how many examples it has")
    return count
