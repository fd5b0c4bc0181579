"""A solver that trains by DP-SGD and logs the privacy budget that every client spends.

Used in `audit`, `engine` and `privacy`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute, Fit, FitResult, Mean
from vergence.core.serialization import digest
from vergence.core.tags import literal_text
from vergence.core.task import Task
from vergence.errors import ConfigError, StateError
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.accounting import Charge, Ledger, noise_for
from vergence.privacy.dp.dp_sgd import noised, poisson
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.privacy.dp.private_step import clipped_sum
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog, secret_in
from vergence.training.device import answer_on, seed_generators
from vergence.training.sequential import Solver

MEAN_SHARE, MEAN_NOISE = 0.2, 10.0
"""Fraction of epsilon for means over samples; if `noise` is set, factor for the noise on means."""


class DpSgdBudgetSpent(StateError):
    """Raised if a client's budget allows no further training; the client then sends no reply."""


@dataclass(frozen=True)
class TrainingPass:
    """A training, or a mean over samples, that a run asks of every client.

    Attributes:
        local: options of the training; None for a mean over the client's samples.
        share: fraction of the client's samples that is used.
        times: how often a run asks a client for it.
    """

    local: LocalTraining | None
    share: float
    times: int


@dataclass(frozen=True)
class TrainingSchedule:
    """All that a run computes from one client's samples.

    Attributes:
        rate: probability that a sample is in the batch of a step.
        steps: number of training steps in the run.
        means: number of means over all samples in the run.
    """

    rate: float
    steps: int
    means: int = 0

    def ledger(self, policy: DpSgd) -> Ledger:
        """Return the privacy charges of all steps and means."""
        charges = (Charge(self.noise(policy), self.rate, self.steps),)
        if self.means:
            charges = (*charges, Charge(self.mean_noise(policy), 1.0, self.means))
        return Ledger(charges)

    def noise(self, policy: DpSgd) -> float:
        """Return the standard deviation of noise on a sum of gradients, as a multiple of `clip`."""
        return _multiplier(policy, self)

    def mean_noise(self, policy: DpSgd) -> float:
        """Return the standard deviation of noise on the sum for a mean.

        It is a multiple of the largest norm of a row (one sample's values).
        """
        return _mean_multiplier(policy, self.means)


def uncovered(verb: str, ask: object) -> ConfigError:
    """Return the error for a method that uses training samples for something besides training.

    `verb` is the kind of request that does so, such as `train`; `ask` is the computation.
    """
    what = f"the {ask.want} of" if isinstance(ask, Compute) else "single batches of"
    return ConfigError(
        f"privacy.solver protects what training gives, and '{verb}' of this method also uses "
        f"{what} training samples; use another method, or options of it that need none: its page "
        "in docs/reference/methods names them"
    )


def unclipped(what: str) -> ConfigError:
    """Return the error for a training that minimises a loss other than the task's.

    `what` names the training in the message.
    """
    return ConfigError(
        f"privacy.solver clips the gradients of the task's loss, and {what} minimises another; use "
        "another method"
    )


def steps_of(local: LocalTraining, samples: int) -> int:
    """Return the number of steps of a training, which is the same as without privacy.

    Args:
        local: options of the training.
        samples: number of the client's training samples.
    """
    return local.steps or local.epochs * math.ceil(samples / local.batch)


def rate_of(local: LocalTraining, samples: int) -> float:
    """Return the probability that a sample is in a batch: batch size divided by `samples`."""
    return min(1.0, local.batch / samples)


def training_schedule(passes: Sequence[TrainingPass], samples: int) -> TrainingSchedule:
    """Return the steps and means that a run asks of a client with `samples` samples.

    If trainings differ in their sampling rate, all steps are counted at the highest rate.
    """
    trained = [
        (one.local, max(1, round(one.share * samples)), one.times)
        for one in passes
        if one.local is not None
    ]
    rate = max((rate_of(local, size) for local, size, _ in trained), default=1.0)
    steps = sum(times * steps_of(local, size) for local, size, times in trained)
    return TrainingSchedule(rate, steps, sum(each.times for each in passes if each.local is None))


@functools.cache
def _multiplier(policy: DpSgd, whole: TrainingSchedule) -> float:
    if policy.epsilon is None or policy.noise is not None or not whole.means:
        return policy.multiplier(whole.rate, whole.steps)
    means = (Charge(whole.mean_noise(policy), 1.0, whole.means),)
    steps = max(whole.steps, 1)
    return noise_for(policy.epsilon, policy.delta, whole.rate, steps, other_charges=means)


@functools.cache
def _mean_multiplier(policy: DpSgd, means: int) -> float:
    if policy.noise is not None:
        return policy.noise * MEAN_NOISE
    return noise_for((policy.epsilon or 0.0) * MEAN_SHARE, policy.delta, 1.0, means)


class DpSolver(Solver):
    """Trains one client after another by DP-SGD, in single precision.

    Args:
        task: the task.
        policy: clip bound, and noise or a budget.
        state: the folder of states, which holds the secret and the release logs.
        seed: seed of the run.
        passes: the trainings that a run asks of every client, over which a budget is spread.
        device: device of training; noise is drawn on the CPU.
    """

    def __init__(
        self,
        task: Task,
        policy: DpSgd,
        state: Path,
        seed: int,
        passes: Sequence[TrainingPass],
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(task, device=device)
        self.policy, self.folder, self.seed = policy, state / FOLDER, seed
        self.passes = tuple(passes)
        self.secret = secret_in(self.folder).child("dp_sgd", seed)

    def noise(self, samples: int) -> float:
        """Return the noise multiplier (noise / `clip`) for a client with `samples` samples."""
        return training_schedule(self.passes, samples).noise(self.policy)

    def train(
        self, site: ClientContext, ask: Fit, stream: RandomStream, progress: float = 0.0
    ) -> FitResult:
        """Train a client by DP-SGD, as its method's request `ask` says.

        Before the training its privacy cost is written to the client's release log.

        Args:
            site: the client's context, with all its training samples.
            ask: the training: model, samples and options.
            stream: random numbers for the network, such as dropout.
            progress: fraction of the run's rounds that are done, for schedules.

        Returns:
            The trained parameters, with a loss of NaN, as the true loss is not protected.

        Raises:
            DpSgdBudgetSpent: the client has no budget left for this training.
            ConfigError: the training minimises a loss other than the task's.
        """
        if ask.objective is not None:
            raise unclipped("this turn")
        samples, noise = len(ask.data), self.noise(len(site.train))
        rate, steps = rate_of(ask.local, samples), steps_of(ask.local, samples)
        mark = _mark(ask, stream, progress, noise)
        self.spend(site.id, Release(mark, mark, noise, rate, steps), len(site.train))
        # The clip of each sample's gradient takes the place of the clip of a batch's gradient.
        ask = replace(ask, local=replace(ask.local, clip=0.0))
        secret, seed = self.secret.child(site.id, mark), stream.child("network").number()
        return answer_on(
            self.device, ask, lambda ask: self._train(ask, secret, noise, seed, progress)
        )

    def _train(
        self, ask: Fit, secret: NoiseKey, noise: float, seed: int, progress: float
    ) -> FitResult:
        """Train with this noise multiplier, and noise and batches from a secret key."""
        self.vector.copy_(ask.params.flat)
        seed_generators(self.device, seed)
        step, adjust = self._optimiser(ask, progress), self._adjuster(ask)
        self._mode(train=True)
        flat, views = self._buffer()
        steps = steps_of(ask.local, len(ask.data))
        with Clipper(self.module, self.policy.clip) as clipper:
            for at in range(steps):
                self._mean(ask, clipper, flat, secret.child(at), noise)
                step(adjust(views))
                if ask.trainable is not None:
                    ask.trainable.restore(self.vector, ask.params)
        params = ask.params.like(self.vector.clone())
        # The loss of raw samples has no noise: it is not told.
        metrics = {"loss": math.nan}
        if ask.score_on is not None:
            metrics["score"] = self.score(params, ask.score_on)
        return FitResult(
            params, self.task.weigh(ask.data), steps, self._optimizer_state(ask, steps), metrics
        )

    def _mean(
        self, ask: Fit, clipper: Clipper, flat: torch.Tensor, secret: NoiseKey, noise: float
    ) -> None:
        """Sample a batch, and write the private mean of its clipped gradients into `flat`."""
        samples = len(ask.data)
        rate = rate_of(ask.local, samples)
        rows = poisson(samples, rate, secret.child("batch").draws())
        if len(rows):
            batch = self.batch(ask.data, rows)
            into = dict(zip(self.layout.names, self._views(flat), strict=True))
            clipped_sum(clipper, self.task, batch, into)
        else:
            flat.zero_()
        draws = secret.child("noise").draws()
        noised(flat, noise * self.policy.clip, rate * samples, draws)

    def mean(self, site: ClientContext, ask: Mean) -> Tensor:
        """Return the private mean of one row of values per sample, `[columns]`.

        Rows are clipped to the norm `ask.bound`, and noise is added to their sum.

        Raises:
            DpSgdBudgetSpent: the client has no budget left for this mean.
        """
        samples = len(site.train)
        noise = training_schedule(self.passes, samples).mean_noise(self.policy)
        asked = f"mean {ask.bound!r} {noise!r}".encode()
        mark = digest(asked, ask.values.contiguous().numpy().tobytes())
        self.spend(site.id, Release(mark, mark, noise, 1.0, 1), samples)
        draws = self.secret.child(site.id, mark).child("noise").draws()
        # One row that is not finite would make the mean NaN, which would show that it is there.
        rows = ask.shortened()
        rows = rows.masked_fill(~rows.isfinite().all(1, keepdim=True), 0)
        return noised(rows.sum(0), noise * ask.bound, samples, draws)

    def _foreseen(self, entries: Sequence[Release], samples: int) -> bool:
        """Return whether all releases are part of the schedule from which the noise follows.

        Such releases stay within the budget without a call of the accountant, which takes a second.

        Args:
            entries: releases of one client.
            samples: number of the client's training samples.
        """
        whole, policy, steps, means = training_schedule(self.passes, samples), self.policy, 0, 0
        if policy.noise is not None:
            return False
        for entry in entries:
            if entry.noise >= whole.noise(policy) and entry.rate <= whole.rate:
                steps += entry.steps
            elif whole.means and entry.noise >= whole.mean_noise(policy):
                means += entry.steps
            else:
                return False
        return steps <= whole.steps and means <= whole.means

    def spend(self, client: str, entry: Release, samples: int) -> None:
        """Write a training or mean to the client's release log, if the budget allows it.

        A release that is in the log already is not written again.

        Args:
            client: name of the client.
            entry: the release.
            samples: number of the client's training samples.

        Raises:
            DpSgdBudgetSpent: the budget does not allow it.
        """
        # The log is the client's own file: a server that resets a run cannot reset the budget.
        book = ReleaseLog(self.folder / book_of(self.seed, client), own_mark=False)
        policy = self.policy
        if entry.mark in book:
            return
        if policy.epsilon is not None and not self._foreseen([*book.entries, entry], samples):
            after = book.with_(entry).epsilon(policy.delta)
            if not after <= policy.epsilon * (1 + 1e-9):
                raise DpSgdBudgetSpent(
                    f"budget: training again would make epsilon {after:.3g}, and "
                    f"{policy.epsilon:g} is allowed"
                )
        book.enter(entry)


def book_of(seed: int, client: str) -> str:
    """Return the file name of a client's release log."""
    return f"seed{seed}.client.{client}.csv"


def _mark(ask: Fit, stream: RandomStream, progress: float, noise: float) -> str:
    """Return the identifier of a training: a digest of its inputs, except the samples themselves.

    Noise follows from this identifier. Two different trainings must never get the same noise: a
    server could subtract their results, and the noise would cancel.
    """
    words = (stream.key, ask.local, progress, noise, len(ask.data))
    parts = [literal_text(words).encode(), ask.params.flat.numpy().tobytes()]
    if ask.anchor is not None:
        parts += [b"anchor", repr(ask.anchor[1]).encode(), ask.anchor[0].flat.numpy().tobytes()]
    if ask.correction is not None:
        parts += [b"correction", ask.correction.flat.numpy().tobytes()]
    if ask.trainable is not None:
        parts += [b"trainable", ask.trainable.packed().numpy().tobytes()]
    if ask.optimiser is not None:
        parts.append(repr(("optimiser", ask.optimiser.steps)).encode())
        for name, slot in sorted(ask.optimiser.slots.items()):
            parts += [name.encode(), slot.flat.numpy().tobytes()]
    return digest(*parts)
