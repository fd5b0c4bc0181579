"""Range check of smashed data against those that a trusted person's pictures give."""

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
from vergence.methods.split.base import Cutting, opened
from vergence.privacy.hooks import Check, ClientHooks, ProtectedRun, Statement
from vergence.privacy.split.bottleneck import version
from vergence.privacy.split.output_range import OutputRange, Span
from vergence.training.steps import Trainer

FRONT = "front"
MOST = 256
"""Pictures of the root that are looked at, for each state of the layers that clients start from."""


class SmashedRangeCheck:
    """Compares what clients send with what the root's pictures give, through the layers they had.

    The root's client would tell three numbers; the simulator has its pictures.

    Args:
        policy: whose pictures, and how much wider than theirs the range is.
        method: cuts the network.
        task: of the run.
        root: the root's training samples.
        noisy: layers and a batch -> what leaves a client under a defence at the cut; None: what
            the layers make of it.
    """

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
        """Return the range for clients that start from these layers."""
        mark = version(front)
        if self.known is None or self.known[0] != mark:
            layers = front.only(self.names).copy()
            batch = self.root.take(slice(0, MOST))
            if self.noisy is not None:
                smashed = self.noisy(layers, batch)
            else:
                ask = Forward(layers, batch, self.method.front)
                smashed = Trainer(self.method.front(self.task)).forward(ask)
            self.known = mark, Span.of(smashed).widened(self.policy.widen)
        return self.known[1]

    def fault(self, span: Span | None, sealed: SealedReply) -> str | None:
        """Reason not to compute with what a client sent, None if it may be computed with."""
        told = sealed.trees.get(SMASHED)
        if span is None or told is None or "values" not in told.total:
            return None
        return span.fault(SMASHED, opened(told.total))


@dataclass(frozen=True)
class OutputRangeHooks(ClientHooks):
    """Lets the server look at smashed data before it computes with them."""

    policy: OutputRange
    method: Method
    task: Task
    trained_on: Federation
    noisy: Callable[[Params, Batch], Tensor] | None = None

    @cached_property
    def ranges(self) -> SmashedRangeCheck:
        """Ranges of the root's pictures, through the layers that clients start from."""
        root = self.trained_on.people[self.policy.root].train
        return SmashedRangeCheck(self.policy, self.method, self.task, root, self.noisy)

    def receiving(self) -> Check:
        """Check of one client's smashed data while it is served."""
        span: Span | None = None

        def check(message: Message, sealed: SealedReply) -> str | None:
            nonlocal span
            if FRONT in message.trees:
                span = self.ranges.span(message[FRONT])
            return self.ranges.fault(span, sealed)

        return check


class OutputRangeProtection(BuiltInProtection):
    """A range in which the server of split learning expects smashed data."""

    policy: OutputRange
    forecasts = False

    def check(self, run: ProtectedRun) -> None:
        """Refuse a root that is not there.

        Raises:
            ConfigError: names it, and whom it may have meant.
        """
        root, people = self.policy.root, run.federation
        if root not in people.people:
            raise ConfigError(
                f"privacy.output_range: root: no client '{root}'{suggest(root, people.clients)}"
            )

    def client(self, run: ProtectedRun) -> OutputRangeHooks:
        """Hooks that look at smashed data, which a defence before them may have changed."""
        defended = (hook.noisy_output for hook in run.hooks if isinstance(hook, DefendedTrainer))
        noisy = next(defended, None)
        return OutputRangeHooks(self.policy, run.method, run.task, run.federation, noisy)

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """Row on what the server learns of its root."""
        text = f"in which range {self.policy.root}'s smashed data lie, in every round"
        return [Statement("closing table", text, "server (range)")]
