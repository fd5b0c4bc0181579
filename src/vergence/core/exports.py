"""Lazy exports: classes of a package under its own name, found without importing their modules.

So that `dir(vergence.methods)` is instant, and `vergence.methods.FedPer` imports one module. A
package that says its `KIND`, as "Method", shows the classes of this kind, which experiments name;
what stands beside them in its modules is found by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from vergence.errors import meant

CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
WHOLE = re.compile(r"^class (\w+)(?:\(([^()]*)\))?:\n((?:[ \t].*\n|\n)*)", re.MULTILINE)
"""A class with its bases and its body."""
ABSTRACT = re.compile(r"^    @(?:\w+\.)?abstractmethod\b", re.MULTILINE)
PARAMETERS = re.compile(r"\[[^\[\]]*\]")
FUNCTION = re.compile(r"^def ([A-Za-z]\w*)", re.MULTILINE)


def lazy(
    package: str, functions: bool = False
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__`, which imports a name when it is first used, and its `__dir__`."""
    names = partial(public_names, package, functions)
    return lambda name: exported(package, name, functions), names


def exported(package: str, name: str, functions: bool = False) -> Any:
    """Object that a package's modules define under this name.

    Args:
        package: its full name.
        name: of the class.
        functions: whether functions are offered too.

    Raises:
        AttributeError: nothing, or several modules do.
    """
    if name == "__all__":
        return public_names(package, functions)
    homes = () if name.startswith("_") else index(package, functions).get(_own(package, name), ())
    if len(homes) == 1:
        return getattr(import_module(homes[0]), _own(package, name))
    near = "" if name.startswith("_") else meant(name, public_names(package, functions))
    why = f"has no attribute '{name}'{near}"
    if homes:
        why = f"has {len(homes)} of the name '{name}': import it from one of {', '.join(homes)}"
    raise AttributeError(f"module '{package}' {why}", name=name)


def public_names(package: str, functions: bool = False) -> list[str]:
    """The names that a package shows: what one of its modules defines, of the package's kind."""
    shown = {own: public for public, own in _said(package, "SPELLINGS", {}).items()}
    kind = _said(package, "KIND", "")
    found = index(package, functions)
    names = {name for name, homes in found.items() if len(homes) == 1}
    if kind:
        names &= of_kind(package, kind)
    return sorted(shown.get(name, name) for name in names)


@cache
def of_kind(package: str, kind: str) -> frozenset[str]:
    """The classes of a package that descend from this one, and define all that it asks for.

    They are read and not imported: a class is known by its name, as no two of the package share
    one. Modules called `base` hold what others have in common, and nothing to be named.
    """
    bases: dict[str, set[str]] = {}
    abstract = set()
    for inside, text in (*_modules("vergence.core"), *_modules(package)):
        for name, above, body in WHOLE.findall(text):
            while PARAMETERS.search(above):
                above = PARAMETERS.sub("", above)
            bases[name] = {base.strip().rpartition(".")[2] for base in above.split(",")}
            if inside[-1] == "base" or ABSTRACT.search(body):
                abstract.add(name)
    found, size = {kind}, 0
    while size != len(found):
        size = len(found)
        found |= {name for name, above in bases.items() if above & found}
    return frozenset(found - abstract - {kind})


@cache
def index(package: str, functions: bool) -> Mapping[str, tuple[str, ...]]:
    """Name -> the modules of a package, and of those in it, that define it."""
    found: dict[str, tuple[str, ...]] = {}
    modules = set()
    for inside, text in _modules(package):
        modules.add(inside[0])
        home = ".".join((package, *inside))
        for name in (*CLASS.findall(text), *(FUNCTION.findall(text) if functions else ())):
            if home not in found.get(name, ()):
                found[name] = (*found.get(name, ()), home)
    # A module or a package of this name is what the import system would give.
    return {name: homes for name, homes in found.items() if name not in modules}


@cache
def _modules(package: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """The modules of a package, and of those in it: their names inside it, and their text."""
    return tuple(
        (path.relative_to(folder).with_suffix("").parts, path.read_text(encoding="utf-8"))
        for folder in map(Path, import_module(package).__path__)
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    )


def _said(package: str, name: str, otherwise: Any) -> Any:
    """A package's own word on its names: `KIND`, or `SPELLINGS`, public name -> that of a class."""
    return vars(import_module(package)).get(name, otherwise)


def _own(package: str, name: str) -> str:
    return _said(package, "SPELLINGS", {}).get(name, name)
