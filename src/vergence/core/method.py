"""A federated method: frozen options, a server half and a client half, joined by conversations.

Used in most packages.
"""

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
    """State of a client or server that keeps nothing."""


@dataclass(frozen=True)
class Tree:
    """Description of a tree that a method sends, for reports.

    Attributes:
        title: name in plain words; `{labels}`, `{columns}` (labels and side inputs) and `{public}`
            stand for columns of the task.
        kind: `update` of parameters (trained minus received); `groups`: one of the models of all
            groups; `values`: sent as they are; `numbers`: a few numbers that each client sends on
            its own; `answers`: outputs for generated samples, and their `gradients`. In split
            learning `smashed` data, `labels`, `public` columns; `own`: what a client gets back,
            computed from its own samples; `loss gradients`, from which labels can be computed.
        everybody: title of the `numbers` of all clients together.
        whole: the tree is the whole model.
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
    """What one verb exposes: who sees the replies, and the trees, weights and metrics in them.

    Attributes:
        reveal: `aggregate`: the server sees only the weighted sum; `each`: it sees every reply.
        trees: names of the trees in a reply.
        weight: kind of a reply's weight. A `mask` may come with one number, which is the weight
            wherever the mask is true.
        metrics: names of the metrics in a reply.
        raw: the trees are computed from single samples and are not updates of parameters.
        down: names of the trees that a client receives in all messages of the verb; None: the trees
            that `offer` returns.
        numbered: names of the facts that distinguish several requests of a round.
        joining: a round asks this verb only of clients that are new, as setup does, and the turn
            takes no virtual time.
        blind: in a turn of this verb the client has its state and the message, but no samples.
        beyond: text on what a reply reveals of samples outside the budget of `privacy.solver`;
            empty: nothing. A run that uses this verb with `privacy.solver` shows the text.
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
    """A client's parameters, and the names of the layers that stay with the client."""

    params: Params
    personal: tuple[str, ...]

    @property
    def mask(self) -> Mask:
        """The mask of the personal layers."""
        return Mask.layers(self.params.layout, *self.personal)


@dataclass(frozen=True)
class Method(NamedOptions, ABC, Generic[S, C]):
    """Base of every method. Subclasses have hyper-parameters as fields, and no other state.

    A method does no I/O, has no loop over rounds, and uses no optimiser, process or socket: it
    yields requests to clients (`aggregate`, `collect`) and for training (`fit`).
    """

    local: LocalTraining = LocalTraining()

    renamed_hooks: ClassVar[Mapping[str, str]] = {
        "beside": "server_part",
        "keeps": "state_labels",
        "predicting": "prediction_trees",
        "borrows": "needs_public_data",
        "hands_on": "passes_layers_on",
    }
    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure()}
    """What leaves a client, by verb. Conformance tests check that nothing else leaves it."""
    trees: ClassVar[Mapping[str, Tree]] = {"model": Tree("model", whole=True)}
    """Descriptions of the trees for reports, by name."""
    state_labels: ClassVar[Mapping[str, str]] = {"params": "the person's own model"}
    """Descriptions of the parts of a client's state for reports, by name."""
    pooled: ClassVar[bool] = False
    """True: one site has everybody's data, as the data centre of comparisons."""
    served: ClassVar[bool] = False
    """True: the server serves clients batch by batch, on the CPU, in the method's own groups."""
    needs_public_data: ClassVar[bool] = False
    """True: the server needs public samples (`proxies`)."""
    passes_layers_on: ClassVar[bool] = False
    """True: the server passes clients' layers from one client to the next, and so sees them."""
    keeps_statistics: ClassVar[bool] = False
    """True: running statistics (`Task.statistics`) stay with the clients; others refuse them."""
    setup_verbs: ClassVar[tuple[str, ...]] = ()
    """Verbs that only `setup` uses; clients in secure sums accept no other verb in setup."""
    finish_verbs: ClassVar[tuple[str, ...]] = ()
    """Verbs of `finish`; clients in secure sums answer no other verb after the last round."""

    def check(self, task: Task) -> None:
        """Refuse a task with which this method cannot work, before training begins.

        Raises:
            ConfigError: names what the network or the task lacks.
        """
        if not self.keeps_statistics and (counted := task.statistics()):
            raise ConfigError(
                f"BatchNorm's running statistics ({counted[0]}, ...) would be sent: "
                "vergence.personalize_batch_norm is for fedbn (at_home = 'statistics' averages "
                "scales and shifts) and local_only; use one of these, or vergence.freeze_batch_norm"
            )
        # Both refuse what does not fit, such as a head that cannot be split from its network.
        self.server(task)
        self.client(task)

    def tree(self, name: str) -> Tree:
        """Return the description of a tree; by default it is an update with its own name."""
        return {**Method.trees, **self.trees}.get(name, Tree(name))

    def server(self, task: Task) -> S:
        """Return the server's state before the first round; default: the task's initial model."""
        return Global(task.init())  # type: ignore[return-value]

    def client(self, task: Task) -> C:
        """Return the state of a client that has not taken part yet; default: an empty one."""
        return NoState()  # type: ignore[return-value]

    def offer(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Return the trees a client downloads: for rounds, evaluation and prediction alike."""
        return {"model": s.model}  # type: ignore[attr-defined]

    def server_part(self, s: S) -> Mapping[str, Params]:
        """Return the server's part of a model that predicts on server and client together.

        Clients do not download it for training; a deployment sends it to a client that it measures.
        Default: no tree, as a client predicts alone.
        """
        return {}

    def prediction_trees(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Return the trees that `model_on` reads: a client's download, and the server's part."""
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
        # Never reached: it makes this function a generator, as overrides are.
        yield

    @abstractmethod
    def round(self, s: S, cohort: Sequence[ClientId]) -> Conversation[S]:
        """Run one round with a cohort and return the new server state."""

    def setup(self, s: S, clients: Sequence[ClientId]) -> Conversation[S]:
        """Exchange messages with the clients once, before the first round; default: do nothing."""
        return s
        # Never reached: it makes this function a generator, as overrides are.
        yield

    def finish(self, s: S, clients: Sequence[ClientId]) -> Conversation[S]:
        """Exchange messages with the clients once, after the last round; default: do nothing."""
        return s
        # Never reached: it makes this function a generator, as overrides are.
        yield

    def model_on(self, c: C, msg: Message, site: ClientContext) -> Params | Conversation[Params]:
        """Return the model with which this client predicts; default: the model that it received."""
        return msg["model"]

    def group_on(self, s: S, client: ClientId, train: Samples) -> int | Conversation[int] | None:
        """Return the number of the client's group, for reports; default: no groups."""
        return None

    def personal(self, c: C) -> Mask | None:
        """Return the mask of a client's personal entries, for reports; default: its `mask`."""
        return getattr(c, "mask", None)

    def state_records(self, task: Task) -> tuple[type, ...]:
        """Return the dataclasses that this method's states are made of."""
        return type(self.server(task)), type(self.client(task))


class UpdateMethod(Method[S, C]):
    """Base of methods whose clients train the received model and reply with the update.

    Subclasses have the option `weights`: replies count by samples, or equally.
    """

    weights: Literal["samples", "equal"]

    def on_train(self, c: C, msg: Message, site: ClientContext) -> Conversation[tuple[C, Reply]]:
        """Train the received model, and reply with the update."""
        fitted = yield from fit(msg["model"], site.train, self.local)
        return c, reply(
            fitted.weight(self.weights), fitted.metrics, model=fitted.params - msg["model"]
        )


@tagged("Moments")
@dataclass(frozen=True)
class Moments:
    """State of an adaptive server: the model, and first and second moments of its updates."""

    model: Params
    first: Params
    second: Params


class ServerOptimizer(UpdateMethod[S, NoState]):
    """Base of methods whose server takes an optimiser's step along the mean update."""

    @abstractmethod
    def step(self, s: S, update: Params) -> S:
        """Return the server's state after a step along the mean update."""

    def round(self, s: S, cohort: Sequence[ClientId]) -> Conversation[S]:
        """Let the cohort train, and take the server's step; without any reply, take none."""
        got = yield from aggregate("train", to=cohort)
        # A mean of no replies is 0, and the optimiser's moments would still move the model.
        return self.step(s, got.mean("model")) if got.count else s


class AveragingMethod(Method[Global, C]):
    """Base of methods whose server averages as FedAvg does; their clients differ.

    Replies to `train` have one tree, the update of the server's model.
    """

    @property
    def shared(self) -> str:
        """Name of the tree in replies to `train`."""
        (tree,) = self.exposure["train"].trees
        return tree

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train, and add to every entry the mean update of those who sent it."""
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
        """Train received and personal layers together; keep the personal ones."""
        shared = msg[self.shared]
        mine: Any = c
        fitted = yield from fit(mine.params.put(shared), site.train, self.local)
        update = {self.shared: fitted.params.only(shared) - shared}
        return replace(mine, params=fitted.params), reply(
            fitted.weight(self.weights), fitted.metrics, **update
        )

    def model_on(self, c: C, msg: Message, site: ClientContext) -> Params | Conversation[Params]:
        """Predict with the received layers and the personal ones."""
        return c.params.put(msg[self.shared])  # type: ignore[attr-defined]


class BodyMethod(LayersMethod[C]):
    """Base of methods that share the body of the network; every client has a head of its own.

    Subclasses have the option `head`: patterns of personal parameters; empty: the model's head.
    """

    head: tuple[str, ...]

    trees: ClassVar[Mapping[str, Tree]] = {"body": Tree("shared layers (body)")}

    def personal_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the head's parameters."""
        return task.parts(*self.head)[1]
