"""FedGroup: people are grouped once, by where their first updates point."""

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
from vergence.methods.clustered.base import ClusteredMethod, joined, of_group, train_apart
from vergence.metrics.clustering import kmeans

Array = NDArray[np.float64]


@tagged("Grouped")
@dataclass(frozen=True)
class Grouped:
    """A model per group in one tree, the common start, and who is in which group.

    `ways` are the mean updates of those that made the groups, in one tree, None before. `seed`
    draws them.
    """

    models: Params
    start: Params
    seed: int
    groups: Mapping[str, int] = field(default_factory=dict)
    ways: Params | None = None


@dataclass(frozen=True)
class FedGroup(ClusteredMethod[Grouped]):
    """Group people by the direction of a first update, for good; then FedAvg within the groups.

    Before the first round min(20 m, N) people train `probe` steps from the common start. With
    their updates as rows of W = U S V^T and the first m columns of V, the decomposed cosine
    distance of person i to direction j is <w_i, v_j> / |w_i|; K-means on its rows makes the m
    groups, which start from the common start plus the mean update of their people. Others do the
    same steps when they are first asked, and join the group of least (1 - cos(w_i, way_g)) / 2.

    Args:
        clusters: m; 1 is FedAvg, and nobody is probed.
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
        """Start every group from the task's initial model."""
        start = task.init()
        return Grouped(joined([start] * self.clusters), start, getattr(task, "seed", 0))

    def setup(self, s: Grouped, clients: Sequence[ClientId]) -> Conversation[Grouped]:
        """Probe some of the people, and group them by the direction of their updates."""
        if self.clusters == 1:
            return s
        rng, many = RandomStream("fedgroup", s.seed).numpy(), min(20 * self.clusters, len(clients))
        drawn: list[int] = sorted(rng.choice(len(clients), many, replace=False).tolist())
        updates = yield from self.probed(s, [clients[i] for i in drawn])
        return self.grouped(s, updates) if updates else s

    def round(self, s: Grouped, cohort: Sequence[ClientId]) -> Conversation[Grouped]:
        """Give newcomers a group; let the cohort train, everybody their group's model."""
        s = yield from self.seated(s, cohort)
        models = yield from train_apart(s.models, s.groups, cohort)
        return replace(s, models=models)

    def seated(self, s: Grouped, clients: Sequence[ClientId]) -> Conversation[Grouped]:
        """Give everybody a group who has none; those who do not answer stay without."""
        strangers = [c for c in clients if c not in s.groups]
        if self.clusters == 1:
            return replace(s, groups={**s.groups, **dict.fromkeys(strangers, 0)})
        updates = (yield from self.probed(s, strangers)) if strangers else {}
        if s.ways is None:
            return self.grouped(s, updates) if updates else s
        there = sorted(set(s.groups.values()))
        ways = [of_group(s.ways, group) for group in there]
        found = {
            c: there[int(np.argmin([dissimilarity(u, way) for way in ways]))]
            for c, u in updates.items()
        }
        return replace(s, groups={**s.groups, **found})

    def probed(
        self, s: Grouped, clients: Sequence[ClientId]
    ) -> Conversation[dict[ClientId, Params]]:
        """Return the first updates of those who answer."""
        message = Message("probe", {"model": s.start})
        replies = yield from collect("probe", dict.fromkeys(clients, message))
        return {c: replies[c].trees["model"].total for c in clients if c in replies}

    def grouped(self, s: Grouped, updates: Mapping[ClientId, Params]) -> Grouped:
        """Make the groups, numbered by the first of their people's names."""
        rows = np.stack([update.flat.double().numpy() for update in updates.values()])
        labels = kmeans(
            decomposed(rows, self.clusters), self.clusters, RandomStream("groups").numpy()
        )
        names, by_name = list(updates), {}
        for client in sorted(names):
            by_name.setdefault(labels[names.index(client)], len(by_name))
        groups = {c: by_name[label] for c, label in zip(names, labels, strict=True)}
        members = [[updates[c] for c in names if groups[c] == g] for g in range(self.clusters)]
        # Zeros where a group has none.
        ways = [sum(own, s.start * 0.0) / float(max(len(own), 1)) for own in members]
        models = joined([s.start + way for way in ways])
        return replace(s, models=models, groups=groups, ways=joined(ways))

    def on_probe(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Send the model update of a few training steps."""
        fitted = yield from fit(msg["model"], site.train, replace(self.local, steps=self.probe))
        return c, reply(model=fitted.params - msg["model"])


def decomposed(updates: Array, directions: int) -> Array:
    """Return the cosines of updates `[clients, n]` to their first singular directions.

    `[clients, directions]`, fewer where there are fewer clients; signs of columns are arbitrary.
    Found from inner products, so that n may be large.
    """
    values, left = np.linalg.eigh(updates @ updates.T)
    most = slice(None, -1 - min(directions, len(updates)), -1)
    scores = left[:, most] * np.sqrt(np.clip(values[most], 0, None))
    return scores / np.linalg.norm(updates, axis=1, keepdims=True).clip(1e-12)


def dissimilarity(one: Params, other: Params) -> float:
    """Return (1 - cos) / 2 of two updates: 0 where they point the same way, 1 the opposite."""
    lengths = max(one.norm() * other.norm(), 1e-12)
    return (1 - one.dot(other) / lengths) / 2
