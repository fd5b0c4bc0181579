"""Secure sums held in one process, for tests: who answers, and what everybody saw."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np

from vergence.privacy.secure_aggregation.additive import Aggregator, Contributor
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.pairwise import PairwiseClient, PairwiseServer, converse
from vergence.privacy.secure_aggregation.pairwise_messages import PairwiseParams
from vergence.privacy.secure_aggregation.relay import Coordinator
from vergence.privacy.secure_aggregation.session import UsedContributions, signing_pair

STEPS = ("Advert", "Shares", "Masked", "Agreed", "Unmask")


@cache
def ends(name: str) -> tuple:  # noqa: ARG001 - remembered by name
    """Return somebody's long-lived key, the same for all tests of a process."""
    return signing_pair()


def register(names: Collection[str]) -> dict:
    return {name: ends(name)[1] for name in names}


def people(n: int) -> list[str]:
    return [f"p{i:02d}" for i in range(n)]


def random_words(n: int) -> np.ndarray:
    return np.frombuffer(os.urandom(8 * n), np.uint64)


def pairwise(n: int, words: int = 3, threshold: int | None = None, **more: Any) -> PairwiseParams:
    given = {"run": "run", "request": "0.1", "attempt": 0, **more}
    given["threshold"] = threshold or 2 * n // 3 + 1
    return PairwiseParams(words=words, **given)


def clients(terms: PairwiseParams, given: Mapping[str, np.ndarray], spent: Any = None) -> dict:
    known = register(given)
    return {
        name: PairwiseClient(
            name, terms, words, ends(name)[0], known, (spent or {}).get(name, UsedContributions())
        )
        for name, words in given.items()
    }


class Talk:
    """Drives a conversation; `seen` is all that came to the server."""

    def __init__(self, talk: Any, ends_: Mapping[str, Any]) -> None:
        self.talk, self.ends, self.seen, self.step = talk, ends_, [], 0
        self.asked = next(talk)

    def answers(self, silent: Collection[str] = ()) -> dict[str, Any]:
        asked = self.asked.items()
        return {name: self.ends[name].answer(m) for name, m in asked if name not in silent}

    def send(self, answers: Mapping[str, Any]) -> Any:
        """Return the sum if this was the last step."""
        self.seen += answers.values()
        self.step += 1
        try:
            self.asked = self.talk.send(answers)
        except StopIteration as end:
            return end.value
        return None

    def until(self, step: int) -> Any:
        """Everybody answers until so many steps are done."""
        while self.step < step:
            self.send(self.answers())
        return self

    def rest(
        self,
        gone: Callable[[int], Collection[str]] | None = None,
    ) -> Any:
        """Go on to the end; `gone` says who is silent from which step on."""
        silent: set[str] = set()
        while True:
            silent |= set(gone(self.step) if gone else ())
            found = self.send(self.answers(silent))
            if found is not None:
                return found


def under_pads(terms: PairwiseParams, given: Mapping[str, np.ndarray], **more: Any) -> Talk:
    return Talk(converse(PairwiseServer(terms, register(given))), clients(terms, given, **more))


def shared(words: int, many: int = 2, **more: Any) -> AdditiveParams:
    given = {"run": "run", "request": "0.1", "attempt": 0, "threshold": 3, **more}
    names = tuple(f"agg{i}" for i in range(many))
    if given.get("gated"):
        given.setdefault("dealer", "server" if many == 2 else names[-1])
    return AdditiveParams(words=words, aggregators=names, **given)


def on_shares(terms: AdditiveParams, given: Mapping[str, np.ndarray], spent: Any = None) -> Talk:
    known = register([*given, *terms.aggregators, "server"])
    all_ = {
        n: Contributor(n, terms, w, ends(n)[0], known, UsedContributions())
        for n, w in given.items()
    }
    all_ |= {
        n: Aggregator(n, terms, ends(n)[0], known, (spent or {}).get(n, UsedContributions()))
        for n in terms.aggregators
    }
    coordinator = Coordinator(terms, tuple(given), known, ends("server")[0])
    talk = Talk(coordinator.converse(), all_)
    talk.coordinator = coordinator
    return talk


def plain_sum(given: Mapping[str, np.ndarray], names: Collection[str]) -> np.ndarray:
    return np.sum([given[name] for name in names], axis=0, dtype=np.uint64)


def bytes_in(message: Any) -> bytes:
    """Return all bytes that a message holds."""
    if isinstance(message, bytes):
        return message
    if isinstance(message, Mapping):
        return b"".join(bytes_in(value) for value in message.values())
    if isinstance(message, tuple):
        return b"".join(bytes_in(value) for value in message)
    if hasattr(message, "__dataclass_fields__"):
        return b"".join(bytes_in(getattr(message, f.name)) for f in fields(message))
    return b""
