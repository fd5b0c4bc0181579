"""A network's layers in JAX. Runs in SPU's Python; a description of layers says what they are."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

AXES = ("NHWC", "HWIO", "NHWC")
"""SPU knows this order of axes alone; parameters come in torch's."""


def forward(
    layers: list[dict[str, Any]], columns: dict[str, Any], names: list[str], *arrays: Any
) -> Any:
    """Output of a row of layers for `x` `[batch, ...]`.

    Args:
        layers: each `name`, `kind`, and for dense ones whether `relu` and `beside` belong to it.
        columns: of a pruned dense layer by name, which inputs each output listens to
            `[outputs, kept]`. All know them, so that choosing and adding up is local.
        names: of the arrays.
        arrays: `x`, `beside` where a layer reads it, and the parameters.
    """
    named = dict(zip(names, arrays, strict=True))
    x = named["x"]
    for layer in layers:
        name, kind = layer["name"], layer["kind"]
        if kind == "pool":
            window = (1, 1, 2, 2)
            x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
            continue
        weight = named[f"{name}.weight"]
        if kind == "product":
            return x * weight
        bias = named[f"{name}.bias"]
        if kind == "conv":
            x, weight = x.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0)
            x = lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=AXES)
            x = (x + bias).transpose(0, 3, 1, 2)
            continue
        x = x.reshape(x.shape[0], -1)
        if layer["takes_side_inputs"]:
            x = jnp.concatenate([x, named["beside"]], 1)
        if name in columns:
            kept = columns[name]
            x = (x[:, kept.reshape(-1)] * weight.reshape(-1)).reshape(-1, *kept.shape).sum(2) + bias
        else:
            x = x @ weight.T + bias
        x = jnp.maximum(x, 0) if layer["relu"] else x
    return x
