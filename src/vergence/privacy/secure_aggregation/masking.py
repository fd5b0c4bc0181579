"""One-time pads of 64-bit words, expanded from 32-byte seeds of the system's randomness.

A seed gives one pad, by the cipher that the parameters of the sum name. The cipher's key is derived
from the seed and the cipher's name, so that no key is used with two ciphers. A key makes one key
stream; its counter takes no value twice.

Used in `deployment`, `engine` and `privacy`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation.packing import Words

SEED = 32
"""Bytes of every seed, key and secret."""
CHUNK = 1 << 14
"""Number of words of a pad that are in memory at a time; they fit into the processor's cache."""
BLOCK = 16
"""Bytes of a block of AES."""
MOST_BLOCKS = (1 << 32) - 2
"""Largest number of blocks per key: the counter has 32 bits, and two of its values are not used.

Blocks of ChaCha20 are larger, so that a pad of the same size needs fewer.

A stream of AES in counter mode differs from random bytes: no block occurs twice. An observer of
2^32 blocks can tell the difference with a probability of 2^-65.
"""
PadCipher = Literal["aes-256-ctr", "chacha20"]
PAD_CIPHERS: tuple[PadCipher, ...] = get_args(PadCipher)
ONCE = bytes(12)
"""The fixed nonce of a key that encrypts a single message."""


def new_seed() -> bytes:
    """Return 32 random bytes from the operating system."""
    return os.urandom(SEED)


def new_key() -> X25519PrivateKey:
    """Return a fresh private key for X25519 key agreement."""
    return X25519PrivateKey.from_private_bytes(new_seed())


def derived(secret: bytes, salt: bytes, what: str) -> bytes:
    """Return 32 bytes derived from a secret, for one purpose.

    Args:
        secret: the secret bytes.
        salt: bytes that bind the result to one use, such as an attempt at a secure sum.
        what: the purpose.

    Source: HKDF-SHA256, RFC 5869.
    """
    return HKDF(hashes.SHA256(), SEED, salt, b"vergence " + what.encode()).derive(secret)


def agreed(mine: X25519PrivateKey, public: bytes, salt: bytes, what: str) -> bytes:
    """Return the 32-byte key on which two parties agree.

    Each party computes it from its own private key and the other party's public key.

    Args:
        mine: this party's private key.
        public: the other party's public key.
        salt: bytes that bind the key to one use, such as an attempt at a secure sum.
        what: the purpose of the key.

    Raises:
        ValueError: `public` is not a key, or is a point that makes all secrets equal.
    """
    # `exchange` refuses points of small order: with one a server would know the pair's key.
    return derived(mine.exchange(X25519PublicKey.from_public_bytes(public)), salt, what)


def stream(seed: bytes, size: int) -> memoryview:
    """Return `size` bytes of the ChaCha20 stream of a seed.

    Source: RFC 8439, nonce and counter 0: a seed is used once.

    Raises:
        ConfigError: the seed does not have 32 bytes.
    """
    output = bytearray(size)
    _chacha20(_whole(seed)).update_into(bytes(size), output)
    return memoryview(output)


def check_pad(cipher: str, words: int) -> None:
    """Check that a cipher is known, and that a pad is no longer than one key allows.

    Raises:
        ConfigError: the cipher is unknown, or the pad is too long.
    """
    if cipher not in PAD_CIPHERS:
        known = " or ".join(PAD_CIPHERS)
        raise ConfigError(f"cipher: '{cipher}' is none that pads are drawn with here; take {known}")
    # Beyond, the counter would wrap and the pad repeat: two equal pads cancel by subtraction.
    if 8 * words > BLOCK * MOST_BLOCKS:
        raise ConfigError(
            f"a pad of {words:,} words is longer than the {MOST_BLOCKS:,} blocks that one key "
            "gives; add up fewer numbers at once"
        )


def pad_key(seed: bytes, cipher: PadCipher) -> bytes:
    """Return the 32-byte key that a seed gives for one cipher; `_pad` starts the cipher with it.

    Raises:
        ConfigError: the seed does not have 32 bytes.
    """
    return derived(_whole(seed), b"", f"pad key {cipher}")


def add_pads(
    words: Words,
    cipher: PadCipher,
    plus: Sequence[bytes] = (),
    minus: Sequence[bytes] = (),
    out: Words | None = None,
) -> None:
    """Add the pads of some seeds to words modulo 2^64, and subtract the pads of other seeds.

    Args:
        words: the words, uint64 `[n]`; they are overwritten if `out` is None.
        cipher: cipher that generates the pads.
        plus: seeds whose pads are added.
        minus: seeds whose pads are subtracted.
        out: array `[n]` for the result.

    Raises:
        ConfigError: a seed does not have 32 bytes, the cipher is unknown, or there are too many
            words.
    """
    check_pad(cipher, len(words))
    added, subtracted = ([_pad(seed, cipher) for seed in seeds] for seeds in (plus, minus))
    zeros, room = bytes(8 * CHUNK), bytearray(8 * CHUNK)
    pad = np.frombuffer(room, "<u8")
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        if out is not None:
            whole, part = part, out[start : start + CHUNK]
            part[:] = whole
        blank = zeros[: part.nbytes]
        for key_stream in added:
            key_stream.update_into(blank, room)
            np.add(part, pad[: len(part)], part)
        for key_stream in subtracted:
            key_stream.update_into(blank, room)
            np.subtract(part, pad[: len(part)], part)
    # The last piece of a pad is not left in memory.
    room[:] = zeros


def close_box(key: bytes, data: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate a message between two parties; return the encrypted bytes.

    Args:
        key: 32 bytes; a key must encrypt a single message.
        data: the message.
        about: bytes that are authenticated with the message, such as sender and purpose.
    """
    # A fixed nonce is safe only because a key closes one box.
    return ChaCha20Poly1305(key).encrypt(ONCE, data, about)


def open_box(key: bytes, box: bytes, about: bytes) -> bytes:
    """Return the message that `close_box` encrypted with the same key and the same `about`.

    Raises:
        ValueError: the key or `about` is another one, or the bytes were changed.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(ONCE, box, about)
    except InvalidTag:
        raise ValueError("a box that does not open") from None


def _whole(seed: object) -> bytes:
    # HKDF would take a short seed too, and whoever tries all of them would find the pad.
    if not isinstance(seed, bytes) or len(seed) != SEED:
        raise ConfigError(f"a pad needs a seed of {SEED} bytes; a shorter one can be searched for")
    return seed


def _pad(seed: bytes, cipher: PadCipher) -> CipherContext:
    """Return the key stream of a seed's pad.

    Source: AES-256 in counter mode as in GCM, NIST SP 800-38D section 6.5, from counter 2; or
    ChaCha20, RFC 8439. OpenSSL generates bytes in GCM two to three times as fast as in plain
    counter mode; GCM's tag is not used.
    """
    key = pad_key(seed, cipher)
    if cipher == "chacha20":
        return _chacha20(key)
    return Cipher(algorithms.AES(key), modes.GCM(ONCE)).encryptor()


def _chacha20(key: bytes) -> CipherContext:
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
