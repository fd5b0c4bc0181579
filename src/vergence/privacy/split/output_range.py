"""Range of honest smashed data, calibrated by a server; data outside of it are not used.

Smashed data are one tensor `[samples, ...]`. A server that holds no honest update to compare with
still knows what its tail was trained on: each value and the length of each sample lie in a range. A
client outside is quarantined by name and reason, as by the guards.

Used by `engine.protections.output_range`, `experiment.privacy.schema` and `privacy.config`.

Source: the idea that outputs far outside the realistic range betray a liar: SplitFed thesis,
chapter 5.1, "Robustness to model poisoning attacks".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from vergence.core.options import NamedOptions
from vergence.errors import ConfigError


@dataclass(frozen=True)
class OutputRange(NamedOptions, label="privacy.output_range"):
    """Person whose pictures give the server the range of honest smashed data.

    Args:
        root: the person whom the server trusts.
        widen: margin around the root's range: `widen` times its width on both sides, and norms up
            to 1 + `widen` times the largest norm.
    """

    root: str
    widen: Annotated[float, Ge(0)] = 1.0


@dataclass(frozen=True)
class Span:
    """Bounds of honest values, and of the L2 norms of honest samples."""

    low: float
    high: float
    longest: float

    @classmethod
    def of(cls, smashed: Tensor) -> Span:
        """Return the span of trusted smashed data, `[samples, ...]`.

        Raises:
            ConfigError: there are no data, or a value is not finite.
        """
        if not smashed.numel() or not bool(torch.isfinite(smashed).all()):
            raise ConfigError("a range is calibrated on at least one sample of finite values")
        low, high = torch.aminmax(smashed)
        return cls(float(low), float(high), float(_norms(smashed).max()))

    @classmethod
    def agreed(cls, spans: Sequence[Span]) -> Span:
        """Return the median bounds of several clients' spans.

        Malicious clients that are fewer than half cannot widen the bounds beyond an honest
        client's.

        Raises:
            ConfigError: there are no spans.
        """
        if not spans:
            raise ConfigError("a range agreed by nobody: calibrate on at least one client")
        table = np.array([(s.low, s.high, s.longest) for s in spans])
        return cls(*map(float, np.median(table, axis=0)))

    def widened(self, by: float) -> Span:
        """Return wider bounds: by `by` widths on both sides, and norms 1 + `by` times as large."""
        room = by * (self.high - self.low)
        return Span(self.low - room, self.high + room, self.longest * (1 + by))

    def fault(self, name: str, smashed: Tensor) -> str | None:
        """Return why smashed data must not be computed with; None if they may."""
        if not smashed.numel():
            return None
        low, high = (float(bound) for bound in torch.aminmax(smashed))
        # Written so that NaN, for which every comparison is false, is refused.
        if not self.low <= low <= high <= self.high:
            return (
                f"range: '{name}' reaches from {low:.4g} to {high:.4g}, calibrated are "
                f"{self.low:.4g} to {self.high:.4g}"
            )
        # Values that are all in range can still add up to a sample far outside of what was seen.
        longest = float(_norms(smashed).max())
        if not longest <= self.longest:
            return (
                f"range: a sample of '{name}' has norm {longest:.4g}, calibrated are at most "
                f"{self.longest:.4g}"
            )
        return None


def _norms(smashed: Tensor) -> Tensor:
    return torch.linalg.vector_norm(smashed.flatten(1).double(), dim=1)
