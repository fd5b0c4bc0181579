"""One-time pads of 64-bit words, expanded from 32-byte seeds; every seed comes from the system."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation.packing import Words

SEED = 32
"""Bytes of every seed, key and secret."""
CHUNK = 1 << 14
"""Words expanded at a time: they stay in the cache, and no pad is ever whole in memory."""
ONCE = bytes(12)
"""The nonce of a key that closes one box."""


def new_seed() -> bytes:
    """Return 32 bytes of the system's randomness."""
    return os.urandom(SEED)


def new_key() -> X25519PrivateKey:
    """Return a fresh private key for key agreement."""
    return X25519PrivateKey.from_private_bytes(new_seed())


def derived(secret: bytes, salt: bytes, what: str) -> bytes:
    """Return 32 bytes that depend on a secret, an attempt (`salt`), and a purpose.

    Source: HKDF-SHA256, RFC 5869.
    """
    return HKDF(hashes.SHA256(), SEED, salt, b"vergence " + what.encode()).derive(secret)


def agreed(mine: X25519PrivateKey, public: bytes, salt: bytes, what: str) -> bytes:
    """Return the key that two parties derive from their own private and the other's public key.

    Raises:
        ValueError: `public` is no key, or a point that makes every secret the same.
    """
    return derived(mine.exchange(X25519PublicKey.from_public_bytes(public)), salt, what)


def stream(seed: bytes, size: int) -> memoryview:
    """Return `size` bytes of the ChaCha20 stream of a seed.

    Source: RFC 8439, nonce and counter 0: a seed is used once.

    Raises:
        ConfigError: the seed is no 32 bytes.
    """
    found = bytearray(size)
    _cipher(seed).update_into(bytes(size), found)
    return memoryview(found)


def add_pads(words: Words, plus: Sequence[bytes] = (), minus: Sequence[bytes] = ()) -> None:
    """Add the pads of some seeds to words, and subtract those of others, in place, mod 2^64.

    Raises:
        ConfigError: a seed is no 32 bytes.
    """
    added, taken = [_cipher(seed) for seed in plus], [_cipher(seed) for seed in minus]
    zeros, room = bytes(8 * CHUNK), bytearray(8 * CHUNK)
    pad = np.frombuffer(room, "<u8")
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        blank = zeros[: part.nbytes]
        for cipher in added:
            cipher.update_into(blank, room)
            np.add(part, pad[: len(part)], part)
        for cipher in taken:
            cipher.update_into(blank, room)
            np.subtract(part, pad[: len(part)], part)
    room[:] = zeros


def close_box(key: bytes, data: bytes, about: bytes) -> bytes:
    """Encrypt what one party sends another once, under a key for nothing else."""
    return ChaCha20Poly1305(key).encrypt(ONCE, data, about)


def open_box(key: bytes, box: bytes, about: bytes) -> bytes:
    """Undo `close_box`.

    Raises:
        ValueError: it was closed by somebody else, for something else, or changed on the way.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(ONCE, box, about)
    except InvalidTag:
        raise ValueError("a box that does not open") from None


def _cipher(seed: bytes):  # noqa: ANN202 - the library names no public type for it
    if not isinstance(seed, bytes) or len(seed) != SEED:
        raise ConfigError(f"a pad needs a seed of {SEED} bytes; a shorter one can be searched for")
    return Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
