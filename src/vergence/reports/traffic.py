"""Traffic of one turn between a client and the server: what is sent, its bytes, who sees it.

Used by `reports.ethics.facts`, `reports.ethics.visibility` and `reports.explain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from vergence.core.federation import Federation
from vergence.core.method import Exposure, Method
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.secure_sums import smallest
from vergence.errors import ConfigError
from vergence.experiment.privacy.spent import statements
from vergence.methods.split.base import Cutting, needed_columns
from vergence.model_tools.split_cost import NUMBERS, Blank, Load, load_of, width, works
from vergence.reports.downloads import downloads
from vergence.wire.size import bytes_of_arrays

NUMBER, INDEX = 8, 8
"""Bytes of a weight or a metric, and of the index that says which rows are alike."""
TLS = "size and time"
"""What an observer of the network sees under TLS, as in a deployment."""


MEASURED = {"loss": "how well training goes (loss)"}
"""Metric that is sent with an update -> its description."""
LAB_SHARES = {
    "mask": "how many people of the lab share each entry",
    "per entry": "how much each entry counts, added up over the lab's people",
}
"""Kind of weights -> what a lab sends of them with its sum."""
TO_MEASURE = ", to whom a deployment measures"
"""Stands behind a part of the model that training never sends, and that evaluation needs."""


@dataclass(frozen=True)
class TurnTraffic:
    """One item that is sent in a turn.

    Attributes:
        verb: the request that the client answers.
        what: description of the item.
        up: whether it goes from the client to the server.
        bytes: size for one person, each time; None: not known before a run.
        server: what the server's operator sees of it.
        clients: what other clients see of it.
        aggregators: what aggregators see of it, "" where there are none.
        most: whether `bytes` is an upper bound.
        network: what an observer of the network sees of it.
        counted: whether a run's byte counts include it. They do not include single numbers sent
            with updates, nor the server's part of a model, which is sent for evaluation alone.
    """

    verb: str
    what: str
    up: bool
    bytes: int | None
    server: str
    clients: str
    aggregators: str
    most: bool = False
    network: str = TLS
    counted: bool = True


def carried(
    plan: Plan, method: Method, task: Task, federation: Federation | None
) -> list[TurnTraffic]:
    """Return everything that is sent, in the order of a method's requests.

    Args:
        plan: the plan with its protections.
        method: the method, whose exposure table says what is sent.
        task: the task, whose network gives the sizes.
        federation: the data, needed for split learning alone: bytes are means over its people.
    """
    if method.pooled:
        return [
            TurnTraffic(
                "",
                "everybody's recordings and labels, once",
                True,
                None,
                "all of it",
                "nothing",
                "",
            )
        ]
    return list(_Turn(plan, method, task, federation).rows())


def named(method: Method, task: Task, tree: str, up: bool = False) -> str:
    """Return a tree's name for readers, as sent up or down."""
    description = method.tree(tree)
    if up and description.kind == "groups":
        return "update of the group's model"
    columns = {"labels": task.labels, "public": task.public}
    columns["columns"] = (*task.labels, *task.side_inputs)
    title = description.title.format_map({name: ", ".join(own) for name, own in columns.items()})
    return f"update of {title}" if up and description.kind == "update" else title


def totals(rows: Sequence[TurnTraffic]) -> tuple[int, int]:
    """Return the known bytes up and down of one person to whom every request is sent once.

    Trees that are sent for evaluation alone are not included.
    """
    ways = (True, False)
    counted = [row for row in rows if row.up or row.counted]
    up, down = (sum(r.bytes or 0 for r in counted if r.up is way) for way in ways)
    return up, down


class _Turn:
    def __init__(
        self, plan: Plan, method: Method, task: Task, federation: Federation | None
    ) -> None:
        self.plan, self.method, self.task = plan, method, task
        server = method.server(task)
        self.offered = method.offer(server, "")
        self.sized = method.known_trees(server)
        self.common = downloads(method, task)
        self.known: dict[str, int] = {name: _size(tree) for name, tree in self.sized.items()}
        # The count of smashed_average is one number of 4 bytes.
        self.known["count"] = 4
        if isinstance(method, Cutting) and federation is not None:
            self.known |= _batchwise(method, task, federation, load_of(federation, method.local))
        self.sums, self.parties = smallest(plan), bool(plan.privacy.aggregators)
        sentences = statements(plan, method, task)
        self.whose = "every lab's sum" if plan.silos else "every person's"
        self.protected = "; ".join(each.text for each in sentences if each.part == "update")

    def rows(self) -> Iterator[TurnTraffic]:
        for verb, exposed in self.method.exposure.items():
            down = tuple(self.offered) if exposed.down is None else exposed.down
            for name in down:
                yield TurnTraffic(
                    verb,
                    self.named(name),
                    False,
                    self.known.get(name),
                    "made it" if name in self.offered else "makes it",
                    self.with_others(name),
                    "nothing" if self.parties else "",
                )
            hidden = self.sums is not None and exposed.reveal == "aggregate"
            yield from self.worded(verb, exposed) if hidden else self.open(verb, exposed)
        sent = {
            tree
            for e in self.method.exposure.values()
            for tree in (self.offered if e.down is None else e.down)
        }
        needed = self.method.prediction_trees(self.method.server(self.task), "")
        for name, tree in needed.items():
            if name not in sent:
                yield TurnTraffic(
                    "evaluate",
                    f"{self.named(name)}{TO_MEASURE}",
                    False,
                    _size(tree),
                    "made it",
                    "the same",
                    "nothing" if self.parties else "",
                    counted=False,
                )

    def worded(self, verb: str, exposed: Exposure) -> Iterator[TurnTraffic]:
        """Yield the one row that a reply becomes under secure sums."""
        assert self.sums is not None
        try:
            form = self.sums.form(self.method, verb, self.sized)
        # Where a size is known only in the run, the row stands without bytes.
        except ConfigError:
            form = None
        if form is not None and not form.words:
            return
        metrics = exposed.metrics if form is None else form.exposed.metrics
        inside = [self.named(t, True) for t in exposed.trees]
        inside += [MEASURED.get(name, name) for name in metrics]
        inside += ["a share of the noise"] if self.plan.privacy.bounded else ["weights"]
        known = None if form is None else 8 * form.words
        many = f"{self.sums.policy.threshold} {'labs' if self.plan.silos else 'people'} or more"
        yield TurnTraffic(
            verb,
            f"{', '.join(inside)}: as numbers that mean nothing until those of {many} are added up",
            True,
            known,
            f"the sum of {many}",
            "nothing",
            "random numbers, unless all of them collude" if self.parties else "",
        )

    def open(self, verb: str, exposed: Exposure) -> Iterator[TurnTraffic]:
        """Yield one row per part of a reply that no secure sum hides."""
        privacy = self.plan.privacy
        seen = self.whose if exposed.trees else ""
        if exposed.reveal == "aggregate" and exposed.trees:
            seen += ", though its method needs the sum alone" if not privacy.judged else ""
        for name in exposed.trees:
            if self.method.tree(name).kind == "public" and not self.task.public:
                continue
            whole = self.known.get(name)
            plain = name in self.offered
            if name in self.sized and whole is not None and not self.plan.wire.lossless:
                # A codec's size does not depend on the values: zeros stand for the update.
                coded, *_ = self.plan.wire.compress(torch.zeros(whole // 4), None)
                whole = bytes_of_arrays(coded)
            server = f"{seen}; {self.protected}" if plain and self.protected else seen
            most = exposed.weight != "number" and not privacy.bounded
            handed = plain and exposed.reveal == "each" and self.common.handed
            next_ = "whoever is next gets it" if handed else "nothing"
            yield TurnTraffic(verb, self.named(name, True), True, whole, server, next_, "", most)
        if exposed.weight != "number" and exposed.trees and not privacy.bounded:
            sizes = [self.known.get(name) for name in exposed.trees]
            # A bit for each entry of 4 bytes.
            n = None if None in sizes else sum(-(-(size or 0) // 32) for size in sizes)
            what = "which entries the person shares, when that changed"
            if self.plan.silos:
                what = LAB_SHARES[exposed.weight]
                n = None if n is None else n + sum(size or 0 for size in sizes)
            yield TurnTraffic(
                verb,
                what,
                True,
                n,
                self.whose,
                "nothing",
                "",
                most=True,
            )
        metrics = () if privacy.differential else exposed.metrics
        # Under user-level privacy everybody counts once, and the number of samples is not sent.
        numbers = ["how many samples"] if exposed.trees and not privacy.bounded else []
        numbers += [MEASURED.get(name, name) for name in metrics]
        if numbers:
            yield TurnTraffic(
                verb,
                f"numbers: {', '.join(numbers)}",
                True,
                NUMBER * len(numbers),
                self.whose,
                "nothing",
                "",
                counted=False,
            )

    def named(self, tree: str, up: bool = False) -> str:
        """Return a tree's name for readers."""
        return named(self.method, self.task, tree, up)

    def with_others(self, name: str) -> str:
        """Return what other clients know of a tree that is sent down."""
        if name not in self.common.trees:
            return "nothing"
        if name in self.common.offered and self.common.handed:
            return "the same, as the one before left it"
        return (
            "the same, in their group"
            if self.common.grouped and self.method.tree(name).whole
            else "the same"
        )


def _size(tree: Params) -> int:
    return tree.flat.numel() * tree.flat.element_size()


def _batchwise(
    method: Cutting, task: Task, federation: Federation, load: Load
) -> Mapping[str, int]:
    """Return the bytes of what split learning sends batch by batch, means over people."""
    columns = next(iter(federation.people.values())).train.take(slice(0, 1))
    blank = replace(task, network=Blank.of(task.network))
    # On the device "meta" shapes are computed and no memory is taken, however large the network.
    batch = {
        name: torch.empty(load.size, *column.shape[1:], dtype=column.dtype, device="meta")
        for name, column in columns.items()
    }
    pieces = method.parts(blank)
    made = [output[0].numel() for _, output in works([(p, p.module()) for p in pieces], batch)]
    bytes_, scale = NUMBERS[getattr(method, "number", "float32")]

    def travels(values: int) -> int:
        return round(values * bytes_ * load.samples + scale * load.batches)

    sizes = {"smashed": travels(made[0]), "gradient": travels(made[0])}
    # Three pieces are a U-shape, whose client has the last layers and keeps the labels.
    if len(pieces) > 2:
        sizes |= {"t": travels(made[1]), "pull": travels(made[1])}
        sizes["public"] = round(INDEX * len(task.public) * load.samples)
    else:
        sizes["labels"] = round(width(batch, needed_columns(method.back(task))) * load.samples)
    return sizes
