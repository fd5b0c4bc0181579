"""Base of protections: their hooks on clients and on the server, and their promises for a run.

Used in `engine`, `experiment`, `privacy` and `reports`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import nn

from vergence.core.aggregation import Aggregate
from vergence.core.client import ClientContext
from vergence.core.federation import Federation
from vergence.core.messages import Message, Reply, SealedReply
from vergence.core.method import Exposure, Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.serialization import CPU
from vergence.core.task import Task
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout

LEFT_OUT = "left out"
"""Start of the status of a reply that passed all checks but that `ServerHooks.combine` left out."""
Check = Callable[[Message, SealedReply], str | None]
"""Gets the server's message and the client's answer; returns why the answer is refused, or None."""


class Turn(Protocol):
    """A client's turn (its work on one message of the server), as a protection sees it.

    Attributes:
        site: the client's context: its data, the task and its random numbers.
        message: the message that the server sent to the client.
        before: the client's state when the turn began; None if the client never took part.
        after: the client's state when the turn has ended; only `outgoing` may read it.
        progress: fraction of the run's rounds that are done, from 0 to 1.
    """

    site: ClientContext
    message: Message
    before: object
    after: object
    progress: float

    def batches(self) -> RandomStream:
        """Return the random numbers for the training that the method asks for next."""
        ...


class ClientHooks:
    """The client side of one protection; methods that are not overridden change nothing.

    A turn is a client's work on one message of the server. In a turn the method asks for
    computations, such as `Fit` for training. Worker processes call the hooks in the order of the
    run's list: the first hook is the outermost in `answer`, and the first to see a reply in
    `outgoing`.

    Attributes:
        answers: types of the computations whose results `answer` changes. If `Fit` is among them,
            clients are trained one by one.
    """

    answers: ClassVar[tuple[type, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.answer is not ClientHooks.answer and not cls.answers:
            raise TypeError(f"{cls.__name__} overrides answer(): name in `answers` what it changes")

    def attach(self, network: nn.Module) -> None:
        """Receive the network with which clients' models are evaluated; it may be changed.

        A worker process calls this once, at its start.
        """

    def context(self, site: ClientContext) -> ClientContext:
        """Return a client's context (data and random numbers) as this protection changes it.

        A worker process calls this before a client's turn, and before a client is evaluated.
        """
        return site

    def answer(self, ask: object, turn: Turn, then: Callable[[object], object]) -> object:
        """Return the result of a computation that the method asks for in a turn.

        Args:
            ask: the request, such as a `Fit` for training.
            turn: the client's turn.
            then: computes the result without this protection.
        """
        return then(ask)

    def training(self, ask: Fit, round: int) -> Fit:
        """Return the request for training in round `round` (from 1), before it is answered.

        With this method, unlike `answer`, clients can still be trained together.
        """
        return ask

    def serving(self, ask: object, client: str) -> object:
        """Return the request that is answered in place of `ask`, in split learning.

        `ask` asks for a computation on data that `client` sent, and comes from the server half of
        the method. The machine with the server's layers calls this before it answers.
        """
        return ask

    def computing(self, ask: object, round: int, then: Callable[[object], object]) -> object:
        """Return the result of a request that `serving` returned, in round `round` (from 1).

        `then(ask)` computes the result without this protection.
        """
        return then(ask)

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Return a turn's reply as it leaves the client."""
        return reply

    def predicting(self, params: Params, done: int) -> Params:
        """Return the parameters with which a client predicts after `done` rounds."""
        return params

    def measuring(self, client: str, round: int) -> None:
        """Prepare to measure a client's model; the worker calls this before each evaluation."""

    def scores(self, params: Params) -> Mapping[str, float]:
        """Return additional metrics, by name, of the parameters with which a client predicts."""
        return {}

    def fault(self, sealed: SealedReply, client: str) -> str | None:
        """Return why a client's reply from another machine must not count; None if it may count."""
        return None

    def covers(self, client: str, round: int, why: str) -> bool:
        """Return whether the client sends zeros, which count, in place of a faulty reply.

        The client's machine calls this for a refused reply; `why` is the reason of the refusal.
        Whether a reply is faulty may depend on the client's data, and zeros hide it from the
        server.
        """
        return False

    def noise_key(self, client: str) -> NoiseKey | None:
        """Return the key of the noise that a client adds to its reply in a secure sum, or None."""
        return None

    def receiving(self) -> Check | None:
        """Return a check of what a client sends to the server of split learning, or None.

        The server calls this once for each client and round, so that a check may keep state.
        """
        return None


class SingleReplies(NamedTuple):
    """Clients' replies to one request, for a hook that looks at every reply.

    Attributes:
        came: replies that passed the checks, by client, in the order of the cohort.
        messages: the message to each client that was asked, by client.
        templates: trees with the shapes that replies must have, for trees that no message has.
        exposed: trees, weights and metrics that a reply to this kind of request may contain.
        shapes: trees with the shapes of the result, for use if no reply came.
        stream: random numbers of this round and request.
        form: layout of a reply as integers modulo 2^64 for secure aggregation; None without it.
    """

    came: Mapping[str, SealedReply]
    messages: Mapping[str, Message]
    templates: Mapping[str, Params]
    exposed: Exposure
    shapes: Mapping[str, Params]
    stream: RandomStream
    form: ReplyLayout | None = None


class CombinedReplies(NamedTuple):
    """The aggregate for the method, and a status for every client whose reply was left out.

    Attributes:
        aggregate: the combined replies.
        statuses: why a reply was left out, by client.
    """

    aggregate: Aggregate
    statuses: Mapping[str, str]


class ServerHooks:
    """One protection on the server; methods that are not overridden change nothing.

    Attributes:
        hides_cohort: whether it is secret which clients a round asks, and whether it asks any.
    """

    hides_cohort: ClassVar[bool] = False

    def cohort(
        self,
        clients: Sequence[str],
        round: int,
        draw: Callable[[Sequence[str], int], Sequence[str]],
    ) -> Sequence[str]:
        """Return the clients that a round asks.

        `draw(clients, round)` returns the clients that a round asks without this protection; it may
        also be called for earlier rounds.
        """
        return draw(clients, round)

    def looks_at(self, exposed: Exposure) -> bool:
        """Return whether this hook combines the replies to a request itself, by `combine`.

        `exposed` says what these replies may contain. Only robust rules override this method; a
        protection of `privacy.own` that overrides it is refused.
        """
        return False

    def combine(self, replies: SingleReplies) -> CombinedReplies:
        """Aggregate replies in place of a weighted sum.

        The server calls this for the first hook whose `looks_at` returns True. A client whose
        status begins with `LEFT_OUT` keeps its new state.
        """
        raise NotImplementedError

    def release(self, whole: Aggregate, phase: str, number: int, asked: int) -> Aggregate:
        """Change a sum before the method sees it, for instance by adding noise.

        Args:
            whole: the sum of the replies that counted.
            phase: the round's number; "setup" before the first, "finish" after the last round.
            number: number of the request in its phase, from 1.
            asked: number of clients that were asked.
        """
        return whole

    def metrics(self) -> Mapping[str, float]:
        """Return numbers, by column, for a round's row of rounds.csv, such as the spent epsilon."""
        return {}


def nobody(line: str) -> None:
    """Ignore a line that is meant for an operator."""


@dataclass(frozen=True)
class ProtectedRun:
    """Facts about a run that a protection may use.

    Attributes:
        method: the method of the run.
        task: the task of the run, with its seed.
        federation: the people whose data are on this machine.
        rounds: number of rounds.
        state: folder of clients' states, in which a protection may keep secrets and logs.
        here: whether people's data are on this machine; false on the server of a deployment.
        tell: prints a line for the operator of the clients' machine, and for nobody else.
        hooks: client hooks of the protections that come before this one.
        device: device on which clients train.
    """

    method: Method
    task: Task
    federation: Federation
    rounds: int
    state: Path = Path()
    here: bool = True
    tell: Callable[[str], None] = nobody
    hooks: Sequence[ClientHooks] = ()
    device: torch.device = CPU


class Guarantee(NamedTuple):
    """Epsilon-delta guarantee for a unit of data, such as a person.

    Attributes:
        unit: the unit that is hidden.
        epsilon: epsilon of a whole run of one seed and method.
        delta: the delta at which epsilon is computed.
        neighbours: in words, the difference of two data sets that cannot be told apart.
        against: from whom the unit is hidden, in words.
        ratio: standard deviation of the noise in a mean update, as a multiple of the clip norm;
            None: unknown.
        people: number of people among whom one person is hidden; 0: unknown.
    """

    unit: Literal["person", "lab", "sample"]
    epsilon: float
    delta: float
    neighbours: str
    against: str
    ratio: float | None = None
    people: int = 0


class Promise(NamedTuple):
    """What a protection promises about a run before the run begins.

    Attributes:
        text: the line that `vergence explain` prints.
        heading: heading of this line on the page for an ethics board; "": the page prints
            `guarantee` instead.
        people: what the protection promises about people, for the ethics page; None: nobody has
            checked what it promises.
        guarantee: the promise as numbers, if it is about people or samples.
    """

    text: str
    heading: str = ""
    people: str | None = ""
    guarantee: Guarantee | None = None


class Statement(NamedTuple):
    """One sentence of a report about what a protection changes, whatever the data are.

    In the output of `vergence explain`, `part` is `table` (before what other clients learn),
    `closing table` (after it), `size` (below the flow of data) or `update` (next to an update that
    is sent). On the page for an ethics board it is `server` or `participants` (how far each is
    trusted), `residual` (what may still be found out) or `unprotected`.

    Attributes:
        part: place of the sentence in a report.
        text: the sentence.
        who: the party that learns what the sentence says, for a row of a table.
        checked: whether this software has checked the sentence; False for `privacy.own`.
    """

    part: Literal[
        "table",
        "closing table",
        "size",
        "update",
        "server",
        "participants",
        "residual",
        "unprotected",
    ]
    text: str
    who: str = ""
    checked: bool = True


class Protection:
    """Base of protections: a frozen dataclass of its options, in a file of its own.

    An experiment names a user's own protection as `privacy.own = [{ name = "rounding.py", digits =
    3 }]`, or `"package.module:Class"`. Methods that are not overridden change nothing and report
    nothing.

    Attributes:
        refuses: settings that this protection cannot be combined with, each with the reason. The
            names are those of the table in `vergence.engine.compatibility`, such as "secure sums".
        forecasts: whether `forecast` returns any promise.
    """

    refuses: ClassVar[Mapping[str, str]] = {}
    forecasts: ClassVar[bool] = True

    def check(self, run: ProtectedRun) -> None:
        """Raise a `ConfigError` with the reason if this protection cannot protect a run.

        The validation of an experiment calls this before anything is trained.
        """

    def client(self, run: ProtectedRun) -> ClientHooks | None:
        """Return the hooks for the work of clients, or None."""

    def server(self, run: ProtectedRun) -> ServerHooks | None:
        """Return the hooks for the server, or None."""

    def forecast(self, run: ProtectedRun) -> Sequence[Promise | str]:
        """Return what the protection promises, for `vergence explain` and the ethics page."""
        return ()

    def statements(self, run: ProtectedRun) -> Sequence[Statement]:
        """Return sentences on who sees what, for `vergence explain` and the ethics page.

        The run's data, or the number of people, may be missing.
        """
        return ()

    def spent(self, run: ProtectedRun) -> Mapping[str, object]:
        """Return numbers by name for results.json after a run, such as the spent epsilon."""
        return {}


def answered(
    hooks: Sequence[ClientHooks], ask: object, turn: Turn, plain: Callable[[Any], object]
) -> object:
    """Return the result of a computation in a client's turn, as the client hooks change it.

    The first hook is the outermost.

    Args:
        hooks: the client hooks, in the order of the run's list.
        ask: the request, such as a `Fit` for training.
        turn: the client's turn.
        plain: computes the result without any hook.
    """
    # The first hook is the outermost: it sees the result of all later ones, and none of them can
    # change what it returns.
    at = next((at for at, hook in enumerate(hooks) if isinstance(ask, hook.answers)), None)
    if at is None:
        return plain(ask)
    return hooks[at].answer(ask, turn, lambda ask: answered(hooks[at + 1 :], ask, turn, plain))
