"""A federated method: frozen options, a server half and a client half, joined by conversations.

Used in most packages.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.data import Samples
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Message, Reply, reply
from vergence.core.naming import registry_name
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
    """Server state of the methods whose server keeps a single model."""

    model: Params


@tagged("Nothing")
@dataclass(frozen=True)
class NoState:
    """State of a client or server that keeps nothing between rounds."""


@dataclass(frozen=True)
class Tree:
    """Description of a tree (named set of tensors) that a method sends; reports print it.

    Attributes:
        title: name in plain words. `{labels}`, `{columns}` (labels and side inputs) and `{public}`
            stand for the names of columns of the task.
        kind: `update`: change of parameters (trained minus received). `groups`: the models of all
            groups of clients. `values`: tensors that are sent unchanged. `numbers`: a few numbers
            that each client sends separately. `answers`: outputs for generated samples.
            `gradients`: gradients with respect to these samples. In split learning: `smashed`:
            activations at the cut. `labels`, `public`: columns of the samples. `own`: data that a
            client receives and that were computed from its own samples. `loss gradients`: gradients
            from which labels can be computed.
        everybody: for a tree of the kind `numbers`: title of all clients' numbers together.
        whole: True: the tree is the whole model.
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
    """What clients send and receive in one kind of request (a verb, such as `train`).

    Attributes:
        reveal: `aggregate`: the server sees only the weighted sum; `each`: it sees every reply.
        trees: names of the trees (named sets of tensors) in a reply.
        weight: kind of a reply's weight. `mask` may include one number: the weight of all entries
            where the mask is true.
        metrics: names of the metrics in a reply.
        raw: True: the trees are computed from single samples and are not updates of parameters.
        down: names of the trees that a client receives; None: the trees that `offer` returns.
        numbered: names of facts (plain values) in the message that distinguish several requests of
            this kind in one round.
        joining: True: in a round, only new clients get this request. The request takes no simulated
            (virtual) time.
        blind: True: the client handles the request with its state and the message alone, without
            its samples.
        beyond: text on what a reply reveals about samples in addition to what the budget of
            `privacy.solver` covers; empty: nothing. A run with `privacy.solver` shows the text.
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
    """Client state: all parameters, and the names of those that stay with the client."""

    params: Params
    personal: tuple[str, ...]

    @property
    def mask(self) -> Mask:
        """The mask of the entries that stay with the client."""
        return Mask.layers(self.params.layout, *self.personal)


@dataclass(frozen=True)
class Method(NamedOptions, ABC, Generic[S, C]):
    """Base of every method. Subclasses have hyper-parameters as fields, and no other state.

    A method does no I/O, has no loop over rounds, and uses no optimiser, process or socket. Its
    functions are generators: they yield requests to clients (`aggregate`, `collect`) and requests
    for training (`fit`).
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
    """What clients send, by kind of request (verb). Tests check that clients send nothing else."""
    trees: ClassVar[Mapping[str, Tree]] = {"model": Tree("model", whole=True)}
    """Descriptions of the trees (named sets of tensors) that are sent, by name; for reports."""
    state_labels: ClassVar[Mapping[str, str]] = {"params": "the person's own model"}
    """Descriptions of the parts of a client's state for reports, by name."""
    resident: ClassVar[bool] = True
    """False: the method computes with numpy or samples, and needs states and replies beside them.

    They lie in main memory, as do states and replies of methods outside of `vergence.methods`.
    """
    pooled: ClassVar[bool] = False
    """True: a single client has everybody's data, as in central training."""
    served: ClassVar[bool] = False
    """True: split learning: the server trains its part of the network with clients batch by batch.

    The server does this in groups of clients that the method forms.
    """
    closed_form: ClassVar[bool] = False
    """True: clients take no gradient steps, and further rounds change nothing."""
    needs_public_data: ClassVar[bool] = False
    """True: the server needs public samples (`proxies`)."""
    passes_layers_on: ClassVar[bool] = False
    """True: the server passes layers from client to client, and so sees each client's layers."""
    keeps_statistics: ClassVar[bool] = False
    """True: BatchNorm's running statistics (`Task.statistics`) stay with the clients.

    A method where this is False refuses networks that have running statistics.
    """
    unfit_for_statistics: ClassVar[str] = ""
    """Why this method cannot average BatchNorm's running statistics; empty if it can."""
    setup_verbs: ClassVar[tuple[str, ...]] = ()
    """Kinds of request (verbs) that only `setup` uses.

    In a run with secure sums, clients accept no other kind during setup.
    """
    finish_verbs: ClassVar[tuple[str, ...]] = ()
    """Kinds of request (verbs) that `finish` uses.

    In a deployment, clients answer no other kind of turn after the last round.
    """

    @property
    def uses_validation(self) -> bool:
        """True: clients choose something on their validation samples, so that each needs some."""
        return False

    def check(self, task: Task) -> None:
        """Refuse a task with which this method cannot work, before training begins.

        Raises:
            ConfigError: the network or the task lacks something; the message names it.
        """
        averaged, counted = task.averaged_statistics(), task.statistics()
        if not self.keeps_statistics and set(counted) > set(averaged):
            raise ConfigError(
                f"BatchNorm's running statistics ({counted[0]}, ...) would be sent: "
                "vergence.personalize_batch_norm is for fedbn (at_home = 'statistics' averages "
                "scales and shifts) and local_only; use one of these, or "
                "vergence.average_batch_norm or vergence.freeze_batch_norm"
            )
        if averaged and self.unfit_for_statistics:
            raise ConfigError(
                f"{registry_name(self)} cannot average BatchNorm's running statistics "
                f"({averaged[0]}, ...): {self.unfit_for_statistics}; use vergence.group_norm or "
                "vergence.freeze_batch_norm"
            )
        # Both refuse what does not fit, such as a head that cannot be split from its network.
        self.server(task)
        self.client(task)

    def tree(self, name: str) -> Tree:
        """Return the description of a parameter tree; default: an `update`, titled by its name."""
        return {**Method.trees, **self.trees}.get(name, Tree(name))

    def server(self, task: Task) -> S:
        """Return the server's state before the first round; default: the task's initial model."""
        return Global(task.init())  # type: ignore[return-value]

    def client(self, task: Task) -> C:
        """Return the state of a client that has not taken part yet; default: `NoState`."""
        return NoState()  # type: ignore[return-value]

    def offer(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Return the trees that a client downloads for training, evaluation and prediction.

        Trees are named sets of parameters.
        """
        return {"model": s.model}  # type: ignore[attr-defined]

    def server_part(self, s: S) -> Mapping[str, Params]:
        """Return the server's part of the network in split learning, which clients do not train.

        Clients do not download this part for training. In a deployment, a client receives it when
        the client is evaluated. Default: no tree, as clients have the whole network.
        """
        return {}

    def server_metrics(self, s: S) -> Mapping[str, float]:
        """Return numbers of the server's state that tables of rounds show, by name; default: none.

        The engine calls this after every round.
        """
        return {}

    def caution(self, before: S, after: S) -> str:
        """Return one sentence that warns of a round's step of the server; default: no text.

        The engine calls this after every round, with the states before and after it.
        """
        return ""

    def reply_templates(self, s: S) -> Mapping[str, Params]:
        """Return trees with the layouts of trees in replies that are not those of `offer`.

        They have the sizes that reports foretell, and with which secure sums in a deployment
        encode replies. Default: none, as sizes depend on the data.
        """
        return {}

    def known_trees(self, s: S) -> Mapping[str, Params]:
        """Return all trees whose layouts are known before a round: those sent and those replied."""
        return {**self.offer(s, ""), **self.reply_templates(s)}

    def stores_inputs(self, task: Task) -> bool:
        """Return whether a client's own model contains the inputs of its samples."""
        return False

    def unused_by_newcomers(self, task: Task) -> Collection[str]:
        """Return names of parameters that change no prediction of a client that took no part.

        What the server sends an unseen client is then a whole model without them. Default: none.
        """
        return ()

    def prediction_trees(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Return the parameter trees that `model_on` reads: of `offer` and of `server_part`."""
        return {**self.offer(s, client), **self.server_part(s)}

    def serve(
        self, clients: Sequence[ClientId], templates: Mapping[str, Params]
    ) -> Conversation[Reply]:
        """Train a copy of the server's part of the network with a group of clients.

        The engine calls this for every group that `round` gives to `attend`. `templates` holds
        the copy's parameters, which may be changed in place.

        Returns:
            The copy's updates, in the form of a client's reply.
        """
        raise NotImplementedError(f"{type(self).__name__} attends to nobody")
        # Never reached: it makes this function a generator, as overrides are.
        yield

    @abstractmethod
    def round(self, s: S, cohort: Sequence[ClientId]) -> Conversation[S]:
        """Run one round with a cohort and return the new server state."""

    def setup(self, s: S, clients: Sequence[ClientId]) -> Conversation[S]:
        """Exchange messages with clients once, before the first round; return the server's state.

        Default: return the state unchanged.
        """
        return s
        # Never reached: it makes this function a generator, as overrides are.
        yield

    def finish(self, s: S, clients: Sequence[ClientId]) -> Conversation[S]:
        """Exchange messages with clients once, after the last round; return the server's state.

        Default: ask every client for each of `finish_verbs`, and return the state unchanged.
        """
        for verb in self.finish_verbs:
            yield from aggregate(verb, to=clients)
        return s

    def model_on(self, c: C, msg: Message, site: ClientContext) -> Params | Conversation[Params]:
        """Return the model with which this client predicts; default: the model that it received.

        The engine calls this on the client for evaluation and prediction.
        """
        return msg["model"]

    def group_on(self, s: S, client: ClientId, train: Samples) -> int | Conversation[int] | None:
        """Return the client's group as a number, for reports; default: None (no groups)."""
        return None

    def personal(self, c: C) -> Mask | None:
        """Return the mask of a client's personal entries, for reports.

        Default: `mask` of the client's state; None if the state has no mask.
        """
        return getattr(c, "mask", None)

    def state_records(self, task: Task) -> tuple[type, ...]:
        """Return the dataclasses of this method's states; default: the server's and a client's.

        The engine calls this to read saved states.
        """
        return type(self.server(task)), type(self.client(task))


class UpdateMethod(Method[S, C]):
    """Base of methods whose clients train the received model and reply with the update.

    Subclasses have the option `weights`. With `samples`, the weight of a reply is `Task.weigh` of
    the client's training data (default: their number). With `equal` it is 1.
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
    """State of a server with an adaptive optimiser: the model, first and second moments."""

    model: Params
    first: Params
    second: Params


class ServerOptimizer(UpdateMethod[S, NoState]):
    """Base of methods whose server applies an optimiser step to the clients' mean update."""

    @abstractmethod
    def step(self, s: S, update: Params) -> S:
        """Return the server's state after an optimiser step with the clients' mean update."""

    def round(self, s: S, cohort: Sequence[ClientId]) -> Conversation[S]:
        """Let the cohort train, and take one server step; keep the state if nobody replied."""
        got = yield from aggregate("train", to=cohort)
        # A mean of no replies is 0, and the optimiser's moments would still move the model.
        return self.step(s, got.mean("model")) if got.count else s


# `auto` takes half of the one and a thirtieth of the other.
TOO_FAST, TOO_COARSE = 4.0, 3.0
"""Largest fitting `server_lr` and tau of a server, in root mean squares of the first update."""


@tagged("AutoMoments")
@dataclass(frozen=True)
class AutoMoments(Moments):
    """Moments beside tau and the server's rate, which the first update with a length has chosen.

    `statistics` are the names of running statistics, whose updates have no say in the choice.
    """

    steps: int = 0
    tau: float = 0.0
    server_lr: float = 0.0
    statistics: tuple[str, ...] = ()


class AdaptiveServer(ServerOptimizer[Moments]):
    """Base of methods whose server divides its step by the root of a second moment, plus tau.

    Subclasses have the options `server_lr`, `beta1`, `tau` and `adapt`.
    """

    server_lr: float
    beta1: float
    tau: float
    adapt: Literal["fixed", "auto"]

    # The best of a few on generated people whom nobody trained on: benchmarks/adaptive_servers.py.
    tau_share: ClassVar[float] = 0.1
    """`auto`: tau as a share of the root mean square of the first mean update."""
    rate_share: ClassVar[float] = 2.0
    """`auto`: `server_lr` as a share of the root mean square of the first mean update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tau", "server_lr"):
            if self.adapt == "auto" and (value := getattr(self, name)) != getattr(type(self), name):
                raise ConfigError(
                    f"{registry_name(self)}: adapt = 'auto' chooses {name}, and {name} = {value:g} "
                    "is given: leave one of the two out"
                )

    @abstractmethod
    def second_moment(self, second: Params, update: Params) -> Params:
        """Return the second moment of updates after the clients' mean update."""

    def moments(self, model: Params) -> Moments:
        """Return the first state of a server with this model and its own `tau`."""
        # Reddi et al., Algorithm 2, ask for v_{-1} >= tau^2, and this is the smallest of these.
        return Moments(model, model * 0.0, model * 0.0 + self.tau**2)

    def optimizer_step(self, s: Moments, update: Params, server_lr: float, tau: float) -> Moments:
        """Return the state after the optimiser's step with this rate and tau."""
        first = self.beta1 * s.first + (1 - self.beta1) * update
        second = self.second_moment(s.second, update)
        step = first / (second.like(second.flat.sqrt()) + tau)
        return replace(s, model=s.model + server_lr * step, first=first, second=second)

    def server(self, task: Task) -> Moments:
        """Return the first server state: the task's initial model, and the initial moments."""
        first = self.moments(task.init())
        if self.adapt == "fixed":
            return first
        statistics = tuple(task.averaged_statistics())
        return AutoMoments(first.model, first.first, first.second, statistics=statistics)

    def step(self, s: Moments, update: Params) -> Moments:
        """Return the server's state after the optimiser's step along the clients' mean update."""
        if not isinstance(s, AutoMoments):
            return self.optimizer_step(s, update, self.server_lr, self.tau)
        if not s.tau:
            size = root_mean_square(update.only(set(update) - set(s.statistics)))
            if not size:
                return s
            tau, server_lr = self.tau_share * size, self.rate_share * size
            second = replace(self, adapt="fixed", tau=tau).moments(s.model).second
            s = replace(s, second=second, tau=tau, server_lr=server_lr)
        return self.optimizer_step(s, update, s.server_lr, s.tau)

    def server_metrics(self, s: Moments) -> Mapping[str, float]:
        """Return tau and the server's rate where `auto` has chosen them."""
        if not isinstance(s, AutoMoments) or not s.tau:
            return {}
        return {"tau": s.tau, "server_lr": s.server_lr}

    def caution(self, before: Moments, after: Moments) -> str:
        """Return a warning if fixed settings do not fit the first mean update.

        With tau above the updates' size the step is about server_lr / tau times FedAvg's, with
        momentum; else an entry moves by up to `server_lr` in a round.
        """
        if self.adapt == "auto" or before.first.flat.any():
            return ""
        size = root_mean_square(after.first) / (1 - self.beta1)
        over = self.server_lr > self.tau >= size or self.server_lr > TOO_FAST * size
        coarse = self.tau > TOO_COARSE * size
        if not size or not (over or coarse):
            return ""
        what = "its steps will overshoot" if over else "it will hardly adapt"
        return (
            f"{registry_name(self)}: the mean update of the first round has a root mean square of "
            f"{size:.2g}, and server_lr = {self.server_lr:g}, tau = {self.tau:g}: {what}; take "
            f"tau = {self.tau_share * size:.2g} and server_lr = {self.rate_share * size:.2g}, or "
            "adapt = 'auto', which chooses them so"
        )


def root_mean_square(params: Params) -> float:
    """Return the root of the mean square over all entries."""
    return params.norm() / math.sqrt(params.layout.n)


class AveragingMethod(Method[Global, C]):
    """Base of methods whose server averages updates as FedAvg does; only their clients differ.

    Replies to `train` have one tree: the update of the server's model.
    """

    @property
    def shared(self) -> str:
        """Name of the tree (set of parameters) in replies to `train`."""
        (tree,) = self.exposure["train"].trees
        return tree

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train, and add the weighted mean update to the model.

        The mean of an entry is taken over the clients that sent this entry.
        """
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean(self.shared))


class LayersMethod(AveragingMethod[C]):
    """Base of methods that share some layers of the network; the others stay with each client.

    Subclasses have the option `weights`. With `samples`, the weight of a reply is `Task.weigh` of
    the client's training data (default: their number). With `equal` it is 1.
    """

    weights: Literal["samples", "equal"]

    @abstractmethod
    def personal_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the parameters that stay with the clients."""

    def server(self, task: Task) -> Global:
        """Return the server's first state: the shared layers of the task's initial model."""
        start = task.init()
        return Global(start.only(set(start) - set(self.personal_layers(task))))

    def client(self, task: Task) -> C:
        """Return a client's first state: the initial model, and the personal layers' names."""
        return Layers(task.init(), self.personal_layers(task))  # type: ignore[return-value]

    def offer(self, s: Global, client: ClientId) -> Mapping[str, Params]:
        """Return the shared layers, which a client downloads."""
        return {self.shared: s.model}

    def on_train(self, c: C, msg: Message, site: ClientContext) -> Conversation[tuple[C, Reply]]:
        """Train received and personal layers together; reply with the received layers' update."""
        shared = msg[self.shared]
        mine: Any = c
        fitted = yield from fit(mine.params.put(shared), site.train, self.local)
        update = {self.shared: fitted.params.only(shared) - shared}
        return replace(mine, params=fitted.params), reply(
            fitted.weight(self.weights), fitted.metrics, **update
        )

    def model_on(self, c: C, msg: Message, site: ClientContext) -> Params | Conversation[Params]:
        """Return the model made of the received layers and the client's personal layers."""
        return c.params.put(msg[self.shared])  # type: ignore[attr-defined]


class BodyMethod(LayersMethod[C]):
    """Base of methods that share the body of the network; every client has its own head.

    Subclasses have the option `head`: patterns of the names of personal parameters; empty: the
    model's own head.
    """

    head: tuple[str, ...]

    trees: ClassVar[Mapping[str, Tree]] = {"body": Tree("shared layers (body)")}

    def personal_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the head's parameters, which stay with the clients."""
        return task.parts(*self.head)[1]
