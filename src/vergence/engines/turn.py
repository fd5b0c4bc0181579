"""One client's turn: drive the method's client half, train what it asks for, seal what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vergence.core.fitting import Compute, Fit, Fitted, Solver
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.site import Federation, Site
from vergence.core.stream import Stream
from vergence.core.task import Task
from vergence.core.wire import Message, Sealed, seal


@dataclass(frozen=True)
class Order:
    """What a worker is asked: a client's turn, or its evaluation.

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


@dataclass(frozen=True)
class Done:
    """What a worker answers.

    Only `sealed` is what the client sends; `state` stays with it, the rest is measurement.
    """

    client: str
    sealed: Sealed | None = None
    state: Any = None
    examples: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    outputs: Tensor | None = None


class Worker:
    """Takes turns for one method on one task: one resident network, everybody's data at hand.

    `trained_on` is what turns see (pooled data for a data centre), `people` is what evaluation
    sees.
    """

    def __init__(
        self, method: Method, task: Task, trained_on: Federation, people: Federation, stream: Stream
    ) -> None:
        self.method, self.task = method, task
        self.trained_on, self.people, self.stream = trained_on, people, stream
        self.solver = Solver(task)
        self.records = method.state_records(task)

    def do(self, order: Order) -> Done:
        """Carry out one order."""
        started = time.perf_counter()
        done = self._turn(order) if order.kind == "turn" else self._evaluate(order)
        return Done(**{**vars(done), "seconds": time.perf_counter() - started})

    def _site(self, federation: Federation, order: Order) -> Site:
        data, at = federation.people[order.client], order.message.round
        rng = self.stream.child(order.client, at, order.message.verb)
        return Site(order.client, data.train, data.val, self.task, at, rng)

    def _state(self, order: Order) -> Any:
        return self.method.client(self.task) if order.state is None else order.state

    def _turn(self, order: Order) -> Done:
        site = self._site(self.trained_on, order)
        handler = getattr(self.method, f"on_{order.message.verb}")
        last: list[Fitted] = []

        def answer(ask: Fit | Compute) -> Any:
            got = self._answer(ask, site, len(last), order.progress)
            if isinstance(got, Fitted):
                last.append(got)
            return got

        state, reply = drive(handler(self._state(order), order.message, site), answer)
        metrics = {}
        if "P1" in order.points and last:
            metrics["P1"] = self._measure(last[-1].params, order.client)
        return Done(
            order.client,
            sealed=seal(reply, order.message.round),
            state=state,
            examples=self.task.weigh(site.train),
            steps=sum(f.steps for f in last),
            metrics=metrics,
        )

    def _answer(self, ask: Fit | Compute, site: Site, number: int, progress: float) -> Any:
        if isinstance(ask, Fit):
            return self.solver.fit(ask, site.rng.child("batches", number), progress)
        return self.solver.compute(ask)

    def _evaluate(self, order: Order) -> Done:
        site = self._site(self.people, order)
        params = drive(
            self.method.model_on(self._state(order), order.message, site),
            lambda ask: self._answer(ask, site, 0, 1.0),
        )
        metrics = {}
        if "P0" in order.points:
            metrics["P0"] = self._measure(params, order.client)
        if "P2" in order.points and "model" in order.message.trees:
            metrics["P2"] = self._measure(order.message["model"], order.client)
        shown = None
        if order.show:
            test = self.people.people[order.client].test
            shown = self.solver.outputs(params, test.subset(torch.tensor(order.show)))
        return Done(order.client, metrics=metrics, outputs=shown)

    def _measure(self, params: Params, client: str) -> Mapping[str, float]:
        data = self.people.people.get(client)
        if data is None:
            return {}
        val = self.solver.outputs(params, data.val)
        return self.task.evaluate(self.solver.outputs(params, data.test), data.test, val, data.val)


def drive(conversation: Any, answer: Callable[[Any], Any]) -> Any:
    """Run a conversation to its end, answering every ask; a plain value is returned as it is."""
    if not isinstance(conversation, Generator):
        return conversation
    reply: Any = None
    while True:
        try:
            reply = answer(conversation.send(reply))
        except StopIteration as end:
            return end.value
