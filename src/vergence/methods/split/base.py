"""Common base of split learning methods: a client with the first layers, a server with the rest.

A client sends what its layers make of a batch (smashed data) and the batch's labels, gets the
gradient of what it sent, and steps. When the gradient arrives the client computes its layers again:
so no graph has to outlive a message, and a turn can be taken in a new process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from annotated_types import Ge
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, asks, attend, forward, release, silence, step
from vergence.core.data import Batch, Samples
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Method, Tree
from vergence.core.naming import called
from vergence.core.params import Params
from vergence.core.serialization import is_finite
from vergence.core.stages import PULL, SMASHED, Piece, pieces, reading, stages_of
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.training.batches import batches

FRESH = OptimizerState({}, 0)
EXAMPLES = "examples"
"""The column that a client sends after its last batch, in place of labels: how many it has."""
HEAVIEST = 1e9
"""The largest number of examples a client may claim."""
Number = Literal["float32", "float16", "int8"]


@tagged("Parts")
@dataclass(frozen=True)
class SplitParts:
    """Server state: the clients' first layers and the server's own."""

    front: Params
    tail: Params


@tagged("Half")
@dataclass(frozen=True)
class ClientFront:
    """A client between two messages: its layers, where they started, and what is under way.

    `waiting` are the batches whose gradients have not come yet, `drawn` counts those sent. Between
    rounds it holds nothing.
    """

    front: Params | None = None
    start: Params | None = None
    optimiser: OptimizerState = FRESH
    waiting: tuple[Tensor, ...] = ()
    drawn: int = 0


P = TypeVar("P", bound=SplitParts)
H = TypeVar("H", bound=ClientFront)


@dataclass
class ServerBack:
    """A server's copy of its layers while it serves: what they are, and what it has seen."""

    tail: Params
    optimiser: OptimizerState = FRESH
    examples: float = 0.0
    losses: list[float] = field(default_factory=list)

    def copy(self) -> ServerBack:
        """Return the same in memory of its own, to go back to."""
        slots = {name: slot.copy() for name, slot in self.optimiser.slots.items()}
        optimiser = OptimizerState(slots, self.optimiser.steps)
        return ServerBack(self.tail.copy(), optimiser, self.examples, list(self.losses))

    def told(self, weights: str, **trees: Params) -> Reply:
        """Reply with the result of training these layers, and their mean loss."""
        metrics = {"loss": sum(self.losses) / len(self.losses)} if self.losses else {}
        return reply(self.examples if weights == "samples" else 1.0, metrics, **trees)


@dataclass(frozen=True)
class Cutting(Method[P, H]):
    """A method whose network is cut after the stage `cut` (default: the network's own choice)."""

    cut: str = ""

    served: ClassVar[bool] = True
    fixed: ClassVar[bool] = False
    """Whether the clients' layers stay as they were drawn."""
    trees: ClassVar[Mapping[str, Tree]] = {
        "front": Tree("first layers (front)"),
        "tail": Tree("server's layers (tail)"),
        "smashed": Tree("what the first layers make of every picture", "smashed"),
        "labels": Tree("of every picture: {columns}", "labels"),
        "gradient": Tree("how each of these should change", "own"),
    }
    keeps: ClassVar[Mapping[str, str]] = {
        "front": "first layers while training",
        "start": "first layers before training",
    }

    def check(self, task: Task) -> None:
        """Refuse tasks without stages, and to send a server what must stay with its owner."""
        super().check(task)
        self.check_inputs(task)
        told = [name for name in needs(self.back(task)) if name in task.stays]
        if told:
            raise ConfigError(
                f"{called(self)} sends the server what its loss looks at, and here that is the "
                f"pictures themselves ({', '.join(told)}); use splitfed_u, where the loss is the "
                "client's"
            )

    def check_inputs(self, task: Task) -> None:
        """Refuse a task whose networks are not fed stage by stage, or end in a person's prior."""
        if task.own_prior:
            raise ConfigError(
                f"{called(self)} cuts a network in two, and task.personal_prior stands behind the "
                "whole of it, at its owner's; leave the prior out (0), or use a method that trains "
                "whole networks"
            )
        if type(task).inputs is Task.inputs:
            raise ConfigError(
                f"{called(self)} cuts a network in two, and task '{called(task)}' feeds its "
                "network as a whole; use gaze_angle, images or cross_encoder"
            )

    def check_tail(self, task: Task) -> None:
        """Refuse a cut that leaves the server nothing to train."""
        if not self.back(task).init().layout.n:
            last = stages_of(task.network)[-1]
            raise ConfigError(
                f"{called(self)}: a cut after '{self.cut or last}' leaves the server nothing to "
                f"train; name one of {', '.join(stages_of(task.network)[:-1])}"
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
        """Start from the task's initial model."""
        front, tail = (piece.init() for piece in self.parts(task))
        return SplitParts(front, tail)

    def client(self, task: Task) -> Any:
        """Keep nothing between rounds."""
        return ClientFront()

    def offer(self, s: P, client: ClientId) -> Mapping[str, Params]:
        """Send the first layers."""
        return {"front": s.front}

    def server_part(self, s: P) -> Mapping[str, Params]:
        """Predict with the server's layers behind the client's."""
        return {"tail": s.tail}

    def model_on(self, c: H, msg: Message, site: ClientContext) -> Params:
        """Predict with the common first layers, and the server's behind them."""
        return Params.join(msg["front"], msg["tail"])


@dataclass(frozen=True)
class BatchwiseSplit(Cutting[P, H]):
    """A method whose clients and server train batch by batch.

    `number` is how smashed data and their gradients travel. `weights` is how clients are averaged.
    `ahead` is how many batches a client sends before the first gradient comes back: with one or
    more, it computes while the server does, by layers that have missed as many steps.
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
        """Serve everybody at once, then average the copies and the clients' layers."""
        served = yield from attend([[client] for client in cohort], tail=s.tail)
        got = yield from release("release", served.clients, self.offer(s, ""))
        return SplitParts(s.front + got.mean("front"), s.tail + served.sum.mean("tail"))

    def train_copy(
        self, client: ClientId, copy: ServerBack, first: Mapping[str, Params] | None = None
    ) -> Conversation[None]:
        """Train one copy of the server's layers with one client, batch by batch, to its last one.

        The client starts from what it is sent `first`, or from what it is offered. As many batches
        as are under way, 1 + `ahead`, cross in one exchange.
        """
        said = yield from asks(client, "train", [first, *[{}] * self.ahead])
        while True:
            pulls, last = [], None
            for told in said:
                if list(told["labels"]) == [EXAMPLES]:
                    last = told
                    break
                smashed = yield from heard(client, told["smashed"])
                batch = {SMASHED: smashed, **(yield from columns(client, told["labels"], smashed))}
                done = yield from step(
                    copy.tail, copy.optimiser, batch, self.local, self.back, SMASHED
                )
                copy.tail, copy.optimiser = done.params, done.optimiser
                if done.loss is not None:
                    copy.losses.append(done.loss)
                assert done.gradient is not None
                pulls.append({"gradient": closed(done.gradient, self.number)})
            if pulls:
                said = yield from asks(client, "train", pulls)
            if last is not None:
                break
        copy.examples += yield from examples(client, last["labels"])

    def on_train(self, c: H, msg: Message, site: ClientContext) -> Conversation[tuple[H, Reply]]:
        """Step with the gradient that came back, and send what the layers make of the next batch.

        After the last batch, nothing is left to send but the number of examples.
        """
        c, rows = yield from self.advanced(c, msg, site)
        assert c.front is not None
        if rows is None:
            return c, self.end(site)
        batch = site.train.take(rows)
        smashed = yield from forward(c.front, batch, self.front, rows)
        told = labels(batch, self.back(site.task))
        return c, reply(smashed=closed(smashed, self.number), labels=told)

    def end(self, site: ClientContext) -> Reply:
        """Reply of a client after its last batch: only its number of examples."""
        examples = torch.tensor([site.task.weigh(site.train)])
        nothing = closed(torch.empty(0), self.number)
        return reply(smashed=nothing, labels=Params.named(**{EXAMPLES: examples}))

    def advanced(
        self, c: H, msg: Message, site: ClientContext
    ) -> Conversation[tuple[H, Tensor | None]]:
        """Return the client at its next batch, and the rows of that: after the last, None.

        A gradient is of the batch that has waited longest. The layers are computed again as they
        are when it comes, with `ahead` not quite as they were when the batch was sent.
        """
        if "front" in msg.trees:
            start = msg["front"]
            c = replace(c, front=start.copy(), start=start, optimiser=FRESH, waiting=(), drawn=0)
        elif "gradient" in msg.trees:
            assert c.front is not None
            first, *rest = c.waiting
            batch = {**site.train.take(first), PULL: opened(msg["gradient"])}
            done = yield from step(c.front, c.optimiser, batch, self.local, self.front)
            c = replace(c, front=done.params, optimiser=done.optimiser, waiting=tuple(rest))
        rows = nth(site.train, self.local, site, c.drawn)
        if rows is None:
            return c, None
        return replace(c, waiting=(*c.waiting, rows), drawn=c.drawn + 1), rows

    def on_release(self, c: H, msg: Message, site: ClientContext) -> tuple[Any, Reply]:
        """Send what became of the first layers, for the average."""
        assert c.front is not None
        assert c.start is not None
        return ClientFront(), reply(site.weight(self.weights), front=c.front - c.start)


def nth(data: Samples, local: LocalTraining, site: ClientContext, at: int) -> Tensor | None:
    """Return the sample numbers of a batch as a fit would draw them, None after the last.

    Where a run's privacy draws them they are another choice, and may be none.
    """
    if site.draw is not None:
        return site.draw(at)
    for number, rows in enumerate(batches(len(data), local, site.rng.child("batches", 0))):
        if number == at:
            return rows
    return None


def needs(back: Piece) -> tuple[str, ...]:
    """Return the names of the columns that the server's layers and their loss need."""
    return back.task.labels + (back.task.side_inputs if reading(back) else ())


def labels(batch: Batch, back: Piece) -> Params:
    """Return the columns that the server's layers and their loss need."""
    return Params.named(**{name: batch[name] for name in needs(back)})


def closed(values: Tensor, number: Number) -> Params:
    """Return values as they travel: smaller numbers with one scale per tensor.

    The largest entry is 127 as int8, 1 as float16, whose bits travel as int16 so that those of the
    scale may stand beside them. Values that hold NaN or infinity travel as they are, for the
    guards to refuse.
    """
    if number == "float32" or not is_finite(values):
        return Params.named(values=values.float())
    top, kind = (127, torch.int8) if number == "int8" else (1, torch.int16)
    scale = values.abs().amax() / top if values.numel() else torch.zeros(())
    shrunk = values / scale.clamp(min=1e-30)
    small = shrunk.round().to(kind) if number == "int8" else shrunk.half().view(kind)
    return Params.named(values=small, scale=scale.float().reshape(1).view(kind))


def opened(sent: Params) -> Tensor:
    """Undo `closed`, to float32."""
    values = sent["values"]
    if "scale" not in sent:
        return values.float()
    if values.dtype == torch.int16:
        values = values.view(torch.float16)
    return values.float() * sent["scale"].clone().view(torch.float32)


def heard(client: ClientId, sent: Params) -> Conversation[Tensor]:
    """Unpack raw data of a client, or silence the client: no guard looks into raw data."""
    names = list(sent)
    scale = sent["scale"] if names == ["values", "scale"] else None
    # A scale is four bytes, as integers.
    if names != ["values"] and (
        scale is None or scale.numel() * scale.element_size() != 4 or scale.is_floating_point()
    ):
        yield from silence(client, f"names: it sent {', '.join(names) or 'nothing'} as raw data")
    values = opened(sent)
    if len(names) > 1 and not is_finite(values):
        yield from silence(client, "finite: it sent NaN or infinity")
    return values


def columns(client: ClientId, sent: Params, smashed: Tensor) -> Conversation[dict[str, Tensor]]:
    """Read a client's columns beside smashed data, a row for each sample, or silence the client."""
    found = dict(sent)
    if any(not column.ndim or len(column) != len(smashed) for column in found.values()):
        yield from silence(client, f"shape: its columns have not {len(smashed)} rows")
    return found


def examples(client: ClientId, sent: Params) -> Conversation[float]:
    """Read the number of examples that a client says it has, or silence the client."""
    count = float(sent[EXAMPLES]) if list(sent) == [EXAMPLES] and sent.flat.numel() == 1 else -1
    if not 0 <= count <= HEAVIEST:
        yield from silence(client, "weight: it did not say how many examples it has")
    return count
