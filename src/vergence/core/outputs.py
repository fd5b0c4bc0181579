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
    names = _names(first)
    parts = {name: mapped(change, *(_entry(each, name) for each in outputs)) for name in names}
    if isinstance(first, tuple | list):
        kind: Any = type(first)
        return kind(*parts.values()) if hasattr(first, "_fields") else kind(parts.values())
    if not names:
        return first
    made = copy.copy(first)
    for name, part in parts.items():
        if isinstance(made, dict):
            made[name] = part
        else:
            object.__setattr__(made, name, part)  # a frozen record's, too
    return made


def joined(parts: Sequence[Any]) -> Any:
    """Return the outputs of batches as one, in float32; whole numbers in a dict stay so."""
    if isinstance(parts[0], Tensor):
        return torch.cat([part.float() for part in parts])
    return mapped(lambda *each: torch.cat([_float(torch.atleast_1d(t)) for t in each]), *parts)


def _float(part: Tensor) -> Tensor:
    return part.float() if part.is_floating_point() else part


def tensor_in(output: Any, name: str | int | None) -> Tensor:
    """Return the tensor of an output that losses and metrics compare with targets.

    Args:
        output: what a network returned, no tensor itself.
        name: of the entry, or its place; None: `logits`, else the first of a tuple, else the only
            tensor there is.

    Raises:
        ConfigError: there is none; says what there is, and how to choose.
    """
    names = _names(output)
    tensors = [each for each in names if isinstance(_entry(output, each), Tensor)]
    if name is None:
        several = isinstance(output, tuple | list)
        name = LOGITS if LOGITS in tensors else next(iter(tensors), None) if several else name
        name = tensors[0] if name is None and len(tensors) == 1 else name
    elif isinstance(name, int) and name not in names:
        name = names[name] if -len(names) <= name < len(names) else name
    if name in tensors:
        return _entry(output, name)
    what = shown(output) + (f", where outputs={name!r} is no tensor" if name is not None else "")
    if not tensors:
        raise ConfigError(
            f"the network returns {what}: its forward must return a tensor, or a dict, a tuple or "
            "an object with one in it"
        )
    raise ConfigError(
        f"the network returns {what}: say which of them loss and metrics take, "
        f"task_from(..., outputs={tensors[0]!r})"
    )


def shown(output: Any) -> str:
    """Return an output in words: its type, and the names of its entries."""
    names = ", ".join(map(str, _names(output)))
    if output is None:
        return "None"
    return f"a {type(output).__name__}{f' ({names})' if names else ''}"


def _names(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        return list(output)
    if isinstance(output, tuple | list):
        return list(getattr(output, "_fields", range(len(output))))
    return [*getattr(output, "__dict__", ()), *getattr(output, "__slots__", ())]


def _entry(output: Any, name: Any) -> Any:
    if isinstance(output, Mapping) or isinstance(name, int):
        return output[name]
    return getattr(output, name)
