"""Generators that methods call with `yield from`: each yields one request, returns its answer.

`aggregate` and `collect` send requests to clients; `fit` and `compute` request work on parameters
and data. Split learning also uses `attend`, `ask`, `forward` and `step`: the server's part of the
network then trains with clients batch by batch. The program that runs a conversation with `drive`
supplies the answers: the simulator, a deployment, or a test.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from vergence.core.aggregation import Aggregate
from vergence.core.data import Batch, Samples
from vergence.core.federation import PublicData
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.masks import Mask
from vergence.core.messages import Fact, Message, SealedReply
from vergence.core.objectives import Objective
from vergence.core.options import T
from vergence.core.params import Params
from vergence.core.requests import (
    Compute,
    Fit,
    FitResult,
    Forward,
    GetPublicData,
    Mean,
    Network,
    Quarantine,
    Request,
    Requests,
    ServedGroups,
    ServeGroups,
    Step,
    StepResult,
    Wanted,
)

Conversation = Generator[Any, Any, T]


def release(
    verb: str, to: Sequence[ClientId], like: Mapping[str, Params]
) -> Conversation[Aggregate]:
    """Ask clients for the trees named in `like`; return only the weighted sum over the clients.

    `verb` is the kind of request, such as `train`. `like` gives the shapes of the trees (named
    sets of parameters). The message to the clients holds no tree.
    """
    return (yield Request(verb, {c: Message(verb) for c in to}, "aggregate", like))


def _request(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    reveal: Literal["aggregate", "each"],
    facts: Mapping[str, Fact] | None,
    trees: Mapping[str, Params],
    like: Mapping[str, Params] | None = None,
) -> Request:
    if isinstance(to, Mapping):
        return Request(verb, to, reveal, like or {})
    message = Message(verb, trees, facts or {}) if trees or facts else None
    return Request(verb, dict.fromkeys(to, message), reveal, like or {})


def aggregate(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    facts: Mapping[str, Fact] | None = None,
    like: Mapping[str, Params] | None = None,
    **trees: Params,
) -> Conversation[Aggregate]:
    """Send a message to every client of a cohort; return only the weighted sum of the replies.

    Args:
        verb: kind of request, such as `train`.
        to: the clients, or the message for each client.
        facts: plain values to send.
        like: shapes of trees that a reply has and the message does not.
        trees: parameters to send. Without trees and facts, a client receives what the method's
            `offer` returns.
    """
    return (yield _request(verb, to, "aggregate", facts, trees, like))


def collect(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    facts: Mapping[str, Fact] | None = None,
    like: Mapping[str, Params] | None = None,
    **trees: Params,
) -> Conversation[dict[ClientId, SealedReply]]:
    """Send a message to every client of a cohort; return the reply of each client.

    The arguments are those of `aggregate`.
    """
    return (yield _request(verb, to, "each", facts, trees, like))


def proxies() -> Conversation[PublicData]:
    """Return the server's public samples, which belong to no client."""
    return (yield GetPublicData())


def mean(values: Tensor, bound: float) -> Conversation[Tensor]:
    """Return the mean `[d]` of `values` `[n, d]`, which have one row per training sample.

    A row whose L2 norm is above `bound` is first scaled down to `bound`. Apart from results of
    training, a client may send nothing else about its samples. In a run with privacy for samples,
    noise is added to the mean, and the privacy budget counts it.
    """
    return (yield Mean(values, bound))


class NoReplyCounted(Exception):
    """In split learning, the client with which the server now trains was quarantined (excluded).

    The client's later replies are ignored.
    """


def quarantine_client(client: ClientId, reason: str) -> Conversation[None]:
    """Quarantine (exclude) a client with which the server trains in split learning.

    Raises:
        NoReplyCounted: always; it ends the server's work with this client.
    """
    yield Quarantine(client, reason)


def attend(
    groups: Sequence[Sequence[ClientId]], shuffled: bool = False, **templates: Params
) -> Conversation[ServedGroups]:
    """In split learning, train copies of the server's part, one per group of clients.

    `templates` are the initial parameters of the server's part of the network. Groups train in
    parallel. `Method.serve` trains a copy with the clients of its group, one after the other; with
    `shuffled`, in random order.

    Returns:
        The weighted sum of the copies' updates, and the clients that stayed to the end.
    """
    return (yield ServeGroups(tuple(tuple(group) for group in groups), templates, shuffled))


def ask(
    client: ClientId,
    verb: str,
    trees: Mapping[str, Params] | None,
    like: Mapping[str, Params] | None = None,
) -> Conversation[dict[str, Params]]:
    """In split learning, send trees to a client with which the server trains; return its reply.

    Trees are named sets of tensors; the reply's trees are returned by name.

    Args:
        client: the client.
        verb: kind of request, such as `forward`.
        trees: parameters or tensors to send, by name; None: the client receives what the method's
            `offer` returns.
        like: shapes of trees that the reply has and the message does not.

    Raises:
        NoReplyCounted: the client was quarantined for its reply.
    """
    to = {client: None if trees is None else Message(verb, trees)}
    got = yield Request(verb, to, "each", like or {})
    return {name: tree.total for name, tree in got[client].trees.items()}


def ask_several(
    client: ClientId, verb: str, messages: Sequence[Mapping[str, Params] | None]
) -> Conversation[list[dict[str, Params]]]:
    """Send several messages to one client, as `ask` sends one; return the trees of every reply.

    Each message is a mapping of trees (named sets of tensors); None: the trees that the method's
    `offer` returns. Over a network, all messages travel in one exchange: an exchange takes longer
    than the work on a batch.

    Raises:
        NoReplyCounted: the client was quarantined for one of its replies.
    """
    replies = yield Requests(
        verb, client, tuple(None if trees is None else Message(verb, trees) for trees in messages)
    )
    return [{name: tree.total for name, tree in sealed.trees.items()} for sealed in replies]


def forward(
    params: Params, batch: Batch, on: Network, rows: Tensor | None = None
) -> Conversation[Tensor]:
    """Return the output of a network, or of some of its stages, for a batch in training mode.

    Args:
        params: parameters of the network or of its stages.
        batch: the columns of the batch.
        on: function from the run's task to the task whose network is used.
        rows: on a client, the numbers of the batch's training samples, `[batch]`: noise may be
            drawn for each sample.
    """
    return (yield Forward(params, batch, on, rows))


def step(
    params: Params,
    optimiser: OptimizerState,
    batch: Batch,
    local: LocalTraining,
    on: Network,
    wrt: str | None = None,
) -> Conversation[StepResult]:
    """Take one optimiser step on one batch; the caller must not use `params` and `optimiser` again.

    Args:
        params: parameters of the network of the task `on`; changed in place.
        optimiser: state after the previous step, `OptimizerState({}, 0)` at first; changed in
            place.
        batch: the columns of the batch. For a piece of a network, `smashed` is its input from
            another machine, and `pull` is the loss's gradient with respect to its output.
        local: optimiser, learning rate and gradient clipping.
        on: function from the run's task to the task whose network and loss are used.
        wrt: a column of the batch; the loss's gradient with respect to it is returned too.
    """
    return (yield Step(params, optimiser, batch, local, on, wrt))


def fit(
    params: Params,
    data: Samples,
    local: LocalTraining,
    *,
    trainable: Mask | None = None,
    anchor: tuple[Params, float] | None = None,
    optimiser: OptimizerState | None = None,
    score_on: Samples | None = None,
    correction: Params | None = None,
    objective: Objective | None = None,
) -> Conversation[FitResult]:
    """Train parameters on data with the settings `local`.

    Args:
        params: initial parameters.
        data: the samples to train on.
        local: epochs or steps, batch size, optimiser.
        trainable: mask of the entries that training may change; None: all.
        anchor: `(centre, mu)` adds `mu / 2 * ||params - centre||^2` to the loss.
        optimiser: state from which the optimiser continues; None: a new optimiser.
        score_on: samples; the task's score on them is returned too, as `metrics["score"]`.
        correction: vector that is added to every gradient.
        objective: loss that is minimised in place of the task's loss.
    """
    return (
        yield Fit(
            params, data, local, trainable, anchor, optimiser, score_on, correction, objective
        )
    )


def compute(params: Params, data: Samples, want: Wanted) -> Conversation[Any]:
    """Compute the quantity `want` with parameters on data, in evaluation mode.

    - `loss` (the mean over the samples) and `score` are floats.
    - `outputs` and `features` (the head's inputs) are tensors `[samples, ...]`.
    - `gradient` is the gradient of the mean loss, as `Params`.
    - `statistics` are the parameters with BatchNorm's running statistics of these data alone.
    - `sequences` and `classes` come from the task and do not depend on the parameters.
    """
    return (yield Compute(params, data, want))


def drive(conversation: Conversation[T] | T, answer: Callable[[Any], object]) -> T:
    """Run a conversation (a generator) to its end, and return the generator's return value.

    `answer` receives each request that the generator yields, and returns the answer to send back.
    If `conversation` is not a generator, it is returned unchanged.
    """
    # A method that has nothing to ask may return its result instead of a generator.
    if not isinstance(conversation, Generator):
        return conversation
    reply: object = None
    while True:
        try:
            reply = answer(conversation.send(reply))
        except StopIteration as end:
            return end.value
