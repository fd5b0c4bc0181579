"""A client's part in secure sums, from its disk alone: every message may come to a new process.

`sum.row` is what it gives to the sum of its last turn, `sum.attempt` the secrets of an attempt
under way, `sum.spent` which contribution was opened in which sum; on shares, which row was given.
Nobody else may read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vergence.core.disk import write_whole
from vergence.core.state import digest, pack, unpack, unpack_file
from vergence.core.wire import Message
from vergence.engines.manifest import fits
from vergence.engines.sum_talks import Answered, Asked, Voice
from vergence.engines.sums import Sums, about_of, gate_of, request_of
from vergence.errors import StateError
from vergence.privacy.additive_sharing import Contributor
from vergence.privacy.form import Form
from vergence.privacy.pending import Pending, pending, resume
from vergence.privacy.ring import Words
from vergence.privacy.secure_aggregation import STEPS, Client
from vergence.privacy.terms import Invitation, Spent


@dataclass(frozen=True)
class Row:
    """What a client gives to one sum: the turn it is of, what was asked (`about_of`), words.

    `gate` as of `gate_of`.
    """

    stamp: str
    request: str
    about: bytes
    gate: tuple[int, int]
    words: torch.Tensor


class Giving:
    """A client's part in the sums of one run."""

    def __init__(self, folder: Path, client: str, sums: Sums, voice: Voice) -> None:
        self.client, self.sums, self.voice = client, sums, voice
        self.row, self.attempt = folder / "sum.row", folder / "sum.attempt"
        self.spent = Spent(OnDisk(folder / "sum.spent"))

    def keep(self, stamp: str, form: Form, message: Message, words: Words) -> None:
        """Keep what is given to a sum, the reply to a message; an attempt under way is over."""
        self.attempt.unlink(missing_ok=True)
        tensor = torch.from_numpy(words.view("<i8"))
        asked = request_of(form, message), about_of(form, message), gate_of(form)
        row = Row(stamp, *asked, tensor)
        write_whole(self.row, pack(row), secret=True)

    def answer(self, stamp: str, facts: Mapping[str, Any], message: Asked) -> bytes:
        """Answer a message of an attempt at a sum of a turn's replies, once.

        Raises:
            StateError: it must not be answered, and why.
        """
        attempt, threshold = facts.get("attempt"), facts.get("threshold")
        if not fits(message, Asked) or type(attempt) is not int:
            raise StateError("this is no message of a secure sum")
        row = unpack_file(self.row, Row) if self.row.exists() else None
        if not isinstance(row, Row) or row.stamp != stamp:
            raise StateError(f"'{self.client}' has nothing to give to the sum of '{stamp}'")
        if self.sums.policy.name == "additive":
            return self._on_shares(row, attempt, message)
        if type(threshold) is not int or threshold < 1:
            raise StateError("this is no message of a sum under pads")
        return self._under_pads(row, attempt, threshold, message)

    def _on_shares(self, row: Row, attempt: int, message: Asked) -> bytes:
        """Split what is given; one row for one question, whatever the attempt."""
        words, voice = row.words.numpy().view("<u8"), self.voice
        terms = self.sums.on_shares(
            voice.run, row.request, attempt, len(words), row.about, row.gate
        )
        assert voice.sign is not None
        client = Contributor(self.client, terms, words, voice.sign, voice.register)
        answer: Answered = client.answer(message)
        self.spent.spend(terms.contribution, digest(row.about, words.tobytes()))
        return pack(answer)

    def _under_pads(self, row: Row, attempt: int, threshold: int, message: Asked) -> bytes:
        """Take the next step; that a threshold is high enough is checked where it counts."""
        words, voice = row.words.numpy().view("<u8"), self.voice
        terms = self.sums.under_pads(
            voice.run, row.request, attempt, threshold, len(words), row.about
        )
        assert voice.sign is not None
        client = Client(self.client, terms, words, voice.sign, voice.register, self.spent)
        if not isinstance(message, Invitation):
            kept = self._pending()
            if kept.terms != terms:
                raise StateError("round: this is of another attempt, or on other terms")
            resume(client, kept)
        answer: Answered = client.answer(message)
        kept = pending(client)
        if kept.step < len(STEPS):
            write_whole(self.attempt, pack(kept), secret=True)
        else:
            self.attempt.unlink(missing_ok=True)
        return pack(answer)

    def _pending(self) -> Pending:
        if not self.attempt.exists():
            raise StateError("order: no attempt at a sum is under way")
        return unpack(self.attempt.read_bytes(), Pending)


class OnDisk(MutableMapping[str, str]):
    """Lines of a file: what, and a name. A name is on the disk when it is set."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _all(self) -> dict[str, str]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {name: what for what, _, name in (line.partition(" ") for line in lines)}

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __setitem__(self, name: str, what: str) -> None:
        fresh = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fresh, "a") as file:
            file.write(f"{what} {name}\n")
            file.flush()
            os.fsync(file.fileno())

    def __delitem__(self, name: str) -> None:
        raise NotImplementedError("what was given away stays so")

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
