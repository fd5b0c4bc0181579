"""Combiners: turn the replies to one request into the answer that the method gets.

Used by `engine.exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

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
"""Returns a sum in the form in which the method may see it, with the noise of protections."""


@dataclass(frozen=True)
class RoundRequest:
    """A method's request to its clients, with what the engine knows about it.

    Attributes:
        request: the request.
        exposed: what the method declares about replies to this request.
        method: the method.
        server: state of the method's server.
        messages: client -> the message that it is sent.
    """

    request: Request
    exposed: Exposure
    method: Method
    server: object
    messages: Mapping[str, Message]

    @cached_property
    def trees(self) -> Mapping[str, Params]:
        """Parameters by tree name, with the shapes of the trees in replies."""
        first = next(iter(self.messages.values()), Message(self.request.verb))
        sent = {**self.request.like, **first.trees}
        return reply_trees(self.method, self.request.verb, sent, lambda: self.server)


class Combiner:
    """Answers a request with the weighted sum of replies, or with every single reply.

    Attributes:
        reveal: `aggregate`: workers add up the replies of a group; `each`: they hand over every
            single reply.
    """

    reveal: Literal["aggregate", "each"]

    def __init__(self, context: RoundRequest, release: Release) -> None:
        self.context, self.release, self.reveal = context, release, context.request.reveal
        self.whole, self.replies = Sum(), dict[str, SealedReply]()

    def add(self, group: GroupResult) -> None:
        """Add the replies of one group of clients; the group has only replies that count."""
        self.whole.merge(group.sum)
        self.replies |= group.replies

    @property
    def in_order(self) -> dict[str, SealedReply]:
        """Single replies in the order in which clients were asked."""
        # Groups arrive by work, longest first; a method must not depend on who has most samples.
        return {c: self.replies[c] for c in self.context.messages if c in self.replies}

    def final_results(self, results: Mapping[str, ClientResult]) -> Mapping[str, ClientResult]:
        """Return clients' results; the exchange calls this once all replies have arrived.

        Subclasses may mark replies as not counted here.
        """
        return results

    def answer(self, metrics: dict[str, list[float]]) -> Aggregate | dict[str, SealedReply]:
        """Return the answer for the method: the sum of replies, or each reply by client.

        `metrics` has, for each metric, its values in the replies that count.
        """
        if self.context.request.reveal == "each":
            return self.in_order
        return self.release(self.whole.aggregate(self.context.trees, metrics))


class SecureCombiner(Combiner):
    """Adds up encoded replies securely; the method learns nothing of a sum of too few people."""

    def __init__(
        self, context: RoundRequest, release: Release, sums: SecureSum, form: ReplyLayout
    ) -> None:
        super().__init__(context, release)
        self.sums, self.form = sums, form

    def final_results(self, results: Mapping[str, ClientResult]) -> Mapping[str, ClientResult]:
        """Return the results unchanged; if too few people replied, mark all as not counted."""
        return self.sums.final_results(results)

    def answer(self, metrics: dict[str, list[float]]) -> Aggregate:
        """Return the sum of replies, with noise where protections add it.

        Single metrics are hidden: `metrics` gets the mean of each metric, repeated for every
        client.
        """
        total = self.sums.total(self.form, self.whole)
        # Single values are hidden; the mean, repeated, gives the same mean in the round's table.
        metrics |= {name: [mean] * total.count for name, mean in total.metrics.items()}
        # Nothing is released for a sum that stays closed, so no budget is spent on it.
        return self.release(total) if total.count else total


class SingleCombiner(Combiner):
    """Lets a protection, such as a robust rule, see every single reply and combine them."""

    verdict: CombinedReplies

    def __init__(
        self,
        context: RoundRequest,
        release: Release,
        judge: ServerHooks,
        stream: RandomStream,
        form: ReplyLayout | None,
    ) -> None:
        super().__init__(context, release)
        self.judge, self.stream, self.form, self.reveal = judge, stream, form, "each"

    def final_results(self, results: Mapping[str, ClientResult]) -> Mapping[str, ClientResult]:
        """Let the protection combine the replies; return the results with the statuses it sets."""
        context = self.context
        self.verdict = self.judge.combine(
            SingleReplies(
                self.in_order,
                context.messages,
                context.request.like,
                context.exposed,
                context.trees,
                self.stream,
                self.form,
            )
        )
        judged = dict(results)
        for client, status in self.verdict.statuses.items():
            judged[client] = replace(results[client], status=status)
            # A client that a robust rule left out did nothing wrong and keeps its new state. Any
            # other is treated as if its own machine had quarantined the reply.
            if not status.startswith(LEFT_OUT):
                judged[client] = replace(judged[client], metrics={}, filed=None, share=None)
        return judged

    def answer(self, metrics: dict[str, list[float]]) -> Aggregate:
        """Return the aggregate that the protection computed."""
        return self.release(self.verdict.aggregate)


class AgedCombiner(Combiner):
    """Adds up updates that arrive on a virtual clock, each scaled by its age.

    The engine sees the updates one by one; the method sees only their sum.

    Attributes:
        updates: client -> its update on the virtual clock, for the turns that are computed now.
    """

    def __init__(
        self, context: RoundRequest, release: Release, virtual_clock: VirtualClock, version: int
    ) -> None:
        super().__init__(context, release)
        self.virtual_clock, self.version, self.reveal = virtual_clock, version, "each"
        self.updates: Mapping[str, PendingUpdate] = {}

    def add(self, group: GroupResult) -> None:
        """Scale the replies of a group by their age, and add them to the sum."""
        aged, context = Sum(), self.context
        for client, reply in group.replies.items():
            now = {**context.request.like, **context.messages[client].trees}
            aged.add(self.virtual_clock.aged(reply, self.updates[client], self.version, now))
        # First the group by itself, as workers do it: the order of additions decides last bits.
        self.whole.merge(aged)
