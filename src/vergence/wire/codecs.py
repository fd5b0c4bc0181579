"""Compression codecs for updates, with error feedback: rounding errors go into the next round.

The values are the entries of an update whose weight is not zero, so every method can be compressed.
A codec turns them into arrays and back; `Compression` picks one and adds error feedback. All of it
is deterministic and works on finite values; bytes are exactly the sizes of the arrays.

Used in `engine`, `experiment`, `studies` and `wire`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt, Le
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.masks import highest
from vergence.core.messages import Reply, SealedReply, seal, weighted_entries
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.serialization import is_finite
from vergence.errors import DataError

Arrays = Mapping[str, Tensor]
BLOCK = 1024
"""Values that share one scale in `Int8`."""
PARTS = ("values", "scale", "where")
"""The names of the arrays that codecs make."""
HALF_MAX = 65504.0
"""The largest finite number of half precision."""
# Smaller scales are not normal numbers in float32; 127 times a larger one would be infinite.
SCALE_MIN, SCALE_MAX = 2.0**-126, 2.0**120
"""Smallest and largest scale of `Int8`."""


class Codec(ABC):
    """Turns finite values, float `[n]`, into arrays and back."""

    @abstractmethod
    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """Return the arrays that travel."""

    @abstractmethod
    def decode(self, arrays: Arrays, n: int, dtype: torch.dtype) -> Tensor:
        """Return the n values that the arrays stand for.

        Raises:
            DataError: the arrays are not what `encode` makes of n values.
        """


@dataclass(frozen=True)
class FullPrecision(Codec):
    """The values as they are, in their own precision; no error."""

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """Return one array `values`, 4 bytes each in float32."""
        return {"values": values}

    def decode(self, arrays: Arrays, n: int, dtype: torch.dtype) -> Tensor:
        """Return the values."""
        _check(arrays, values=(n, dtype))
        return arrays["values"]


@dataclass(frozen=True)
class HalfPrecision(Codec):
    """IEEE half precision, 2 bytes each, rounded to nearest.

    |decoded - value| <= max(2^-11 |value|, 2^-25) up to 65504; larger values saturate there.
    """

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """Return one array `values`, float16 `[n]`."""
        # numpy rounds float64 once; torch would round it to float32 first.
        clamped = values.clamp(-HALF_MAX, HALF_MAX)
        if values.dtype == torch.float64:
            return {"values": torch.from_numpy(clamped.numpy().astype(np.float16))}
        return {"values": clamped.half()}

    def decode(self, arrays: Arrays, n: int, dtype: torch.dtype) -> Tensor:
        """Return the values, widened exactly."""
        _check(arrays, values=(n, torch.float16))
        return arrays["values"].to(dtype)


@dataclass(frozen=True)
class Int8(Codec):
    """Whole multiples, -127 to 127, of one scale per block of 1024 values, rounded to nearest.

    |decoded - value| <= scale / 2 (and 2^-16 of that for the arithmetic), scale = the block's
    largest magnitude / 127. A block below 127 * 2^-126 throughout becomes 0; magnitudes beyond
    127 * 2^120 saturate there.
    """

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """Return `values`, int8 `[n]`, and `scale`, float32 `[ceil(n / 1024)]`."""
        whole = len(values) // BLOCK * BLOCK
        blocks = [values[:whole].reshape(-1, BLOCK), values[whole:].reshape(1, -1)]
        coded = [self._code(b) for b in blocks if b.numel()]
        levels = [c.flatten() for c, _ in coded] or [torch.empty(0, dtype=torch.int8)]
        scales = [s for _, s in coded] or [torch.empty(0)]
        return {"values": torch.cat(levels), "scale": torch.cat(scales)}

    def _code(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        largest = torch.maximum(blocks.amax(1), -blocks.amin(1))
        scale = (largest / 127).clamp(max=SCALE_MAX).float()
        # A block with a smaller scale becomes 0: the error of its levels would have no bound.
        scale = scale * (scale >= SCALE_MIN)
        divisor = scale.masked_fill(scale == 0, torch.inf).to(blocks.dtype)
        levels = (blocks / divisor[:, None]).round_().clamp_(-127, 127)
        return levels.to(torch.int8), scale

    def decode(self, arrays: Arrays, n: int, dtype: torch.dtype) -> Tensor:
        """Return scale * level."""
        _check(arrays, values=(n, torch.int8), scale=(-(-n // BLOCK), torch.float32))
        levels, scale = arrays["values"].to(dtype), arrays["scale"].to(dtype)
        whole = n // BLOCK * BLOCK
        levels[:whole].view(-1, BLOCK).mul_(scale[: n // BLOCK, None])
        levels[whole:].mul_(scale[n // BLOCK :])
        return levels


@dataclass(frozen=True)
class TopK(Codec):
    """The share of values with the largest magnitudes, at least one; all others become 0.

    Their error is that of `values_codec` (none with `FullPrecision`); of ties the lowest index is
    taken. Positions travel as bit-packed indices or as a bitmap, whichever is shorter.

    Args:
        share: the share of values that are not set to 0, in (0, 1].
        values_codec: the codec of the values that are not set to 0.
    """

    share: float
    values_codec: Codec = FullPrecision()

    def count(self, n: int) -> int:
        """Return how many of n values are sent."""
        # 1e-9 undoes the rounding of products such as 0.29 * 100, which is below 29.
        return min(max(math.floor(self.share * n + 1e-9), 1), n)

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """Return the arrays of the largest values and `where`, uint8."""
        n, k = len(values), self.count(len(values))
        if not n:
            return self.values_codec.encode(values) | {"where": torch.empty(0, dtype=torch.uint8)}
        bits = highest(values.abs().numpy(), k, np.ones(n, dtype=bool))
        indices = np.flatnonzero(bits)
        where = pack_indices(indices, n) if _listed(k, n) else np.packbits(bits)
        coded = self.values_codec.encode(torch.from_numpy(values.numpy()[indices]))
        return coded | {"where": torch.from_numpy(where)}

    def decode(self, arrays: Arrays, n: int, dtype: torch.dtype) -> Tensor:
        """Return the sent values in their places, 0 elsewhere."""
        k = self.count(n)
        listed = _listed(k, n)
        coded = {name: array for name, array in arrays.items() if name != "where"}
        place = {name: array for name, array in arrays.items() if name == "where"}
        _check(place, where=(index_bytes(k, n) if listed else -(-n // 8), torch.uint8))
        packed = place["where"].numpy()
        where = (
            unpack_indices(packed, n)[:k]
            if listed
            else np.flatnonzero(np.unpackbits(packed, count=n).view(bool))
        )
        # Positions come from another machine: one named twice would stand for two values.
        if len(where) != k or (k and where.max() >= n) or (np.diff(where) <= 0).any():
            raise DataError(f"a sparse update must name {k} of {n} entries, in order, each once")
        values = self.values_codec.decode(coded, k, dtype)
        out = torch.zeros(n, dtype=dtype)
        out.numpy()[where] = values.numpy()
        return out


@dataclass(frozen=True)
class Compression(NamedOptions, label="wire"):
    """Compression of uploaded updates: a codec, and whether later rounds send its errors.

    With `feedback` a client adds to its update the residual that earlier rounds did not send, and
    stores the new residual: over the rounds nothing is lost, only late.

    Args:
        codec: `fp32` (no compression), `fp16`, `int8`, or `topk`.
        share: share of entries that `topk` sends.
        value_codec: codec of the values that `topk` sends.
        feedback: add the error of one round to the update of the next.

    Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel
    distributed training of speech DNNs", Interspeech 2014 (error feedback); Stich, Cordonnier and
    Jaggi, "Sparsified SGD with memory", NeurIPS 2018 (top-k).
    """

    codec: Literal["fp32", "fp16", "int8", "topk"] = "fp32"
    share: Annotated[float, Gt(0), Le(1)] = 0.01
    value_codec: Literal["fp32", "fp16", "int8"] = "fp32"
    feedback: bool = False

    @cached_property
    def coder(self) -> Codec:
        """The codec with these options."""
        plain: dict[str, Codec] = {"fp32": FullPrecision(), "fp16": HalfPrecision(), "int8": Int8()}
        return (
            TopK(self.share, plain[self.value_codec]) if self.codec == "topk" else plain[self.codec]
        )

    @property
    def lossless(self) -> bool:
        """True if the values arrive unchanged."""
        return self.codec == "fp32"

    def compress(
        self, update: Tensor, residual: Tensor | None = None
    ) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Return the arrays that travel, the values they decode to, and the residual.

        The function has no state: the caller passes the returned residual with the next update;
        None stands for zeros. Without feedback the residual is always None.

        Raises:
            DataError: the update holds NaN or infinity, or has another length than the residual.
        """
        if residual is not None and self.feedback:
            if residual.shape != update.shape:
                raise DataError(
                    f"an update of {len(update)} values cannot take up a residual of "
                    f"{len(residual)}; keep residuals by entry of the model"
                )
            update = update + residual
        if len(update) and not all(bool(x.isfinite()) for x in torch.aminmax(update)):
            raise DataError("an update that holds NaN or infinity cannot be compressed")
        arrays = self.coder.encode(update)
        # What the server will decode: the residual must be exactly the error that it sees.
        decoded = self.coder.decode(arrays, len(update), update.dtype)
        return arrays, decoded, update - decoded if self.feedback else None


def seal_coded(
    answer: Reply, round: int, how: Compression, residuals: Mapping[str, Params]
) -> tuple[SealedReply, Mapping[str, Params]]:
    """Seal a reply whose values travel by a codec; return it and the new residuals, per tree.

    An update that holds NaN or infinity is sealed as it is, for the guards to refuse.
    """
    if how.lossless:
        return seal(answer, round), residuals
    trees, coded, new_residuals = {}, {}, dict(residuals)
    for name, update in answer.trees.items():
        mask = weighted_entries(answer.weight_of(name), update.layout)
        values = mask.take(update)
        residual = mask.take(residuals[name]) if name in residuals else None
        if not is_finite(values if residual is None else values + residual):
            return seal(answer, round), residuals
        coded[name], decoded, rest = how.compress(values, residual)
        trees[name] = mask.put(decoded)
        if rest is not None:
            new_residuals[name] = mask.put(rest)
    plain = seal(replace(answer, trees=trees), round)
    sent = {n: replace(t, coded=coded[n], how=how) for n, t in plain.trees.items()}
    return replace(plain, trees=sent), new_residuals


def index_width(n: int) -> int:
    """Return the bits of an index below n."""
    return max(math.ceil(math.log2(n)), 1) if n else 1


def index_bytes(k: int, n: int) -> int:
    """Return the bytes of k packed indices below n."""
    return math.ceil(k * index_width(n) / 8)


def pack_indices(indices: NDArray, n: int) -> NDArray[np.uint8]:
    """Return indices below n, bit-packed, most significant bit first."""
    width = index_width(n)
    # The last byte is filled with the last index again: a reader may read it twice without harm.
    filled = np.append(indices, np.repeat(indices[-1:], -(-8 // width)))
    octets = filled.astype(">u8").view(np.uint8).reshape(-1, 8)
    bits = np.unpackbits(octets[:, 8 - -(-width // 8) :], axis=1)
    return np.packbits(bits[:, bits.shape[1] - width :])[: index_bytes(len(indices), n)]


def unpack_indices(packed: NDArray[np.uint8], n: int) -> NDArray[np.int64]:
    """Undo `pack_indices`; the last index may come more than once."""
    width = index_width(n)
    bits = np.unpackbits(packed, count=len(packed) * 8 // width * width).reshape(-1, width)
    octets = np.zeros((len(bits), 64), dtype=np.uint8)
    octets[:, 64 - width :] = bits
    return np.packbits(octets, axis=1).view(">u8").ravel().astype(np.int64)


def _listed(k: int, n: int) -> bool:
    return index_bytes(k, n) < -(-n // 8)


def _check(arrays: Arrays, **wanted: tuple[int, torch.dtype]) -> None:
    got = {name: (len(a), a.dtype) if a.ndim == 1 else None for name, a in arrays.items()}
    if got != wanted:
        raise DataError(f"a coded update holds {got}, not {wanted}")
