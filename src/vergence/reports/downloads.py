"""Downloads of clients: facts from which `explain` and the page for an ethics board are told."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.core.method import Method
from vergence.core.task import Task


@dataclass(frozen=True)
class Downloads:
    """Trees that any client gets from the server, and with them from everybody else.

    Attributes:
        offered: trees of the model that the server offers.
        sent: trees that the server makes besides, and sends to many alike.
        server_part: trees of the model that stay with the server in training, and that a deployment
            sends to a client to measure it.
        grouped: what is offered is of the client's group.
        handed: what is offered is as the client before left it.
        whole: what is offered, with what stays with the server, makes up the model.
    """

    offered: tuple[str, ...]
    sent: tuple[str, ...]
    server_part: tuple[str, ...]
    grouped: bool
    handed: bool
    whole: bool

    @property
    def trees(self) -> tuple[str, ...]:
        """All that comes down and is not the client's own."""
        return (*self.offered, *self.sent)

    @property
    def shared(self) -> bool:
        """True if any part of a model is more than one person's."""
        return bool(self.offered or self.server_part)


def downloads(method: Method, task: Task) -> Downloads:
    """The downloads of a method's clients."""
    server = method.server(task)
    offered, server_part = method.offer(server, ""), method.server_part(server)
    down = [tree for exposed in method.exposure.values() for tree in exposed.down or ()]
    kinds = {name: method.tree(name).kind for name in (*offered, *down)}
    sent = [tree for tree in dict.fromkeys(down) if tree not in offered and kinds[tree] != "own"]
    size = sum(tree.flat.numel() for tree in (*offered.values(), *server_part.values()))
    return Downloads(
        tuple(offered),
        tuple(sent),
        tuple(server_part),
        type(method).group_on is not Method.group_on
        and all(kinds[tree] != "groups" for tree in offered),
        method.hands_on,
        size >= task.init().layout.n,
    )
