"""Private bottleneck for whole images: few features, clipped, with noise drawn once per image.

A client sends clip(z) + noise instead of its smashed vector z. Replacing one image by any other
moves the clipped vector by at most 2 `clip`. With noise of standard deviation `deviation`, one
release is (epsilon, delta)-private, and so is everything computed from it. With many features the
noise is much larger than the signal, so cut the network at a narrow layer (64 features at most).

The noise depends on the image and on the state of the layers that made its vector. While the layers
do not change, an image is always sent with the same noise, which counts as one release. When the
layers change, the noise is new, and the image counts as released again (`releases`). With the old
noise on a new vector, the difference of the two vectors would have no noise.

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
        clip: the largest L2 norm of an image's smashed vector (the output of the client's layers).
        deviation: standard deviation of the noise on every feature.
    """

    clip: Annotated[float, Gt(0)]
    deviation: Annotated[float, Gt(0)]

    @classmethod
    def for_budget(cls, clip: float, epsilon: float, delta: float, releases: int) -> Bottleneck:
        """Return the bottleneck with the noise that a budget needs.

        Args:
            clip: the largest L2 norm of an image's smashed vector.
            epsilon: epsilon of all releases of an image together.
            delta: the delta at which epsilon is computed.
            releases: number of releases of an image.
        """
        return cls(clip, gaussian_noise(epsilon, delta, 2 * clip, releases))

    def epsilon(self, delta: float, releases: int) -> float:
        """Return epsilon of `releases` releases of an image.

        Neighbouring data have any other image in place of this image.
        """
        return gaussian_epsilon(releases**0.5 * 2 * self.clip / self.deviation, delta)

    def clipped(self, smashed: Tensor) -> Tensor:
        """Return smashed data with every sample clipped to the norm `clip`.

        Gradients pass through.
        """
        flat = smashed.flatten(1)
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        return (flat * (self.clip / norm.clamp(min=self.clip))).view_as(smashed)

    def released(
        self, smashed: Tensor, images: Sequence[int], layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Return a batch's smashed data as a client sends them: clipped, with noise.

        The layers must give the same vector for an image every time; so dropout and augmentation
        are not allowed.

        Args:
            smashed: output of the client's layers for a batch of images, `[samples, ...]`.
            images: the number of each image in the client's data.
            layers: parameters of the client's layers.
            secret: key of this client, which no one else has and which is the same in all rounds.

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
    """Return noise of scale 1, `[images, each]`.

    An image always gets the same noise from the same secret.

    Args:
        kind: `gaussian` or `laplace`.
        each: number of features of an image.
        images: the number of each image in the client's data.
        secret: key from which the noise follows.
    """
    draws = (secret.child(int(image)).draws() for image in images)
    return np.array([stream.standard(kind, each) for stream in draws])


def version(layers: Params) -> str:
    """Return an identifier of the state of some layers: a digest of their parameters."""
    return hashlib.blake2b(layers.flat.numpy().tobytes(), digest_size=16).hexdigest()


def releases(versions: Sequence[str]) -> int:
    """Return the number of releases of an image, from the version of the layers at each sending.

    Sending it again through the same version is no further release.
    """
    return len(set(versions))
