"""Channels between a server and the clients in its process: as they are, or through bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply
from vergence.core.serialization import pack, unpack
from vergence.wire.encoding import decode, encode


class Channel:
    """Hands messages, replies and states on as they are."""

    def message(self, message: Message) -> Message:
        """Message as it reaches a client."""
        return message

    def reply(self, sealed: SealedReply, known: Mapping[str, Mask]) -> SealedReply:
        """Reply as it reaches a server that knows these masks of the client."""
        return sealed

    def state(self, state: Any, records: Sequence[type]) -> Any:
        """State of a client as it is kept."""
        return state


DIRECT = Channel()
"""Nothing is changed on the way."""


class ByteChannel(Channel):
    """Hands everything on as the bytes that a network carries."""

    def message(self, message: Message) -> Message:
        """Message, packed and unpacked."""
        return unpack(pack(message), Message)

    def reply(self, sealed: SealedReply, known: Mapping[str, Mask]) -> SealedReply:
        """Reply, encoded and decoded."""
        return decode(encode(sealed, known), known)

    def state(self, state: Any, records: Sequence[type]) -> Any:
        """State, packed and unpacked."""
        return unpack(pack(state), *records)
