"""CFed-VS: clients are grouped before training, by one number each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from scipy.spatial.distance import cdist

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, collect, compute
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, SealedReply, reply
from vergence.core.method import Exposure, NoState, Tree
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.methods.clustered.base import ClusteredMethod, train_groups, tree_of_models
from vergence.metrics.clustering import kmeans
from vergence.metrics.dtw import dtw

Distances = tuple[float, ...]
"""Mean distance of a client's clips from each proxy (public clip)."""


@tagged("Communities")
@dataclass(frozen=True)
class Communities:
    """Server state: a model per group in one tree, the proxies, clients' groups, and `means`.

    `means` holds each group's mean distances d from the proxies. `rounds` counts rounds in which a
    client trained.
    """

    models: Params
    proxies: Params
    groups: Mapping[str, int] = field(default_factory=dict)
    means: tuple[Distances, ...] = ()
    rounds: int = 0


@dataclass(frozen=True)
class CFedVS(ClusteredMethod[Communities]):
    """Group people by how far their clips are from a public one; then FedAvg within the groups.

    d_i = mean over u of DTW(clip_iu, proxy), the one number that a client sends before training;
    M_ij = |d_i - d_j|, and K-means on the rows of M makes the groups, numbered by ascending mean d;
    model_g <- model_g + sum_{i in g} v_i (local_i - model_g) / sum_{i in g} v_i, v as the task
    weighs samples: by frames, where it knows them. A newcomer joins the group of nearest mean d.

    Args:
        clusters: number of groups; 1 is FedAvg, and clients are not asked for a number.
        proxies: number of public clips, and of numbers that each client sends. A single proxy does
            not distinguish people on opposite sides of it.
        space: K-means on `rows` of M, or on the `scalars` d.
        per_frame: DTW as a mean over frames; else long clips are far from everything.
        share_body: layers other than the head are averaged over everybody.
        remeasure: every so many rounds a cohort is measured anew, and everybody in it joins the
            group of nearest mean d: people's data may have changed. 0: they are measured once.
        weights: clients count by their samples, as the task weighs them, or equally.

    Source: the Durham thesis, chapter 4, Algorithm 1 and section 4.4 (shared weights).
    Differs: weights are divided by the sum over a group's participants, where Equation 4.2 takes
    all clients.
    """

    clusters: Annotated[int, Ge(1)] = 3
    proxies: Annotated[int, Ge(1)] = 1
    space: Literal["rows", "scalars"] = "rows"
    per_frame: bool = False
    share_body: bool = False
    remeasure: Annotated[int, Ge(0)] = 0
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("models",), weight="per entry", down=("model",)),
        "measure": Exposure(
            "each", trees=("distances",), metrics=(), down=("proxies",), joining=True
        ),
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        "models": Tree("the models of all groups", "groups"),
        "proxies": Tree("clips of nobody's", "values"),
        "distances": Tree(
            "how far the person's clips are from those, on average",
            "numbers",
            "how far each person's clips are from public ones",
        ),
    }

    def server(self, task: Task) -> Communities:
        """Return the first server state: all groups' initial models, and the task's proxies."""
        clips = task.proxies(self.proxies) if self.clusters > 1 else []
        proxies = Params.named(**{f"proxy{i}": clip for i, clip in enumerate(clips)})
        return Communities(
            tree_of_models([task.init()] * self.clusters, self.common_layers(task)), proxies
        )

    def setup(self, s: Communities, clients: Sequence[ClientId]) -> Conversation[Communities]:
        """Ask every client for its distances from the proxies, and group all clients."""
        return (yield from self.assign_groups(s, clients))

    def round(self, s: Communities, cohort: Sequence[ClientId]) -> Conversation[Communities]:
        """Give newcomers a group; let every client of the cohort train its group's model."""
        due = self.remeasure > 0 and (s.rounds + 1) % self.remeasure == 0
        s = yield from self.assign_groups(s, cohort, again=due)
        models = yield from train_groups(s.models, s.groups, cohort)
        return replace(s, models=models, rounds=s.rounds + (models is not s.models))

    def assign_groups(
        self, s: Communities, clients: Sequence[ClientId], again: bool = False
    ) -> Conversation[Communities]:
        """Give a group to clients without one; with `again`, give all these clients a new group.

        If no client replies, nothing changes.
        """
        # A newcomer, or everybody in a round that measures anew.
        ungrouped = [c for c in clients if again or c not in s.groups]
        # One group needs no distances: nobody reveals a number.
        if self.clusters == 1:
            return replace(s, groups={**s.groups, **dict.fromkeys(ungrouped, 0)})
        if not ungrouped:
            return s
        to = {c: Message("measure", {"proxies": s.proxies}) for c in ungrouped}
        like = {"distances": Params.named(d=torch.zeros(self.proxies))}
        replies: dict[str, SealedReply] = yield from collect("measure", to, like=like)
        distances = {
            c: replies[c].trees["distances"].total["d"].tolist() for c in ungrouped if c in replies
        }
        if not distances:
            return s
        d = np.array(list(distances.values()))
        means = np.array(s.means)
        labels = cdist(d, means).argmin(1) if s.means else self.make_groups(d)
        if not s.means:
            means = np.stack([d[labels == group].mean(0) for group in np.unique(labels)])
        groups = dict(zip(distances, labels.tolist(), strict=True))
        return replace(s, groups={**s.groups, **groups}, means=tuple(map(tuple, means.tolist())))

    def make_groups(self, d: np.ndarray) -> np.ndarray:
        """Return the group of every client, int `[clients]`, by d `[clients, proxies]`."""
        points = cdist(d, d) if self.space == "rows" else d
        labels = kmeans(points, self.clusters, RandomStream("cfedvs").numpy())
        means = [d[labels == label].mean() for label in np.unique(labels)]
        # The rank of its mean d is a group's number, so that numbers do not depend on K-means'
        # order.
        return np.argsort(np.argsort(means))[labels]

    def on_measure(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Send the mean distance of the client's clips to each proxy: one number per proxy."""
        clips = yield from compute(Params.named(), site.train, "sequences")
        far = [
            [dtw(clip.numpy(), proxy.numpy(), self.per_frame) for clip in clips]
            for proxy in msg["proxies"].values()
        ]
        return c, reply(distances=Params.named(d=torch.tensor(far).mean(1)))
