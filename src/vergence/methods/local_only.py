"""Local-only: every person alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vergence.core.conversation import ClientId, Conversation, aggregate, fit
from vergence.core.fitting import OptimiserState
from vergence.core.method import Exposed, Method, Nothing
from vergence.core.params import Params
from vergence.core.site import Site
from vergence.core.task import Task
from vergence.core.wire import Message, Reply, reply


@dataclass(frozen=True)
class Alone:
    """A client's own model and optimiser, which goes on over rounds."""

    params: Params
    optimiser: OptimiserState | None


@dataclass(frozen=True)
class LocalOnly(Method[Nothing, Alone]):
    """Train on one's own data and talk to nobody; replies carry metrics only.

    Source: the local-only baseline of arXiv 2502.18123, section 3.1.
    """

    exposure: ClassVar[Mapping[str, Exposed]] = {"train": Exposed(trees=())}

    def server(self, task: Task) -> Nothing:
        """Keep nothing."""
        return Nothing()

    def client(self, task: Task) -> Alone:
        """Start from the task's initial model, the same for everybody."""
        return Alone(task.init(), OptimiserState({}, 0))

    def offer(self, s: Nothing, client: ClientId) -> Mapping[str, Params]:
        """Send nothing."""
        return {}

    def round(self, s: Nothing, cohort: Sequence[ClientId]) -> Conversation[Nothing]:
        """Give everybody a turn."""
        yield from aggregate("train", to=cohort)
        return s

    def on_train(self, c: Alone, msg: Message, site: Site) -> Conversation[tuple[Alone, Reply]]:
        """Go on training one's own model."""
        fitted = yield from fit(c.params, site.train, self.local, optimiser=c.optimiser)
        return Alone(fitted.params, fitted.optimiser), reply(metrics=fitted.metrics)

    def model_on(self, c: Alone, msg: Message, site: Site) -> Params:
        """Predict with one's own model."""
        return c.params
