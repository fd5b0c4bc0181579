"""Batch normalization with fixed statistics: a scale and a shift that are trained like others."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from vergence.errors import ConfigError


class FrozenBatchNorm(nn.Module):
    """Batch normalization as in evaluation, in training too: an affine layer for each channel.

    y = weight * (x - mean) / sqrt(variance + eps) + bias, with the statistics of the layer that it
    replaces. They are constants of the network, as its sizes are: never trained, sent or averaged.

    Args:
        norm: the layer that it replaces.

    Raises:
        ConfigError: that layer has no statistics.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None or nn.parameter.is_lazy(mean):
            raise ConfigError(
                f"{norm} has no running statistics to freeze: give it some (track_running_stats="
                "True, and sizes that are known), or use GroupNorm or LayerNorm"
            )
        self.eps, self.weight, self.bias = norm.eps, norm.weight, norm.bias
        self.register_buffer("mean", mean.detach().clone(), persistent=False)
        self.register_buffer("variance", variance.detach().clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalized `x`, `[n, channels, ...]`."""
        return functional.batch_norm(
            x, self.mean, self.variance, self.weight, self.bias, training=False, eps=self.eps
        )

    def extra_repr(self) -> str:
        """Number of channels and eps, which `print` shows."""
        return f"{len(self.mean)}, eps={self.eps}"


def freeze_batch_norm(module: nn.Module) -> nn.Module:
    """A network whose BatchNorm layers are replaced by `FrozenBatchNorm`, in place.

    It predicts as the network did in evaluation. A pretrained network keeps the statistics of what
    it was trained on; in one that starts anew they are 0 and 1, and nothing is normalized.

    Args:
        module: the network, or a BatchNorm layer alone.

    Returns:
        The network itself, or what replaces the layer.

    Raises:
        ConfigError: a layer has no running statistics.

    Example:
        >>> net = freeze_batch_norm(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        >>> [name for name, _ in net.named_parameters()]
        ['0.weight', '0.bias', '1.weight', '1.bias']
        >>> list(net.state_dict()) == [name for name, _ in net.named_parameters()]
        True
    """
    done: dict[nn.Module, nn.Module] = {}

    def replaced(layer: nn.Module) -> nn.Module:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return done.setdefault(layer, FrozenBatchNorm(layer))
        for name, child in list(layer._modules.items()):  # one that is there twice, too
            if child is not None:
                setattr(layer, name, replaced(child))
        return layer

    return replaced(module)
