"""Conversion of a network's BatchNorm layers to GroupNorm, which has no running statistics."""

from __future__ import annotations

from functools import lru_cache

from torch import nn

from vergence import console
from vergence.core.layers.batch_norm import replace_batch_norm
from vergence.core.naming import plural
from vergence.errors import ConfigError


def group_norm(module: nn.Module, groups: int = 32) -> nn.Module:
    """Replace the BatchNorm layers of a network by GroupNorm, in place, and say on stderr which.

    GroupNorm normalises every sample by itself. It has no running statistics, so every method and
    every protection supports it. Scales and shifts are kept; running statistics are dropped, so a
    pretrained network needs training before it predicts well again. The line on stderr comes once,
    however often a network is built.

    Args:
        module: the network, or a single BatchNorm layer.
        groups: the largest number of groups. A layer has as many groups as divide its channels. A
            `BatchNorm1d` layer gets a single group: its inputs may have one value per channel, and
            a group of one value would always be 0.

    Returns:
        The network itself; for a single BatchNorm layer, the new layer.

    Raises:
        ConfigError: `groups` is below 1; or a layer has no size yet; or a `BatchNorm1d` layer has a
            single channel.

    Source: Wu, He, "Group normalization", ECCV 2018; in federated learning: Hsieh et al., "The
    non-IID data quagmire of decentralized machine learning", ICML 2020, section 5.

    Examples:
        >>> group_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1]
        GroupNorm(24, 48, eps=1e-05, affine=True)
    """
    if groups < 1:
        raise ConfigError(f"groups = {groups}: a layer needs at least one group; the default is 32")
    name_of = {layer: name for name, layer in module.named_modules()}
    changed: list[str] = []

    def grouped(norm: nn.modules.batchnorm._BatchNorm) -> nn.Module:
        layer = _grouped(norm, groups, name_of[norm] or "the layer")
        changed.append(f"{name_of[norm] or 'the layer'} ({plural(layer.num_groups, 'group')})")
        return layer

    after = replace_batch_norm(module, grouped)
    more = ", ..." if len(changed) > 3 else ""
    layers = plural(len(changed), "BatchNorm layer")
    _say(f"{layers} became GroupNorm: {', '.join(changed[:3])}{more}" if changed else f"{layers}")
    return after


def _grouped(norm: nn.modules.batchnorm._BatchNorm, groups: int, name: str) -> nn.GroupNorm:
    channels = norm.num_features
    flat = isinstance(norm, nn.BatchNorm1d)
    if channels < 1 + flat:
        raise ConfigError(
            f"{name} is {norm}: GroupNorm needs a number of channels that is known, and at least 2 "
            "where inputs have one value per channel; give it more, or remove the layer"
        )
    most = 1 if flat else min(groups, channels)
    count = next(number for number in range(most, 0, -1) if channels % number == 0)
    layer = nn.GroupNorm(count, channels, norm.eps, norm.affine)
    layer.weight, layer.bias = norm.weight, norm.bias
    return layer.train(norm.training)


@lru_cache
def _say(text: str) -> None:
    # A run builds its network many times, and everybody has read the line after the first.
    console.note(text)
