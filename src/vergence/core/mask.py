"""Element masks: which parameters are personal."""

from __future__ import annotations

from fnmatch import fnmatch

import numpy as np
import torch
from torch import Tensor

from vergence.core.params import Layout, Params
from vergence.errors import ConfigError


class Mask:
    """One truth value per parameter entry; true = personal. Same order as a flat vector.

    Example:
        >>> layout = Layout(("w",), ((4,),))
        >>> score = Params(torch.tensor([0.1, 0.5, 0.5, 0.2]), layout)
        >>> Mask.top(score, 1, among=Mask.full(layout)).bits.tolist()
        [False, True, False, False]
    """

    __slots__ = ("bits", "layout")

    def __init__(self, bits: Tensor, layout: Layout) -> None:
        if bits.dtype != torch.bool or bits.shape != (layout.n,):
            raise ConfigError(f"a mask of {layout.n} entries needs bool [{layout.n}]")
        self.bits, self.layout = bits, layout

    @classmethod
    def none(cls, layout: Layout) -> Mask:
        """Nothing is personal."""
        return cls(torch.zeros(layout.n, dtype=torch.bool), layout)

    @classmethod
    def full(cls, layout: Layout) -> Mask:
        """Everything is personal."""
        return cls(torch.ones(layout.n, dtype=torch.bool), layout)

    @classmethod
    def layers(cls, layout: Layout, *globs: str) -> Mask:
        """The tensors whose name matches one of the patterns are personal.

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
        """The k highest scores among the entries where `among` is true; ties: lowest index."""
        k = min(k, among.count)
        chosen = torch.zeros_like(among.bits)
        if k <= 0:
            return cls(chosen, score.layout)
        candidates = among.bits.nonzero().squeeze(1)
        values = score.flat[candidates]
        threshold = values.kthvalue(len(values) - k + 1).values
        above = values > threshold
        chosen[candidates[above]] = True
        ties = candidates[values == threshold][: k - int(above.sum())]
        chosen[ties] = True
        return cls(chosen, score.layout)

    def __invert__(self) -> Mask:
        return Mask(~self.bits, self.layout)

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.bits | other.bits, self.layout)

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.bits & other.bits, self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and torch.equal(self.bits, other.bits)

    __hash__ = None  # type: ignore[assignment]

    def merge(self, personal: Params, shared: Params) -> Params:
        """Take `personal` where the mask is true and `shared` elsewhere."""
        return shared.like(torch.where(self.bits, personal.flat, shared.flat))

    @property
    def count(self) -> int:
        """Number of personal entries."""
        return int(self.bits.sum())

    @property
    def fraction(self) -> float:
        """Share of personal entries."""
        return self.count / max(self.layout.n, 1)

    def packed(self) -> Tensor:
        """Return the bits packed eight to a byte, uint8 `[ceil(n / 8)]`."""
        return torch.from_numpy(np.packbits(self.bits.numpy()))

    @classmethod
    def unpacked(cls, packed: Tensor, layout: Layout) -> Mask:
        """Undo `packed`."""
        bits = np.unpackbits(packed.numpy(), count=layout.n).astype(bool)
        return cls(torch.from_numpy(bits), layout)

    def __repr__(self) -> str:
        return f"Mask({self.count} of {self.layout.n} personal)"
