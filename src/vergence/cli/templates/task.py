"""A task of one's own: what a network's outputs mean, its loss, and how it is scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from vergence import Samples, Task


@dataclass(frozen=True)
class MyTask(Task):
    """Predict y from x; batches hold `x` `[n, inputs]` and `y` `[n]`."""

    input_columns: ClassVar[tuple[str, ...]] = ("x",)
    labels: ClassVar[tuple[str, ...]] = ("y",)
    headline: ClassVar[str] = "error"
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"error"})

    def forward(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """The predictions `[n]`."""
        return module(batch["x"]).squeeze(1)

    def loss(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The mean squared error."""
        return (output - batch["y"]).square().mean()

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """The mean absolute error and, as `score` in [0, 1], 1 / (1 + error)."""
        error = float((outputs - samples.columns["y"]).abs().mean())
        return {"error": error, "score": 1 / (1 + error)}
