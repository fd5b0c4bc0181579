"""Local-only training: every client trains its own model, and nothing is shared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.identifiers import ClientId
from vergence.core.local_training import OptimizerState
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Method, NoState
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task


@tagged("Alone")
@dataclass(frozen=True)
class LocalModel:
    """A client's own model, and its optimiser, whose state persists over rounds."""

    params: Params
    optimiser: OptimizerState | None


@dataclass(frozen=True)
class LocalOnly(Method[NoState, LocalModel]):
    """Train each client on its own data only; replies carry metrics only.

    Source: the local-only baseline of arXiv 2502.18123, section 3.1.
    """

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=())}
    keeps_statistics: ClassVar[bool] = True

    def server(self, task: Task) -> NoState:
        """Return an empty server state."""
        return NoState()

    def client(self, task: Task) -> LocalModel:
        """Return the state of a new client: the task's initial model, the same for everybody."""
        return LocalModel(task.init(), OptimizerState({}, 0))

    def offer(self, s: NoState, client: ClientId) -> Mapping[str, Params]:
        """Return no trees: clients download nothing."""
        return {}

    def round(self, s: NoState, cohort: Sequence[ClientId]) -> Conversation[NoState]:
        """Let the cohort train."""
        yield from aggregate("train", to=cohort)
        return s

    def on_train(
        self, c: LocalModel, msg: Message, site: ClientContext
    ) -> Conversation[tuple[LocalModel, Reply]]:
        """Continue training the client's own model."""
        fitted = yield from fit(c.params, site.train, self.local, optimiser=c.optimiser)
        return LocalModel(fitted.params, fitted.optimiser), reply(metrics=fitted.metrics)

    def model_on(self, c: LocalModel, msg: Message, site: ClientContext) -> Params:
        """Return the client's own model."""
        return c.params
