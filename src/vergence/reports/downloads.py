"""Downloads of clients: what `explain` and the page for an ethics board say about them.

Used by `reports.ethics.facts`, `reports.ethics.visibility`, `reports.explain` and
`reports.traffic`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vergence.core.method import Method
from vergence.core.task import Task


@dataclass(frozen=True)
class Downloads:
    """Trees that the server sends to any client, through which one may learn about the others.

    Attributes:
        offered: trees of the model that the server offers.
        sent: other trees of the server that several clients get alike.
        server_part: trees of the model that stay with the server in training, and that a deployment
            sends to a client for evaluation.
        grouped: the offered trees are those of the client's group.
        handed: the offered trees come directly from the client before.
        whole: the offered trees and the server's part together are a whole model.
    """

    offered: tuple[str, ...]
    sent: tuple[str, ...]
    server_part: tuple[str, ...]
    grouped: bool
    handed: bool
    whole: bool

    @property
    def trees(self) -> tuple[str, ...]:
        """All trees that a client gets and that are not its own."""
        return (*self.offered, *self.sent)

    @property
    def shared(self) -> bool:
        """True if any part of a model is more than one person's."""
        return bool(self.offered or self.server_part)


def downloads(method: Method, task: Task) -> Downloads:
    """Return the downloads of a method's clients."""
    server = method.server(task)
    offered, server_part = method.offer(server, ""), method.server_part(server)
    down = [tree for exposed in method.exposure.values() for tree in exposed.down or ()]
    kinds = {name: method.tree(name).kind for name in (*offered, *down)}
    sent = [tree for tree in dict.fromkeys(down) if tree not in offered and kinds[tree] != "own"]
    # Sizes, not names: a method may cut the model into trees of other names.
    size = sum(tree.flat.numel() for tree in (*offered.values(), *server_part.values()))
    return Downloads(
        tuple(offered),
        tuple(sent),
        tuple(server_part),
        type(method).group_on is not Method.group_on
        and all(kinds[tree] != "groups" for tree in offered),
        method.passes_layers_on,
        size >= task.init().layout.n,
    )
