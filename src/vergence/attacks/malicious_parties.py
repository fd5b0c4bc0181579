"""Malicious parties of split learning: a server that reads and alters messages, lying clients.

A conversation of split learning is followed from inside, message by message, in whatever engine
holds it. So attacks meet the methods as they are, and see what the method's server sees.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, NoReplyCounted
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.requests import Request, Requests
from vergence.methods.split.base import BatchwiseSplit, closed, opened

T = TypeVar("T")
M = TypeVar("M", bound=Method)
Change = Callable[[Any, Any], Any]
"""From what a conversation asked and was answered to the answer it gets in its place."""
Told = Callable[[ClientContext, str, Reply], None]
"""What is done with a client's place, the verb it was asked with, and its reply."""
Lie = Callable[[Tensor, torch.Generator], Tensor]
"""From honest smashed data `[samples, ...]` to what a liar sends."""


def tapped(talk: Conversation[T], change: Change) -> Conversation[T]:
    """Hold a conversation in which `change` sees every answer, and may put another in its place."""
    try:
        asked = next(talk)
        while True:
            try:
                answer = yield asked
            except NoReplyCounted as gone:
                asked = talk.throw(gone)
            else:
                asked = talk.send(change(asked, answer))
    except StopIteration as end:
        return end.value


def watched(method: M, follow: Callable[[Sequence[ClientId], Mapping[str, Params]], Change]) -> M:
    """Return the method with a server that follows every session.

    Args:
        method: of split learning, whose server serves clients batch by batch.
        follow: called with a session's clients and what the server's copy holds; returns what to
            do with every question and answer of it.
    """
    kind = type(method)

    class Watched(kind):
        def serve(
            self, clients: Sequence[ClientId], held: Mapping[str, Params]
        ) -> Conversation[Reply]:
            return tapped(super().serve(clients, held), follow(clients, held))

    return _as(Watched, method)


def overheard(method: M, told: Told, answered: Change) -> M:
    """Return the method with clients and a server whose messages are recorded, and not changed.

    Args:
        method: any; what is said is as without.
        told: called with every reply of a turn, before anything hides it.
        answered: called with what a round asked and was answered, which is what its server learned;
            what it returns takes the answer's place.
    """
    kind = type(method)

    def hearing(verb: str) -> Callable[..., Conversation[tuple[Any, Reply]]]:
        def on(
            _: Any, c: Any, msg: Message, site: ClientContext
        ) -> Conversation[tuple[Any, Reply]]:
            end = getattr(method, f"on_{verb}")(c, msg, site)
            c, said = (yield from end) if isinstance(end, Generator) else end
            told(site, verb, said)
            return c, said

        return on

    def round(self: Any, s: Any, cohort: Sequence[ClientId]) -> Conversation[Any]:
        return tapped(kind.round(self, s, cohort), answered)

    own = {f"on_{verb}": hearing(verb) for verb in method.exposure}
    return _as(type(kind.__name__, (kind,), {**own, "round": round}), method)


def lying(
    method: BatchwiseSplit[Any, Any], liars: Collection[str], lie: Lie
) -> BatchwiseSplit[Any, Any]:
    """Return the method with clients that change the smashed data they send, and nothing else.

    Labels stay true, the liars train their layers with what comes back and give them away.
    """
    kind = type(method)

    class Lying(kind):
        def on_train(
            self, c: Any, msg: Message, site: ClientContext
        ) -> Conversation[tuple[Any, Reply]]:
            c, told = yield from super().on_train(c, msg, site)
            smashed = opened(told.trees["smashed"])
            if site.id not in liars or not len(smashed):
                return c, told
            said = lie(smashed, site.rng.child("lie", c.drawn).torch())
            trees = {**told.trees, "smashed": closed(said, self.number)}
            return c, replace(told, trees=trees)

    return _as(Lying, method)


def _as(kind: type, method: Any) -> Any:
    """Return a method as a subclass of its own class, with its options and its name."""
    kind.__module__, kind.__qualname__ = type(method).__module__, type(method).__qualname__
    kind.__name__ = type(method).__name__
    return kind(**{field.name: getattr(method, field.name) for field in fields(method)})


def heard_from(asked: Any, answer: Any) -> list[tuple[ClientId, Message | None, Any]]:
    """Return client, message and sealed reply of every exchange with a client; else nothing."""
    if isinstance(asked, Request) and asked.reveal == "each":
        return [(client, asked.to[client], sealed) for client, sealed in answer.items()]
    if isinstance(asked, Requests):
        return [
            (asked.client, message, sealed)
            for message, sealed in zip(asked.messages, answer, strict=True)
        ]
    return []


def tree(sealed: Any, name: str) -> Tensor | None:
    """Raw data that a reply or a message holds under a name, None where there are none."""
    if name not in sealed.trees:
        return None
    held = sealed.trees[name]
    return opened(held if isinstance(held, Params) else held.total)
