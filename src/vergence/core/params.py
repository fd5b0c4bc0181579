"""Parameters: one flat vector, a layout that names its parts, and arithmetic on the vector.

Used in most packages.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vergence.core.tags import tagged
from vergence.errors import ConfigError

# In NHWC order a training step of LeNet takes two thirds of the time.
CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
"""Storage order of convolution weights by rank."""


@tagged("Layout")
@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors that one flat vector holds, in order.

    Convolution weights are stored in channels-last order.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of each named tensor in the flat vector."""
        out, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            out[name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)
        return out

    @cached_property
    def n(self) -> int:
        """Number of entries of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def only(self, names: Collection[str]) -> Layout:
        """Return the layout of the named tensors alone, in the order of this layout."""
        entries = [(n, s) for n, s in zip(self.names, self.shapes, strict=True) if n in names]
        return Layout(tuple(n for n, _ in entries), tuple(s for _, s in entries))

    def view(self, flat: Tensor, name: str) -> Tensor:
        """Return the named tensor as a view into `flat`, convolution weights channels-last."""
        shape = self.shapes[self.names.index(name)]
        part = flat[self.slices[name]]
        order = CHANNELS_LAST.get(len(shape))
        if order is None:
            return part.view(shape)
        stored = part.view([shape[i] for i in order])
        return stored.permute([order.index(i) for i in range(len(shape))])

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module's trainable parameters.

        Raises:
            ConfigError: the module keeps running statistics, which must not be averaged; or it has
                one parameter under two names, or parameters of several types; or a layer has no
                size yet.
        """
        for name, part in module.named_modules():
            if any(is_lazy(parameter) for parameter in part.parameters(recurse=False)):
                place = f"layer '{name}' of {type(module).__name__}" if name else "the network"
                kind = type(part).__name__
                raise ConfigError(
                    f"{place} is a {kind}, which has no size yet: use {kind.replace('Lazy', '')} "
                    "with its size, or call forward once where the network is built"
                )
        buffers = [n for n in module.state_dict() if n not in dict(module.named_parameters())]
        tied = dict(module.named_parameters(remove_duplicate=False))
        for second in (name for name in buffers if name in tied):
            first = next(name for name, parameter in tied.items() if parameter is tied[second])
            raise ConfigError(
                f"{type(module).__name__} has tied weights: '{first}' and '{second}' are one "
                "parameter, and parameters are averaged by name: register it once and use it "
                "twice in forward, as torch.nn.functional.linear(x, self.embedding.weight)"
            )
        if buffers:
            raise ConfigError(
                f"{type(module).__name__} keeps buffers {buffers[:3]} in its state: running "
                "statistics are not parameters. For BatchNorm say what becomes of them: averaged "
                "over clients (vergence.average_batch_norm(network)), none, as GroupNorm takes its "
                "place (vergence.group_norm), kept as they are (vergence.freeze_batch_norm), or "
                "kept with each client (vergence.personalize_batch_norm and the method FedBN). "
                "Register constants with persistent=False"
            )
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        kinds = {p.dtype: n for n, p in reversed(named)}
        # In one vector all of them would silently have the type of the first.
        if len(kinds) > 1 or any(kind.is_complex for kind in kinds):
            texts = [f"'{n}' is {str(k).removeprefix('torch.')}" for k, n in kinds.items()]
            raise ConfigError(
                f"{type(module).__name__} has parameters of several types, or complex ones "
                f"({', '.join(texts)}): give all of them one real type, as network.float()"
            )
        return cls(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))


class Params(Mapping[str, Tensor]):
    """Named tensors that are views into one flat vector; arithmetic acts on the whole vector.

    Parameters are never changed in place: every operation returns new parameters.
    """

    __slots__ = ("flat", "layout")

    def __init__(self, flat: Tensor, layout: Layout) -> None:
        if flat.shape != (layout.n,):
            raise ConfigError(f"parameters need {layout.n} entries, got {tuple(flat.shape)}")
        self.flat, self.layout = flat, layout

    @classmethod
    def of(cls, module: nn.Module) -> Params:
        """Copy a module's trainable parameters."""
        layout = Layout.of(module)
        tensors = dict(module.named_parameters())
        like = next(iter(tensors.values()), torch.empty(0))
        flat = torch.empty(layout.n, dtype=like.dtype, device=like.device)
        for name in layout.names:
            layout.view(flat, name).copy_(tensors[name].detach())
        return cls(flat, layout)

    @classmethod
    def zeros(cls, layout: Layout, dtype: torch.dtype = torch.float32) -> Params:
        """Return zeros of this layout."""
        return cls(torch.zeros(layout.n, dtype=dtype), layout)

    @classmethod
    def named(cls, **tensors: Tensor) -> Params:
        """Copy tensors of one dtype into new parameters, in the order given."""
        layout = Layout(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()))
        kinds = {t.dtype for t in tensors.values()} or {torch.float32}
        if len(kinds) > 1:
            raise ConfigError(f"tensors that travel together need one type, got {kinds}")
        like = next(iter(tensors.values()), torch.empty(0))
        flat = torch.empty(layout.n, dtype=kinds.pop(), device=like.device)
        for name, tensor in tensors.items():
            layout.view(flat, name).copy_(tensor)
        return cls(flat, layout)

    @classmethod
    def join(cls, *parts: Params) -> Params:
        """Concatenate the tensors of several parameters into one flat vector."""
        layout = Layout(
            tuple(name for part in parts for name in part.layout.names),
            tuple(shape for part in parts for shape in part.layout.shapes),
        )
        return cls(torch.cat([part.flat for part in parts]), layout)

    def copy(self) -> Params:
        """Return a copy, which shares no memory with the original."""
        return self.like(self.flat.clone())

    def __getitem__(self, name: str) -> Tensor:
        return self.layout.view(self.flat, name)

    def __contains__(self, name: object) -> bool:
        return name in self.layout.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)

    def __eq__(self, other: object) -> bool:
        """True if names, dtypes and values are equal; dataclasses with parameters use this."""
        if not isinstance(other, Params):
            return NotImplemented
        same = self.layout == other.layout and self.flat.dtype == other.flat.dtype
        return self is other or (same and torch.equal(self.flat, other.flat))

    __hash__ = None  # type: ignore[assignment]

    def like(self, flat: Tensor) -> Params:
        """Return parameters with this layout whose entries are the vector `flat`, not copied."""
        return Params(flat, self.layout)

    def only(self, names: Collection[str]) -> Params:
        """Return parameters with only the named tensors, in the order of this layout."""
        layout = self.layout.only(names)
        parts = [self.flat[self.layout.slices[name]] for name in layout.names]
        return Params(torch.cat(parts) if parts else self.flat[:0], layout)

    def put(self, part: Params) -> Params:
        """Return new parameters in which tensors of `part` replace those of the same names."""
        flat = self.flat.clone()
        for name, at in part.layout.slices.items():
            flat[self.layout.slices[name]] = part.flat[at]
        return self.like(flat)

    def __add__(self, other: Params | float) -> Params:
        return self.like(self.flat + _flat(other))

    def __sub__(self, other: Params | float) -> Params:
        return self.like(self.flat - _flat(other))

    def __mul__(self, other: Params | float) -> Params:
        return self.like(self.flat * _flat(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Params | float) -> Params:
        return self.like(self.flat / _flat(other))

    def __neg__(self) -> Params:
        return self.like(-self.flat)

    def __abs__(self) -> Params:
        return self.like(self.flat.abs())

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest entry; NaN if any entry is NaN, zeros if there are none."""
        if not self.layout.n:
            return 0.0, 0.0
        low, high = read_numbers(torch.aminmax(self.flat))
        return low, high

    def norm(self) -> float:
        """Return the L2 norm of the whole vector."""
        return float(torch.linalg.vector_norm(self.flat))

    def dot(self, other: Params) -> float:
        """Return the inner product with other parameters."""
        return float(self.flat @ other.flat)

    def __repr__(self) -> str:
        return f"Params({self.layout.n} entries in {len(self)} tensors)"


def quickly_finite(flat: Tensor) -> bool:
    """Return whether all entries are known to be finite from their sum.

    False decides nothing: finite entries may have an infinite sum, and a GPU is not asked.
    """
    # The sum takes half the time of the extremes.
    return flat.is_cpu and flat.is_floating_point() and math.isfinite(flat.sum())


def read_numbers(values: Sequence[Tensor | float]) -> list[float]:
    """Return numbers, some of them tensors without dimensions, that are read from a GPU at once."""
    far = [value for value in values if isinstance(value, Tensor) and not value.is_cpu]
    # Each reading waits until the GPU has done all its work.
    if not far:
        return [float(value) for value in values]
    read = iter(torch.stack([value.double() for value in far]).tolist())
    return [
        next(read) if isinstance(value, Tensor) and not value.is_cpu else float(value)
        for value in values
    ]


def _flat(other: Params | float) -> Tensor | float:
    return other.flat if isinstance(other, Params) else other
