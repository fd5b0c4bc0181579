"""Client's side of secure sums. All state is on disk: each message may come to a new process.

A row is the client's contribution to one sum: its reply as a vector of 64-bit integers. `sum.row`
holds the row of the client's last turn (its work on one message). `sum.attempt` holds the secrets
of the running attempt at a sum. `sum.spent` lists the client's contributions to opened sums, each
with its sum; in sums on shares, also the row that was contributed. Nobody else may read these
files.

Used by `deployment.client_node` and `deployment.secure_sum_aggregator`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vergence.core.files import add_line, complete_length, parse_json, write_whole
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack, unpack_file
from vergence.core.tags import tagged
from vergence.engine.secure_sum_attempts import PartyIdentity, SumAnswer, SumRequest
from vergence.engine.secure_sums import SecureSum, SumQuestion
from vergence.engine.storage.checkpoint_validation import fits
from vergence.errors import StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.folder_marks import FolderMark
from vergence.privacy.release_log import ANEW, Release, ReleaseLog
from vergence.privacy.secure_aggregation.additive import Contributor
from vergence.privacy.secure_aggregation.additive_messages import Openings
from vergence.privacy.secure_aggregation.client_checkpoint import Pending, pending, resume
from vergence.privacy.secure_aggregation.packing import Words
from vergence.privacy.secure_aggregation.pairwise import PairwiseClient
from vergence.privacy.secure_aggregation.pairwise_messages import PairwiseParams, RelayedShares
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout
from vergence.privacy.secure_aggregation.session import (
    NO_BOOKS,
    QUESTION,
    BookState,
    Invitation,
    Refused,
    SessionParams,
    UsedContributions,
    contribution,
)


@tagged("Row")
@dataclass(frozen=True)
class StoredRow:
    """A client's contribution to one secure sum.

    Attributes:
        stamp: name of the client's turn (work on one message) in the run.
        question: the sum to which the contribution belongs.
        words: the client's reply as a vector of 64-bit integers.
    """

    stamp: str
    question: SumQuestion
    words: torch.Tensor


class SecureSumClient:
    """A client's part in the secure sums of one run.

    Args:
        folder: folder for the files `sum.row`, `sum.attempt` and `sum.spent`.
        client: the client's name.
        sums: the rules of the experiment's secure sums.
        identity: the client's signing key, and the public keys that it trusts.
        lasting: whether files are written so that they survive a power cut.
        book: the client's own log of its privacy budget, in runs in which noise hides people
            (`privacy.user`). An entry is written before a contribution leaves the client, because a
            server could lose its own log. None: no log.
        user: the settings of this noise; None: no noise.
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
        self.spent = MarkedContributions(folder, identity.mark)

    def store_row(self, stamp: str, form: ReplyLayout, message: Message, words: Words) -> None:
        """Store the client's contribution to the sum of the replies to a message.

        A running attempt at an older sum ends.
        """
        # Secrets of an attempt on an older row must not be used with this row.
        self.attempt.unlink(missing_ok=True)
        tensor = torch.from_numpy(words.view("<i8"))
        row = StoredRow(stamp, SumQuestion.of(form, message), tensor)
        write_whole(self.row, pack(row), lasting=self.lasting, secret=True)

    def record_question(self, form: ReplyLayout, message: Message, file: str | None) -> None:
        """Record which message a sum is about, and from which state file the client starts.

        The client node calls this before it handles the message.

        Raises:
            Refused: another message was recorded under the same sum's name before.
        """
        # Two questions under one name would give a server two rows of one person, and with the
        # others' rows alike, the difference of the two sums is that person's.
        question = SumQuestion.of(form, message)
        self.spent.ask(
            contribution(self.identity.run, question.request), question.about, file or ""
        )

    def has_contributed(self, request: str) -> bool:
        """Return whether this client's reply is, or may be, part of the sum `request`."""
        return self.spent.gave(contribution(self.identity.run, request))

    def _charge(self, question: SumQuestion) -> None:
        """Record what a contribution costs of this person's privacy budget, before it is sent."""
        level = self.sums.level
        if self.book is None or self.user is None or level is None or not question.words:
            return
        entry = Release(question.request.partition(".")[0], question.request, level.noise, 1.0, 1)
        self.book.charge(entry, self.user)

    def answer(self, stamp: str, facts: Mapping[str, Any], message: SumRequest) -> bytes:
        """Answer a message of an attempt at a sum; each message is answered only once.

        Args:
            stamp: name of this client's turn (work on one message); the turn's reply goes into the
                sum.
            facts: number and settings of the attempt.
            message: the protocol message.

        Raises:
            StateError: the message must not be answered; the text says why.
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
        # From these messages on the words can be opened. Charged later, a process that is killed in
        # between would spend budget that stands nowhere.
        if isinstance(message, RelayedShares | Openings):
            self._charge(row.question)
        words, identity = row.words.numpy().view("<u8"), self.identity
        assert identity.sign is not None
        rest = (words, identity.sign, identity.register, self.spent)
        if isinstance(terms, PairwiseParams):
            return self._pairwise_step(PairwiseClient(self.client, terms, *rest), message)
        return pack(Contributor(self.client, terms, *rest).answer(message))

    def _pairwise_step(self, client: PairwiseClient, message: SumRequest) -> bytes:
        """Take the next step of an attempt at a sum with pairwise masks; return the answer."""
        if not isinstance(message, Invitation):
            if not self.attempt.exists():
                raise StateError("order: no attempt at a sum is under way")
            before = unpack(self.attempt.read_bytes(), Pending)
            # The secrets were made for these terms: used on others, a server could mix the messages
            # of two attempts and take the masks off a row.
            if before.terms != client.terms:
                raise StateError("round: this is of another attempt, or on other terms")
            resume(client, before)
        answer: SumAnswer = client.answer(message)
        after = pending(client)
        if client.steps:
            write_whole(self.attempt, pack(after), lasting=self.lasting, secret=True)
        else:
            self.attempt.unlink(missing_ok=True)
        return pack(answer)


class MarkedContributions(UsedContributions):
    """Record of contributions on disk, with what is remembered of the books of other clients.

    The file `sum.peers` holds for every other client, by run: the last round that it was asked for,
    the number of its entries, and for each request of that round the head of its chain.

    Args:
        folder: folder for the files.
        mark: mark of this party's folder; None: it says nothing of its own books.
    """

    def __init__(self, folder: Path, mark: FolderMark | None) -> None:
        super().__init__(SecureSumFiles(folder / "sum.spent"))
        self.folder, self.mark, self.peers = folder, mark, folder / "sum.peers"

    def books(self, contribution: str) -> BookState:
        """Return how far this record is, for a contribution whose question was recorded."""
        if self.mark is None:
            return NO_BOOKS
        return self.mark.books_at(self.folder, QUESTION.format(contribution))

    def _known(self) -> dict[str, dict[str, Any]]:
        return parse_json(self.peers.read_bytes()) if self.peers.exists() else {}

    def compare(self, terms: SessionParams, peers: Mapping[str, BookState]) -> None:
        """Compare the books of other clients, by name, with what was remembered of them.

        Raises:
            Refused: the folder of one of them was put back from a copy.
        """
        known = self._known().get(terms.run, {})
        for name, (last, count, head) in peers.items():
            round, entries, heads = known.get(name, (-1, 0, {}))
            shorter = last < round or count < entries
            # Another history before the same question: the reply may be another one, and the
            # difference of the two sums is this person's.
            if shorter or heads.get(terms.request, head.hex()) != head.hex():
                raise Refused(
                    f"books: the folder of '{name}' went back to a copy: it was in round {round} "
                    f"with {entries} entries, and says {last} and {count}; go on without '{name}' "
                    "(`vergence deploy revoke`), or start a new run"
                )

    def refuse_older(self, terms: SessionParams, peers: Mapping[str, BookState]) -> None:
        """Refuse a round that is over for others, and of which this record has no contribution.

        Raises:
            Refused: another client was asked for a later round.
        """
        round = round_of(terms)
        newer = [name for name, (last, *_) in peers.items() if last > round]
        if newer and not self.gave(terms.contribution):
            raise Refused(
                f"books: round {round} is asked for, and is over: '{newer[0]}' was asked for round "
                f"{peers[newer[0]][0]}; if this folder was put back from a copy, start a new run"
            )

    def remember(self, terms: SessionParams, peers: Mapping[str, BookState]) -> None:
        """Remember the books of the clients in a sum before this party helps to open it."""
        table, round = self._known(), round_of(terms)
        known = table.setdefault(terms.run, {})
        for name, (last, count, head) in peers.items():
            before, _, heads = known.get(name, (-1, 0, {}))
            # A sum of an earlier round that is repeated tells nothing new.
            if last == round:
                others = heads if before == last else {}
                known[name] = (last, count, {**others, terms.request: head.hex()})
        write_whole(self.peers, json.dumps(table).encode(), lasting=True, secret=True)


def round_of(terms: SessionParams) -> int:
    """Return the round of a sum, with which the name of its request begins."""
    return int(terms.request.partition(".")[0])


class SecureSumFiles(MutableMapping[str, str]):
    """Mapping stored as lines of a file; an item is on the disk as soon as it is set."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _all(self) -> dict[str, str]:
        data = self.path.read_bytes() if self.path.exists() else b""
        try:
            lines = data[: complete_length(data)].decode().splitlines()
            return {name: what for what, name in (line.split(" ", 1) for line in lines)}
        except ValueError:
            raise StateError(
                f"{self.path} is damaged: what was given to sums is not known; {ANEW}"
            ) from None

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
