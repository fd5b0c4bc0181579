"""Random augmentation of training samples, with the same bits in every process and after a resume.

Used by `api.task_from`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from vergence.core.naming import plural
from vergence.errors import ConfigError

Transform = Callable[..., Tensor | tuple[Tensor, ...]]
"""Function of one sample's input columns that returns them augmented, with the same shapes."""


def augmented(transform: Transform, columns: Sequence[Tensor]) -> list[Tensor]:
    """Apply a transform to each sample of a batch; columns and result are `[batch, ...]`.

    The transform gets one sample at a time, in main memory, as in a torch `Dataset`. So a random
    crop differs from sample to sample. No result depends on another sample; DP-SGD relies on this.

    Raises:
        ConfigError: the transform's results differ from its arguments in number, shape or type.
    """
    given = [column.cpu() for column in columns]
    with _reproducible():
        rows = [transform(*(each.clone() for each in row)) for row in zip(*given, strict=True)]
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    for row, before in zip(rows, zip(*given, strict=True), strict=True):
        if len(row) != len(before) or not all(map(_alike, row, before)):
            raise ConfigError(
                f"transform: {plural(len(before), 'input')} {_shapes(before)} became "
                f"{_shapes(row)}; return tensors of the same shapes and types, one for each input"
            )
    made = zip(columns, zip(*rows, strict=True), strict=True)
    return [torch.stack(own).to(column.device) for column, own in made]


def _alike(one: object, other: Tensor) -> bool:
    return isinstance(one, Tensor) and one.shape == other.shape and one.dtype == other.dtype


def _shapes(row: Sequence[object]) -> str:
    return ", ".join(
        f"{each.dtype} {list(each.shape)}".removeprefix("torch.")
        if isinstance(each, Tensor)
        else f"a {type(each).__name__}"
        for each in row
    )


@contextmanager
def _reproducible() -> Iterator[None]:
    """Let Python's and NumPy's random numbers follow from torch's, which every training seeds."""
    seed = int(torch.randint(2**32, ()))
    # Users' transforms draw from NumPy's global numbers, which have no newer interface.
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
