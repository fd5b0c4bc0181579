"""Numbers that are written into the code, and what kind of member a class has, as stored.

A constant, a default or a limit that slips by one changes results, privacy or files, and often no
result of a small run. A property that becomes a method reads as true wherever it is asked for. New
names are free, and names that are gone are not missed. If a change was meant,
`VERGENCE_GOLDEN=write python -m pytest tests/golden/test_constants.py` stores what is there now.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib
import json
import os
import re
import types
from pathlib import Path

import pytest

from tests.conftest import ROOT

STORED = Path(__file__).with_name("constants.json")
PACKAGES = ("adaptation", "core", "data", "engine", "metrics", "privacy")
LONGEST = 100
"""Longer values are stored as a digest."""
MADE = ("__init__", "__repr__", "__eq__")
"""Functions that a dataclass makes of its fields."""
KINDS = "property|method|cached|wrapped|frozen="
"""What is said of a kind, which may not go while its owner stays."""


def text(value) -> str | None:
    """What is compared of a value: its repr, sets in order; None where it tells no number."""
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    words = str | bytes | re.Pattern
    if isinstance(value, words | types.ModuleType | type | types.FunctionType | functools.partial):
        return None
    said = repr(value)
    if " at 0x" in said or str(ROOT) in said or not re.search(r"\d|True|False", said):
        return None
    if len(said) <= LONGEST:
        return said
    return hashlib.blake2b(said.encode(), digest_size=12).hexdigest()


def defaults_of(function) -> str | None:
    """Defaults of a function's arguments that are numbers, or hold some."""
    said = {}
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    given = function.__defaults__ or ()
    pairs = [*zip(names[len(names) - len(given) :], given, strict=True)]
    for name, value in [*pairs, *(function.__kwdefaults__ or {}).items()]:
        if (found := text(value)) is not None:
            said[name] = found
    return repr(said) if said else None


def kind_of(member) -> str | None:
    """What a class makes of a function besides a method; None: a method."""
    plain = getattr(member, "__func__", member)
    kind = None if isinstance(member, types.FunctionType) else type(member).__name__
    if getattr(member, "__isabstractmethod__", False):
        kind = f"abstract {kind or 'method'}"
    return f"{kind or 'method'}, wrapped" if hasattr(plain, "__wrapped__") else kind


def of_class(cls) -> dict[str, str]:
    """Numbers and kinds of members of a class."""
    found = {}
    made = "__dataclass_params__" in vars(cls)
    if made:
        params = cls.__dataclass_params__
        found["dataclass"] = f"frozen={params.frozen}, eq={params.eq}, order={params.order}"
        for field in dataclasses.fields(cls):
            if (said := text(field.default)) is not None:
                found[f"{field.name} ="] = said
    for name, member in vars(cls).items():
        if name.startswith(("__", "_abc")) and not isinstance(member, types.FunctionType):
            continue
        if made and name in MADE:
            continue
        if isinstance(member, types.FunctionType | staticmethod | classmethod | property) or (
            isinstance(member, functools.cached_property) or hasattr(member, "cache_info")
        ):
            if (kind := kind_of(member)) is not None:
                found[name] = kind
            inner = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(inner, types.FunctionType) and (said := defaults_of(inner)):
                found[f"{name}()"] = said
        elif not callable(member) and not isinstance(member, types.MemberDescriptorType):
            value = member.value if isinstance(member, enum.Enum) else member
            if (said := text(value)) is not None:
                found[name] = said
    return found


def of_module(module) -> dict[str, str]:
    """Numbers of a module's constants and defaults, and the kinds of its classes' members."""
    found = {}
    for name, value in vars(module).items():
        if name.startswith("__"):
            continue
        own = getattr(value, "__module__", module.__name__) == module.__name__
        if isinstance(value, type):
            if own and value.__qualname__ == name:
                found |= {f"{name}.{key}": said for key, said in of_class(value).items()}
        elif isinstance(value, types.FunctionType) or hasattr(value, "cache_info"):
            if own and hasattr(value, "__wrapped__"):
                found[name] = "cached" if hasattr(value, "cache_info") else "wrapped"
            inner = getattr(value, "__wrapped__", value)
            if own and isinstance(inner, types.FunctionType) and (said := defaults_of(inner)):
                found[f"{name}()"] = said
        elif (own or dataclasses.is_dataclass(value)) and (said := text(value)) is not None:
            found[name] = said
    return found


def modules(package: str) -> list[str]:
    """Names of a package's modules."""
    files = sorted((ROOT / "src" / "vergence" / package).rglob("*.py"))
    parts = [file.relative_to(ROOT / "src").with_suffix("").parts for file in files]
    return [".".join(each).removesuffix(".__init__") for each in parts]


def found_in(package: str) -> dict[str, dict[str, str]]:
    """Numbers and kinds by module, without modules that have none, or cannot be imported here."""
    found = {}
    for name in modules(package):
        try:
            said = of_module(importlib.import_module(name))
        except ImportError as fault:
            if "vergence" in str(fault.name):
                raise
            continue
        if said:
            found[name] = said
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_constants_and_kinds_of_members_stay(package):
    found = found_in(package)
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    if os.environ.get("VERGENCE_GOLDEN") == "write":
        others = {n: said for n, said in stored.items() if n.split(".")[1] != package}
        stored = dict(sorted({**others, **found}.items()))
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    told = {
        f"{module}.{name}": (said, found[module][name])
        for module, names in stored.items()
        for name, said in names.items()
        if name in found.get(module, {}) and found[module][name] != said
    }
    assert not told, "stored, and found now: see this file's first lines"
    # A property that becomes a method, or a dataclass that is a plain class, is not found at all.
    for module, names in stored.items():
        if module not in found:
            continue
        for name, said in names.items():
            if name in found[module] or not re.search(KINDS, said):
                continue
            owner, _, member = name.partition(".")
            here = getattr(importlib.import_module(module), owner, None)
            still = here is not None and (member in ("", "dataclass") or member in vars(here))
            assert not still, f"{module}.{name} was stored as: {said}"


def test_what_is_compared_of_a_value():
    assert text(3.5) == "3.5"
    assert text(frozenset({2, 1})) == "[1, 2]"
    assert text("99 words") is None
    assert text(object()) is None
    assert len(text(tuple(range(99)))) == 24
    assert text(tuple(range(99))) != text((*range(98), 97))


def test_kinds_of_members_and_defaults():
    @dataclasses.dataclass(frozen=True)
    class Sample:
        number: int = 3
        SHARE = 0.5

        @property
        def read(self):
            return self.number

        @staticmethod
        def made(way=2, *, sure=True):
            return way, sure

        def plain(self):
            return self.read

    assert of_class(Sample) == {
        "dataclass": "frozen=True, eq=True, order=False",
        "number =": "3",
        "number": "3",
        "SHARE": "0.5",
        "read": "property",
        "made": "staticmethod",
        "made()": "{'way': '2', 'sure': 'True'}",
    }
