"""Registry of the classes that experiments name: in this package, users' files and other packages.

Used in most packages.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
import warnings
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from vergence.core.naming import FROM_FILE
from vergence.core.options import T
from vergence.errors import ConfigError, nearest
from vergence.experiment.code_names import SUFFIX, parse
from vergence.experiment.same_module import ModuleComparison
from vergence.experiment.trust import Code, current_trust
from vergence.experiment.user_code_files import one_class_error, running, wrong_kind_text

FORMER_NAMES = {
    ("methods", "earned"): "interpolation",
    ("wire", "kept"): "value_codec",
    ("method (fedselect) rule", "paper"): "restated",
}
"""Present name of a class, an option or a value; keys are where it stands, and the former name."""
REMOVED_OPTIONS = {
    ("federation (face_pictures)", "landmarker"): "leave it out: faces are found by networks that "
    "docs/how-to/patches.md says how to install",
}
"""What to do without an option that is no more; keys are its table, and its name."""


def present_name(where: str, name: str) -> str:
    """Return the present name of a class, an option or a value, with a warning for a former name.

    Args:
        where: the sub-package of the class (such as `methods`), the table of the option, or the
            table and the option of the value.
        name: the present or former name.
    """
    present = FORMER_NAMES.get((where, name), name)
    if present != name:
        warnings.warn(f"'{name}' in {where} is called '{present}' now", FutureWarning, 2)
    return present


def find(kind: str, name: str, base: type[T]) -> type[T]:
    """Return the class that a name means: `fedavg`, `my.py` or `package.module:Class`.

    Args:
        kind: sub-package in which names such as `fedavg` are looked up, such as `methods`.
        name: the name.
        base: the class must be a subclass of this one.

    Raises:
        ConfigError: there is no such class, or its code cannot be run.
        UntrustedCode: the code is not of this package, and this command may not run it.
    """
    # All code that an experiment names comes in here, so that one place asks
    # `vergence.experiment.trust` whether it may run.
    if not isinstance(name, str):
        raise ConfigError(f"a name must be text, like those in {kind}; got {name!r}")
    if code := parse(name):
        module = _packaged_module(kind, code.place) if code.packaged else _user_module(code.place)
        return (
            class_by_name(module, code.kind, name, base) if code.kind else only_class(module, base)
        )
    name = present_name(kind, name)
    # Importing all of a kind, to list their names, takes a third of a second.
    where = modules(kind).get(name)
    module = importlib.import_module(where) if where else None
    if module is None or not concrete_subclasses(module, base):
        known = names(kind, base)
        what = "data set" if kind == "data" else kind.removesuffix("s")
        raise ConfigError(f"no {what} named '{name}'{nearest(name, known)}")
    return only_class(module, base)


class AdmittedSource(SourceLoader):
    """Import loader that runs exactly the text that was checked before (`Trust.admit`).

    An ordinary loader could run a compiled file next to the source, or a text that was changed
    after the check.

    Args:
        path: path of the source file.
        text: its text.
    """

    def __init__(self, path: str, text: bytes) -> None:
        self.path, self.text = path, text

    def get_filename(self, fullname: str) -> str:
        """Return the path of the source file, for any module name; Python's import calls this."""
        return self.path

    def get_data(self, path: str) -> bytes:
        """Return the text of the source file that was checked; Python's import calls this.

        Raises:
            OSError: `path` is not the path of this source file.
        """
        if path != self.path:
            raise OSError(f"{path} was not admitted")
        return self.text


class OneModule(MetaPathFinder):
    """Import finder of a single module with a checked text; it does not find other modules.

    Args:
        name: full name of the module.
        file: its source file.
        text: the checked text of the file.
    """

    def __init__(self, name: str, file: Path, text: bytes) -> None:
        self.name, self.file, self.text = name, file, text

    def find_spec(
        self, fullname: str, path: Any, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, with a loader of its checked text; None for other modules.

        Python's import calls this.
        """
        if fullname != self.name:
            return None
        package = [str(self.file.parent)] if self.file.name == "__init__.py" else None
        loader = AdmittedSource(str(self.file), self.text)
        return importlib.util.spec_from_file_location(
            fullname, self.file, loader=loader, submodule_search_locations=package
        )


def _user_module(place: str) -> types.ModuleType:
    """Return the module of a user's Python file or module; its code runs once per command.

    `place` is the file or module, `my.py` or `package.module`.
    """
    trust = current_trust()
    if place not in trust.loaded_code:
        file, text = trust.admit(place)
        run = _from_file if place.endswith(SUFFIX) else _imported
        trust.loaded_code[place] = Code(text, run(place, file, text))
    return trust.loaded_code[place].module


def _from_file(place: str, file: Path, text: bytes) -> types.ModuleType:
    """Run the text of a Python file as a new module, and return the module.

    Args:
        place: the file as the experiment names it.
        file: its path.
        text: its checked text.
    """
    loader = AdmittedSource(str(file.absolute()), text)
    name = f"{FROM_FILE}{file.stem}"
    if name in {code.module.__name__ for code in current_trust().loaded_code.values()}:
        # Two folders may have a file of this name, and both may run.
        name += f"_{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    return _run(place, importlib.util.module_from_spec(spec), loader)


def _run(place: str, module: types.ModuleType, loader: AdmittedSource) -> types.ModuleType:
    """Run a loader's text in a new module, and return the module.

    The module is in `sys.modules`; it is removed again if its code fails.

    Args:
        place: the file or module as the experiment names it, for messages.
        module: the new, empty module.
        loader: loader with the checked text.
    """
    # Dataclasses look up their annotations there.
    sys.modules[module.__name__] = module
    try:
        with running(place, loader.path):
            exec(loader.source_to_code(loader.text, loader.path), vars(module))
    except ConfigError:
        del sys.modules[module.__name__]
        raise
    return module


def _imported(place: str, file: Path, text: bytes) -> types.ModuleType:
    """Import a module from its checked text, and return the module.

    A module that was already imported in the ordinary way is returned if the text gives an equal
    module; if not, the text runs as a module of another name.

    Args:
        place: full name of the module.
        file: its source file.
        text: the checked text of the file.

    Raises:
        ConfigError: the module cannot be imported, or was imported before from another text.
    """
    before = sys.modules.get(place)
    if before is not None and not isinstance(_loader(before), AdmittedSource):
        anew = _run_under_new_name(place, file, text)
        return before if ModuleComparison(before, anew).alike else anew
    finder = OneModule(place, file, text)
    # It comes first, so that the admitted text runs, and no other file of this name.
    sys.meta_path.insert(0, finder)
    try:
        with running(place, str(file)):
            module = importlib.import_module(place)
    finally:
        sys.meta_path.remove(finder)
    loader = _loader(module)
    ran = loader.text if isinstance(loader, AdmittedSource) else text
    if ran != text or not file.samefile(str(module.__file__)):
        raise ConfigError(
            f"this Python imported '{place}' from {module.__file__} before it was what {file} is "
            "now: start Python anew"
        )
    return module


def _loader(module: types.ModuleType) -> Any:
    spec = getattr(module, "__spec__", None)
    return spec.loader if spec else None


def _run_under_new_name(place: str, file: Path, text: bytes) -> types.ModuleType:
    """Run a text as a module of a new name; the already imported module stays unchanged.

    Args:
        place: full name of the imported module.
        file: its source file.
        text: the checked text of the file.
    """
    package, _, last = place.rpartition(".")
    mark = hashlib.sha256(place.encode() + text).hexdigest()[:8]
    loader = AdmittedSource(str(file), text)
    module = types.ModuleType(f"{FROM_FILE}{last}_{mark}")
    module.__file__, module.__loader__ = str(file), loader
    module.__package__ = place if file.name == "__init__.py" else package
    if module.__name__ in sys.modules:
        return sys.modules[module.__name__]
    return _run(place, module, loader)


def _packaged_module(kind: str, place: str) -> types.ModuleType:
    """Import a module of a sub-package of this package.

    Args:
        kind: the sub-package, such as `methods`.
        place: the module's full dotted name.

    Raises:
        ConfigError: the sub-package has no such module.
    """
    if place not in modules(kind).values():
        known = [Path(where).suffix[1:] for where in modules(kind).values()]
        near = nearest(place.rpartition(".")[2], known)
        raise ConfigError(f"vergence.{kind} has no module '{place}'{near}")
    return importlib.import_module(place)


def class_by_name(module: types.ModuleType, name: str, whole: str, base: type[T]) -> type[T]:
    """Look up class `name` in `module` and check that it is a subclass of `base`.

    `find` calls this.

    Args:
        module: module in which the class is looked up.
        name: the name of the class.
        whole: the name of module and class in the experiment, for messages.
        base: the base class.

    Raises:
        ConfigError: there is no such class; or it is no subclass of `base`, is abstract, or is
            defined in another module.
    """
    if (value := getattr(module, name, None)) is None:
        known = [kind.__name__ for kind in concrete_subclasses(module, base)]
        near = nearest(name, known) if known else f", and no {base.__name__} at all"
        raise ConfigError(f"{module.__file__} has no class '{name}'{near} ('{whole}')")
    if not isinstance(value, type) or not issubclass(value, base):
        raise ConfigError(f"'{whole}' {wrong_kind_text(value, base)}")
    if value.__module__ != module.__name__:
        raise ConfigError(
            f"'{whole}' is defined in another module, whose file would not be recorded: write "
            f"'{value.__module__}:{value.__name__}'"
        )
    if inspect.isabstract(value):
        raise ConfigError(f"'{whole}': {missing_methods_text(value)}")
    return value


def missing_methods_text(kind: type) -> str:
    """Return the error message for an abstract class, with the methods that it does not define."""
    lacks = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
    return f"{kind.__name__} is abstract, it does not define {lacks}: write that too"


def abstract_class_error(module: types.ModuleType, base: type) -> str | None:
    """Return the error message for a module whose only subclass of `base` is abstract.

    Return None if the module has no such subclass, or several, or one that is not abstract.
    """
    own = [kind for kind in vars(module).values() if isinstance(kind, type)]
    own = [kind for kind in own if issubclass(kind, base) and kind.__module__ == module.__name__]
    return missing_methods_text(own[0]) if len(own) == 1 and inspect.isabstract(own[0]) else None


@functools.cache
def modules(kind: str) -> dict[str, str]:
    """Return the import path of every module in a sub-package such as `methods`, by its name.

    The modules are not imported. Modules called `base` are left out. Folders inside a sub-package
    have no two modules of the same name.
    """
    paths: dict[str, str] = {}
    package = f"vergence.{kind}"
    path = importlib.import_module(package).__path__
    for info in pkgutil.walk_packages(path, f"{package}.", onerror=_raise):
        name = info.name.rpartition(".")[2]
        if not info.ispkg and name != "base":
            paths.setdefault(name, info.name)
    return paths


def _raise(_: str) -> None:
    # pkgutil would skip a package that cannot be imported, and its names would be unknown.
    raise


def concrete_subclasses(module: types.ModuleType, base: type[T]) -> list[type[T]]:
    """Return the subclasses of `base` that a module defines and that are not abstract."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
        and not value.__name__.startswith("_")
    ]


def only_class(module: types.ModuleType, base: type[T]) -> type[T]:
    """Return the only subclass of `base` that a module defines and that is not abstract.

    `find` calls this.

    Raises:
        ConfigError: there is none, or there are several.
    """
    kinds = concrete_subclasses(module, base)
    if not kinds and (lacks := abstract_class_error(module, base)):
        raise ConfigError(f"{module.__file__}: {lacks}")
    if len(kinds) != 1:
        raise ConfigError(one_class_error(module, base, [kind.__name__ for kind in kinds]))
    return kinds[0]


def names(kind: str, base: type) -> list[str]:
    """Return the sorted names of the modules in a sub-package that define a subclass of `base`."""
    known = sorted(modules(kind).items())
    return [
        name for name, where in known if concrete_subclasses(importlib.import_module(where), base)
    ]
