"""Hooks for pruning during training: pruned entries stay zero in training and in prediction.

Used by `engine.protections.setup`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import nn

from vergence.core.masks import Mask
from vergence.core.options import T
from vergence.core.params import Params
from vergence.core.requests import Fit, Forward, Step, StepResult
from vergence.core.task import Task
from vergence.privacy.hooks import ClientHooks, Turn
from vergence.training.pruning import KINDS, Gradual, prune_request

ZEROS = "zeros"
"""Name of a metric: the fraction of a model's parameters that are zero."""


class PruningHooks(ClientHooks):
    """Prunes every model from which a training starts, and every model that predicts."""

    answers = (Step, Forward)

    def __init__(self, pruning: Gradual, task: Task) -> None:
        self.pruning, self.task = pruning, task
        self.network: nn.Module = nn.Identity()
        self.pieces: dict[Task, nn.Module] = {}
        self.latest: tuple[Params, int, Params] | None = None

    def attach(self, network: nn.Module) -> None:
        """Store the whole network, whose layers determine which entries may be pruned.

        The executor calls this once at its start.
        """
        self.network = network

    def training(self, ask: Fit, round: int) -> Fit:
        """Return the request for training, restricted to the entries that are not pruned."""
        mask = self._mask(self.network, ask.params, round)
        return ask if mask is None else prune_request(ask, mask)

    def answer(self, ask: object, turn: Turn, then: Callable[[object], T]) -> T:
        """Compute with a client's layers of a cut network, whose pruned entries stay zero.

        `then` computes the answer to the changed request.
        """
        return self.computing(ask, turn.message.round + 1, then)

    def computing(self, ask: object, round: int, then: Callable[[object], T]) -> T:
        """Compute with some layers of a cut network; pruned entries are zero before and after.

        `then` computes the answer to the changed request.
        """
        if not isinstance(ask, Step | Forward):
            return then(ask)
        piece = ask.on(self.task)
        if piece not in self.pieces:
            self.pieces[piece] = piece.module()
        network = self.pieces[piece]
        # A piece may have no layer of the kinds that are pruned.
        prunes = any(isinstance(m, KINDS[self.pruning.layers]) for m in network.modules())
        mask = self._mask(network, ask.params, round) if prunes else None
        if mask is None:
            return then(ask)
        if isinstance(ask, Forward):
            return then(replace(ask, params=mask.keep(ask.params)))
        # A step is taken in the memory that it is given, so that is where the zeros are written.
        ask.params.flat.copy_(mask.keep(ask.params).flat)
        result = then(ask)
        assert isinstance(result, StepResult)
        result.params.flat.copy_(mask.keep(result.params).flat)
        return result

    def predicting(self, params: Params, done: int) -> Params:
        """Return the parameters to predict with; those pruned after `done` rounds are zero."""
        # People who share a model ask with the same object one after the other: it is pruned once.
        if self.latest is None or self.latest[0] is not params or self.latest[1] != done:
            mask = self._mask(self.network, params, done)
            self.latest = params, done, params if mask is None else mask.keep(params)
        return self.latest[2]

    def scores(self, params: Params) -> Mapping[str, float]:
        """Return metric -> value: the fraction of the parameters that are zero.

        The evaluation adds it to the scores of a model.
        """
        return {ZEROS: 1 - int(params.flat.count_nonzero()) / params.layout.n}

    def _mask(self, network: nn.Module, params: Params, round: int) -> Mask | None:
        """Return the mask of entries that are kept in a round (from 1); None if all are kept."""
        now = self.pruning.at(round)
        return now.mask_of_remaining(network, params) if now.amount else None
