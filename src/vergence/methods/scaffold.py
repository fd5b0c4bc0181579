"""SCAFFOLD: every gradient is corrected by the client's drift from the mean direction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, compute, fit
from vergence.core.identifiers import ClientId
from vergence.core.layers.averaged_statistics import with_statistics_of
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Method, Tree
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError


@tagged("Controlled")
@dataclass(frozen=True)
class Controlled:
    """The common model, the mean of all clients' controls (c), and the number of clients."""

    model: Params
    control: Params
    people: int = 0


@tagged("Control")
@dataclass(frozen=True)
class ControlVariate:
    """A client's control (c_i): its mean gradient in its last turn."""

    control: Params


@dataclass(frozen=True)
class Scaffold(Method[Controlled, ControlVariate]):
    """Train with every gradient corrected by c - c_i; average updates and controls.

    Option II, K steps at rate eta:  c_i+ = c_i - c + (x - y) / (K eta);  the server adds the mean
    of y - x, and  c <- c + |cohort| / N * mean(c_i+ - c_i).

    Args:
        option: `II`, controls from the steps taken, or `I`: c_i+ is the gradient of the
            client's data at the received model, which costs one more pass and works with any
            optimiser.
        server_lr: rate of the server's step; controls are not scaled by it.

    Source: Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning",
    ICML 2020, Algorithm 1.
    Differs: with momentum, K eta is replaced by the distance that K steps move along a constant
    gradient of 1.
    """

    local: LocalTraining = LocalTraining(optimizer="sgd")
    option: Literal["I", "II"] = "II"
    server_lr: Annotated[float, Gt(0)] = 1.0

    exposure: ClassVar[Mapping[str, Exposure]] = {"train": Exposure(trees=("model", "control"))}
    trees: ClassVar[Mapping[str, Tree]] = {
        "control": Tree("correction (control)"),
    }
    state_labels: ClassVar[Mapping[str, str]] = {
        "control": "a correction",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option == "II" and self.local.optimizer != "sgd":
            raise ConfigError(
                f"scaffold: option II divides by the steps of local.optimizer = 'sgd', got "
                f"'{self.local.optimizer}'; use sgd, or option = \"I\""
            )

    def server(self, task: Task) -> Controlled:
        """Return the first server state: the task's initial model, and a control of zeros."""
        start = task.init()
        return Controlled(start, start * 0.0)

    def client(self, task: Task) -> ControlVariate:
        """Return the state of a new client: a control of zeros."""
        return ControlVariate(task.init() * 0.0)

    def offer(self, s: Controlled, client: ClientId) -> Mapping[str, Params]:
        """Return the model and the common control, which every client downloads."""
        return {"model": s.model, "control": s.control}

    def setup(self, s: Controlled, clients: Sequence[ClientId]) -> Conversation[Controlled]:
        """Return the server's state with the number of clients (N); no messages are sent."""
        # The `yield` below is never reached: it makes this method a conversation without messages.
        return Controlled(s.model, s.control, len(clients))
        yield

    def round(self, s: Controlled, cohort: Sequence[ClientId]) -> Conversation[Controlled]:
        """Let the cohort train; add the mean update to the model, and the mean change to c."""
        got = yield from aggregate("train", to=cohort)
        # Algorithm 1, line 17: |S| / N. A client that joined after `setup` must not make it exceed
        # 1.
        share = got.count / max(s.people, len(cohort))
        return Controlled(
            s.model + self.server_lr * got.mean("model"),
            s.control + share * got.mean("control"),
            s.people,
        )

    def on_train(
        self, c: ControlVariate, msg: Message, site: ClientContext
    ) -> Conversation[tuple[ControlVariate, Reply]]:
        """Train with corrected gradients, and compute the client's new control."""
        model, common = msg["model"], msg["control"]
        correction = common - c.control
        if self.option == "I":
            control = yield from compute(model, site.train, "gradient")
            fitted = yield from fit(model, site.train, self.local, correction=correction)
        else:
            fitted = yield from fit(model, site.train, self.local, correction=correction)
            distance = sgd_distance(self.local, fitted.steps) * self.local.learning_rate(
                site.progress
            )
            # Momentum makes the K steps longer than K eta; without the true length c_i+ would be
            # too large by that factor.
            control = (model - fitted.params) / distance - correction
            # Running statistics of BatchNorm have no gradient to correct.
            control = with_statistics_of(site.task, control, c.control)
        return ControlVariate(control), reply(
            model=fitted.params - model, control=control - c.control, metrics=fitted.metrics
        )


def sgd_distance(local: LocalTraining, steps: int) -> float:
    """Return how far `steps` SGD steps of rate 1 lead along a constant gradient of 1."""
    m, velocity, distance = local.momentum, 0.0, 0.0
    for _ in range(steps):
        velocity = m * velocity + 1
        distance += 1 + m * velocity if local.nesterov else velocity
    return distance
