"""Replay of a finished run's first rounds, to observe the updates that its server received.

A run directory does not contain updates. The same plan, initial model, data and seed give the same
updates again, except for rounding, and for noise, which is drawn anew.

Used by `audit.run` and `audit.updates`.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vergence.attacks.malicious_parties import with_interception
from vergence.attacks.view import AttackerView, ObservedUpdate
from vergence.core.aggregation import Aggregate
from vergence.core.client import ClientContext
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Reply, SealedTree, seal, weighted_entries
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.engine.plan import Plan
from vergence.engine.round_loop import RoundSummary, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.experiment.trained_run import TrainedRun

# Largest number of clients whose updates are recorded: each is as large as the model.
SENDERS = 50


class _LastRoundReplayed(Exception):
    """Stops a run after the last round that is replayed; it is no error."""


def update_tree(saved: TrainedRun) -> tuple[str, str] | None:
    """Return the verb and tree in which clients send model updates, None if they send none."""
    names = set(saved.task.init().layout.names)
    offered = saved.method.offer(saved.server, "")
    for verb, exposed in saved.method.exposure.items():
        for tree in exposed.trees:
            if not exposed.raw and tree in offered and set(offered[tree].layout.names) <= names:
                return verb, tree
    return None


def no_update_reason(method: Method) -> str:
    """Return the reason why there are no updates to attack, where `update_tree` is None."""
    if not (trees := sorted({t for e in method.exposure.values() for t in e.trees if not e.raw})):
        return "nothing learned leaves a device in this method, or no part of the network"
    return (
        f"clients send {' and '.join(trees)}, and these attacks know updates of the one model that "
        "a client is sent"
    )


def replay_rounds(
    saved: TrainedRun, data: Federation, rounds: int, plan: Plan, local: LocalTraining | None = None
) -> AttackerView:
    """Run the first rounds of a run again; return the updates, or sums, that its server saw.

    Args:
        saved: the run; its method must have an `update_tree`.
        data: data of the people who took part.
        rounds: number of rounds.
        plan: plan of the run, or the same with other privacy settings.
        local: local training, where it differs from the run's.

    Raises:
        ConfigError: the plan is incompatible with the method.
    """
    sent_as = update_tree(saved)
    assert sent_as is not None
    verb, tree = sent_as
    updates: list[ObservedUpdate] = []
    sums: dict[int, Params] = {}
    summed, senders = plan.privacy.aggregation is not None, set[str]()

    def record(site: ClientContext, asked: str, reply: Reply) -> None:
        # Under secure sums the server has no single update: recording one would overstate it.
        if summed or asked != verb or len(senders | {site.id}) > SENDERS:
            return
        senders.add(site.id)
        # `leaving` bounds the reply and drops its metrics, as the client did before sending it.
        sent = seal(plan.privacy.leaving(reply), site.round).trees[tree]
        updates.append(observed_update(sent, site))

    def record_sum(asked: Any, answer: Any) -> Any:
        if summed and isinstance(answer, Aggregate) and asked.verb == verb:
            sums[len(sums)] = answer.totals[tree]
        return answer

    def tick(end: RoundSummary) -> None:
        if end.round >= rounds:
            raise _LastRoundReplayed

    method = with_interception(
        saved.method if local is None else replace(saved.method, local=local), record, record_sum
    )
    # One process in the simulator: which engine ran the rounds does not change their updates.
    quiet = replace(
        plan,
        workers=1,
        solver="sequential",
        engine="simulator",
        device="cpu",
        evaluate_every=plan.needed_evaluations,
        checkpoint_every=0,
        seeds=(saved.task.seed,),
    )
    with tempfile.TemporaryDirectory(prefix="vergence-audit-") as scratch:
        folder = RunDirectory(Path(scratch), {})
        folder.open()
        with suppress(_LastRoundReplayed):
            run_rounds(method, saved.task, federation=data, plan=quiet, folder=folder, tick=tick)
    return AttackerView("server", updates=tuple(updates), sums=sums)


def observed_update(sent: SealedTree, site: ClientContext) -> ObservedUpdate:
    """Return an update as the server knows it: the weighted tree divided by its weight."""
    # Zero weight: somebody without samples, whose tree is zero.
    if isinstance(sent.weight, float):
        return ObservedUpdate(site.id, site.round, sent.total / (sent.weight or 1.0))
    mask = weighted_entries(sent.weight, sent.total.layout)
    if isinstance(sent.weight, Mask):
        return ObservedUpdate(site.id, site.round, sent.total, mask)
    assert isinstance(sent.weight, Params)
    # Entries that were not sent have weight 0: a one in their place avoids 0 / 0.
    weights = sent.weight.flat + (~mask).bits
    return ObservedUpdate(site.id, site.round, sent.total.like(sent.total.flat / weights), mask)
