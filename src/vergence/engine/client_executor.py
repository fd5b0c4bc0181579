"""Execution of one client's turn: the method's client half, its local training, a sealed reply."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from vergence import profiling
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.federation import Federation, PublicData
from vergence.core.local_training import Precision
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import (
    Compute,
    Fit,
    FitResult,
    Forward,
    GetPublicData,
    Mean,
    Step,
    StepResult,
)
from vergence.core.task import Task
from vergence.engine.evaluation import Evaluation
from vergence.engine.records import (
    QUARANTINED,
    ClientResult,
    ClientState,
    ClientTask,
    TaskBatch,
    numbers,
)
from vergence.errors import ConfigError
from vergence.privacy.dp.dp_sgd_solver import DpSgdBudgetSpent
from vergence.privacy.hooks import Check, ClientHooks, answered
from vergence.privacy.keyed_noise import NoiseKey
from vergence.training.cuda_graphs import STREAMS, Graphed
from vergence.training.device import copies
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked, groups_of
from vergence.training.steps import Trainers
from vergence.wire.codecs import Compression, seal_coded

Ask = Fit | Compute | Step | Forward | Mean
CPU = torch.device("cpu")
NONE = torch.zeros(0, dtype=torch.int64)
"""The numbers of no samples."""


class TurnResult(NamedTuple):
    """Outcome of a turn: its result, what the client sends (None: nothing), what it keeps."""

    result: ClientResult
    sealed: SealedReply | None
    state: ClientState


@dataclass(frozen=True)
class LocalData:
    """Data that an executor computes with.

    Attributes:
        trained_on: what turns see: the clients' own, or pooled data for a data centre.
        people: what evaluation sees.
        all_here: whether `people` are all of the run, and not one client's of a deployment.
    """

    trained_on: Federation
    people: Federation
    all_here: bool = False


@dataclass(frozen=True)
class Computation:
    """Settings of an executor's computation, and of how its replies are packed.

    Attributes:
        precision: of training and scoring.
        stacks: turns taken together are trained as one.
        device: where; on a GPU turns are taken together in any case, side by side in `STREAMS`
            streams where they do not stack.
        wire: codec of replies.
    """

    precision: Precision = "fp32"
    stacks: bool = False
    device: torch.device = CPU
    wire: Compression = Compression()


class ClientExecutor:
    """Takes turns for one method on one task: one resident network, everybody's data at hand.

    Args:
        method: whose turns are taken.
        task: what is learned.
        data: of the people here.
        stream: random numbers of the run.
        how: of the computation.
        hooks: the protections of clients' turns.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        data: LocalData,
        stream: RandomStream,
        how: Computation = Computation(),
        hooks: Sequence[ClientHooks] = (),
    ) -> None:
        self.method, self.task, self.stream = method, task, stream
        self.data, self.trained_on, self.people = data, data.trained_on, data.people
        self.how, self.hooks = how, tuple(hooks)
        self.solver = Solver(task, how.precision)
        graphs = how.device.type != "cpu"
        self.graphed = Graphed(task, how.device, how.precision, STREAMS) if graphs else None
        self.moved = copies(self.trained_on, how.device) if graphs else {}
        scorer = self.graphed or self.solver
        self.stacked = Stacked(task, how.device, how.precision, scorer) if how.stacks else None
        self.measure = Evaluation(task, data.people, scorer.outputs, data.all_here, self.hooks)
        self.one_by_one = any(Fit in hook.answers for hook in self.hooks)
        for hook in self.hooks:
            hook.attach(self.solver.module)
        self.trainers = Trainers(task)
        self.records = method.state_records(task)

    def turn(self, task: ClientTask, kept: ClientState, batch: TaskBatch) -> TurnResult:
        """Take a client's turn; `kept` is what it has at home."""
        turn = ClientTurn(self, task, kept, batch)
        try:
            while turn.ask is not None:
                turn.go_on(self._answer(turn.ask, turn))
        except DpSgdBudgetSpent as spent:
            refused = ClientResult(task.client, f"{QUARANTINED}{spent}")
            return TurnResult(refused, None, kept)
        return self._done(turn)

    def fault(self, sealed: SealedReply, client: str) -> str | None:
        """Reason not to count a client's reply from another machine, None if it may be."""
        faults = (hook.fault(sealed, client) for hook in self.hooks)
        return next((fault for fault in faults if fault is not None), None)

    def covers(self, client: str, round: int, why: str) -> bool:
        """True if a reply that does not count leaves as one of zeros."""
        return any(hook.covers(client, round, why) for hook in self.hooks)

    def noise_key(self, client: str) -> NoiseKey:
        """Secret of the noise that a client adds to its part of a secure sum."""
        keys = [key for hook in self.hooks if (key := hook.noise_key(client)) is not None]
        if not keys:
            raise ConfigError(
                "noise in a secure sum needs privacy.user, and no hook has its secret"
            )
        return keys[0]

    def receiving(self) -> list[Check]:
        """Checks of what one client sends while it is served."""
        return [check for hook in self.hooks if (check := hook.receiving()) is not None]

    @property
    def together(self) -> bool:
        """True if several turns are best taken at once."""
        return self.stacked is not None or self.graphed is not None

    def turns(
        self, tasks: Sequence[ClientTask], kept: Sequence[ClientState], batch: TaskBatch
    ) -> list[TurnResult]:
        """Take several turns in step: what all of them want trained is trained together."""
        pairs = zip(tasks, kept, strict=True)
        turns = [ClientTurn(self, task, own, batch) for task, own in pairs]
        while asking := [turn for turn in turns if turn.ask is not None]:
            fits = [turn for turn in asking if isinstance(turn.ask, Fit)]
            for turn in asking:
                if not isinstance(turn.ask, Fit):
                    turn.go_on(self._answer(turn.ask, turn))
            for group in groups_of([turn.ask for turn in fits if isinstance(turn.ask, Fit)]):
                self._train([fits[place] for place in group])
        return [self._done(turn) for turn in turns]

    def _train(self, turns: Sequence[ClientTurn]) -> None:
        trainer = self.graphed if self.stacked is None or len(turns) == 1 else self.stacked
        special = trainer is self.graphed and _special(turns[0].ask)
        if trainer is None or special or self.one_by_one:
            for turn in turns:
                turn.go_on(self._answer(turn.ask, turn))
            return
        asks = [self._placed(turn.ask) for turn in turns if isinstance(turn.ask, Fit)]
        streams = [turn.batches() for turn in turns]
        with profiling.phase("training"):
            fitted = trainer.fit_all(asks, streams, turns[0].progress)
        for turn, result in zip(turns, fitted, strict=True):
            turn.go_on(result)

    def site(
        self, federation: Federation, client: str, message: Message, progress: float | None = None
    ) -> ClientContext:
        """Return a client's place, with the part of the data that a turn may see.

        Without the run's `progress` it is no turn, but a measurement.
        """
        data, at = federation.people[client], message.round
        rng = self.stream.child(client, at, message.verb)
        place = ClientContext(client, data.train, data.val, self.task, at, rng, progress or 0.0)
        if progress is not None and self.method.exposure[message.verb].blind:
            place = replace(place, train=place.train.subset(NONE), val=place.val.subset(NONE))
        for hook in self.hooks:
            place = hook.context(place)
        return place

    def state(self, kept: ClientState) -> Any:
        """Return the state a client goes on from."""
        return self.method.client(self.task) if kept.state is None else kept.state

    def training(self, ask: Fit, round: int) -> Fit:
        """Return a request for training in a round, counted from 1, as hooks change it."""
        for hook in self.hooks:
            ask = hook.training(ask, round)
        return ask

    def model(self, params: Params, done: int) -> Params:
        """Parameters that somebody predicts with after so many rounds, as hooks change them."""
        for hook in self.hooks:
            params = hook.predicting(params, done)
        return params

    def predicting(self, state: Any, message: Message, site: ClientContext) -> Params:
        """Parameters that a client predicts with, after the message's number of rounds."""
        done = message.round

        def answer(ask: Ask) -> Any:
            with profiling.phase("training"):
                if isinstance(ask, Step | Forward):
                    return self.trainers.answer(ask, 1.0)
                if isinstance(ask, Fit):
                    batches = site.rng.child("batches", 0)
                    return self.solver.fit(self.training(ask, done), batches, 1.0)
                assert isinstance(ask, Compute)
                return self.solver.compute(ask)

        return self.model(drive(self.method.model_on(state, message, site), answer), done)

    def _done(self, turn: ClientTurn) -> TurnResult:
        client, (state, reply) = turn.site.id, turn.end
        turn.after = state
        for hook in self.hooks:
            reply = hook.outgoing(reply, turn)
        sealed, owed = seal_coded(reply, turn.message.round, self.how.wire, turn.kept.owed)
        measured = {}
        if "P1" in turn.points and turn.fitted is not None:
            measured["P1"] = self.measure.own(turn.fitted.params, client)
        result = ClientResult(
            client,
            examples=self.task.weigh(turn.site.train),
            steps=turn.steps,
            measured=numbers(measured),
        )
        return TurnResult(result, sealed, ClientState(state, turn.kept.told, owed))

    def answer(self, ask: Any, progress: float) -> Any:
        """Answer what a server's own half asks for."""
        if isinstance(ask, Step | Forward | Compute):
            with profiling.phase("training"):
                if isinstance(ask, Compute):
                    return self.solver.compute(ask)
                return self.trainers.answer(ask, progress)
        if isinstance(ask, GetPublicData):
            return lent(self.people)
        raise ConfigError(
            f"a server's half cannot ask for a {type(ask).__name__}; it may `step`, `forward`, "
            "`compute` and borrow `proxies`"
        )

    def _answer(self, ask: Ask | None, turn: ClientTurn) -> Any:
        with profiling.phase("training"):
            return answered(self.hooks, ask, turn, lambda ask: self._plain(ask, turn))

    def _plain(self, ask: Ask, turn: ClientTurn) -> Any:
        """Answer what a turn asks for, where no protection does."""
        if isinstance(ask, Step | Forward):
            return self.trainers.answer(ask, turn.progress)
        if isinstance(ask, Mean):
            return ask.shortened().mean(0)
        if isinstance(ask, Compute):
            return self.solver.compute(ask)
        if self.graphed is None or _special(ask):
            return self.solver.fit(ask, turn.batches(), turn.progress)
        return self.graphed.fit(self._placed(ask), turn.batches(), turn.progress)

    def _placed(self, ask: Fit) -> Fit:
        """Return a request whose data lie where they are trained on, if they were moved there."""
        _, data = self.moved.get(id(ask.data), (None, ask.data))
        return replace(ask, data=data)

    def evaluate(
        self, client: str, message: Message, kept: ClientState, points: Sequence[str]
    ) -> ClientResult:
        """Measure a client.

        Args:
            client: who is measured.
            message: what it is sent.
            kept: what it has at home.
            points: P0 (what it would predict with now), P2 (the server's model).
        """
        for hook in self.hooks:
            hook.measuring(client, message.round)
        site = self.site(self.people, client, message)
        models = {"P0": self.predicting(self.state(kept), message, site)}
        if "P2" in points and "model" in message.trees:
            models["P2"] = self.model(message["model"], message.round)
        asked = {point: model for point, model in models.items() if point in points}
        measured = {point: self.measure.own(model, client) for point, model in asked.items()}
        for point, model in asked.items():  # last: at a guarded cut it draws other noise
            measured[point] |= self.measure.pooled(model)
        return ClientResult(client, measured=numbers(measured))


class ClientTurn:
    """A turn under way: what the method wants next (`ask`), or its `end`, a state and a reply."""

    def __init__(
        self, worker: ClientExecutor, task: ClientTask, kept: ClientState, batch: TaskBatch
    ) -> None:
        self.worker, self.kept, self.points = worker, kept, batch.points
        self.message, self.progress = task.message, batch.progress
        self.site = worker.site(worker.trained_on, task.client, task.message, batch.progress)
        self.before, self.after = kept.state, None
        self.fitted: FitResult | None = None
        self.fits, self.steps = 0, 0
        self.ask: Ask | None = None
        handler = getattr(worker.method, f"on_{task.message.verb}")
        self.end = self.conversation = handler(worker.state(kept), task.message, self.site)
        if isinstance(self.conversation, Generator):
            self._send(None)

    def batches(self) -> RandomStream:
        """Return the randomness of the fit that is asked for."""
        return self.site.rng.child("batches", self.fits)

    def go_on(self, answer: Any) -> None:
        """Answer what was asked."""
        if isinstance(answer, FitResult):
            self.fitted = answer
            self.fits += 1
            self.steps += answer.steps
        elif isinstance(answer, StepResult):
            self.steps += 1
        self._send(answer)

    def _send(self, answer: Any) -> None:
        try:
            self.ask = self.conversation.send(answer)
        except StopIteration as end:
            self.ask, self.end = None, end.value
            return
        if not isinstance(self.ask, Ask):
            raise ConfigError(
                f"a client's '{self.message.verb}' asks for a {type(self.ask).__name__}; it "
                "may ask for `fit`, `compute`, `step` and `forward` only"
            )
        if isinstance(self.ask, Fit):
            self.ask = self.worker.training(self.ask, self.message.round + 1)


def lent(federation: Federation) -> PublicData:
    """Return the samples of nobody's that a server holds.

    Raises:
        ConfigError: it holds none.
    """
    if federation.proxies is None:
        raise ConfigError(
            "this method's server needs samples of nobody's, and there are none; add proxy = "
            '{ name = "DATA SET", ... } to the experiment, of the same kind as its federation'
        )
    return federation.proxies


def _special(ask: Ask | None) -> bool:
    """True if a fit has parts that are not recorded as CUDA graphs."""
    return isinstance(ask, Fit) and (ask.objective is not None or ask.correction is not None)
