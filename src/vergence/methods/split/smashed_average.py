"""Smashed-data averaging: the server learns from averages of all clients' smashed data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, collect, forward, step
from vergence.core.identifiers import ClientId
from vergence.core.local_training import FRESH
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Tree
from vergence.core.params import Params
from vergence.core.stages import SMASHED
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.methods.split.base import ClientFront, Cutting, SplitParts, label_columns

BATCHES = "batches"
"""Name under which a client sends its number of full batches, next to the shapes."""


@tagged("Blended")
@dataclass(frozen=True)
class Blended(SplitParts):
    """Server state: frozen layers, server's layers, number of batches in a pass, and shapes.

    `shapes` are those of the averages: `[batch, ...]` of smashed data and of every label.
    """

    batches: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SmashedAverage(Cutting[Blended, ClientFront]):
    """Train the server's layers on sample-by-sample averages of smashed data and labels.

    The first layers are random, the same for everybody, and stay so. For every batch number q the
    aggregator returns (1/K) sum_k front(x_kq) and (1/K) sum_k y_kq, and the server steps on them.
    A pass has as many full batches as the client with the fewest. Predictions use smashed data
    without noise.

    Args:
        cut: the stage after which the network is cut; default: the network's own choice.
        alike: clients sort their samples by the last label, draw batch q from the q-th part, and
            sort the batch by the first label. Averaged samples then have similar labels.

    Source: the SplitFed gaze thesis, section 4.6.4, where `alike` is a suggestion.
    """

    alike: bool = False

    fixed: ClassVar[bool] = True
    exposure: ClassVar[Mapping[str, Exposure]] = {
        "count": Exposure("each", trees=("count",), metrics=(), raw=True, down=()),
        "smash": Exposure(
            trees=("smashed", "labels"), metrics=(), raw=True, numbered=("pass", "batch")
        ),
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        **Cutting.trees,
        "count": Tree("how many batches there are", "values"),
    }
    setup_verbs: ClassVar[tuple[str, ...]] = ("count",)

    def check(self, task: Task) -> None:
        """Refuse `local.steps`, a sampler, and a server without layers."""
        super().check(task)
        if self.local.steps is not None or self.local.sampler != "shuffle":
            raise ConfigError(
                "smashed_average makes whole passes over shuffled samples; give local.epochs, not "
                "steps, and leave out local.sampler"
            )
        self.check_tail(task)

    def server(self, task: Task) -> Blended:
        """Return the first server state: the task's initial model, cut in two."""
        return Blended(**vars(super().server(task)))

    def setup(self, s: Blended, clients: Sequence[ClientId]) -> Conversation[Blended]:
        """Ask all clients for their number of full batches and the shapes."""
        replies = yield from collect("count", to={c: Message("count") for c in clients})
        counts = [sealed.trees["count"].total for sealed in replies.values()]
        if not counts:
            return s
        shapes = {
            name: tuple(int(size) for size in counts[0][name])
            for name in counts[0]
            if name != BATCHES
        }
        return replace(s, batches=min(int(c[BATCHES]) for c in counts), shapes=shapes)

    def round(self, s: Blended, cohort: Sequence[ClientId]) -> Conversation[Blended]:
        """Train on the averages of one pass, or of `local.epochs` passes."""
        tail, optimiser, like = s.tail.copy(), FRESH, self.zeros_like_sums(s) if s.batches else {}
        for q in range(s.batches * self.local.epochs):
            facts = {"batch": q % s.batches, "pass": q // s.batches, "of": s.batches}
            got = yield from aggregate("smash", cohort, facts, like, front=s.front)
            if not got.count:
                continue
            batch = {SMASHED: got.mean("smashed")["values"], **got.mean("labels")}
            done = yield from step(tail, optimiser, batch, self.local, self.back)
            tail, optimiser = done.params, done.optimiser
        return replace(s, tail=tail)

    @staticmethod
    def zeros_like_sums(s: Blended) -> Mapping[str, Params]:
        """Return zeros of the shapes of the averages."""
        zeros = {name: torch.zeros(shape) for name, shape in s.shapes.items()}
        return {"smashed": Params.named(values=zeros.pop(SMASHED)), "labels": Params.named(**zeros)}

    def on_count(
        self, c: ClientFront, msg: Message, site: ClientContext
    ) -> Conversation[tuple[ClientFront, Reply]]:
        """Send the number of full batches, and the shapes of smashed data and labels.

        Raises:
            ConfigError: there is no full batch.
        """
        full = len(site.train) // self.local.batch
        if not full:
            raise ConfigError(
                f"smashed_average needs full batches, and {site.id} has {len(site.train)} training "
                f"samples; set local.batch to at most that, got {self.local.batch}"
            )
        front, rows = self.front(site.task), torch.arange(self.local.batch)
        batch = site.train.take(rows)
        smashed = yield from forward(front.init(), batch, self.front, rows)
        values = {SMASHED: smashed, **label_columns(batch, self.back(site.task))}
        shapes = {name: torch.tensor(value.shape).float() for name, value in values.items()}
        return c, reply(count=Params.named(**{BATCHES: torch.tensor([float(full)])}, **shapes))

    def on_smash(
        self, c: ClientFront, msg: Message, site: ClientContext
    ) -> Conversation[tuple[ClientFront, Reply]]:
        """Send the frozen layers' output for a batch, for the average."""
        turn, q, full = (int(msg.facts[name] or 0) for name in ("pass", "batch", "of"))
        rows = self.batch_rows(site, turn, q, full)
        # A copy: a defence at the cut may train the layers in place.
        front, batch = msg["front"].copy(), site.train.take(rows)
        smashed = yield from forward(front, batch, self.front, rows)
        labels = label_columns(batch, self.back(site.task))
        if not labels.flat.is_floating_point():
            raise ConfigError("smashed_average averages labels, and classes have no average")
        return c, reply(smashed=Params.named(values=smashed), labels=labels)

    def batch_rows(self, site: ClientContext, turn: int, q: int, full: int) -> Tensor:
        """Return the sample numbers of a client's batch q of `full` in a pass over its data."""
        generator = site.rng.child("batches", turn).torch()
        n, size = len(site.train), self.local.batch
        order = torch.randperm(n, generator=generator)
        if not self.alike:
            return order[q * size : (q + 1) * size]
        label = site.train.columns[site.task.labels[0]].reshape(n, -1)
        part = order[label[order, -1].argsort(stable=True)].tensor_split(full)[q]
        batch = part[torch.randperm(len(part), generator=generator)[:size]]
        return batch[label[batch, 0].argsort(stable=True)]
