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
from vergence.methods.split.base import Cutting, opened
from vergence.privacy.hooks import Check, ClientHooks
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
        self.batch = root.take(slice(0, MOST))
        self.names = method.front(task).init().layout.names
        self.known: tuple[str, Span] | None = None

    def span(self, front: Params) -> Span:
        """Return the range for clients that start from these layers."""
        mark = version(front)
        if self.known is None or self.known[0] != mark:
            layers = front.only(self.names).copy()
            if self.noisy is not None:
                smashed = self.noisy(layers, self.batch)
            else:
                ask = Forward(layers, self.batch, self.method.front)
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
