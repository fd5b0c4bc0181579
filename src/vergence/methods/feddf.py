"""FedDF: the average model is distilled from the clients' models on public samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from vergence.core.aggregation import add_up
from vergence.core.conversation import Conversation, collect, compute, proxies, step
from vergence.core.data import Batch, Samples
from vergence.core.federation import PublicData
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.method import Exposure, NoState, UpdateMethod
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.stages import WrappedTask
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.training.batches import batches

LOOK = 100
"""Batches between two evaluations on the validation samples."""


@tagged("Student")
@dataclass(frozen=True)
class Student:
    """The model, and the seed and round of the random streams."""

    model: Params
    seed: int
    round: int = 0


@dataclass(frozen=True)
class FedDF(UpdateMethod[Student, NoState]):
    """Average as FedAvg; then let the average imitate all clients' models on unlabelled samples.

    With z_k(x) the output of client k's model, U the server's samples, T the temperature:
    avg_logits minimises KL(softmax(mean_k z_k(x) / T) || softmax(z(x) / T)) over x in U,
    avg_losses mean_k KL(softmax(z_k(x) / T) || softmax(z(x) / T)). Where a task does not classify,
    the mean squared difference takes the place of KL, and both come to the same.

    Args:
        objective: the mean of the teachers' outputs, or the mean of the losses against each.
        temperature: T.
        steps: batches per round, at most so many with `patience`; 0 is FedAvg.
        batch: number of samples of U in each batch.
        rate: learning rate of Adam, which falls to 0 along a cosine over the batches of a round.
        clip: largest norm of a gradient; 0: no limit.
        patience: stop after so many batches without a better score on the server's labelled
            samples, and return to the best model; 0: do not use those samples.
        weights: clients count in the average by their samples, or equally. As teachers they always
            count equally.

    Source: Lin, Kong, Stich, Jaggi, "Ensemble distillation for robust model fusion in federated
    learning", NeurIPS 2020, Algorithm 1 (one architecture for all).
    Differs: 1,000 batches and no validation, where the authors' programme takes at most 10,000 and
    stops after 1,000 without gain.
    """

    objective: Literal["avg_logits", "avg_losses"] = "avg_logits"
    temperature: Annotated[float, Gt(0)] = 1.0
    steps: Annotated[int, Ge(0)] = 1000
    batch: Annotated[int, Ge(1)] = 128
    rate: Annotated[float, Gt(0)] = 1e-3
    clip: Annotated[float, Ge(0)] = 5.0
    patience: Annotated[int, Ge(0)] = 0
    weights: Literal["samples", "equal"] = "samples"

    resident: ClassVar[bool] = False
    exposure: ClassVar = {"train": Exposure("each")}
    needs_public_data: ClassVar[bool] = True

    def server(self, task: Task) -> Student:
        """Return the first server state: the task's initial model."""
        return Student(task.init(), task.seed)

    def round(self, s: Student, cohort: Sequence[ClientId]) -> Conversation[Student]:
        """Let the cohort train, average, and distil the clients' models into the mean."""
        replies = yield from collect("train", to=cohort)
        came = [replies[c] for c in cohort if c in replies]
        if not came:
            return s
        student = s.model + add_up(came, {"model": s.model}).mean("model")
        if self.steps:
            teachers = [s.model + add_up([r], {"model": s.model}).mean("model") for r in came]
            student = yield from self.distill(
                student, teachers, RandomStream("feddf", s.seed, s.round)
            )
        return replace(s, model=student, round=s.round + 1)

    def distill(
        self, student: Params, teachers: Sequence[Params], stream: RandomStream
    ) -> Conversation[Params]:
        """Return the student after it was trained to imitate the teachers."""
        public = yield from proxies()
        sizes = LocalTraining(batch=self.batch, steps=self.steps)
        row_batches = list(batches(public.train, sizes, stream, None))
        # A teacher's output is computed once for each sample that any batch draws, and no other.
        needed, places = torch.cat(row_batches).unique(return_inverse=True)
        with_outputs = yield from self.with_teacher_outputs(teachers, public.train.subset(needed))
        adam, schedule = OptimizerState({}, 0), DistillationSchedule(self.patience)
        for at, rows in enumerate(places.split([len(rows) for rows in row_batches])):
            if (
                self.patience
                and at % LOOK == 0
                and (yield from schedule.should_stop(student, public, at))
            ):
                break
            local = self.adam(at)
            done = yield from step(
                student, adam, with_outputs.take(rows), local, self.distillation_objective
            )
            student, adam = done.params, done.optimiser
        if self.patience:
            yield from schedule.should_stop(student, public, self.steps)
        return schedule.best or student

    def with_teacher_outputs(
        self, teachers: Sequence[Params], data: Samples
    ) -> Conversation[Samples]:
        """Add the teachers' outputs as the column `teachers` `[samples, teachers or 1, ...]`."""
        outputs_of: dict[int, Tensor] = {}
        for number, teacher in enumerate(teachers):
            outputs_of[number] = yield from compute(teacher, data, "outputs")
        outputs = torch.stack(list(outputs_of.values()), 1)
        if self.objective == "avg_logits":
            outputs = outputs.mean(1, keepdim=True)
        return replace(data, columns={**data.columns, "teachers": outputs})

    def adam(self, at: int) -> LocalTraining:
        """Return the training settings of batch number `at`."""
        rate = self.rate * 0.5 * (1 + math.cos(math.pi * at / self.steps))
        return LocalTraining(optimizer="adam", lr=rate, weight_decay=0.0, clip=self.clip)

    def distillation_objective(self, task: Task) -> DistillationPass:
        """Return the training objective of the student."""
        return DistillationPass(task.network, task.seed, task, self.temperature)


class DistillationSchedule:
    """Early stopping of a student by its score on labelled samples."""

    def __init__(self, patience: int) -> None:
        self.patience, self.since, self.score = patience, 0, -math.inf
        self.best: Params | None = None

    def should_stop(self, student: Params, public: PublicData, at: int) -> Conversation[bool]:
        """Evaluate a student after `at` batches; return whether patience has run out."""
        score = yield from compute(student, public.val, "score")
        if score > self.score:
            # Steps change parameters in place: without the copy the best model would train on.
            self.best, self.score, self.since = student.copy(), score, at
        return at - self.since >= self.patience


@dataclass(frozen=True)
class DistillationPass(WrappedTask):
    """The run's task and network, trained to imitate the outputs in the column `teachers`."""

    temperature: float = 1.0

    headline: ClassVar[str] = "imitation"

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the network's output."""
        return self.task.forward(module, batch)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the distance from the teachers' outputs, a mean over the teachers."""
        distances = [
            self.task.imitation(output, teacher, self.temperature)
            for teacher in batch["teachers"].unbind(1)
        ]
        return torch.stack(distances).mean()
