"""One client's turn: drive the method's client half, train what it asks for, seal what it says."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.federation import Federation, PublicData
from vergence.core.local_training import Precision
from vergence.core.masks import Mask
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
from vergence.core.stages import PULL
from vergence.core.task import Task
from vergence.engine.evaluation import Evaluation
from vergence.engine.range_check import SmashedRangeCheck
from vergence.engine.split_defense import DefendedTrainer
from vergence.errors import ConfigError
from vergence.methods.split.base import ClientFront
from vergence.privacy.config import Privacy
from vergence.privacy.dp.dp_sgd_solver import DpSgdBudgetSpent, DpSolver, taken, uncovered
from vergence.privacy.dp.private_selection import PrivateMaskSelector
from vergence.privacy.split.split_guard_client import SplitGuardClient
from vergence.training.cuda_graphs import Graphed
from vergence.training.device import at_home
from vergence.training.pruning import Gradual, within
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked, groups_of
from vergence.training.steps import Trainers
from vergence.wire.codecs import Compression, seal_coded

Ask = Fit | Compute | Step | Forward | Mean
CPU = torch.device("cpu")
ZEROS = "zeros"
"""The share of a pruned run's parameters that are zero: a metric beside those of the task."""
NONE = torch.zeros(0, dtype=torch.int64)
"""The numbers of no samples."""
STREAMS = 4
"""Clients trained side by side on a GPU; each replays its own graph."""


@dataclass(frozen=True)
class ClientTask:
    """Request to a worker: a client's turn, or its evaluation.

    `state` is the client's state, None if it never took part. An evaluation request names the
    points wanted: P0 (what the client would predict with now), P2 (the server's model); a turn may
    be measured at P1 (after local training). `show` lists test samples whose outputs are wanted.
    """

    kind: Literal["turn", "evaluate"]
    client: str
    message: Message
    state: Any = None
    progress: float = 0.0
    points: tuple[str, ...] = ()
    show: tuple[int, ...] = ()
    owed: Mapping[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientResult:
    """Answer of a worker.

    Only `sealed` is what the client sends; `state` stays with it, the rest is measurement. `fault`
    is given where there is no reply, or it was taken elsewhere and does not count.
    """

    client: str
    sealed: SealedReply | None = None
    state: Any = None
    examples: float = 0.0
    steps: int = 0
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    outputs: Tensor | None = None
    owed: Mapping[str, Params] = field(default_factory=dict)
    fault: str | None = None


class ClientExecutor:
    """Takes turns for one method on one task: one resident network, everybody's data at hand.

    `trained_on` is what turns see (pooled data for a data centre), `people` is what evaluation
    sees. With `stacks`, turns taken together are trained as one; on a GPU they are in any case
    taken together, side by side in `STREAMS` streams where they do not stack. `pruning` keeps what
    is trained, and what is predicted with, pruned. `privacy` says what may leave a client; a
    `private` solver trains in place of all others. A `guard` stands at the cut of a network. A
    `chooser` chooses masks. A `watch` lets clients of split learning lie to their server.
    `all_here` says that `people` are all there are, and not one end's alone.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        trained_on: Federation,
        people: Federation,
        stream: RandomStream,
        precision: Precision = "fp32",
        stacks: bool = False,
        device: torch.device = CPU,
        wire: Compression = Compression(),  # noqa: B008
        pruning: Gradual = Gradual(0.0),  # noqa: B008
        privacy: Privacy = Privacy(),  # noqa: B008
        private: DpSolver | None = None,
        guard: DefendedTrainer | None = None,
        chooser: PrivateMaskSelector | None = None,
        watch: SplitGuardClient | None = None,
        all_here: bool = False,
    ) -> None:
        self.method, self.task, self.pruning = method, task, pruning
        self.privacy, self.private = privacy, private
        self.guard, self.chooser, self.watch = guard, chooser, watch
        self.trained_on, self.people, self.stream = trained_on, people, stream
        self.all_here = all_here
        self.solver = private or Solver(task, precision)
        self.wire = wire
        self.graphed = Graphed(task, device, precision, STREAMS) if device.type != "cpu" else None
        scorer = self.graphed or self.solver
        self.stacked = Stacked(task, device, precision, scorer) if stacks else None
        self.measure = Evaluation(task, people, scorer.outputs, all_here, guard)
        if guard is not None:
            guard.stand_at_cut(self.solver.module)
        self.trainers = Trainers(task)
        self.records = method.state_records(task)
        self.last: tuple[Params, int, Params] | None = None

    def do(self, order: ClientTask) -> ClientResult:
        """Carry out one order."""
        return self._turn(order) if order.kind == "turn" else self._evaluate(order)

    @cached_property
    def ranges(self) -> SmashedRangeCheck | None:
        """Checker of smashed data, None where nobody looks at them."""
        policy = self.privacy.output_range
        if policy is None:
            return None
        root = self.trained_on.people[policy.root].train
        noisy = None if self.guard is None else self.guard.noisy_output
        return SmashedRangeCheck(policy, self.method, self.task, root, noisy)

    @property
    def together(self) -> bool:
        """True if several turns are best taken at once."""
        return self.stacked is not None or self.graphed is not None

    def turns(self, orders: Sequence[ClientTask]) -> list[ClientResult]:
        """Take several turns in step: what all of them want trained is trained together."""
        turns = [ClientTurn(self, order) for order in orders]
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
        if trainer is None or (trainer is self.graphed and _special(turns[0].ask)):
            for turn in turns:
                turn.go_on(self._answer(turn.ask, turn))
            return
        asks = [turn.ask for turn in turns if isinstance(turn.ask, Fit)]
        streams = [turn.batches() for turn in turns]
        fitted = trainer.fit_all(asks, streams, turns[0].order.progress)
        for turn, result in zip(turns, fitted, strict=True):
            turn.go_on(result)

    def site(self, federation: Federation, order: ClientTask) -> ClientContext:
        """Return a client's place, with the part of the data that a turn may see."""
        data, at = federation.people[order.client], order.message.round
        rng = self.stream.child(order.client, at, order.message.verb)
        place = ClientContext(
            order.client, data.train, data.val, self.task, at, rng, order.progress
        )
        if order.kind == "turn" and self.method.exposure[order.message.verb].blind:
            place = replace(place, train=place.train.subset(NONE), val=place.val.subset(NONE))
        return place if self.chooser is None else self.chooser.at(place)

    def state(self, order: ClientTask) -> Any:
        """Return the state a client goes on from."""
        return self.method.client(self.task) if order.state is None else order.state

    def kept(self, params: Params, round: int) -> Mask | None:
        """Mask of the entries not pruned in a round, counted from 1; None where all stay."""
        now = self.pruning.at(round)
        return now.kept(self.solver.module, params) if now.amount else None

    def narrowed(self, ask: Fit, round: int) -> Fit:
        """Return a request for training as this round's pruning allows it."""
        keep = self.kept(ask.params, round)
        return ask if keep is None else within(ask, keep)

    def pruned(self, params: Params, done: int) -> Params:
        """Return parameters pruned as after `done` rounds; a model that people share only once."""
        if self.last is None or self.last[0] is not params or self.last[1] != done:
            keep = self.kept(params, done)
            self.last = params, done, params if keep is None else keep.keep(params)
        return self.last[2]

    def predicting(self, state: Any, message: Message, site: ClientContext) -> Params:
        """Parameters that a client predicts with, after the message's number of rounds."""
        done = message.round

        def answer(ask: Ask) -> Any:
            if isinstance(ask, Step | Forward):
                return self.trainers.answer(ask, 1.0)
            if isinstance(ask, Fit):
                batches = site.rng.child("batches", 0)
                return self.solver.fit(self.narrowed(ask, done), batches, 1.0)
            assert isinstance(ask, Compute)
            return self.solver.compute(ask)

        return self.pruned(drive(self.method.model_on(state, message, site), answer), done)

    def _turn(self, order: ClientTask) -> ClientResult:
        turn = ClientTurn(self, order)
        try:
            while turn.ask is not None:
                turn.go_on(self._answer(turn.ask, turn))
        except DpSgdBudgetSpent as spent:
            return ClientResult(order.client, state=order.state, owed=order.owed, fault=str(spent))
        return self._done(turn)

    def _done(self, turn: ClientTurn) -> ClientResult:
        order, (state, reply) = turn.order, turn.end
        if self.watch is not None and isinstance(state, ClientFront):
            at = turn.batch(state.drawn - 1)
            reply = self.watch.leaving(*at, reply)
        leaving = self.privacy.leaving(reply)
        sealed, owed = seal_coded(leaving, order.message.round, self.wire, order.owed)
        metrics = {}
        if "P1" in order.points and turn.fitted is not None:
            metrics["P1"] = self._own(turn.fitted.params, order.client)
        return ClientResult(
            order.client,
            sealed=sealed,
            state=state,
            owed=owed,
            examples=self.task.weigh(turn.site.train),
            steps=turn.steps,
            metrics=metrics,
        )

    def _lied(self, pull: Tensor, turn: ClientTurn) -> bool:
        """Let a client hear the answer to the batch that waited longest; tell whether it lied.

        Raises:
            DpSgdBudgetSpent: it accuses its server, and stops.
        """
        state = turn.order.state
        if self.watch is None or not isinstance(state, ClientFront):
            return False
        at = turn.batch(state.drawn - len(state.waiting))
        self.watch.hear(*at, pull)
        return self.watch.lies(*at)

    def answer(self, ask: Any, progress: float) -> Any:
        """Answer what a server's own half asks for."""
        if isinstance(ask, Step | Forward):
            return self.trainers.answer(ask, progress)
        if isinstance(ask, Compute):
            return self._compute(ask)
        if isinstance(ask, GetPublicData):
            return lent(self.people)
        raise ConfigError(
            f"a server's half cannot ask for a {type(ask).__name__}; it may `step`, `forward`, "
            "`compute` and borrow `proxies`"
        )

    def _answer(self, ask: Ask | None, turn: ClientTurn) -> Any:
        if isinstance(ask, Step | Forward):
            if isinstance(ask, Step) and PULL in ask.batch and self._lied(ask.batch[PULL], turn):
                return StepResult(ask.params, ask.optimiser, 0.0)
            if self.guard is not None:
                return self.guard.answer(ask, turn.site)
            return self.trainers.answer(ask, turn.order.progress)
        if isinstance(ask, Mean):
            private = self.private
            return private.mean(turn.site, ask) if private else ask.shortened().mean(0)
        if isinstance(ask, Fit) and self.private is not None:
            return self.private.train(turn.site, ask, turn.batches(), turn.order.progress)
        if self.private is not None and getattr(ask, "data", None) is not turn.site.val:
            raise uncovered(turn.order.message.verb, ask)
        if isinstance(ask, Fit):
            solver = self.graphed or self.solver
            if self.graphed is not None and _special(ask):
                solver, ask = self.solver, replace(ask, data=at_home(ask.data))
            return solver.fit(ask, turn.batches(), turn.order.progress)
        assert ask is not None
        return self._compute(ask)

    def _compute(self, ask: Compute) -> Any:
        data = at_home(ask.data) if self.graphed is not None else ask.data
        return self.solver.compute(replace(ask, data=data))

    def _evaluate(self, order: ClientTask) -> ClientResult:
        message = order.message
        if self.guard is not None:
            self.guard.begin(order.client, message.round)
        models = {"P0": self.predicting(self.state(order), message, self.site(self.people, order))}
        if "P2" in order.points and "model" in message.trees:
            models["P2"] = self.pruned(message["model"], message.round)
        asked = {point: model for point, model in models.items() if point in order.points}
        metrics = {point: self._own(model, order.client) for point, model in asked.items()}
        shown = None
        if order.show:
            test = self.people.people[order.client].test
            shown = self.solver.outputs(models["P0"], test.subset(torch.tensor(order.show)))
        for point, model in asked.items():  # last: at a guarded cut it draws other noise
            metrics[point] |= self.measure.pooled(model)
        return ClientResult(order.client, metrics=metrics, outputs=shown)

    def _own(self, params: Params, client: str) -> dict[str, float]:
        found = self.measure.own(params, client)
        if not found or not self.pruning.amount:
            return found
        return {**found, ZEROS: 1 - int(params.flat.count_nonzero()) / params.layout.n}


class ClientTurn:
    """A turn under way: what the method wants next (`ask`), or its `end`, a state and a reply."""

    def __init__(self, worker: ClientExecutor, order: ClientTask) -> None:
        self.worker, self.order = worker, order
        self.site = worker.site(worker.trained_on, order)
        self.fitted: FitResult | None = None
        self.fits, self.steps = 0, 0
        self.ask: Ask | None = None
        handler = getattr(worker.method, f"on_{order.message.verb}")
        self.end = self.conversation = handler(worker.state(order), order.message, self.site)
        if isinstance(self.conversation, Generator):
            self._send(None)

    def batch(self, number: int) -> tuple[str, int, int, int]:
        """Client of this batch, its round, the batch's number, and how many the round has."""
        of = taken(self.worker.method.local, len(self.site.train))
        return self.order.client, self.order.message.round, number, of

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
                f"a client's '{self.order.message.verb}' asks for a {type(self.ask).__name__}; it "
                "may ask for `fit`, `compute`, `step` and `forward` only"
            )
        if isinstance(self.ask, Fit):
            self.ask = self.worker.narrowed(self.ask, self.order.message.round + 1)


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
