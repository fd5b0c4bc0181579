"""Models of several groups in one tree: some layers are common, the others exist per group.

A group's layer is called `name@group`, a common one by its own name, in the network's order.

Used by `methods.clustered.cfedvs`, `methods.clustered.fedgroup` and `methods.clustered.ifca`.
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
    """Base of methods with a model per group; each client trains the model of its group.

    The server's state has `models`, all groups' models in one tree (named set of tensors). If the
    server assigns groups, the state also has `groups`.
    """

    clusters: int
    weights: Literal["samples", "equal"]
    share_body: bool = False

    resident: ClassVar[bool] = False
    trees: ClassVar[Mapping[str, Tree]] = {"models": Tree("the models of all groups", "groups")}

    def common_layers(self, task: Task) -> tuple[str, ...]:
        """Return the names of the layers that all groups share."""
        return task.parts()[0] if self.share_body else ()

    def offer(self, s: S, client: ClientId) -> Mapping[str, Params]:
        """Return the model of the client's group; without a group, that of the largest group."""
        return {"model": model_of_group(s.models, s.groups.get(client, largest_group(s.groups)))}

    def group_on(self, s: S, client: ClientId, train: Samples) -> int | Conversation[int]:
        """Return the number of the client's group; without a group, that of the largest group."""
        return s.groups.get(client, largest_group(s.groups))

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train the model of the client's group."""
        group = int(msg.facts.get("group") or 0)
        return c, (yield from self.train_group(msg["model"], group, site))

    def train_group(self, start: Params, group: int, site: ClientContext) -> Conversation[Reply]:
        """Train a group's model and return its update; other groups' layers have weight 0."""
        fitted = yield from fit(start, site.train, self.local)
        weight, common = fitted.weight(self.weights), self.common_layers(site.task)
        return update_of(start, fitted, weight, group, self.clusters, common)


def layout_of_groups(layout: Layout, groups: int, common: Collection[str] = ()) -> Layout:
    """Return the layout of `groups` models in one tree that share the layers `common`."""
    pairs = [
        (name if name in common else f"{name}@{group}", shape)
        for name, shape in zip(layout.names, layout.shapes, strict=True)
        for group in range(1 if name in common else groups)
    ]
    return Layout(tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs))


def model_in_tree(part: Params, group: int, groups: int, common: Collection[str] = ()) -> Params:
    """Return a tree of models with `part` as the model of `group`, and zeros elsewhere."""
    tree = Params.zeros(layout_of_groups(part.layout, groups, common), part.flat.dtype)
    for name, at in _places(tree.layout, group):
        tree.flat[at] = part.flat[part.layout.slices[name]]
    return tree


def tree_of_models(models: Sequence[Params], common: Collection[str] = ()) -> Params:
    """Return one tree of these models, one per group; common layers come from the first model."""
    tree = model_in_tree(models[0], 0, len(models), common)
    for group, model in enumerate(models):
        for name, at in _places(tree.layout, group):
            if name not in common:
                tree.flat[at] = model.flat[model.layout.slices[name]]
    return tree


def model_of_group(models: Params, group: int) -> Params:
    """Return a group's model, with the common layers, in the network's order."""
    names = dict(_places(models.layout, group))
    shapes = dict(zip(models.layout.names, models.layout.shapes, strict=True))
    layout = Layout(tuple(names), tuple(shapes.get(n) or shapes[f"{n}@{group}"] for n in names))
    model = Params.zeros(layout, models.flat.dtype)
    for name, at in names.items():
        model.flat[layout.slices[name]] = models.flat[at]
    return model


def train_groups(
    models: Params, groups: Mapping[ClientId, int], cohort: Sequence[ClientId]
) -> Conversation[Params]:
    """Let clients of a cohort train their groups' models, and add the mean updates.

    Clients without a group are left out.

    A client gets the request `train` with its group's `model` and the number of its `group`, and
    replies with what `update_of` returns.
    """
    group_of = {c: groups[c] for c in cohort if c in groups}
    messages = {
        group: Message("train", {"model": model_of_group(models, group)}, {"group": group})
        for group in group_of.values()
    }
    to = {client: messages[group] for client, group in group_of.items()}
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
    """Return a client's reply: the update of its group's model; other models have weight 0."""
    # A weight per entry: entries of weight 0 are erased on the client, so that other groups' layers
    # are not sent.
    weights = start.like(torch.full_like(start.flat, weight))
    return reply(
        models=model_in_tree(fitted.params - start, group, groups, common),
        weight=model_in_tree(weights, group, groups, common),
        metrics=fitted.metrics,
    )


def trained_groups(weights: Params | float) -> set[int]:
    """Return the groups whose layers have a nonzero weight in a tree of weights."""
    if not isinstance(weights, Params):
        return set()
    owners = {name: name.partition("@")[2] for name in weights.layout.names}
    slices = weights.layout.slices
    return {int(own) for name, own in owners.items() if own and weights.flat[slices[name]].any()}


def largest_group(groups: Mapping[str, int]) -> int:
    """Return the group with most members, the first of equals; 0 if no client has a group."""
    return min(Counter(groups.values()).items(), key=lambda x: (-x[1], x[0]), default=(0, 0))[0]


def _places(layout: Layout, group: int) -> list[tuple[str, slice]]:
    """Return the network's names of a group's layers, with their slices of the tree."""
    places = []
    for name, at in layout.slices.items():
        plain, _, owner = name.partition("@")
        if owner in ("", str(group)):
            places.append((plain, at))
    return places
