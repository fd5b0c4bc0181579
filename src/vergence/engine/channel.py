"""Channels between a server and clients in the same process: direct, or through bytes.

Used by `deployment.remote_clients`, `engine.client_runner`, `engine.split_session` and
`engine.workers.pools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply
from vergence.core.options import T
from vergence.core.serialization import pack, unpack
from vergence.wire.encoding import decode, encode


class Channel:
    """Passes messages, replies and states on unchanged."""

    def message(self, message: Message) -> Message:
        """Return a message as it reaches a client."""
        return message

    def reply(self, sealed: SealedReply, known: Mapping[str, Mask]) -> SealedReply:
        """Return a reply as it reaches a server that knows these masks of the client."""
        return sealed

    def state(self, state: T, records: Sequence[type]) -> T:
        """Return a client's state as it is stored."""
        return state


DIRECT = Channel()
"""The channel of a simulation: it changes nothing."""


class ByteChannel(Channel):
    """Turns everything into the bytes that a network would carry, and back."""

    def message(self, message: Message) -> Message:
        """Return the message after packing and unpacking."""
        return unpack(pack(message), Message)

    def reply(self, sealed: SealedReply, known: Mapping[str, Mask]) -> SealedReply:
        """Return the reply after encoding and decoding."""
        return decode(encode(sealed, known), known)

    def state(self, state: T, records: Sequence[type]) -> T:
        """Return the state after packing and unpacking."""
        return unpack(pack(state), *records)
