"""Base of protections: their hooks on clients and on the server, and their promises for a run.

Used in `engine`, `experiment`, `privacy` and `reports`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import nn

from vergence.core.aggregation import Aggregate
from vergence.core.client import ClientContext
from vergence.core.federation import Federation
from vergence.core.messages import Message, Reply, SealedReply
from vergence.core.method import Exposure, Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Task
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout

LEFT_OUT = "left out"
"""Begins the status of a reply that arrived well and that `ServerHooks.combine` did not count."""
Check = Callable[[Message, SealedReply], str | None]
"""(message, what a client answered) -> reason not to compute with the answer, None if it may be."""


class Turn(Protocol):
    """A client's turn, as a protection sees it.

    Attributes:
        site: what the client sees.
        message: the message that the client was sent.
        before: the client's state when the turn began; None if it never took part.
        after: the client's state at the end; only `outgoing` may read it.
        progress: share of the run's rounds that are done.
    """

    site: ClientContext
    message: Message
    before: object
    after: object
    progress: float

    def batches(self) -> RandomStream:
        """Random numbers of the training that is asked for."""
        ...


class ClientHooks:
    """One protection in clients' turns; methods that are not overridden change nothing.

    Hooks are asked in the order of the run's list: the first is the outermost in `answer`, and the
    first to see a reply in `outgoing`.

    Attributes:
        answers: kinds of requests whose results `answer` changes; with `Fit` among them, clients
            are trained one by one.
    """

    answers: ClassVar[tuple[type, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.answer is not ClientHooks.answer and not cls.answers:
            raise TypeError(f"{cls.__name__} overrides answer(): name in `answers` what it changes")

    def attach(self, network: nn.Module) -> None:
        """Note, or change, the network with which people are measured."""

    def context(self, site: ClientContext) -> ClientContext:
        """Return the data and random numbers that a client sees, before its turn begins."""
        return site

    def answer(self, ask: object, turn: Turn, then: Callable[[object], object]) -> object:
        """Return the result of a turn's request; `then(ask)` is that without this protection."""
        return then(ask)

    def training(self, ask: Fit, round: int) -> Fit:
        """Return the request for training in this round (from 1), before it is answered.

        With this method, unlike `answer`, clients can still be trained together.
        """
        return ask

    def serving(self, ask: object, client: str) -> object:
        """Return the server half's request for this client's batch, in the form to be answered."""
        return ask

    def computing(self, ask: object, round: int, then: Callable[[object], object]) -> object:
        """Return the result of that request in this round; `then(ask)` is the plain result."""
        return then(ask)

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Return the reply of a turn in the form in which it leaves the client."""
        return reply

    def predicting(self, params: Params, done: int) -> Params:
        """Return the parameters with which a client predicts after `done` rounds."""
        return params

    def measuring(self, client: str, round: int) -> None:
        """Prepare to measure the model with which a client predicts."""

    def scores(self, params: Params) -> Mapping[str, float]:
        """Return additional metrics of the parameters with which a client predicts."""
        return {}

    def fault(self, sealed: SealedReply, client: str) -> str | None:
        """Return why a client's reply from another machine must not count; None if it may."""
        return None

    def covers(self, client: str, round: int, why: str) -> bool:
        """Return whether zeros are sent, and counted, in place of a client's faulty reply.

        With zeros, the server does not learn that the reply was faulty, which may depend on the
        client's data.
        """
        return False

    def noise_key(self, client: str) -> NoiseKey | None:
        """Return the key of the noise that a client adds to its part of a secure sum, if any."""
        return None

    def receiving(self) -> Check | None:
        """Return a check of what one client sends while it is served, if there is one."""
        return None


class SingleReplies(NamedTuple):
    """Replies to one request, for a hook that looks at each of them.

    Attributes:
        came: replies that passed the checks, in the order of the cohort.
        messages: the message to each client that was asked.
        templates: trees of the shape that replies must have, for trees that are not in a message.
        exposed: what replies to this verb may contain.
        shapes: trees with the shapes of the result, for use if no reply came.
        stream: random numbers of this round and request.
        form: layout of replies as rows of words where only sums may be opened, else None.
    """

    came: Mapping[str, SealedReply]
    messages: Mapping[str, Message]
    templates: Mapping[str, Params]
    exposed: Exposure
    shapes: Mapping[str, Params]
    stream: RandomStream
    form: ReplyLayout | None = None


class CombinedReplies(NamedTuple):
    """Aggregate for the method, and the status of every client whose reply did not count."""

    aggregate: Aggregate
    statuses: Mapping[str, str]


class ServerHooks:
    """One protection on the server; methods that are not overridden change nothing.

    Attributes:
        hides_cohort: whether nobody learns which clients were asked in a round, nor whether any was
            asked.
    """

    hides_cohort: ClassVar[bool] = False

    def cohort(
        self,
        clients: Sequence[str],
        round: int,
        draw: Callable[[Sequence[str], int], Sequence[str]],
    ) -> Sequence[str]:
        """Return the clients that a round may ask; `draw(clients, round)` is the plain cohort.

        `draw` may also be called for earlier rounds.
        """
        return draw(clients, round)

    def looks_at(self, exposed: Exposure) -> bool:
        """Return whether `combine` gets the single replies to a request instead of their sum.

        Only robust rules use this: a protection of `privacy.own` that overrides it is refused.
        """
        return False

    def combine(self, replies: SingleReplies) -> CombinedReplies:
        """Aggregate single replies; only the first hook that `looks_at` them is called.

        A status that begins with `LEFT_OUT` lets the client keep its new state.
        """
        raise NotImplementedError

    def release(self, whole: Aggregate, phase: str, number: int, asked: int) -> Aggregate:
        """Change a sum before the method sees it, for instance by adding noise.

        Args:
            whole: the sum of the replies that counted.
            phase: the round's number, "setup" or "finish".
            number: number of the request in its phase, from 1.
            asked: number of clients that were asked.
        """
        return whole

    def metrics(self) -> Mapping[str, float]:
        """Return numbers for the round's row of rounds.csv, such as the epsilon spent so far."""
        return {}


def nobody(line: str) -> None:
    """Ignore a line that is meant for an operator."""


@dataclass(frozen=True)
class ProtectedRun:
    """Facts about a run that a protection may use.

    Attributes:
        method: the method of the run.
        task: the task of the run, with its seed.
        federation: the people whose data are here.
        rounds: number of rounds.
        state: folder of states, which may hold secrets and logs.
        here: whether people's data are on this machine; false on the server of a deployment.
        tell: prints a line for the operator of the clients' machine, and for nobody else.
        hooks: hooks of clients' turns, from the protections that come before this one.
    """

    method: Method
    task: Task
    federation: Federation
    rounds: int
    state: Path = Path()
    here: bool = True
    tell: Callable[[str], None] = nobody
    hooks: Sequence[ClientHooks] = ()


class Guarantee(NamedTuple):
    """Epsilon that hides a unit of data.

    Attributes:
        unit: the unit that is hidden.
        epsilon: epsilon of a whole run of one seed and method.
        delta: the delta at which epsilon is computed.
        neighbours: the two data sets that cannot be told apart.
        against: from whom the unit is hidden.
        ratio: noise in a mean update, as a multiple of the longest update allowed; None: unknown.
        people: number of people among whom one is hidden; 0: unknown.
    """

    unit: Literal["person", "lab", "sample"]
    epsilon: float
    delta: float
    neighbours: str
    against: str
    ratio: float | None = None
    people: int = 0


class Promise(NamedTuple):
    """One promise about a run, before it begins.

    Attributes:
        text: the line of `vergence explain`.
        heading: heading of the same line on the page for an ethics board; "": the page prints
            `guarantee`.
        people: what the protection promises about people, for that page; None: nobody has checked
            it.
        guarantee: the promise as numbers, if it is about people or samples.
    """

    text: str
    heading: str = ""
    people: str | None = ""
    guarantee: Guarantee | None = None


class Statement(NamedTuple):
    """One sentence about what a protection changes, whatever the data are.

    Attributes:
        part: part of a report in which the sentence stands. In `vergence explain` these are `table`
            and `closing table` (before and after what other clients learn), `size` below its flow
            of data, and `update` beside an update that is sent. On the page for an ethics board
            they are `server` and `participants` (how far each is trusted), `residual` (what may
            still be found out) and `unprotected`.
        text: the sentence.
        who: who learns it, in a table.
        checked: whether this software has checked it, which is never so for `privacy.own`.
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
    3 }]`, or `"package.module:Class"`. Methods that are not overridden change nothing and say
    nothing.

    Attributes:
        refuses: settings with which it cannot be combined, under the names of the table in
            `vergence.engine.compatibility` (such as "secure sums"), each with the reason.
        forecasts: whether `forecast` says anything.
    """

    refuses: ClassVar[Mapping[str, str]] = {}
    forecasts: ClassVar[bool] = True

    def check(self, run: ProtectedRun) -> None:
        """Refuse a run that this protection cannot protect, by a `ConfigError` that says why."""

    def client(self, run: ProtectedRun) -> ClientHooks | None:
        """Return the hooks of clients' turns, if there are any."""

    def server(self, run: ProtectedRun) -> ServerHooks | None:
        """Return the hooks of the server, if there are any."""

    def forecast(self, run: ProtectedRun) -> Sequence[Promise | str]:
        """Return promises for `vergence explain` and the ethics page: what is done, and to whom."""
        return ()

    def statements(self, run: ProtectedRun) -> Sequence[Statement]:
        """Return sentences for both on who sees what; data, or their number, may be missing."""
        return ()

    def spent(self, run: ProtectedRun) -> Mapping[str, object]:
        """Return numbers for results.json after a run: what was done, or what was spent."""
        return {}


def answered(
    hooks: Sequence[ClientHooks], ask: object, turn: Turn, plain: Callable[[Any], object]
) -> object:
    """Return the result of a turn's request after all hooks, the first of them outermost."""
    # The first hook is the outermost: it sees the result of all later ones, and none of them can
    # change what it returns.
    at = next((at for at, hook in enumerate(hooks) if isinstance(ask, hook.answers)), None)
    if at is None:
        return plain(ask)
    return hooks[at].answer(ask, turn, lambda ask: answered(hooks[at + 1 :], ask, turn, plain))
