"""Lazy exports: a package offers the classes of its modules without importing them.

`dir(vergence.methods)` is therefore instant, and `vergence.methods.FedPer` imports one module. If
a package sets `KIND`, such as "Method", it lists only subclasses of that class: experiments can
name these. Other classes of its modules can be imported but are not listed.

Used in most packages.
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
"""Matches the source text of a class: its name, its bases and its body."""
ABSTRACT = re.compile(r"^    @(?:\w+\.)?abstractmethod\b", re.MULTILINE)
PARAMETERS = re.compile(r"\[[^\[\]]*\]")
FUNCTION = re.compile(r"^def ([A-Za-z]\w*)", re.MULTILINE)


def lazy(
    package: str, functions: bool = False
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the two functions `__getattr__` and `__dir__` of a package.

    `__getattr__` imports a class at its first use. With `functions`, the package also offers the
    functions of its modules.
    """
    names = partial(public_names, package, functions)
    return lambda name: exported(package, name, functions), names


def exported(package: str, name: str, functions: bool = False) -> Any:
    """Import and return the object that a module of the package defines under this name.

    Args:
        package: the full name of the package.
        name: the name of the class or function.
        functions: whether the package offers functions, too.

    Raises:
        AttributeError: no module defines the name, or several modules do.
    """
    if name == "__all__":
        return public_names(package, functions)
    own = _spellings(package).get(name, name)
    homes = () if name.startswith("_") else index(package, functions).get(own, ())
    if len(homes) == 1:
        return getattr(import_module(homes[0]), own)
    near = "" if name.startswith("_") else meant(name, public_names(package, functions))
    why = f"has no attribute '{name}'{near}"
    if homes:
        why = f"has {len(homes)} of the name '{name}': import it from one of {', '.join(homes)}"
    raise AttributeError(f"module '{package}' {why}", name=name)


def public_names(package: str, functions: bool = False) -> list[str]:
    """List the names that exactly one module of a package defines.

    If the package sets `KIND`, only subclasses of the class of that name are listed.
    """
    shown = {own: public for public, own in _spellings(package).items()}
    kind = vars(import_module(package)).get("KIND", "")
    homes_of = index(package, functions)
    names = {name for name, homes in homes_of.items() if len(homes) == 1}
    if kind:
        names &= of_kind(package, kind)
    return sorted(shown.get(name, name) for name in names)


@cache
def of_kind(package: str, kind: str) -> frozenset[str]:
    """Return the concrete classes of a package that descend from the class `kind`.

    The modules are read as text, not imported; no two classes of a package may have the same
    name. Classes of modules named `base` are left out.
    """
    bases: dict[str, set[str]] = {}
    abstract = set()
    for inside, text in (*_modules("vergence.core"), *_modules(package)):
        for name, above, body in WHOLE.findall(text):
            # Innermost brackets first: `Base[Box[int]]` takes two passes.
            while PARAMETERS.search(above):
                above = PARAMETERS.sub("", above)
            bases[name] = {base.strip().rpartition(".")[2] for base in above.split(",")}
            if inside[-1] == "base" or ABSTRACT.search(body):
                abstract.add(name)
    descendants, size = {kind}, 0
    # Until a pass adds nothing: a class may descend through classes that come later in the files.
    while size != len(descendants):
        size = len(descendants)
        descendants |= {name for name, above in bases.items() if above & descendants}
    return frozenset(descendants - abstract - {kind})


@cache
def index(package: str, functions: bool) -> Mapping[str, tuple[str, ...]]:
    """Map every class name of a package to the modules that define it, also in nested packages.

    With `functions`, names of functions are included. A name that is also a module's is left out.
    """
    homes_of: dict[str, tuple[str, ...]] = {}
    modules = set()
    for inside, text in _modules(package):
        modules.add(inside[0])
        home = ".".join((package, *inside))
        for name in (*CLASS.findall(text), *(FUNCTION.findall(text) if functions else ())):
            if home not in homes_of.get(name, ()):
                homes_of[name] = (*homes_of.get(name, ()), home)
    # A module or a package of this name is what the import system would give.
    return {name: homes for name, homes in homes_of.items() if name not in modules}


@cache
def _modules(package: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return each module below a package: the parts of its dotted name, and its source text."""
    return tuple(
        (path.relative_to(folder).with_suffix("").parts, path.read_text(encoding="utf-8"))
        for folder in map(Path, import_module(package).__path__)
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    )


def _spellings(package: str) -> Mapping[str, str]:
    """Return a package's `SPELLINGS` (public name -> class name), if it has any."""
    return vars(import_module(package)).get("SPELLINGS", {})
