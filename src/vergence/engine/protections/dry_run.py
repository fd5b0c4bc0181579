"""Dry run of clients' turns: finds out which trainings a method asks for, without training.

Used by `audit.updates`, `engine.compatibility_check` and `engine.protections.dp_sgd`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute, Fit, FitResult, Mean
from vergence.core.task import Task
from vergence.engine.protections.dp_split import split_passes
from vergence.errors import ConfigError
from vergence.privacy.dp.dp_sgd_solver import TrainingPass, steps_of, unclipped, uncovered
from vergence.privacy.dp.per_sample_gradients import refuse
from vergence.training.sequential import Solver

TRAIN, VAL, TEST = (Samples({"nothing": torch.zeros(8, 1)}) for _ in range(3))
BLANK = Federation("blank", {"nobody": Splits(TRAIN, VAL, TEST)})
"""Made-up data whose only column no task uses."""


def dry_run(
    method: Method, task: Task, federation: Federation, rounds: int
) -> tuple[TrainingPass, ...]:
    """Return the trainings that a run asks of every client.

    The method's first declared kind of request (such as `train`) is counted once per round, as the
    first or the second turn, whichever asks for more. Other kinds are counted once per run.

    Raises:
        ConfigError: DP-SGD does not protect the method: it uses training samples for something
            other than training, or the network mixes samples.
    """
    refuse(task.module())
    if method.served:
        return split_passes(method, rounds)
    return tuple(
        replace(one, times=rounds) if first else one
        for first, one in _turns_of(method, task, federation)
    )


def _turns_of(
    method: Method, task: Task, federation: Federation
) -> list[tuple[bool, TrainingPass]]:
    """Run each kind of turn twice for one client; return what the turn that asks for more does.

    Each result is whether the kind of turn is the first that the method declares, and a training.
    """
    client = federation.clients[0]
    data, server = federation.people[client], method.server(task)
    passes: list[tuple[bool, TrainingPass]] = []
    for number, (verb, exposed) in enumerate(method.exposure.items()):
        # A blind turn sees no samples; one that goes beyond the budget says so in its exposure.
        if exposed.blind or exposed.beyond:
            continue
        trees = {} if exposed.down == () else dict(method.offer(server, client))
        # The server's questions cannot be made up here, and so not what a turn does with them.
        if set(exposed.down or ()) - set(trees):
            raise uncovered(verb, exposed)
        site = ClientContext(client, data.train, data.val, task, 0, RandomStream("rehearsal"))
        recorder = _TrainingRecorder(registry_name(method), verb, site)
        handler = getattr(method, f"on_{verb}")
        state, _ = drive(handler(method.client(task), Message(verb, trees), site), recorder.answer)
        first, recorder.passes = recorder.passes, []
        # A second time from the new state: some methods ask for more once they have a state, such
        # as two trainings once entries are personal. It must ask for nothing that is refused.
        drive(handler(state, Message(verb, trees), site), recorder.answer)
        passes += [(not number, one) for one in max(first, recorder.passes, key=len)]
    return passes


def unprotected(method: Method, task: Task) -> str:
    """Return why DP-SGD does not protect a method.

    The result is empty if DP-SGD protects it, or if that depends on data.
    """
    # Without data, an error about missing columns says nothing: `check_privacy` looks again.
    try:
        dry_run(method, task, BLANK, 1)
    except ConfigError as error:
        return str(error)
    except (KeyError, ValueError, RuntimeError):
        return ""
    return ""


class _TrainingRecorder:
    """Answers the requests of a dry run without training, and notes the trainings."""

    def __init__(self, name: str, verb: str, site: ClientContext) -> None:
        self.name, self.verb, self.site = name, verb, site
        self.passes: list[TrainingPass] = []

    def answer(self, ask: object) -> object:
        """Answer one request; refuse it if DP-SGD does not protect the samples in it."""
        if isinstance(ask, Fit):
            return self._fitted(ask)
        if isinstance(ask, Mean):
            self.passes.append(TrainingPass(None, 1.0, 1))
            return ask.shortened().mean(0)
        if isinstance(ask, Compute) and ask.data is self.site.val:
            return Solver(self.site.task).compute(ask)
        raise uncovered(self.verb, ask)

    def _fitted(self, ask: Fit) -> FitResult:
        """Note a training, and return its parameters unchanged."""
        if ask.objective is not None:
            raise unclipped(f"'{self.name}'")
        share = len(ask.data) / max(len(self.site.train), 1)
        self.passes.append(TrainingPass(ask.local, share, 1))
        weight, steps = self.site.task.weigh(ask.data), steps_of(ask.local, len(ask.data))
        return FitResult(ask.params, weight, steps, ask.optimiser, {"loss": 0.0, "score": 0.0})
