"""FedGroup: clients are grouped once, by the direction of their first updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, collect, fit
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, NoState
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.methods.clustered.base import (
    ClusteredMethod,
    model_of_group,
    train_groups,
    tree_of_models,
)
from vergence.metrics.clustering import kmeans

Array = NDArray[np.float64]


@tagged("Grouped", directions="ways")
@dataclass(frozen=True)
class Grouped:
    """Server state: a model per group in one tree, the common start, and the clients' groups.

    `directions` are the groups' mean first updates in one tree, None before there are groups;
    `seed` decides which clients are asked for first updates.
    """

    models: Params
    start: Params
    seed: int
    groups: Mapping[str, int] = field(default_factory=dict)
    directions: Params | None = None


@dataclass(frozen=True)
class FedGroup(ClusteredMethod[Grouped]):
    """Group people by the direction of a first update, for good; then FedAvg within the groups.

    Before the first round min(20 m, N) people train `probe` steps from the common start. With
    their updates as rows of W = U S V^T and the first m columns of V, the decomposed cosine
    distance of person i to direction j is <w_i, v_j> / |w_i|; K-means on its rows makes the m
    groups, which start from the common start plus the mean update of their people. Other clients
    do the same steps in their first round, and join the group g of least (1 - cos(w_i, d_g)) / 2,
    where d_g is the mean first update of the group.

    Args:
        clusters: m, the number of groups; 1 is FedAvg, without a first update.
        probe: gradient steps of the first update.
        weights: clients count by their samples, or equally.

    Source: Duan et al., "FedGroup: efficient federated learning via decomposed similarity-based
    clustering", ISPA 2021, Algorithms 2 and 3; repository morningD/FlexCFL.
    Differs: groups are not mixed with each other (eta_g = 0, as the authors' default).
    """

    clusters: Annotated[int, Ge(1)] = 3
    probe: Annotated[int, Ge(1)] = 50
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("models",), weight="per entry"),
        "probe": Exposure("each", trees=("model",), metrics=(), joining=True),
    }

    def server(self, task: Task) -> Grouped:
        """Return the first server state: every group has the task's initial model."""
        start = task.init()
        return Grouped(tree_of_models([start] * self.clusters), start, getattr(task, "seed", 0))

    def setup(self, s: Grouped, clients: Sequence[ClientId]) -> Conversation[Grouped]:
        """Ask some clients for a first update, and group them by its direction."""
        if self.clusters == 1:
            return s
        rng, many = RandomStream("fedgroup", s.seed).numpy(), min(20 * self.clusters, len(clients))
        asked: list[int] = sorted(rng.choice(len(clients), many, replace=False).tolist())
        updates = yield from self.first_updates(s, [clients[i] for i in asked])
        return self.make_groups(s, updates) if updates else s

    def round(self, s: Grouped, cohort: Sequence[ClientId]) -> Conversation[Grouped]:
        """Give newcomers a group; let every client of the cohort train its group's model."""
        s = yield from self.assign_groups(s, cohort)
        models = yield from train_groups(s.models, s.groups, cohort)
        return replace(s, models=models)

    def assign_groups(self, s: Grouped, clients: Sequence[ClientId]) -> Conversation[Grouped]:
        """Give a group to every client without one; without a reply a client stays ungrouped."""
        ungrouped = [c for c in clients if c not in s.groups]
        if self.clusters == 1:
            return replace(s, groups={**s.groups, **dict.fromkeys(ungrouped, 0)})
        updates = (yield from self.first_updates(s, ungrouped)) if ungrouped else {}
        if s.directions is None:
            return self.make_groups(s, updates) if updates else s
        # An empty group has no direction, and gets no newcomers.
        used = sorted(set(s.groups.values()))
        directions = [model_of_group(s.directions, group) for group in used]
        nearest = {
            c: used[int(np.argmin([dissimilarity(u, direction) for direction in directions]))]
            for c, u in updates.items()
        }
        return replace(s, groups={**s.groups, **nearest})

    def first_updates(
        self, s: Grouped, clients: Sequence[ClientId]
    ) -> Conversation[dict[ClientId, Params]]:
        """Return the first updates of the clients that answer."""
        message = Message("probe", {"model": s.start})
        replies = yield from collect("probe", dict.fromkeys(clients, message))
        return {c: replies[c].trees["model"].total for c in clients if c in replies}

    def make_groups(self, s: Grouped, updates: Mapping[ClientId, Params]) -> Grouped:
        """Make the groups, numbered by the alphabetical order of their first members."""
        rows = np.stack([update.flat.double().numpy() for update in updates.values()])
        labels = kmeans(
            cosines_to_directions(rows, self.clusters),
            self.clusters,
            RandomStream("groups").numpy(),
        )
        names, by_name = list(updates), {}
        for client in sorted(names):
            by_name.setdefault(labels[names.index(client)], len(by_name))
        groups = {c: by_name[label] for c, label in zip(names, labels, strict=True)}
        members = [[updates[c] for c in names if groups[c] == g] for g in range(self.clusters)]
        # An empty group starts from the common start: its mean update is 0.
        directions = [sum(own, s.start * 0.0) / float(max(len(own), 1)) for own in members]
        models = tree_of_models([s.start + direction for direction in directions])
        return replace(s, models=models, groups=groups, directions=tree_of_models(directions))

    def on_probe(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train a few steps for the grouping, and send the update of the model."""
        fitted = yield from fit(msg["model"], site.train, replace(self.local, steps=self.probe))
        return c, reply(model=fitted.params - msg["model"])


def cosines_to_directions(updates: Array, directions: int) -> Array:
    """Return the cosines of updates `[clients, n]` to their first singular directions.

    The result is `[clients, directions]`, with fewer columns if there are fewer clients. Signs of
    columns are arbitrary.
    """
    # From the clients' inner products, not from an SVD of `[clients, n]`: n may be millions.
    values, vectors = np.linalg.eigh(updates @ updates.T)
    most = slice(None, -1 - min(directions, len(updates)), -1)
    # Rounding may take an eigenvalue of a Gram matrix just below 0.
    scores = vectors[:, most] * np.sqrt(np.clip(values[most], 0, None))
    return scores / np.linalg.norm(updates, axis=1, keepdims=True).clip(1e-12)


def dissimilarity(one: Params, other: Params) -> float:
    """Return (1 - cos) / 2 of two updates: 0 where they point the same way, 1 the opposite."""
    lengths = max(one.norm() * other.norm(), 1e-12)
    return (1 - one.dot(other) / lengths) / 2
