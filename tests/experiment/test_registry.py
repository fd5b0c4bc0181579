"""Names in experiment files: each means one module of its kind."""

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator

import pytest

from vergence.core.federation import Dataset
from vergence.core.method import Method
from vergence.core.task import Model, Task
from vergence.experiment.registry import concrete_subclasses, modules, names
from vergence.privacy.robust.base import RobustRule

KINDS = {
    "methods": Method,
    "tasks": Task,
    "models": Model,
    "data": Dataset,
    "privacy.robust": RobustRule,
}


def walked(package: str) -> Iterator[str]:
    """Every module below a package, by its whole name."""
    path = importlib.import_module(package).__path__
    for info in pkgutil.walk_packages(path, f"{package}."):
        if not info.ispkg:
            yield info.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_means_one_module(kind):
    """A helper of the same last name could come first, and the offered one could not be named.

    Several sub-packages have a `base`, which nobody can name.
    """
    homes = defaultdict(list)
    for module in walked(f"vergence.{kind}"):
        homes[module.rpartition(".")[2]].append(module)
    offering = {
        name
        for name, found in homes.items()
        if name != "base"
        and any(
            concrete_subclasses(importlib.import_module(module), KINDS[kind]) for module in found
        )
    }
    assert offering, kind
    assert {name: homes[name] for name in offering if len(homes[name]) > 1} == {}
    assert offering == set(names(kind, KINDS[kind]))
    assert all(modules(kind)[name] == homes[name][0] for name in offering)


@pytest.mark.parametrize("kind", KINDS)
def test_an_offered_module_offers_one_class(kind):
    for name in names(kind, KINDS[kind]):
        assert (
            len(concrete_subclasses(importlib.import_module(modules(kind)[name]), KINDS[kind])) == 1
        )
