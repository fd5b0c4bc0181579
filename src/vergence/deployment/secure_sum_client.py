"""Client's side of secure sums, from its disk alone: every message may come to a new process.

`sum.row` is what it gives to the sum of its last turn, `sum.attempt` the secrets of an attempt
under way, `sum.spent` which contribution was opened in which sum; on shares, which row was given.
Nobody else may read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vergence.core.files import add_line, untorn, write_whole
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack, unpack_file
from vergence.core.tags import tagged
from vergence.engine.secure_sum_attempts import PartyIdentity, SumAnswer, SumRequest
from vergence.engine.secure_sums import SecureSum, SumQuestion
from vergence.engine.storage.checkpoint_validation import fits
from vergence.errors import StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.release_log import Release, ReleaseLog
from vergence.privacy.secure_aggregation.additive import Contributor
from vergence.privacy.secure_aggregation.additive_messages import Openings
from vergence.privacy.secure_aggregation.client_checkpoint import Pending, pending, resume
from vergence.privacy.secure_aggregation.packing import Words
from vergence.privacy.secure_aggregation.pairwise import STEPS, PairwiseClient
from vergence.privacy.secure_aggregation.pairwise_messages import PairwiseParams, RelayedShares
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout
from vergence.privacy.secure_aggregation.session import Invitation, UsedContributions, contribution


@tagged("Row")
@dataclass(frozen=True)
class StoredRow:
    """Contribution of a client to one sum: the turn it is of, what was asked, words."""

    stamp: str
    question: SumQuestion
    words: torch.Tensor


class SecureSumClient:
    """A client's part in the sums of one run; where it is `lasting`, it outlasts a blackout.

    Where people are hidden by noise (`user`), each contribution stands in the client's own `book`
    before it leaves: the server's could be forgotten.
    """

    def __init__(
        self,
        folder: Path,
        client: str,
        sums: SecureSum,
        identity: PartyIdentity,
        lasting: bool = False,
        book: ReleaseLog | None = None,
        user: UserLevelConfig | None = None,
    ) -> None:
        self.client, self.sums, self.identity, self.lasting = client, sums, identity, lasting
        self.book, self.user = book, user
        self.row, self.attempt = folder / "sum.row", folder / "sum.attempt"
        self.spent = UsedContributions(SecureSumFiles(folder / "sum.spent"))

    def keep(self, stamp: str, form: ReplyLayout, message: Message, words: Words) -> None:
        """Keep what is given to a sum, the reply to a message; an attempt under way is over."""
        self.attempt.unlink(missing_ok=True)
        tensor = torch.from_numpy(words.view("<i8"))
        row = StoredRow(stamp, SumQuestion.of(form, message), tensor)
        write_whole(self.row, pack(row), lasting=self.lasting, secret=True)

    def ask(self, form: ReplyLayout, message: Message, file: str | None) -> None:
        """Note what is asked in a sum, and of which state, before the turn is taken.

        Raises:
            Refused: something else was asked under the same name before.
        """
        question = SumQuestion.of(form, message)
        self.spent.ask(
            contribution(self.identity.run, question.request), question.about, file or ""
        )

    def gave(self, request: str) -> bool:
        """True if words were given to this sum of the run, or were about to be."""
        return self.spent.gave(contribution(self.identity.run, request))

    def _charge(self, question: SumQuestion) -> None:
        """Write down what a contribution spends of this person's budget, before it leaves."""
        level = self.sums.level
        if self.book is None or self.user is None or level is None or not question.words:
            return
        entry = Release(question.request.partition(".")[0], question.request, level.noise, 1.0, 1)
        self.book.charge(entry, self.user)

    def answer(self, stamp: str, facts: Mapping[str, Any], message: SumRequest) -> bytes:
        """Answer a message of an attempt at a sum of a turn's replies, once.

        Raises:
            StateError: it must not be answered, and why.
        """
        attempt, threshold = facts.get("attempt"), facts.get("threshold")
        if not fits(message, SumRequest) or type(attempt) is not int or type(threshold) is not int:
            raise StateError("this is no message of a secure sum")
        row = unpack_file(self.row, StoredRow) if self.row.exists() else None
        if not isinstance(row, StoredRow) or row.stamp != stamp:
            raise StateError(f"'{self.client}' has nothing to give to the sum of '{stamp}'")
        terms = self.sums.terms_of(
            row.question, self.identity.run, attempt, threshold, facts.get("cipher")
        )
        if isinstance(message, RelayedShares | Openings):
            self._charge(row.question)
        words = row.words.numpy().view("<u8")
        if isinstance(terms, PairwiseParams):
            return self._under_pads(terms, words, message)
        identity = self.identity
        assert identity.sign is not None
        client = Contributor(
            self.client, terms, words, identity.sign, identity.register, self.spent
        )
        answer: SumAnswer = client.answer(message)
        return pack(answer)

    def _under_pads(self, terms: PairwiseParams, words: Words, message: SumRequest) -> bytes:
        """Take the next step of an attempt."""
        identity = self.identity
        assert identity.sign is not None
        client = PairwiseClient(
            self.client, terms, words, identity.sign, identity.register, self.spent
        )
        if not isinstance(message, Invitation):
            if not self.attempt.exists():
                raise StateError("order: no attempt at a sum is under way")
            kept = unpack(self.attempt.read_bytes(), Pending)
            if kept.terms != terms:
                raise StateError("round: this is of another attempt, or on other terms")
            resume(client, kept)
        answer: SumAnswer = client.answer(message)
        kept = pending(client)
        if kept.step < len(STEPS):
            write_whole(self.attempt, pack(kept), lasting=self.lasting, secret=True)
        else:
            self.attempt.unlink(missing_ok=True)
        return pack(answer)


class SecureSumFiles(MutableMapping[str, str]):
    """Lines of a file: what, and a name. A name is on the disk when it is set."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _all(self) -> dict[str, str]:
        data = self.path.read_bytes() if self.path.exists() else b""
        lines = data[: untorn(data)].decode().splitlines()
        return {name: what for what, _, name in (line.partition(" ") for line in lines)}

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __setitem__(self, name: str, what: str) -> None:
        add_line(self.path, f"{what} {name}", secret=True)

    def __delitem__(self, name: str) -> None:
        raise NotImplementedError("what was given away stays so")

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
