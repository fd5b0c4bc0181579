"""SplitGuard in a run: false labels that a client sends, and evidence from the server's answers.

The batches of a round are divided into blocks of `every` batches; the remainder is part of the last
block. One batch of a block has false labels (the lie). The result of a block is written into the
client's own append-only log, so that evidence adds up over rounds. The server's answers in a block
are in a file next to the log, as another process may continue or repeat the client's work. If a
block stays unfinished, or if its answers change or have the wrong shape, the lie counts as not
found. A repeated block never counts in the server's favour: the client took no step with the answer
to the lie, and from this the server may know where the lie is.

Used by `engine.protections.split_guard` and `unlearning.data_footprint`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.core.files import write_whole
from vergence.core.messages import Reply
from vergence.core.params import Params
from vergence.core.serialization import digest
from vergence.privacy.dp.dp_sgd_solver import DpSgdBudgetSpent
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog, secret_in
from vergence.privacy.split.split_guard import (
    AGAIN,
    FOUND,
    NOT_FOUND,
    SplitGuardConfig,
    odd_one_out,
)

BLOCK = ".block"
"""Suffix of files with the server's answers in a block."""


class Accused(DpSgdBudgetSpent):
    """Raised if a client concludes that its server ignores labels; the client sends no more."""


class SplitGuardClient:
    """Lets the clients of one run check their server.

    Args:
        plan: options of the test.
        labels: names of the label columns that are falsified.
        state: folder of states, in which the secret key and the logs are stored.
        seed: seed of the run.
        tell: prints a line when a client's verdict changes.
    """

    def __init__(
        self,
        plan: SplitGuardConfig,
        labels: tuple[str, ...],
        state: Path,
        seed: int,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan, self.labels, self.seed, self.tell = plan, labels, seed, tell
        self.folder = state / FOLDER
        self.secret = secret_in(self.folder).child("split_guard", seed)

    def lies(self, client: str, round: int, number: int, of: int) -> bool:
        """Return whether a batch gets false labels.

        It is batch `number` (from 0) of the `of` batches that the client sends in this round.
        """
        start, size = self.plan.block(number, of)
        # From the client's secret: a server that knew the place would answer that batch honestly.
        place = self.secret.child(client, round, start // self.plan.every).draws().uniform(1)[0]
        return int(place * size) == number - start

    def leaving(self, client: str, round: int, number: int, of: int, answer: Reply) -> Reply:
        """Return what a client sends for a batch, with false labels if this batch is to get them.

        Args:
            client: name of the client.
            round: number of the round.
            number: number of the batch in the round, from 0.
            of: number of batches that the client sends in this round.
            answer: the message with true labels.
        """
        labels = answer.trees.get("labels")
        if labels is None or not {*self.labels} <= {*labels}:
            return answer
        if not self.lies(client, round, number, of):
            return answer
        draws = self.secret.child(client, round, number, "ways").draws()
        sent = dict(labels)
        for name in self.labels:
            column = sent[name]
            moved = self.plan.falsified(column.reshape(len(column), -1), draws)
            sent[name] = moved.reshape(column.shape)
        return replace(answer, trees={**answer.trees, "labels": Params.named(**sent)})

    def observe(self, client: str, round: int, number: int, of: int, gradient: Tensor) -> None:
        """Record the server's answer to a batch, and judge a block when it is complete.

        Args:
            client: name of the client.
            round: number of the round.
            number: number of the batch in the round, from 0.
            of: number of batches that the client sends in this round.
            gradient: the server's answer: gradient of the batch's smashed data, `[samples, ...]`.

        Raises:
            Accused: the client accuses the server, and the option `act` is `stop`.
        """
        book = ReleaseLog(self.folder / book_of(self.seed, client), own_mark=False)
        before = self.plan.read(entry.steps for entry in book.entries)[0]
        if not number:
            self._leave_behind(book, client, round)
        start, size = self.plan.block(number, of)
        path = self.folder / f"seed{self.seed}.guard.{client}.{round}-{start}{BLOCK}"
        known = path.read_bytes() if path.exists() else b""
        answer = gradient.detach().sum(0).flatten().float().numpy()
        data, at = answer.tobytes(), (number - start) * answer.nbytes
        if at > len(known) or not data:
            # Of another shape than the answers before it: an honest server never changes it.
            _enter(book, path, known + data, NOT_FOUND)
        elif known[at : at + len(data)] != data:
            # A second answer to the same batch: the server may have learned where the lie is.
            if at < len(known):
                _enter(book, path, known, NOT_FOUND)
            known = known[:at] + data
            write_whole(path, known)
        if data and at + len(data) == len(known) == size * len(data):
            block = torch.from_numpy(np.frombuffer(known, answer.dtype).copy()).view(size, -1)
            odd = self.lies(client, round, start + odd_one_out(block.double()), of)
            _enter(book, path, known, FOUND if odd else NOT_FOUND)
        verdict, blocks, ratio = self.plan.read(entry.steps for entry in book.entries)
        batches = blocks * self.plan.every
        accused = (
            f"accused: after {batches} batches the server's answers to false labels are like those "
            f"to true ones (likelihood ratio {ratio:.2g}, at most {self.plan.accused:g}): it may "
            "be rebuilding pictures instead of learning gaze"
        )
        if verdict != before:
            trusted = f"trusted: after {batches} batches, the server's answers depend on labels"
            self.tell(accused if verdict == "accused" else trusted)
        if verdict == "accused" and self.plan.act == "stop":
            raise Accused(accused)

    def _leave_behind(self, book: ReleaseLog, client: str, round: int) -> None:
        """Record the client's unfinished blocks of other rounds: the lie counts as not found."""
        for path in self.folder.glob(f"seed{self.seed}.guard.*{BLOCK}"):
            about = path.name.removeprefix(f"seed{self.seed}.guard.{client}.")
            if "." not in about.removesuffix(BLOCK) and not about.startswith(f"{round}-"):
                _enter(book, path, path.read_bytes(), NOT_FOUND)
                path.unlink()


def _enter(book: ReleaseLog, path: Path, answers: bytes, what: int) -> None:
    """Write the result of a block into a log; the same answers again change nothing.

    Args:
        book: the client's log.
        path: file with the server's answers in the block.
        answers: the answers.
        what: the result, `FOUND` or `NOT_FOUND`. `FOUND` becomes `AGAIN` for a repeated block.
    """
    draw = path.name.removesuffix(BLOCK).rpartition(".")[2]
    mark = f"{draw}.{digest(answers)[:16]}"
    again = any(entry.draw == draw for entry in book.entries)
    if mark not in book:
        book.enter(Release(draw, mark, 1.0, 1.0, AGAIN if again and what == FOUND else what))


def book_of(seed: int, client: str) -> str:
    """Return the file name of a client's log; a line's `steps` is the result of a block."""
    return f"seed{seed}.guard.{client}.csv"
