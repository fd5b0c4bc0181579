"""The server's look at smashed data: may they be what its layers were trained on?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vergence.core.params import Params
from vergence.core.splitting import Cutting, opened
from vergence.core.stages import SMASHED
from vergence.core.stepping import Forward, Trainer
from vergence.core.wire import Sealed
from vergence.privacy.bottleneck import version
from vergence.privacy.output_range import Range, Span

if TYPE_CHECKING:
    from vergence.engines.turn import Worker

FRONT = "front"
MOST = 256
"""Pictures of the root that are looked at, for each state of the layers that clients start from."""


class Ranges:
    """Holds what clients send to what the root's pictures give, through the layers they began with.

    The root's client would tell three numbers; the simulator has its pictures.
    """

    def __init__(self, policy: Range, worker: Worker) -> None:
        assert isinstance(worker.method, Cutting)
        self.policy, self.worker, self.method = policy, worker, worker.method
        root = worker.trained_on.people[policy.root].train
        self.batch = root.take(slice(0, MOST))
        self.names = worker.method.front(worker.task).init().layout.names
        self.known: tuple[str, Span] | None = None

    def span(self, front: Params) -> Span:
        """Return the range for clients that start from these layers."""
        mark = version(front)
        if self.known is None or self.known[0] != mark:
            layers, guard = front.only(self.names).copy(), self.worker.guard
            if guard is not None:
                smashed = guard.rehearsed(layers, self.batch)
            else:
                ask = Forward(layers, self.batch, self.method.front)
                smashed = Trainer(self.method.front(self.worker.task)).forward(ask)
            self.known = mark, Span.of(smashed).widened(self.policy.widen)
        return self.known[1]

    def fault(self, span: Span | None, sealed: Sealed) -> str | None:
        """Return why what a client sent must not be computed with, None if it may."""
        told = sealed.trees.get(SMASHED)
        if span is None or told is None or "values" not in told.total:
            return None
        return span.fault(SMASHED, opened(told.total))
