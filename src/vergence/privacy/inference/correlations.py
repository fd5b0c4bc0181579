"""Correlated randomness of one private prediction, dealt by the owner of the network.

Correlated randomness is random numbers and values computed from them, of which each party has a
share. It is used for one image only. The same code runs on the dealer, who draws the shares of all
parties and so knows the secrets, and on a party, who has only its own share. A party's shares of
random numbers come from its seed. So do its shares of values computed from random numbers, except
for the first party. The dealer computes the first party's shares of such values, so that all shares
combine to the secret, and sends them.

Used by `deployment.private_inference.party`, `deployment.private_inference.party_seed`,
`deployment.private_inference.sharing` and `privacy.inference.shared_network`.

Source: Beaver 1991 (one-time masks and products); Boyle, Gilboa, Ishai 2019 (a linear layer costs
one opened mask where its weights are fixed); Escudero, Ghosh, Keller, Rachuri, Scholl 2020
(truncation with the wrap-around taken out, bits of masks).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from vergence.errors import StateError
from vergence.privacy.inference.ring import (
    BITS,
    FRACTION,
    Packed,
    Shares,
    Words,
    combined,
    difference,
    planes,
    unpack,
)
from vergence.privacy.secure_aggregation.masking import derived

Shape = tuple[int, ...]
WORD, BYTE = np.dtype(np.uint64), np.dtype(np.uint8)
DIGEST = hashlib.sha256().digest_size


class CorrelationSource(Protocol):
    """Source of correlated randomness: the dealer, or one party's shares."""

    def uniform(self, shape: Shape, kind: np.dtype) -> Shares:
        """Return uniformly random words or packed bits of this shape and dtype.

        The dealer returns the secret, and a party returns its share of the secret.
        """
        ...

    def dependent(self, shape: Shape, kind: np.dtype, value: Callable[[], Shares]) -> Shares:
        """Return words or packed bits that are computed from earlier secrets by `value`.

        The dealer calls `value` and returns the secret. A party returns its share of the secret.
        """
        ...


def next_seed(seed: bytes) -> bytes:
    """Return the seed for the next image; `seed` cannot be computed from the next seed."""
    return derived(seed, b"", "private prediction, next image")


class SeededDraws:
    """Sequence of one party's random draws for one image.

    Args:
        seed: 32 bytes for this image, known only to the owner and this party.
        unit: number of the image.
    """

    def __init__(self, seed: bytes, unit: int) -> None:
        key = derived(seed, unit.to_bytes(8, "big"), "private prediction")
        # The key is of this image alone, so that a fixed nonce repeats no key stream.
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()

    def draw(self, shape: Shape, kind: np.dtype) -> Shares:
        """Return the next uniformly random words or bytes of this shape and dtype."""
        size = int(np.prod(shape)) * kind.itemsize
        return np.frombuffer(self._cipher.update(bytes(size)), kind).reshape(shape)


class Dealer:
    """Deals correlated randomness for one image: it draws the shares of all parties.

    It collects the first party's shares of values that are computed from random numbers. These
    shares follow from the value and the other parties' shares.

    Args:
        seeds: the seed of each party, in order.
        unit: number of the image.
    """

    def __init__(self, seeds: Sequence[bytes], unit: int) -> None:
        self._draws = [SeededDraws(seed, unit) for seed in seeds]
        self._corrections: list[bytes] = []

    def uniform(self, shape: Shape, kind: np.dtype) -> Shares:
        """Return the next random secret: the parties' next random shares, combined."""
        return combined([each.draw(shape, kind) for each in self._draws])

    def dependent(self, shape: Shape, kind: np.dtype, value: Callable[[], Shares]) -> Shares:
        """Return the secret that `value` computes, and store the first party's share of it."""
        secret = value()
        others = [each.draw(shape, kind) for each in self._draws[1:]]
        self._corrections.append(difference(secret, others).tobytes())
        return secret

    def corrections(self) -> bytes:
        """Return a SHA-256 digest (32 bytes), followed by the bytes from which it is computed.

        These bytes are the first party's shares of all values that `dependent` computed for this
        image.
        """
        whole = b"".join(self._corrections)
        return hashlib.sha256(whole).digest() + whole


class Holder:
    """One party's shares of the correlated randomness for one image.

    Correlated randomness is random numbers and values computed from them; it hides the image.

    Args:
        seed: 32 bytes from which this party's shares are drawn.
        unit: number of the image.
        corrections: for the first party, the bytes that `Dealer.corrections` returned; None for the
            other parties.

    Raises:
        StateError: `corrections` is damaged.
    """

    def __init__(self, seed: bytes, unit: int, corrections: bytes | None) -> None:
        self._draws, self._rest = SeededDraws(seed, unit), None
        if corrections is not None:
            # A flipped bit would give a wrong answer that looks like any other.
            if hashlib.sha256(corrections[DIGEST:]).digest() != corrections[:DIGEST]:
                raise StateError(
                    f"material of image {unit} is damaged: ask the model's owner for new folders"
                )
            self._rest = memoryview(corrections)[DIGEST:]

    def uniform(self, shape: Shape, kind: np.dtype) -> Shares:
        """Return this party's share of the next random secret."""
        return self._draws.draw(shape, kind)

    def dependent(self, shape: Shape, kind: np.dtype, value: Callable[[], Shares]) -> Shares:
        """Return this party's share of a secret that only the dealer can compute.

        `value` is not called.

        Raises:
            StateError: the first party's shares end too early.
        """
        # Only the dealer knows the secrets that `value` needs.
        del value
        if self._rest is None:
            return self._draws.draw(shape, kind)
        size = int(np.prod(shape)) * kind.itemsize
        if len(self._rest) < size:
            raise StateError("material is too short: it was dealt for another network")
        part, self._rest = self._rest[:size], self._rest[size:]
        return np.frombuffer(part, kind).reshape(shape)

    def end(self) -> None:
        """Check that the first party's bytes (`corrections`) were used up.

        The other parties have none.

        Raises:
            StateError: the first party has shares that are left over.
        """
        if self._rest:
            raise StateError("material is too long: it was dealt for another network")


@dataclass(frozen=True)
class LinearMask:
    """Random mask for a linear layer's input.

    Attributes:
        mask: the mask, of the shape of one input `[1, ...]`.
        product: the layer's output for the mask, without bias, `[1, ...]`.
    """

    mask: Words
    product: Words


@dataclass(frozen=True)
class TruncationMask:
    """Random mask for dividing numbers by 2^FRACTION (truncation).

    All fields have the shape of the numbers, `[1, ...]`.

    Attributes:
        mask: the mask r.
        shifted: r without its top bit, shifted right by `FRACTION` bits.
        top: the top bit of r, as a word.
    """

    mask: Words
    shifted: Words
    top: Words


@dataclass(frozen=True)
class BitProducts:
    """Random bits a, b and c, and the products a b and a c, packed, each `[1, rows, m / 8]`."""

    a: Packed
    b: Packed
    c: Packed
    ab: Packed
    ac: Packed


@dataclass(frozen=True)
class ComparisonMask:
    """Random masks for m ReLUs: for the signs of m numbers, and the products of number and sign.

    Attributes:
        mask: random numbers r, `[1, m]`, added to the numbers before they are opened.
        digits: bits of r, packed, `[1, 64, m / 8]`.
        levels: random bits and products for each level of the tree that compares 64 digits.
        flip: random bits that hide the signs, packed, `[1, m / 8]`.
        flip_word: the bits of `flip` as words, `[1, m]`.
        factor: random numbers u that hide the numbers in the product, `[1, m]`.
        flip_factor: the products of `flip_word` and `factor`, `[1, m]`.
    """

    mask: Words
    digits: Packed
    levels: tuple[BitProducts, ...]
    flip: Packed
    flip_word: Words
    factor: Words
    flip_factor: Words


Record = LinearMask | TruncationMask | ComparisonMask
R = TypeVar("R", LinearMask, TruncationMask, ComparisonMask, BitProducts)


def linear_mask(
    source: CorrelationSource, inputs: Shape, outputs: Shape, apply: Callable[[Words], Words]
) -> LinearMask:
    """Return the mask of a linear layer or convolution.

    Args:
        source: the dealer, or one party's shares.
        inputs: shape of the layer's input for one image.
        outputs: shape of the layer's output for one image.
        apply: the layer without its bias.
    """
    mask = source.uniform((1, *inputs), WORD)
    return LinearMask(mask, source.dependent((1, *outputs), WORD, lambda: apply(mask)))


def truncation_mask(source: CorrelationSource, shape: Shape) -> TruncationMask:
    """Return the mask for dividing an array of this shape by 2^FRACTION (truncation)."""
    shape = (1, *shape)
    mask = source.uniform(shape, WORD)
    low = np.uint64((1 << BITS - 1) - 1)
    return TruncationMask(
        mask,
        source.dependent(shape, WORD, lambda: (mask & low) >> np.uint64(FRACTION)),
        source.dependent(shape, WORD, lambda: mask >> np.uint64(BITS - 1)),
    )


def comparison_mask(source: CorrelationSource, count: int) -> ComparisonMask:
    """Return the masks of `count` comparisons."""
    words, packed = (1, count), (1, -(-count // 8))
    mask = source.uniform(words, WORD)
    digits = source.dependent((1, BITS, packed[1]), BYTE, lambda: planes(mask))
    levels, rows = list[BitProducts](), BITS // 2
    while rows:
        levels.append(_bit_products(source, (1, rows, packed[1])))
        rows //= 2
    flip = source.uniform(packed, BYTE)
    flip_word = source.dependent(words, WORD, lambda: unpack(flip, count))
    factor = source.uniform(words, WORD)
    both = source.dependent(words, WORD, lambda: unpack(flip, count) * factor)
    return ComparisonMask(mask, digits, tuple(levels), flip, flip_word, factor, both)


def _bit_products(source: CorrelationSource, shape: Shape) -> BitProducts:
    a, b, c = (source.uniform(shape, BYTE) for _ in range(3))
    return BitProducts(
        a,
        b,
        c,
        source.dependent(shape, BYTE, lambda: a & b),
        source.dependent(shape, BYTE, lambda: a & c),
    )


def stacked(records: Sequence[R]) -> R:
    """Join the masks for several images into one record, along dimension 0."""
    first = records[0]
    columns: dict[str, Any] = {}
    for name in (field.name for field in fields(first)):
        parts = [getattr(record, name) for record in records]
        columns[name] = (
            tuple(stacked(level) for level in zip(*parts, strict=True))
            if isinstance(parts[0], tuple)
            else np.concatenate(parts)
        )
    return type(first)(**columns)
