"""User-level privacy in a run: people drawn, noise on every sum, and the epsilon spent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vergence.core.aggregation import Aggregate
from vergence.core.files import csv_of, make_folder
from vergence.core.messages import Reply, SealedReply
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.serialization import digest
from vergence.engine.plan import Plan
from vergence.engine.protections.built_in import BudgetedProtection, Spending
from vergence.errors import ConfigError, StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.dp.accounting import Charge, Ledger, checked
from vergence.privacy.dp.tree_aggregation import nodes, steps
from vergence.privacy.dp.user_level import UserLevel
from vergence.privacy.hooks import (
    ClientHooks,
    Guarantee,
    Promise,
    ProtectedRun,
    ServerHooks,
    Statement,
    Turn,
)
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog, account, secret_in

PERSON = "the same people asked, one of them contributing nothing"
TREE = "tree"
"""In books and purposes of secrets: noise that follows a tree over rounds."""
TAIL = 6.0
"""So many standard deviations above its mean may a drawn cohort be."""


@dataclass(frozen=True)
class PrivacyForecast:
    """Forecast of a method's run, known before it begins.

    Attributes:
        level: what bounds a person, and the noise on a sum; in shares of the clients' where sums
            are secure: it is all there in the smallest sum that is opened.
        rate: chance of a person to be drawn in a round, 1 where nothing may be claimed for it.
        expected: people in a sum, on average.
        sums: how many are shown in a round.
        rounds: of the run.
        squared: what one person adds to a tree of noise, at most; 0: noise is new every round.
    """

    level: UserLevel
    rate: float
    expected: float
    sums: int
    rounds: int
    squared: int = 0

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on a sum, as a multiple of the clip bound."""
        return self.level.noise

    def epsilon(self, delta: float) -> float:
        """Epsilon that the whole run spends."""
        if not self.sums:
            return 0.0
        charge = Charge(self.noise / math.sqrt(self.sums), self.rate, self.rounds)
        if self.squared:
            charge = Charge(self.noise / math.sqrt(self.squared))
        return Ledger((charge,)).epsilon(delta)


def forecast(user: UserLevelConfig, plan: Plan, method: Method, people: int) -> PrivacyForecast:
    """Forecast of a run.

    Where a share of the people is asked and nobody is ever away, each is drawn by chance from the
    run's secret. Where people come and go as they like nothing is claimed for the draw, nor where
    sums are secure: the server, from whom they hide people too, knows who is drawn.

    Raises:
        ConfigError: so many people, or so many rounds, cannot be protected so; says why.
    """
    presence = plan.presence
    share = presence.cohort if isinstance(presence.cohort, float) else presence.cohort / people
    steady = not (presence.trace or presence.rhythm or presence.gone)
    secure = plan.secrecy(people)
    rate = min(share, 1.0) if steady and secure is None else 1.0
    expected = min(share, 1.0) * people
    sums = sum(1 for exposed in method.exposure.values() if exposed.trees)
    if user.turns is None:
        noise, grown = math.sqrt(sums) * user.multiplier(rate, plan.rounds), 0
    else:
        rate, grown = 1.0, user.squared(plan.rounds)
        noise = math.sqrt(grown) * user.multiplier(1.0, 1) if user.noise is None else user.noise
    level = user.level(noise, 1 if secure is None else secure.threshold)
    found = PrivacyForecast(level, rate, expected, sums, plan.rounds, grown)
    most = math.ceil(expected + (TAIL * math.sqrt(expected) if rate < 1 else 0))
    level.fits(min(most, people) if secure is None else 1)
    if sums:
        level.check_shares()
    user.refuse_delta(people, "people")
    spent = found.epsilon(user.delta)
    user.refuse(spent, f"noise {noise:g} over {plan.rounds} rounds")
    if user.epsilon is not None and not spent <= user.epsilon:
        raise ConfigError(
            f"privacy.user: {plan.rounds} rounds with noise {noise:g} spend epsilon {spent:.3g}, "
            f"and {user.epsilon:g} is allowed; take fewer rounds, or leave out noise"
        )
    return found


class UserLevelMechanism(ServerHooks):
    """Hides people in the sums of one seed's run.

    The secret and the book of releases lie in the folder of states; neither goes with a checkpoint,
    so that whatever is done again is the same release, or a further one that counts.
    """

    hides_cohort = True

    def __init__(
        self, user: UserLevelConfig, plan: Plan, method: Method, people: int, state: Path, seed: int
    ) -> None:
        self.user, self.seed = user, seed
        self.forecast = forecast(user, plan, method, people)
        self.secret = secret_in(state / FOLDER).child("user", seed)
        self.book = ReleaseLog(state / FOLDER / sums_of(seed))
        self._turns: Counter[str] = Counter()
        self._counted = 0

    @property
    def draws(self) -> bool:
        """True if cohorts are drawn here."""
        return self.forecast.rate < 1

    @property
    def epsilon(self) -> float:
        """Epsilon spent so far."""
        return self.book.ledger.epsilon(self.user.delta)

    def cohort(
        self,
        clients: Sequence[str],
        round: int,
        draw: Callable[[Sequence[str], int], Sequence[str]],
    ) -> Sequence[str]:
        """Draw each client by itself, perhaps none, or those of `draw` who have turns left."""
        if not self.draws:
            return self.admitted(lambda at: draw(clients, at), round)
        uniform = self.secret.child("cohort", round).draws().uniform(len(clients))
        return [clients[i] for i in (uniform < self.forecast.rate).nonzero()[0].tolist()]

    def admitted(self, ask: Callable[[int], Sequence[str]], round: int) -> Sequence[str]:
        """Return whom a round may ask: those present who have turns left, counted anew on resume.

        A turn is one whether or not its reply arrived.
        """
        if self.user.turns is None or not self.forecast.sums:
            return ask(round)
        for earlier in range(self._counted, round):
            self._turns.update(self._left(ask(earlier)))
        self._counted = max(round, self._counted)
        return self._left(ask(round))

    def _left(self, asked: Sequence[str]) -> list[str]:
        return [client for client in asked if self._turns[client] < (self.user.turns or 0)]

    def metrics(self) -> Mapping[str, float]:
        """Epsilon spent so far."""
        return {"epsilon": self.epsilon}

    def release(self, whole: Aggregate, phase: str, number: int, asked: int) -> Aggregate:
        """Return a sum with noise, as a mean over the people expected, and nothing beside it.

        Raises:
            StateError: that would spend more than the budget.
        """
        drawn = phase.isdigit() and self.draws
        rate, expected = (self.forecast.rate, self.forecast.expected) if drawn else (1.0, asked)
        expected = max(expected, 1)
        if not whole.totals:
            return replace(whole, count=round(expected), metrics={})
        if phase.isdigit() and self.user.turns is not None:
            return self._in_tree(whole, int(phase) + 1)
        mark = f"{phase}.{number}.{_digest(whole)}"  # another sum must not get the same noise
        self.book.charge(Release(phase, mark, self.forecast.noise, rate, 1), self.user)
        level = self.forecast.level
        if level.shares > 1:  # clients have added it
            return level.divided(whole.totals, expected)
        return level.noised(whole, expected, self.secret.child("sum", mark))

    def _in_tree(self, whole: Aggregate, done: int) -> Aggregate:
        """Return the sum of round `done`, with what it changes of the tree's noise.

        It is divided by the same number in every round: only then noise that goes is that which
        came.

        Raises:
            StateError: this round was released with another sum, whose noise this one would share.
        """
        phase, user = f"{TREE} {done}", self.user
        mark = f"{phase}.{_digest(whole)}"
        if any(e.draw == phase and e.mark != mark for e in self.book.entries):
            raise StateError(
                f"round {done} was released with another sum, and noise of a tree hides one sum of "
                "a round only; start a new run elsewhere"
            )
        past = [int(e.draw.split()[1]) for e in self.book.entries if e.draw.startswith(TREE)]
        before = max((at for at in past if at < done), default=0)
        grown = user.squared(done) - user.squared(before)
        noise = self.forecast.noise / math.sqrt(grown) if grown else math.inf
        self.book.charge(Release(phase, mark, noise, 1.0, 1), user)
        moved = [
            (sign, self.secret.child(TREE, *node))
            for sign, node in steps(before, done, user.restart)
        ]
        coming, going = ([s for sign, s in moved if sign == way] for way in (1, -1))
        expected = max(self.forecast.expected, 1)
        return self.forecast.level.noised(whole, expected, *coming, less=going)


def sums_of(seed: int) -> str:
    """Return the name of the release log of one seed's sums."""
    return f"seed{seed}.sums.csv"


def covered_in(seed: int) -> str:
    """Return the name of the table of one seed's replies that zeros took the place of."""
    return f"zeros.seed{seed}.csv"


def _digest(whole: Aggregate) -> str:
    parts: list[bytes] = []
    for name in sorted(whole.totals):
        total = whole.totals[name]
        assert isinstance(total, Params)
        parts += [name.encode(), total.flat.numpy().tobytes()]
    return digest(*parts)


@dataclass(frozen=True)
class UserLevelHooks(ClientHooks):
    """Bounds a person's update where it leaves, and refuses one from elsewhere that is not.

    Attributes:
        user: the bound.
        covered: a file on this machine: the turns whose replies were replaced by zeros, and why.
        tell: is given a line on each of them, for this machine's operator alone.
    """

    user: UserLevelConfig
    covered: Path | None = None
    tell: Callable[[str], None] = lambda _: None

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Reply as a person's bound allows it."""
        return self.user.leaving(reply)

    def fault(self, sealed: SealedReply) -> str | None:
        """Reason not to count a reply that is longer than the bound."""
        return self.user.fault(sealed)

    def covers(self, client: str, round: int, why: str) -> bool:
        """True: whether a training overflows may tell of data, with no noise, at no charge."""
        self.tell(
            f"'{client}' sent zeros in round {round}, with noise where there is any, instead of a "
            f"reply that cannot count ({why}); the server is not told"
        )
        if self.covered is not None:
            make_folder(self.covered.parent, 0o700)
            with self.covered.open("a", encoding="utf-8") as file:
                file.write(csv_of([(client, round, why)]))
        return True


def against(shares: int) -> str:
    """Text on whom people are hidden from, by noise in so many shares."""
    if shares == 1:
        return "whoever sees the models, not against the server, which adds up before the noise"
    return (
        f"whoever sees the models, and the server while at least {shares} people in every sum "
        "keep their part of the noise to themselves"
    )


class UserLevelProtection(BudgetedProtection):
    """A bound on every person's update, and noise on every sum."""

    policy: UserLevelConfig
    unit = "person"

    def client(self, run: ProtectedRun) -> UserLevelHooks:
        """Hooks that bound updates."""
        covered = run.state / FOLDER / covered_in(run.task.seed)
        return UserLevelHooks(self.policy, covered, run.tell)

    def server(self, run: ProtectedRun) -> UserLevelMechanism:
        """Hooks that draw people, and add noise."""
        people, seed = len(run.federation.clients), run.task.seed
        return UserLevelMechanism(self.policy, self.plan, run.method, people, run.state, seed)

    def forecast(self, run: ProtectedRun) -> list[Promise]:
        """Noise of a run, and the epsilon that it will spend."""
        user, plan, people = self.policy, self.plan, len(run.federation.clients)
        seen = forecast(user, plan, run.method, people)
        where = "the sum of each round"
        drawn = f"each drawn with chance {seen.rate:g}" if seen.rate < 1 else "whoever is there"
        if user.turns is not None:
            parts = len(nodes(plan.rounds, user.restart))
            where = "every node of a tree over rounds"
            drawn = (
                f"the sum of all {plan.rounds} rounds is of {parts} nodes; whoever is there, each "
                f"in {user.turns} rounds at most"
            )
        spent, shares, most = seen.epsilon(user.delta), seen.level.shares, max(seen.expected, 1)
        more = max(most / shares, 1.0) if shares > 1 else 1.0
        offered = run.method.offer(run.method.server(run.task), "")
        ratio = seen.noise * math.sqrt(sum(t.layout.n for t in offered.values()) * more) / most
        found = Guarantee("person", spent, user.delta, PERSON, against(shares), ratio, people)
        if not seen.sums:
            text = "people: nothing of them is sent but metrics, which are left out"
            return [Promise(text, guarantee=found)]
        noise = seen.noise * user.clip * more**0.5
        least = "at least " if shares > 1 else ""
        return [
            Promise(
                f"people: every update is cut to {user.clip:g} and counts once, without metrics or "
                f"weights; {where} gets noise of {least}{seen.noise:.4g} x {user.clip:g} "
                f"({drawn}, mean over {seen.expected:g}: {noise / most:.3g} in every entry); after "
                f"{plan.rounds} rounds epsilon {spent:.3g} at delta {user.delta:g} per person, "
                f"seed and method, against {against(shares)}",
                guarantee=found,
            )
        ]

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """Bound on an update that crosses, and trust in the noise."""
        trusted = "The server is trusted with each person's update, and not to keep it."
        trusted += " It adds the noise, and is trusted to do so."
        if least := self.plan.privacy.least:
            trusted = f"At least {least} people in every sum keep their part of the noise to"
            trusted += " themselves."
        return [
            Statement("update", f"cut to length {self.policy.clip:g}, noise comes later"),
            Statement("server", trusted),
        ]

    def spent(self, run: ProtectedRun) -> Mapping[str, Any]:
        """Budget of people that a run spent, by the logs of its sums."""
        user = self.policy
        books = [ReleaseLog(run.state / FOLDER / sums_of(seed)) for seed in self.plan.seeds]
        entries = [e._replace(draw=f"{n} {e.draw}") for n, b in enumerate(books) for e in b.entries]
        return {
            "person": {
                "neighbours": PERSON,
                "against": against(self.plan.privacy.least or 1),
                "clip": user.clip,
                "delta": user.delta,
                "allowed": user.epsilon,
                **checked([book.ledger for book in books], user.delta),
                "seeds_together": account(entries).epsilon(user.delta),
            }
        }

    def spendings(self, folder: Path, seed: int) -> list[Spending]:
        """Charges of one seed, by its log."""
        return [self.entered("", folder / sums_of(seed))]
