"""Measure the mean and deviation of every feature channel on public pictures, once.

Writes src/vergence/models/efficientnet_lite0_channels.safetensors from the training images of the
packaged OSIE sample: python -m benchmarks.make_channel_statistics
"""

import torch
from safetensors.torch import save_file

from vergence.data.saliency.osie import Osie
from vergence.models import pretrained


def main() -> None:
    """Write the file."""
    train = next(iter(Osie().load().people.values())).train
    images = train.columns["frame_ids"].unique()
    features = pretrained.features(train.banks["frames"].rows[images]).float()
    deviation, mean = torch.std_mean(features, (0, 2, 3), correction=0)
    save_file({"mean": mean, "deviation": deviation}, pretrained.STATISTICS)
    print(f"{len(images)} images, {len(mean)} channels, mean of means {mean.mean():.4f}")


if __name__ == "__main__":
    main()
