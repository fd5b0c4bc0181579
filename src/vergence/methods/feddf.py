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
"""Batches between two looks at the validation samples."""


@tagged("Student")
@dataclass(frozen=True)
class Student:
    """The model, and what randomness is drawn by."""

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
        steps: batches per round, the most if `patience` is given; 0 is FedAvg.
        batch: samples of U in each.
        rate: learning rate of Adam, which falls to 0 along a cosine over the batches of a round.
        clip: longest gradient; 0: any.
        patience: stop after so many batches without a better score on the labelled samples that
            the server holds, and go back to the best; 0: never look at them.
        weights: clients count in the average by their samples, or equally; as teachers equally.

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

    exposure: ClassVar = {"train": Exposure("each")}
    borrows: ClassVar[bool] = True

    def server(self, task: Task) -> Student:
        """Start from the task's initial model."""
        return Student(task.init(), task.seed)

    def round(self, s: Student, cohort: Sequence[ClientId]) -> Conversation[Student]:
        """Let the cohort train, average, and let the average imitate everybody."""
        replies = yield from collect("train", to=cohort)
        came = [replies[c] for c in cohort if c in replies]
        if not came:
            return s
        student = s.model + add_up(came, {"model": s.model}).mean("model")
        if self.steps:
            teachers = [s.model + add_up([r], {"model": s.model}).mean("model") for r in came]
            student = yield from self.distilled(
                student, teachers, RandomStream("feddf", s.seed, s.round)
            )
        return replace(s, model=student, round=s.round + 1)

    def distilled(
        self, student: Params, teachers: Sequence[Params], stream: RandomStream
    ) -> Conversation[Params]:
        """Parameters of the student after it is trained to imitate the teachers."""
        held = yield from proxies()
        wanted = LocalTraining(batch=self.batch, steps=self.steps)
        drawn = list(batches(len(held.train), wanted, stream))
        needed, places = torch.cat(drawn).unique(return_inverse=True)
        taught = yield from self.taught(teachers, held.train.subset(needed))
        adam, schedule = OptimizerState({}, 0), DistillationSchedule(self.patience)
        for at, rows in enumerate(places.split([len(rows) for rows in drawn])):
            if self.patience and at % LOOK == 0 and (yield from schedule.over(student, held, at)):
                break
            local = self.adam(at)
            done = yield from step(
                student, adam, taught.take(rows), local, self.distillation_objective
            )
            student, adam = done.params, done.optimiser
        if self.patience:
            yield from schedule.over(student, held, self.steps)
        return schedule.best or student

    def taught(self, teachers: Sequence[Params], data: Samples) -> Conversation[Samples]:
        """Return samples with the column `teachers` `[samples, teachers or 1, ...]`: outputs."""
        shown: dict[int, Tensor] = {}
        for number, teacher in enumerate(teachers):
            shown[number] = yield from compute(teacher, data, "outputs")
        outputs = torch.stack(list(shown.values()), 1)
        if self.objective == "avg_logits":
            outputs = outputs.mean(1, keepdim=True)
        return replace(data, columns={**data.columns, "teachers": outputs})

    def adam(self, at: int) -> LocalTraining:
        """Training settings of batch number `at`."""
        rate = self.rate * 0.5 * (1 + math.cos(math.pi * at / self.steps))
        return LocalTraining(optimizer="adam", lr=rate, weight_decay=0.0, clip=self.clip)

    def distillation_objective(self, task: Task) -> DistillationPass:
        """Training objective of the student."""
        return DistillationPass(task.network, task.seed, task, self.temperature)


class DistillationSchedule:
    """Score of a student on labelled samples during training, where a method looks at them."""

    def __init__(self, patience: int) -> None:
        self.patience, self.since, self.score = patience, 0, -math.inf
        self.best: Params | None = None

    def over(self, student: Params, held: PublicData, at: int) -> Conversation[bool]:
        """Score a student after so many batches; tell whether it has not got better for long."""
        score = yield from compute(student, held.val, "score")
        if score > self.score:
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
        """Distance of the output from the teachers' outputs, a mean over the teachers."""
        apart = [
            self.task.imitation(output, teacher, self.temperature)
            for teacher in batch["teachers"].unbind(1)
        ]
        return torch.stack(apart).mean()
