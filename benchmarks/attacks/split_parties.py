"""Malicious parties of split learning: a server that reads and alters messages, lying clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from vergence.attacks.malicious_parties import Change, as_subclass, intercepted_conversation
from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.requests import Request, Requests
from vergence.methods.split.base import BatchwiseSplit, pack, unpack

M = TypeVar("M", bound=Method)
Lie = Callable[[Tensor, torch.Generator], Tensor]
"""From honest smashed data `[samples, ...]` to what a liar sends."""


def watched(method: M, follow: Callable[[Sequence[ClientId], Mapping[str, Params]], Change]) -> M:
    """Return the method with a server that follows every session.

    Args:
        method: of split learning, whose server serves clients batch by batch.
        follow: called with a session's clients and the templates of the server's copy; returns the
            function that sees every request and answer of it.
    """
    kind = type(method)

    class Watched(kind):
        def serve(
            self, clients: Sequence[ClientId], templates: Mapping[str, Params]
        ) -> Conversation[Reply]:
            return intercepted_conversation(
                super().serve(clients, templates), follow(clients, templates)
            )

    return as_subclass(Watched, method)


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
            c, reply = yield from super().on_train(c, msg, site)
            smashed = unpack(reply.trees["smashed"])
            if site.id not in liars or not len(smashed):
                return c, reply
            false = lie(smashed, site.rng.child("lie", c.batches_sent).torch())
            trees = {**reply.trees, "smashed": pack(false, self.number)}
            return c, replace(reply, trees=trees)

    return as_subclass(Lying, method)


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
    part = sealed.trees[name]
    return unpack(part if isinstance(part, Params) else part.total)
