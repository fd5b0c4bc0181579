"""DP-SGD for single samples: batches drawn by chance, clipped gradients, noise on their sum.

Opacus computes the norms of per-sample gradients without the gradients (ghost clipping), which for
layers as large as a LeNet's costs a second backward pass instead of seven. What it does not do is
done here: it takes a convolution's input for contiguous in memory and silently gets the norms wrong
where networks keep their weights channels-last, as they do here; its noise and its batches come
from ordinary generators, here from the run's secret.

Source: Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1; ghost
clipping: Li et al., "Large language models can be strong differentially private learners", ICLR
2022.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from vergence.core.site import Batch
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.privacy.keyed import Draws, hidden

MIXING = (nn.modules.batchnorm._BatchNorm,)


def refuse(module: nn.Module) -> None:
    """Refuse a network in which one sample's gradient depends on others in its batch.

    Raises:
        ConfigError: names the layer, and what to put in its place.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, MIXING):
            raise ConfigError(
                f"dp: '{name}' is a {type(layer).__name__}, which mixes the samples of a batch; "
                "use GroupNorm or LayerNorm"
            )
        if isinstance(layer, nn.MultiheadAttention):
            raise ConfigError(
                f"dp: '{name}' is a MultiheadAttention, whose weights Opacus cannot see; build "
                "attention from Linear layers"
            )


class Clipper:
    """Sums per-sample gradients of one network, each at most `clip` long.

    The network stays what it was: its own `forward`, its own parameters; hooks watch it. `close`
    takes them off.

    Raises:
        ConfigError: a layer mixes samples, or the extra `dp` is not installed.
    """

    def __init__(self, module: nn.Module, clip: float) -> None:
        refuse(module)
        self.module, self.clip = module, clip
        self.watched = _ghost()(module, max_grad_norm=clip, loss_reduction="sum")
        self.hooks = [
            layer.register_forward_pre_hook(_contiguous)
            for layer in module.modules()
            if isinstance(layer, nn.Conv2d)
        ]
        owned = [list(layer.parameters(recurse=False)) for layer in module.modules()]
        self.cheapest = [min(ps, key=lambda p: p.numel()) for ps in owned if ps]

    def gradients(self, losses: Tensor) -> list[Tensor]:
        """Return the sum of clipped gradients, per parameter, of `[batch]` losses one per sample.

        Call it once for every forward pass in training mode; an empty batch needs none.
        """
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        with warnings.catch_warnings():  # the first layer's input, data, has no gradient
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            # Passes every layer, whose inputs and gradients are all that norms are made of.
            torch.autograd.backward(losses.sum(), retain_graph=True, inputs=self.cheapest)
            factors = self.watched.get_clipping_coef().detach()
            for parameter in parameters:
                parameter.grad = None
            self.watched.disable_hooks()
            (factors * losses).sum().backward()
        self.watched.enable_hooks()
        taken = []
        for parameter in parameters:
            grad, parameter.grad = parameter.grad, None
            taken.append(torch.zeros_like(parameter) if grad is None else grad)
        return taken

    def close(self) -> None:
        """Take all hooks off the network."""
        for hook in self.hooks:
            hook.remove()
        self.watched.to_standard_module()


def each(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """Return the losses of a batch's samples, `[batch]`, each as the task would alone."""
    return torch.stack([
        task.loss(output[i : i + 1], {name: column[i : i + 1] for name, column in batch.items()})
        for i in range(len(output))
    ])  # fmt: skip


def poisson(samples: int, rate: float, draws: Draws) -> Tensor:
    """Return the numbers of the samples in a step: each by itself with this chance, maybe none.

    The accountant counts on it that nobody can tell who is in: they come from a secret.
    """
    return torch.from_numpy((draws.uniform(samples) < rate).nonzero()[0])


def noised(gradients: list[Tensor], deviation: float, expected: float, draws: Draws) -> None:
    """Turn sums of clipped gradients into a private mean, in place.

    Args:
        gradients: of `Clipper.gradients`, or zeros for an empty batch: noise comes all the same.
        deviation: of the noise on every entry of the sum: noise multiplier times clip.
        expected: samples in a batch on average, rate times samples: public.
        draws: of this client, round and step.
    """
    flat = draws.gaussian(sum(g.numel() for g in gradients))
    at = 0
    for gradient in gradients:
        noise = flat[at : at + gradient.numel()]
        gradient.copy_(hidden(gradient, deviation, noise)).div_(expected)
        at += gradient.numel()


def _contiguous(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.contiguous() if isinstance(x, Tensor) else x for x in given)


def _ghost() -> Any:
    try:
        with warnings.catch_warnings():  # of its own imports
            warnings.simplefilter("ignore")
            from opacus.grad_sample import (  # pyright: ignore[reportMissingImports]
                GradSampleModuleFastGradientClipping,
            )
    except ImportError:
        raise ConfigError("DP-SGD needs opacus: pip install 'vergence[dp]'") from None
    return GradSampleModuleFastGradientClipping
