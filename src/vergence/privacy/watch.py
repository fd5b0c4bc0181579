"""SplitGuard in a run: what a client sends in the place of labels, and what it makes of answers.

Blocks lie within rounds: batch n of a round is in block n // every. What a finished block showed is
written into a book of the client's own, which only grows, so that evidence adds up over rounds; the
answers of a block that is not finished lie beside it, as a turn may be taken by another process.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.core.params import Params
from vergence.core.wire import Reply
from vergence.privacy.book import FOLDER, Book, Entry, secret_in
from vergence.privacy.dp_solver import Spent
from vergence.privacy.split_guard import odd_one_out
from vergence.privacy.watching import FOUND, NOT_FOUND, Watching


class Accused(Spent):
    """A client holds that its server ignores labels, and takes no further turn."""


class Watch:
    """What one run's clients make of their server.

    Args:
        plan: how often they lie.
        labels: the columns that are moved.
        state: the folder of states, where secret and books lie.
        seed: of the run.
    """

    def __init__(self, plan: Watching, labels: tuple[str, ...], state: Path, seed: int) -> None:
        self.plan, self.labels, self.seed = plan, labels, seed
        self.folder = state / FOLDER
        self.secret = secret_in(self.folder).child("split_guard", seed)

    def lies(self, client: str, round: int, number: int) -> bool:
        """Tell whether batch `number` of a client's round has false labels."""
        block, place = divmod(number, self.plan.every)
        drawn = self.secret.child(client, round, block).draws().uniform(1)[0]
        return int(drawn * self.plan.every) == place

    def leaving(self, client: str, round: int, number: int, answer: Reply) -> Reply:
        """Return what leaves a client with a batch: false labels, where it lies."""
        told = answer.trees.get("labels")
        if told is None or not {*self.labels} <= {*told} or not self.lies(client, round, number):
            return answer
        draws = self.secret.child(client, round, number, "ways").draws()
        sent = dict(told)
        for name in self.labels:
            column = sent[name]
            moved = self.plan.falsified(column.reshape(len(column), -1), draws)
            sent[name] = moved.reshape(column.shape)
        return replace(answer, trees={**answer.trees, "labels": Params.named(**sent)})

    def hear(self, client: str, round: int, number: int, gradient: Tensor) -> None:
        """Take the answer to a batch, `[samples, ...]`.

        Raises:
            Accused: the client stops.
        """
        start, place = number - number % self.plan.every, number % self.plan.every
        path = self.folder / f"seed{self.seed}.guard.{client}.block"
        answer = gradient.detach().sum(0).flatten().float().numpy()
        with path.open("r+b" if place and path.exists() else "wb") as file:
            file.seek(place * answer.nbytes)
            file.write(answer.tobytes())
        if place + 1 < self.plan.every:
            return
        block = torch.from_numpy(np.fromfile(path, answer.dtype)).view(self.plan.every, -1)
        odd = self.lies(client, round, start + odd_one_out(block.double()))
        book = Book(self.folder / book_of(self.seed, client))
        mark = f"{round}.{start}"
        if mark not in book:
            book.enter(Entry(mark, mark, 1.0, 1.0, FOUND if odd else NOT_FOUND))
        verdict, heard, ratio = self.plan.read(entry.steps for entry in book.entries)
        if verdict == "accused" and self.plan.act == "stop":
            raise Accused(
                f"accused: after {heard * self.plan.every} batches the server's answers to false "
                f"labels are like those to true ones (likelihood ratio {ratio:.2g}, at most "
                f"{self.plan.accused:g}): it may be rebuilding pictures instead of learning gaze"
            )


def book_of(seed: int, client: str) -> str:
    """Return the name of a client's book; `steps` is 1 where a lie was the odd one out."""
    return f"seed{seed}.guard.{client}.csv"
