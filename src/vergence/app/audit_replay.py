"""What the server of a finished run saw: its first rounds, held again and listened to.

A run keeps what became of updates, not the updates. The same plan, start, data and seed give the
same ones again, but for the last bits and for noise, which is drawn anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vergence.app.saved import Saved
from vergence.attacks.tap import overheard
from vergence.attacks.view import Update, View
from vergence.core.fitting import Local
from vergence.core.mask import Mask
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.site import Federation, Site
from vergence.core.wire import Aggregate, Reply, SealedTree, counted, seal
from vergence.engines.conduct import conduct
from vergence.engines.plan import Plan
from vergence.engines.store import Folder

SENDERS = 50
"""So many people's updates are kept."""


class _Enough(Exception):
    """The rounds that are wanted have been held."""


def told(saved: Saved) -> tuple[str, str] | None:
    """Return the verb and the tree in which clients tell what they learned, None where none do."""
    names = set(saved.task.init().layout.names)
    offered = saved.method.offer(saved.server, "")
    for verb, exposed in saved.method.exposure.items():
        for tree in exposed.trees:
            if not exposed.raw and tree in offered and set(offered[tree].layout.names) <= names:
                return verb, tree
    return None


def untold(method: Method) -> str:
    """Return why there is nothing to attack where `told` finds nothing."""
    trees = sorted({t for e in method.exposure.values() for t in e.trees if not e.raw})
    if not trees:
        return "nothing learned leaves a device in this method, or no part of the network"
    return (
        f"clients send {' and '.join(trees)}, and these attacks know updates of the one model that "
        "a client is sent"
    )


def replayed(
    saved: Saved, data: Federation, rounds: int, plan: Plan, local: Local | None = None
) -> View:
    """Hold the first rounds of a run again; return what its server saw of updates.

    Args:
        saved: the run; a method whose clients tell what they learned.
        data: of its people.
        rounds: how many.
        plan: the run's, or the same with another privacy.
        local: how clients train, where not as in the run.

    Raises:
        ConfigError: the plan does not go together with the method.
    """
    found = told(saved)
    assert found is not None
    verb, tree = found
    updates: list[Update] = []
    sums: dict[int, Params] = {}
    summed, senders = plan.privacy.aggregation is not None, set[str]()

    def hear(site: Site, asked: str, said: Reply) -> None:
        if summed or asked != verb or len(senders | {site.id}) > SENDERS:
            return
        senders.add(site.id)
        sent = seal(plan.privacy.leaving(said), site.round).trees[tree]
        updates.append(update(sent, site))

    def learn(asked: Any, answer: Any) -> Any:
        if summed and isinstance(answer, Aggregate) and asked.verb == verb:
            sums[len(sums)] = answer.totals[tree]
        return answer

    def tick(_: int, done: int, __: Mapping[str, float]) -> None:
        if done >= rounds:
            raise _Enough

    method = saved.method if local is None else replace(saved.method, local=local)
    quiet = replace(plan, workers=1, solver="sequential", engine="simulator", device="cpu",
                    evaluate_every=0, checkpoint_every=0, seeds=(saved.task.seed,))  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="vergence-audit-") as scratch:
        folder = Folder(Path(scratch), {})
        folder.open()
        with suppress(_Enough):
            conduct(overheard(method, hear, learn), saved.task, data, quiet, folder, tick)
    return View("server", updates=tuple(updates), sums=sums)


def update(sent: SealedTree, site: Site) -> Update:
    """Return what a server has that divides what it was sent by its weight."""
    if isinstance(sent.weight, float):
        return Update(site.id, site.round, sent.total / (sent.weight or 1.0))
    mask = counted(sent.weight, sent.total.layout)
    if isinstance(sent.weight, Mask):
        return Update(site.id, site.round, sent.total, mask)
    assert isinstance(sent.weight, Params)
    weights = sent.weight.flat + (~mask).bits
    return Update(site.id, site.round, sent.total.like(sent.total.flat / weights), mask)
