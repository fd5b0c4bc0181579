"""Pruning: choosing weights to remove, taking whole filters out, and storing sparse weights.

Used in most packages.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import scipy
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load, save
from torch import Tensor, nn

from vergence.core.files import parse_json
from vergence.core.masks import Mask
from vergence.core.options import NamedOptions, Share
from vergence.core.params import Params
from vergence.core.requests import Fit
from vergence.core.stages import Staged
from vergence.errors import ConfigError, DataError

KINDS: Mapping[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear,),
    "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    "both": (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
}
WIDTHS = (np.uint8, np.uint16, np.uint32)
SKIPS, VALUES = "skips/", "values/"


@dataclass(frozen=True)
class Pruning(NamedOptions):
    """Choice of the weights to remove, those of smallest absolute value; biases stay.

    Attributes:
        amount: share of the weights, or of the filters and neurons, to remove; 0: no pruning.
        layers: linear layers, convolutions, or both.
        scope: `local` removes the share from every layer by itself, `global` from all of them
            compared together.
        structured: remove whole filters and neurons, those of smallest L1 norm in their layer. One
            of each layer stays, and so does the network's last layer.

    Source: the split-federated gaze thesis, section 3.5; Li et al. 2017, "Pruning filters for
    efficient ConvNets".
    """

    amount: Share
    layers: Literal["linear", "conv", "both"] = "linear"
    scope: Literal["local", "global"] = "local"
    structured: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.structured and self.scope == "global":
            raise ConfigError(
                "pruning: filters of layers of other sizes have no norms to compare; use "
                "scope = 'local' with structured = true"
            )

    def mask_of_remaining(self, network: nn.Module, params: Params) -> Mask:
        """Return the mask of the parameters that remain.

        A filter's or neuron's bias goes with it where `removable_layers` lists its layer.

        Raises:
            ConfigError: the network has no such layer.
        """
        names = prunable_weights(network, self.layers)
        if self.structured:
            return self._rows(network, params, names)
        sizes = {name: params[name].numel() for name in names}
        among, score = Mask.layers(params.layout, *names), abs(params)
        if self.scope == "global":
            mask = Mask.top(score, among.count - round(self.amount * among.count), among)
        else:
            stay = {name: n - round(self.amount * n) for name, n in sizes.items()}
            mask = Mask.top_each(score, stay, among)
        return mask | ~among

    def _rows(self, network: nn.Module, params: Params, names: tuple[str, ...]) -> Mask:
        bits = Mask.full(params.layout).bits
        last, removable = (
            prunable_weights(network, "both")[-1],
            removable_layers(network) is not None,
        )
        for name in names:
            norms = params[name].abs().flatten(1).sum(1)
            # The neurons of the last layer are the network's outputs.
            if name == last:
                continue
            # Without its last filter a layer would pass nothing on.
            gone = min(round(self.amount * len(norms)), len(norms) - 1)
            rows = norms.argsort(stable=True)[:gone]
            params.layout.view(bits, name)[rows] = False
            bias = name.removesuffix("weight") + "bias"
            if removable and bias in params:
                params.layout.view(bits, bias)[rows] = False
        return Mask(bits, params.layout)


@dataclass(frozen=True)
class Gradual(Pruning):
    """Pruning while a run trains: every model is pruned, and more so in every round.

    In round r = `from_round` ... `until_round`, counted from 1, the share of removed entries is
    amount (1 - (1 - x)^3), x = (r - from_round + 1) / (until_round - from_round + 1). The share is
    0 before these rounds, and the amount after them. Entries are chosen again in every round, in
    the model from which training starts: an entry that the server's sum brought back may stay. An
    amount of 0 is no pruning.

    Attributes:
        from_round: the first round in which entries are removed.
        until_round: the round in which the amount is reached; None: `from_round`, at once.

    Source: Zhu and Gupta 2017, "To prune, or not to prune: exploring the efficacy of pruning for
    model compression", equation 1, from no zeros in the round before `from_round`.
    """

    from_round: Annotated[int, Ge(1)] = 1
    until_round: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last < self.from_round:
            raise ConfigError(
                f"pruning: until_round must be from_round ({self.from_round}) or later; got "
                f"{self.until_round}"
            )

    @property
    def last(self) -> int:
        """The round in which the amount is reached."""
        return self.until_round or self.from_round

    def check(self, rounds: int) -> None:
        """Refuse a run of so many rounds in which the amount would not be reached.

        Raises:
            ConfigError: the amount would not be reached; the message names both rounds.
        """
        if self.last > rounds:
            raise ConfigError(
                f"pruning: its amount is reached in round {self.last}, and the run has {rounds}; "
                "set until_round (or from_round) to at most that"
            )

    def at(self, round: int) -> Pruning:
        """Return the pruning of this round; round 0 is before the first."""
        done = (round - self.from_round + 1) / (self.last - self.from_round + 1)
        rest = 1 - min(max(done, 0.0), 1.0)
        return replace(self, amount=self.amount * (1 - rest**3))


def prunable_weights(
    network: nn.Module, layers: Literal["linear", "conv", "both"]
) -> tuple[str, ...]:
    """Return the names of the trainable weights of these layers, as registered.

    Raises:
        ConfigError: there are none.
    """
    named = [
        (path, m.weight) for path, m in network.named_modules() if isinstance(m, KINDS[layers])
    ]
    names = tuple(
        f"{path}.weight".removeprefix(".")
        for path, weight in named
        if isinstance(weight, Tensor) and weight.requires_grad
    )
    if not names:
        what = "linear layer or convolution" if layers == "both" else f"{layers} layer"
        raise ConfigError(f"{type(network).__name__} has no trainable {what} to prune")
    return names


def prune_request(ask: Fit, keep: Mask) -> Fit:
    """Return a request for the same training with pruned entries zero and not trained."""
    trainable = keep if ask.trainable is None else keep & ask.trainable
    return replace(ask, params=keep.keep(ask.params), trainable=trainable)


def removable_layers(network: nn.Module) -> tuple[str, ...] | None:
    """Return the layers of a network if its filters and neurons can be taken out, else None.

    They can in a `Staged` network with at most one plain layer in a stage.
    """
    # Residual sums, attention and group normalisation need every channel they were made for.
    if not isinstance(network, Staged) or any(len(p) > 1 for p in network.stages.values()):
        return None
    paths = tuple(path for paths in network.stages.values() for path in paths)
    layers = [network.get_submodule(path) for path in paths]
    plain = all(isinstance(m, KINDS["both"]) for m in layers)
    grouped = any(getattr(m, "groups", 1) > 1 for m in layers)
    inside = sum(p.numel() for m in layers for p in m.parameters())
    whole = inside == sum(p.numel() for p in network.parameters())
    return paths if plain and whole and not grouped else None


def bind_parameters(network: nn.Module, params: Params) -> nn.Module:
    """Give a network these parameters, as views, and put it into evaluation mode."""
    tensors = dict(network.named_parameters())
    for name in params:
        tensors[name].data = params[name]
    return network.eval()


def remove_pruned_units(network: nn.Module, keep: Mask) -> nn.Module:
    """Return a copy without the pruned filters and neurons, and without the inputs from them.

    The pruning study times it.

    Raises:
        ConfigError: filters of this network cannot be taken out.
    """
    paths = removable_layers(network)
    if paths is None:
        raise ConfigError(
            f"{type(network).__name__} is no row of plain layers: its sums and norms need every "
            "channel, so filters and neurons can be set to zero but not taken out"
        )
    small = copy.deepcopy(network)
    stays: Tensor | None = None
    after: nn.Module | None = None
    for path in paths:
        layer = small.get_submodule(path)
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        view, names = keep.layout.view, keep.layout.names
        here = view(keep.bits, f"{path}.weight").flatten(1).any(1)
        if f"{path}.bias" in names:
            here = here | view(keep.bits, f"{path}.bias")
        if stays is not None:
            weight = weight[
                :, _remaining_inputs(stays, weight.shape[1], isinstance(after, nn.Linear))
            ]
        _resize(layer, weight[here], bias[here] if isinstance(bias, Tensor) else None)
        stays, after = here, layer
    return small


def _remaining_inputs(stays: Tensor, inputs: int, linear: bool) -> Tensor:
    """Return which inputs of a layer remain: those of remaining channels, and all side inputs."""
    # After a linear layer a channel has one position; a flattened map has several.
    positions = 1 if linear else inputs // len(stays)
    side_inputs = torch.ones(inputs - positions * len(stays), dtype=torch.bool)
    return torch.cat([stays.repeat_interleave(positions), side_inputs])


def _resize(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    order = torch.channels_last if weight.ndim == 4 else torch.contiguous_format
    layer.weight = nn.Parameter(weight.detach().contiguous(memory_format=order))
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    outputs, inputs = weight.shape[:2]
    sizes = ("out_features", "in_features") if weight.ndim == 2 else ("out_channels", "in_channels")
    for name, size in zip(sizes, (outputs, inputs), strict=True):
        setattr(layer, name, size)


class SparseLinear(nn.Module):
    """A linear layer whose weights are a SciPy matrix in compressed rows: zeros cost nothing."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.matrix = scipy.sparse.csr_array(layer.weight.detach().numpy())
        self.bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b for `x` `[..., inputs]`, in evaluation only: there is no gradient."""
        output = torch.from_numpy(self.matrix @ x.detach().flatten(0, -2).numpy().T).T
        output = output.view(*x.shape[:-1], -1)
        return output if self.bias is None else output + self.bias


def with_sparse_layers(network: nn.Module) -> nn.Module:
    """Return a copy whose linear layers are sparse. Convolutions have no sparse kernel here.

    The pruning study times it.
    """
    # `set_submodule` cannot replace the network itself.
    if isinstance(network, nn.Linear):
        return SparseLinear(network)
    small = copy.deepcopy(network)
    for path, layer in network.named_modules():
        if isinstance(layer, nn.Linear):
            small.set_submodule(path, SparseLinear(layer))
    return small


def sparse_form(array: NDArray) -> tuple[NDArray, NDArray] | None:
    """Return the number of zeros before each nonzero entry, and these entries.

    Return None if the dense form is smaller.

    The count before an entry is stored in the narrowest of 8, 16 and 32 bits that holds all counts
    of the array. A negative zero is an entry. `stored_arrays` calls this.
    """
    flat = array.reshape(-1)
    # As integers: a negative zero has a bit that must survive.
    at = np.flatnonzero(flat.view(f"u{flat.itemsize}"))
    skips = np.diff(at, prepend=-1) - 1
    most = int(skips.max(initial=0))
    width = next((w for w in WIDTHS if most <= np.iinfo(w).max), np.uint64)
    size = len(at) * (flat.itemsize + np.dtype(width).itemsize)
    return (skips.astype(width), flat[at]) if size < flat.nbytes else None


def stored_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray]:
    """Return the stored form of tensors: dense, or skips and values where that is smaller."""
    stored: dict[str, NDArray] = {}
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous().numpy()
        parts = sparse_form(array)
        if parts is None:
            stored[name] = array
        else:
            stored[SKIPS + name], stored[VALUES + name] = parts
    return stored


def stored_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of tensors as stored, without the file's header.

    The report on pruning states it.
    """
    return sum(array.nbytes for array in stored_arrays(tensors).values())


def pack_pruned(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as a safetensors file, each in the smaller of its two forms.

    `about` is added to the file's metadata; it may not use the key `shapes`.
    """
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return save(stored_arrays(tensors), {**(about or {}), "shapes": json.dumps(shapes)})


def unpack_pruned(data: bytes) -> dict[str, Tensor]:
    """Undo `pack_pruned`, to the bit.

    Users call this to read a stored model; a how-to page shows it.

    Raises:
        DataError: the bytes are not such a file, or damaged.
    """
    try:
        # The library checks the file, but returns no metadata of bytes: the header is read here.
        deserialize(data)
        header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
        shapes, stored = parse_json(header["__metadata__"]["shapes"]), load(data)
        return {name: _dense(name, shape, stored) for name, shape in shapes.items()}
    except (SafetensorError, KeyError, ValueError, IndexError) as error:
        raise DataError(f"this is no pruned model, or a damaged one ({error!r})") from error


def _dense(name: str, shape: list[int], stored: Mapping[str, NDArray]) -> Tensor:
    if name in stored:
        return torch.from_numpy(stored[name].reshape(shape))
    values = stored[VALUES + name]
    flat = np.zeros(int(np.prod(shape)), values.dtype)
    flat[np.cumsum(stored[SKIPS + name].astype(np.int64) + 1) - 1] = values
    return torch.from_numpy(flat.reshape(shape))
