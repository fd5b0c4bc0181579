"""Maps made from gaze points: counts per pixel, label maps, smoothed maps.

Points are [..., fixations, 2]: x, y in [0, 1] from the top-left corner, NaN where there is none. A
point belongs to the pixel that contains it, floor(x W), floor(y H); the right and lower border
belong to the last pixel.

Used in `experiment`, `metrics`, `models` and `tasks`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SIGMA = 0.05
"""Standard deviation of a label's Gaussian in widths: 3.2 of 64 pixels (GLC, official code)."""
REACH = 9 / 3.2
"""Kernel radius in sigmas: 19 x 19 pixels for sigma 3.2, 5 x 5 for sigma 0.8."""


def pixels(
    points: Float[Tensor, "*batch fixations 2"], height: int, width: int
) -> tuple[Int[Tensor, "*batch fixations"], Bool[Tensor, "*batch fixations"]]:
    """Return each point's pixel number, row * width + column, and whether there is a point.

    The number is 0 where there is no point.
    """
    valid = ~points.isnan().any(-1)
    x, y = points.nan_to_num(0.0).unbind(-1)
    column = (x * width).long().clamp(0, width - 1)
    row = (y * height).long().clamp(0, height - 1)
    return (row * width + column) * valid, valid


def fixation_counts(
    points: Float[Tensor, "*batch fixations 2"], height: int, width: int
) -> Float[Tensor, "*batch height width"]:
    """Return the number of points that fall into each pixel."""
    index, valid = pixels(points, height, width)
    counts = points.new_zeros((*index.shape[:-1], height * width))
    return counts.scatter_add(-1, index, valid.to(points.dtype)).unflatten(-1, (height, width))


def label_maps(
    points: Float[Tensor, "*batch fixations 2"], height: int, width: int, sigma: float = SIGMA
) -> Float[Tensor, "*batch height width"]:
    """Return the sum of one Gaussian per point, scaled to sum 1; all zero where no point is.

    `sigma` is in widths and the Gaussian is round in pixels. It is centred on the point's pixel,
    reaches `REACH` sigmas and is cut at the border.

    Source: GLC (Lai et al. 2022), official code, where one point per frame is labelled.
    Differs: the official code centres on round(x W), half a pixel to the lower right of the pixel
    that its own and all other metrics read; here both are the same pixel.
    """
    index, valid = pixels(points, height, width)
    reach = max(1, round(REACH * sigma * width))
    down = _gaussian(height, sigma * width, reach, points)[index // width]
    across = _gaussian(width, sigma * width, reach, points)[index % width]
    # A Gaussian that is round in pixels is the product of one down and one across.
    heat = (down * valid[..., None]).transpose(-1, -2) @ across
    # Maps of frames without gaze stay 0, and become no NaN.
    return heat / heat.sum((-1, -2), keepdim=True).clamp(min=torch.finfo(heat.dtype).tiny)


def smoothed(
    counts: Float[Tensor, "*batch height width"], sigma: float
) -> Float[Tensor, "*batch height width"]:
    """Return counts blurred by an uncut Gaussian (`sigma` in widths, round in pixels)."""
    height, width = counts.shape[-2:]
    down = _gaussian(height, sigma * width, height, counts)
    across = _gaussian(width, sigma * width, width, counts)
    return down @ counts @ across


def centre_map(height: int, width: int, sigma: float = 0.2) -> Float[Tensor, "height width"]:
    """Return a Gaussian in the middle (`sigma` in heights down and in widths across), sum 1."""
    down, across = (
        torch.exp(-(((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5) ** 2) / 2 / sigma**2)
        for n in (height, width)
    )
    heat = torch.outer(down, across)
    return heat / heat.sum()


def _gaussian(n: int, sigma_px: float, reach: int, like: Tensor) -> Float[Tensor, "n n"]:
    place = torch.arange(n, dtype=like.dtype, device=like.device)
    gap = place[:, None] - place
    return torch.exp(-(gap**2) / (2 * sigma_px**2)) * (gap.abs() <= reach)
