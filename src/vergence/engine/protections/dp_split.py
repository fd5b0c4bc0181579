"""DP-SGD for split learning: client and server layers take noisy steps on random batches.

Used by `engine.protections.dp_sgd` and `engine.protections.dry_run`.
"""

# A step of a client and its server is one release, of both halves' gradients of the same batch.
# Each half cuts a sample's gradient to clip / sqrt(2), so that both together are at most `clip`
# long, and adds noise for `clip`: what the accountant counts for a whole network. Noise on the
# clients' layers alone (`halves = "client"`) promises nothing: the server's layers, trained
# without, carry a sample into the gradients that later batches get back.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.messages import Reply
from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.requests import Compute, Fit, Mean, Step
from vergence.engine.protections.split_defense import BACK
from vergence.errors import ConfigError
from vergence.methods.split.base import BatchwiseSplit
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.dp_sgd import poisson
from vergence.privacy.dp.dp_sgd_solver import (
    DpSolver,
    TrainingPass,
    rate_of,
    steps_of,
    uncovered,
)
from vergence.privacy.dp.private_step import PrivateGradients, mark
from vergence.privacy.hooks import ClientHooks, Turn
from vergence.privacy.release_log import Release

AGAINST = "whoever sees trained layers and no smashed data: other people, and all who get the model"
NOT_AGAINST = (
    "not from the main server, which is sent smashed data and labels of every sample, and adds the "
    "noise of its own layers"
)
HALF = (
    ", of the noise on the clients' layers alone: this promises nothing, as the server's layers "
    "are trained without noise"
)


def split_passes(method: Method, rounds: int) -> tuple[TrainingPass, ...]:
    """Return the training that a run of split learning asks of every client.

    Raises:
        ConfigError: client and server layers do not both take a step on each batch; or the method's
            `number` rounds all samples of a batch by one scale.
    """
    name = registry_name(method)
    if not isinstance(method, BatchwiseSplit) or not _both_step(method):
        raise ConfigError(
            f"privacy.solver protects a cut network where both halves step on the same batch, and "
            f"those of '{name}' do not; use split, splitfed or splitfed_v2"
        )
    if method.number != "float32":
        raise ConfigError(
            f"privacy.solver bounds what each sample adds, and number = '{method.number}' rounds "
            f"all samples of a batch by one scale; leave out `number` of '{name}'"
        )
    return (TrainingPass(method.local, 1.0, rounds),)


def _both_step(method: BatchwiseSplit) -> bool:
    """Return whether client and server layers both take a step on each batch.

    For this, labels go up, and a gradient comes back.
    """
    exposed = method.exposure["train"]
    return "labels" in exposed.trees and BACK in (exposed.down or ())


@dataclass(frozen=True)
class SplitDpHooks(ClientHooks):
    """Draws a client's batches at random, and adds noise to the steps of both halves.

    The halves are the client's and the server's layers of a cut network.

    Attributes:
        policy: clip bound, and noise or a budget.
        solver: holds the secret key of the noise and the release logs.
        method: the method.
        sizes: client -> number of its training samples.
        entered: pairs (client, round) that are already in the release logs.
    """

    policy: DpSgd
    solver: DpSolver
    method: Method
    sizes: Mapping[str, int]
    entered: set[tuple[str, int]] = field(default_factory=set)

    answers = (Step, Fit, Mean, Compute)

    def context(self, site: ClientContext) -> ClientContext:
        """Return a client's context, in which batches are drawn at random.

        The executor calls this before a turn or an evaluation.
        """
        return replace(site, draw=partial(self._batch, site))

    def _batch(self, site: ClientContext, at: int) -> Tensor | None:
        """Draw batch number `at` of a round by Poisson sampling; None: the round is over.

        The result has the indices of the samples.
        """
        local, samples = self.method.local, len(site.train)
        if at >= steps_of(local, samples):
            return None
        key = self.solver.secret.child("batch", site.id, site.round, at)
        return poisson(samples, rate_of(local, samples), key.draws())

    def answer(self, ask: object, turn: Turn, then: Callable[[object], object]) -> object:
        """Answer a request for a step with clipped and noised gradients.

        Other requests may use validation samples only; `then` answers them.

        Raises:
            ConfigError: the request would look at training samples in another way.
            DpSgdBudgetSpent: the client has no budget left.
        """
        if not isinstance(ask, Step):
            if getattr(ask, "data", None) is not turn.site.val:
                raise uncovered(turn.message.verb, ask)
            return then(ask)
        self._enter(turn.site, turn.message.round)
        return then(self._private(ask, turn.site.id, "front"))

    def serving(self, ask: object, client: str) -> object:
        """Return a request of the server half, with clipped and noised gradients if it is a step.

        With `halves = "client"` the request is unchanged. The session of split learning calls this
        before it answers the request.
        """
        if self.policy.halves == "client" or not isinstance(ask, Step):
            return ask
        return self._private(ask, client, "tail")

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Return a reply without metrics, which are computed from samples without noise.

        The executor calls this before the reply leaves the client.
        """
        return self.policy.leaving(reply)

    def _enter(self, site: ClientContext, round: int) -> None:
        """Charge the steps of a whole round to the client's budget, before its first step."""
        if (site.id, round) in self.entered:
            return
        local, samples = self.method.local, len(site.train)
        name, noise = f"round {round}", self.solver.noise(samples)
        entry = Release(name, name, noise, rate_of(local, samples), steps_of(local, samples))
        self.solver.spend(site.id, entry, samples)
        self.entered.add((site.id, round))

    def _private(self, ask: Step, client: str, half: str) -> Step:
        """Return a request for a step in which gradients are clipped per sample, and get noise.

        `half` names the layers that take the step, so that each half has noise of its own: `front`
        (the client's) or `tail` (the server's).
        """
        samples, parts = self.sizes[client], 1 if self.policy.halves == "client" else 2
        return replace(
            ask,
            gradients=PrivateGradients(
                clip=self.policy.clip / math.sqrt(parts),
                deviation=self.solver.noise(samples) * self.policy.clip,
                expected=rate_of(self.method.local, samples) * samples,
                key=self.solver.secret.child(half, client, mark(ask)),
            ),
        )
