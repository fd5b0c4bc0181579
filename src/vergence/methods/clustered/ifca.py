"""IFCA: several models; each client trains the one of lowest loss on its data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, compute
from vergence.core.data import Samples
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply
from vergence.core.method import Exposure, NoState
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.methods.clustered.base import (
    ClusteredMethod,
    model_of_group,
    trained_groups,
    tree_of_models,
)

PATIENCE = 10
"""Rounds in which every model must have been trained by a client, or all restart."""


@tagged("Models", trained_clusters="chosen")
@dataclass(frozen=True)
class Models:
    """Server state: one model per cluster in one tree, counts since the start, and spare models.

    `rounds` counts the rounds since the start or last restart; `trained_clusters` are the clusters
    that a client has trained since then. `spare` are the models for later restarts.
    """

    models: Params
    spare: tuple[Params, ...] = ()
    rounds: int = 0
    trained_clusters: tuple[int, ...] = ()


@dataclass(frozen=True)
class IFCA(ClusteredMethod[Models]):
    """Send `clusters` models; a client trains the one with the lowest loss on its training data.

    j_i = argmin_j F_i(model_j); ties: the first;
    model_j <- model_j + sum_{i: j_i = j} n_i (local_i - model_j) / sum_{i: j_i = j} n_i.

    Args:
        clusters: how many models; 1 is FedAvg. All but the first start from another random
            initialisation: if all start equal, every client at first chooses the first.
        share_body: layers other than the head are averaged over everybody.
        weights: clients count by their samples, or equally.
        restarts: largest number of restarts. All models restart from new random ones if nobody
            chose one of them in the first ten rounds since the last start.

    Source: Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020,
    Algorithm 1 (model averaging) and section 6 (weight sharing).
    Differs: clients count by their samples, where the authors' programme counts them equally.
    """

    clusters: Annotated[int, Ge(1)] = 3
    share_body: bool = False
    weights: Literal["samples", "equal"] = "samples"
    restarts: Annotated[int, Ge(0)] = 0

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("models",), weight="per entry")
    }

    def check(self, task: Task) -> None:
        """Refuse a network that starts from a trained model: all groups would start alike."""
        if task.network.start is not None:
            raise ConfigError(
                f"model.start: the {self.clusters} groups of ifca need models that differ, and all "
                "would start from the same; leave start out, or take another method"
            )
        super().check(task)

    def server(self, task: Task) -> Models:
        """Return the first state: the initial model, and models of other random initialisations."""

        def random_model(*key: int) -> Params:
            return replace(task, seed=RandomStream("ifca", task.seed, *key).number()).init()

        common, m = self.common_layers(task), self.clusters
        first = [task.init(), *(random_model(j) for j in range(1, m))]
        later = [
            [random_model(j, start) for j in range(m)] for start in range(self.restarts * (m > 1))
        ]
        return Models(
            tree_of_models(first, common), tuple(tree_of_models(models, common) for models in later)
        )

    def offer(self, s: Models, client: ClientId) -> Mapping[str, Params]:
        """Return all models, which every client downloads."""
        return {"models": s.models}

    def round(self, s: Models, cohort: Sequence[ClientId]) -> Conversation[Models]:
        """Let the cohort train; add to every model the mean update of the clients that chose it."""
        got = yield from aggregate("train", to=cohort)
        # A round without replies does not count towards the ten of a restart.
        if not got.count:
            return s
        trained = tuple(sorted({*s.trained_clusters, *trained_groups(got.contributors("models"))}))
        if s.spare and s.rounds + 1 == PATIENCE and len(trained) < self.clusters:
            return Models(s.spare[0], s.spare[1:])
        return Models(s.models + got.mean("models"), s.spare, s.rounds + 1, trained)

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Choose a model and train it; the others have weight 0 and are not sent."""
        cluster = yield from self.best_cluster(msg["models"], site.train)
        start = model_of_group(msg["models"], cluster)
        return c, (yield from self.train_group(start, cluster, site))

    def group_on(self, s: Models, client: ClientId, train: Samples) -> Conversation[int]:
        """Return the number of the model of lowest loss on a client's training data."""
        return self.best_cluster(s.models, train)

    def best_cluster(self, models: Params, data: Samples) -> Conversation[int]:
        """Return the cluster of lowest loss on training data."""
        losses = []
        # With one model there is nothing to choose, and a pass over the data is saved.
        for j in range(self.clusters if self.clusters > 1 else 0):
            loss = yield from compute(model_of_group(models, j), data, "loss")
            losses.append(loss)
        return lowest(losses)

    def model_on(self, c: NoState, msg: Message, site: ClientContext) -> Conversation[Params]:
        """Return the model of lowest loss on the client's training data, never on test data."""
        cluster = yield from self.best_cluster(msg["models"], site.train)
        return model_of_group(msg["models"], cluster)


def lowest(losses: Sequence[float]) -> int:
    """Return the number of the lowest loss, the first of equals; 0 if there are none."""
    return min(range(len(losses)), key=losses.__getitem__, default=0)
