"""Element masks: which parameters are personal.

A mask works on parameters of any device, and its results lie where they lie. In main memory numpy
goes through blocks that fit into a core's cache; elsewhere torch does the same, bit for bit.

Used in most packages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.params import Layout, Params
from vergence.errors import ConfigError

Bits = NDArray[np.bool_]
# A block of each operand stays in the cache of one core.
BLOCK = 1 << 16
"""Number of entries that are processed at once."""
SAMPLE = 1 << 14
"""Number of sampled entries that give bounds of a k-th value; shorter vectors are not sampled."""


class Mask:
    """One truth value per parameter entry, in the order of a flat vector; true means personal.

    A mask is never changed in place: every operation returns a new mask.

    Examples:
        >>> layout = Layout(("w",), ((4,),))
        >>> score = Params(torch.tensor([0.1, 0.5, 0.5, 0.2]), layout)
        >>> Mask.top(score, 1, among=Mask.full(layout)).bits.tolist()
        [False, True, False, False]
    """

    __slots__ = ("_count", "bits", "layout")

    def __init__(self, bits: Tensor, layout: Layout) -> None:
        if bits.dtype != torch.bool or bits.shape != (layout.n,):
            raise ConfigError(f"a mask of {layout.n} entries needs bool [{layout.n}]")
        self.bits, self.layout = bits, layout
        self._count: int | None = None

    @classmethod
    def none(cls, layout: Layout) -> Mask:
        """Return a mask without personal entries."""
        return cls(torch.zeros(layout.n, dtype=torch.bool), layout)

    @classmethod
    def full(cls, layout: Layout) -> Mask:
        """Return a mask in which every entry is personal."""
        return cls(torch.ones(layout.n, dtype=torch.bool), layout)

    @classmethod
    def layers(cls, layout: Layout, *globs: str) -> Mask:
        """Return a mask in which tensors whose name matches a pattern are personal.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        bits = torch.zeros(layout.n, dtype=torch.bool)
        for glob in globs:
            hit = [name for name in layout.names if fnmatch(name, glob)]
            if not hit:
                raise ConfigError(f"no parameter is named like '{glob}': {', '.join(layout.names)}")
            for name in hit:
                bits[layout.slices[name]] = True
        return cls(bits, layout)

    @classmethod
    def top(cls, score: Params, k: int, among: Mask) -> Mask:
        """Return a mask of the k highest scores where `among` is true; ties go to the lowest index.

        The choice is exact and takes O(n) time for any scores. NaN counts as the highest score but
        is never marked, so the mask can have fewer than k entries.
        """
        return cls(_top(score.flat, min(k, among.count), among.on(score.flat)), score.layout)

    @classmethod
    def top_each(cls, score: Params, k: Mapping[str, int], among: Mask) -> Mask:
        """Return a mask of the `k[name]` highest scores of each named tensor, within `among`."""
        inside, counts = among.on(score.flat), among.counts()
        bits = torch.zeros_like(inside)
        for name, room in k.items():
            part = score.layout.slices[name]
            bits[part] = _top(score.flat[part], min(room, counts[name]), inside[part])
        return cls(bits, score.layout)

    @classmethod
    def best(cls, score: Params, k: int | Mapping[str, int], among: Mask) -> Mask:
        """Return a mask of the `k` highest scores in all, or of the `k[name]` highest per tensor.

        Only entries where `among` is true are chosen.
        """
        return cls.top(score, k, among) if isinstance(k, int) else cls.top_each(score, k, among)

    def __invert__(self) -> Mask:
        flipped = Mask(~self.bits, self.layout)
        flipped._count = None if self._count is None else self.layout.n - self._count
        return flipped

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.bits | other.on(self.bits), self.layout)

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.bits & other.on(self.bits), self.layout)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask) or self.layout.n != other.layout.n:
            return False
        if self.bits.is_cpu and other.bits.is_cpu:
            return np.array_equal(self.bits.numpy(), other.bits.numpy())
        # Masks that grow differ in their counts, which are known: a GPU need not be asked again.
        same = self.count == other.count
        trivial = self.count in (0, self.layout.n)
        return same and (trivial or torch.equal(self.bits, other.on(self.bits)))

    __hash__ = None  # type: ignore[assignment]

    def on(self, tensor: Tensor) -> Tensor:
        """Return the truth values on the device of a tensor."""
        return self.bits.to(tensor.device)

    def merge(self, personal: Params, shared: Params) -> Params:
        """Return the entries of `personal` where the mask is true, and of `shared` elsewhere."""
        if self.count in (0, self.layout.n):
            return shared.like((personal if self.count else shared).flat)
        merged = torch.empty_like(shared.flat)
        self._select(personal.flat, shared.flat, merged)
        return shared.like(merged)

    def restore(self, flat: Tensor, params: Params) -> None:
        """Copy `params` into the vector `flat`, in place, where the mask is false."""
        self._select(flat, params.flat, flat)

    def _select(self, mine: Tensor, theirs: Tensor, into: Tensor) -> None:
        if not into.is_cpu:
            torch.where(self.on(into), mine, theirs, out=into)
            return
        a, b, out = _as_integers(mine), _as_integers(theirs), _as_integers(into)
        bits = self.bits.numpy().view(np.int8)
        # b ^ ((a ^ b) * bit) is a where the bit is 1 and b where it is 0, without a branch.
        for part in _blocks(self.layout.n):
            np.bitwise_xor(a[part], b[part], out=out[part])
            np.multiply(out[part], bits[part], out=out[part])
            np.bitwise_xor(out[part], b[part], out=out[part])

    def keep(self, params: Params) -> Params:
        """Return the entries where the mask is true, and 0 elsewhere, even where there was NaN."""
        if self.count == self.layout.n:
            return params
        if not params.flat.is_cpu:
            return params.like(params.flat.masked_fill(~self.on(params.flat), 0))
        # As integers, since 0 times NaN is NaN.
        integers = _as_integers(params.flat) * self.bits.numpy().view(np.int8)
        return params.like(torch.from_numpy(integers).view(params.flat.dtype))

    def take(self, params: Params) -> Tensor:
        """Return the entries where the mask is true, in order, `[count]`."""
        if self.count == self.layout.n:
            return params.flat
        if not params.flat.is_cpu:
            return params.flat[self.on(params.flat)]
        integers = _as_integers(params.flat)[np.flatnonzero(self.bits.numpy())]
        return torch.from_numpy(integers).view(params.flat.dtype)

    def put(self, values: Tensor) -> Params:
        """Undo `take`: return the values where the mask is true, and 0 elsewhere.

        Raises:
            ConfigError: there are more or fewer values than true entries.
        """
        if values.shape != (self.count,):
            raise ConfigError(f"{self!r} takes {self.count} values, not {tuple(values.shape)}")
        flat = values.new_zeros(self.layout.n)
        if not values.is_cpu:
            return Params(flat.masked_scatter_(self.on(flat), values), self.layout)
        _as_integers(flat)[np.flatnonzero(self.bits.numpy())] = _as_integers(values)
        return Params(flat, self.layout)

    def distance(self, a: Params, b: Params) -> Params:
        """Return |a - b| where the mask is true, and 0 elsewhere."""
        if not a.flat.is_cpu:
            gap = (a.flat - b.flat).abs_()
            return a.like(gap.masked_fill_(~self.on(gap), 0))
        gap = torch.empty_like(a.flat)
        mine, theirs, bits = a.flat.numpy(), b.flat.numpy(), self.bits.numpy().view(np.int8)
        out, raw = gap.numpy(), _as_integers(gap)
        for part in _blocks(self.layout.n):
            np.subtract(mine[part], theirs[part], out=out[part])
            np.abs(out[part], out=out[part])
            np.multiply(raw[part], bits[part], out=raw[part])
        return a.like(gap)

    @property
    def count(self) -> int:
        """Number of personal entries."""
        if self._count is None:
            self._count = _counts([self.bits])[0]
        return self._count

    def counts(self) -> dict[str, int]:
        """Return the number of personal entries of each tensor."""
        parts = self.layout.slices
        return dict(zip(parts, _counts([self.bits[part] for part in parts.values()]), strict=True))

    @property
    def fraction(self) -> float:
        """Fraction of the entries that are personal, from 0 to 1."""
        return self.count / max(self.layout.n, 1)

    def packed(self) -> Tensor:
        """Return the bits packed eight to a byte, uint8 `[ceil(n / 8)]`."""
        if self.bits.is_cpu:
            return torch.from_numpy(np.packbits(self.bits.numpy()))
        whole = torch.nn.functional.pad(self.bits.view(torch.uint8), (0, -self.layout.n % 8))
        return (whole.unflatten(0, (-1, 8)) << _places(whole)).sum(1, dtype=torch.uint8)

    @classmethod
    def unpacked(cls, packed: Tensor, layout: Layout) -> Mask:
        """Undo `packed`: return the mask whose bits are packed eight to a byte."""
        if not packed.is_cpu:
            bits = (packed[:, None] >> _places(packed)) & 1
            return cls(bits.flatten()[: layout.n].bool(), layout)
        bits = np.unpackbits(packed.numpy(), count=layout.n).view(np.bool_)
        return cls(torch.from_numpy(bits), layout)

    def __repr__(self) -> str:
        return f"Mask({self.count} of {self.layout.n} personal)"


def equal_to(values: Tensor, number: Tensor | float) -> Tensor:
    """Return whether each value equals a number, which may be a tensor without dimensions."""
    # numpy is up to ten times faster at it.
    return torch.from_numpy(values.numpy() == float(number)) if values.is_cpu else values == number


def _top(values: Tensor, k: int, inside: Tensor) -> Tensor:
    """Mark the `k` highest values where `inside` is true, as `highest` does; none below 1."""
    if k <= 0:
        return torch.zeros_like(inside)
    if values.is_cpu:
        return torch.from_numpy(highest(_as_floats(values), k, inside.numpy()))
    # NaN is sorted as the highest, and no comparison with it is true.
    last = values.masked_fill(~inside, -math.inf).sort().values[-k]
    above, equal = (values > last) & inside, (values == last) & inside
    return above | (equal & (equal.cumsum(0) <= k - above.count_nonzero()))


def _counts(parts: Sequence[Tensor]) -> list[int]:
    """Return the number of true values of each part, read from a GPU all at once."""
    if not parts or parts[0].is_cpu:
        return [int(np.count_nonzero(part.numpy())) for part in parts]
    return torch.stack([part.count_nonzero() for part in parts]).tolist()


def _places(like: Tensor) -> Tensor:
    """Return how far each of eight bits is shifted in a byte, the first one furthest."""
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=like.device)


def highest(values: NDArray, k: int, inside: Bits) -> Bits:
    """Mark the `k` highest of the values where `inside` is true; ties go to the lowest index.

    `k` is at least 1 and at most the number of true entries of `inside`. A sample of the values
    gives bounds for the k-th value, and only values between these bounds are searched. If the
    bounds are wrong, or a value is NaN, all values are searched.
    """
    low, high = _bracket(values, k, inside)
    bits, near, unordered = np.empty_like(inside), [], False
    for part in _blocks(len(values)):
        here, among, above = values[part], inside[part], bits[part]
        np.greater(here, high, out=above)
        above &= among
        between = here >= low
        between &= among
        between ^= above
        near.append(np.flatnonzero(between) + part.start)
        # NaN is neither above nor within the bracket, and would be missed.
        unordered = unordered or bool(np.isnan(here.max()))
    where, room = np.concatenate(near), k - int(np.count_nonzero(bits))
    if unordered or not 0 < room <= len(where):
        bits, room, where = np.zeros_like(inside), k, np.flatnonzero(inside)
    rest = values[where]
    last = np.partition(rest, len(rest) - room)[len(rest) - room]
    more = where[rest > last]
    bits[more] = True
    # Of equal values the first ones, so that every machine chooses the same mask.
    bits[where[rest == last][: room - len(more)]] = True
    return bits


def _bracket(values: NDArray, k: int, inside: Bits) -> tuple[float, float]:
    # Four standard deviations of the k-th value's rank in a random sample. The sample is a strided
    # one, which costs nothing to draw and makes the work, not only the result, the same each time.
    stride = (len(values) // SAMPLE) | 1
    sample = values[::stride][inside[::stride]]
    if stride == 1 or not len(sample):
        return -np.inf, np.inf
    share = k / np.count_nonzero(inside)
    rank = share * len(sample)
    spread = 4 * math.sqrt(rank * (1 - share)) + 1
    first = math.floor(len(sample) - rank - spread)
    last = math.ceil(len(sample) - rank + spread)
    within = [i for i in (first, last) if 0 <= i < len(sample)]
    ordered = np.partition(sample, within)
    return (
        float(ordered[first]) if first >= 0 else -np.inf,
        float(ordered[last]) if last < len(sample) else np.inf,
    )


def _blocks(n: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]


def _as_floats(flat: Tensor) -> NDArray:
    # numpy has no bfloat16, and is slow with halves.
    return (flat.float() if flat.element_size() < 4 else flat).numpy()


def _as_integers(flat: Tensor) -> NDArray:
    # Exact for every bit pattern, and eight times faster than selecting floats by truth values.
    return flat.view(
        {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    ).numpy()
