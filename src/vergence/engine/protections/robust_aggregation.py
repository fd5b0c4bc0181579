"""Robust aggregation in a run: replies poisoned for an experiment, and judged by a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vergence.core.aggregation import Aggregate, Sum, add_up
from vergence.core.federation import Federation
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.engine.participation import round_half_up, suggest
from vergence.engine.plan import Plan
from vergence.engine.secure_sums import SecureSum, too_few
from vergence.errors import ConfigError
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.reply_checks import fault
from vergence.privacy.robust.base import RobustRule, Verdict, attackers, nothing
from vergence.privacy.robust.groups import as_reply, deal
from vergence.privacy.robust.groups import check as check_groups
from vergence.privacy.robust.update_matrix import UpdateMatrix, split
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout

LEFT_OUT = "left out"
"""Begins the status of a reply that arrived well and that a rule did not count."""


@dataclass(frozen=True)
class RobustResult:
    """Aggregate for the method, and the status of every client whose reply did not count."""

    aggregate: Aggregate
    statuses: Mapping[str, str]


@dataclass(frozen=True)
class RobustAggregator:
    """Sees the replies of an `aggregate` request one by one; the method gets an `Aggregate`."""

    rule: RobustRule | None = None
    poison: Poison | None = None
    liars: tuple[str, ...] = ()
    sums: SecureSum | None = None

    @classmethod
    def of(
        cls, plan: Plan, federation: Federation, sums: SecureSum | None = None
    ) -> RobustAggregator | None:
        """Aggregator that looks at a run's replies, None where nobody does."""
        liars: tuple[str, ...] = ()
        if plan.poison is not None and plan.poison.share:
            federation.refuse_many("choosing who lies")
            liars = plan.poison.chosen(federation.clients)
        rule = plan.privacy.robust
        return cls(rule, plan.poison, liars, sums) if rule is not None or liars else None

    @property
    def trusted(self) -> str:
        """The person who is asked in every round and has no vote; "" for nobody."""
        return "" if self.rule is None else self.rule.trusted

    def applies_to(self, exposed: Exposure) -> bool:
        """True if a request's replies are looked at: where updates would be summed."""
        return exposed.reveal == "aggregate" and bool(exposed.trees)

    def judge(
        self,
        came: Mapping[str, SealedReply],
        messages: Mapping[str, Message],
        held: Mapping[str, Params],
        exposed: Exposure,
        shapes: Mapping[str, Params],
        stream: RandomStream,
        form: ReplyLayout | None = None,
    ) -> RobustResult:
        """Poison, guard again, and add up as the rule says.

        Args:
            came: replies that passed the guards, in the order of the cohort.
            messages: what everybody was sent.
            held: trees of the shape that replies must have, where they are not sent.
            exposed: what the verb may let out.
            shapes: the trees of the result where no reply came.
            stream: of this round and request.
            form: where replies are rows of words, of which only the sums of groups are seen.
        """
        if form is not None:
            return self._of_groups(came, list(messages), form, shapes, stream)
        replies, statuses = dict(came), {}
        root = replies.pop(self.trusted, None)
        if self.poison is not None:
            replies = self.poison.apply(replies, self.liars)
        for client in [c for c in self.liars if c in replies]:
            message = messages[client]
            offered = {**held, **message.trees}
            if reason := fault(replies[client], message.round, offered, exposed):
                statuses[client] = f"quarantined: {reason}"
                del replies[client]
        if self.rule is None or not replies:
            return RobustResult(add_up(replies.values(), shapes), statuses)
        verdict = self._verdict(self.rule, replies, root, stream)
        left_out = {c: f"{LEFT_OUT}: {reason}" for c, reason in verdict.left_out.items()}
        return RobustResult(verdict.aggregate, {**statuses, **left_out})

    def _of_groups(
        self,
        came: Mapping[str, SealedReply],
        asked: Sequence[str],
        form: ReplyLayout,
        shapes: Mapping[str, Params],
        stream: RandomStream,
    ) -> RobustResult:
        """Deal those asked into groups; the rule takes each group's sum for one reply."""
        assert self.sums is not None
        assert self.rule is not None
        policy, statuses = self.sums.policy, {}
        replies: dict[str, SealedReply] = {}
        members: dict[str, list[str]] = {}
        dealt = deal(asked, policy.groups, stream) if len(asked) >= policy.groups else [asked]
        for number, group in enumerate(dealt, 1):
            whole, there = Sum(), [client for client in group if client in came]
            for client in there:
                whole.add(came[client])
            if len(there) < policy.threshold:
                statuses |= dict.fromkeys(there, too_few(len(there), policy))
                continue
            learned = self.sums.learned(form, whole)
            replies[f"group {number}"] = as_reply(learned, came[there[0]].round)
            members[f"group {number}"] = there
        if not replies:
            return RobustResult(add_up([], shapes), statuses)
        rule = among_groups(self.rule, len(asked), len(replies))
        if rule is None:
            why = f"too few: {len(replies)} groups, and liars may be in half of them"
            verdict = nothing(replies, shapes, why)
        else:
            verdict = self._verdict(rule, replies, None, stream)
        for name, reason in verdict.left_out.items():
            statuses |= dict.fromkeys(members[name], f"{LEFT_OUT}: {name}: {reason}")
        return RobustResult(verdict.aggregate, statuses)

    def _verdict(
        self,
        rule: RobustRule,
        replies: Mapping[str, SealedReply],
        root: SealedReply | None,
        stream: RandomStream,
    ) -> Verdict:
        first = next(iter(replies.values()))
        like = {name: tree.total for name, tree in first.trees.items()}
        if not rule.rooted:
            return rule.combine(replies, like, stream)
        own = UpdateMatrix.of({} if root is None else {rule.trusted: root})
        if not len(own):
            reason = f"{rule.name}: no update of {rule.trusted} came, which the others are held to"
            return nothing(replies, like, reason)
        return rule.combine(replies, like, stream, split(own.values[0], like))


def among_groups(rule: RobustRule, people: int, groups: int) -> RobustRule | None:
    """Return a rule that stands as many liars among people, each in another group.

    None where they could be in half of the groups.
    """
    share = getattr(rule, "attackers", None)
    if share is None:
        return rule
    liars = attackers(share, people)
    return None if 2 * liars >= groups else replace(rule, attackers=liars / groups)


def check(plan: Plan, clients: Sequence[str]) -> None:
    """Refuse what does not suit these people, before anything is trained.

    Raises:
        ConfigError: names what does not fit, and why.
    """
    rule, poison = plan.privacy.robust, plan.poison
    if rule is None:
        return
    if rule.rooted:
        _check_root(rule, poison, clients)
    people, policy = replies(plan, len(clients)), plan.privacy.aggregation
    if policy is not None and policy.groups:
        liars, groups = attackers(getattr(rule, "attackers", 0.0), people), people // policy.groups
        check_groups(people, policy.groups, liars)
        rule, people = among_groups(rule, people, groups) or rule, groups
    rule.check(people - rule.rooted)


def _check_root(rule: RobustRule, poison: Poison | None, clients: Sequence[str]) -> None:
    root = rule.trusted
    if not root:
        raise ConfigError(
            f"privacy.robust = '{rule.name}' holds updates to those of a person it trusts: name "
            f"one, as {{ name = '{rule.name}', root = '{clients[0]}' }}"
        )
    if root not in clients:
        raise ConfigError(f"privacy.robust: root: no client '{root}'{suggest(root, clients)}")
    if poison is not None and root in poison.chosen(clients):
        raise ConfigError(
            f"privacy.robust trusts '{root}', whom poison.seed = {poison.seed} makes a liar; "
            "trust somebody else, or take another seed"
        )


def replies(plan: Plan, people: int) -> int:
    """Number of replies that a round gets where none is lost and nobody is away."""
    cohort, delivery = plan.presence.cohort, plan.delivery
    asked = cohort if isinstance(cohort, int) else max(round_half_up(cohort * people), 1)
    waited = delivery.replies if delivery.name == "quorum" else people
    return min(asked, waited, people)
