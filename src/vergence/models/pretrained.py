"""Frozen EfficientNet-Lite0 features of frames, computed once and cached on disk.

Used in `model_tools`, `models` and `video`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float16, UInt8
from numpy.typing import NDArray
from safetensors.torch import load as load_arrays
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.data.io.checks import with_progress
from vergence.data.io.generated_cache import cached
from vergence.errors import ConfigError
from vergence.models.efficientnet_lite0 import EfficientNetLite0, load

NETWORK = "efficientnet-lite0"
CHANNELS = 432
"""112 channels of block 10 (stride 16) and 320 of the last block, brought to stride 16."""
MIDDLE_BLOCK = 10
STRIDE = 16
# The last block has stride 32: a shorter side would vanish.
SMALLEST = 32
# A scorer refuses features of another name than those it was trained on.
VECTOR, CROP = "efficientnet-lite0 head, 128 px", 128
"""Name of the features that `vectors` returns, and the side of their crops in pixels."""
TOP = 6.0
"""Largest output of the last activation, a ReLU6."""
BATCH = 20
STATISTICS = Path(__file__).with_name("efficientnet_lite0_channels.safetensors")
VERSION = 2
"""Part of the cache key: raise it when the same frames should give other features."""


def features(
    frames: UInt8[Tensor, "frames height width 3"],
) -> Float16[Tensor, "frames 432 rows columns"]:
    """Return frozen features of RGB frames, one row and column per 16 pixels (rounded up).

    Features of frames that were seen before are read from the cache folder (VERGENCE_CACHE, default
    ~/.cache/vergence). A damaged cache file is rebuilt with one line on stderr; if the folder
    cannot be written, the features are still returned.

    Raises:
        ConfigError: frames are not uint8 `[n, H, W, 3]`.
    """
    if frames.dtype != torch.uint8 or frames.dim() != 4 or frames.shape[-1] != 3:
        raise ConfigError(
            "pretrained features need frames as uint8 [n, H, W, 3], "
            f"got {str(frames.dtype).removeprefix('torch.')} {list(frames.shape)}"
        )
    return _cached(frames, "", _compute)


def in_place_of_frames(
    federation: Federation, model: str, grid: tuple[int, int], scaled: bool
) -> Federation:
    """Replace the rows of bank `frames`, uint8 `[n, H, W, 3]`, by features.

    The result is float16 `[n, 432, ceil(H/16), ceil(W/16)]`, cached (see `features`), and scaled
    by `standardise` where wanted. `grid` is twice the result's rows and columns.

    Raises:
        ConfigError: no bank `frames`, or frames that do not fit `grid`.
    """
    banks: dict[int, Tensor] = {}
    for splits in federation.people.values():
        for samples in (splits.train, splits.val, splits.test):
            if "frames" not in samples.banks:
                raise ConfigError(f"{model} needs data with frames; '{federation.name}' has none")
            rows = samples.banks["frames"].rows
            _check_grid(rows, model, grid)
            banks[id(rows)] = rows
    # Channels-last rows spare every training step a transposition of its batch.
    made = {
        key: features(rows).contiguous(memory_format=torch.channels_last)
        for key, rows in banks.items()
    }
    if scaled:
        for found in made.values():
            standardise(found)
    return federation.map_bank("frames", lambda rows: made[id(rows)])


def _check_grid(frames: Tensor, model: str, grid: tuple[int, int]) -> None:
    made = tuple(2 * -(-n // STRIDE) for n in frames.shape[1:3])
    if made != tuple(grid):
        height, width = frames.shape[1:3]
        raise ConfigError(
            f"{model}: frames of {height} x {width} pixels give a map of {made[0]} x "
            f"{made[1]}, but grid is {tuple(grid)}; set grid = {list(made)}"
        )


def in_place_of_images(federation: Federation) -> Federation:
    """Replace the bank `image`, uint8 `[n, 3, side, side]`, by a column `x`, float32 `[n, 1280]`.

    The features are those of `vectors`, divided by the largest possible one and cached like
    `features`. Data without this bank stays as it is.

    Raises:
        ConfigError: images of another form.
    """
    if any("image" not in splits.train.banks for splits in federation.people.values()):
        return federation
    looked_at = federation.map_bank("image", _looked_at)

    def changed(samples: Samples) -> Samples:
        bank = samples.banks["image"]
        columns = {name: column for name, column in samples.columns.items() if name != bank.by}
        return Samples({"x": bank.rows[samples.columns[bank.by]], **columns})

    people = {
        person: Splits(*map(changed, (splits.train, splits.val, splits.test)))
        for person, splits in looked_at.people.items()
    }
    about = {**federation.about, "features": f"{NETWORK} head, over {TOP:g}"}
    return replace(federation, people=people, about=about)


def _looked_at(images: Tensor) -> Tensor:
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise ConfigError(
            "vectors of images need uint8 [n, 3, side, side], got "
            f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
        )
    # Scaled by a constant: a scale fitted to data would tell something of the people in them.
    return _cached(images.permute(0, 2, 3, 1).contiguous(), " head", _vectors) / TOP


@torch.no_grad()
def standardise(features: Float16[Tensor, "frames 432 rows columns"], chunk: int = 64) -> None:
    """Scale every channel in place to mean 0 and deviation 1 on public pictures.

    The statistics are packaged; benchmarks/make_channel_statistics.py made them.
    """
    kept = load_arrays(STATISTICS.read_bytes())
    mean, deviation = (kept[name].view(1, -1, 1, 1) for name in ("mean", "deviation"))
    for part in features.split(chunk):
        # A channel that is silent on the public pictures has a deviation of 0.
        part.copy_((part.float() - mean) / (deviation + 1e-3))


class FrozenModel(nn.Module):
    """Module that computes frozen features of frames, as they are cached for training."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.network = load()
        self.scaled = scaled
        kept = load_arrays(STATISTICS.read_bytes())
        self.mean, self.deviation = (kept[n].view(1, -1, 1, 1) for n in ("mean", "deviation"))

    def forward(self, frames: Tensor) -> Tensor:
        """Return features `[B, T, 432, h, w]` of uint8 frames `[B, T, H, W, 3]`."""
        rows, columns = (-(-side // STRIDE) for side in frames.shape[2:4])
        found = extract(self.network, frames.flatten(0, 1))[..., :rows, :columns]
        if self.scaled:
            found = (found - self.mean) / (self.deviation + 1e-3)
        return found.unflatten(0, frames.shape[:2])


def _cached(
    frames: Tensor,
    kind: str,
    compute: Callable[[EfficientNetLite0, Tensor], Tensor],
) -> Tensor:
    """Return the output of `compute` for frames, from the cache if it is there."""
    # The shape counts too: the same bytes may be frames of other sides.
    digest = hashlib.sha256(f"{list(frames.shape)}\n".encode())
    digest.update(frames.contiguous().flatten().numpy().data)

    def made() -> dict[str, NDArray]:
        # One thread: the last bits of a sum depend on how many share it, and features are inputs.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return {"features": compute(load(), frames).numpy()}
        finally:
            torch.set_num_threads(threads)

    key = {"network": f"{NETWORK}{kind}", "version": VERSION, "frames": digest.hexdigest()}
    return torch.from_numpy(cached("features", key, made)["features"])


def _compute(network: EfficientNetLite0, frames: Tensor) -> Tensor:
    rows, columns = (-(-side // STRIDE) for side in frames.shape[1:3])
    out = torch.empty(len(frames), CHANNELS, rows, columns, dtype=torch.float16)
    for part in _shown(frames):
        out[part] = extract(network, frames[part])[..., :rows, :columns]
    return out


def _vectors(network: EfficientNetLite0, frames: Tensor) -> Tensor:
    return torch.cat([vectors(network, frames[part]) for part in _shown(frames)])


def _shown(frames: Tensor) -> Iterator[slice]:
    """Yield ranges of a few frames, with a progress bar if they take long."""
    parts = [slice(start, start + BATCH) for start in range(0, len(frames), BATCH)]
    return with_progress(parts, "frozen features")


@torch.no_grad()
def extract(network: EfficientNetLite0, frames: Tensor) -> Tensor:
    """Return float features `[n, 432, rows, columns]` of a few frames, uint8 `[n, H, W, 3]`.

    Frames are extended to whole strides by repeating their last rows and columns.
    """
    # ImageNet's means and deviations of red, green and blue.
    mean, std = (
        torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    x = (frames.permute(0, 3, 1, 2) / 255 - mean) / std
    bottom, right = (max(SMALLEST, -(-n // STRIDE) * STRIDE) - n for n in x.shape[-2:])
    x = functional.pad(x, (0, right, 0, bottom), mode="replicate")
    x = network.stem(x)
    middle = x
    for number, block in enumerate(network.blocks):
        x = block(x)
        if number == MIDDLE_BLOCK:
            middle = x
    last = functional.interpolate(x, size=middle.shape[-2:], mode="bilinear")
    return torch.cat([middle, last], 1)


@torch.no_grad()
def vectors(network: EfficientNetLite0, frames: UInt8[Tensor, "frames side side 3"]) -> Tensor:
    """Return one float vector per frame, `[n, 1280]`: the last feature map, averaged.

    `frames` are square crops from the middle of larger frames, whose short side is 9/8 of a crop's
    side. Crops for video summaries have sides of `CROP` pixels.
    """
    # The scaling that the weights of EfficientNet-Lite were trained with.
    x = (frames.permute(0, 3, 1, 2).float() - 127) / 128
    return network(x).mean((2, 3))
