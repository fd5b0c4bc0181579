"""Batch normalisation in a federation: its running statistics are fixed, averaged or personal.

Used by `core.layers.group_norm`, `core.task`, `privacy.dp.per_sample_gradients`,
`training.bf16_weights`, `training.sequential` and `training.stacked`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from vergence.errors import ConfigError


class FrozenBatchNorm(nn.Module):
    """Batch normalisation that behaves in training as in evaluation: an affine layer per channel.

    y = weight * (x - mean) / sqrt(variance + eps) + bias. Mean and variance are the running
    statistics of the BatchNorm layer that this layer replaces. They are constants of the network:
    never trained, sent or averaged.

    Args:
        norm: the BatchNorm layer to replace.

    Raises:
        ConfigError: `norm` has no running statistics.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        mean, variance = _running(norm, "freeze")
        self.eps, self.weight, self.bias = norm.eps, norm.weight, norm.bias
        # Not in the state: `Layout.of` refuses buffers there, which an average would mix.
        self.register_buffer("mean", mean.detach().clone(), persistent=False)
        self.register_buffer("variance", variance.detach().clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x`, `[n, channels, ...]`."""
        return functional.batch_norm(
            x, self.mean, self.variance, self.weight, self.bias, training=False, eps=self.eps
        )

    def extra_repr(self) -> str:
        """Return the number of channels and eps as text, which `print` shows."""
        return f"{len(self.mean)}, eps={self.eps}"


class TrackedBatchNorm(nn.Module):
    """Batch normalisation whose running statistics are parameters that no optimiser changes.

    In training y = weight * (x - m) / sqrt(v + eps) + bias with a batch's mean m and variance v,
    which update the running statistics as in torch's layers; evaluation uses the running
    statistics. A batch of one value per channel has no variance: it is normalised by the running
    statistics.

    The statistics are saved and exported with the network.

    Args:
        norm: the BatchNorm layer to replace.
        verb: what is done with its statistics, for the message of an error.

    Raises:
        ConfigError: `norm` has no running statistics.
    """

    batches: Tensor
    """The number of batches counted, `[1]`."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, verb: str) -> None:
        super().__init__()
        mean, variance = _running(norm, verb)
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        self.mean = nn.Parameter(mean.detach().clone())
        self.variance = nn.Parameter(variance.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x`, `[n, channels, ...]`."""
        # One value per channel has no variance.
        count, share = self.training and x.numel() > x.shape[1], 0.0
        if count:
            # As in torch: without a momentum the statistics are the mean over all batches so far.
            batches = self.batches.detach().add_(1)
            share = 1 / float(batches) if self.momentum is None else self.momentum
        mean, variance = self.mean.detach(), self.variance.detach()
        if not count:
            # A malicious client's update can make an average negative, whose root is no number.
            variance = variance.clamp(min=0)
        return functional.batch_norm(
            x, mean, variance, self.weight, self.bias, count, share, self.eps
        )

    @torch.no_grad()
    def forget(self) -> None:
        """Reset the running statistics: mean 0, variance 1, no batches counted."""
        for tensor, value in ((self.mean, 0.0), (self.variance, 1.0), (self.batches, 0.0)):
            tensor.fill_(value)

    def extra_repr(self) -> str:
        """Return the number of channels, eps and momentum as text, which `print` shows."""
        return f"{len(self.mean)}, eps={self.eps}, momentum={self.momentum}"


class PersonalBatchNorm(TrackedBatchNorm):
    """Batch normalisation whose running statistics stay with the client that computed them.

    Only methods that leave the statistics on the client accept such a network
    (`Method.keeps_statistics`).

    Args:
        norm: the BatchNorm layer to replace.

    Raises:
        ConfigError: `norm` has no running statistics.

    Source: Andreux et al., "Siloed Federated Learning for Multi-Centric Histopathology Datasets",
    2020, section 3 (SiloBN): local statistics, shared scale and shift.
    """

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__(norm, "keep")
        counted = 0 if norm.num_batches_tracked is None else int(norm.num_batches_tracked)
        self.batches = nn.Parameter(self.mean.new_full((1,), counted))


class AveragedBatchNorm(TrackedBatchNorm):
    """Batch normalisation whose running statistics are averaged over clients, as weights are.

    Args:
        norm: the BatchNorm layer to replace.

    Raises:
        ConfigError: `norm` has no running statistics, or no momentum.
    """

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__(norm, "average")
        if norm.momentum is None:
            raise ConfigError(
                f"{norm} weighs every batch of the whole training alike, and no client has seen "
                "the others' batches: give it a momentum between 0 and 1, such as 0.1"
            )
        # The count has no part in the result and is not sent: `Solver.statistics` alone reads it.
        self.register_buffer("batches", self.mean.new_zeros(1), persistent=False)


def tracked_norms(
    module: nn.Module, kind: type[TrackedBatchNorm] = TrackedBatchNorm
) -> dict[str, TrackedBatchNorm]:
    """Return the layers of a network that have running statistics as parameters, by name."""
    return {n: m for n, m in module.named_modules() if isinstance(m, kind)}


def statistics_of(
    module: nn.Module, kind: type[TrackedBatchNorm] = TrackedBatchNorm
) -> tuple[str, ...]:
    """Return the names of a network's parameters that are running statistics of such layers.

    No optimiser changes these parameters.
    """
    return tuple(
        f"{name}.{own}" if name else own
        for name, layer in tracked_norms(module, kind).items()
        for own, _ in layer.named_parameters(recurse=False)
        if own not in ("weight", "bias")
    )


def _running(norm: nn.modules.batchnorm._BatchNorm, verb: str) -> tuple[Tensor, Tensor]:
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None or nn.parameter.is_lazy(mean):
        raise ConfigError(
            f"{norm} has no running statistics to {verb}: give it some (track_running_stats="
            "True, and sizes that are known), or use GroupNorm or LayerNorm"
        )
    return mean, variance


def freeze_batch_norm(module: nn.Module) -> nn.Module:
    """Replace the BatchNorm layers of a network by `FrozenBatchNorm`, in place.

    The network then predicts in training as it did in evaluation. A pretrained network keeps the
    statistics of its training data. In a new network mean and variance are 0 and 1: nothing is
    normalised.

    Args:
        module: the network, or a single BatchNorm layer.

    Returns:
        The network itself; for a single BatchNorm layer, the new layer.

    Raises:
        ConfigError: a layer has no running statistics.

    Examples:
        >>> net = freeze_batch_norm(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        >>> [name for name, _ in net.named_parameters()]
        ['0.weight', '0.bias', '1.weight', '1.bias']
        >>> list(net.state_dict()) == [name for name, _ in net.named_parameters()]
        True
    """
    return replace_batch_norm(module, FrozenBatchNorm)


def personalize_batch_norm(module: nn.Module) -> nn.Module:
    """Replace the BatchNorm layers of a network by `PersonalBatchNorm`, in place.

    Such a network is for the method FedBN, which leaves running statistics with each client, and
    for clients that train alone. Other methods refuse it, as they would send the statistics: they
    take `average_batch_norm`.

    Args:
        module: the network, or a single BatchNorm layer.

    Returns:
        The network itself; for a single BatchNorm layer, the new layer.

    Raises:
        ConfigError: a layer has no running statistics.

    Examples:
        >>> net = personalize_batch_norm(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        >>> [name for name, _ in net.named_parameters()][4:]
        ['1.mean', '1.variance', '1.batches']
    """
    return replace_batch_norm(module, PersonalBatchNorm)


def average_batch_norm(module: nn.Module) -> nn.Module:
    """Replace the BatchNorm layers of a network by `AveragedBatchNorm`, in place.

    Running statistics are then sent and averaged with the weights of clients' replies, as FedAvg
    averages a `state_dict`. They are never masked, pruned or compressed, and no optimiser of a
    client or server changes them. FedBN leaves them with each client, as it does with scales and
    shifts. Differential privacy refuses such a network.

    Args:
        module: the network, or a single BatchNorm layer.

    Returns:
        The network itself; for a single BatchNorm layer, the new layer.

    Raises:
        ConfigError: a layer has no running statistics, or `momentum=None`.

    Examples:
        >>> net = average_batch_norm(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        >>> [name for name, _ in net.named_parameters()][4:]
        ['1.mean', '1.variance']
    """
    return replace_batch_norm(module, AveragedBatchNorm)


def replace_batch_norm(
    module: nn.Module, by: Callable[[nn.modules.batchnorm._BatchNorm], nn.Module]
) -> nn.Module:
    """Replace every BatchNorm layer of a network by what `by` makes of it, in place.

    A layer that is used twice is replaced by one layer.
    """
    done: dict[nn.Module, nn.Module] = {}

    def replaced(layer: nn.Module) -> nn.Module:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return done.setdefault(layer, by(layer))
        # `named_children` would skip the second name of a layer that is registered twice.
        for name, child in list(layer._modules.items()):
            if child is not None:
                setattr(layer, name, replaced(child))
        return layer

    return replaced(module)
