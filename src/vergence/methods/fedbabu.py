"""FedBABU: learn a common body under a head that never changes, then fine-tune locally."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, fit
from vergence.core.masks import Mask
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import BodyMethod, Exposure
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task


@tagged("Untouched")
@dataclass(frozen=True)
class Untouched:
    """Client state: the initial parameters or the fine-tuned ones, and the mask of the head."""

    params: Params
    head: Mask
    tuned: bool = False


@dataclass(frozen=True)
class FedBABU(BodyMethod[Untouched]):
    """Train and average the body under the initial head; at the end fine-tune the whole network.

    Args:
        tune_epochs: passes over one's own data after the last round, for the whole network,
            in place of `local.epochs`.
        head: the fixed parameters (patterns, "fc2.*"); default: the head that the model names,
            otherwise its last layer.
        weights: clients count equally, as in the authors' code, or by their samples.

    Source: Oh, Kim, Yun, "FedBABU: Towards enhanced representation for federated image
    classification", ICLR 2022, Algorithm 1.
    """

    tune_epochs: Annotated[int, Ge(1)] = 10
    head: tuple[str, ...] = ()
    weights: Literal["samples", "equal"] = "equal"

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("body",)),
        "tune": Exposure(trees=()),
    }
    state_labels: ClassVar[Mapping[str, str]] = {
        "params": "the person's own model",
        "head": "which layers are personal",
    }
    finish_verbs: ClassVar[tuple[str, ...]] = ("tune",)

    def client(self, task: Task) -> Untouched:
        """Return the state of a new client: the task's initial model, with the mask of its head."""
        start = task.init()
        return Untouched(start, Mask.layers(start.layout, *task.parts(*self.head)[1]))

    def on_train(
        self, c: Untouched, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Untouched, Reply]]:
        """Train the received body under the fixed head."""
        start = c.params.put(msg["body"])
        fitted = yield from fit(start, site.train, self.local, trainable=~c.head)
        update = fitted.params.only(msg["body"]) - msg["body"]
        return c, reply(body=update, weight=fitted.weight(self.weights), metrics=fitted.metrics)

    def on_tune(
        self, c: Untouched, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Untouched, Reply]]:
        """Fine-tune body and head and keep both; nothing goes back but metrics."""
        local = replace(self.local, epochs=self.tune_epochs, steps=None)
        fitted = yield from fit(c.params.put(msg["body"]), site.train, local)
        return replace(c, params=fitted.params, tuned=True), reply(metrics=fitted.metrics)

    def model_on(self, c: Untouched, msg: Message, site: ClientContext) -> Params:
        """Return the fine-tuned network; before the end, the received body and the initial head."""
        return c.params if c.tuned else c.params.put(msg["body"])
