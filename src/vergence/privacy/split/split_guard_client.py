"""SplitGuard in a run: false labels that a client sends, and evidence it gathers from answers.

Blocks lie within rounds: batch n of a round is in block n // every, and what is left over is part
of the last one. What a block showed is written into a book of the client's own, which only grows,
so that evidence adds up over rounds; a round's answers lie beside it, as a turn may be taken by
another process, or again. A block that is left unfinished, or whose answers change or do not fit,
is one where the lie was not found. Of a block that is heard again nothing counts in the server's
favour: the step left out in the first hearing may have told it where the lie is.
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
"""How names of files with a block's answers end."""


class Accused(DpSgdBudgetSpent):
    """A client holds that its server ignores labels, and takes no further turn."""


class SplitGuardClient:
    """Check of the server by the clients of one run.

    Args:
        plan: how often they lie.
        labels: the columns that are moved.
        state: the folder of states, where secret and books lie.
        seed: of the run.
        tell: is given a line where a verdict turns.
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
        """True if batch `number` of the `of` in a client's round has false labels."""
        start, size = self.plan.block(number, of)
        drawn = self.secret.child(client, round, start // self.plan.every).draws().uniform(1)[0]
        return int(drawn * size) == number - start

    def leaving(self, client: str, round: int, number: int, of: int, answer: Reply) -> Reply:
        """Reply of a client for a batch, as it leaves: with false labels, where it lies."""
        told = answer.trees.get("labels")
        if told is None or not {*self.labels} <= {*told}:
            return answer
        if not self.lies(client, round, number, of):
            return answer
        draws = self.secret.child(client, round, number, "ways").draws()
        sent = dict(told)
        for name in self.labels:
            column = sent[name]
            moved = self.plan.falsified(column.reshape(len(column), -1), draws)
            sent[name] = moved.reshape(column.shape)
        return replace(answer, trees={**answer.trees, "labels": Params.named(**sent)})

    def hear(self, client: str, round: int, number: int, of: int, gradient: Tensor) -> None:
        """Take the answer to a batch, `[samples, ...]`.

        Raises:
            Accused: the client stops.
        """
        book = ReleaseLog(self.folder / book_of(self.seed, client))
        before = self.plan.read(entry.steps for entry in book.entries)[0]
        if not number:
            self._leave_behind(book, client, round)
        start, size = self.plan.block(number, of)
        path = self.folder / f"seed{self.seed}.guard.{client}.{round}-{start}{BLOCK}"
        known = path.read_bytes() if path.exists() else b""
        answer = gradient.detach().sum(0).flatten().float().numpy()
        told, at = answer.tobytes(), (number - start) * answer.nbytes
        if at > len(known) or not told:  # of another shape than those before it
            _enter(book, path, known + told, NOT_FOUND)
        elif known[at : at + len(told)] != told:
            if at < len(known):
                _enter(book, path, known, NOT_FOUND)
            known = known[:at] + told
            write_whole(path, known)
        if told and at + len(told) == len(known) == size * len(told):
            block = torch.from_numpy(np.frombuffer(known, answer.dtype).copy()).view(size, -1)
            odd = self.lies(client, round, start + odd_one_out(block.double()), of)
            _enter(book, path, known, FOUND if odd else NOT_FOUND)
        verdict, heard, ratio = self.plan.read(entry.steps for entry in book.entries)
        batches = heard * self.plan.every
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
        """Judge what other rounds left unfinished."""
        for path in self.folder.glob(f"seed{self.seed}.guard.*{BLOCK}"):
            about = path.name.removeprefix(f"seed{self.seed}.guard.{client}.")
            if "." not in about.removesuffix(BLOCK) and not about.startswith(f"{round}-"):
                _enter(book, path, path.read_bytes(), NOT_FOUND)
                path.unlink()


def _enter(book: ReleaseLog, path: Path, answers: bytes, what: int) -> None:
    """Write down what a hearing of a block showed; the same hearing again is none."""
    draw = path.name.removesuffix(BLOCK).rpartition(".")[2]
    mark = f"{draw}.{digest(answers)[:16]}"
    again = any(entry.draw == draw for entry in book.entries)
    if mark not in book:
        book.enter(Release(draw, mark, 1.0, 1.0, AGAIN if again and what == FOUND else what))


def book_of(seed: int, client: str) -> str:
    """Name of a client's log; `steps` is what a block showed, as in `SplitGuardConfig`."""
    return f"seed{seed}.guard.{client}.csv"
