"""Recipes in Python: method, task and plan with the values of an experiment file's `recipe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vergence.engine.plan import Plan
from vergence.errors import ConfigError, nearest
from vergence.experiment.packaged import with_recipe
from vergence.experiment.schema import build_method, build_plan, build_task, method_table

TABLES = ("task", "model", "method", "local", "run", "early_stopping", "presence", "privacy")


def recipe(name: str, **tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return method, task and plan of a recipe, as keyword arguments of `vergence.train`.

    `vg.train(people=people, **vg.recipe("eyes"))` trains by it; arguments of `train` take
    precedence. Docs: docs/how-to/recipes.md lists every value.

    Args:
        name: `eyes`, `pictures` or `video`.
        tables: values that replace those of the recipe, by table of an experiment file, as
            `local={"lr": 1e-3}`. A model, method or task of another name replaces a whole table.

    Raises:
        ConfigError: there is no such recipe or table, or a value cannot be used.

    Example:
        >>> sorted(recipe("eyes", run={"rounds": 3}))
        ['method', 'plan', 'task']
    """
    for key in tables:
        if key not in TABLES:
            raise ConfigError(f"recipe: there is no table '{key}'{nearest(key, TABLES)}")
    whole = with_recipe({"recipe": name, **tables})
    plan: Plan = build_plan(whole)
    _, method = build_method(method_table(whole["method"]), whole.get("local", {}))
    return {"method": method, "task": build_task(whole), "plan": plan}
