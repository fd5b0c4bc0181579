"""Classes of a package offered under its own name, found without importing their modules.

So that `dir(vergence.methods)` is instant, and `vergence.methods.FedPer` imports one module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
FUNCTION = re.compile(r"^def ([A-Za-z]\w*)", re.MULTILINE)


def exported(package: str, name: str, functions: bool = False) -> Any:
    """Object that a package's modules define under this name.

    Args:
        package: its full name.
        name: of the class.
        functions: whether functions are offered too.

    Raises:
        AttributeError: nothing, or several modules do.
    """
    homes = () if name.startswith("_") else index(package, functions).get(_own(package, name), ())
    if len(homes) == 1:
        return getattr(import_module(homes[0]), _own(package, name))
    why = f"has no attribute '{name}'"
    if homes:
        why = f"has {len(homes)} of the name '{name}': import it from one of {', '.join(homes)}"
    raise AttributeError(f"module '{package}' {why}", name=name)


def public_names(package: str, functions: bool = False) -> list[str]:
    """The names that a package offers: what one of its modules defines, and no other."""
    shown = {own: public for public, own in _spellings(package).items()}
    found = index(package, functions)
    return sorted(shown.get(name, name) for name, homes in found.items() if len(homes) == 1)


@cache
def index(package: str, functions: bool) -> Mapping[str, tuple[str, ...]]:
    """Name -> the modules of a package, and of those in it, that define it."""
    found: dict[str, tuple[str, ...]] = {}
    modules = set()
    for folder in map(Path, import_module(package).__path__):
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("").parts
            if path.name == "__init__.py":
                continue
            modules.add(inside[0])
            text, home = path.read_text(encoding="utf-8"), ".".join((package, *inside))
            for name in (*CLASS.findall(text), *(FUNCTION.findall(text) if functions else ())):
                if home not in found.get(name, ()):
                    found[name] = (*found.get(name, ()), home)
    # A module or a package of this name is what the import system would give.
    return {name: homes for name, homes in found.items() if name not in modules}


def _spellings(package: str) -> Mapping[str, str]:
    """Public name -> the name of the class, where they differ."""
    return vars(import_module(package)).get("SPELLINGS", {})


def _own(package: str, name: str) -> str:
    return _spellings(package).get(name, name)
