"""The server's look at smashed data: may they be what its layers were trained on?"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vergence.core.data import Batch, Samples
from vergence.core.messages import SealedReply
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.requests import Forward
from vergence.core.stages import SMASHED
from vergence.core.task import Task
from vergence.methods.split.base import Cutting, opened
from vergence.privacy.split.bottleneck import version
from vergence.privacy.split.output_range import OutputRange, Span
from vergence.training.steps import Trainer

FRONT = "front"
MOST = 256
"""Pictures of the root that are looked at, for each state of the layers that clients start from."""


class SmashedRangeCheck:
    """Holds what clients send to what the root's pictures give, through the layers they began with.

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
