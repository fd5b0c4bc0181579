"""DP-SGD in a run: clients train with noise; a privacy budget is forecast, checked and kept.

Used by `deployment.joined_node`, `engine.protections.setup` and `engine.solver_selection`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import ref

from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.messages import Reply
from vergence.core.method import Method
from vergence.core.naming import plural, registry_name
from vergence.core.requests import Compute, Fit, Mean
from vergence.core.task import Task
from vergence.engine.protections.built_in import BudgetedProtection, Spending, charges_of, owner
from vergence.engine.protections.dp_split import AGAINST, HALF, NOT_AGAINST, SplitDpHooks
from vergence.engine.protections.dry_run import dry_run
from vergence.errors import ConfigError
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.accounting import largest_epsilon
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass, training_schedule, uncovered
from vergence.privacy.dp.mixing_probe import refuse_mixing
from vergence.privacy.hooks import (
    ClientHooks,
    Guarantee,
    Promise,
    ProtectedRun,
    Statement,
    Turn,
)
from vergence.privacy.release_log import FOLDER, ReleaseLog

if TYPE_CHECKING:
    from vergence.engine.plan import Plan

ONE_BY_ONE = "DP-SGD clips the gradient of every sample, which neither stacks nor graphs do"
"""Reason to train clients one after the other under DP-SGD."""
HALVED = "What is done to the training of the clients' layers."
FRAME = "the same samples of a client, one of them left out"
# The forecast looks at the first clients only: one that reads everybody's samples would take longer
# than people wait for `vergence explain`.
LOOKED_AT = 100
# Tasks and samples that passed the check for mixing: the start of a run asks for it twice.
PROBED: deque[tuple[Task, ref[Samples]]] = deque(maxlen=64)


@dataclass(frozen=True)
class DpSgdHooks(ClientHooks):
    """Trains by DP-SGD, and refuses all other requests that look at training samples.

    Attributes:
        policy: clip bound, and noise or a budget.
        solver: trains with noise; None: the clients and their samples are on other machines.
    """

    policy: DpSgd
    solver: DpSolver | None

    answers = (Fit, Mean, Compute)

    def answer(self, ask: object, turn: Turn, then: Callable[[object], object]) -> object:
        """Answer a request for training, or for a mean, with noise.

        Other requests may use validation samples only; `then` answers them.

        Raises:
            ConfigError: the request would look at training samples without noise.
            DpSgdBudgetSpent: the client has no budget left.
        """
        if self.solver is None:
            return then(ask)
        if isinstance(ask, Mean):
            return self.solver.mean(turn.site, ask)
        if isinstance(ask, Fit):
            return self.solver.train(turn.site, ask, turn.batches(), turn.progress)
        # No promise is made for validation samples, so a method may look at them freely.
        if getattr(ask, "data", None) is not turn.site.val:
            raise uncovered(turn.message.verb, ask)
        return then(ask)

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Return a reply without metrics, which are computed from samples without noise.

        The executor calls this before the reply leaves the client.
        """
        return self.policy.leaving(reply)


def refuse_own_prior(task: Task) -> None:
    """Refuse a task in which a prior of all the person's samples is an input to each of them.

    Raises:
        ConfigError: the task has such a prior. Noise for one sample would not hide it in the prior.
    """
    if task.own_prior:
        raise ConfigError(
            "privacy.solver hides single samples, and task.personal_prior puts all of a "
            "person's samples into what each of them is trained with; leave the prior out (0), "
            "or hide whole people with privacy.user"
        )


def refuse_overlap(federation: Federation) -> None:
    """Refuse overlapping windows of frames as samples.

    A frame would be in several samples, but DP-SGD counts it once.

    Raises:
        ConfigError: windows overlap; the message names a person with such windows.
    """
    federation.refuse_many("looking for windows that overlap")
    for client, splits in federation.people.items():
        if (most := splits.train.overlap()) > 1:
            raise ConfigError(
                f"privacy.solver hides single samples, and one frame of '{client}' is in {most} of "
                f"them (each a {splits.train.kind}), so epsilon would not hold for a frame; cut "
                "windows that do not overlap (hop = window, stride_s = window x step_s or more), "
                "or hide whole people with privacy.user"
            )


def refuse_mixed(task: Task, federation: Federation, passes: Sequence[TrainingPass]) -> None:
    """Refuse a network or a loss that mixes the samples of a batch, as batch norm does.

    `DpSgdProtection` calls this.

    Raises:
        ConfigError: samples are mixed; the message names the layer, or the loss.
    """
    clients = (federation.people[who].train for who in federation.clients[:LOOKED_AT])
    # All seeds of a task have the same layers and loss.
    most, task = max(clients, key=len), replace(task, seed=0)
    if not len(most) or any(known == task and seen() is most for known, seen in PROBED):
        return
    batch = max((one.local.batch for one in passes if one.local is not None), default=1)
    refuse_mixing(task, most, batch)
    PROBED.append((task, ref(most)))


def refuse_half(policy: DpSgd, method: Method) -> None:
    """Refuse noise on the client's half of a network that is not cut.

    Raises:
        ConfigError: `halves` is `client`, and the method is no split learning.
    """
    if policy.halves == "client" and not method.served:
        raise ConfigError(
            f"privacy.solver.halves = 'client' is for a network that is cut, and "
            f"{registry_name(method)} trains a whole one; leave it out, or use splitfed"
        )


def refuse_elsewhere(run: ProtectedRun) -> None:
    """Refuse a deployment of split learning: its server would have to add noise of its own.

    `DpSgdProtection` calls this.

    Raises:
        ConfigError: the run is a deployment, and the network is cut.
    """
    if run.method.served and not run.here:
        raise ConfigError(
            "privacy.solver with a cut network needs noise of the server's half too, which a "
            "deployment's server has no secret for; simulate it, or use a method that is not split"
        )


def check_solver(
    policy: DpSgd, method: Method, task: Task, federation: Federation, plan: Plan
) -> tuple[TrainingPass, ...]:
    """Check the privacy cost of a run with DP-SGD; return the trainings that each client does.

    Raises:
        ConfigError: the trainings spend more than the budget; or delta is so large that a sample
            could be published; or training on one sample uses values computed from others.
    """
    refuse_half(policy, method)
    refuse_own_prior(task)
    refuse_overlap(federation)
    passes = dry_run(method, task, federation, plan.rounds)
    federation.refuse_many("finding the noise of DP-SGD")
    # Whoever has the fewest samples has the highest sampling rate, and so the highest epsilon.
    sizes = {len(splits.train) for splits in federation.people.values()} - {0}
    if sizes:
        policy.refuse_delta(max(sizes), "training samples of a client")
        spent = training_schedule(passes, min(sizes)).ledger(policy).epsilon(policy.delta)
        policy.refuse(
            spent, f"training on {plural(min(sizes), 'sample')} over {plural(plan.rounds, 'round')}"
        )
    return passes


class DpSgdProtection(BudgetedProtection):
    """The protection of `privacy.solver`: DP-SGD, which hides single samples by noise."""

    policy: DpSgd
    kind, unit = "client", "sample"

    def check(self, run: ProtectedRun) -> None:
        """Refuse methods that use samples for more than training, and networks that mix samples.

        The privacy budget is checked, too.
        """
        passes = check_solver(self.policy, run.method, run.task, run.federation, self.plan)
        refuse_mixed(run.task, run.federation, passes)

    def client(self, run: ProtectedRun) -> DpSgdHooks | SplitDpHooks:
        """Return the hooks that train with noise; on a deployment's server they drop metrics."""
        refuse_elsewhere(run)
        if not run.here:
            return DpSgdHooks(self.policy, None)
        passes = check_solver(self.policy, run.method, run.task, run.federation, self.plan)
        refuse_mixed(run.task, run.federation, passes)
        solver = DpSolver(run.task, self.policy, run.state, run.task.seed, passes, run.device)
        sizes = {who: len(splits.train) for who, splits in run.federation.people.items()}
        # Finding the noise for a budget takes seconds: once here, before workers are forked, and
        # not in each of them.
        for size in set(sizes.values()):
            solver.noise(size)
        if run.method.served:
            return SplitDpHooks(self.policy, solver, run.method, sizes)
        return DpSgdHooks(self.policy, solver)

    def forecast(self, run: ProtectedRun) -> list[Promise]:
        """State in reports the steps, noise and epsilon of the largest and the smallest client.

        The size of a client is its number of samples.
        """
        policy, people, texts = self.policy, run.federation, []
        # In a deployment each client keeps to the budget by itself.
        most = math.inf if policy.epsilon is None else policy.epsilon
        served = run.method.served
        half = policy.halves == "client"
        against = AGAINST if served else "whoever sees what the device sends"
        guarantee = None if half else Guarantee("sample", most, policy.delta, FRAME, against)
        parts = "of the client's half " if half else "of both halves " if served else ""
        hidden = HALF if half else f", hidden from {AGAINST}; {NOT_AGAINST}" if served else ""
        refuse_elsewhere(run)
        if not run.here:
            return [Promise("", guarantee=guarantee)]
        passes = check_solver(policy, run.method, run.task, people, self.plan)
        sizes = sorted({len(splits.train) for splits in people.people.values()})
        kind = people.people[people.clients[0]].train.kind
        for size in dict.fromkeys((sizes[0], sizes[-1])):
            whole = training_schedule(passes, size)
            spent = whole.ledger(policy).epsilon(policy.delta)
            means = f", {whole.means} mean of its samples with noise {whole.mean_noise(policy):.4g}"
            texts.append(
                f"samples: a client with {size} trains {whole.steps} steps at sampling rate "
                f"{whole.rate:.3g}, gradients {parts}cut to "
                f"{policy.clip:g}, noise "
                f"{whole.noise(policy):.4g}{means if whole.means else ''}: epsilon {spent:.3g} at "
                f"delta {policy.delta:g} for one {kind}, not for the person{hidden}"
            )
        some = {len(people.people[client].train) for client in people.clients[:LOOKED_AT]}
        most = max(training_schedule(passes, n).ledger(policy).epsilon(policy.delta) for n in some)
        first, *rest = texts
        if guarantee is not None:
            guarantee = guarantee._replace(epsilon=most)
        return [Promise(first, HALVED if half else "", guarantee=guarantee), *map(Promise, rest)]

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """State in reports that updates have noise, and what the guarantee does not cover."""
        half = self.policy.halves == "client"
        text = f"{{Samples}}, by noise{HALF}." if half else f"{{Samples}} are hidden {NOT_AGAINST}."
        return [
            Statement("update", "made by noised training"),
            *([Statement("unprotected", text)] if run.method.served else []),
            Statement(
                "unprotected",
                "People under a promise about {samples}: a person's {samples} are alike. "
                "{Samples} that only steer a method, or measure it, are not covered.",
            ),
        ]

    def planned(self, run: ProtectedRun) -> list[Spending]:
        """Return the budgets that clients' trainings in one seed will spend."""
        passes = check_solver(self.policy, run.method, run.task, run.federation, self.plan)
        ledgers = {
            who: training_schedule(passes, len(splits.train)).ledger(self.policy)
            for who, splits in run.federation.people.items()
            if len(splits.train)
        }
        return [Spending(self.unit, who, charges_of(spent)) for who, spent in ledgers.items()]

    def spent(self, run: ProtectedRun) -> Mapping[str, object]:
        """Return the entry of results.json on the client that spent the most epsilon."""
        policy, paths = self.policy, self.logs(run.state / FOLDER)
        if not paths:
            return {}
        ledgers = {owner(path): ReleaseLog(path).ledger for path in paths}
        return {
            "sample": {
                "kind": run.federation.people[run.federation.clients[0]].train.kind,
                "neighbours": FRAME,
                "against": AGAINST
                if run.method.served
                else "whoever sees what the client sends, the server too",
                "clip": policy.clip,
                "delta": policy.delta,
                "allowed": policy.epsilon,
                **({"only": HALF} if policy.halves == "client" else {}),
                **largest_epsilon(list(ledgers.values()), policy.delta),
            }
        }
