"""Private bottleneck for whole images: few features, clipped, with noise drawn once per image.

A client sends clip(z) + noise instead of its smashed vector z. Replacing one image by any other
moves the clipped vector by at most 2 `clip`: with noise of `deviation` one release is (epsilon,
delta)-private, and so is everything computed from it. With many features the signal drowns: cut at
a narrow layer (64 features at most).

Noise is bound to the image and to the layers that made its vector. While those do not change, the
same image is sent with the same noise, and however often it is sent this is one release. When they
change, the noise is new and the release counts again (`releases`): old noise on a new vector would
show the difference of the two without any.

Used by `attacks.defended_clients`, `audit.smashed_data`, `engine.protections.output_range`,
`engine.protections.split_defense` and `privacy.split.defense`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.errors import ConfigError
from vergence.privacy.dp.accounting import gaussian_epsilon, gaussian_noise
from vergence.privacy.keyed_noise import NoiseKey, NoiseKind, hidden


@dataclass(frozen=True)
class Bottleneck(NamedOptions, label="bottleneck"):
    """Clipping norm of smashed vectors, and the noise added to them.

    Args:
        clip: C, the largest L2 norm of an image's smashed vector.
        deviation: standard deviation of the noise on every feature.
    """

    clip: Annotated[float, Gt(0)]
    deviation: Annotated[float, Gt(0)]

    @classmethod
    def for_budget(cls, clip: float, epsilon: float, delta: float, releases: int) -> Bottleneck:
        """Return the bottleneck whose noise keeps `releases` releases of an image in the budget."""
        return cls(clip, gaussian_noise(epsilon, delta, 2 * clip, releases))

    def epsilon(self, delta: float, releases: int) -> float:
        """Return epsilon of `releases` releases of an image, against any image in its place."""
        return gaussian_epsilon(releases**0.5 * 2 * self.clip / self.deviation, delta)

    def clipped(self, smashed: Tensor) -> Tensor:
        """Return every sample shortened to `clip`; gradients pass through."""
        flat = smashed.flatten(1)
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        return (flat * (self.clip / norm.clamp(min=self.clip))).view_as(smashed)

    def released(
        self, smashed: Tensor, images: Sequence[int], layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Return a batch's smashed data in the form that a client sends: clipped, with noise.

        The layers must give the same vector for an image every time, so that dropout and
        augmentation are not allowed.

        Args:
            smashed: `[samples, ...]`, output of `layers` for these images.
            images: the number of each image in the client's data.
            layers: layers through which the batch went.
            secret: secret of this client, which is never shared and is the same in all rounds.

        Raises:
            ConfigError: there is not one number per sample.
        """
        if len(images) != len(smashed):
            raise ConfigError(
                f"noise is drawn per image: {len(smashed)} samples came with {len(images)} numbers"
            )
        features = smashed[0].numel() if len(smashed) else 0
        # New layers, new noise: the old noise on a new vector would show the difference of both.
        noise = image_noise("gaussian", features, images, secret.child(version(layers)))
        return hidden(self.clipped(smashed), self.deviation, noise)


def image_noise(
    kind: NoiseKind, each: int, images: Sequence[int], secret: NoiseKey
) -> NDArray[np.float64]:
    """Return noise of scale 1, `[images, each]`, the same for an image under the same secret."""
    draws = (secret.child(int(image)).draws() for image in images)
    return np.array([stream.standard(kind, each) for stream in draws])


def version(layers: Params) -> str:
    """Return the identifier of one state of some layers: a digest of all bits."""
    return hashlib.blake2b(layers.flat.numpy().tobytes(), digest_size=16).hexdigest()


def releases(versions: Sequence[str]) -> int:
    """Return the number of releases of an image that was sent under each of these versions."""
    return len(set(versions))
