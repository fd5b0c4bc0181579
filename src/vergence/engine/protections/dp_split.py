"""DP-SGD of a cut network: both halves take private steps, on batches drawn by chance.

A step of a client and its server is one release, of both halves' gradients of the same batch. Each
half cuts a sample's gradient to clip / sqrt(2), so that both together are at most `clip` long, and
adds noise for `clip`: what the accountant counts for a whole network. Noise on the clients' layers
alone would promise nothing: the server's layers, trained without, carry a sample into the gradients
that later batches get back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.messages import Reply
from vergence.core.method import Method
from vergence.core.naming import called
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
    taken,
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


def split_passes(method: Method, rounds: int) -> tuple[TrainingPass, ...]:
    """Return the training that a run of split learning asks of every client.

    Raises:
        ConfigError: its halves do not both step on losses of single samples.
    """
    name = called(method)
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
    exposed = method.exposure["train"]
    return "labels" in exposed.trees and BACK in (exposed.down or ())


@dataclass(frozen=True)
class SplitDpHooks(ClientHooks):
    """Draws a client's batches by chance, and makes the steps of both halves private.

    Attributes:
        policy: clip, and noise or a budget.
        solver: holds the secret and the books.
        method: of the run.
        sizes: how many training samples each client has.
    """

    policy: DpSgd
    solver: DpSolver
    method: Method
    sizes: Mapping[str, int]
    entered: set[tuple[str, int]] = field(default_factory=set)

    answers = (Step, Fit, Mean, Compute)

    def context(self, site: ClientContext) -> ClientContext:
        """Context whose batches are drawn by chance."""
        return replace(site, draw=partial(self._batch, site))

    def _batch(self, site: ClientContext, at: int) -> Tensor | None:
        local, samples = self.method.local, len(site.train)
        if at >= taken(local, samples):
            return None
        key = self.solver.secret.child("batch", site.id, site.round, at)
        return poisson(samples, rate_of(local, samples), key.draws())

    def answer(self, ask: Any, turn: Turn, then: Callable[[Any], Any]) -> Any:
        """Result of a private step; of the rest, about validation data only.

        Raises:
            ConfigError: something else would look at training samples.
            DpSgdBudgetSpent: the client has no budget left.
        """
        if not isinstance(ask, Step):
            if getattr(ask, "data", None) is not turn.site.val:
                raise uncovered(turn.message.verb, ask)
            return then(ask)
        self._enter(turn.site, turn.message.round)
        return then(self._private(ask, turn.site.id, "front"))

    def serving(self, ask: Any, client: str) -> Any:
        """Request of the server's half, whose steps are private too."""
        return self._private(ask, client, "tail") if isinstance(ask, Step) else ask

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Reply without metrics, which nothing hides."""
        return self.policy.leaving(reply)

    def _enter(self, site: ClientContext, round: int) -> None:
        """Write a round of steps into the client's book, once, before the first of them."""
        if (site.id, round) in self.entered:
            return
        local, samples = self.method.local, len(site.train)
        name, noise = f"round {round}", self.solver.noise(samples)
        entry = Release(name, name, noise, rate_of(local, samples), taken(local, samples))
        self.solver.spend(site.id, entry, samples)
        self.entered.add((site.id, round))

    def _private(self, ask: Step, client: str, half: str) -> Step:
        samples = self.sizes[client]
        gradients = PrivateGradients(
            clip=self.policy.clip / math.sqrt(2),
            deviation=self.solver.noise(samples) * self.policy.clip,
            expected=rate_of(self.method.local, samples) * samples,
            key=self.solver.secret.child(half, client, mark(ask)),
        )
        return replace(ask, gradients=gradients)
