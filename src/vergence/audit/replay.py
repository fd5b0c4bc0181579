"""Replay of a finished run's first rounds, which yields the updates that its server saw.

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

from vergence.attacks.malicious_parties import overheard
from vergence.attacks.view import AttackerView, ObservedUpdate
from vergence.core.aggregation import Aggregate
from vergence.core.client import ClientContext
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Reply, SealedTree, counted, seal
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.engine.plan import Plan
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.experiment.trained_run import TrainedRun

SENDERS = 50
"""So many people's updates are kept."""


class _Enough(Exception):
    """The rounds that are wanted have been held."""


def told(saved: TrainedRun) -> tuple[str, str] | None:
    """Return the verb and the tree in which clients tell what they learned, None where none do."""
    names = set(saved.task.init().layout.names)
    offered = saved.method.offer(saved.server, "")
    for verb, exposed in saved.method.exposure.items():
        for tree in exposed.trees:
            if not exposed.raw and tree in offered and set(offered[tree].layout.names) <= names:
                return verb, tree
    return None


def untold(method: Method) -> str:
    """Reason why there is nothing to attack where `told` finds nothing."""
    trees = sorted({t for e in method.exposure.values() for t in e.trees if not e.raw})
    if not trees:
        return "nothing learned leaves a device in this method, or no part of the network"
    return (
        f"clients send {' and '.join(trees)}, and these attacks know updates of the one model that "
        "a client is sent"
    )


def replayed(
    saved: TrainedRun, data: Federation, rounds: int, plan: Plan, local: LocalTraining | None = None
) -> AttackerView:
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
    updates: list[ObservedUpdate] = []
    sums: dict[int, Params] = {}
    summed, senders = plan.privacy.aggregation is not None, set[str]()

    def hear(site: ClientContext, asked: str, said: Reply) -> None:
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
    quiet = replace(
        plan,
        workers=1,
        solver="sequential",
        engine="simulator",
        device="cpu",
        evaluate_every=0,
        checkpoint_every=0,
        seeds=(saved.task.seed,),
    )
    with tempfile.TemporaryDirectory(prefix="vergence-audit-") as scratch:
        folder = RunDirectory(Path(scratch), {})
        folder.open()
        with suppress(_Enough):
            run_rounds(overheard(method, hear, learn), saved.task, data, quiet, folder, tick)
    return AttackerView("server", updates=tuple(updates), sums=sums)


def update(sent: SealedTree, site: ClientContext) -> ObservedUpdate:
    """Update known to a server that divides what it was sent by its weight."""
    if isinstance(sent.weight, float):
        return ObservedUpdate(site.id, site.round, sent.total / (sent.weight or 1.0))
    mask = counted(sent.weight, sent.total.layout)
    if isinstance(sent.weight, Mask):
        return ObservedUpdate(site.id, site.round, sent.total, mask)
    assert isinstance(sent.weight, Params)
    weights = sent.weight.flat + (~mask).bits
    return ObservedUpdate(site.id, site.round, sent.total.like(sent.total.flat / weights), mask)
