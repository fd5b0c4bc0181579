"""Earned personalisation: follow one's own model only as far as validation data says it pays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, compute, fit
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Global, Method
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task


@tagged("Mixing")
@dataclass(frozen=True)
class Mixing:
    """A client's own model, and the share of it that validation data last chose."""

    params: Params
    share: float = 0.0


@dataclass(frozen=True)
class Earned(Method[Global, Mixing]):
    """Average as FedAvg; beside it train one's own model from the best mix of own and common.

    Candidates are share * own + (1 - share) * model for shares 0, 1 / grid, ..., 1. Each turn the
    one of lowest validation loss is where one's own model goes on from. At the end, with the final
    model, the best candidate is fine-tuned, and what a person keeps is the best mix of before and
    after: so nobody is served worse than by either model or by fine-tuning, as far as validation
    data can tell.

    Args:
        grid: steps between the common model (share 0) and one's own (share 1).
        tune_epochs: epochs of fine-tuning at the end; 0 for none.
        weights: clients count by their samples, or equally, in the common model.

    Source: this project, docs/methods/earned.md; the common model is McMahan et al. 2017,
    Algorithm 1.
    """

    grid: Annotated[int, Ge(1)] = 4
    tune_epochs: Annotated[int, Ge(0)] = 3
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(),
        "settle": Exposure(trees=(), metrics=()),
    }
    finish_verbs: ClassVar[tuple[str, ...]] = ("settle",)

    def server(self, task: Task) -> Global:
        """Start from the task's initial model."""
        return Global(task.init())

    def client(self, task: Task) -> Mixing:
        """Start from the task's initial model, following the common one."""
        return Mixing(task.init())

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
        share = yield from self.best(c.params, model, site)
        own = yield from fit(mixed(c.params, model, share), site.train, self.local)
        weight = common.examples if self.weights == "samples" else 1.0
        update = common.params - model
        return Mixing(own.params, share), reply(model=update, weight=weight, metrics=common.metrics)

    def best(self, own: Params, model: Params, site: ClientContext) -> Conversation[float]:
        """Return the share of one's own model in the mix of lowest validation loss."""
        losses = []
        for step in range(self.grid + 1):
            share = step / self.grid
            loss = yield from compute(mixed(own, model, share), site.val, "loss")
            losses.append((loss, share))
        return min(losses)[1]

    def finish(self, s: Global, clients: Sequence[ClientId]) -> Conversation[Global]:
        """Let everybody settle on what to keep."""
        yield from aggregate("settle", to=clients)
        return s

    def on_settle(
        self, c: Mixing, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Mixing, Reply]]:
        """Fine-tune the best mix with the final model, as far as it pays; nothing goes back."""
        share = yield from self.best(c.params, msg["model"], site)
        kept = mixed(c.params, msg["model"], share)
        if self.tune_epochs:
            local = replace(self.local, epochs=self.tune_epochs, steps=None)
            tuned = yield from fit(kept, site.train, local)
            share = yield from self.best(tuned.params, kept, site)
            kept = mixed(tuned.params, kept, share)
        return Mixing(kept, 1.0), reply()

    def model_on(self, c: Mixing, msg: Message, site: ClientContext) -> Params:
        """Predict with the mix last chosen."""
        return mixed(c.params, msg["model"], c.share)


def mixed(own: Params, model: Params, share: float) -> Params:
    """Return share * own + (1 - share) * model, exactly one of them at 0 and 1."""
    if share in (0, 1):
        return own if share else model
    return share * own + (1 - share) * model
