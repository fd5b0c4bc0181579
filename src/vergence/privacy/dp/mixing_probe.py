"""Probe of a network and its loss: does one sample of a batch change anything for the others?

Clipping bounds what a sample adds to a sum of gradients only if the gradients of the other samples
do not depend on it. A layer that mixes samples is known by its class, but a function between layers
(`h - h.mean(0)`) is not. So the probe replaces one sample at a time, and leaves one out. The
outputs for the other samples, and the norms of their gradients, must not change. The probe finds
mistakes. A network that mixes samples only from its hundredth batch on, or only for a certain
value, passes.

Used by `engine.protections.dp_sgd`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from vergence.core.data import Batch, Samples
from vergence.core.objectives import loss_per_sample
from vergence.core.task import Task, isolated_randomness, map_outputs
from vergence.errors import ConfigError, first_line
from vergence.privacy.dp.per_sample_gradients import FAULTS, Clipper, refuse
from vergence.privacy.dp.private_step import clipped_sum
from vergence.training.steps import rows_of

FEW, MANY = 3, 64
"""Samples of the small batch, whose gradients are compared too, and of the largest batch."""
OUTLIERS = (1e3, -1e3, 0.0)
"""Factors by which `replaced` makes outliers; with 0 it makes an exact copy of another sample."""
ROUNDING = 1e-4
"""Allowed relative difference of outputs from batches of unequal sizes, and of gradient norms."""
GRADIENT = "in its gradient"
CLOSED, SHIFT = 1e-3, 0.1
"""`CLOSED`: largest standard deviation of a parameter that counts as constant. `SHIFT`: standard
deviation of the noise that `opened` adds to such a parameter."""


def refuse_mixing(task: Task, samples: Samples, size: int) -> None:
    """Refuse a network or a loss in which the samples of a batch depend on each other.

    DP-SGD calls it before training.

    Args:
        task: the task with the network, in training mode, and its loss.
        samples: real samples of one client.
        size: size of the batches in training.

    Raises:
        ConfigError: samples depend on each other. The message names the first layer whose output
            changes, or the loss.
    """
    refuse(task.module())
    few, many = (
        samples.take(torch.arange(n) * len(samples) // n)
        for n in (FEW, min(max(FEW + 1, size), MANY))
    )
    with isolated_randomness():
        try:
            probe = MixingProbe(task, few)
            probe.check_replaced(few)
            probe.check_replaced(many)
            probe.check_smaller_batch(many)
            probe.check_loss(many)
        except FAULTS as error:
            raise (
                error
                if isinstance(error, ConfigError)
                else ConfigError(
                    f"dp: the network or its loss fails on a batch of training: {first_line(error)}"
                )
            ) from error


class MixingProbe:
    """Compares a network's outputs on batches that differ in one sample, at equal random seeds."""

    def __init__(self, task: Task, batch: Batch) -> None:
        self.task, self.output = task, None
        self.module: nn.Module | None = opened(task.module())
        if not same(self._outputs(batch)[""], self._outputs(batch)[""]):
            # The network changes with each batch it sees: every pass starts from a new one.
            self.module = None
        later, other = self._outputs(batch, batch), self._outputs(replaced(batch, 0, 0.0), batch)
        self._compare(later, other, torch.arange(FEW))

    def check_replaced(self, batch: Batch) -> None:
        """Refuse a network if replacing one sample changes its outputs for the others."""
        whole, samples = self._outputs(batch), rows_of(batch)
        for at, factor in zip((0, samples - 1, 1), OUTLIERS, strict=True):
            try:
                seen = self._outputs(replaced(batch, at, factor))
            except FAULTS:
                # An outlier may be no valid input of the network; another real sample always is.
                seen = self._outputs(replaced(batch, at, 0.0))
            self._compare(whole, seen, torch.tensor([n for n in range(samples) if n != at]))

    def check_smaller_batch(self, batch: Batch) -> None:
        """Refuse a network if leaving out one sample changes its outputs for the others.

        Dropout is off, as it draws different masks for another batch size. A network that draws
        random numbers itself is not checked.
        """
        whole, again = (self._outputs(batch, dropout=False, seed=seed) for seed in (0, 1))
        if same(whole[""], again[""]):
            seen = self._outputs({n: c[:-1] for n, c in batch.items()}, dropout=False)
            self._compare(whole, seen, torch.arange(rows_of(batch) - 1), ROUNDING)

    def check_loss(self, batch: Batch) -> None:
        """Refuse a loss that is not a mean of per-sample losses.

        A weighted mean, or one that leaves samples out, is accepted too.

        Raises:
            ConfigError: the loss is no mean of per-sample losses.
        """
        self._outputs(batch)
        output, samples = self.output, rows_of(batch)
        other = map_outputs(lambda rows: with_second_as_first(rows, samples), output)
        loss = partial(self.task.loss, batch=batch)
        own = slopes(output, samples, lambda rows: loss_per_sample(self.task, rows, batch).sum())
        whole, bent = (slopes(made, samples, loss) for made in (output, other))
        lengths = whole.norm(dim=1)
        parallel = 1 - 10 * ROUNDING
        turned = (whole * bent).sum(1) < parallel * lengths * bent.norm(dim=1)
        turned |= (whole * own).sum(1) < parallel * lengths * own.norm(dim=1)
        lost = (lengths > 0) & ~(own.norm(dim=1) > ROUNDING * lengths)
        if bool((turned | lost)[1:].any()) or bool(lost[0]):
            raise ConfigError(
                "dp: the loss of a batch is no mean of losses of single samples, which DP-SGD "
                "would train instead; use a loss that compares no samples with each other, or hide "
                "whole people with privacy.user"
            )

    def _outputs(self, *batches: Batch, dropout: bool = True, seed: int = 0) -> dict[str, Tensor]:
        """Run the network on some batches; return all outputs for the last batch.

        Outputs are under the names of their layers, and under "" for the whole network. For a
        single batch of `FEW` samples, the norms of the samples' gradients are under `GRADIENT`.
        """
        module = self.module or opened(self.task.module())
        for layer in module.modules():
            layer.training = dropout or not isinstance(layer, _DropoutNd)
        seen: dict[str, Tensor] = {}

        def note(name: str, layer: nn.Module, _: object, output: object) -> None:
            if isinstance(output, Tensor) and name:
                seen[f"first by '{name}' ({type(layer).__name__})"] = output.clone()

        hooks = [m.register_forward_hook(partial(note, n)) for n, m in module.named_modules()]
        for batch in batches:
            torch.default_generator.manual_seed(seed)
            with torch.no_grad():
                output = self.task.forward(module, {n: c.clone() for n, c in batch.items()})
            self.output = map_outputs(torch.clone, output)
            rows = rows_of(batch)
            parts = [part.reshape(rows, -1).double() for part in by_sample(output, rows)]
            seen[""] = torch.cat(parts, 1) if parts else torch.zeros(rows, 0)
        for hook in hooks:
            hook.remove()
        if [rows_of(batch) for batch in batches] == [FEW]:
            into = {n: torch.zeros_like(p) for n, p in module.named_parameters() if p.requires_grad}
            torch.default_generator.manual_seed(seed)
            with Clipper(module, 1.0) as clipper:
                clipped_sum(clipper, self.task, batches[-1], into)
            seen[GRADIENT] = clipper.norms
        return seen

    def _compare(
        self,
        whole: Mapping[str, Tensor],
        seen: Mapping[str, Tensor],
        rows: Tensor,
        rounding: float = 0.0,
    ) -> None:
        differs = [
            place
            for place, one in whole.items()
            if one.dim()
            and len(one) == len(whole[""])
            and len(seen.get(place, ())) > rows.max()
            and not same(one[rows], seen[place][rows], ROUNDING if place == GRADIENT else rounding)
        ]
        if "" in differs or GRADIENT in differs:
            raise ConfigError(
                "dp: one sample of a batch changes what the network gives for the others, "
                f"{differs[0] or 'between its layers'}; normalise and compare over features, not "
                "over the samples of a batch (dimension 0), or hide whole people with privacy.user"
            )


def opened(module: nn.Module) -> nn.Module:
    """Add noise in place to parameters whose entries are nearly equal; return the network.

    Otherwise a head or a gate that starts at zero would hide mixing in earlier layers.
    """
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if float(parameter.std(unbiased=False)) <= CLOSED:
                noise = torch.randn(parameter.shape, generator=draw)
                parameter.add_(SHIFT * noise.to(parameter))
    return module


def replaced(batch: Batch, at: int, factor: float) -> Batch:
    """Return a batch in which sample `at` is replaced by an outlier.

    The outlier is made from the next sample: floating-point values become (value + 1) * `factor`,
    and bytes of pictures are inverted. Other integers, which may be indices or classes, are copied.
    With factor 0 the sample becomes an exact copy of the next one.
    """
    batch = {name: column.clone() for name, column in batch.items()}
    for column in batch.values():
        column[at] = column[(at + 1) % len(column)]
        if factor and column.is_floating_point():
            column[at] = (column[at] + 1) * factor
        elif factor and column.dtype is torch.uint8:
            column[at] = 255 - column[at]
    return batch


def same(one: Tensor, other: Tensor, rounding: float = 0.0) -> bool:
    """Return whether two tensors are equal, up to `rounding` times the largest entry of `one`."""
    one, other = one.double().nan_to_num(), other.double().nan_to_num()
    return torch.equal(one, other) or bool((one - other).abs().max() <= rounding * one.abs().max())


def by_sample(output: object, samples: int) -> list[Tensor]:
    """Return the tensors in an output that have one row for each sample."""
    rows: list[Tensor] = []

    def note(part: Tensor) -> Tensor:
        if part.dim() and len(part) == samples:
            rows.append(part)
        return part

    map_outputs(note, output)
    return rows


def with_second_as_first(rows: Tensor, samples: int) -> Tensor:
    """Return a copy of an output in which the second sample's row replaces the first row.

    If the output does not have one row per sample, the copy is unchanged. `MixingProbe.check_loss`
    calls this.
    """
    rows = rows.clone()
    if rows.dim() and len(rows) == samples:
        rows[0] = rows[1]
    return rows


def slopes(output: object, samples: int, loss: Callable[[Any], Tensor]) -> Tensor:
    """Return the gradient of a loss with respect to a batch's outputs, `[samples, entries]`."""
    torch.default_generator.manual_seed(0)

    def leaf(part: Tensor) -> Tensor:
        part = part.detach().clone()
        return part.requires_grad_() if part.is_floating_point() else part

    output = map_outputs(leaf, output)
    parts = [part for part in by_sample(output, samples) if part.requires_grad]
    gradients = torch.autograd.grad(loss(output), parts, materialize_grads=True)
    return torch.cat([part.reshape(samples, -1).double() for part in gradients], 1)
