"""Digests of behaviour: code of functions, what they close over, and settings of objects.

One source gives one digest in all processes of one version of Python: no address is in it, and no
order of a set. Functions of libraries are known by their names.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "vergence"})
"""Packages whose functions are what their names say: a run records the versions that count."""
SIMPLE = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    range,
    slice,
    enum.Enum,
    np.generic,
    torch.dtype,
    torch.device,
)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
OWN_TO_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that every network has, which are none of its settings."""


def behaviour_digest(thing: Any) -> str:
    """SHA-256 of what a function does, or an object that is called as one."""
    return hashlib.sha256(repr(_BehaviourEncoder().encode(thing)).encode()).hexdigest()


def qualified_name(thing: Any) -> str:
    """Name of a function or class, with its module; of other objects, that of their class."""
    if isinstance(thing, partial):
        return qualified_name(thing.func)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = getattr(named, "__module__", "") or ""
    return f"{module}.{named.__qualname__}" if module else named.__qualname__


class _BehaviourEncoder:
    """Objects told as tuples of plain values, each object once."""

    def __init__(self) -> None:
        # The objects themselves are held, as the id of one that is gone may be another's.
        self._seen: dict[int, tuple[int, Any]] = {}

    def encode(self, thing: Any) -> Any:
        """Everything that an object's behaviour follows from."""
        if isinstance(thing, SIMPLE):
            return type(thing).__name__, repr(thing)
        # Equal constants may be one object or several: it says nothing that they are.
        if isinstance(thing, tuple | frozenset):
            return self._collection(thing)
        if isinstance(thing, CodeType):
            return self._code(thing)
        if id(thing) in self._seen:
            return "again", self._seen[id(thing)][0]
        self._seen[id(thing)] = len(self._seen), thing
        if isinstance(thing, Tensor | np.ndarray):
            return _numbers(thing)
        if isinstance(thing, list | set | Mapping):
            return self._collection(thing)
        if isinstance(thing, partial):
            return "partial", [self.encode(p) for p in (thing.func, thing.args, thing.keywords)]
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, type):
            return self._class(thing)
        if isinstance(thing, ModuleType):
            return "module", thing.__name__
        if isinstance(thing, nn.Module):
            return self._network(thing)
        return self._object(thing)

    def _collection(self, thing: Any) -> Any:
        kind = type(thing).__name__
        if isinstance(thing, list | tuple):
            return kind, [self.encode(item) for item in thing]
        simple = all(isinstance(key, SIMPLE) for key in thing)
        order = sorted(thing, key=repr) if simple else list(thing)
        if isinstance(thing, Mapping):
            return kind, [(self.encode(key), self.encode(thing[key])) for key in order]
        return kind, [self.encode(item) for item in order] if simple else len(thing)

    def _function(self, function: FunctionType) -> Any:
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        given = (self.encode(function.__defaults__), self.encode(function.__kwdefaults__), cells)
        if _in_library(function):
            return "function", qualified_name(function), given
        known = function.__globals__
        names = sorted(set(_globals_of(function.__code__)) & known.keys())
        used = [(name, self.encode(known[name])) for name in names]
        return "function", self._code(function.__code__), given, used

    def _cell(self, cell: Any) -> Any:
        try:
            return self.encode(cell.cell_contents)
        except ValueError:  # a name that nothing is bound to yet
            return "empty"

    def _code(self, code: CodeType) -> Any:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        consts = [self.encode(value) for value in code.co_consts]
        return counts, code.co_flags, code.co_code, code.co_exceptiontable, code.co_names, consts

    def _class(self, kind: type) -> Any:
        if _in_library(kind):
            return "class", qualified_name(kind)
        parts = (FunctionType, staticmethod, classmethod, property)
        own = [
            (name, [self.encode(part) for part in _unwrapped(value)])
            for name, value in sorted(vars(kind).items())
            if isinstance(value, parts) or (isinstance(value, SIMPLE) and not name.startswith("__"))
        ]
        return "class", qualified_name(kind), [self.encode(base) for base in kind.__bases__], own

    def _network(self, network: nn.Module) -> Any:
        settings = [
            (name, self.encode(type(part)), self._settings(part, OWN_TO_MODULES))
            for name, part in network.named_modules()
        ]
        held = (*network.named_parameters(), *network.named_buffers())
        state = [(name, _numbers(tensor)) for name, tensor in held]
        return "network", ADDRESS.sub("", repr(network)), settings, state

    def _object(self, thing: Any) -> Any:
        """An object that can be called is told with its settings, any other by its class alone."""
        if isinstance(thing, MethodType):
            return "method", self.encode(thing.__func__), self.encode(thing.__self__)
        if isinstance(thing, BuiltinFunctionType | np.ufunc):
            return "builtin", ADDRESS.sub("", repr(thing))
        if not callable(thing):
            return "object", qualified_name(type(thing))
        if not hasattr(thing, "__dict__"):
            return "object", qualified_name(type(thing)), ADDRESS.sub("", repr(thing))
        return "object", self.encode(type(thing)), self._settings(thing)

    def _settings(self, thing: Any, leave: frozenset[str] = frozenset()) -> Any:
        held = sorted((name, value) for name, value in vars(thing).items() if name not in leave)
        return [(name, self.encode(value)) for name, value in held]


def _numbers(held: Any) -> Any:
    """Kind, shape and digest of a tensor's or an array's numbers."""
    if isinstance(held, Tensor):
        if held.layout != torch.strided or held.is_meta:
            return "tensor", str(held.dtype), tuple(held.shape), str(held.layout)
        flat = held.detach().cpu().contiguous().reshape(-1)
        held, kind = flat.view(torch.uint8).numpy(), (str(held.dtype), tuple(held.shape))
    else:
        kind = (str(held.dtype), held.shape)
        if held.dtype.hasobject:
            return "array", kind
    return "array", kind, hashlib.sha256(np.ascontiguousarray(held).tobytes()).hexdigest()


def _in_library(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in LIBRARIES


def _globals_of(code: CodeType) -> Iterator[str]:
    """The global names that code reads, and the functions inside it."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


def _unwrapped(value: Any) -> list[Any]:
    """The functions of a class's attribute."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return [value.__func__ if isinstance(value, staticmethod | classmethod) else value]
