"""Robust aggregation in a run, and malicious clients that an experiment simulates.

Used by `engine.protections.setup`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from vergence.core.aggregation import Sum, add_up
from vergence.core.messages import SealedReply
from vergence.core.method import Exposure
from vergence.core.randomness import RandomStream
from vergence.engine.participation import Participation, suggest
from vergence.engine.plan import Plan
from vergence.engine.protections.built_in import BuiltInProtection
from vergence.engine.secure_sums import SecureSum, sums_for, too_few
from vergence.errors import ConfigError
from vergence.privacy.hooks import (
    LEFT_OUT,
    CombinedReplies,
    ProtectedRun,
    ServerHooks,
    SingleReplies,
    Statement,
)
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.reply_checks import fault
from vergence.privacy.robust.base import RobustRule, Verdict, attackers, empty_verdict
from vergence.privacy.robust.groups import as_reply, deal
from vergence.privacy.robust.groups import check as check_groups
from vergence.privacy.robust.update_matrix import UpdateMatrix, split
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout


@dataclass(frozen=True)
class RobustAggregator(ServerHooks):
    """Combines the replies to an `aggregate` request by a robust rule instead of a sum.

    Attributes:
        rule: the rule; None: replies are summed, including those of malicious clients.
        poison: how malicious clients change their replies; None: they do not.
        liars: the malicious clients that an experiment simulates.
        sums: secure sums over groups of clients; the rule then compares the groups' sums. None: it
            compares single replies.
        presence: rule for which clients are present in a round.
        stream: source of the run's random numbers.
    """

    rule: RobustRule | None = None
    poison: Poison | None = None
    liars: tuple[str, ...] = ()
    sums: SecureSum | None = None
    presence: Participation = Participation()
    stream: RandomStream = RandomStream("run")

    def cohort(
        self,
        clients: Sequence[str],
        round: int,
        draw: Callable[[Sequence[str], int], Sequence[str]],
    ) -> Sequence[str]:
        """Return the clients that `draw` chooses, and the root client, if it is present.

        The root is a client that the rule trusts.
        """
        # The root only serves for comparison; its update is not in the aggregate.
        asked, root = draw(clients, round), "" if self.rule is None else self.rule.trusted
        if root and root not in asked and self.presence.here(root, round, self.stream):
            return sorted([*asked, root], key=clients.index)
        return asked

    def looks_at(self, exposed: Exposure) -> bool:
        """Return whether replies to a request would be summed; the rule replaces the sum.

        The exchange calls this for each request.
        """
        return exposed.reveal == "aggregate" and bool(exposed.trees)

    def combine(self, replies: SingleReplies) -> CombinedReplies:
        """Apply the rule to the replies, after malicious clients have changed theirs.

        Changed replies are checked again for shape and finite values.
        """
        if replies.form is not None:
            return self._combine_groups(replies, replies.form)
        came, statuses = dict(replies.came), {}
        root = None if self.rule is None else came.pop(self.rule.trusted, None)
        if self.poison is not None:
            came = self.poison.apply(came, self.liars)
        # A client's own machine checked the honest reply. The poisoned one is checked here, as a
        # server would check it, so that an attack cannot win by NaN or by a wrong shape.
        for client in [c for c in self.liars if c in came]:
            message = replies.messages[client]
            offered = {**replies.templates, **message.trees}
            if reason := fault(came[client], message.round, offered, replies.exposed):
                statuses[client] = f"quarantined: {reason}"
                del came[client]
        if self.rule is None or not came:
            return CombinedReplies(add_up(came.values(), replies.shapes), statuses)
        verdict = self._verdict(self.rule, came, root, replies.stream)
        left_out = {c: f"{LEFT_OUT}: {reason}" for c, reason in verdict.left_out.items()}
        return CombinedReplies(verdict.aggregate, {**statuses, **left_out})

    def _combine_groups(self, single: SingleReplies, form: ReplyLayout) -> CombinedReplies:
        """Divide the clients into random groups, and apply the rule to the groups' sums."""
        assert self.sums is not None
        assert self.rule is not None
        policy, statuses, asked = self.sums.policy, dict[str, str](), list(single.messages)
        sums: dict[str, SealedReply] = {}
        members: dict[str, list[str]] = {}
        groups = (
            [asked] if len(asked) < policy.groups else deal(asked, policy.groups, single.stream)
        )
        for number, group in enumerate(groups, 1):
            whole, there = Sum(), [client for client in group if client in single.came]
            for client in there:
                whole.add(single.came[client])
            if len(there) < policy.threshold:
                statuses |= dict.fromkeys(there, too_few(len(there), policy))
                continue
            total = self.sums.total(form, whole)
            sums[f"group {number}"] = as_reply(total, single.came[there[0]].round)
            members[f"group {number}"] = there
        if not sums:
            return CombinedReplies(add_up([], single.shapes), statuses)
        rule = among_groups(self.rule, len(asked), len(sums))
        if rule is None:
            why = f"too few: {len(sums)} groups, and liars may be in half of them"
            verdict = empty_verdict(sums, single.shapes, why)
        else:
            verdict = self._verdict(rule, sums, None, single.stream)
        for name, reason in verdict.left_out.items():
            statuses |= dict.fromkeys(members[name], f"{LEFT_OUT}: {name}: {reason}")
        return CombinedReplies(verdict.aggregate, statuses)

    def _verdict(
        self,
        rule: RobustRule,
        replies: Mapping[str, SealedReply],
        root: SealedReply | None,
        stream: RandomStream,
    ) -> Verdict:
        """Apply a rule to replies, by name of client or group.

        `root` is the reply of the client that the rule trusts; None: no such client replied.
        """
        first = next(iter(replies.values()))
        like = {name: tree.total for name, tree in first.trees.items()}
        if not rule.rooted:
            return rule.combine(replies, like, stream)
        own = UpdateMatrix.of({} if root is None else {rule.trusted: root})
        if not len(own):
            reason = f"{rule.name}: no update of {rule.trusted} came, which the others are held to"
            return empty_verdict(replies, like, reason)
        return rule.combine(replies, like, stream, split(own.values[0], like))


def among_groups(rule: RobustRule, people: int, groups: int) -> RobustRule | None:
    """Return the rule for groups: each malicious client is assumed to be in its own group.

    None: malicious clients could be in half of the groups, which no rule withstands.
    """
    share = getattr(rule, "attackers", None)
    if share is None:
        return rule
    liars = attackers(share, people)
    return None if 2 * liars >= groups else replace(rule, attackers=liars / groups)


def check(plan: Plan, clients: Sequence[str]) -> None:
    """Refuse a robust rule that does not suit these clients, before anything is trained.

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
    """Refuse a rule whose root (the client it trusts) is missing, unknown or malicious."""
    root = rule.trusted
    if not root:
        raise ConfigError(
            f"privacy.robust = '{rule.name}' holds updates to those of a person it trusts: name "
            f"one, as {{ name = '{rule.name}', root = '{clients[0]}' }}"
        )
    if root not in clients:
        raise ConfigError(f"privacy.robust: root: no client '{root}'{suggest(root, clients)}")
    if poison is not None and root in poison.malicious_clients(clients):
        raise ConfigError(
            f"privacy.robust trusts '{root}', whom poison.seed = {poison.seed} makes a liar; "
            "trust somebody else, or take another seed"
        )


def replies(plan: Plan, people: int) -> int:
    """Return the number of replies in a round if no reply is lost and everybody is present."""
    delivery = plan.delivery
    waited = delivery.replies if delivery.name == "quorum" else people
    return min(plan.presence.size(people), waited, people)


class RobustProtection(BuiltInProtection):
    """A robust rule in place of the sum, and the malicious clients that an experiment adds."""

    policy: RobustRule | None
    forecasts = False

    def check(self, run: ProtectedRun) -> None:
        """Refuse a robust rule that does not suit the run's people, such as too few of them."""
        check(self.plan, run.federation.clients)

    def server(self, run: ProtectedRun) -> RobustAggregator | None:
        """Return the hooks that combine single replies; None: no rule and no malicious client."""
        plan, federation, liars = self.plan, run.federation, tuple[str, ...]()
        self.check(run)
        if plan.poison is not None and plan.poison.share:
            federation.refuse_many("choosing who lies")
            liars = plan.poison.malicious_clients(federation.clients)
        if self.policy is None and not liars:
            return None
        sums = sums_for(plan, run.method, len(federation.clients))
        stream = RandomStream("run", run.task.seed)
        return RobustAggregator(self.policy, plan.poison, liars, sums, plan.presence, stream)

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """State in reports that a rule compares updates, and how many clients may be malicious."""
        rule, policy = self.policy, self.plan.privacy.aggregation
        if rule is None or not any(e.trees for e in run.method.exposure.values()):
            return []
        groups = 0 if policy is None else policy.groups
        seen = f"the sum of every group of {groups}" if groups else "every single update"
        stands = f"Some participants may send false updates: {rule.name} stands that"
        statements = [
            Statement("table", f"{seen}: {rule.name} compares them", "server (robust rule)"),
            Statement("table", f"{rule.assumes}; else {rule.name} promises nothing", "assumed"),
            Statement("participants", f"{stands} if {rule.assumes}."),
        ]
        if rule.trusted:
            direction = f"which way {rule.trusted}'s update points, in every round"
            statements.append(Statement("table", direction, "server"))
        return statements
