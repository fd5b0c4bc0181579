"""The words methods are written in; each is one `yield` with a precise return type.

`aggregate` and `collect` ask clients, `fit` and `compute` ask for work on parameters and data.
Split learning adds `attend`, `ask`, `forward` and `step`: a server's part serves clients batch by
batch. Whoever drives the generator answers: the simulator, a network, a test.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor

from vergence.core.fitting import Compute, Fit, Fitted, Local, OptimiserState
from vergence.core.mask import Mask
from vergence.core.objective import Objective
from vergence.core.params import Params
from vergence.core.site import Batch, Proxies, Samples
from vergence.core.stepping import Forward, Network, Step, Stepped
from vergence.core.wire import Aggregate, Fact, Message, Sealed

T = TypeVar("T")
Conversation = Generator[Any, Any, T]
ClientId = str


@dataclass(frozen=True)
class Request:
    """Ask clients for a turn. `to` maps each to its message, or to None: what `offer` gives.

    `like` are trees of the shape that replies must have, where the client is not sent them.
    """

    verb: str
    to: Mapping[ClientId, Message | None]
    reveal: Literal["aggregate", "each"]
    like: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class Requests:
    """Ask one client that is being served for turns, one after the other, in one exchange.

    A message None is what `offer` gives; `like` as in `Request`.
    """

    verb: str
    client: ClientId
    messages: tuple[Message | None, ...]
    like: Mapping[str, Params] = field(default_factory=dict)


def release(
    verb: str, to: Sequence[ClientId], like: Mapping[str, Params]
) -> Conversation[Aggregate]:
    """Ask clients for trees shaped `like` these, sending nothing; learn only the weighted sum."""
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
    """Ask a cohort for a turn and learn only the weighted sum of what it replies.

    A cohort is sent what the method's `offer` gives, or the trees and facts named here; `like` as
    in `Request`.
    """
    return (yield _request(verb, to, "aggregate", facts, trees, like))


def collect(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    facts: Mapping[str, Fact] | None = None,
    like: Mapping[str, Params] | None = None,
    **trees: Params,
) -> Conversation[dict[ClientId, Sealed]]:
    """Ask a cohort for a turn and learn every single reply; `like` as in `Request`."""
    return (yield _request(verb, to, "each", facts, trees, like))


@dataclass(frozen=True)
class Borrow:
    """Ask for the samples of nobody's that the server holds."""


def proxies() -> Conversation[Proxies]:
    """Return the samples of nobody's that the server holds."""
    return (yield Borrow())


@dataclass(frozen=True)
class Mean:
    """Ask for the mean of rows `[n, d]`, one of each of a client's samples, `bound` long at most.

    Where a run hides samples it comes with noise.
    """

    values: Tensor
    bound: float

    def shortened(self) -> Tensor:
        """Return the rows, those that are longer cut to `bound`."""
        length = self.values.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return self.values * (self.bound / length).clamp(max=1)


def mean(values: Tensor, bound: float) -> Conversation[Tensor]:
    """Return the mean `[d]` of rows `[n, d]`, one of each training sample, cut to length `bound`.

    It is what a client may tell of its samples beside what training gives: a run that hides samples
    adds noise to it, and counts it in the budget.
    """
    return (yield Mean(values, bound))


class Silent(Exception):
    """A client that is being served gave a reply that must not count: it is not heard any more."""


@dataclass(frozen=True)
class Silence:
    """Quarantine a client that is being served, for this reason."""

    client: ClientId
    reason: str


def silence(client: ClientId, reason: str) -> Conversation[None]:
    """Hear a client that is being served no more; always raises `Silent`."""
    yield Silence(client, reason)


@dataclass(frozen=True)
class Attend:
    """Serve groups of clients, each by a copy of `held` that `Method.serve` trains.

    What the copies hold is not sent to a client. With `shuffled`, the clients of a group come in
    random order.
    """

    groups: tuple[tuple[ClientId, ...], ...]
    held: Mapping[str, Params]
    shuffled: bool = False


@dataclass(frozen=True)
class Attended:
    """The weighted sum of what the copies became, and the clients that were served to the end."""

    sum: Aggregate
    clients: tuple[ClientId, ...]


def attend(
    groups: Sequence[Sequence[ClientId]], shuffled: bool = False, **held: Params
) -> Conversation[Attended]:
    """Serve groups of clients at once, those of a group one after the other by the same copy."""
    return (yield Attend(tuple(tuple(group) for group in groups), held, shuffled))


def ask(
    client: ClientId,
    verb: str,
    trees: Mapping[str, Params] | None,
    like: Mapping[str, Params] | None = None,
) -> Conversation[dict[str, Params]]:
    """Send these trees to a client that is being served, and learn those of its reply.

    None sends what `offer` gives, which the server's copy itself does not see. `like` are trees of
    the shape that the reply must have, where they are not sent.

    Raises:
        Silent: its reply was quarantined.
    """
    message = None if trees is None else Message(verb, trees)
    got = yield Request(verb, {client: message}, "each", like or {})
    return {name: tree.total for name, tree in got[client].trees.items()}


def asks(
    client: ClientId, verb: str, messages: Sequence[Mapping[str, Params] | None]
) -> Conversation[list[dict[str, Params]]]:
    """Send several messages at once, as `ask` sends one; learn the trees of every reply.

    Over a network this is one exchange, which costs more than a batch.

    Raises:
        Silent: a reply was quarantined.
    """
    sent = tuple(None if trees is None else Message(verb, trees) for trees in messages)
    got = yield Requests(verb, client, sent)
    return [{name: tree.total for name, tree in sealed.trees.items()} for sealed in got]


def forward(
    params: Params, batch: Batch, on: Network, rows: Tensor | None = None
) -> Conversation[Tensor]:
    """Return what a network, or a piece of one, makes of a batch in training mode.

    A client says which of its training samples they are (`rows`): noise may be drawn for each.
    """
    return (yield Forward(params, batch, on, rows))


def step(
    params: Params,
    optimiser: OptimiserState,
    batch: Batch,
    local: Local,
    on: Network,
    wrt: str | None = None,
) -> Conversation[Stepped]:
    """Take one optimiser step on one batch; `params` and `optimiser` are given away.

    Args:
        params: of the piece `on`; changed in place.
        optimiser: what the step before gave, `OptimiserState({}, 0)` at first; changed in place.
        batch: columns, `smashed` and `pull` among them for a piece.
        local: optimiser, rate and clip.
        on: whose network and loss, found from the run's task.
        wrt: the column of the batch whose gradient is wanted.
    """
    return (yield Step(params, optimiser, batch, local, on, wrt))


def fit(
    params: Params,
    data: Samples,
    local: Local,
    *,
    trainable: Mask | None = None,
    anchor: tuple[Params, float] | None = None,
    optimiser: OptimiserState | None = None,
    score_on: Samples | None = None,
    correction: Params | None = None,
    objective: Objective | None = None,
) -> Conversation[Fitted]:
    """Train parameters on data, as `local` says.

    Args:
        params: where training starts.
        data: the samples to train on.
        local: epochs or steps, batch size, optimiser.
        trainable: only these entries may change.
        anchor: `(centre, mu)` adds `mu / 2 * ||params - centre||^2` to the loss.
        optimiser: state to go on from, where a method's optimiser persists.
        score_on: also report the task's score on these samples as `metrics["score"]`.
        correction: added to every gradient.
        objective: what is minimised in place of the task's loss.
    """
    return (
        yield Fit(
            params, data, local, trainable, anchor, optimiser, score_on, correction, objective
        )
    )


def compute(
    params: Params,
    data: Samples,
    want: Literal["loss", "outputs", "score", "features", "gradient", "sequences", "classes"],
) -> Conversation[Any]:
    """Return something of parameters on data, in evaluation mode.

    The mean loss or the score (a float), the outputs or what enters the head (`[samples, ...]`),
    the gradient of the mean loss (`Params`), or the task's sequences or classes, whatever the
    parameters.
    """
    return (yield Compute(params, data, want))
