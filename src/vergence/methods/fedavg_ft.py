"""FedAvg with local fine-tuning after the last round: a baseline that most papers omit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, Exposure, Global, UpdateMethod
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task


@tagged("Tuned")
@dataclass(frozen=True)
class Tuned:
    """A client's fine-tuned model; none before the end."""

    params: Params | None


@dataclass(frozen=True)
class FedAvgFT(UpdateMethod[Global, Tuned], AveragingMethod[Tuned]):
    """Average as FedAvg; after the last round everybody fine-tunes the model on their own data.

    Args:
        tune_epochs: passes over a client's own data after the last round; replaces `local.epochs`
            and `local.steps`.
        weights: clients count by their samples, or equally.

    Source: McMahan et al. 2017, Algorithm 1; see docs/reference/methods/fedavg_ft.md.
    """

    tune_epochs: Annotated[int, Ge(1)] = 10
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(), "tune": Exposure(trees=())}
    finish_verbs: ClassVar[tuple[str, ...]] = ("tune",)

    def client(self, task: Task) -> Tuned:
        """Return the state of a new client: no fine-tuned model yet."""
        return Tuned(None)

    def on_tune(
        self, c: Tuned, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Tuned, Reply]]:
        """Fine-tune the received model and keep it; nothing goes back but metrics."""
        local = replace(self.local, epochs=self.tune_epochs, steps=None)
        fitted = yield from fit(msg["model"], site.train, local)
        return Tuned(fitted.params), reply(metrics=fitted.metrics)

    def model_on(self, c: Tuned, msg: Message, site: ClientContext) -> Params:
        """Return the fine-tuned model; before the end of the run, the received model."""
        return msg["model"] if c.params is None else c.params
