"""The primitives methods are written in; each is one `yield` with a precise return type.

`aggregate` and `collect` ask clients, `fit` and `compute` ask for work on parameters and data.
Split learning adds `attend`, `ask`, `forward` and `step`: a server's part serves clients batch by
batch. Whoever drives the generator (`drive`) answers: the simulator, a network, a test.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from torch import Tensor

from vergence.core.aggregation import Aggregate
from vergence.core.data import Batch, Samples
from vergence.core.federation import PublicData
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.masks import Mask
from vergence.core.messages import Fact, Message, SealedReply
from vergence.core.objectives import Objective
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

T = TypeVar("T")
Conversation = Generator[Any, Any, T]


def release(
    verb: str, to: Sequence[ClientId], like: Mapping[str, Params]
) -> Conversation[Aggregate]:
    """Ask clients for trees shaped as those in `like`, and learn only their weighted sum.

    The clients are sent no tree.
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
    """Ask a cohort for a turn and learn only the weighted sum of its replies.

    The cohort receives what the method's `offer` returns, or the trees and facts named here; `like`
    is as in `Request`.
    """
    return (yield _request(verb, to, "aggregate", facts, trees, like))


def collect(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    facts: Mapping[str, Fact] | None = None,
    like: Mapping[str, Params] | None = None,
    **trees: Params,
) -> Conversation[dict[ClientId, SealedReply]]:
    """Ask a cohort for a turn and learn every single reply; `like` is as in `Request`."""
    return (yield _request(verb, to, "each", facts, trees, like))


def proxies() -> Conversation[PublicData]:
    """Return the server's public samples, which are no client's."""
    return (yield GetPublicData())


def mean(values: Tensor, bound: float) -> Conversation[Tensor]:
    """Return the mean `[d]` of rows `[n, d]`, one per training sample, each cut to length `bound`.

    Apart from results of training, this mean is all that a client may send about its samples: a run
    with privacy for samples adds noise to the mean, and counts it in the budget.
    """
    return (yield Mean(values, bound))


class NoReplyCounted(Exception):
    """A client that is being served was quarantined; its later replies are ignored."""


def quarantine_client(client: ClientId, reason: str) -> Conversation[None]:
    """Quarantine a client that is being served; always raises `NoReplyCounted`."""
    yield Quarantine(client, reason)


def attend(
    groups: Sequence[Sequence[ClientId]], shuffled: bool = False, **templates: Params
) -> Conversation[ServedGroups]:
    """Serve groups of clients in parallel; a copy of `templates` serves each group in sequence."""
    return (yield ServeGroups(tuple(tuple(group) for group in groups), templates, shuffled))


def ask(
    client: ClientId,
    verb: str,
    trees: Mapping[str, Params] | None,
    like: Mapping[str, Params] | None = None,
) -> Conversation[dict[str, Params]]:
    """Send trees to a client that is being served, and return the trees of its reply.

    If `trees` is None, the client receives what `offer` returns, which the server's copy does not
    see. `like` gives the shapes of those trees of the reply whose names are not among the trees
    sent.

    Raises:
        NoReplyCounted: the client was quarantined for its reply.
    """
    to = {client: None if trees is None else Message(verb, trees)}
    got = yield Request(verb, to, "each", like or {})
    return {name: tree.total for name, tree in got[client].trees.items()}


def ask_several(
    client: ClientId, verb: str, messages: Sequence[Mapping[str, Params] | None]
) -> Conversation[list[dict[str, Params]]]:
    """Send several messages at once, as `ask` sends one; return the trees of every reply.

    Over a network they make one exchange, which takes longer than the work on a batch.

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
    """Return the output of a network, or of a piece of one, for a batch in training mode.

    A client passes the numbers of its training samples as `rows`, as noise may be drawn for each.
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
        params: parameters of the piece `on`; changed in place.
        optimiser: state after the previous step, `OptimizerState({}, 0)` at first; changed in
            place.
        batch: the columns, among them `smashed` and `pull` for a piece.
        local: optimiser, rate and clip.
        on: function from the run's task to the piece whose network and loss are used.
        wrt: the column of the batch whose gradient to return.
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
    """Train parameters on data, as `local` says.

    Args:
        params: where training starts.
        data: the samples to train on.
        local: epochs or steps, batch size, optimiser.
        trainable: only these entries may change.
        anchor: `(centre, mu)` adds `mu / 2 * ||params - centre||^2` to the loss.
        optimiser: state to continue from, where a method keeps its optimiser's state.
        score_on: samples whose score under the task is also reported, as `metrics["score"]`.
        correction: vector that is added to every gradient.
        objective: what is minimised in place of the task's loss.
    """
    return (
        yield Fit(
            params, data, local, trainable, anchor, optimiser, score_on, correction, objective
        )
    )


def compute(params: Params, data: Samples, want: Wanted) -> Conversation[Any]:
    """Compute `want` with parameters on data, in evaluation mode.

    `loss` (the mean) and `score` are floats; `outputs` and `features` (the head's input) are
    tensors `[samples, ...]`; `gradient` is that of the mean loss, as `Params`; `statistics` are the
    parameters with BatchNorm's running statistics of these data alone; `sequences` and `classes`
    come from the task and do not depend on the parameters.
    """
    return (yield Compute(params, data, want))


def drive(conversation: Conversation[T] | T, answer: Callable[[Any], object]) -> T:
    """Run a conversation to its end, answering all requests; a plain value is returned as it is."""
    # A method that has nothing to ask may return its result instead of a generator.
    if not isinstance(conversation, Generator):
        return conversation
    reply: object = None
    while True:
        try:
            reply = answer(conversation.send(reply))
        except StopIteration as end:
            return end.value
