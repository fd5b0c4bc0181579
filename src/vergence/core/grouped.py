"""Several models of one network in one tree: some layers in common, the others one per group.

A layer of a group is called `name@group`, a common one by its own name, in the network's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from vergence.core.params import Layout, Params


def spread(layout: Layout, groups: int, common: Collection[str] = ()) -> Layout:
    """Describe the tree of so many models of this layout that have the named layers in common."""
    pairs = [
        (name if name in common else f"{name}@{group}", shape)
        for name, shape in zip(layout.names, layout.shapes, strict=True)
        for group in range(1 if name in common else groups)
    ]
    return Layout(tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs))


def placed(part: Params, group: int, groups: int, common: Collection[str] = ()) -> Params:
    """Return a tree of models that holds `part` where a group's model lies, and zeros elsewhere."""
    tree = Params.zeros(spread(part.layout, groups, common), part.flat.dtype)
    for name, at in _places(tree.layout, group):
        tree.flat[at] = part.flat[part.layout.slices[name]]
    return tree


def joined(models: Sequence[Params], common: Collection[str] = ()) -> Params:
    """Return the tree of these models, a model per group; common layers are those of the first."""
    tree = placed(models[0], 0, len(models), common)
    for group, model in enumerate(models):
        for name, at in _places(tree.layout, group):
            if name not in common:
                tree.flat[at] = model.flat[model.layout.slices[name]]
    return tree


def of_group(models: Params, group: int) -> Params:
    """Return the model of a group, common layers among its own, in the network's order."""
    names = dict(_places(models.layout, group))
    shapes = dict(zip(models.layout.names, models.layout.shapes, strict=True))
    layout = Layout(tuple(names), tuple(shapes.get(n) or shapes[f"{n}@{group}"] for n in names))
    model = Params.zeros(layout, models.flat.dtype)
    for name, at in names.items():
        model.flat[layout.slices[name]] = models.flat[at]
    return model


def largest(groups: Mapping[str, int]) -> int:
    """Return the group with most members, the first of equals; 0 where nobody is in one."""
    return min(Counter(groups.values()).items(), key=lambda x: (-x[1], x[0]), default=(0, 0))[0]


def _places(layout: Layout, group: int) -> list[tuple[str, slice]]:
    """Return the network's names of a group's layers, and where they lie in the tree."""
    found = []
    for name, at in layout.slices.items():
        plain, _, owner = name.partition("@")
        if owner in ("", str(group)):
            found.append((plain, at))
    return found
