"""Experiment files and recipes that come with the package, and are found by name.

A recipe is a set of values for eyes, pictures or video, which an experiment file may change.

Used by `api.recipe`, `cli.deploy` and `experiment.schema`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vergence.errors import ConfigError, nearest
from vergence.experiment.code_names import is_file

FOLDER = Path(__file__).parent.parent / "experiments"
RECIPES = FOLDER / "recipes"
Table = dict[str, Any]


def packaged() -> list[str]:
    """Return the names of the experiments in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def locate(path: Path) -> Path:
    """Return the file of an experiment: the named file, or the package's experiment of this name.

    Args:
        path: a file, or a name such as `quickstart`. A path with a folder or a suffix is returned
            as it is, whether it exists or not.

    Raises:
        ConfigError: `path` is a name, and the package has no experiment of this name.
    """
    name = str(path)
    if is_file(path) or path.name != name or path.suffix:
        return path
    if name in packaged():
        return FOLDER / f"{name}.toml"
    close = get_close_matches(name, packaged(), n=1)
    meant = f" (did you mean '{close[0]}'?)" if close else ""
    raise ConfigError(
        f"no experiment '{name[:100]}'{meant}: there is no such file, and the package has "
        f"{', '.join(packaged())}"
    )


def recipe_names() -> list[str]:
    """Return the names of the recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_table(name: Any) -> Table:
    """Return the tables of a recipe, as an experiment file would have them.

    Raises:
        ConfigError: there is no recipe of this name.
    """
    if name not in recipe_names():
        near = nearest(str(name)[:100], recipe_names())
        raise ConfigError(f"recipe must be the name of a recipe, got {name!r:.100}{near}")
    return tomllib.loads((RECIPES / f"{name}.toml").read_text(encoding="utf-8"))


def with_recipe(table: Mapping[str, Any]) -> Table:
    """Return an experiment's table with the values of its `recipe` where it has none of its own.

    A table of the recipe with a `name` (task, model, method) counts as a whole: it is left out if
    the experiment names another one, whose options are others. Without `recipe` nothing changes.

    Raises:
        ConfigError: there is no recipe of this name.
    """
    own = dict(table)
    if "recipe" not in own:
        return own
    below = recipe_table(own.pop("recipe"))
    if "methods" in own:
        del below["method"]
    for key, value in own.items():
        named = isinstance(value, dict) and "name" in below.get(key, {})
        if named and value.get("name", below[key]["name"]) != below[key]["name"]:
            del below[key]
    return merge(below, own)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Merge two tables deeply; values of `above` replace those of `below`."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merge(out[key], value) if both else value
    return out
