"""Execution of clients' turns: run a method's client half, train, and prepare the reply.

Used in `adaptation`, `deployment`, `engine` and `experiment`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from vergence import profiling
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.federation import Federation, PublicData
from vergence.core.layers.averaged_statistics import never_masking
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
from vergence.core.serialization import CPU
from vergence.core.task import GLOBAL_GENERATOR, Task
from vergence.engine.early_stopping import VALIDATION
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
from vergence.training.device import training_copies
from vergence.training.sequential import NO_COPIES, Solver
from vergence.training.stacked import Stacked, groups_of
from vergence.training.steps import Trainers
from vergence.wire.codecs import Compression, seal_coded

Ask = Fit | Compute | Step | Forward | Mean
NONE = torch.zeros(0, dtype=torch.int64)
"""An empty selection of samples."""


class TurnResult(NamedTuple):
    """Result of a client's turn, that is, its work on one message of the server.

    Attributes:
        result: numbers for the run's tables, such as steps.
        sealed: the reply to the server; None: the client sends nothing.
        state: the client's state after the turn.
    """

    result: ClientResult
    sealed: SealedReply | None
    state: ClientState


@dataclass(frozen=True)
class LocalData:
    """Data that an executor computes with.

    Attributes:
        trained_on: data that clients train on; in a data centre, the pooled data of all people.
        people: data on which people are evaluated, by person.
        all_here: whether `people` are all people of the run. On a client's machine in a deployment
            it is False.
    """

    trained_on: Federation
    people: Federation
    all_here: bool = False


@dataclass(frozen=True)
class Computation:
    """Settings of an executor's computation, and of the compression of replies.

    Attributes:
        precision: number format of training and scoring.
        stacks: whether several clients are trained at once as one batched network (a stack).
        device: device of training. A GPU computes several turns at once even without stacks, in
            `STREAMS` CUDA streams.
        wire: compression of replies.
    """

    precision: Precision = "fp32"
    stacks: bool = False
    device: torch.device = CPU
    wire: Compression = Compression()


class ClientExecutor:
    """Runs clients' turns for one method on one task, with one network in memory.

    Args:
        method: the method.
        task: the task.
        data: data of the people whose turns run here.
        stream: source of the run's random numbers.
        how: settings of the computation.
        hooks: protections that act in clients' turns, outermost first.
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
        far = how.device.type != "cpu"
        self.moved = training_copies(self.trained_on, how.device) if far else NO_COPIES
        self.solver = Solver(task, how.precision, how.device, self.moved)
        self.one_by_one = any(Fit in hook.answers for hook in self.hooks)
        # A recording would hold one augmentation, or another optimiser's count of steps, for ever.
        eager = task.augments or method.served or callable(method.local.optimizer)
        graphs = far and not (eager or self.one_by_one)
        self.graphed = Graphed(task, how.device, how.precision, STREAMS) if graphs else None
        scorer = self.graphed or self.solver
        self.stacked = Stacked(task, how.device, how.precision, scorer) if how.stacks else None
        self.measure = Evaluation(task, data.people, scorer.outputs, data.all_here, self.hooks)
        for hook in self.hooks:
            hook.attach(self.solver.module)
        self.trainers = Trainers(task, how.device)
        self.records = method.state_records(task)

    def turn(self, task: ClientTask, state: ClientState, batch: TaskBatch) -> TurnResult:
        """Run one client's turn from its state: answer the method's requests, prepare the reply.

        A client whose DP-SGD budget is spent sends no reply, and keeps its state.
        """
        turn = ClientTurn(self, task, state, batch)
        try:
            while turn.ask is not None:
                turn.go_on(self._answer(turn.ask, turn))
        # A client without budget keeps its state; the run goes on with the others.
        except DpSgdBudgetSpent as spent:
            refused = ClientResult(task.client, f"{QUARANTINED}{spent}")
            return TurnResult(refused, None, state)
        return self._done(turn)

    def fault(self, sealed: SealedReply, client: str) -> str | None:
        """Return why a reply from another machine must be refused; None: it may count."""
        faults = (hook.fault(sealed, client) for hook in self.hooks)
        return next((fault for fault in faults if fault is not None), None)

    def covers(self, client: str, round: int, why: str) -> bool:
        """Return whether a protection replaces a client's faulty reply by zeros, which count.

        `why` says what is wrong with the reply.
        """
        return any(hook.covers(client, round, why) for hook in self.hooks)

    def noise_key(self, client: str) -> NoiseKey:
        """Return the secret key of the noise that a client adds to its part of a secure sum."""
        keys = [key for hook in self.hooks if (key := hook.noise_key(client)) is not None]
        if not keys:
            raise ConfigError(
                "noise in a secure sum needs privacy.user, and no hook has its secret"
            )
        return keys[0]

    def receiving(self) -> list[Check]:
        """Return the hooks' checks of what one client of split learning sends to the server."""
        return [check for hook in self.hooks if (check := hook.receiving()) is not None]

    @property
    def together(self) -> bool:
        """Whether several clients' turns are computed at once: in a batched network or on a GPU."""
        return self.stacked is not None or self.graphed is not None

    def turns(
        self, tasks: Sequence[ClientTask], states: Sequence[ClientState], batch: TaskBatch
    ) -> list[TurnResult]:
        """Run the turns of several clients, and do the trainings that they ask for together.

        The objects in `states` do not change; each result holds the new state of its client.
        """
        pairs = zip(tasks, states, strict=True)
        turns = [ClientTurn(self, task, state, batch) for task, state in pairs]
        while asking := [turn for turn in turns if turn.ask is not None]:
            fits = [turn for turn in asking if isinstance(turn.ask, Fit)]
            for turn in asking:
                if not isinstance(turn.ask, Fit):
                    turn.go_on(self._answer(turn.ask, turn))
            for group in groups_of([turn.ask for turn in fits if isinstance(turn.ask, Fit)]):
                self._train([fits[place] for place in group])
        return [self._done(turn) for turn in turns]

    def _train(self, turns: Sequence[ClientTurn]) -> None:
        """Do the trainings that these turns wait for, and resume each turn with its result."""
        # A stack of one client would cost more than the plain network.
        trainer = self.graphed if self.stacked is None or len(turns) == 1 else self.stacked
        special = trainer is self.graphed and _special(turns[0].ask)
        if trainer is None or special or self.one_by_one:
            for turn in turns:
                turn.go_on(self._answer(turn.ask, turn))
            return
        asks = [self._placed(turn.ask) for turn in turns if isinstance(turn.ask, Fit)]
        streams = [turn.batches() for turn in turns]
        with GLOBAL_GENERATOR, profiling.phase("training"):
            fitted = trainer.fit_all(asks, streams, turns[0].progress)
        for turn, result in zip(turns, fitted, strict=True):
            turn.go_on(result)

    def site(
        self, federation: Federation, client: str, message: Message, progress: float | None = None
    ) -> ClientContext:
        """Return the context of a client: the data and random numbers that it may use.

        Args:
            federation: data of the clients.
            client: the client.
            message: the message that the client was sent.
            progress: fraction of the run's rounds that are done; None: the client is evaluated, and
                does not train.
        """
        data, at = federation.people[client], message.round
        # Named by client, round and verb, the numbers do not depend on who takes a turn before.
        rng = self.stream.child(client, at, message.verb)
        place = ClientContext(client, data.train, data.val, self.task, at, rng, progress or 0.0)
        if progress is not None and self.method.exposure[message.verb].blind:
            place = replace(place, train=place.train.subset(NONE), val=place.val.subset(NONE))
        for hook in self.hooks:
            place = hook.context(place)
        return never_masking(place)

    def state(self, state: ClientState) -> object:
        """Return the method's part of a client's state; make a fresh one if there is none yet."""
        return self.method.client(self.task) if state.state is None else state.state

    def training(self, ask: Fit, round: int) -> Fit:
        """Return a request for training in a round (from 1), after all hooks have changed it."""
        for hook in self.hooks:
            ask = hook.training(ask, round)
        return ask

    def model(self, params: Params, done: int) -> Params:
        """Return the parameters to predict with, after all hooks have changed them.

        `done` is the number of rounds done.
        """
        for hook in self.hooks:
            params = hook.predicting(params, done)
        return params

    def predicting(self, state: object, message: Message, site: ClientContext) -> Params:
        """Return the parameters with which a client predicts once it has received a message.

        The message's `round` is the number of rounds done.
        """
        done = message.round

        def answer(ask: Ask) -> object:
            """Answer a request of the method while a person is evaluated; no steps are counted."""
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
        """Return the result of a finished turn, with the reply in the form in which it is sent.

        Protections may change the reply; then it is multiplied by its weights, and compressed if
        the run compresses updates.

        The trained model is evaluated if the turn has the evaluation point P1 (after local
        training).
        """
        client, (state, reply) = turn.site.id, turn.end
        turn.after = state
        for hook in self.hooks:
            reply = hook.outgoing(reply, turn)
        sealed, residuals = seal_coded(
            reply, turn.message.round, self.how.wire, turn.state.residuals
        )
        measured = {}
        # P1 is the model after local training; a turn that trained nothing has none.
        if "P1" in turn.points and turn.fitted is not None:
            with GLOBAL_GENERATOR:
                measured["P1"] = self.measure.own(turn.fitted.params, client)
        result = ClientResult(
            client,
            examples=self.task.weigh(turn.site.train),
            steps=turn.steps,
            measured=numbers(measured),
        )
        return TurnResult(result, sealed, ClientState(state, turn.state.known_masks, residuals))

    def answer(self, ask: object, progress: float) -> object:
        """Answer a request of the method's server half, such as an optimiser step.

        `progress` is the fraction of the run's rounds that are done.

        Raises:
            ConfigError: a server half may not make a request of this type.
        """
        if isinstance(ask, Step | Forward | Compute):
            with profiling.phase("training"):
                if isinstance(ask, Compute):
                    return self.solver.compute(ask)
                return self.trainers.answer(ask, progress)
        if isinstance(ask, GetPublicData):
            return public_data(self.people)
        raise ConfigError(
            f"a server's half cannot ask for a {type(ask).__name__}; it may `step`, `forward`, "
            "`compute` and borrow `proxies`"
        )

    def _answer(self, ask: Ask | None, turn: ClientTurn) -> object:
        """Answer a request of a turn, such as a training; hooks of protections may change it."""
        # There is one network, which the turns of several threads train one after the other.
        with GLOBAL_GENERATOR, profiling.phase("training"):
            return answered(self.hooks, ask, turn, lambda ask: self._plain(ask, turn))

    def _plain(self, ask: Ask, turn: ClientTurn) -> object:
        """Answer a request of a turn, without hooks of protections."""
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
        """Return a training request with the copy of its data on the GPU, if there is a copy."""
        _, data = self.moved.get(id(ask.data), (None, ask.data))
        return replace(ask, data=data)

    def evaluate(
        self, client: str, message: Message, state: ClientState, points: Sequence[str]
    ) -> ClientResult:
        """Return the metrics of a client's models, by evaluation point.

        Args:
            client: the client.
            message: the message that the client is sent.
            state: the client's state.
            points: names of the evaluations to do. P0: the model with which the client would
                predict now, on test samples. P2: the server's model, on test samples; left out if
                the message has no tree `model`. V0: the model of P0, on validation samples.
        """
        return self._scores(client, self._models(client, message, state, points), points)

    @property
    def prepares(self) -> bool:
        """Whether the outputs of several people's models are computed before any are scored."""
        # Protections draw noise person by person; a tuned prior changes test inputs by validation
        # outputs; and other mappings of people may make their samples anew.
        tunes = bool(self.hooks) or getattr(self.task, "tunes_prior", False)
        return self.graphed is not None and isinstance(self.people.people, dict) and not tunes

    def evaluate_all(
        self, tasks: Sequence[ClientTask], states: Sequence[ClientState], points: Sequence[str]
    ) -> list[ClientResult]:
        """Evaluate several clients as `evaluate` does; a GPU computes all outputs at once."""
        assert self.graphed is not None
        models = [
            self._models(task.client, task.message, state, points)
            for task, state in zip(tasks, states, strict=True)
        ]
        people = [self.people.people[task.client] for task in tasks]
        parts = [
            (model, part)
            for data, of in zip(people, models, strict=True)
            for point, model in of.items()
            for part, wanted in (
                (data.test, point in points),
                (data.val, self.task.uses_validation or (VALIDATION in points and point == "P0")),
            )
            if wanted and len(part)
        ]
        with self.measure.prepared(parts, self.graphed.outputs_of):
            pairs = zip(tasks, models, strict=True)
            return [self._scores(task.client, of, points) for task, of in pairs]

    def _models(
        self, client: str, message: Message, state: ClientState, points: Sequence[str]
    ) -> dict[str, Params]:
        """Return a client's models to evaluate by evaluation point: P0, and P2 if asked for."""
        for hook in self.hooks:
            hook.measuring(client, message.round)
        site = self.site(self.people, client, message)
        models = {"P0": self.predicting(self.state(state), message, site)}
        if "P2" in points and "model" in message.trees:
            models["P2"] = self.model(message["model"], message.round)
        return models

    def _scores(
        self, client: str, models: Mapping[str, Params], points: Sequence[str]
    ) -> ClientResult:
        """Return the metrics of a client's models at these evaluation points."""
        asked = {point: model for point, model in models.items() if point in points}
        measured = {point: self.measure.own(model, client) for point, model in asked.items()}
        # Last: the test on everybody's samples draws other noise at a guarded cut.
        for point, model in asked.items():
            measured[point] |= self.measure.pooled(model)
        if VALIDATION in points:
            measured[VALIDATION] = self.measure.validation(models["P0"], client)
        return ClientResult(client, measured=numbers(measured))


class ClientTurn:
    """One client's turn in progress: the method's client half makes requests and gets answers.

    Attributes:
        state: the client's state at the beginning of the turn.
        site: data and random numbers that the client may use.
        fitted: result of the last training in this turn.
        fits: number of trainings so far.
        steps: number of optimiser steps so far.
        ask: the method's next request, such as a training; None: the turn is over.
        end: the client's new state and the reply, once the turn is over.
    """

    def __init__(
        self, worker: ClientExecutor, task: ClientTask, state: ClientState, batch: TaskBatch
    ) -> None:
        self.worker, self.state, self.points = worker, state, batch.points
        self.message, self.progress = task.message, batch.progress
        self.site = worker.site(worker.trained_on, task.client, task.message, batch.progress)
        self.before = state.state
        self.after: object = None
        self.fitted: FitResult | None = None
        self.fits, self.steps = 0, 0
        self.ask: Ask | None = None
        handler = getattr(worker.method, f"on_{task.message.verb}")
        # A handler without `yield` asks for nothing: what it returns is the end of the turn.
        self.end = self.conversation = handler(worker.state(state), task.message, self.site)
        if isinstance(self.conversation, Generator):
            self._send(None)

    def batches(self) -> RandomStream:
        """Return the random numbers that draw the batches of the next training."""
        return self.site.rng.child("batches", self.fits)

    def go_on(self, answer: object) -> None:
        """Give the method's client half an answer; the half then runs to its next request."""
        if isinstance(answer, FitResult):
            self.fitted = answer
            self.fits += 1
            self.steps += answer.steps
        elif isinstance(answer, StepResult):
            self.steps += 1
        self._send(answer)

    def _send(self, answer: object) -> None:
        """Send an answer to the method's client half; store its next request, or its result."""
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


def public_data(federation: Federation) -> PublicData:
    """Return the public samples on the server, which belong to no client.

    Raises:
        ConfigError: there are no public samples.
    """
    if federation.proxies is None:
        raise ConfigError(
            "this method's server needs samples of nobody's, and there are none; add proxy = "
            '{ name = "DATA SET", ... } to the experiment, of the same kind as its federation'
        )
    return federation.proxies


def _special(ask: Ask | None) -> bool:
    """Return whether a training has its own objective or a correction of gradients.

    CUDA graphs cannot record these.
    """
    return isinstance(ask, Fit) and (ask.objective is not None or ask.correction is not None)
