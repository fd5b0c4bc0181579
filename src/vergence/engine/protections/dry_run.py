"""Dry run of clients' turns: the trainings that a run would ask for, without training."""

from __future__ import annotations

from typing import Any

import torch

from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.naming import called
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute, Fit, FitResult, Mean
from vergence.core.task import Task
from vergence.engine.protections.dp_split import split_passes
from vergence.errors import ConfigError
from vergence.privacy.dp.dp_sgd_solver import TrainingPass, taken, unclipped, uncovered
from vergence.privacy.dp.per_sample_gradients import refuse
from vergence.training.sequential import Solver

TRAIN, VAL, TEST = (Samples({"nothing": torch.zeros(8, 1)}) for _ in range(3))
BLANK = Federation("blank", {"nobody": Splits(TRAIN, VAL, TEST)})
"""Data without a column that a task could look at."""


def dry_run(
    method: Method, task: Task, federation: Federation, rounds: int
) -> tuple[TrainingPass, ...]:
    """Return the trainings that a run asks of every client.

    The first verb of a method is counted in every round, the others once.

    A turn is held twice, as some methods look at more once they have been there; the second one is
    counted like the first.

    Raises:
        ConfigError: something else than training would look at training samples, or the network
            mixes samples: DP-SGD does not protect that.
    """
    refuse(task.module())
    if method.served:
        return split_passes(method, rounds)
    return tuple(_turns_of(method, task, federation, rounds, _TrainingRecorder))


def processor_work(method: Method, task: Task, federation: Federation) -> str:
    """Name the work of a method that stays on the processor where a GPU trains; "": none."""
    server = ["what its server learns from public data"] if method.borrows else []
    try:
        found = _turns_of(method, task, federation, 1, _ProcessorRecorder)
    except ConfigError:  # its server asks what cannot be made up
        found = ["what its server asks for"]
    except (KeyError, ValueError, RuntimeError):
        found = []
    return ", ".join(dict.fromkeys([*(each for each in found if isinstance(each, str)), *server]))


def _turns_of(
    method: Method,
    task: Task,
    federation: Federation,
    rounds: int,
    kind: type[_TrainingRecorder],
) -> list[Any]:
    """Let a client take every turn twice; return what recorders of this kind noted in the first."""
    client = federation.clients[0]
    data, server, found = federation.people[client], method.server(task), []
    for number, (verb, exposed) in enumerate(method.exposure.items()):
        if exposed.blind or exposed.beyond:  # it is given no samples, or said to go beyond
            continue
        trees = {} if exposed.down == () else dict(method.offer(server, client))
        if set(exposed.down or ()) - set(trees):  # a question, which cannot be made up here
            raise uncovered(verb, exposed)
        site = ClientContext(client, data.train, data.val, task, 0, RandomStream("rehearsal"))
        recorder = kind(called(method), verb, site, 1 if number else rounds)
        handler = getattr(method, f"on_{verb}")
        state, _ = drive(handler(method.client(task), Message(verb, trees), site), recorder.answer)
        found += recorder.passes
        drive(handler(state, Message(verb, trees), site), recorder.answer)
    return found


def unprotected(method: Method, task: Task) -> str:
    """Reason why DP-SGD does not protect a method, "" if it does, or if only data can tell."""
    try:
        dry_run(method, task, BLANK, 1)
    except ConfigError as error:
        return str(error)
    except (KeyError, ValueError, RuntimeError):
        return ""
    return ""


class _TrainingRecorder:
    """Answers what a turn asks for, and notes what it would train."""

    def __init__(self, name: str, verb: str, site: ClientContext, times: int) -> None:
        self.name, self.verb, self.site, self.times = name, verb, site, times
        self.passes: list[Any] = []

    def answer(self, ask: Any) -> Any:
        """Answer one ask."""
        if isinstance(ask, Fit):
            return self._fitted(ask)
        if isinstance(ask, Mean):
            self.passes.append(TrainingPass(None, 1.0, self.times))
            return ask.shortened().mean(0)
        if isinstance(ask, Compute) and ask.data is self.site.val:
            return Solver(self.site.task).compute(ask)
        raise uncovered(self.verb, ask)

    def _fitted(self, ask: Fit) -> FitResult:
        if ask.objective is not None:
            raise unclipped(f"'{self.name}'")
        share = len(ask.data) / max(len(self.site.train), 1)
        self.passes.append(TrainingPass(ask.local, share, self.times))
        weight, steps = self.site.task.weigh(ask.data), taken(ask.local, len(ask.data))
        return FitResult(ask.params, weight, steps, ask.optimiser, {"loss": 0.0, "score": 0.0})


class _ProcessorRecorder(_TrainingRecorder):
    """Answers what a turn asks for, and notes what no GPU computes."""

    def answer(self, ask: Any) -> Any:
        """Answer one ask."""
        if isinstance(ask, Compute):
            self.passes.append(f"the {ask.want} of samples")
            return Solver(self.site.task).compute(ask)
        if isinstance(ask, Fit) and (ask.objective is not None or ask.correction is not None):
            what = "an objective" if ask.objective is not None else "a correction"
            self.passes.append(f"training with {what}")
        elif not isinstance(ask, Fit):
            return super().answer(ask)
        weight, steps = self.site.task.weigh(ask.data), taken(ask.local, len(ask.data))
        return FitResult(ask.params, weight, steps, ask.optimiser, {"loss": 0.0, "score": 0.0})
