"""Parties that read messages of a method from inside, and may alter them.

A conversation is followed from inside, message by message, in whatever engine
holds it. So attacks meet the methods as they are, and see what the method's server sees.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, NoReplyCounted
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply
from vergence.core.method import Method

T = TypeVar("T")
M = TypeVar("M", bound=Method)
Change = Callable[[Any, Any], Any]
"""Function of a request and its answer that returns the answer for the conversation."""
ReplyObserver = Callable[[ClientContext, str, Reply], None]
"""Called with a client's context, the verb of its request, and its reply."""


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


def with_observers(method: M, on_reply: ReplyObserver, on_answer: Change) -> M:
    """Return the method with clients and a server whose messages are recorded, and not changed.

    Args:
        method: any method; its messages do not change.
        on_reply: called with every reply of a turn, before anything hides it.
        on_answer: called with a request of a round and its answer, which is what its server
            learned; its result takes the answer's place.
    """
    kind = type(method)

    def hearing(verb: str) -> Callable[..., Conversation[tuple[Any, Reply]]]:
        def on(
            _: Any, c: Any, msg: Message, site: ClientContext
        ) -> Conversation[tuple[Any, Reply]]:
            end = getattr(method, f"on_{verb}")(c, msg, site)
            c, reply = (yield from end) if isinstance(end, Generator) else end
            on_reply(site, verb, reply)
            return c, reply

        return on

    def round(self: Any, s: Any, cohort: Sequence[ClientId]) -> Conversation[Any]:
        return tapped(kind.round(self, s, cohort), on_answer)

    own = {f"on_{verb}": hearing(verb) for verb in method.exposure}
    return as_subclass(type(kind.__name__, (kind,), {**own, "round": round}), method)


def as_subclass(kind: type, method: Any) -> Any:
    """Return a method as a subclass of its own class, with its options and its name."""
    kind.__module__, kind.__qualname__ = type(method).__module__, type(method).__qualname__
    kind.__name__ = type(method).__name__
    return kind(**{field.name: getattr(method, field.name) for field in fields(method)})
