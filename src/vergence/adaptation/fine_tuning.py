"""Ways to make a model for a person whom a run never saw, from a few labelled samples of theirs.

This is the one place that fits them: `vergence adapt` and `vergence study calibrate` both come
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from jaxtyping import Int
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.serialization import same
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.records import ClientState, ClientTask, TaskBatch
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.calibration import (
    KINDS,
    Calibration,
    Correction,
    FittedCalibration,
)
from vergence.metrics.personal_priors import cross_fitted
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.gaze_map import GazeMap

Rows = Int[Tensor, " k"]
SHARED = "shared model"
LAST, WHOLE = "last layer", "whole model"
STEPS, MOST_STEPS = 50, 1000
"""Batches of fine-tuning, and at most of training alone."""
ADAPTED = "the method's own"
"""What a method makes of a stranger's data by itself."""
TURNS = 5
"""Turns that a stranger takes where a method keeps a personal model between them."""
EXPONENTS = (0.25, 0.5, 1.0)
"""Of a person's own prior of gaze maps."""


@dataclass(frozen=True)
class PersonalModel:
    """A model for one person: parameters, and what is done to their outputs.

    Attributes:
        params: of the network.
        correction: of its angles; one for each side (0 left, 1 right) where eyes are told apart.
        exponent: of the person's own prior, by whose power gaze maps are multiplied.
        prior: the logarithm of that prior, `[height, width]`.
    """

    params: Params
    correction: Correction | Mapping[int, Correction] | None = None
    exponent: float = 0.0
    prior: Tensor | None = None


@dataclass(frozen=True)
class FineTuning:
    """Settings of fine-tuning.

    Attributes:
        steps: batches.
        lr: rate; None: that of the run.
        pulls: strengths of the pull to the start, each a way of its own. With k samples pull / (2k)
            times the squared distance to the start is in the loss.
    """

    steps: int = STEPS
    lr: float | None = None
    pulls: tuple[float, ...] = ()


def pulled(pull: float) -> str:
    """Name of fine-tuning with this pull to the start."""
    return f"pull {pull:g}"


def prior_way(exponent: float) -> str:
    """Name of multiplying maps with a person's own prior to this power."""
    return f"own prior, exponent {exponent:g}"


@dataclass
class Adapter:
    """Fits ways to samples of one person whom a run never saw.

    Attributes:
        trained: the run, on data with this person.
        person: who; the training part of their data holds the samples.
        tuning: settings of fine-tuning.
        fitted: corrections of angles with priors of other people, by name.
        apart: whether corrections without such priors are fitted to each eye apart, by a column
            `side`.
    """

    trained: TrainedRun
    person: str
    tuning: FineTuning = FineTuning()
    fitted: Mapping[str, FittedCalibration] = field(default_factory=dict)
    apart: bool = False

    @property
    def labelled(self) -> Samples:
        """All of the person's labelled samples."""
        return self.trained.ready.people[self.person].train

    @cached_property
    def start(self) -> Params:
        """Parameters of the model that a stranger is sent."""
        return self.trained.newcomer(self.person)

    @cached_property
    def near(self) -> Tensor:
        """Outputs of the shared model on the labelled samples."""
        return self._plain(self.start, self.labelled)

    @cached_property
    def far(self) -> Tensor:
        """Outputs of the shared model on the test samples."""
        return self._plain(self.start, self.trained.ready.people[self.person].test)

    @cached_property
    def local(self) -> LocalTraining:
        """The run's local training, for fine-tuning."""
        own = self.trained.method.local
        return replace(
            own, steps=self.tuning.steps, schedule="constant", lr=self.tuning.lr or own.lr
        )

    @cached_property
    def ways(self) -> dict[str, Callable[[Rows, RandomStream, int], PersonalModel]]:
        """Ways that this run and task have, by name: sample numbers, randomness, draw -> model."""
        task = self.trained.task
        found: dict[str, Callable[[Rows, RandomStream, int], PersonalModel]] = {}
        if isinstance(task, GazeAngle):
            kinds = {**KINDS, **self.fitted}
            found |= {name: partial(self._corrected, kind) for name, kind in kinds.items()}
        if isinstance(task, GazeMap) and not task.own_prior:
            found |= {prior_way(power): partial(self._with_prior, power) for power in EXPONENTS}
        head = Mask.layers(self.start.layout, *task.parts()[1])
        found[LAST] = partial(self._tuned, head, LAST, 0.0)
        found[WHOLE] = partial(self._tuned, None, WHOLE, 0.0)
        for pull in self.tuning.pulls:
            found[pulled(pull)] = partial(self._tuned, None, WHOLE, pull)
        if not same(self.trained.model(self.person, known=False), self.start):
            found[ADAPTED] = self._predicted
        elif personalises(self.trained.method):
            found[ADAPTED] = self._turned
        return found

    def fit(self, way: str, rows: Rows, stream: RandomStream, draw: int = 0) -> PersonalModel:
        """Fit a way to these of the labelled samples; `draw` numbers the choice of samples."""
        if way == SHARED or not len(rows):
            return PersonalModel(self.start)
        return self.ways[way](rows, stream, draw)

    def outputs(
        self, model: PersonalModel, samples: Samples, plain: Tensor | None = None
    ) -> Tensor:
        """Outputs of a model on samples; `plain` are those of its parameters, where known."""
        found = self._plain(model.params, samples) if plain is None else plain
        if model.prior is not None:
            task = self.trained.task
            assert isinstance(task, GazeMap)
            found = found + task.temperature * model.exponent * model.prior.to(found.dtype)
        if model.correction is None:
            return found
        side = samples.columns.get("side")
        if isinstance(model.correction, Correction):
            return model.correction(found, side)
        assert side is not None
        found = found.clone()
        for number, correction in model.correction.items():
            found[side == number] = correction(found[side == number])
        return found

    def outputs_at(self, model: PersonalModel, rows: Rows) -> Tensor:
        """Outputs of a model on these of the labelled samples."""
        plain = self.near[rows] if model.params is self.start else None
        return self.outputs(model, self.labelled.subset(rows), plain)

    def error(self, model: PersonalModel) -> float:
        """The headline of a model on the person's test samples."""
        test, task = self.trained.ready.people[self.person].test, self.trained.task

        def outputs(samples: Samples) -> Tensor:
            known = samples is test and model.params is self.start
            return self.outputs(model, samples, self.far if known else None)

        return self.trained.score(outputs, self.person)[task.headline]

    def alone(self, rows: Rows, stream: RandomStream) -> PersonalModel:
        """A model made of these samples and nothing else, by as many batches as the run's."""
        run, data = self.trained, self.labelled.subset(rows)
        local, rounds = run.method.local, run.experiment.plan.rounds
        each = local.steps or local.epochs * math.ceil(len(rows) / local.batch)
        local = replace(local, steps=min(each * rounds, MOST_STEPS), schedule="constant")
        made = run.executor.solver.fit(Fit(run.task.init(), data, local), stream.child("alone"))
        return PersonalModel(made.params)

    def guess(self, rows: Rows) -> float:
        """The headline of a constant that these samples give: their mean, or their gaze map.

        NaN where the task has none.
        """
        run, own = self.trained, self.trained.ready.people[self.person]
        data = replace(own, train=self.labelled.subset(rows))
        _, guesses = run.task.own_guess(Federation("adapt", {self.person: data}))
        if self.person not in guesses:
            return math.nan
        return run.task.metrics(guesses[self.person], own.test)[run.task.headline]

    def _plain(self, params: Params, samples: Samples) -> Tensor:
        found = self.trained.outputs(params, samples)
        return found.double() if isinstance(self.trained.task, GazeAngle) else found

    def _corrected(
        self, kind: Calibration | FittedCalibration, rows: Rows, _: RandomStream, __: int
    ) -> PersonalModel:
        near, gaze = self.near[rows], self.labelled.columns["gaze"][rows].double()
        side = self.labelled.columns.get("side")
        side = None if side is None else side[rows]
        if isinstance(kind, FittedCalibration):  # it tells eyes apart by itself
            return PersonalModel(self.start, kind.fit(near, gaze, side))
        if not self.apart:
            return PersonalModel(self.start, kind.fit(near, gaze))
        assert side is not None
        each = {n: kind.fit(near[side == n], gaze[side == n]) for n in (0, 1)}
        return PersonalModel(self.start, each)

    def _with_prior(self, exponent: float, rows: Rows, _: RandomStream, __: int) -> PersonalModel:
        points, grid = self.labelled.columns["points"][rows], self.near.shape[-2:]
        log = cross_fitted(points, (grid[0], grid[1]))[-1].log().float()
        return PersonalModel(self.start, exponent=exponent, prior=log)

    def _tuned(
        self,
        trainable: Mask | None,
        what: str,
        pull: float,
        rows: Rows,
        stream: RandomStream,
        draw: int,
    ) -> PersonalModel:
        anchor = (self.start, pull / len(rows)) if pull else None
        ask = Fit(self.start, self.labelled.subset(rows), self.local, trainable, anchor=anchor)
        made = self.trained.executor.solver.fit(ask, stream.child(what, draw, len(rows)))
        return PersonalModel(made.params)

    def _predicted(self, rows: Rows, _: RandomStream, __: int) -> PersonalModel:
        data = self.labelled.subset(rows)
        return PersonalModel(self.trained.model(self.person, known=False, train=data))

    def _turned(self, rows: Rows, stream: RandomStream, draw: int) -> PersonalModel:
        """Turns of training with the samples as the person's data, then what it predicts with."""
        run, data = self.trained, self.labelled.subset(rows)
        here = Federation("adapt", {self.person: Splits(data, data, data)})
        worker = ClientExecutor(
            run.method,
            run.task,
            LocalData(here, here),
            stream.child(ADAPTED, draw, len(rows)),
            Computation(run.solving.precision),
        )
        offered, state = run.method.offer(run.server, self.person), ClientState()
        for turn in range(TURNS):
            task = ClientTask(self.person, Message("train", offered, round=turn))
            state = worker.turn(task, state, TaskBatch("turn", [task], [1])).state
        message = replace(run.asked(self.person), round=TURNS)
        site = worker.site(here, self.person, message)
        return PersonalModel(worker.predicting(state.state, message, site))


def personalises(method: Method) -> bool:
    """True if a client's turns on one model of the server make what it predicts with."""
    own = type(method).model_on is not Method.model_on
    return own and set(method.exposure) == {"train"} and not (method.served or method.pooled)
