"""A federated method: frozen options, a server half and a client half, joined by conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.data import Samples
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Message, Reply, reply
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError

S = TypeVar("S")
C = TypeVar("C")


@tagged("Global")
@dataclass(frozen=True)
class Global:
    """Server state of the methods that keep one model."""

    model: Params


@tagged("Nothing")
@dataclass(frozen=True)
class NoState:
    """State of a side that keeps nothing."""


@dataclass(frozen=True)
class Tree:
    """A tree that a method sends, as reports tell of it.

    Attributes:
        title: in words for people who read no code; `{labels}`, `{columns}` (labels and what stands
            beside them) and `{public}` are the task's.
        kind: `update` of parameters (trained minus received); `groups`: one of the models of all
            groups; `values`: sent as they are; `numbers`: a few that everybody tells alone;
            `answers` to questions about made-up samples, and their `gradients`. In split learning
            `smashed` data, `labels`, `public` columns; `own`: what comes back to a client, made of
            its own samples; `loss gradients`: what labels can be computed from.
        everybody: title of `numbers` where everybody's are meant.
        whole: it is the whole model.
    """

    title: str
    kind: Literal[
        "update",
        "groups",
        "values",
        "numbers",
        "answers",
        "gradients",
        "smashed",
        "labels",
        "public",
        "own",
        "loss gradients",
    ] = "update"
    everybody: str = ""
    whole: bool = False


@tagged("Exposed")
@dataclass(frozen=True)
class Exposure:
    """Exposure by one verb: who sees the replies, and the trees, weights and metrics in them.

    A weight `mask` may carry one number besides: the same weight wherever the mask is true. `raw`
    says that the trees are no updates of parameters but made from single samples. `down` names
    the trees that a client is sent, over all messages of the verb; None: what `offer` gives.
    `numbered` names the facts that tell the questions of a round apart, where there are several:
    replies to two of them have nothing in common. `joining` says that a round asks it only of
    those who have no place yet, as setup does: it takes no virtual time. In a `blind` verb's turn
    the client has its state and the message, and none of its samples. `beyond` says what of its
    samples is in a reply that no budget of `privacy.solver` covers: who asks for both is told so.
    """

    reveal: Literal["aggregate", "each"] = "aggregate"
    trees: tuple[str, ...] = ("model",)
    weight: Literal["number", "mask", "per entry"] = "number"
    metrics: tuple[str, ...] = ("loss",)
    raw: bool = False
    down: tuple[str, ...] | None = None
    numbered: tuple[str, ...] = ()
    joining: bool = False
    blind: bool = False
    beyond: str = ""


@tagged("Layers")
@dataclass(frozen=True)
class Layers:
    """A client's parameters, and the names of those that stay with it, for whole layers."""

    params: Params
    personal: tuple[str, ...]

    @property
    def mask(self) -> Mask:
        """The personal entries."""
        return Mask.layers(self.params.layout, *self.personal)


@dataclass(frozen=True)
class Method(NamedOptions, ABC, Generic[S, C]):
    """Base of every method. Subclasses add hyper-parameters as fields, nothing else.

    A method does no I/O, owns no loop over rounds, and touches no optimiser, process or socket:
    it yields what it wants asked (`aggregate`, `collect`) or trained (`fit`).
    """

    local: LocalTraining = LocalTraining()

    renamed_hooks: ClassVar[Mapping[str, str]] = {"beside": "server_part"}
    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure()}
    """Per verb, what leaves a client. The conformance tests search the transcript for more."""
    trees: ClassVar[Mapping[str, Tree]] = {"model": Tree("model", whole=True)}
    """Per name of a tree, what reports call it."""
    keeps: ClassVar[Mapping[str, str]] = {"params": "the person's own model"}
    """Per part of a client's state, what reports call it."""
    pooled: ClassVar[bool] = False
    """True: one site owns everybody's data (the data centre the others are compared with)."""
    served: ClassVar[bool] = False
    """True: clients are served batch by batch, on the CPU, in the numbers the method says."""
    borrows: ClassVar[bool] = False
    """True: the server needs samples of nobody's (`proxies`)."""
    hands_on: ClassVar[bool] = False
    """True: whoever serves hands clients' layers from one to the next, and so has them."""
    keeps_statistics: ClassVar[bool] = False
    """True: running statistics (`Task.statistics`) stay with the clients; others refuse them."""
    setup_verbs: ClassVar[tuple[str, ...]] = ()
    """Verbs that `setup` asks, and no round does. Clients in secure sums take no other for one."""
    finish_verbs: ClassVar[tuple[str, ...]] = ()
    """Verbs that `finish` asks. Clients in secure sums answer no other after the last round."""

    def check(self, task: Task) -> None:
        """Refuse a task this method cannot work with, before anything is trained.

        Raises:
            ConfigError: names what the network or the task lacks.
        """
        if not self.keeps_statistics and (counted := task.statistics()):
            raise ConfigError(
                f"BatchNorm's running statistics ({counted[0]}, ...) would be sent: "
                "vergence.personalize_batch_norm is for fedbn (at_home = 'statistics' averages "
                "scales and shifts) and local_only; use one of these, or vergence.freeze_batch_norm"
            )
        self.server(task)
        self.client(task)

    def tree(self, name: str) -> Tree:
        """Tree of a name; of one that the method does not describe, an update by that name."""
        return {**Method.trees, **self.trees}.get(name, Tree(name))

    def server(self, task: Task) -> S:
        """Return the server's state before the first round; default: the task's initial model."""
        return Global(task.init())  # type: ignore[return-value]

    def client(self, task: Task) -> C:
        """Return the state of a client that never took part; default: it keeps nothing."""
        return NoState()  # type: ignore[return-value]

    def offer(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Return the trees a client downloads: for rounds, evaluation and prediction alike."""
        return {"model": s.model}  # type: ignore[attr-defined]

    def server_part(self, s: S) -> Mapping[str, Params]:
        """Return the server's part of a model whose predictions it makes together with a client.

        It is not downloaded for training; a deployment sends it to a client that it measures.
        Default: nothing, a client predicts alone.
        """
        return {}

    def predicting(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Return the trees that `model_on` takes: a client's download, and the server's part."""
        return {**self.offer(s, client), **self.server_part(s)}

    def serve(
        self, clients: Sequence[ClientId], templates: Mapping[str, Params]
    ) -> Conversation[Reply]:
        """Train a copy of `templates` with a group of clients, which the round gave to `attend`.

        `templates` belongs to this copy of the server, which may change it in place.

        Returns:
            the copy's updates, in the form of a client's reply.
        """
        raise NotImplementedError(f"{type(self).__name__} attends to nobody")
        yield

    @abstractmethod
    def round(self, s: S, cohort: Sequence[ClientId]) -> Conversation[S]:
        """Hold one round with a cohort and return the new server state."""

    def setup(self, s: S, clients: Sequence[ClientId]) -> Conversation[S]:
        """Exchange messages with the clients once, before the first round; default: do nothing."""
        return s
        yield

    def finish(self, s: S, clients: Sequence[ClientId]) -> Conversation[S]:
        """Exchange messages with the clients once, after the last round; default: do nothing."""
        return s
        yield

    def model_on(self, c: C, msg: Message, site: ClientContext) -> Params | Conversation[Params]:
        """Model that this client predicts with; default: the one it was sent."""
        return msg["model"]

    def group_on(self, s: S, client: ClientId, train: Samples) -> int | Conversation[int] | None:
        """Number of the group whose model serves a client, for reports; default: no groups."""
        return None

    def personal(self, c: C) -> Mask | None:
        """Return the mask of a client's personal entries, for reports; default: none kept."""
        return getattr(c, "mask", None)

    def state_records(self, task: Task) -> tuple[type, ...]:
        """Return the dataclasses that this method's states are made of."""
        return type(self.server(task)), type(self.client(task))


class UpdateMethod(Method[S, C]):
    """Base of methods whose clients train from the model they are sent and reply with the update.

    Subclasses have the option `weights`: replies count by samples, or equally.
    """

    weights: Literal["samples", "equal"]

    def on_train(self, c: C, msg: Message, site: ClientContext) -> Conversation[tuple[C, Reply]]:
        """Train from the received model."""
        fitted = yield from fit(msg["model"], site.train, self.local)
        weight = fitted.weight(self.weights)
        return c, reply(model=fitted.params - msg["model"], weight=weight, metrics=fitted.metrics)


@tagged("Moments")
@dataclass(frozen=True)
class Moments:
    """State of an adaptive server: the model, and first and second moments of its updates."""

    model: Params
    first: Params
    second: Params


class ServerOptimizer(UpdateMethod[S, NoState]):
    """Base of methods whose server takes an optimizer's step along the mean update."""

    @abstractmethod
    def step(self, s: S, update: Params) -> S:
        """Return the server's state after a step along the mean update."""

    def round(self, s: S, cohort: Sequence[ClientId]) -> Conversation[S]:
        """Let the cohort train and take the server's step; where nobody replied, take none."""
        got = yield from aggregate("train", to=cohort)
        return self.step(s, got.mean("model")) if got.count else s


class AveragingMethod(Method[Global, C]):
    """Base of methods whose server averages as FedAvg does; they differ in what clients do.

    Replies to `train` have one tree, the update of the server's model.
    """

    @property
    def shared(self) -> str:
        """Name of the tree in replies to `train`."""
        (tree,) = self.exposure["train"].trees
        return tree

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the mean update, entry by entry of those who send it."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean(self.shared))


class LayersMethod(AveragingMethod[C]):
    """Base of methods that share some layers of the network; the others stay with each client.

    Subclasses have the option `weights`: replies count by samples, or equally.
    """

    weights: Literal["samples", "equal"]

    @abstractmethod
    def personal_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the parameters that stay with the clients."""

    def server(self, task: Task) -> Global:
        """Start from the shared layers of the task's initial model."""
        start = task.init()
        return Global(start.only(set(start) - set(self.personal_layers(task))))

    def client(self, task: Task) -> C:
        """Start with the personal layers of the task's initial model."""
        return Layers(task.init(), self.personal_layers(task))  # type: ignore[return-value]

    def offer(self, s: Global, client: ClientId) -> Mapping[str, Params]:
        """Send the shared layers."""
        return {self.shared: s.model}

    def on_train(self, c: C, msg: Message, site: ClientContext) -> Conversation[tuple[C, Reply]]:
        """Train the received layers beside one's own, and keep these."""
        shared = msg[self.shared]
        mine: Any = c
        fitted = yield from fit(mine.params.put(shared), site.train, self.local)
        trees = {self.shared: fitted.params.only(shared) - shared}
        answer = reply(fitted.weight(self.weights), fitted.metrics, **trees)
        return replace(mine, params=fitted.params), answer

    def model_on(self, c: C, msg: Message, site: ClientContext) -> Params | Conversation[Params]:
        """Predict with the received layers beside one's own."""
        return c.params.put(msg[self.shared])  # type: ignore[attr-defined]


class BodyMethod(LayersMethod[C]):
    """Base of methods that share the body of the network; every client has a head of its own.

    Subclasses have the option `head`: patterns of personal parameters; none: the model's own.
    """

    head: tuple[str, ...]

    trees: ClassVar[Mapping[str, Tree]] = {"body": Tree("shared layers (body)")}

    def personal_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the head's parameters."""
        return task.parts(*self.head)[1]
