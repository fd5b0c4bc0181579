"""Names of Python code in experiments, `my.py`, `my.py:Class` and `package.module:Class`.

Here names are read and files are found. Nothing is imported, not even a parent package, since to
import is to run: whether the code may run is decided in `vergence.experiment.trust`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

SUFFIX = ".py"
PACKAGE = "vergence"


@dataclass(frozen=True)
class CodeName:
    """A name of Python code, taken apart.

    Attributes:
        place: the file, or the module with its packages.
        kind: the class in it; "" for the only one of the kind that is wanted.
    """

    place: str
    kind: str = ""

    @property
    def packaged(self) -> bool:
        """True for code of this package, which needs no trust."""
        return not self.place.endswith(SUFFIX) and self.place.split(".")[0] == PACKAGE


def parse(name: str) -> CodeName | None:
    """A name of code, or None for any other text."""
    if name.endswith(SUFFIX):
        return CodeName(name)
    place, _, kind = name.rpartition(":")
    if not kind.isidentifier():
        return None
    module = all(part.isidentifier() for part in place.split("."))
    return CodeName(place, kind) if module or place.endswith(SUFFIX) else None


def default_label(name: str) -> str:
    """Label of a method that was given none: its class, else its file or module."""
    code = parse(name)
    return code.kind if code and code.kind else Path(name).stem


def resolve_code_paths(value: Any, folder: Path) -> Any:
    """A table of an experiment file, with the folder before the files that lie there.

    Other names stay as they are: files are then looked for from the working directory.
    """
    if isinstance(value, Mapping):
        return {key: resolve_code_paths(part, folder) for key, part in value.items()}
    if isinstance(value, list):
        return [resolve_code_paths(part, folder) for part in value]
    code = parse(value) if isinstance(value, str) else None
    if code is None or not code.place.endswith(SUFFIX) or not is_file(folder / code.place):
        return value
    return f"{folder / code.place}{value.removeprefix(code.place)}"


def is_file(path: Path) -> bool:
    """True if a file is there; no file has a name that the system refuses."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def module_file(module: str) -> Path | None:
    """The Python file of a module, found as an import would find it, without running anything."""
    importlib.invalidate_caches()
    path: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        spec = _spec(whole, path)
        if spec is None:
            return None
        imported = vars(sys.modules[whole]) if whole in sys.modules else {}
        path = imported.get("__path__", spec.submodule_search_locations)
        if path is None and depth < len(parts):
            return None
    if spec is None or not spec.has_location or not str(spec.origin).endswith(SUFFIX):
        return None
    file = Path(str(spec.origin))
    return file if is_file(file) else None


def _spec(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Spec of a module, by the finders that an import would ask, in their order."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            found = _spec_on_path(module, sys.path if path is None else path)
        else:
            found = finder.find_spec(module, path) if hasattr(finder, "find_spec") else None
        if found is not None:
            return found
    return None


def _spec_on_path(module: str, path: Sequence[str]) -> ModuleSpec | None:
    """The same of the folders of a path.

    `PathFinder` itself reads a namespace package's folders off its parent, which it takes to be
    imported.
    """
    portions: list[str] = []
    for entry in path:
        finder = pkgutil.get_importer(entry or ".")
        found = finder.find_spec(module) if finder is not None else None
        if found is not None and found.loader is not None:
            return found
        portions += (found and found.submodule_search_locations) or []
    if not portions:
        return None
    namespace = ModuleSpec(module, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace
