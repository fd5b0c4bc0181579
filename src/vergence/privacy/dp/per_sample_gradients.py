"""Sums of per-sample gradients, each cut to a length, from one forward and one backward pass.

A layer's gradient of one sample is made of what entered the layer and of the loss's gradient at its
output, so that one backward pass over outputs alone, without a gradient of any weight, gives the
lengths of all samples; then each layer's sum is formed once, weighted. Linear layers never hold a
sample's gradient (ghost clipping); convolutions with few weights and many places do, as that costs
less; any other layer is differentiated by itself.

Source: Goodfellow, "Efficient per-example gradient computations", 2015; ghost clipping: Li et al.,
"Large language models can be strong differentially private learners", ICLR 2022; convolutions: Bu
et al., "Scalable and efficient training of large convolutional neural networks with differential
privacy", NeurIPS 2022, which chooses per layer as here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional

from vergence.core.layers.batch_norm import PersonalBatchNorm
from vergence.errors import ConfigError

MIXING = (nn.modules.batchnorm._BatchNorm, PersonalBatchNorm)
FEW = 4
"""Samples whose rows are formed at a time."""
Grads = dict[str, Tensor]
"""A layer's own parameters by name."""


def refuse(module: nn.Module) -> None:
    """Refuse a network in which one sample's gradient depends on others in its batch.

    Raises:
        ConfigError: names the layer, and what to put in its place.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, MIXING):
            raise ConfigError(
                f"dp: '{name}' is a {type(layer).__name__}, which mixes the samples of a batch; "
                "use GroupNorm or LayerNorm, or vergence.freeze_batch_norm(network)"
            )
        if isinstance(layer, nn.MultiheadAttention):
            raise ConfigError(
                f"dp: '{name}' is a MultiheadAttention, whose weights are used outside of layers; "
                "build attention from Linear layers"
            )
        if isinstance(layer, nn.RNNBase):
            raise ConfigError(
                f"dp: '{name}' is an {type(layer).__name__}, which uses its weights at every step; "
                "use a model without (mixture_transformer, where clips are summarised)"
            )


class LayerRows:
    """A layer that multiplies rows `[B, T, i]` by its weights; `back` `[B, T, o]` came back.

    A sample's gradient is the sum over T of outer products. Its length takes T^2 (i + o) products
    without forming it, T i o with it: whichever is less. Rows may be a view that says everything
    several times; what is formed of them at a time stays in the cache. Of a convolution, whose i
    are channels and taps, they come as `[B, T..., taps, channels]`, or where channels do not come
    last as `[B, channels, taps, T...]`.
    """

    def __init__(self, biased: bool, rows: Tensor, back: Tensor, last: bool = True) -> None:
        self.back, self.last = back, last
        (samples, places, outer), self.each = back.shape, None
        inner = rows[0].numel() // places
        if places * (inner + outer) > inner * outer:
            self.each = back.new_empty(samples, outer, inner)
            pairs = zip(rows.split(FEW), back.split(FEW), self.each.split(FEW), strict=True)
            for some, came, out in pairs:
                torch.bmm(came.transpose(1, 2), self._formed(some, places, inner), out=out)
        else:
            self.rows = self._formed(rows, places, inner)
        self.each_bias = back.sum(1) if biased else None

    def _formed(self, rows: Tensor, places: int, inner: int) -> Tensor:
        if self.last:
            return rows.reshape(-1, places, inner)
        return rows.reshape(-1, inner, places).transpose(1, 2)

    def squares(self) -> Tensor:
        """Return the squared length of every sample's gradient, `[B]`."""
        if self.each is not None:
            found = torch.linalg.vector_norm(self.each.flatten(1), dim=1).square()
        else:
            across = self.rows @ self.rows.transpose(1, 2)
            found = (across * (self.back @ self.back.transpose(1, 2))).sum((1, 2))
        return found if self.each_bias is None else found + self.each_bias.square().sum(1)

    def total(self, factors: Tensor, into: Grads) -> None:
        """Write the sum of gradients, each times its factor `[B]`."""
        weight = into["weight"].movedim(1, -1) if self.last else into["weight"]
        if self.each is not None:
            weight.copy_(torch.tensordot(factors, self.each, 1).view(weight.shape))
        else:
            back, rows = (self.back * factors[:, None, None]).flatten(0, 1), self.rows.flatten(0, 1)
            if weight.dim() == 2:  # a large layer's sum is written where it is wanted
                torch.mm(back.T, rows, out=weight)
            else:
                weight.copy_((back.T @ rows).view(weight.shape))
        if self.each_bias is not None:
            into["bias"].copy_(factors @ self.each_bias)


@dataclass
class WholeLayer:
    """A layer of any kind: the gradients of all samples, `[B, ...]` per parameter."""

    each: Grads

    def squares(self) -> Tensor:
        """Return the squared length of every sample's gradient, `[B]`."""
        return torch.stack([g.flatten(1).square().sum(1) for g in self.each.values()]).sum(0)

    def total(self, factors: Tensor, into: Grads) -> None:
        """Write the sum of gradients, each times its factor `[B]`."""
        for name, gradients in self.each.items():
            into[name].copy_(torch.tensordot(factors, gradients, 1))


class Clipper:
    """Sums per-sample gradients of one network, each at most `clip` long over all parameters.

    The network stays what it was: its own `forward`, its own parameters; hooks watch it, as long
    as `with` says. One that is closed watches no more.

    Raises:
        ConfigError: a layer mixes samples.
    """

    def __init__(self, module: nn.Module, clip: float) -> None:
        refuse(module)
        self.module, self.clip = module, clip
        self.names = {layer: name for name, layer in module.named_modules()}
        self.caught: dict[nn.Module, tuple[tuple[Tensor, ...], Tensor, int]] = {}
        self.own = [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))]
        self.hooks = [layer.register_forward_hook(self._catch) for layer in self.own]
        self.norms, self.watching = torch.zeros(0), True

    def gradients(self, losses: Tensor, into: Mapping[str, Tensor]) -> None:
        """Write the sum of clipped gradients of `[batch]` losses, one per sample.

        A gradient that is not finite, or whose length is not, counts as zero: a sum that one sample
        alone makes NaN tells of that sample.

        Call it once for every forward pass; an empty batch needs none.

        Args:
            losses: each a function of its own sample alone.
            into: by the name of a parameter, of its shape; written over.

        Raises:
            ConfigError: a layer is not passed once by every sample for itself.
        """
        caught, self.caught = self.caught, {}
        self.watching = False
        outputs = [output for _, output, _ in caught.values()]
        backs = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        with torch.no_grad():
            seen = [
                (layer, (*what, back))
                for (layer, what), back in zip(caught.items(), backs, strict=True)
                if back is not None
            ]
            parts = {layer: self._part(layer, *what, len(losses)) for layer, what in seen}
            self.norms = lengths(parts.values())
            odd = ~self.norms.isfinite()
            if odd.any():  # 0 times infinity is none: one sample would spoil the sum of all
                parts = {layer: self._part(layer, *what, len(losses), odd) for layer, what in seen}
                self.norms = lengths(parts.values())
            # A rounding error is not to make a gradient longer than the bound.
            factors = (self.clip / (self.norms * (1 + 1e-5) + 1e-30)).clamp(max=1)
            for layer in self.own:
                start = self.names[layer] + "." if self.names[layer] else ""
                mine = {n: into[start + n] for n, _ in layer.named_parameters(recurse=False)}
                if layer in parts:
                    parts[layer].total(factors, mine)
                else:  # this pass left it out
                    for gradient in mine.values():
                        gradient.zero_()
        self.watching = True

    def __enter__(self) -> Clipper:
        """Watch already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take all hooks off the network."""
        for hook in self.hooks:
            hook.remove()

    def _catch(self, layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if not self.watching or not torch.is_grad_enabled():
            return
        if layer in self.caught:
            raise self._odd(layer, "is passed twice in a step")
        self.caught[layer] = (given, output, output._version)

    def _odd(self, layer: nn.Module, what: str) -> ConfigError:
        return ConfigError(
            f"dp: '{self.names[layer]}' {what}: its gradient cannot be told apart by samples; use "
            "another model"
        )

    def _part(
        self,
        layer: nn.Module,
        given: tuple[Tensor, ...],
        output: Tensor,
        version: int,
        back: Tensor,
        batch: int,
        odd: Tensor | None = None,
    ) -> LayerRows | WholeLayer:
        if output._version != version:
            raise self._odd(layer, "has its output changed in place")
        if len(output) != batch or any(len(x) != batch for x in given):
            raise self._odd(layer, f"takes {len(output)} rows for {batch} samples")
        given = tuple(x.detach() for x in given)
        if odd is not None:
            given, back = tuple(blank(x, odd) for x in given), blank(back, odd)
        biased = layer.bias is not None if isinstance(layer, nn.Linear | nn.Conv2d) else False
        if type(layer) is nn.Linear and output.dim() > 1:
            rows = given[0].reshape(batch, -1, layer.in_features)
            return LayerRows(biased, rows, back.reshape(batch, -1, layer.out_features))
        if type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            rows, last = _places(layer, given[0])
            return LayerRows(biased, rows, back.permute(0, 2, 3, 1).flatten(1, 2), last)
        each = _each(layer, given, back)
        if odd is not None:
            each = {name: blank(gradients, odd) for name, gradients in each.items()}
        return WholeLayer(each)


def lengths(parts: Iterable[LayerRows | WholeLayer]) -> Tensor:
    """Length of every sample's gradient over all layers, `[B]`."""
    return torch.stack([part.squares() for part in parts]).sum(0).sqrt()


def blank(rows: Tensor, odd: Tensor) -> Tensor:
    """Rows `[B, ...]` with zeros for some samples, where they may hold NaN or infinity."""
    return rows.masked_fill(odd.view(-1, *[1] * (rows.dim() - 1)), 0)


def _places(layer: nn.Conv2d, given: Tensor) -> tuple[Tensor, bool]:
    """Inputs of each place of a convolution's output, `[B, T, i]`.

    It is a view: with channels last windows are copied in long rows, with channels first outputs
    are: whichever rows are longer. Tells whether channels come last.
    """
    given = functional.pad(given, layer._reversed_padding_repeated_twice)  # "same" included
    last = layer.kernel_size[1] * layer.in_channels >= given.shape[3]
    found = given.permute(0, 2, 3, 1).contiguous() if last else given
    for at in (0, 1):
        spread, axis = layer.dilation[at], at + 1 if last else at + 2
        reach = (layer.kernel_size[at] - 1) * spread + 1
        found = found.unfold(axis, reach, layer.stride[at])[..., ::spread]
    return found.permute(0, 1, 2, 4, 5, 3) if last else found.permute(0, 1, 4, 5, 2, 3), last


def _each(layer: nn.Module, given: tuple[Tensor, ...], back: Tensor) -> Grads:
    """Differentiate a layer by its own parameters, sample by sample."""
    own = {name: p.detach() for name, p in layer.named_parameters(recurse=False)}

    def alone(back: Tensor, *given: Tensor) -> Grads:
        def run(parameters: Grads) -> Tensor:
            return functional_call(layer, parameters, tuple(x[None] for x in given))

        pull: Callable[..., Any] = vjp(run, own)[1]
        return pull(back[None])[0]

    return vmap(alone)(back, *given)
