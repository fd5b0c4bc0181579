"""Names of Python code in experiments, `my.py`, `my.py:Class` and `package.module:Class`.

This module parses names and finds files. It does not import the named code, nor its parent
packages, since an import runs code: `vergence.experiment.trust` decides whether code may run.

Used in `deployment`, `experiment` and `monitoring`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

SUFFIX = ".py"


@dataclass(frozen=True)
class CodeName:
    """The two parts of a name of Python code.

    Attributes:
        place: the file, or the module with its packages, such as `package.module`.
        kind: name of the class in the file or module; "": the only class of the wanted type.
    """

    place: str
    kind: str = ""

    @property
    def packaged(self) -> bool:
        """True for code of this package, which needs no trust."""
        return not self.place.endswith(SUFFIX) and self.place.split(".")[0] == "vergence"


def parse(name: str) -> CodeName | None:
    """Parse a text such as `my.py` or `package.module:Class`; None if it names no code."""
    if name.endswith(SUFFIX):
        return CodeName(name)
    place, _, kind = name.rpartition(":")
    if not kind.isidentifier():
        return None
    module = all(part.isidentifier() for part in place.split("."))
    return CodeName(place, kind) if module or place.endswith(SUFFIX) else None


def default_label(name: str) -> str:
    """Return the default label (column in tables) of a method: its class, or its file or module.

    `name` is the method's name in the experiment, such as `fedavg` or `my.py:Class`.
    """
    code = parse(name)
    return code.kind if code and code.kind else Path(name).stem


def with_code_places(value: Any, place_of: Callable[[str], str]) -> Any:
    """Return a table in which the file or module of each name of Python code is replaced.

    Args:
        value: a table of an experiment, or any value in it.
        place_of: the new file or module for that of a name; the same one where it stays.
    """
    if isinstance(value, Mapping):
        return {key: with_code_places(part, place_of) for key, part in value.items()}
    if isinstance(value, list):
        return [with_code_places(part, place_of) for part in value]
    code = parse(value) if isinstance(value, str) else None
    return value if code is None else f"{place_of(code.place)}{value.removeprefix(code.place)}"


def resolve_code_paths(value: Any, folder: Path) -> Any:
    """Return a table with `folder` in front of the names of Python files that exist in it.

    Other names stay unchanged; their files are looked up from the working directory.

    Args:
        value: a table of an experiment file, or any value in it.
        folder: the folder of the experiment file.
    """

    def beside_experiment(place: str) -> str:
        there = place.endswith(SUFFIX) and is_file(folder / place)
        return str(folder / place) if there else place

    return with_code_places(value, beside_experiment)


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False for names that the operating system refuses."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def module_file(module: str) -> Path | None:
    """Find the Python file of a module as an import would, but without running its code.

    Return None if there is no such module, or if it is not a Python file.
    """
    # A file that was written a moment ago would not be found otherwise.
    importlib.invalidate_caches()
    path: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        if (spec := _spec(whole, path)) is None:
            return None
        # An imported package may have changed the path of its modules.
        imported = vars(sys.modules[whole]) if whole in sys.modules else {}
        path = imported.get("__path__", spec.submodule_search_locations)
        if path is None and depth < len(parts):
            return None
    if spec is None or not spec.has_location or not str(spec.origin).endswith(SUFFIX):
        return None
    file = Path(str(spec.origin))
    return file if is_file(file) else None


def _spec(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find the spec of a module with the finders that an import would use, in their order.

    Args:
        module: full name of the module.
        path: the search path of its parent package; None for a top-level module.
    """
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = _spec_on_path(module, sys.path if path is None else path)
        else:
            spec = finder.find_spec(module, path) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


def _spec_on_path(module: str, path: Sequence[str]) -> ModuleSpec | None:
    """Find the spec of a module in these folders, like `PathFinder`; None if it is not there."""
    # `PathFinder` itself would look up a namespace package's folders in its imported parent.
    portions: list[str] = []
    for entry in path:
        finder = pkgutil.get_importer(entry or ".")
        spec = finder.find_spec(module) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or []
    if not portions:
        return None
    namespace = ModuleSpec(module, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace
