"""Earned personalisation: follow one's own model only as far as held-out data says it pays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, compute, fit
from vergence.core.data import Samples
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Global, Method
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.metrics.held_out import BLOCKS, cut, smallest


@tagged("Mixing")
@dataclass(frozen=True)
class Mixing:
    """A client's own model, its like without each fold, and the share that held-out data chose."""

    params: Params
    folds: tuple[Params, ...]
    share: float = 0.0


@dataclass(frozen=True)
class Earned(Method[Global, Mixing]):
    """Average as FedAvg; beside it train one's own model from the best mix of own and common.

    Candidates are share * own + (1 - share) * model for shares 0, 1 / grid, ..., 1. They are judged
    on training and validation data: training samples by a model that was trained beside one's own
    without their fold. Of all shares whose loss is within `errors` standard errors of the lowest
    the smallest is taken, so that little data means little personalisation. One's own models go on
    from there; at the end, with the final model, they are fine-tuned, and the share is chosen anew.

    Args:
        grid: steps between the common model (share 0) and one's own (share 1).
        folds: parts of the training data, each of which one more model is trained without; 0: no
            training data are held out, and the lowest loss on all validation data decides.
        errors: how many standard errors a smaller share may be worse; 0: the lowest loss decides.
        tune_epochs: epochs of fine-tuning at the end; 0 for none.
        weights: clients count by their samples, or equally, in the common model.

    Source: this project, docs/methods/earned.md; the common model is McMahan et al. 2017,
    Algorithm 1; the rule of one standard error Breiman et al. 1984, section 3.4.3.
    Differs: the common model has seen all training samples, as one of its clients'; where that
    matters, it is the shared model that is favoured.
    """

    grid: Annotated[int, Ge(1)] = 4
    folds: Annotated[int, Ge(0)] = 2
    errors: Annotated[float, Ge(0)] = 1.0
    tune_epochs: Annotated[int, Ge(0)] = 3
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(),
        "settle": Exposure(trees=(), metrics=()),
    }
    finish_verbs: ClassVar[tuple[str, ...]] = ("settle",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds == 1:
            raise ConfigError(
                "earned: folds must be 0 (validation data alone) or 2 and more, got 1: a model "
                "without the only fold would have nothing to train on"
            )

    def server(self, task: Task) -> Global:
        """Start from the task's initial model."""
        return Global(task.init())

    def client(self, task: Task) -> Mixing:
        """Start from the task's initial model, following the common one."""
        start = task.init()
        return Mixing(start, (start,) * self.folds)

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the mean update."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean("model"))

    def on_train(
        self, c: Mixing, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Mixing, Reply]]:
        """Train the received model to send it back, and one's own from the best mix."""
        model = msg["model"]
        common = yield from fit(model, site.train, self.local)
        share = yield from self.best(c, model, site)
        mine = yield from self.trained(c, model, share, site, self.local)
        weight = common.examples if self.weights == "samples" else 1.0
        update = common.params - model
        return mine, reply(model=update, weight=weight, metrics=common.metrics)

    def trained(
        self, c: Mixing, model: Params, share: float, site: ClientContext, local: LocalTraining
    ) -> Conversation[Mixing]:
        """Train one's own model, and those without a fold, each from its own mix."""
        own = yield from fit(mixed(c.params, model, share), site.train, local)
        folds = []
        for params, (_, rest) in zip(c.folds, self.parts(site.train), strict=True):
            start = mixed(params, model, share)
            fitted = yield from fit(start, rest, local)
            folds.append(fitted.params)
        return Mixing(own.params, tuple(folds), share)

    def best(self, c: Mixing, model: Params, site: ClientContext) -> Conversation[float]:
        """Return the smallest share within `errors` standard errors of the lowest loss."""
        judged = [(p, held) for p, (held, _) in zip(c.folds, self.parts(site.train), strict=True)]
        losses, counts = [], []
        for own, held in [*judged, (c.params, site.val)]:
            # Without folds all of it: DP-SGD lets a turn look at nothing but whole validation data.
            for block in cut(held, self.runs) if self.folds else [held]:
                row = []
                for step in range(self.grid + 1):
                    candidate = mixed(own, model, step / self.grid)
                    row.append((yield from compute(candidate, block, "loss")))
                losses.append(row)
                counts.append(len(block))
        return smallest(losses, counts, self.errors) / self.grid

    @property
    def runs(self) -> int:
        """Number of runs of neighbours that a fold has, and that held-out data are cut into."""
        return max(BLOCKS // (self.folds + 1), 1)

    def parts(self, train: Samples) -> list[tuple[Samples, Samples]]:
        """Return every fold, runs of neighbours from all over the samples, and all samples but it.

        A fold that is one run would be all left eyes of a person, or one recording. Where there
        are fewer samples than folds nothing is held out: validation data decide.
        """
        rows = torch.arange(len(train))
        if not self.folds or len(train) < self.folds:
            return [(train.subset(rows[:0]), train)] * self.folds
        runs = self.folds * min(self.runs, len(train) // self.folds)
        fold = rows * runs // len(train) % self.folds
        return [
            (train.subset(rows[fold == k]), train.subset(rows[fold != k]))
            for k in range(self.folds)
        ]

    def finish(self, s: Global, clients: Sequence[ClientId]) -> Conversation[Global]:
        """Let everybody settle on what to keep."""
        yield from aggregate("settle", to=clients)
        return s

    def on_settle(
        self, c: Mixing, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Mixing, Reply]]:
        """Fine-tune from the best mix with the final model, and choose for good; nothing goes back.

        What is kept is the mix itself.
        """
        model = msg["model"]
        if self.tune_epochs:
            share = yield from self.best(c, model, site)
            local = replace(self.local, epochs=self.tune_epochs, steps=None)
            c = yield from self.trained(c, model, share, site, local)
        share = yield from self.best(c, model, site)
        folds = tuple(mixed(params, model, share) for params in c.folds)
        return Mixing(mixed(c.params, model, share), folds, 1.0), reply()

    def model_on(self, c: Mixing, msg: Message, site: ClientContext) -> Params:
        """Predict with the mix last chosen."""
        return mixed(c.params, msg["model"], c.share)


def mixed(own: Params, model: Params, share: float) -> Params:
    """Return share * own + (1 - share) * model, exactly one of them at 0 and 1."""
    if share in (0, 1):
        return own if share else model
    return share * own + (1 - share) * model
