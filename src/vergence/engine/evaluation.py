"""Evaluation of models: on a person's own test samples, and on everybody's together.

Used by `deployment.remote_clients`, `engine.client_executor`, `experiment.trained_run`,
`experiment.user_code_errors` and `experiment.validation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial

from torch import Tensor

from vergence import profiling
from vergence.core.data import Samples, Splits
from vergence.core.federation import POOLED, Federation
from vergence.core.params import Params
from vergence.core.serialization import quick_digest
from vergence.core.task import Task, map_outputs
from vergence.errors import VergenceError
from vergence.privacy.hooks import ClientHooks

GUESS = "guess."
"""First part of the name of a metric that scores a constant prediction, and not a model."""
MEASURED = "on the samples of person"
"""First words of the note that is added to an error in the user's code."""
# Methods with one model measure it once for all people; a method with a model for each of very many
# people would fill the memory with scores that nobody asks for again.
REMEMBERED_MODELS = 1000


class Evaluation:
    """Scores models on test samples, which only the engine reads.

    Args:
        task: defines the metrics, and whether everybody's samples are also tested together
            (`Task.pools`).
        people: the people whose data are here.
        outputs: (parameters, samples) -> the network's outputs.
        all_here: whether `people` are all people of the run. On a client's machine in a deployment
            it is False.
        hooks: protections of the run, which may add scores.
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
        self.digested: tuple[Tensor | None, str] = (None, "")
        self.ready: dict[tuple[int, int], Tensor] = {}

    @contextmanager
    def prepared(
        self,
        models: Sequence[tuple[Params, Samples]],
        outputs_of: Callable[[Sequence[tuple[Params, Samples]]], list[Tensor]],
    ) -> Iterator[None]:
        """Compute the outputs of models on samples at once; inside the block, scores use them."""
        parts = {(id(model.flat), id(samples)): (model, samples) for model, samples in models}
        try:
            with profiling.phase("forward"):
                self.ready = dict(zip(parts, outputs_of(list(parts.values())), strict=True))
        except Exception:
            # Computed person by person, an error names the person, and needs less memory.
            self.ready = {}
        try:
            yield
        finally:
            # Objects that come later may have the same `id`.
            self.ready = {}

    def _outputs(self, params: Params, data: Samples) -> Tensor:
        ready = self.ready.get((id(params.flat), id(data)))
        # A metric may change outputs in place, and two evaluation points may share a model.
        return self.outputs(params, data) if ready is None else map_outputs(Tensor.clone, ready)

    def own(self, params: Params, client: str) -> dict[str, float]:
        """Return metric -> value of a model on a person's test samples.

        The result is empty for a person without test samples.
        """
        data = self.people.people.get(client)
        if data is None or not len(data.test):
            return {}
        with naming(client):
            scores = scored(self.task, partial(self._outputs, params), data)
        # In a deployment only the client can score a constant prediction on its samples.
        if not self.all_here:
            scores = {**scores, **self.constant(client, data)}
        for hook in self.hooks:
            scores = {**scores, **hook.scores(params)}
        return scores

    def validation(self, params: Params, client: str) -> dict[str, float]:
        """Score a model on a person's validation samples; the result is empty if there are none."""
        data = self.people.people.get(client)
        if data is None or not len(data.val):
            return {}
        with naming(client):
            on_validation = replace(data, test=data.val)
            return scored(self.task, partial(self._outputs, params), on_validation)

    def constant(self, client: str, data: Splits) -> dict[str, float]:
        """Score a person's best constant prediction by the task's headline metric.

        `own` calls it on the clients of a deployment, whose server has no samples.

        Returns:
            A mapping from `GUESS` and the metric's name to the score; empty if the task has no
            constant prediction.
        """
        if client not in self.guesses:
            task, headline = self.task, self.task.headline
            # The constant is fitted to validation samples: nothing made of training samples leaves
            # a client but what a protection covers.
            ends = [replace(data, train=data.val, test=part) for part in (data.test, data.val)]
            outputs = [task.personal_baseline(Federation("own", {client: end}))[1] for end in ends]
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
        """Return metric -> value of a model on everybody's test samples.

        A model that people share is scored only once. The result is empty if some people's data are
        on other machines, or if the task does not test everybody's samples together.
        """
        if not self.pools:
            return {}
        # Most people of a round are scored with one model, which may lie on a GPU.
        if self.digested[0] is not params.flat:
            flat = params.flat.cpu().contiguous()
            self.digested = params.flat, quick_digest(flat.numpy().data)
        sha = self.digested[1]
        if sha not in self.scores:
            if len(self.scores) == REMEMBERED_MODELS:
                self.scores.clear()
            # A model gets the same noise whoever is measured first: workers divide people up.
            for hook in self.hooks:
                hook.measuring(POOLED, 0)
            with profiling.phase("forward"):
                output = self.outputs(params, self.everybody)
            with profiling.phase("scores"):
                scores = self.task.pooled(output, self.everybody.copy())
                self.scores[sha] = broken(self.task, scores, output)
        return self.scores[sha]


@contextmanager
def naming(client: str) -> Iterator[None]:
    """Add a person's name to an error that occurs while that person's samples are used."""
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
    """Return metric -> value of a model on a person's test samples.

    Args:
        task: defines the metrics.
        outputs: computes the model's outputs for samples.
        data: the person's samples.
        threshold_on: samples on which a decision threshold is chosen; None: the person's validation
            samples.
    """
    with profiling.phase("forward"):
        data = task.tune_prior(data, outputs)
        val = data.val if threshold_on is None else threshold_on
        on_test = outputs(data.test)
        on_val = outputs(val) if task.uses_validation else None
    # Metrics get copies of the samples: a user's task may change them in place.
    with profiling.phase("scores"):
        if on_val is None:
            return broken(task, task.metrics(on_test, data.test.copy()), on_test)
        scores = task.evaluate(on_test, data.test.copy(), on_val, val.copy())
        return broken(task, scores, on_test)


def broken(task: Task, scores: dict[str, float], outputs: object) -> dict[str, float]:
    """If outputs hold NaN or infinity, replace NaN scores by the worst value, +inf or -inf.

    `scored` and `Evaluation.pooled` call this.
    """
    # NaN must mean one thing only: that a metric is not defined for a person's samples, whose
    # number is then left out of means. A model that broke must not be left out.
    finite: list[bool] = []
    if any(math.isnan(value) for value in scores.values()):
        map_outputs(lambda part: finite.append(bool(part.isfinite().all())) or part, outputs)
    if all(finite):
        return scores
    worst = {name: math.inf if name in task.lower_is_better else -math.inf for name in scores}
    return {name: worst[name] if math.isnan(value) else value for name, value in scores.items()}
