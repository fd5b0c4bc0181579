"""Digests of behaviour: code and closures of functions, and settings of objects.

The same source has the same digest in all processes of one version of Python: memory addresses and
the order of sets do not enter the digest. Functions of libraries enter only by their names.

Used by `api.from_objects` and `api.task_from`.
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

# Functions of these packages count by their names: a run records the versions, and their code would
# give another digest after every harmless update.
LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "vergence"})
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
# Memory addresses in a `repr` differ between two runs of the same program.
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
OWN_TO_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that every `nn.Module` has; they are not a network's own settings."""


def behaviour_digest(thing: Any) -> str:
    """Return the SHA-256 of what a callable object does: its code, closure and settings."""
    return hashlib.sha256(repr(_BehaviourEncoder().encode(thing)).encode()).hexdigest()


def qualified_name(thing: Any) -> str:
    """Return the full name of a function or class, module included.

    For another object, return that of its class; for a `partial`, that of the function in it.
    """
    if isinstance(thing, partial):
        return qualified_name(thing.func)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = getattr(named, "__module__", "") or ""
    return f"{module}.{named.__qualname__}" if module else named.__qualname__


class _BehaviourEncoder:
    """Encodes objects as tuples of plain values, to be digested.

    Objects are numbered in the order in which they are met. An object that is met again is encoded
    as its number.
    """

    def __init__(self) -> None:
        # It keeps the objects themselves, as the id of a deleted object may be used again.
        self._seen: dict[int, tuple[int, Any]] = {}

    def encode(self, thing: Any) -> Any:
        """Return, as plain values, everything on which an object's behaviour depends."""
        if isinstance(thing, SIMPLE):
            return type(thing).__name__, repr(thing)
        # Python may use one object or several for equal constants, so these are not numbered.
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
        # The order of a set differs between processes, that of simple keys can be sorted.
        simple = all(isinstance(key, SIMPLE) for key in thing)
        order = sorted(thing, key=repr) if simple else list(thing)
        if isinstance(thing, Mapping):
            return kind, [(self.encode(key), self.encode(thing[key])) for key in order]
        # Of a set of other objects only the size is known to be the same in all processes.
        return kind, [self.encode(item) for item in order] if simple else len(thing)

    def _function(self, function: FunctionType) -> Any:
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        defaults = (self.encode(function.__defaults__), self.encode(function.__kwdefaults__), cells)
        if _in_library(function):
            return "function", qualified_name(function), defaults
        known = function.__globals__
        # A global that the code reads may change what the function does.
        names = sorted(set(_globals_of(function.__code__)) & known.keys())
        used = [(name, self.encode(known[name])) for name in names]
        return "function", self._code(function.__code__), defaults, used

    def _cell(self, cell: Any) -> Any:
        try:
            return self.encode(cell.cell_contents)
        # The name in the closure is not bound yet.
        except ValueError:
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
        tensors = (*network.named_parameters(), *network.named_buffers())
        state = [(name, _numbers(tensor)) for name, tensor in tensors]
        return "network", ADDRESS.sub("", repr(network)), settings, state

    def _object(self, thing: Any) -> Any:
        """Encode a callable object by its class and settings, and any other object by its class."""
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
        pairs = sorted((name, value) for name, value in vars(thing).items() if name not in leave)
        return [(name, self.encode(value)) for name, value in pairs]


def _numbers(array: Tensor | np.ndarray) -> Any:
    """Return the type, shape and digest of the numbers in a tensor or an array."""
    kind = (str(array.dtype), tuple(array.shape))
    if isinstance(array, Tensor):
        if array.layout != torch.strided or array.is_meta:
            return "tensor", *kind, str(array.layout)
        # Seen as bytes, since NumPy lacks some of torch's types, such as bfloat16.
        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif array.dtype.hasobject:
        return "array", kind
    return "array", kind, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _in_library(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in LIBRARIES


def _globals_of(code: CodeType) -> Iterator[str]:
    """Yield the global names that code reads, and those that functions inside the code read."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


def _unwrapped(value: Any) -> list[Any]:
    """Return the functions behind a class attribute, such as those of a property."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return [value.__func__ if isinstance(value, staticmethod | classmethod) else value]
