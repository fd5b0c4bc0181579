"""Evaluation of models: on a person's own test samples, and on everybody's put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from vergence import profiling
from vergence.core.data import Samples, Splits
from vergence.core.federation import POOLED, Federation
from vergence.core.params import Params
from vergence.core.serialization import quick_digest
from vergence.core.task import Task, mapped
from vergence.errors import VergenceError
from vergence.privacy.hooks import ClientHooks

GUESS = "guess."
"""Begins the name of a metric that is of a constant prediction and not of a model."""
MEASURED = "on the samples of person"
"""Begins the note on a fault of the user's code."""
KEPT = 1000
"""So many models' scores are remembered: people whose method serves them the same share one."""


class Evaluation:
    """Scores models on test samples, which nobody but the engine holds.

    Args:
        task: says how, and whether everybody's samples together count, too (`Task.pools`).
        people: those who are here.
        outputs: what a network with these parameters says of samples.
        all_here: whether that is everybody: at a client of a deployment it is not.
        hooks: protections of the run.
    """

    def __init__(
        self,
        task: Task,
        people: Federation,
        outputs: Callable[[Params, Samples], Tensor],
        all_here: bool,
        hooks: Sequence[ClientHooks] = (),
    ) -> None:
        self.task, self.people, self.outputs, self.hooks = task, people, outputs, hooks
        self.all_here, self.pools = all_here, all_here and task.pools
        self.scores: dict[str, Mapping[str, float]] = {}
        self.guesses: dict[str, dict[str, float]] = {}

    def own(self, params: Params, client: str) -> dict[str, float]:
        """Score a model on a person's own test samples; nothing for a stranger.

        In a deployment the score of a constant stands beside it: nobody else could compute one.
        """
        data = self.people.people.get(client)
        if data is None:
            return {}
        with naming(client):
            found = scored(self.task, partial(self.outputs, params), data)
        if not self.all_here:
            found = {**found, **self.constant(client, data)}
        for hook in self.hooks:
            found = {**found, **hook.scores(params)}
        return found

    def constant(self, client: str, data: Splits) -> dict[str, float]:
        """Score the best constant prediction of a person's own: the headline, by `GUESS` and name.

        The constant is that of validation samples: of training samples nothing leaves a client but
        what a protection covers. Nothing where the task knows no such constant.
        """
        if client not in self.guesses:
            task, headline = self.task, self.task.headline
            ends = [replace(data, train=data.val, test=part) for part in (data.test, data.val)]
            outputs = [task.own_guess(Federation("own", {client: end}))[1] for end in ends]
            metrics: Mapping[str, float] = {}
            if outputs[0]:
                on_test, on_val = (each[client] for each in outputs)
                metrics = task.evaluate(on_test, data.test, on_val, data.val)
            self.guesses[client] = {GUESS + n: v for n, v in metrics.items() if n == headline}
        return self.guesses[client]

    @cached_property
    def everybody(self) -> Samples:
        """The test samples of all people, in client order."""
        self.people.refuse_many("a test on everybody's samples")
        return Samples.concatenate([splits.test for splits in self.people.people.values()])

    def pooled(self, params: Params) -> Mapping[str, float]:
        """Score a model on everybody's test samples; one that people share only once.

        Nothing where not everybody is here, or the task does not want it.
        """
        if not self.pools:
            return {}
        sha = quick_digest(params.flat.contiguous().numpy().data)
        if sha not in self.scores:
            if len(self.scores) == KEPT:
                self.scores.clear()
            for hook in self.hooks:  # the same noise for a model, whoever is asked first
                hook.measuring(POOLED, 0)
            with profiling.phase("forward"):
                output = self.outputs(params, self.everybody)
            with profiling.phase("scores"):
                found = self.task.pooled(output, self.everybody.copy())
                self.scores[sha] = broken(self.task, found, output)
        return self.scores[sha]


@contextmanager
def naming(client: str) -> Iterator[None]:
    """Say on whose samples something failed."""
    try:
        yield
    except VergenceError as error:
        raise error.reworded(f"person {client!r}: {error}") from error
    except Exception as error:
        error.add_note(f"{MEASURED} {client!r}")
        raise


def scored(
    task: Task,
    outputs: Callable[[Samples], Tensor],
    data: Splits,
    threshold_on: Samples | None = None,
) -> dict[str, float]:
    """Scores of a model's outputs on a person's test samples.

    What must be chosen is chosen on the person's validation data: a threshold on other samples
    where some are given.
    """
    with profiling.phase("forward"):
        data = task.suited(data, outputs)
        val = data.val if threshold_on is None else threshold_on
        found = outputs(data.test)
        chosen_on = outputs(val) if task.chooses else None
    with profiling.phase("scores"):
        if chosen_on is None:
            return broken(task, task.metrics(found, data.test.copy()), found)
        scores = task.evaluate(found, data.test.copy(), chosen_on, val.copy())
        return broken(task, scores, found)


def broken(task: Task, scores: dict[str, float], outputs: Any) -> dict[str, float]:
    """Return scores with the worst number there is for NaN, where outputs hold NaN or infinity.

    So NaN says one thing: that a metric is not defined for a person's samples, whose number is then
    left out. A model that broke is not left out.
    """
    finite: list[bool] = []
    if any(value != value for value in scores.values()):  # NaN
        mapped(lambda part: finite.append(bool(part.isfinite().all())) or part, outputs)
    if all(finite):
        return scores
    worst = {name: math.inf if name in task.lower_is_better else -math.inf for name in scores}
    return {name: worst[name] if value != value else value for name, value in scores.items()}
