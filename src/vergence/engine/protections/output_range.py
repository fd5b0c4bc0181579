"""Range check: clients' smashed data are compared with those of a trusted person.

Used by `engine.protections.setup`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.requests import Forward
from vergence.core.stages import SMASHED
from vergence.core.task import Task
from vergence.engine.participation import suggest
from vergence.engine.protections.built_in import BuiltInProtection
from vergence.engine.protections.split_defense import DefendedTrainer
from vergence.errors import ConfigError
from vergence.methods.split.base import Cutting, unpack
from vergence.privacy.hooks import Check, ClientHooks, ProtectedRun, Statement
from vergence.privacy.split.bottleneck import version
from vergence.privacy.split.output_range import OutputRange, Span
from vergence.training.steps import Trainer

FRONT = "front"
# Pictures of the root that pass each new state of the clients' layers: more would take the server
# time in every round, and change the range little.
MOST = 256


class SmashedRangeCheck:
    """Compares clients' smashed data (outputs of their layers) with those of a trusted person.

    The trusted person is called the root.

    Args:
        policy: names the root, and how much wider the allowed range is than the root's own range.
        method: the method, which cuts the network.
        task: the task.
        root: the root's training samples.
        noisy: (layers, batch) -> smashed data as they leave a client under a defence; None: there
            is no defence.
    """

    # In a deployment the root's client would send three numbers; the simulator has its pictures.

    def __init__(
        self,
        policy: OutputRange,
        method: Method,
        task: Task,
        root: Samples,
        noisy: Callable[[Params, Batch], Tensor] | None = None,
    ) -> None:
        assert isinstance(method, Cutting)
        self.policy, self.method, self.task, self.noisy = policy, method, task, noisy
        self.root = root
        self.names = method.front(task).init().layout.names
        self.known: tuple[str, Span] | None = None

    def span(self, front: Params) -> Span:
        """Return the allowed range of smashed data from clients with these layers."""
        mark = version(front)
        if self.known is None or self.known[0] != mark:
            layers = front.only(self.names).copy()
            batch = self.root.take(slice(0, MOST))
            ask = Forward(layers, batch, self.method.front)
            smashed = (
                Trainer(self.method.front(self.task)).forward(ask)
                if self.noisy is None
                else self.noisy(layers, batch)
            )
            self.known = mark, Span.of(smashed).widened(self.policy.widen)
        return self.known[1]

    def fault(self, span: Span | None, sealed: SealedReply) -> str | None:
        """Return why the server must not compute with a client's smashed data; None if it may."""
        smashed = sealed.trees.get(SMASHED)
        if span is None or smashed is None or "values" not in smashed.total:
            return None
        return span.fault(SMASHED, unpack(smashed.total))


@dataclass(frozen=True)
class OutputRangeHooks(ClientHooks):
    """Lets the server check clients' smashed data (layer outputs) before it computes with them."""

    policy: OutputRange
    method: Method
    task: Task
    trained_on: Federation
    noisy: Callable[[Params, Batch], Tensor] | None = None

    @cached_property
    def ranges(self) -> SmashedRangeCheck:
        """The check against the root's smashed data; the root is the trusted person."""
        root = self.trained_on.people[self.policy.root].train
        return SmashedRangeCheck(self.policy, self.method, self.task, root, self.noisy)

    def receiving(self) -> Check:
        """Return a new check of what one client sends.

        A session of split learning calls this once for each of its clients.
        """
        span: Span | None = None

        def check(message: Message, sealed: SealedReply) -> str | None:
            """Return the fault of a reply, or None; a message with new layers sets the range."""
            nonlocal span
            if FRONT in message.trees:
                span = self.ranges.span(message[FRONT])
            return self.ranges.fault(span, sealed)

        return check


class OutputRangeProtection(BuiltInProtection):
    """The protection of `privacy.output_range`: smashed data (layer outputs) must be in a range."""

    policy: OutputRange
    forecasts = False

    def check(self, run: ProtectedRun) -> None:
        """Refuse a root (the trusted person) that is not among the people.

        Raises:
            ConfigError: the root is unknown; the message names it, and people with similar names.
        """
        root, people = self.policy.root, run.federation
        if root not in people.people:
            raise ConfigError(
                f"privacy.output_range: root: no client '{root}'{suggest(root, people.clients)}"
            )

    def client(self, run: ProtectedRun) -> OutputRangeHooks:
        """Return the hooks that check smashed data, which may have noise from a defence."""
        defended = (hook.noisy_output for hook in run.hooks if isinstance(hook, DefendedTrainer))
        noisy = next(defended, None)
        return OutputRangeHooks(self.policy, run.method, run.task, run.federation, noisy)

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """State in reports what the server learns about its root, the person that it trusts."""
        text = f"in which range {self.policy.root}'s smashed data lie, in every round"
        return [Statement("closing table", text, "server (range)")]
