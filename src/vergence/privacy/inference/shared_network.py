"""Evaluation of a network on additive shares among two or more parties.

Each party runs a generator. The generator yields the party's shares of arrays to open, and is sent
the opened arrays: the sum over all parties (words, integers modulo 2^64), or the exclusive or
(bits). The caller decides whether the parties run in one process or on several machines. Every
opened value is hidden by a mask that is used once. Security is semi-honest: if a party deviates
from the protocol, the answer is wrong, and nobody notices.

Used by `deployment.private_inference.agreement`, `deployment.private_inference.client`,
`deployment.private_inference.party` and `deployment.private_inference.sharing`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vergence.core.options import T
from vergence.errors import ConfigError
from vergence.privacy.inference.correlations import (
    BitProducts,
    ComparisonMask,
    CorrelationSource,
    Dealer,
    Holder,
    LinearMask,
    Record,
    Shape,
    TruncationMask,
    comparison_mask,
    linear_mask,
    stacked,
    truncation_mask,
)
from vergence.privacy.inference.network import Layer, NetworkParts
from vergence.privacy.inference.ring import (
    BITS,
    FRACTION,
    LIMIT,
    Packed,
    Shares,
    Words,
    combined,
    encode,
    planes,
    unpack,
)

Opened = tuple[Shares, ...]
Opening = Generator[Opened, Opened, T]
ONE, TOP = np.uint64(1), np.uint64(BITS - 1)
LOW = np.uint64((1 << BITS - 1) - 1)
LARGEST = 4.0
"""Upper limit for inputs: normalised pixels reach 2, and angles in radians pi."""
OFFSET = 62
"""2^62 is added to numbers before they are truncated, so that they are not negative."""


def with_stored_field_names(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return a dataclass's fields under their names in files and digests of dealt folders.

    A dealt folder is what the network's owner gives to one party.
    """
    names = {"takes_side_inputs": "beside", "side_inputs": "beside"}
    return {names.get(name, name): value for name, value in pairs}


@dataclass(frozen=True)
class SharedNetwork:
    """Public part of a network: its layers and their shapes.

    Attributes:
        layers: the layers, in order; their `products` are not used.
        image: shape of an input image.
        side_inputs: number of additional inputs (head pose); 0 if no layer reads them.
        weights: shapes of the parameters, by name.
    """

    layers: tuple[Layer, ...]
    image: Shape
    side_inputs: Annotated[int, Field(validation_alias="beside")]
    weights: Mapping[str, Shape]

    def digest(self) -> str:
        """Return the SHA-256 of all fields, by which parties and clients identify a network."""
        text = json.dumps(
            [asdict(self, dict_factory=with_stored_field_names), FRACTION], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def steps(self) -> tuple[tuple[Layer, Shape, Shape], ...]:
        """Every layer in order, with the shapes of its input and its output for one image.

        Raises:
            ConfigError: a layer does not fit the output of the previous layer.
        """
        steps, shape = list[tuple[Layer, Shape, Shape]](), self.image
        for layer in self.layers:
            before, weight = shape, self.weights.get(f"{layer.name}.weight", ())
            if layer.kind == "pool":
                shape = (before[0], before[1] // 2, before[2] // 2)
            elif layer.kind == "conv":
                shape = (
                    weight[0],
                    *(1 + s - k for s, k in zip(before[1:], weight[2:], strict=True)),
                )
            else:
                before, shape = (
                    (prod(before) + self.side_inputs * layer.takes_side_inputs,),
                    weight[:1],
                )
            if weight and weight[1] != before[0]:
                raise ConfigError(
                    f"private prediction: layer '{layer.name}' takes {weight[1]} inputs and gets "
                    f"{before[0]}"
                )
            steps.append((layer, before, shape))
        return tuple(steps)

    @property
    def answers(self) -> int:
        """Number of outputs of the network for one image."""
        return prod(self.steps[-1][2])


def public_part(parts: NetworkParts, image: Shape, side_inputs: int) -> SharedNetwork:
    """Return the public part of a network; `share_network` gives it to the parties.

    Args:
        parts: layers and parameters of the network.
        image: shape of an input image.
        side_inputs: number of additional inputs (head pose) in the data.

    Raises:
        ConfigError: the network is pruned, or has layers that are not supported.
    """
    kinds = {layer.kind for layer in parts.layers} - {"conv", "pool", "dense"}
    if parts.columns or kinds:
        raise ConfigError(
            "private prediction takes convolutions, poolings and whole linear layers; "
            f"got {', '.join(sorted(kinds)) or 'a pruned layer'}"
        )
    weights = {name: array.shape for name, array in parts.arrays.items()}
    public = SharedNetwork(
        parts.layers, image, side_inputs if parts.takes_side_inputs else 0, weights
    )
    # Computing the steps refuses layers that do not fit onto each other.
    assert public.steps
    return public


def encoded(network: SharedNetwork, arrays: Mapping[str, NDArray[np.floating]]) -> dict[str, Words]:
    """Return parameters as words (integers modulo 2^64); `share_network` splits them into shares.

    Weights have `FRACTION` bits after the binary point. Biases have twice as many, as they are
    added to products.

    Args:
        network: public part of the network.
        arrays: the parameters, by name.

    Raises:
        ConfigError: for some input below `LARGEST`, a sum in a layer could be too large.
    """
    largest = LARGEST
    for layer in network.layers:
        if layer.kind == "pool":
            continue
        weight = np.abs(arrays[f"{layer.name}.weight"].astype(np.float64))
        sums = weight.reshape(len(weight), -1).sum(1) * max(largest, LARGEST)
        largest = float((sums + np.abs(arrays[f"{layer.name}.bias"])).max())
        if not largest < LIMIT:
            raise ConfigError(
                f"private prediction: layer '{layer.name}' can reach {largest:g}, and numbers must "
                f"stay below {LIMIT:g}: train with smaller weights (weight decay)"
            )
    return {name: encode(a, 2 if name.endswith("bias") else 1) for name, a in arrays.items()}


def applied(layer: Layer, x: Words, weight: Words) -> Words:
    """Apply a linear layer or convolution without its bias to inputs `[n, ...]`, modulo 2^64.

    Shares can be passed for the inputs or for the weights, but not for both.
    """
    if layer.kind == "dense":
        return x @ weight.T
    seen = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))
    n, _, rows, columns = seen.shape[:4]
    patches = seen.transpose(0, 2, 3, 1, 4, 5).reshape(n * rows * columns, -1)
    sums = patches @ np.ascontiguousarray(weight.reshape(len(weight), -1).T)
    return np.ascontiguousarray(sums.reshape(n, rows, columns, -1).transpose(0, 3, 1, 2))


def records(
    network: SharedNetwork, source: CorrelationSource, weights: Mapping[str, Words]
) -> tuple[Record, ...]:
    """Return the correlated randomness for one image, in the order in which layers use it.

    Args:
        network: public part of the network.
        source: the dealer, or one party's shares.
        weights: the parameters as words; only the dealer reads them.
    """
    correlations: list[Record] = []
    for layer, inputs, outputs in network.steps:
        if layer.kind == "pool":
            count = prod(outputs)
            correlations += [comparison_mask(source, 2 * count), comparison_mask(source, count)]
            continue

        def apply(x: Words, layer: Layer = layer) -> Words:
            return applied(layer, x, weights[f"{layer.name}.weight"])

        correlations += [
            linear_mask(source, inputs, outputs, apply),
            truncation_mask(source, outputs),
        ]
        if layer.relu:
            correlations.append(comparison_mask(source, prod(outputs)))
    return tuple(correlations)


def deal(
    network: SharedNetwork, weights: Mapping[str, Words], seeds: Sequence[bytes], unit: int
) -> bytes:
    """Return the first party's file of correlated randomness for one image.

    The other parties derive their randomness from their seeds.

    Args:
        network: public part of the network.
        weights: the parameters as words.
        seeds: seed of each party, in order.
        unit: number of the image.
    """
    dealer = Dealer(seeds, unit)
    records(network, dealer, weights)
    return dealer.corrections()


def party_records(network: SharedNetwork, holders: Sequence[Holder]) -> tuple[Record, ...]:
    """Return one party's correlated randomness for several images, joined along dimension 0.

    `holders` has the party's shares for each image.

    Raises:
        StateError: the shares are damaged, or belong to another network.
    """
    of_each: list[tuple[Record, ...]] = []
    for holder in holders:
        of_each.append(records(network, holder, {}))
        holder.end()
    return tuple(stacked(same) for same in zip(*of_each, strict=True))  # type: ignore[type-var]


@dataclass(frozen=True)
class PartyShares:
    """The secret shares with which one party computes.

    Attributes:
        first: whether this is the first party, the only one that adds public numbers.
        weights: the party's shares of the parameters, by name.
        records: the party's correlated randomness; see `party_records`.
    """

    first: bool
    weights: Mapping[str, Words]
    records: tuple[Record, ...]

    def known(self, values: Words) -> Words:
        """Return this party's share of public numbers: the numbers for the first party, else 0."""
        return values if self.first else np.zeros_like(values)

    def power(self, exponent: int) -> np.uint64:
        """Return this party's share of 2^`exponent`: the number for the first party, else 0."""
        return np.uint64(self.first) << np.uint64(exponent)


def forward(
    network: SharedNetwork, mine: PartyShares, x: Words, side_inputs: Words
) -> Opening[Words]:
    """Compute one party's share of the network's outputs `[n, outputs]`, as a generator.

    It yields shares to open, is sent the opened values, and returns the share of the outputs.

    Args:
        network: public part of the network.
        mine: this party's secret shares.
        x: this party's share of n images, `[n, ...]`.
        side_inputs: this party's share of the additional inputs, `[n, columns]`.
    """
    records: Iterator[Any] = iter(mine.records)
    for layer, inputs, _ in network.steps:
        if layer.kind == "pool":
            x = yield from max_pool(mine, x, [next(records), next(records)])
            continue
        if layer.kind == "dense":
            x = x.reshape(len(x), -1)
            x = np.concatenate([x, side_inputs], 1) if layer.takes_side_inputs else x
        assert x.shape[1:] == inputs
        x = yield from linear(mine, layer, x, next(records))
        x = yield from truncate(mine, x, next(records))
        if layer.relu:
            x = yield from relu(mine, x, next(records))
    return x


def linear(mine: PartyShares, layer: Layer, x: Words, mask: LinearMask) -> Opening[Words]:
    """Return a share of W x + b, with 2 * FRACTION bits after the binary point.

    `truncate` then drops half of these bits. The parties open x - a, where a is a random mask. Then
    W x is the sum of W (x - a), which each party computes on its share of W, and of W a, of which
    the dealer gave shares.

    Args:
        mine: this party's secret shares.
        layer: the layer.
        x: this party's share of the inputs, `[n, ...]`.
        mask: this party's shares of a and of W a.
    """
    (seen,) = yield (x - mask.mask,)
    bias = mine.weights[f"{layer.name}.bias"]
    bias = bias[:, None, None] if layer.kind == "conv" else bias
    return applied(layer, seen, mine.weights[f"{layer.name}.weight"]) + mask.product + bias


def truncate(mine: PartyShares, x: Words, mask: TruncationMask) -> Opening[Words]:
    """Return a share of x / 2^FRACTION, which is rounded down or up at random.

    With z = x + 2^62 < 2^63 and a random mask r, c = z + r modulo 2^64 is opened. The top bits of c
    and r differ if and only if z + (r modulo 2^63) is at least 2^63. So the parties can correct the
    wrap-around for any r, and only the lowest bits of z are lost.

    Args:
        mine: this party's secret shares.
        x: this party's share of the numbers, `[n, ...]`.
        mask: this party's shares of the mask r and of parts of its bits.
    """
    (seen,) = yield (x + mask.mask + mine.power(OFFSET),)
    top = seen >> TOP
    wrapped = mask.top + mine.known(top) - 2 * top * mask.top
    shifted = mine.known((seen & LOW) >> np.uint64(FRACTION)) - mask.shifted
    wrapped = wrapped << np.uint64(BITS - 1 - FRACTION)
    return shifted + wrapped - mine.power(OFFSET - FRACTION)


def negative(mine: PartyShares, x: Words, mask: ComparisonMask) -> Opening[Packed]:
    """Return a share of the sign bits of x `[n, m]`, packed eight to a byte.

    c = x + r is opened, where r is a random mask. The sign follows from the top bits of c and r,
    and from whether the lower 63 bits of c are below those of r. This comparison is computed on
    shares of the bits, by a binary tree that finds the highest bit in which c and r differ.

    Args:
        mine: this party's secret shares.
        x: this party's share of the numbers.
        mask: this party's shares of r, its bits and products of random bits.
    """
    (seen,) = yield (x + mask.mask,)
    known = planes(seen)
    low, of_mask = known[:, :-1], mask.digits[:, :-1]
    rest = np.zeros_like(known[:, :1])  # 63 digits, and one at which they are the same
    less = np.concatenate([rest, ~low & of_mask], 1)
    same = np.concatenate([rest, of_mask ^ ~low if mine.first else of_mask], 1)
    for level in mask.levels:
        less, same = yield from _merged(mine.first, less, same, level)
    top = mask.digits[:, -1] ^ less[:, 0]
    return top ^ known[:, -1] if mine.first else top


def _merged(
    first: bool, less: Packed, same: Packed, dealt: BitProducts
) -> Opening[tuple[Packed, Packed]]:
    """Merge neighbouring digits in the comparison of c with r; return `less` and `same` of pairs.

    A pair is less if its higher digit is less, or if the higher digits are equal and its lower
    digit is less.

    Args:
        first: whether this is the first party.
        less: share of the bits that say in which digits c is less than r.
        same: share of the bits that say in which digits c and r are equal.
        dealt: this party's shares of random bits and their products.
    """
    high, low = slice(1, None, 2), slice(0, None, 2)
    factors = np.concatenate(
        [same[:, high] ^ dealt.a, less[:, low] ^ dealt.b, same[:, low] ^ dealt.c], 1
    )
    (seen,) = yield (factors,)
    a, b, c = np.split(seen, 3, 1)
    both_less = (a & dealt.b) ^ (b & dealt.a) ^ dealt.ab
    both_same = (a & dealt.c) ^ (c & dealt.a) ^ dealt.ac
    if first:
        both_less, both_same = both_less ^ (a & b), both_same ^ (a & c)
    return less[:, high] ^ both_less, both_same


def relu(mine: PartyShares, x: Words, mask: ComparisonMask) -> Opening[Words]:
    """Return a share of max(x, 0), `[n, ...]`, computed as x - sign * x.

    The dealer gave shares of a random bit t, a random number u and t u. The parties open
    e = sign xor t and f = x - u. Then sign * x = e x + (1 - 2 e) (t f + t u).

    Args:
        mine: this party's secret shares.
        x: this party's share of the numbers.
        mask: this party's shares of the dealer's random numbers.
    """
    flat = x.reshape(len(x), -1)
    sign = yield from negative(mine, flat, mask)
    bits, rest = yield (sign ^ mask.flip, flat - mask.factor)
    e = unpack(bits, flat.shape[1])
    product = e * flat + (ONE - 2 * e) * (mask.flip_word * rest + mask.flip_factor)
    return (flat - product).reshape(x.shape)


def max_pool(mine: PartyShares, x: Words, masks: Sequence[ComparisonMask]) -> Opening[Words]:
    """Return a share of a 2 x 2 max pooling of maps `[n, C, H, W]`, with stride 2.

    If H or W is odd, the last row or column is dropped.

    Args:
        mine: this party's secret shares.
        x: this party's share of the maps.
        masks: this party's shares of the dealer's random numbers, for pooling along W and along H.
    """
    rows, columns = (size // 2 * 2 for size in x.shape[2:])
    x = x[:, :, :rows, :columns]
    for axis, mask in zip((3, 2), masks, strict=True):
        one, two = (x.take(range(i, x.shape[axis], 2), axis) for i in (0, 1))
        x = two + (yield from relu(mine, one - two, mask))
    return x


def together(talks: Sequence[Opening[Words]]) -> list[Words]:
    """Run the generators of all parties in this process; return all shares of the result."""
    shares: list[Words] = []
    opened: Opened | None = None
    while len(shares) < len(talks):
        sent: list[Opened] = []
        for talk in talks:
            try:
                sent.append(talk.send(opened))  # type: ignore[arg-type]
            except StopIteration as end:
                shares.append(end.value)
        opened = tuple(combined(each) for each in zip(*sent, strict=True))
    return shares
