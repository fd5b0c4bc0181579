"""SplitGuard's verdicts on a split-learning server: described before a run, reported after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vergence.engine.plan import Plan
from vergence.privacy.release_log import FOLDER, ReleaseLog

KEY = "split_guard"
"""The table of `privacy`, and the block of results.json."""


def foretold(plan: Plan) -> list[str]:
    """Say in words what clients do; see `explain`."""
    policy = plan.privacy.split_guard
    if policy is None:
        return []
    then = {
        "stop": "takes no further turn",
        "report": "goes on, and results.json says so (in a deployment, the client's own events.log "
        "and nothing else)",
    }
    return [
        f"labels: one batch in {policy.every} of every client has false ones, at a secret place, "
        "and no step is taken with the answer; who finds that answers do not depend on labels "
        f"{then[policy.act]}; a server that learns is accused with chance {policy.accused:g} at "
        "most in a run"
    ]


def found(plan: Plan, state: Path) -> Mapping[str, Any]:
    """Verdicts on a run's server, by the clients' logs, for the block `privacy`."""
    policy = plan.privacy.split_guard
    paths = sorted((state / FOLDER).glob("seed*.guard.*.csv"))
    if policy is None or not paths:  # they lie with the clients of a deployment
        return {}
    told: dict[str, Any] = {"accused": {}, "trusted": 0, "open": 0, "act": policy.act}
    for path in paths:
        verdict, blocks, _ = policy.read(entry.steps for entry in ReleaseLog(path).entries)
        if verdict == "accused":
            seed, _, client = path.name.removesuffix(".csv").split(".", 2)
            told["accused"][f"{client}, {seed}"] = blocks * policy.every
        else:
            told[verdict] += 1
    return {KEY: told}


def lines(label: str, block: Mapping[str, Any]) -> list[str]:
    """Lines on the screen about a run's server."""
    if KEY not in block:
        return []
    told = block[KEY]
    who = ", ".join(f"{name} (after {n} batches)" for name, n in told["accused"].items())
    return [
        f"server of {label}: accused by {who or 'nobody'}; trusted by {told['trusted']}; "
        f"{told['open']} cannot tell yet"
    ]
