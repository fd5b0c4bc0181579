"""Private choice of masks in a run: forecasts how the privacy budget is spread over choices.

Used by `engine.protections.setup`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.federation import Federation
from vergence.core.masks import Mask
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, FitResult
from vergence.core.task import Task
from vergence.engine.protections.built_in import BudgetedProtection, Spending
from vergence.errors import ConfigError
from vergence.privacy.dp.mask_budget import MaskBudget, groups, whole
from vergence.privacy.dp.private_selection import PrivateMaskSelector
from vergence.privacy.dp.private_selection import spent as amounts
from vergence.privacy.hooks import ClientHooks, Promise, ProtectedRun
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import FOLDER, ReleaseLog
from vergence.privacy.secure_aggregation.masking import SEED

if TYPE_CHECKING:
    from vergence.engine.plan import Plan

# A dry run chooses masks without looking at data: its noise hides nothing and needs no secret.
NOBODY = NoiseKey(bytes(SEED))


@dataclass(frozen=True)
class MaskForecast:
    """How often a client chooses a mask in a run, and how many random draws all masks take."""

    choices: int
    draws: int


def foreseen(plan: Plan, method: Method, task: Task, federation: Federation) -> MaskForecast:
    """Forecast a run's choices of masks: run one client's turns without training.

    Raises:
        ConfigError: with these options the method chooses no mask from data, chooses it in another
            way, or uses data in a turn for more than training.
    """
    # Without training, masks grow by other groups than in the run. A client whose turn asks for
    # more than was forecast keeps the mask that it has.
    policy, verb = plan.privacy.mask, next(iter(method.exposure))
    assert policy is not None
    counter = _MaskChoiceCounter(policy, task)
    client = federation.clients[0]
    data, state = federation.people[client], method.client(task)
    message = Message(verb, dict(method.offer(method.server(task), client)))
    for round in range(plan.rounds):
        site = ClientContext(client, data.train, data.val, task, round, RandomStream("rehearsal"))
        site = replace(site, choose=partial(counter.choose, round))
        turn = getattr(method, f"on_{verb}")(state, message, site)
        state, _ = drive(turn, counter.answer)
    if not counter.draws:
        raise ConfigError(_nothing(registry_name(method), policy.of, counter.room))
    return MaskForecast(counter.choices, counter.draws)


def _nothing(name: str, of: str, room: int) -> str:
    """Return the message that no mask is chosen from data.

    Args:
        name: the method.
        of: what a random draw chooses: an entry, a filter or a tensor.
        room: largest number of entries that may be chosen at a time; 0: none ever.
    """
    if room:
        return (
            f"privacy.mask: '{name}' makes at most {room:,} entries personal in a round, and every "
            f'{of} of this network has more; take of = "entry", or a higher rate'
        )
    return (
        f"privacy.mask is for masks that a person's data choose, and with these options '{name}' "
        'has none, or chooses in a way of its own; leave out select = "random" (fedcpf), rule = '
        '"code" (fedselect), or privacy.mask'
    )


class _MaskChoiceCounter:
    """Answers the requests of turns without training, and counts the draws for masks."""

    def __init__(self, policy: MaskBudget, task: Task) -> None:
        self.policy, self.task = policy, task
        self.choices = self.draws = self.room = 0

    def answer(self, ask: object) -> FitResult:
        """Answer one request of a turn without training.

        Raises:
            ConfigError: the turn asks for something other than training.
        """
        # Whatever else a turn computes from data could decide whether a mask grows, which a server
        # sees.
        if not isinstance(ask, Fit):
            raise ConfigError(
                "privacy.mask: with these options a turn looks at a person's data beside its "
                "training, and whether a mask grows may follow from it, which no draw pays for; "
                "leave out guard (fedcpf), or privacy.mask"
            )
        metrics = {"loss": 0.0, "score": 0.0}
        return FitResult(ask.params, self.task.weigh(ask.data), 0, ask.optimiser, metrics)

    def choose(self, round: int, score: Params, k: int | Mapping[str, int], among: Mask) -> Mask:
        """Choose a mask of `k` entries from `among`, as a client does, but with all scores zero."""
        room, by = whole(k), groups(score.layout, self.policy.of)
        self.room = max(room, self.room)
        open = by.candidates(room, among)
        count = by.share(room, open)
        if not count:
            return Mask.none(score.layout)
        self.choices += 1
        self.draws += count
        best = by.best(score * 0.0, count, open)
        bits = by.draw_entries(best, room, open, 1e-9, NOBODY.child(round).draws())
        return Mask(bits, score.layout)


@dataclass(frozen=True)
class MaskHooks(ClientHooks):
    """Lets clients choose masks only with noise, and within their privacy budgets."""

    chooser: PrivateMaskSelector

    def context(self, site: ClientContext) -> ClientContext:
        """Return a client's context, in which masks are chosen with noise under its budget.

        The executor calls this before a turn or an evaluation.
        """
        return self.chooser.at(site)


ONLY = " in the choice of masks alone, not in the updates beside them"


class MaskProtection(BudgetedProtection):
    """The protection of `privacy.mask`: masks are chosen with noise, which hides people's data."""

    policy: MaskBudget
    kind = unit = "mask"

    def client(self, run: ProtectedRun) -> MaskHooks | None:
        """Return the hooks that choose masks under a budget; None: people's data are elsewhere."""
        if not run.here or not run.federation.clients:
            return None
        each = self.policy.epsilon_per_draw(
            foreseen(self.plan, run.method, run.task, run.federation).draws
        )
        return MaskHooks(PrivateMaskSelector(self.policy, each, run.state, run.task.seed))

    def forecast(self, run: ProtectedRun) -> list[Promise]:
        """State in reports how often a run chooses masks, and the epsilon of all choices."""
        if not run.here:
            return []
        seen = foreseen(self.plan, run.method, run.task, run.federation)
        policy = self.policy
        each = policy.epsilon_per_draw(seen.draws)
        there = len(groups(run.task.init().layout, policy.of).sizes)
        parts = {"filter": "filters and neurons", "tensor": "tensors", "entry": "entries"}
        text = (
            f"masks: {there:,} {parts[policy.of]}; about {seen.choices} choices of "
            f"{seen.draws:,} in all, each draw at epsilon {each:.3g}: one that belongs in the mask "
            f"is {math.exp(each / 2) - 1:.2%} likelier than one that does not; epsilon "
            f"{policy.epsilon_of([(each, seen.draws)]):.3g} at delta {policy.delta:g} per person, "
            f"seed and method,{ONLY}"
        )
        heading = "How the parts of the model that stay personal are chosen."
        return [Promise(text, heading, "how a mask is chosen")]

    def planned(self, run: ProtectedRun) -> list[Spending]:
        """Return the budget that everybody's choices in one seed will spend."""
        draws = foreseen(self.plan, run.method, run.task, run.federation).draws
        return [Spending(self.unit, "", ((self.policy.epsilon_per_draw(draws), 1.0, draws),))]

    def spent(self, run: ProtectedRun) -> Mapping[str, object]:
        """Return the entry of results.json on the person whose mask choices spent most."""
        policy, paths = self.policy, self.logs(run.state / FOLDER)
        if not paths:
            return {}
        return {
            "mask": {
                "neighbours": "the same people, one of them with any other data",
                "against": "whoever sees which entries a person shares, the server too",
                "of": policy.of,
                "delta": policy.delta,
                "allowed": policy.epsilon,
                "epsilon": max(amounts(ReleaseLog(path).entries, policy) for path in paths),
                "check": None,
                "only": ONLY,
            }
        }

    def epsilon(self, charges: Sequence[tuple[float, float, int]]) -> float:
        """Return the epsilon of all random draws in `charges` together."""
        return self.policy.epsilon_of((each, times) for each, _, times in charges)
