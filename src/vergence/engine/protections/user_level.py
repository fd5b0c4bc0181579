"""User-level privacy in a run: random cohorts, noise on every sum, and the epsilon spent.

Used by `deployment.client_node`, `engine.protections.setup`, `engine.secure_sums` and
`experiment.nothing_learned`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vergence.core.aggregation import Aggregate
from vergence.core.files import csv_of, make_durable_folder
from vergence.core.messages import Reply, SealedReply
from vergence.core.method import Method
from vergence.core.naming import plural
from vergence.core.params import Params
from vergence.core.serialization import digest
from vergence.engine.plan import Plan
from vergence.engine.protections.built_in import BudgetedProtection, Spending, charges_of
from vergence.engine.silos import NO_LABS, Silos
from vergence.errors import ConfigError, StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.dp.accounting import Charge, Ledger, largest_epsilon
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
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog, account, secret_in

PERSON = "the same people asked, one of them contributing nothing"
LAB = "the same labs asked, one of them contributing nothing"
TREE = "tree"
"""First part of marks in release logs, and of names of secrets, for noise from a tree."""
# A random cohort is larger than so many standard deviations above its mean about once in 10^9
# rounds: for that many people sums must fit.
TAIL = 6.0


@dataclass(frozen=True)
class PrivacyForecast:
    """Forecast of a run under user-level privacy, known before the run begins.

    A unit is what the noise hides: a person, or a lab (a client with several people).

    Attributes:
        level: bound of a person's update, and noise on a sum. Under secure sums each client adds a
            part of the noise, so that the smallest sum that is opened has all of it.
        rate: probability that a unit is drawn in a round; 1: the accounting assumes that every unit
            takes part.
        expected: mean number of units in a sum.
        sums: number of sums that the server learns in a round.
        rounds: number of rounds.
        squared: for noise from a tree over rounds, the squared sensitivity of its sums to one unit;
            0: each round has fresh noise.
        each: mean number of units in a reply: people of a lab if people are hidden, else 1.
        other_noise: with labs, the noise multiplier for the other unit, as a multiple of `noise`.
            If people are hidden, the other unit is a lab, and the reverse. 0: there are no labs.
    """

    level: UserLevel
    rate: float
    expected: float
    sums: int
    rounds: int
    squared: int = 0
    each: float = 1.0
    other_noise: float = 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on a sum, as a multiple of the clip bound."""
        return self.level.noise

    def epsilon(self, delta: float) -> float:
        """Return the epsilon that the whole run spends."""
        return self.charges(1.0, self.rate).epsilon(delta)

    def epsilon_of_other(self, delta: float) -> float:
        """Return the epsilon that the run spends on the other unit.

        If people are hidden, that is a lab; if labs are hidden, a person in one.
        """
        # Rate 1: the draw of a lab hides no person in it, as it brings all others of the lab.
        return self.charges(self.other_noise, 1.0).epsilon(delta)

    def charges(self, times: float, rate: float) -> Ledger:
        """Return the run's charges for `times` the noise, with this rate of drawing a unit."""
        if not self.sums:
            return Ledger()
        if self.squared:
            return Ledger((Charge(self.noise * times / math.sqrt(self.squared)),))
        return Ledger((Charge(self.noise * times / math.sqrt(self.sums), rate, self.rounds),))


def other_noise_of(user: UserLevelConfig, silos: Silos) -> float:
    """Return the noise multiplier of the other unit, relative to that of the plan's unit.

    If the plan's unit is a person, the other unit is a lab, and the reverse. Without labs the
    result is 0.
    """
    if not silos:
        return 0.0
    # A lab adds k people's bounded updates, so its sum moves k times as far as one person does. The
    # mean that hides a lab moves 1 / k as far by one of its k people. The worst lab counts.
    return 1 / silos.most if user.unit == "person" else float(silos.fewest)


def forecast(user: UserLevelConfig, plan: Plan, method: Method, clients: int) -> PrivacyForecast:
    """Forecast a run with `clients` clients, which are people or labs.

    Raises:
        ConfigError: user-level privacy is impossible with this number of people or rounds.
    """
    presence, silos = plan.presence, plan.silos
    inside = bool(silos) and user.unit == "person"
    units = len(silos.lab_of) if inside else clients
    share = presence.cohort if isinstance(presence.cohort, float) else presence.cohort / clients
    steady = not (presence.trace or presence.rhythm or presence.gone)
    secure = plan.secrecy(clients)
    # Sampling makes epsilon smaller only if nobody can predict who is drawn. People who come and go
    # as they like are no random sample; under secure sums the server, from which people are hidden
    # too, knows the cohort; a person in a lab is drawn together with the others in it.
    rate = min(share, 1.0) if steady and secure is None and not inside else 1.0
    expected = min(share, 1.0) * units
    sums = sum(1 for exposed in method.exposure.values() if exposed.trees)
    if user.turns is None:
        noise, grown = math.sqrt(sums) * user.multiplier(rate, plan.rounds), 0
    else:
        rate, grown = 1.0, user.squared(plan.rounds)
        noise = math.sqrt(grown) * user.multiplier(1.0, 1) if user.noise is None else user.noise
    level = user.level(noise, 1 if secure is None else secure.threshold, silos.most)
    each, other_noise = units / clients, other_noise_of(user, silos)
    planned = PrivacyForecast(level, rate, expected, sums, plan.rounds, grown, each, other_noise)
    most = math.ceil(expected + (TAIL * math.sqrt(expected) if rate < 1 else 0))
    # The largest labs may be those that are asked.
    if inside:
        most = silos.together(math.ceil(min(share, 1.0) * clients))
    level.fits(min(most, units) if secure is None else level.people)
    if sums:
        level.check_shares()
    user.refuse_delta(units, "labs" if user.unit == "lab" else "people")
    spent = planned.epsilon(user.delta)
    user.refuse(spent, f"noise {noise:g} over {plural(plan.rounds, 'round')}")
    if user.epsilon is not None and not spent <= user.epsilon:
        raise ConfigError(
            f"privacy.user: {plural(plan.rounds, 'round')} with noise {noise:g} would spend "
            f"epsilon {spent:.3g}, and {user.epsilon:g} is allowed; take fewer rounds, or leave "
            "out noise"
        )
    return planned


class UserLevelMechanism(ServerHooks):
    """Adds the noise that hides people to the sums of one seed's run, and draws cohorts."""

    # The secret and the release log lie in the folder of states and do not go back with a
    # checkpoint: a repeated round is the same release again, or a further one that is counted.
    hides_cohort = True

    def __init__(
        self,
        user: UserLevelConfig,
        plan: Plan,
        method: Method,
        clients: int,
        state: Path,
        seed: int,
    ) -> None:
        self.user, self.seed = user, seed
        self.silos = plan.silos if user.unit == "person" else NO_LABS
        self.forecast = forecast(user, plan, method, clients)
        self.secret = secret_in(state / FOLDER).child("user", seed)
        self.book = ReleaseLog(state / FOLDER / sums_of(seed), own_mark=False)
        self._turns: Counter[str] = Counter()
        self._counted = 0

    @property
    def draws(self) -> bool:
        """Whether cohorts are drawn with the run's secret key, and not by the plan's rule."""
        return self.forecast.rate < 1

    @property
    def epsilon(self) -> float:
        """The epsilon that the run has spent so far."""
        return self.book.ledger.epsilon(self.user.delta)

    def cohort(
        self,
        clients: Sequence[str],
        round: int,
        draw: Callable[[Sequence[str], int], Sequence[str]],
    ) -> Sequence[str]:
        """Return the clients that a round may ask.

        If cohorts are drawn with the secret key, the clients are a Poisson sample, which may be
        empty. Otherwise they are those clients of `draw(clients, round)` that may still take part
        in further rounds.
        """
        # Each client is drawn by itself (Poisson sampling), which is what the accountant counts.
        if not self.draws:
            return self.admitted(lambda at: draw(clients, at), round)
        uniform = self.secret.child("cohort", round).draws().uniform(len(clients))
        return [clients[i] for i in (uniform < self.forecast.rate).nonzero()[0].tolist()]

    def admitted(self, ask: Callable[[int], Sequence[str]], round: int) -> Sequence[str]:
        """Return those clients of `ask(round)` that may still take part in further rounds.

        `privacy.user.turns` limits the number of rounds per client.
        """
        if self.user.turns is None or not self.forecast.sums:
            return ask(round)
        # After a resume the turns of earlier rounds are counted anew. A turn counts whether or not
        # its reply arrived, which the cohorts alone do not tell.
        for earlier in range(self._counted, round):
            self._turns.update(self._with_remaining_turns(ask(earlier)))
        self._counted = max(round, self._counted)
        return self._with_remaining_turns(ask(round))

    def _with_remaining_turns(self, asked: Sequence[str]) -> list[str]:
        """Return the clients that may still take part in further rounds."""
        return [client for client in asked if self._turns[client] < (self.user.turns or 0)]

    def metrics(self) -> Mapping[str, float]:
        """Return {"epsilon": value}, the epsilon spent so far, for a row of rounds.csv."""
        return {"epsilon": self.epsilon}

    def release(self, whole: Aggregate, phase: str, number: int, asked: int) -> Aggregate:
        """Return a sum with noise and without metrics, divided by the expected number of people.

        The exchange calls this before the method sees the sum.

        Args:
            whole: the sum.
            phase: part of the run: "setup", a round's number, or "finish".
            number: number of the sum in this phase.
            asked: number of clients that were asked for a reply.

        Raises:
            StateError: the release would spend more than the budget.
        """
        # The expected number, and not the true one, which would tell how many were drawn.
        drawn = phase.isdigit() and self.draws
        rate = self.forecast.rate if drawn else 1.0
        expected = max(self.forecast.expected if drawn else asked * self.forecast.each, 1)
        if not whole.totals:
            return replace(whole, count=round(expected), metrics={})
        if phase.isdigit() and self.user.turns is not None:
            return self._in_tree(whole, int(phase) + 1)
        # Another sum must not get the same noise: the difference would show both.
        mark = f"{phase}.{number}.{_digest(whole)}"
        self.book.charge(Release(phase, mark, self.forecast.noise, rate, 1), self.user)
        level = self.forecast.level
        # Under secure sums the clients have added the noise.
        if level.shares > 1:
            return level.divided(whole.totals, expected)
        most = self.silos.together(whole.count)
        return level.noised(whole, expected, self.secret.child("sum", mark), most=most)

    def _in_tree(self, whole: Aggregate, done: int) -> Aggregate:
        """Return the sum of round `done`, with noise from a tree over rounds.

        Noise of tree nodes that begin in this round is added; noise of nodes that end is
        subtracted.

        Raises:
            StateError: this round was already released with another sum, and both would have the
                same noise.
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
        # Every round divides by the same number: only then noise that is taken away later is equal
        # to the noise that was added.
        expected = max(self.forecast.expected, 1)
        most = self.silos.together(whole.count)
        return self.forecast.level.noised(whole, expected, *coming, less=going, most=most)


def sums_of(seed: int) -> str:
    """Return the file name of the release log of one seed's sums."""
    return f"seed{seed}.sums.csv"


def covered_in(seed: int) -> str:
    """Return the file name of one seed's table of replies that were replaced by zeros."""
    return f"zeros.seed{seed}.csv"


def _digest(whole: Aggregate) -> str:
    """Return a digest of all numbers in a sum."""
    parts: list[bytes] = []
    for name in sorted(whole.totals):
        total = whole.totals[name]
        assert isinstance(total, Params)
        parts += [name.encode(), total.flat.numpy().tobytes()]
    return digest(*parts)


@dataclass(frozen=True)
class UserLevelHooks(ClientHooks):
    """Bounds a person's update before it leaves, and refuses unbounded updates from elsewhere.

    Attributes:
        user: the bound.
        folder: folder with the secret key of clients' noise, and with a table of replies that were
            replaced by zeros; None: this is no client's machine.
        tell: called with a line about each reply that was replaced, for this machine's operator
            only.
        silos: division of people into labs.
        seed: seed of the run.
    """

    user: UserLevelConfig
    folder: Path | None = None
    tell: Callable[[str], None] = lambda _: None
    silos: Silos = NO_LABS
    seed: int = 0

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Return a reply whose update is clipped to a person's bound.

        The executor calls this before the reply leaves the client.
        """
        return self.user.leaving(reply, self.silos.inside(turn.site.id))

    def fault(self, sealed: SealedReply, client: str) -> str | None:
        """Return why a deployment's server refuses a reply; None: it does not.

        A reply is refused if its norm is above the bound of the people behind it.
        """
        return self.user.fault(sealed, self.silos.size(client))

    def covers(self, client: str, round: int, why: str) -> bool:
        """Return True: zeros are sent in place of a client's faulty reply.

        The client's machine calls this for a refused reply. The reason `why` is told to this
        machine's operator, not to the server, and added to a table in `folder`.
        """
        # A server that learned whether a training overflowed would learn about data, with no noise
        # and at no charge.
        self.tell(
            f"'{client}' sent zeros in round {round}, with noise where there is any, instead of a "
            f"reply that cannot count ({why}); the server is not told"
        )
        if self.folder is not None:
            make_durable_folder(self.folder, 0o700)
            with (self.folder / covered_in(self.seed)).open("a", encoding="utf-8") as file:
                file.write(csv_of([(client, round, why)]))
        return True

    def noise_key(self, client: str) -> NoiseKey | None:
        """Return the secret key of a client's part of the noise in sums; no server knows it.

        None: this is no client's machine.
        """
        if self.folder is None:
            return None
        return secret_in(self.folder).child("share", self.seed, client)


def against(shares: int, labs: bool = False) -> str:
    """State in words against whom the noise hides people.

    Args:
        shares: smallest number of clients in a sum, who together add the noise; 1: the server adds
            it.
        labs: whether people are in labs.
    """
    own = ", nor against the lab that somebody is in" if labs else ""
    if shares == 1:
        return (
            f"whoever sees the models, not against the server, which adds up before the noise{own}"
        )
    who = "labs" if labs else "people"
    honest = (
        f"while at least {shares} {who} in every sum keep their part of the noise to themselves"
    )
    return f"whoever sees the models, and the server {honest}{own.replace('nor', 'not')}"


class UserLevelProtection(BudgetedProtection):
    """The protection of `privacy.user`: a bound on every person's update, noise on every sum."""

    policy: UserLevelConfig

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Unit of data for which the budget is kept."""
        return self.policy.unit

    def clients(self, run: ProtectedRun) -> int:
        """Return the number of clients: of labs if there are any, else of people."""
        return self.plan.silos.count(len(run.federation.clients))

    def client(self, run: ProtectedRun) -> UserLevelHooks:
        """Return the hooks that clip updates to a person's bound."""
        folder = run.state / FOLDER
        return UserLevelHooks(self.policy, folder, run.tell, self.plan.silos, run.task.seed)

    def server(self, run: ProtectedRun) -> UserLevelMechanism:
        """Return the hooks that draw cohorts and add noise."""
        clients, seed = self.clients(run), run.task.seed
        return UserLevelMechanism(self.policy, self.plan, run.method, clients, run.state, seed)

    def forecast(self, run: ProtectedRun) -> list[Promise]:
        """State in reports how much noise a run has, and the epsilon that it will spend."""
        user, plan = self.policy, self.plan
        seen = forecast(user, plan, run.method, self.clients(run))
        where = "the sum of each round"
        cohort = f"each drawn with chance {seen.rate:g}" if seen.rate < 1 else "whoever is there"
        if user.turns is not None:
            parts = len(nodes(plan.rounds, user.restart))
            where = "every node of a tree over rounds"
            cohort = (
                f"the sum of all {plan.rounds} rounds is of {parts} nodes; whoever is there, each "
                f"in {plural(user.turns, 'round')} at most"
            )
        spent, shares, most = seen.epsilon(user.delta), seen.level.shares, max(seen.expected, 1)
        more = max(most / seen.each / shares, 1.0) if shares > 1 else 1.0
        offered = run.method.offer(run.method.server(run.task), "")
        ratio = seen.noise * math.sqrt(sum(t.layout.n for t in offered.values()) * more) / most
        # The units that are hidden: people, or labs.
        inside = plan.silos.lab_of if user.unit == "person" else ()
        labs, people = bool(plan.silos), len(inside) or self.clients(run)
        whom = against(shares, labs)
        neighbours = LAB if user.unit == "lab" else PERSON
        guarantee = Guarantee(user.unit, spent, user.delta, neighbours, whom, ratio, people)
        if not seen.sums:
            text = "people: nothing of them is sent but metrics, which are left out"
            return [Promise(text, guarantee=guarantee)]
        noise = seen.noise * user.clip * more**0.5
        least = "at least " if shares > 1 else ""
        divided = "divided by the people in the lab, which " * (user.unit == "lab")
        return [
            Promise(
                f"people: every update is cut to {user.clip:g} and {divided}counts once, without "
                f"metrics or weights; {where} gets noise of {least}{seen.noise:.4g} x "
                f"{user.clip:g} ({cohort}, mean over {seen.expected:g}: {noise / most:.3g} in "
                f"every entry); after {plural(plan.rounds, 'round')} epsilon {spent:.3g} at delta "
                f"{user.delta:g} per {user.unit}, seed and method, against {whom}",
                guarantee=guarantee,
            ),
            *([self._promise_of_other(seen, whom)] if labs else []),
        ]

    def _promise_of_other(self, seen: PrivacyForecast, whom: str) -> Promise:
        """Return what the same noise promises for the other unit, in a run with labs.

        If people are hidden, the other unit is a lab; if labs are hidden, a person in one.
        """
        user, silos = self.policy, self.plan.silos
        spent = seen.epsilon_of_other(user.delta)
        other, text = "person", f"a person in a lab of {silos.fewest} or more moves its mean by"
        reach, neighbours = user.clip / silos.fewest, PERSON
        if user.unit == "person":
            other, text = "lab", f"a whole lab, of up to {silos.most} people, moves a sum by"
            reach, neighbours = user.clip * silos.most, LAB
        return Promise(
            f"{text} {reach:.3g}, under the same noise: epsilon {spent:.3g} at delta "
            f"{user.delta:g} per {other}, seed and method, against {whom}",
            guarantee=Guarantee(other, spent, user.delta, neighbours, whom),
        )

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """State in reports how an update is bounded, and who is trusted with the noise."""
        trusted = (
            "The server is trusted with each person's update, and not to keep it. It adds the "
            "noise, and is trusted to do so."
        )
        if least := self.plan.privacy.least:
            who = "labs" if self.plan.silos else "people"
            trusted = (
                f"The promise about each {who.removesuffix('s') if self.plan.silos else 'person'} "
                f"(epsilon) asks for more: at least {least} {who} in every sum keep their part of "
                "the noise to themselves. With fewer it is weaker than stated, even if the server "
                "sees no single update."
            )
        elif self.plan.silos:
            trusted = (
                "The server is trusted with each lab's sum, and not to keep it. It adds the noise, "
                "and is trusted to do so."
            )
        if self.plan.silos:
            trusted += (
                " Each lab cuts its people's updates as the plan says: one that does not hides its "
                "own people less, and nobody else's."
            )
        return [
            Statement("update", f"cut to length {self.policy.clip:g}, noise comes later"),
            Statement("server", trusted),
        ]

    def spent(self, run: ProtectedRun) -> Mapping[str, object]:
        """Return the entries of results.json on the budgets that a run spent, from its logs."""
        user, silos = self.policy, self.plan.silos
        books = [ReleaseLog(run.state / FOLDER / sums_of(seed)) for seed in self.plan.seeds]
        entries = [book.entries for book in books]
        blocks = {user.unit: self._account(user.unit, entries)}
        if silos:
            other, times = "lab" if user.unit == "person" else "person", other_noise_of(user, silos)
            hidden = [[e._replace(noise=e.noise * times, rate=1.0) for e in b] for b in entries]
            blocks[other] = {**self._account(other, hidden), "allowed": None}
        return blocks

    def _account(self, unit: str, books: Sequence[list[Release]]) -> dict[str, object]:
        """Return the entry of results.json on one unit (person or lab).

        `books` has a list of releases for every seed.
        """
        user = self.policy
        every = [e._replace(draw=f"{n} {e.draw}") for n, book in enumerate(books) for e in book]
        return {
            "neighbours": LAB if unit == "lab" else PERSON,
            "against": against(self.plan.privacy.least or 1, bool(self.plan.silos)),
            "clip": user.clip,
            "delta": user.delta,
            "allowed": user.epsilon,
            **largest_epsilon([account(book) for book in books], user.delta),
            # All seeds trained on the same people: whoever sees them all sees every release.
            "seeds_together": account(every).epsilon(user.delta),
        }

    def planned(self, run: ProtectedRun) -> list[Spending]:
        """Return the budget that one seed will spend on everybody."""
        seen = forecast(self.policy, self.plan, run.method, self.clients(run))
        return [Spending(self.unit, "", charges_of(seen.charges(1.0, seen.rate)))]

    def spendings(self, folder: Path, seed: int) -> list[Spending]:
        """Return the releases of one seed, read from its log."""
        return [self.entered("", folder / sums_of(seed))]
