"""Parties that read the messages of a method, and may change them.

The method's own conversation is intercepted, message by message, under any engine. Attacks thus run
against the methods as they are, and see exactly what the method's server sees.

Used by `audit.replay`.
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
from vergence.core.options import T

M = TypeVar("M", bound=Method)
Change = Callable[[Any, Any], Any]
"""Function from a request and its answer to the answer that the conversation gets."""
ReplyObserver = Callable[[ClientContext, str, Reply], None]
"""Called with a client's context, the verb of its request, and its reply."""


def intercepted_conversation(talk: Conversation[T], change: Change) -> Conversation[T]:
    """Yield a conversation's requests; `change` sees every answer and may replace it."""
    try:
        asked = next(talk)
        while True:
            try:
                answer = yield asked
            # A method may handle a round without replies by itself: it must see the same exception.
            except NoReplyCounted as gone:
                asked = talk.throw(gone)
            else:
                asked = talk.send(change(asked, answer))
    except StopIteration as end:
        return end.value


def with_interception(method: M, on_reply: ReplyObserver, change_answer: Change) -> M:
    """Return the method with its clients' replies observed and its server's answers replaced.

    The audit replays rounds with it.

    Args:
        method: any method; its messages do not change.
        on_reply: called with every reply of a client, before any protection is applied.
        change_answer: called with every request of a round and its answer, which is all that the
            server learns; its result replaces the answer.
    """
    kind = type(method)

    def observed_turn(verb: str) -> Callable[..., Conversation[tuple[Any, Reply]]]:
        def on(
            _: Any, c: Any, msg: Message, site: ClientContext
        ) -> Conversation[tuple[Any, Reply]]:
            end = getattr(method, f"on_{verb}")(c, msg, site)
            c, reply = (yield from end) if isinstance(end, Generator) else end
            on_reply(site, verb, reply)
            return c, reply

        return on

    def round(self: Any, s: Any, cohort: Sequence[ClientId]) -> Conversation[Any]:
        return intercepted_conversation(kind.round(self, s, cohort), change_answer)

    own = {f"on_{verb}": observed_turn(verb) for verb in method.exposure}
    return as_subclass(type(kind.__name__, (kind,), {**own, "round": round}), method)


def as_subclass(kind: type, method: Any) -> Any:
    """Return a method as an instance of a subclass, with the options and name of its own class.

    `with_interception` calls this.
    """
    # Registries, tables and messages name a method by its class: the subclass must not show.
    kind.__module__, kind.__qualname__ = type(method).__module__, type(method).__qualname__
    kind.__name__ = type(method).__name__
    return kind(**{field.name: getattr(method, field.name) for field in fields(method)})
