"""Outputs of networks: a tensor, or a dict, a tuple or an object with tensors in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vergence.errors import ConfigError

LOGITS = "logits"
"""Entry that holds the scores by the convention of transformers, torchvision and others."""


def mapped(change: Callable[..., Tensor], *outputs: Any) -> Any:
    """Return an output of the same form, made of `change` of the tensors at the same place.

    Entries that hold no tensor (a number, None) are those of the first output.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return change(*outputs)
    parts = [entries(each) for each in outputs]
    made = {name: mapped(change, *(part[name] for part in parts)) for name in parts[0]}
    if isinstance(first, tuple | list):
        kind: Any = type(first)
        return kind(*made.values()) if hasattr(first, "_fields") else kind(made.values())
    whole = copy.copy(first)
    for name, part in made.items():
        if isinstance(whole, dict):
            whole[name] = part
        else:
            object.__setattr__(whole, name, part)  # a frozen record's, too
    return whole


def joined(parts: Sequence[Any]) -> Any:
    """Return the outputs of batches as one; a tensor is float32."""
    if isinstance(parts[0], Tensor):
        return torch.cat([part.float() for part in parts])
    return mapped(lambda *each: torch.cat([torch.atleast_1d(part) for part in each]), *parts)


def tensor_in(output: Any, name: str | int | None) -> Tensor:
    """Return the tensor of an output that losses and metrics compare with targets.

    Args:
        output: what a network returned, no tensor itself.
        name: of the entry, or its place; None: `logits`, else the first of a tuple, else the only
            tensor there is.

    Raises:
        ConfigError: there is none; says what there is, and how to choose.
    """
    there = entries(output)
    tensors = [each for each, value in there.items() if isinstance(value, Tensor)]
    if name is None:
        first = tensors[:1] if isinstance(output, tuple | list) or len(tensors) == 1 else []
        wanted = [LOGITS] if LOGITS in tensors else first
    else:
        wanted = list(there)[name:][:1] if isinstance(name, int) and name not in there else [name]
    if wanted and wanted[0] in tensors:
        return there[wanted[0]]
    what = shown(output) + ("" if name is None else f", where outputs={name!r} is no tensor")
    raise ConfigError(
        f"the network returns {what}: "
        + (
            f"say which loss and metrics take, task_from(..., outputs={tensors[0]!r})"
            if tensors
            else "its forward must return a tensor, or a dict, a tuple or an object with one in it"
        )
    )


def shown(output: Any) -> str:
    """Return an output in words: its type, and the names of its entries."""
    names = ", ".join(map(str, entries(output)))
    return "None" if output is None else f"a {type(output).__name__}{names and f' ({names})'}"


def entries(output: Any) -> dict[Any, Any]:
    """Return what is in a dict, a tuple or an object, by name or place."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", range(len(output))), output, strict=True))
    names = (*getattr(output, "__dict__", ()), *getattr(output, "__slots__", ()))
    return {name: getattr(output, name) for name in names}
