"""Combiners: how the replies to one request become what the method learns of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from vergence.core.aggregation import Aggregate, Sum
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Exposure, Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Request
from vergence.engine.records import ClientResult, GroupResult
from vergence.engine.secure_sums import SecureSum
from vergence.engine.virtual_clock import PendingUpdate, VirtualClock
from vergence.privacy.hooks import LEFT_OUT, CombinedReplies, ServerHooks, SingleReplies
from vergence.privacy.reply_checks import reply_trees
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout

Release = Callable[[Aggregate], Aggregate]
"""Sum as the method may see it, with the noise of protections."""


@dataclass(frozen=True)
class RoundRequest:
    """Request of a method whose server has this state, and what everybody is sent for it.

    `exposed` is the row of the method's exposure table that declares it.
    """

    request: Request
    exposed: Exposure
    method: Method
    server: Any
    messages: Mapping[str, Message]

    @cached_property
    def trees(self) -> Mapping[str, Params]:
        """Trees of which replies have the shapes."""
        first = next(iter(self.messages.values()), Message(self.request.verb))
        sent = {**self.request.like, **first.trees}
        return reply_trees(self.method, self.request.verb, sent, lambda: self.server)


class Combiner:
    """Weighted sum of the replies; all of them, where the method asked to see each.

    Attributes:
        reveal: whether workers add up the replies of a group, or hand over each of them.
    """

    reveal: Literal["aggregate", "each"]

    def __init__(self, asked: RoundRequest, release: Release) -> None:
        self.asked, self.release, self.reveal = asked, release, asked.request.reveal
        self.whole, self.replies = Sum(), dict[str, SealedReply]()

    def add(self, group: GroupResult) -> None:
        """Take in the replies of a group that count."""
        self.whole.merge(group.sum)
        self.replies |= group.replies

    @property
    def in_order(self) -> dict[str, SealedReply]:
        """Single replies in the order in which clients were asked."""
        return {c: self.replies[c] for c in self.asked.messages if c in self.replies}

    def counted(self, results: Mapping[str, ClientResult]) -> Mapping[str, ClientResult]:
        """Results once all replies are there: some may not count after all."""
        return results

    def learned(self, metrics: dict[str, list[float]]) -> Any:
        """Answer for the method; `metrics` are those of the replies that count."""
        if self.asked.request.reveal == "each":
            return self.in_order
        return self.release(self.whole.aggregate(self.asked.trees, metrics))


class SecureCombiner(Combiner):
    """Secure sum of replies that are rows of words; of too few people the method learns nothing."""

    def __init__(
        self, asked: RoundRequest, release: Release, sums: SecureSum, form: ReplyLayout
    ) -> None:
        super().__init__(asked, release)
        self.sums, self.form = sums, form

    def counted(self, results: Mapping[str, ClientResult]) -> Mapping[str, ClientResult]:
        """Results as they are, or nobody's reply counts."""
        return self.sums.counted(results)

    def learned(self, metrics: dict[str, list[float]]) -> Aggregate:
        """Return the sum; its metrics are means, which stand for everybody's."""
        learned = self.sums.learned(self.form, self.whole)
        metrics |= {name: [mean] * learned.count for name, mean in learned.metrics.items()}
        return self.release(learned) if learned.count else learned


class SingleCombiner(Combiner):
    """Verdict of a protection that looks at every single reply, such as a robust rule."""

    verdict: CombinedReplies

    def __init__(
        self,
        asked: RoundRequest,
        release: Release,
        judge: ServerHooks,
        stream: RandomStream,
        form: ReplyLayout | None,
    ) -> None:
        super().__init__(asked, release)
        self.judge, self.stream, self.form, self.reveal = judge, stream, form, "each"

    def counted(self, results: Mapping[str, ClientResult]) -> Mapping[str, ClientResult]:
        """Results as the protection judges the replies; whom a rule left out goes on as usual."""
        asked = self.asked
        self.verdict = self.judge.combine(
            SingleReplies(
                self.in_order,
                asked.messages,
                asked.request.like,
                asked.exposed,
                asked.trees,
                self.stream,
                self.form,
            )
        )
        found = dict(results)
        for client, status in self.verdict.statuses.items():
            found[client] = replace(results[client], status=status)
            if not status.startswith(LEFT_OUT):  # as if it had been quarantined at home
                found[client] = replace(found[client], told={}, filed=None, share=None)
        return found

    def learned(self, metrics: dict[str, list[float]]) -> Aggregate:
        """Return the protection's aggregate."""
        return self.release(self.verdict.aggregate)


class AgedCombiner(Combiner):
    """Sum of updates that arrive by a virtual clock, each of which counts by its age.

    The engine, not the method, sees them one by one. `updates` are those of the turns under way.
    """

    def __init__(
        self, asked: RoundRequest, release: Release, virtual_clock: VirtualClock, version: int
    ) -> None:
        super().__init__(asked, release)
        self.virtual_clock, self.version, self.reveal = virtual_clock, version, "each"
        self.updates: Mapping[str, PendingUpdate] = {}

    def add(self, group: GroupResult) -> None:
        """Take in the replies of a group, added up by themselves first."""
        aged, asked = Sum(), self.asked
        for client, reply in group.replies.items():
            now = {**asked.request.like, **asked.messages[client].trees}
            aged.add(self.virtual_clock.aged(reply, self.updates[client], self.version, now))
        self.whole.merge(aged)
