"""IFCA: several models; everybody trains the one that suits them best."""

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
from vergence.methods.clustered.base import ClusteredMethod, contributed, joined, of_group

PATIENCE = 10
"""Rounds in which every model must have been chosen by somebody."""


@tagged("Models")
@dataclass(frozen=True)
class Models:
    """One model per cluster, in one tree; since the last start, rounds held and clusters chosen.

    `spare` are the models of later starts.
    """

    models: Params
    spare: tuple[Params, ...] = ()
    rounds: int = 0
    chosen: tuple[int, ...] = ()


@dataclass(frozen=True)
class IFCA(ClusteredMethod[Models]):
    """Send `clusters` models; a client trains the one with the lowest loss on its training data.

    j_i = argmin_j F_i(model_j), of equals the first;
    model_j <- model_j + sum_{i: j_i = j} n_i (local_i - model_j) / sum_{i: j_i = j} n_i.

    Args:
        clusters: how many models; 1 is FedAvg. All but the first start from another random
            initialisation: where they start alike, everybody at first chooses the first.
        share_body: layers other than the head are averaged over everybody.
        weights: clients count by their samples, or equally.
        restarts: how often, at most, all models start from new random ones because nobody chose
            one of them in ten rounds since the start.

    Source: Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020,
    Algorithm 1 (model averaging) and section 6 (weight sharing).
    Differs: by samples, where the authors' programme counts clients equally.
    """

    clusters: Annotated[int, Ge(1)] = 3
    share_body: bool = False
    weights: Literal["samples", "equal"] = "samples"
    restarts: Annotated[int, Ge(0)] = 0

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("models",), weight="per entry")
    }

    def check(self, task: Task) -> None:
        """Refuse a network that starts from a trained model: so would every group."""
        if task.network.start is not None:
            raise ConfigError(
                f"model.start: the {self.clusters} groups of ifca need models that differ, and all "
                "would start from the same; leave start out, or take another method"
            )
        super().check(task)

    def server(self, task: Task) -> Models:
        """Start from the task's initial model, and others like it."""

        def drawn(*key: int) -> Params:
            return replace(task, seed=RandomStream("ifca", task.seed, *key).number()).init()

        common, m = self.common(task), self.clusters
        first = [task.init(), *(drawn(j) for j in range(1, m))]
        again = [[drawn(j, start) for j in range(m)] for start in range(self.restarts * (m > 1))]
        return Models(joined(first, common), tuple(joined(models, common) for models in again))

    def offer(self, s: Models, client: ClientId) -> Mapping[str, Params]:
        """Send all models."""
        return {"models": s.models}

    def round(self, s: Models, cohort: Sequence[ClientId]) -> Conversation[Models]:
        """Let the cohort train; add to every model the mean update of those who chose it."""
        got = yield from aggregate("train", to=cohort)
        if not got.count:
            return s
        chosen = tuple(sorted({*s.chosen, *contributed(got.contributors("models"))}))
        if s.spare and s.rounds + 1 == PATIENCE and len(chosen) < self.clusters:
            return Models(s.spare[0], s.spare[1:])
        return Models(s.models + got.mean("models"), s.spare, s.rounds + 1, chosen)

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Choose a model and train it; the others have weight 0 and are not sent."""
        chosen = yield from self.chosen(msg["models"], site.train)
        start = of_group(msg["models"], chosen)
        return c, (yield from self.trained(start, chosen, site))

    def group_on(self, s: Models, client: ClientId, train: Samples) -> Conversation[int]:
        """Return the model of lowest loss on a client's training data."""
        return self.chosen(s.models, train)

    def chosen(self, models: Params, data: Samples) -> Conversation[int]:
        """Return the cluster of lowest loss on training data."""
        losses = []
        for j in range(self.clusters if self.clusters > 1 else 0):
            loss = yield from compute(of_group(models, j), data, "loss")
            losses.append(loss)
        return lowest(losses)

    def model_on(self, c: NoState, msg: Message, site: ClientContext) -> Conversation[Params]:
        """Predict with the model of lowest loss on one's training data, never on test data."""
        chosen = yield from self.chosen(msg["models"], site.train)
        return of_group(msg["models"], chosen)


def lowest(losses: Sequence[float]) -> int:
    """Return the number of the lowest loss, the first of equals; 0 if there are none."""
    return min(range(len(losses)), key=losses.__getitem__, default=0)
