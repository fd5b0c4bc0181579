"""Aggregator node: adds secret shares of clients' replies, and sees neither replies nor models.

Used by `deployment.server_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vergence.deployment.keys import known_keys, party_identity
from vergence.deployment.resident_node import ResidentNode
from vergence.deployment.secure_sum_aggregator import SecureSumAggregator
from vergence.engine.secure_sums import sums_for
from vergence.errors import StateError


class AggregatorNode(ResidentNode):
    """Node that takes part in the secure sums of one run at a time, and has no data of clients."""

    kind, role = "request", "aggregator"

    def begin(self, note: Mapping[str, Any]) -> Callable[[bytes], bytes]:
        """Return the function that answers messages of the secure sums of a run."""
        return self.aggregator(note).answer

    def aggregator(self, note: Mapping[str, Any]) -> SecureSumAggregator:
        """Return the object that takes part in the secure sums of the run that `note` names.

        Raises:
            StateError: the experiment has no aggregator with this node's name.
        """
        state, plan = self.state(note, self.folder / "state"), self.experiment.plan
        method, task = self.experiment.methods[note["label"]], self.experiment.task(note["seed"])
        sums = sums_for(plan, method, len(known_keys(self.folder)))
        if sums is None or self.side.client not in plan.privacy.aggregators:
            raise StateError(f"'{self.side.client}' is no aggregator of this experiment")
        identity = replace(party_identity(self.folder, note, self.sign), mark=self.mark)
        trees = method.known_trees(method.server(task))
        return SecureSumAggregator(state, self.side.client, sums, identity, method, trees)
