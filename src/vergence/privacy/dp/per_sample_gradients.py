"""Sums of clipped per-sample gradients, from one forward and one backward pass.

A layer's gradient for one sample follows from the layer's input and from the loss's gradient with
respect to its output. So one backward pass to the layers' outputs, without gradients of weights,
gives the norms of all samples' gradients. Then the weighted sum of gradients is computed once for
each layer. The gradient of a single sample is not formed for layers where its norm can be computed
more cheaply without it (ghost clipping). Layers other than linear layers and convolutions are
differentiated for each sample.

This method fails if a weight is used outside of its layer or a layer is used twice. So the first
sums of a network are compared with those of autograd over all parameters. If they differ, or if a
layer's output does not have one row per sample, every sample passes through the network alone from
then on. This is slower, and correct for any network.

Used by `engine.protections.dry_run`, `privacy.dp.dp_sgd_solver`, `privacy.dp.mixing_probe` and
`privacy.dp.private_step`.

Source: Goodfellow, "Efficient per-example gradient computations", 2015; ghost clipping: Li et al.,
"Large language models can be strong differentially private learners", ICLR 2022; convolutions: Bu
et al., "Scalable and efficient training of large convolutional neural networks with differential
privacy", NeurIPS 2022, which chooses per layer as here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional

from vergence.core.layers.batch_norm import TrackedBatchNorm
from vergence.errors import ConfigError, first_line

MIXING = (nn.modules.batchnorm._BatchNorm, TrackedBatchNorm)
FEW = 4
"""Number of samples whose rows are copied at a time."""
Grads = dict[str, Tensor]
"""Gradients, or other tensors, for a layer's own parameters, by name."""


UNCOMPARED: WeakKeyDictionary[nn.Module, list[set[str]]] = WeakKeyDictionary()
"""For each network and comparison: parameters whose gradients were zero in it and all before it."""
COMPARISONS = 50
"""After this number of batches a parameter that never had a gradient counts as unused."""
NOT_BY_LAYERS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""For each compared network: why its layers do not give per-sample gradients; "" if they do."""
FAULTS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ConfigError)
"""Errors of networks whose layers do not map one row per sample to one row per sample."""
CLOSE, FLOOR = 1e-3, 3e-6
"""Allowed rounding error between two sums of a parameter's gradients: `CLOSE` times the norm of the
sum, plus `FLOOR` times the sum of all samples' gradient norms. The second term is for a gradient
that is nearly zero, such as that of a bias before a normalisation."""


def refuse(module: nn.Module) -> None:
    """Refuse a network with a layer that is known to mix the samples of a batch.

    Raises:
        ConfigError: there is such a layer. The message names it, and what to use in its place.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, MIXING):
            raise ConfigError(
                f"dp: '{name}' is a {type(layer).__name__}, which mixes the samples of a batch; "
                "use vergence.group_norm(network), or vergence.freeze_batch_norm(network)"
            )


class LayerRows:
    """Per-sample gradients of a linear layer or convolution, for B samples.

    The layer multiplies T rows of i inputs per sample by its weights. For a convolution, T is the
    number of output positions, and a row is one input window (taps times channels). A sample's
    gradient is the sum of T outer products. Its norm takes T^2 (i + o) multiplications without the
    gradient, or T i o with it; the cheaper computation is used.

    Args:
        biased: whether the layer has a bias.
        rows: inputs `[B, T, i]`; for a convolution `[B, T..., taps, channels]`, or
            `[B, channels, taps, T...]` if `last` is false. It may be a view that repeats values; it
            is copied in pieces that fit the cache.
        back: gradient of the loss with respect to the layer's outputs `[B, T, o]`.
        last: whether channels are the last dimension of `rows`.
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
            squares = torch.linalg.vector_norm(self.each.flatten(1), dim=1).square()
        else:
            # Ghost clipping: |sum_t b_t r_t'|^2 = sum_st (r_s . r_t) (b_s . b_t).
            across = self.rows @ self.rows.transpose(1, 2)
            squares = (across * (self.back @ self.back.transpose(1, 2))).sum((1, 2))
        return squares if self.each_bias is None else squares + self.each_bias.square().sum(1)

    def total(self, factors: Tensor, into: Grads) -> None:
        """Write the sum of the gradients, each multiplied by its factor `[B]`."""
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
    """Per-sample gradients of any layer, for B samples.

    Attributes:
        each: gradients `[B, ...]` of each parameter, by name.
    """

    each: Grads

    def squares(self) -> Tensor:
        """Return the squared length of every sample's gradient, `[B]`."""
        return torch.stack([g.flatten(1).square().sum(1) for g in self.each.values()]).sum(0)

    def total(self, factors: Tensor, into: Grads) -> None:
        """Write the sum of the gradients, each multiplied by its factor `[B]`."""
        for name, gradients in self.each.items():
            into[name].copy_(torch.tensordot(factors, gradients, 1))


class Clipper:
    """Sums the per-sample gradients of a network; each is clipped to `clip` over all parameters.

    Forward hooks record the inputs and outputs of layers until the `with` block ends.

    Raises:
        ConfigError: a layer mixes samples.
    """

    def __init__(self, module: nn.Module, clip: float) -> None:
        # Batch normalisation lets one sample change the others' gradients: no clip bounds that.
        refuse(module)
        self.module, self.clip = module, clip
        self.names = {layer: name for name, layer in module.named_modules()}
        self.caught: dict[nn.Module, tuple[tuple[Tensor, ...], Tensor, int]] = {}
        self.fault = ""
        self.own = [layer for layer in module.modules() if trainable(layer)]
        self.hooks = [
            m.register_forward_hook(self._record_pass, with_kwargs=True) for m in self.own
        ]
        self.norms, self.watching = torch.zeros(0), True

    def gradients(
        self,
        losses: Tensor,
        into: Mapping[str, Tensor],
        alone: Callable[[int], Tensor] | None = None,
    ) -> None:
        """Write the sum of the clipped gradients of losses into the tensors `into`.

        A gradient whose norm is not finite counts as zero: a sum that one sample turns into NaN
        would reveal that sample. Call this method once after every forward pass; an empty batch
        needs no call.

        Args:
            losses: losses `[batch]`; each depends on one sample alone.
            into: tensors to overwrite, by the names of trainable parameters and with their shapes.
            alone: returns the loss of the sample with this index, from a separate forward pass.

        Raises:
            ConfigError: the layers do not give per-sample gradients, and `alone` is missing.
        """
        fault, self.compared = self.fault or NOT_BY_LAYERS.get(self.module, ""), False
        caught, self.caught, self.fault, self.watching = self.caught, {}, "", False
        fault = fault or self._by_layers(losses, into, caught)
        if fault and alone is None:
            raise ConfigError(
                f"dp: {fault}: its gradient cannot be told apart by samples; give `alone`, or use "
                "another model"
            )
        if fault:
            NOT_BY_LAYERS[self.module] = fault
        if alone is not None and (fault or not self.compared):
            self._one_by_one(len(losses), into, alone)
        self.watching = True

    def _by_layers(
        self,
        losses: Tensor,
        into: Mapping[str, Tensor],
        caught: Mapping[nn.Module, tuple[tuple[Tensor, ...], Tensor, int]],
    ) -> str:
        """Write the sum of clipped gradients, computed from the recorded inputs and outputs.

        Return "", or why the layers do not give per-sample gradients. `caught` holds inputs, output
        and the output's version counter of each layer.
        """
        first, outputs = self.module not in NOT_BY_LAYERS, [out for _, out, _ in caught.values()]
        whole = losses.sum()
        try:
            backs = torch.autograd.grad(whole, outputs, allow_unused=True, retain_graph=first)
            with torch.no_grad():
                seen = [
                    (layer, (*what, back))
                    for (layer, what), back in zip(caught.items(), backs, strict=True)
                    if back is not None
                ]
                parts = {layer: self._part(layer, *what, len(losses)) for layer, what in seen}
                self.norms = lengths(parts.values())
                odd = ~self.norms.isfinite()
                if odd.any():
                    # A factor of 0 does not help, as 0 * infinity is NaN: their rows are blanked.
                    parts = {
                        layer: self._part(layer, *what, len(losses), odd) for layer, what in seen
                    }
                    self.norms = lengths(parts.values())
                elif first and (fault := self._differing_parameter(whole, parts)):
                    return fault
                self._total(parts, self._factors(self.norms), into)
        except FAULTS as error:
            return first_line(error).removeprefix("dp: ")
        seen = UNCOMPARED.get(self.module, [])
        if first and seen and (not seen[-1] or len(seen) >= COMPARISONS):
            NOT_BY_LAYERS[self.module] = ""
        self.compared = self.compared or not first
        return ""

    def _factors(self, norms: Tensor) -> Tensor:
        # A rounding error is not to make a gradient longer than the bound.
        return (self.clip / (norms * (1 + 1e-5) + 1e-30)).clamp(max=1)

    def _total(
        self,
        parts: Mapping[nn.Module, LayerRows | WholeLayer],
        factors: Tensor,
        into: Mapping[str, Tensor],
    ) -> None:
        for layer in self.own:
            start = self.names[layer] + "." if self.names[layer] else ""
            mine = {name: into[start + name] for name in trainable(layer)}
            if layer in parts:
                parts[layer].total(factors, mine)
            else:
                # The forward pass did not use this layer.
                for gradient in mine.values():
                    gradient.zero_()

    def _differing_parameter(
        self, whole: Tensor, parts: Mapping[nn.Module, LayerRows | WholeLayer]
    ) -> str:
        """Compare the unclipped sum of gradients with autograd's gradient of the summed loss.

        Return a message that names the first parameter for which they differ, or "".
        """
        named = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        sums = {name: torch.empty_like(p) for name, p in named.items()}
        self._total(parts, torch.ones_like(self.norms), sums)
        wanted = torch.autograd.grad(
            whole, list(named.values()), retain_graph=True, materialize_grads=True
        )
        floor, zero = FLOOR * float(self.norms.sum()), set[str]()
        for (name, total), gradient in zip(sums.items(), wanted, strict=True):
            zero |= set() if gradient.any() else {name}
            if not float((total - gradient).norm()) <= CLOSE * float(gradient.norm()) + floor:
                return f"'{name}' is used beside its layer"
        # Behind a head or a gate that begins at zero gradients come later: those are compared then.
        compared = UNCOMPARED.setdefault(self.module, [])
        compared.append(zero & compared[-1] if compared else zero)
        self.compared = True
        return ""

    def _one_by_one(
        self, samples: int, into: Mapping[str, Tensor], alone: Callable[[int], Tensor]
    ) -> None:
        """Write the sum of clipped gradients, from separate passes of every sample."""
        named, lengths = dict(self.module.named_parameters()), []
        tensors = [named[name] for name in into]
        for gradient in into.values():
            gradient.zero_()
        for at in range(samples):
            own = torch.autograd.grad(alone(at), tensors, materialize_grads=True)
            length = torch.stack([g.square().sum() for g in own]).sum().sqrt()
            lengths.append(length if length.isfinite() else torch.zeros_like(length))
            if length.isfinite():
                for total, gradient in zip(into.values(), own, strict=True):
                    total.add_(gradient * self._factors(length))
        self.norms = torch.stack(lengths)

    def __enter__(self) -> Clipper:
        """Return the clipper; its constructor has registered the hooks."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove all hooks from the network."""
        for hook in self.hooks:
            hook.remove()

    def _record_pass(
        self,
        layer: nn.Module,
        inputs: tuple[Tensor, ...],
        keywords: dict[str, object],
        output: object,
    ) -> None:
        if not self.watching or not torch.is_grad_enabled():
            return
        if layer in self.caught:
            self.fault = self.fault or self._fault(layer, "is passed twice in a step")
        elif keywords or not isinstance(output, Tensor):
            what = "takes arguments by keyword" if keywords else "gives more than one tensor"
            self.fault = self.fault or self._fault(layer, what)
        else:
            self.caught[layer] = (inputs, output, output._version)

    def _fault(self, layer: nn.Module, what: str) -> str:
        return f"'{self.names[layer]}' {what}"

    def _part(
        self,
        layer: nn.Module,
        inputs: tuple[Tensor, ...],
        output: Tensor,
        version: int,
        back: Tensor,
        batch: int,
        odd: Tensor | None = None,
    ) -> LayerRows | WholeLayer:
        if output._version != version:
            what = "has its output changed in place (inplace=False avoids that)"
            raise ConfigError(self._fault(layer, what))
        if len(output) != batch or any(len(x) != batch for x in inputs):
            raise ConfigError(self._fault(layer, f"takes {len(output)} rows for {batch} samples"))
        inputs = tuple(x.detach() for x in inputs)
        if odd is not None:
            inputs, back = tuple(blank(x, odd) for x in inputs), blank(back, odd)
        own, biased = trainable(layer), getattr(layer, "bias", None) is not None
        plain = own.keys() == ({"weight", "bias"} if biased else {"weight"})
        if type(layer) is nn.Linear and plain and output.dim() > 1:
            rows = inputs[0].reshape(batch, -1, layer.in_features)
            return LayerRows(biased, rows, back.reshape(batch, -1, layer.out_features))
        if (
            type(layer) is nn.Conv2d
            and plain
            and layer.groups == 1
            and layer.padding_mode == "zeros"
        ):
            rows, last = _windows(layer, inputs[0])
            return LayerRows(biased, rows, back.permute(0, 2, 3, 1).flatten(1, 2), last)
        each = _sample_gradients(layer, inputs, back)
        if odd is not None:
            each = {name: blank(gradients, odd) for name, gradients in each.items()}
        return WholeLayer(each)


def trainable(layer: nn.Module) -> dict[str, Tensor]:
    """Return the layer's own parameters that are trained, by name."""
    return {n: p for n, p in layer.named_parameters(recurse=False) if p.requires_grad}


def lengths(parts: Iterable[LayerRows | WholeLayer]) -> Tensor:
    """Return the length of every sample's gradient over all layers, `[B]`."""
    return torch.stack([part.squares() for part in parts]).sum(0).sqrt()


def blank(rows: Tensor, odd: Tensor) -> Tensor:
    """Return rows `[B, ...]` with zeros for the samples where the mask `odd` `[B]` is true."""
    return rows.masked_fill(odd.view(-1, *[1] * (rows.dim() - 1)), 0)


def _windows(layer: nn.Conv2d, images: Tensor) -> tuple[Tensor, bool]:
    """Return the input windows of a convolution, and whether channels are the last dimension.

    Windows are a view `[B, T..., taps, channels]` if channels are last, else
    `[B, channels, taps, T...]`, where T are the output's height and width. The order with the
    longer contiguous rows is taken, since the view is copied later.
    """
    # torch's own field knows the padding of "same", which may be uneven.
    images = functional.pad(images, layer._reversed_padding_repeated_twice)
    last = layer.kernel_size[1] * layer.in_channels >= images.shape[3]
    windows = images.permute(0, 2, 3, 1).contiguous() if last else images
    for at in (0, 1):
        spread, axis = layer.dilation[at], at + 1 if last else at + 2
        reach = (layer.kernel_size[at] - 1) * spread + 1
        windows = windows.unfold(axis, reach, layer.stride[at])[..., ::spread]
    return windows.permute(0, 1, 2, 4, 5, 3) if last else windows.permute(0, 1, 4, 5, 2, 3), last


def _sample_gradients(layer: nn.Module, inputs: tuple[Tensor, ...], back: Tensor) -> Grads:
    """Return the per-sample gradients `[B, ...]` of a layer's own parameters, by name.

    Args:
        layer: the layer.
        inputs: the layer's inputs, each `[B, ...]`.
        back: gradient of the loss with respect to the layer's output, `[B, ...]`.
    """
    own = {name: p.detach() for name, p in trainable(layer).items()}

    def of_sample(back: Tensor, *inputs: Tensor) -> Grads:
        def run(parameters: Grads) -> Tensor:
            return functional_call(layer, parameters, tuple(x[None] for x in inputs))

        pull: Callable[[Tensor], tuple[Grads]] = vjp(run, own)[1]
        return pull(back[None])[0]

    return vmap(of_sample)(back, *inputs)
