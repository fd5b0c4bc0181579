"""Range of honest smashed data, calibrated by a server; data outside of it are not used.

Smashed data are the outputs of a client's layers in split learning, a tensor `[samples, ...]`. A
server has no honest update to compare with. It still knows the range of the data on which its
layers were trained: of each value, and of the norm of each sample. A client whose data are outside
is quarantined: its data are not used, and the reason is recorded.

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
    """Check of smashed data against the range of one trusted person's smashed data.

    Smashed data are the outputs of a client's layers, which a client sends to the server.

    Args:
        root: name of the person whom the server trusts.
        widen: margin. The allowed range reaches `widen` times its width further on both sides, and
            norms may be 1 + `widen` times the person's largest norm.
    """

    root: str
    widen: Annotated[float, Ge(0)] = 1.0


@dataclass(frozen=True)
class Span:
    """Bounds of honest smashed data.

    Attributes:
        low: the smallest value.
        high: the largest value.
        longest: the largest L2 norm of a sample.
    """

    low: float
    high: float
    longest: float

    @classmethod
    def of(cls, smashed: Tensor) -> Span:
        """Return the bounds of trusted smashed data, `[samples, ...]`.

        Raises:
            ConfigError: there are no data, or a value is not finite.
        """
        if not smashed.numel() or not bool(torch.isfinite(smashed).all()):
            raise ConfigError("a range is calibrated on at least one sample of finite values")
        low, high = torch.aminmax(smashed)
        return cls(float(low), float(high), float(_norms(smashed).max()))

    @classmethod
    def agreed(cls, spans: Sequence[Span]) -> Span:
        """Return bounds that are medians of several clients' bounds.

        If fewer than half of the clients are malicious, they cannot move a bound beyond the bounds
        of honest clients.

        Raises:
            ConfigError: there are no spans.
        """
        if not spans:
            raise ConfigError("a range agreed by nobody: calibrate on at least one client")
        table = np.array([(s.low, s.high, s.longest) for s in spans])
        return cls(*map(float, np.median(table, axis=0)))

    def widened(self, by: float) -> Span:
        """Return wider bounds.

        The range of values reaches `by` times its width further on both sides. The largest norm is
        multiplied by 1 + `by`.
        """
        room = by * (self.high - self.low)
        return Span(self.low - room, self.high + room, self.longest * (1 + by))

    def fault(self, name: str, smashed: Tensor) -> str | None:
        """Return why smashed data `[samples, ...]` must not be used; None if they are in bounds.

        `name` names the data in the message.
        """
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
