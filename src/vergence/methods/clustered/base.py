"""Several models of one network in one tree: some layers in common, the others one per group.

A layer of a group is called `name@group`, a common one by its own name, in the network's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import torch

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, fit
from vergence.core.data import Samples
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Method, NoState, Tree
from vergence.core.params import Layout, Params
from vergence.core.requests import FitResult
from vergence.core.task import Task

S = TypeVar("S", bound=Any)


class ClusteredMethod(Method[S, NoState]):
    """Base of methods that keep a model per group, of which every client trains one.

    The server's state has the tree of `models`, and where clients do not choose, their `groups`.
    """

    clusters: int
    weights: Literal["samples", "equal"]
    share_body: bool = False

    trees: ClassVar[Mapping[str, Tree]] = {"models": Tree("the models of all groups", "groups")}

    def common(self, task: Task) -> tuple[str, ...]:
        """Return the names of the layers that all groups share."""
        return task.parts()[0] if self.share_body else ()

    def offer(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Send the model of one's group; to those in none, that of the largest."""
        return {"model": of_group(s.models, s.groups.get(client, largest(s.groups)))}

    def group_on(self, s: S, client: ClientId, train: Samples) -> int | Conversation[int]:
        """Return the group of a client; of one in none, the largest."""
        return s.groups.get(client, largest(s.groups))

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train the model of one's group."""
        group = int(msg.facts.get("group") or 0)
        return c, (yield from self.trained(msg["model"], group, site))

    def trained(self, start: Params, group: int, site: ClientContext) -> Conversation[Reply]:
        """Train the model of a group, and return its update; the others have weight 0."""
        fitted = yield from fit(start, site.train, self.local)
        weight, common = fitted.weight(self.weights), self.common(site.task)
        return update_of(start, fitted, weight, group, self.clusters, common)


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


def train_apart(
    models: Params, groups: Mapping[ClientId, int], cohort: Sequence[ClientId]
) -> Conversation[Params]:
    """Let those of a cohort who are in a group train its model; add everybody's mean updates.

    A client is asked to `train` its `model`, is told the number of its `group`, and gives what
    `update_of` makes.
    """
    there = {c: groups[c] for c in cohort if c in groups}
    asked = {
        group: Message("train", {"model": of_group(models, group)}, {"group": group})
        for group in there.values()
    }
    to = {client: asked[group] for client, group in there.items()}
    got = yield from aggregate("train", to, like={"models": models})
    return models + got.mean("models") if got.count else models


def update_of(
    start: Params,
    fitted: FitResult,
    weight: float,
    group: int,
    groups: int,
    common: Collection[str] = (),
) -> Reply:
    """Return a client's reply: how its group's model moved; the others have weight 0."""
    alike = start.like(torch.full_like(start.flat, weight))
    return reply(
        models=placed(fitted.params - start, group, groups, common),
        weight=placed(alike, group, groups, common),
        metrics=fitted.metrics,
    )


def contributed(weights: Params | float) -> set[int]:
    """Return the groups that somebody trained, by the weights of a tree of models."""
    if not isinstance(weights, Params):
        return set()
    owners = {name: name.partition("@")[2] for name in weights.layout.names}
    slices = weights.layout.slices
    return {int(own) for name, own in owners.items() if own and weights.flat[slices[name]].any()}


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
