"""Registry of experiments' names, and binding of tables to records checked by annotations."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TypeVar

from vergence.core.naming import FROM_FILE
from vergence.core.options import check_ranges
from vergence.errors import ConfigError, nearest
from vergence.experiment.code_names import SUFFIX, parse
from vergence.experiment.same_module import ModuleComparison
from vergence.experiment.trust import Code, current_trust
from vergence.experiment.user_code_files import one_class_error, running, wrong_kind_text
from vergence.experiment.values import fitting

T = TypeVar("T")


def find(kind: str, name: str, base: type[T]) -> type[T]:
    """Return the `base` subclass that a name means: `fedavg`, `my.py` or `package.module:Class`.

    This is the one entry through which code that an experiment names comes in: whatever names code
    in another way has to pass here, where `vergence.experiment.trust` says what may run.

    Raises:
        ConfigError: there is none, or its code cannot be run.
        UntrustedCode: it is code of somebody's, and this command may not run it.
    """
    if not isinstance(name, str):
        raise ConfigError(f"a name must be text, like those in {kind}; got {name!r}")
    if code := parse(name):
        module = _packaged_module(kind, code.place) if code.packaged else _user_module(code.place)
        return (
            class_by_name(module, code.kind, name, base) if code.kind else only_class(module, base)
        )
    # Importing all of a kind, to list their names, takes a third of a second.
    where = modules(kind).get(name)
    module = importlib.import_module(where) if where else None
    if module is None or not concrete_subclasses(module, base):
        known = names(kind, base)
        what = "data set" if kind == "data" else kind.removesuffix("s")
        raise ConfigError(f"no {what} named '{name}'{nearest(name, known)}")
    return only_class(module, base)


class AdmittedSource(SourceLoader):
    """Runs the text that was admitted: not a compiled file beside it, nor what lies there later."""

    def __init__(self, path: str, text: bytes) -> None:
        self.path, self.text = path, text

    def get_filename(self, fullname: str) -> str:
        """Path of the file where the text was read."""
        return self.path

    def get_data(self, path: str) -> bytes:
        """Return the text."""
        if path != self.path:
            raise OSError(f"{path} was not admitted")
        return self.text


class OneModule(MetaPathFinder):
    """Finds one module, which was admitted, whoever imports it first; all others it leaves."""

    def __init__(self, name: str, file: Path, text: bytes) -> None:
        self.name, self.file, self.text = name, file, text

    def find_spec(
        self, fullname: str, path: Any, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Location of the module, with a loader that has its text."""
        if fullname != self.name:
            return None
        package = [str(self.file.parent)] if self.file.name == "__init__.py" else None
        loader = AdmittedSource(str(self.file), self.text)
        return importlib.util.spec_from_file_location(
            fullname, self.file, loader=loader, submodule_search_locations=package
        )


def _user_module(place: str) -> types.ModuleType:
    """The module of a Python file, or with this name: run once for a command."""
    trust = current_trust()
    if place not in trust.loaded_code:
        file, text = trust.admit(place)
        run = _from_file if place.endswith(SUFFIX) else _imported
        trust.loaded_code[place] = Code(text, run(place, file, text))
    return trust.loaded_code[place].module


def _from_file(place: str, file: Path, text: bytes) -> types.ModuleType:
    """The module that a Python file makes."""
    loader = AdmittedSource(str(file.absolute()), text)
    name = f"{FROM_FILE}{file.stem}"
    if name in {code.module.__name__ for code in current_trust().loaded_code.values()}:
        name += f"_{hashlib.sha256(place.encode()).hexdigest()[:8]}"  # another folder's
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    return _run(place, importlib.util.module_from_spec(spec), loader)


def _run(place: str, module: types.ModuleType, loader: AdmittedSource) -> types.ModuleType:
    """The module, once the admitted text has run in it; one that fails is no module."""
    sys.modules[module.__name__] = module  # dataclasses look up their annotations there
    try:
        with running(place, loader.path):
            exec(loader.source_to_code(loader.text, loader.path), vars(module))
    except ConfigError:
        del sys.modules[module.__name__]
        raise
    return module


def _imported(place: str, file: Path, text: bytes) -> types.ModuleType:
    """The module with this name, made of this text.

    One that somebody imported in the ordinary way is taken if it is what the text makes; else the
    text runs under another name beside it, so that what is recorded is what runs.

    Raises:
        ConfigError: it cannot be imported, or an experiment brought it in before, of another text.
    """
    there = sys.modules.get(place)
    if there is not None and not isinstance(_loader(there), AdmittedSource):
        anew = _run_under_new_name(place, file, text)
        return there if ModuleComparison(there, anew).alike else anew
    finder = OneModule(place, file, text)
    sys.meta_path.insert(0, finder)
    try:
        with running(place, str(file)):
            module = importlib.import_module(place)
    finally:
        sys.meta_path.remove(finder)
    loader = _loader(module)
    before = loader.text if isinstance(loader, AdmittedSource) else text
    if before != text or not file.samefile(str(module.__file__)):
        raise ConfigError(
            f"this Python imported '{place}' from {module.__file__} before it was what {file} is "
            "now: start Python anew"
        )
    return module


def _loader(module: types.ModuleType) -> Any:
    spec = getattr(module, "__spec__", None)
    return spec.loader if spec else None


def _run_under_new_name(place: str, file: Path, text: bytes) -> types.ModuleType:
    """The module that this text makes, under a name of its own; its package is as it was."""
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
    """A module of this package, by its whole name."""
    if place not in modules(kind).values():
        known = [Path(where).suffix[1:] for where in modules(kind).values()]
        near = nearest(place.rpartition(".")[2], known)
        raise ConfigError(f"vergence.{kind} has no module '{place}'{near}")
    return importlib.import_module(place)


def class_by_name(module: types.ModuleType, name: str, whole: str, base: type[T]) -> type[T]:
    """The class of a module that is named, if it is of the kind that is wanted.

    Raises:
        ConfigError: there is none of the name, or it is something else.
    """
    found = getattr(module, name, None)
    if found is None:
        known = [kind.__name__ for kind in concrete_subclasses(module, base)]
        near = nearest(name, known) if known else f", and no {base.__name__} at all"
        raise ConfigError(f"{module.__file__} has no class '{name}'{near} ('{whole}')")
    if not isinstance(found, type) or not issubclass(found, base):
        raise ConfigError(f"'{whole}' {wrong_kind_text(found, base)}")
    if found.__module__ != module.__name__:
        raise ConfigError(
            f"'{whole}' is defined in another module, whose file would not be recorded: write "
            f"'{found.__module__}:{found.__name__}'"
        )
    if inspect.isabstract(found):
        raise ConfigError(f"'{whole}': {missing_methods_text(found)}")
    return found


def missing_methods_text(kind: type) -> str:
    """Error text: the methods that an abstract class has yet to define."""
    lacks = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
    return f"{kind.__name__} is abstract, it does not define {lacks}: write that too"


def abstract_class_error(module: types.ModuleType, base: type) -> str | None:
    """Error text where a module's one class of a kind is abstract, else None."""
    own = [kind for kind in vars(module).values() if isinstance(kind, type)]
    own = [kind for kind in own if issubclass(kind, base) and kind.__module__ == module.__name__]
    return missing_methods_text(own[0]) if len(own) == 1 and inspect.isabstract(own[0]) else None


@functools.cache
def modules(kind: str) -> dict[str, str]:
    """Every module of a kind, in whatever sub-package: its name, and from where it is imported.

    Nothing is imported but packages. A `base` is what its sub-package has in common, and nobody's
    name; nor is a module that two sub-packages have (a test says so).
    """
    found: dict[str, str] = {}
    package = f"vergence.{kind}"
    path = importlib.import_module(package).__path__
    for info in pkgutil.walk_packages(path, f"{package}.", onerror=_raise):
        name = info.name.rpartition(".")[2]
        if not info.ispkg and name != "base":
            found.setdefault(name, info.name)
    return found


def _raise(_: str) -> None:
    raise  # the fault of a package that cannot be imported: else its names would be lost


def concrete_subclasses(module: types.ModuleType, base: type[T]) -> list[type[T]]:
    """Subclasses of `base` that a module defines and that can be made."""
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
    """Return the one subclass of `base` that a module defines."""
    found = concrete_subclasses(module, base)
    if not found and (lacks := abstract_class_error(module, base)):
        raise ConfigError(f"{module.__file__}: {lacks}")
    if len(found) != 1:
        raise ConfigError(one_class_error(module, base, [kind.__name__ for kind in found]))
    return found[0]


def names(kind: str, base: type) -> list[str]:
    """Names of one kind: the modules that define a `base` subclass."""
    known = sorted(modules(kind).items())
    return [
        name for name, where in known if concrete_subclasses(importlib.import_module(where), base)
    ]


def _untyped_hint(record: type, key: str) -> str:
    """The mend where a dataclass has a plain attribute of this name, which is no field."""
    value = vars(record).get(key)
    if key.startswith("_") or value is None or callable(value) or hasattr(value, "__get__"):
        return ""
    typed = f"{key}: {type(value).__name__} = {value!r}"
    return f"; '{key}' of {record.__name__} has no type, as options need: write `{typed}`"


def as_table(given: Any, where: str) -> dict[str, Any]:
    """A table of an experiment file, as a copy.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(given, dict):
        raise ConfigError(f"{where} must be a table, got {given!r}")
    return dict(given)


def bind(record: type[T], table: Any, where: str, **given: Any) -> T:
    """Build a dataclass from a table; unknown keys and unfit values are errors."""
    assert is_dataclass(record)
    hints = typing.get_type_hints(record)
    known = [f.name for f in fields(record) if f.name not in given]
    values = dict(given)
    for key, value in as_table(table, where).items():
        if key not in known:
            untyped = _untyped_hint(record, key)
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, known)}{untyped}")
        if isinstance(hints[key], type) and is_dataclass(hints[key]):
            values[key] = bind(hints[key], value, f"{where}.{key}")
            continue
        try:
            values[key] = fitting(hints[key], value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {key} {error}") from None
    needed = [f for f in fields(record) if f.default is MISSING and f.default_factory is MISSING]
    missing = [f.name for f in needed if f.name not in values]
    if missing:
        raise ConfigError(f"{where}: '{missing[0]}' must be given")
    made = record(**values)
    check_ranges(made, where)
    return made
