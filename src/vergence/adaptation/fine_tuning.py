"""Ways to fit a model to an unseen client: corrections, priors, fine-tuning of the network.

`vergence adapt` and `vergence study calibrate` both fit them here, so that a curve in a study is
that of the command.

Used by `adaptation.adapted_run`, `adaptation.choice`, `adaptation.own_data` and
`studies.calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from jaxtyping import Int
from torch import Tensor

from vergence.adaptation.other_people import RESIDUAL
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.serialization import equal_states
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.records import ClientState, ClientTask, TaskBatch
from vergence.errors import ConfigError
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
from vergence.training.residual_kernel import (
    DEFAULT,
    KernelCorrection,
    ResidualKernel,
    fit_alone,
)

Rows = Int[Tensor, " k"]
SHARED = "shared model"
LAST, WHOLE = "last layer", "whole model"
KERNEL_ALONE = "kernel ridge alone"
"""Name of kernel ridge regression on the samples alone, without the shared model."""
# Batches of fine-tuning, and the largest number of batches of training on the samples alone: so
# many steps as a whole run would take too long on a few samples.
STEPS, MOST_STEPS = 50, 1000
ADAPTED = "the method's own"
"""Name of the personalisation that a method itself offers an unseen client."""
# Turns of training for an unseen client, where a method keeps a personal model between turns. One
# turn leaves such a model (Ditto, APFL) near its start.
TURNS = 5
# Powers of a person's own prior that gaze maps are multiplied with: below 1 the prior of few
# samples counts for less than the network.
EXPONENTS = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class PersonalModel:
    """Model for one person: parameters of the network, and corrections of its outputs.

    Attributes:
        params: parameters of the network.
        correction: correction of its angles; where each eye has its own, one for each side (0 left,
            1 right). A `KernelCorrection` contains the person's own samples.
        exponent: power of the person's own prior that gaze maps are multiplied with.
        prior: the logarithm of that prior, `[height, width]`.
    """

    params: Params
    correction: Correction | KernelCorrection | Mapping[int, Correction] | None = None
    exponent: float = 0.0
    prior: Tensor | None = None


@dataclass(frozen=True)
class FineTuning:
    """Settings of fine-tuning.

    Attributes:
        steps: number of batches.
        lr: learning rate; None: that of the run.
        pulls: strengths of a penalty, each a way of its own. With k samples the loss gets
            pull / (2k) times the squared distance to the shared model's parameters.
    """

    steps: int = STEPS
    lr: float | None = None
    pulls: tuple[float, ...] = ()


def pull_name(pull: float) -> str:
    """Name of fine-tuning with this penalty on the distance to the shared model."""
    return f"pull {pull:g}"


def prior_name(exponent: float) -> str:
    """Name of multiplying maps with a person's own prior to this power."""
    return f"own prior, exponent {exponent:g}"


@dataclass
class Adapter:
    """Fits models to labelled samples of one unseen client.

    Attributes:
        trained: the run, with this person's data as its evaluation data.
        person: name of the person; the training part of their data holds the labelled samples.
        tuning: settings of fine-tuning.
        fitted: corrections of angles whose priors were fitted to other people, by name.
        per_eye: whether corrections without such priors are fitted to each eye separately, by a
            column `side`.
    """

    trained: TrainedRun
    person: str
    tuning: FineTuning = FineTuning()
    fitted: Mapping[str, FittedCalibration | ResidualKernel] = field(default_factory=dict)
    per_eye: bool = False

    @property
    def labelled(self) -> Samples:
        """All of the person's labelled samples."""
        return self.trained.ready.people[self.person].train

    @cached_property
    def start(self) -> Params:
        """Parameters of the shared model that an unseen client is sent."""
        return self.trained.newcomer(self.person)

    @cached_property
    def labelled_outputs(self) -> Tensor:
        """Outputs of the shared model on the labelled samples."""
        return self._network_outputs(self.start, self.labelled)

    @cached_property
    def test_outputs(self) -> Tensor:
        """Outputs of the shared model on the test samples."""
        return self._network_outputs(self.start, self.trained.ready.people[self.person].test)

    @cached_property
    def local(self) -> LocalTraining:
        """Local training of the run, with the number of batches and the rate of fine-tuning."""
        own = self.trained.method.local
        # Of a few labelled samples, draws with replacement would leave some out.
        return replace(
            own,
            steps=self.tuning.steps,
            schedule="constant",
            lr=self.tuning.lr or own.lr,
            sampler="shuffle",
        )

    @cached_property
    def ways(self) -> dict[str, Callable[[Rows, RandomStream, int], PersonalModel]]:
        """Functions (sample numbers, randomness, draw) -> model by name, as run and task allow."""
        task = self.trained.task
        ways: dict[str, Callable[[Rows, RandomStream, int], PersonalModel]] = {}
        if isinstance(task, GazeAngle):
            kinds = {**KINDS, **self.fitted}
            if able := task.has_kernel_inputs(self.labelled):
                kinds.setdefault(RESIDUAL, DEFAULT)
            ways |= {name: partial(self._fit_correction, kind) for name, kind in kinds.items()}
            if able:
                ways[KERNEL_ALONE] = lambda rows, *_: self._fit_kernel(fit_alone, rows)
        if isinstance(task, GazeMap) and not task.own_prior:
            ways |= {prior_name(power): partial(self._fit_prior, power) for power in EXPONENTS}
        # A network of one layer has no last layer besides the whole.
        with suppress(ConfigError):
            head = Mask.layers(self.start.layout, *task.parts()[1])
            ways[LAST] = partial(self._fine_tune, head, LAST, 0.0)
        ways[WHOLE] = partial(self._fine_tune, None, WHOLE, 0.0)
        for pull in self.tuning.pulls:
            ways[pull_name(pull)] = partial(self._fine_tune, None, WHOLE, pull)
        if not equal_states(self.trained.model(self.person, known=False), self.start):
            ways[ADAPTED] = self._method_prediction
        elif personalises(self.trained.method):
            ways[ADAPTED] = self._method_turns
        return ways

    def fit(self, way: str, rows: Rows, stream: RandomStream, draw: int = 0) -> PersonalModel:
        """Fit one way to the labelled samples with these numbers; `draw` numbers random choices."""
        if way == SHARED or not len(rows):
            return PersonalModel(self.start)
        return self.ways[way](rows, stream, draw)

    def outputs(
        self, model: PersonalModel, samples: Samples, plain: Tensor | None = None
    ) -> Tensor:
        """Outputs of a model on samples; `plain` are the network's outputs, if already computed."""
        outputs = self._network_outputs(model.params, samples) if plain is None else plain
        if model.prior is not None:
            task = self.trained.task
            assert isinstance(task, GazeMap)
            # The logarithm of map * prior ** exponent, as outputs are logits at a temperature.
            outputs = outputs + task.temperature * model.exponent * model.prior.to(outputs.dtype)
        if model.correction is None:
            return outputs
        if isinstance(model.correction, KernelCorrection):
            return model.correction(outputs, self._kernel_inputs(samples))
        side = samples.columns.get("side")
        if isinstance(model.correction, Correction):
            return model.correction(outputs, side)
        assert side is not None
        outputs = outputs.clone()
        for number, correction in model.correction.items():
            outputs[side == number] = correction(outputs[side == number])
        return outputs

    def outputs_at(self, model: PersonalModel, rows: Rows) -> Tensor:
        """Outputs of a model on the labelled samples with these numbers."""
        plain = self.labelled_outputs[rows] if model.params is self.start else None
        return self.outputs(model, self.labelled.subset(rows), plain)

    def error(self, model: PersonalModel) -> float:
        """Headline metric of a model on the person's test samples."""
        test, task = self.trained.ready.people[self.person].test, self.trained.task

        def outputs(samples: Samples) -> Tensor:
            known = samples is test and model.params is self.start
            return self.outputs(model, samples, self.test_outputs if known else None)

        return self.trained.score(outputs, self.person)[task.headline]

    def train_alone(self, rows: Rows, stream: RandomStream) -> PersonalModel:
        """Train from the initial model on these samples only, with as many batches as the run.

        The calibration study compares adaptation with it.
        """
        run, data = self.trained, self.labelled.subset(rows)
        local, rounds = run.method.local, run.experiment.plan.rounds
        each = local.steps or local.epochs * math.ceil(len(rows) / local.batch)
        local = replace(
            local,
            steps=min(each * rounds, MOST_STEPS),
            schedule="constant",
            sampler="shuffle",
        )
        made = run.executor.solver.fit(Fit(run.task.init(), data, local), stream.child("alone"))
        return PersonalModel(made.params)

    def constant_error(self, rows: Rows) -> float:
        """Headline metric of a constant prediction: the mean, or the gaze map, of these samples.

        It is the calibration study's baseline without learning.

        NaN where the task has no such constant.
        """
        run, own = self.trained, self.trained.ready.people[self.person]
        data = replace(own, train=self.labelled.subset(rows))
        _, guesses = run.task.personal_baseline(Federation("adapt", {self.person: data}))
        if self.person not in guesses:
            return math.nan
        return run.task.metrics(guesses[self.person], own.test)[run.task.headline]

    def _network_outputs(self, params: Params, samples: Samples) -> Tensor:
        outputs = self.trained.outputs(params, samples)
        # Corrections solve small linear systems, whose rounding errors in float32 would show.
        return outputs.double() if isinstance(self.trained.task, GazeAngle) else outputs

    def _fit_correction(
        self,
        kind: Calibration | FittedCalibration | ResidualKernel,
        rows: Rows,
        _: RandomStream,
        __: int,
    ) -> PersonalModel:
        if isinstance(kind, ResidualKernel):
            return self._fit_kernel(kind.fit, rows)
        near, gaze = self.labelled_outputs[rows], self.labelled.columns["gaze"][rows].double()
        side = self.labelled.columns.get("side")
        side = None if side is None else side[rows]
        # The terms of a fitted correction distinguish the eyes already.
        if isinstance(kind, FittedCalibration):
            return PersonalModel(self.start, kind.fit(near, gaze, side))
        if not self.per_eye:
            return PersonalModel(self.start, kind.fit(near, gaze))
        assert side is not None
        each = {n: kind.fit(near[side == n], gaze[side == n]) for n in (0, 1)}
        return PersonalModel(self.start, each)

    def _fit_kernel(
        self, fit: Callable[[Tensor, Tensor, Tensor], KernelCorrection], rows: Rows
    ) -> PersonalModel:
        samples = self.labelled.subset(rows)
        gaze, inputs = samples.columns["gaze"].double(), self._kernel_inputs(samples)
        return PersonalModel(self.start, fit(self.labelled_outputs[rows], gaze, inputs))

    def _kernel_inputs(self, samples: Samples) -> Tensor:
        assert isinstance(self.trained.task, GazeAngle)
        return self.trained.task.kernel_inputs(samples)

    def _fit_prior(self, exponent: float, rows: Rows, _: RandomStream, __: int) -> PersonalModel:
        points, grid = self.labelled.columns["points"][rows], self.labelled_outputs.shape[-2:]
        log = cross_fitted(points, (grid[0], grid[1]))[-1].log().float()
        return PersonalModel(self.start, exponent=exponent, prior=log)

    def _fine_tune(
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

    def _method_prediction(self, rows: Rows, _: RandomStream, __: int) -> PersonalModel:
        data = self.labelled.subset(rows)
        return PersonalModel(self.trained.model(self.person, known=False, train=data))

    def _method_turns(self, rows: Rows, stream: RandomStream, draw: int) -> PersonalModel:
        """Train for several turns of the method on these samples; return its personal model."""
        run, data = self.trained, self.labelled.subset(rows)
        here = Federation("adapt", {self.person: Splits(data, data, data)})
        worker = ClientExecutor(
            run.method,
            run.task,
            LocalData(here, here),
            stream.child(ADAPTED, draw, len(rows)),
            Computation(run.solving.precision),
        )
        # The server's model stays as it is: an unseen client takes turns after the run has ended.
        offered, state = run.method.offer(run.server, self.person), ClientState()
        for turn in range(TURNS):
            task = ClientTask(self.person, Message("train", offered, round=turn))
            state = worker.turn(task, state, TaskBatch("turn", [task], [1])).state
        message = replace(run.evaluation_message(self.person), round=TURNS)
        site = worker.site(here, self.person, message)
        return PersonalModel(worker.predicting(state.state, message, site))


def personalises(method: Method) -> bool:
    """True if a client trains its personal model by turns from one model of the server."""
    own = type(method).model_on is not Method.model_on
    return own and set(method.exposure) == {"train"} and not (method.served or method.pooled)
