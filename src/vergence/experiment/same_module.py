"""Comparison of an imported module with one made from the present text of its file.

Python keeps neither the text nor the time of an import. So the text of the file runs again under
another name, and both modules are compared: functions by their code, classes by all their
attributes, plain values by their value. Objects that cannot be compared in this way count as
different.

Used by `experiment.registry`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

OWN = ("__name__", "__file__", "__cached__", "__loader__", "__spec__", "__package__", "__path__")
"""Attributes of a module that depend on its name and file, and so differ for the same text."""
LEFT_OUT = {*OWN, "__builtins__", "__dict__", "__weakref__", "__module__", "_abc_impl"}
PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(Ellipsis))
SHOWN = ("typing", "types", "dataclasses")
"""Modules whose objects are equal if their `repr` is equal."""
PARTS: Mapping[type, tuple[str, ...]] = {
    types.FunctionType: ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__dict__"),
    types.CellType: ("cell_contents",),
    types.MemberDescriptorType: ("__name__",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel", "__doc__"),
    Field: tuple(Field.__slots__),
}
"""For each type, the attributes by which two of its objects are compared."""


class ModuleComparison:
    """Comparison of an imported module with one made from the present text of the same file.

    Args:
        imported: the imported module.
        anew: the module in which the text ran again, under another name.
    """

    def __init__(self, imported: types.ModuleType, anew: types.ModuleType) -> None:
        self.imported, self.anew = imported, anew
        self.seen: set[tuple[int, int]] = set()

    @property
    def alike(self) -> bool:
        """True if both modules are equal; False also if some objects cannot be compared."""
        # A submodule that was imported since then is an attribute of the first module only.
        attributes = {
            name: value
            for name, value in vars(self.imported).items()
            if name in vars(self.anew) or not isinstance(value, types.ModuleType)
        }
        return self._table(attributes, vars(self.anew))

    def _table(self, one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
        names = one.keys() - LEFT_OUT
        return names == other.keys() - LEFT_OUT and all(
            self._same(one[name], other[name]) for name in names
        )

    def _same(self, one: Any, other: Any) -> bool:
        pair = (id(one), id(other))
        # Objects may contain themselves; a pair that is being compared counts as equal meanwhile.
        if one is other or pair in self.seen:
            return True
        if isinstance(one, type) and isinstance(other, type):
            self.seen.add(pair)
            return self._class(one, other)
        if not self._same(type(one), type(other)):
            return False
        if isinstance(one, PLAIN):
            # As texts, since NaN differs from itself, and 0.0 equals -0.0.
            return repr(one) == repr(other)
        self.seen.add(pair)
        return self._object(one, other)

    def _parts(self, one: Any, other: Any, *names: str) -> bool:
        return all(self._same(getattr(one, name), getattr(other, name)) for name in names)

    def _class(self, one: type, other: type) -> bool:
        return (
            (one.__module__, other.__module__) == (self.imported.__name__, self.anew.__name__)
            and one.__qualname__ == other.__qualname__
            and type(one) is type(other)
            and self._same(one.__bases__, other.__bases__)
            and self._table(vars(one), vars(other))
        )

    def _object(self, one: Any, other: Any) -> bool:
        """Return whether two objects of one type are equal; False for types not compared here."""
        if isinstance(one, types.CodeType):
            return one == other
        for kind, names in PARTS.items():
            if isinstance(one, kind):
                return self._parts(one, other, *names)
        if is_dataclass(one):
            return self._parts(one, other, *(field.name for field in fields(one)))
        if type(one) in (dict, types.MappingProxyType):
            return list(one) == list(other) and self._table(one, other)
        if type(one) in (list, tuple):
            return len(one) == len(other) and all(map(self._same, one, other))
        if type(one) in (set, frozenset):
            return all(isinstance(item, PLAIN) for item in one | other) and one == other
        if type(one).__module__ in SHOWN:
            return repr(one) == repr(other).replace(self.anew.__name__, self.imported.__name__)
        return False
