"""A solver that trains by DP-SGD, and keeps a book of what every client has spent."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vergence.core.fitting import Compute, Fit, Fitted, Local, Solver
from vergence.core.objective import each
from vergence.core.site import Site
from vergence.core.state import digest
from vergence.core.stream import Stream
from vergence.core.task import Task
from vergence.errors import ConfigError, StateError
from vergence.privacy.accounting import Charge
from vergence.privacy.book import FOLDER, Book, Entry, secret_in
from vergence.privacy.dp_sgd import noised, poisson
from vergence.privacy.keyed import Secret
from vergence.privacy.per_sample import Clipper
from vergence.privacy.policy import DpSgd


class Spent(StateError):
    """A client's budget does not allow another training: it takes no further turn."""


@dataclass(frozen=True)
class Lesson:
    """A training that a run asks of every client: how, on which share of its samples, how often."""

    local: Local
    share: float
    times: int


def uncovered(verb: str, ask: Any) -> ConfigError:
    """Return the refusal of a turn that uses training samples in another way than training."""
    what = f"the {ask.want} of" if isinstance(ask, Compute) else "single batches of"
    return ConfigError(
        f"privacy.solver protects what training gives, and '{verb}' of this method also uses "
        f"{what} training samples; use another method"
    )


def unclipped(what: str) -> ConfigError:
    """Return the refusal of a training that minimises another loss than the task's."""
    return ConfigError(
        f"privacy.solver clips the gradients of the task's loss, and {what} minimises another; use "
        "another method"
    )


def taken(local: Local, samples: int) -> int:
    """Return how many steps a training takes: as many as without privacy."""
    return local.steps or local.epochs * math.ceil(samples / local.batch)


def rate_of(local: Local, samples: int) -> float:
    """Return the chance of a sample to be in a batch."""
    return min(1.0, local.batch / samples)


def course(lessons: Sequence[Lesson], samples: int) -> Charge:
    """Return all steps of a run for a client with so many samples, with noise 1.

    Where trainings differ in their rate, all of it is counted at the highest.
    """
    sizes = [max(1, round(lesson.share * samples)) for lesson in lessons]
    pairs = list(zip(lessons, sizes, strict=True))
    rate = max((rate_of(lesson.local, size) for lesson, size in pairs), default=1.0)
    return Charge(1.0, rate, sum(lesson.times * taken(lesson.local, n) for lesson, n in pairs))


@functools.cache
def _multiplier(policy: DpSgd, rate: float, steps: int) -> float:
    return policy.multiplier(rate, steps)


class DpSolver(Solver):
    """Trains one client after another by DP-SGD, in single precision.

    Args:
        task: what is learned.
        policy: clip, and noise or a budget.
        state: the folder of states, where secret and books lie.
        seed: of the run.
        lessons: the trainings that a run asks of every client: a budget is spread over them.
    """

    def __init__(
        self, task: Task, policy: DpSgd, state: Path, seed: int, lessons: Sequence[Lesson]
    ) -> None:
        super().__init__(task)
        self.policy, self.folder, self.seed = policy, state / FOLDER, seed
        self.lessons = tuple(lessons)
        self.secret = secret_in(self.folder).child("dp_sgd", seed)

    def noise(self, samples: int) -> float:
        """Return the noise of a client with so many samples, as a multiple of `clip`."""
        whole = course(self.lessons, samples)
        return _multiplier(self.policy, whole.rate, whole.steps)

    def train(self, site: Site, ask: Fit, stream: Stream, progress: float = 0.0) -> Fitted:
        """Answer a `Fit` of a client's turn.

        Raises:
            Spent: the client has no budget left for it.
            ConfigError: it minimises another loss than the task's.
        """
        if ask.objective is not None:
            raise unclipped("this turn")
        samples, noise = len(ask.data), self.noise(len(site.train))
        rate, steps = rate_of(ask.local, samples), taken(ask.local, samples)
        mark = _mark(ask, stream, progress, noise)
        self._spend(site.id, Entry(mark, mark, noise, rate, steps), len(site.train))
        ask = replace(ask, local=replace(ask.local, clip=0.0))
        self.vector.copy_(ask.params.flat)
        torch.default_generator.manual_seed(stream.child("network").number())
        step, adjust = self._optimiser(ask, progress), self._adjuster(ask)
        self._mode(train=True)
        secret = self.secret.child(site.id, mark)
        flat, views = self._buffer()
        with Clipper(self.module, self.policy.clip) as clipper:
            for at in range(steps):
                self._mean(ask, clipper, flat, secret.child(at), noise)
                step(adjust(views))
                if ask.trainable is not None:
                    ask.trainable.restore(self.vector, ask.params)
        params = ask.params.like(self.vector.clone())
        metrics = {"loss": math.nan}  # nothing hides it
        if ask.score_on is not None:
            metrics["score"] = self.score(params, ask.score_on)
        return Fitted(params, self.task.weigh(ask.data), steps, self._kept(ask, steps), metrics)

    def _mean(
        self, ask: Fit, clipper: Clipper, flat: torch.Tensor, secret: Secret, noise: float
    ) -> None:
        """Write the private mean of a batch's clipped gradients into `flat`."""
        samples = len(ask.data)
        rate = rate_of(ask.local, samples)
        rows = poisson(samples, rate, secret.child("batch").draws())
        if len(rows):
            batch = ask.data.take(rows)
            output = self.task.forward(self.module, batch)
            into = dict(zip(self.layout.names, self._views(flat), strict=True))
            clipper.gradients(each(self.task, output, batch), into)
        else:
            flat.zero_()
        draws = secret.child("noise").draws()
        noised(flat, noise * self.policy.clip, rate * samples, draws)

    def _foreseen(self, entries: Sequence[Entry], samples: int) -> bool:
        """Tell whether trainings are among those over which the budget was spread.

        Then they are within it, and the accountant, who takes a second, need not say so.
        """
        whole, noise = course(self.lessons, samples), self.noise(samples)
        alike = all(entry.noise >= noise and entry.rate <= whole.rate for entry in entries)
        steps = sum(entry.steps for entry in entries)
        return self.policy.noise is None and alike and steps <= whole.steps

    def _spend(self, client: str, entry: Entry, samples: int) -> None:
        """Write a training into the client's book, if its budget allows it."""
        book, policy = Book(self.folder / book_of(self.seed, client)), self.policy
        if entry.mark in book:
            return
        if policy.epsilon is not None and not self._foreseen([*book.entries, entry], samples):
            after = book.with_(entry).epsilon(policy.delta)
            if after > policy.epsilon * (1 + 1e-9):
                raise Spent(
                    f"budget: training again would make epsilon {after:.3g}, and "
                    f"{policy.epsilon:g} is allowed"
                )
        book.enter(entry)


def book_of(seed: int, client: str) -> str:
    """Return the name of a client's book."""
    return f"seed{seed}.client.{client}.csv"


def _mark(ask: Fit, stream: Stream, progress: float, noise: float) -> str:
    """Return what a training is known by: all that it depends on but the data.

    Another training must not get the same noise, whoever asks for it.
    """
    words = (stream.key, ask.local, progress, noise, len(ask.data))
    parts = [repr(words).encode(), ask.params.flat.numpy().tobytes()]
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
