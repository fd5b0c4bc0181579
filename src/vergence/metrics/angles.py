"""Gaze directions as (pitch, yaw) in radians, as unit vectors, and the angle between two of them.

Positive pitch looks up, positive yaw looks to the image left; vectors have x to the right, y down
and z away from the camera, so a gaze straight at the camera is (0, 0, -1).

Used in most packages.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def to_vector(angles: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 3"]:
    """Return the unit vectors (-cos p sin y, -sin p, -cos p cos y) of (pitch, yaw) in radians.

    Source: Zhang et al. 2015, MPIIGaze.
    """
    pitch, yaw = angles.unbind(-1)
    flat = pitch.cos()
    return torch.stack([-flat * yaw.sin(), -pitch.sin(), -flat * yaw.cos()], -1)


def to_angles(vectors: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 2"]:
    """Return (pitch, yaw) in radians of vectors of any positive length."""
    x, y, z = vectors.unbind(-1)
    # On unit vectors the pitch is asin(-y); this form needs no clipping where rounding exceeds 1.
    return torch.stack([torch.atan2(-y, torch.hypot(x, z)), torch.atan2(-x, -z)], -1)


def between_rad(
    one: Float[Tensor, "*batch 3"], other: Float[Tensor, "*batch 3"]
) -> Float[Tensor, "*batch"]:
    """Return the angle between vectors, in radians: atan2(|a x b|, a . b)."""
    # The arccos of the normalised dot product is the same angle, but has no finite slope at equal
    # vectors and loses angles below 0.02 degrees in float32.
    cross = torch.linalg.vector_norm(torch.linalg.cross(one, other, dim=-1), dim=-1)
    return torch.atan2(cross, (one * other).sum(-1))


def angular_error_deg(
    predicted: Float[Tensor, "*batch 2"], true: Float[Tensor, "*batch 2"]
) -> Float[Tensor, "*batch"]:
    """Return the angle between two gaze directions, in degrees, both given as (pitch, yaw)."""
    return torch.rad2deg(between_rad(to_vector(predicted), to_vector(true)))


def mean_direction(angles: Float[Tensor, "samples 2"]) -> Float[Tensor, "2"]:
    """Return the direction (pitch, yaw) of the mean unit vector, in radians."""
    return to_angles(to_vector(angles).mean(0))
