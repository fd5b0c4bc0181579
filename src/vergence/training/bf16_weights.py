"""Training with weights in bfloat16, rounded from float32 parameters that an optimiser moves.

Products and convolutions read half the bytes and use a processor's bfloat16 instructions. Steps
are often smaller than bfloat16's 8 bits can represent, so they are added up in float32 ("master"
parameters), which are rounded for every step.
Used by `engine.solver_selection`, `training.sequential` and `training.stacked`.

Source: Micikevicius et al., "Mixed Precision Training", 2018, section 3.1.
"""

# torch.optim is built on these kernels; they have no public names.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import types

import torch
from torch import Tensor, nn

from vergence.core.layers.batch_norm import statistics_of
from vergence.core.params import Layout
from vergence.core.task import NORMS
from vergence.training.gradients import take_gradients

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
FASTER = nn.Conv2d
"""Layer that bfloat16 makes faster on a CPU; networks without one take longer than in float32."""
# On a CPU torch 2.13 returns NaN, or numbers up to 1e34, as gradients of some bfloat16 3-d
# convolutions, such as over two time steps with 3 x 3 x 3 filters.
FLOAT32_LAYERS = (*NORMS, nn.Conv3d)
"""Layers that stay in float32."""
INSTRUCTIONS = ("amx_bf16", "avx512_bf16")


class HalfNetwork:
    """A network that reads a bfloat16 copy of float32 parameters, which lie in one vector.

    Layers of `FLOAT32_LAYERS` read the float32 parameters themselves. In a forward pass under
    autocast (`training_loss`) products take bfloat16, and the loss float32; norms, softmax and
    sums round only their results.

    Args:
        module: a network with the layout's names, on the device of `vector`.
        layout: names of the parameters, and their places in `vector`.
        vector: the float32 parameters, which the caller's optimiser changes.
    """

    def __init__(self, module: nn.Module, layout: Layout, vector: Tensor) -> None:
        self.module, self.vector = module, vector
        keep_types(module)
        self.copy = torch.empty_like(vector, dtype=torch.bfloat16)
        sums, counted = torch.empty_like(vector), statistics_of(module)
        trained = [name for name in layout.names if name not in counted]
        self.sums = [layout.view(sums, name) for name in trained]
        named, float32_names = dict(module.named_parameters()), float32_parameters(module)
        self.parameters = [named[name] for name in trained]
        for name in layout.names:
            named[name].data = layout.view(vector if name in float32_names else self.copy, name)
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """Round the parameters again, after they have changed."""
        self.copy.copy_(self.vector)

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """Return the last backward pass's gradients in the parameters' own type."""
        torch._foreach_copy_(self.sums, take_gradients(self.parameters))
        return self.sums


def float32_parameters(module: nn.Module) -> set[str]:
    """Return the names of the parameters that stay in float32."""
    layers = module.named_modules()
    return {
        f"{layer}.{name}" if layer else name
        for layer, part in layers
        if isinstance(part, FLOAT32_LAYERS)
        for name, _ in part.named_parameters(recurse=False)
    }


def keep_types(module: nn.Module, kinds: tuple[type[nn.Module], ...] = (nn.Conv3d,)) -> None:
    """Let convolutions of these kinds compute in the type of their weights, also under autocast.

    Without autocast this changes no bit of a result.
    """
    for layer in module.modules():
        if type(layer) in kinds:
            layer.forward = types.MethodType(_in_own_type, layer)


def _in_own_type(self: nn.Conv2d, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return self._conv_forward(x.to(self.weight.dtype), self.weight, self.bias)


def bf16_instructions(device: torch.device) -> str:
    """Return the name of a device's bfloat16 instructions; empty where none are known.

    The engine calls this when it chooses a precision.
    """
    if device.type == "cuda":
        known = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16 of the GPU" if known else ""
    # An older torch has no such function.
    there = getattr(torch.cpu, "get_capabilities", dict)()
    return next((name for name in INSTRUCTIONS if there.get(name)), "")
