"""SplitGuard in a run: clients of split learning send some false labels to test their server.

Used by `engine.protections.setup` and `experiment.privacy.spent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vergence.core.files import JsonObject
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Reply
from vergence.core.requests import Step, StepResult
from vergence.core.stages import PULL
from vergence.engine.protections.built_in import BuiltInProtection
from vergence.errors import ConfigError
from vergence.methods.split.base import ClientFront
from vergence.privacy.dp.dp_sgd_solver import steps_of
from vergence.privacy.hooks import ClientHooks, Promise, ProtectedRun, Statement, Turn
from vergence.privacy.release_log import FOLDER, ReleaseLog
from vergence.privacy.split.split_guard import SplitGuardConfig
from vergence.privacy.split.split_guard_client import SplitGuardClient

KEY = "split_guard"
"""Name of the entry of results.json with clients' verdicts on their server."""


@dataclass(frozen=True)
class SplitGuardHooks(ClientHooks):
    """Sends false labels in some batches, to test the server.

    The server's gradients for true labels and for false labels are compared.
    """

    watch: SplitGuardClient
    local: LocalTraining

    answers = (Step,)

    def answer(self, ask: object, turn: Turn, then: Callable[[object], object]) -> object:
        """Return the result of a client's step; on false labels its layers stay as they are.

        `then` computes the step on true labels, and answers other requests.

        Raises:
            DpSgdBudgetSpent: the client accuses its server, and stops.
        """
        state = turn.before
        if not isinstance(ask, Step) or PULL not in ask.batch or not isinstance(state, ClientFront):
            return then(ask)
        # Answers come in the order of the batches: this one is to the batch that waited longest.
        at = self._batch(turn, state.batches_sent - len(state.waiting))
        self.watch.observe(*at, ask.batch[PULL])
        return StepResult(ask.params, ask.optimiser, 0.0) if self.watch.lies(*at) else then(ask)

    def outgoing(self, reply: Reply, turn: Turn) -> Reply:
        """Return the reply for a batch, with false labels if the batch is chosen for them.

        The executor calls this before the reply leaves the client.
        """
        if not isinstance(turn.after, ClientFront):
            return reply
        return self.watch.leaving(*self._batch(turn, turn.after.batches_sent - 1), reply)

    def _batch(self, turn: Turn, number: int) -> tuple[str, int, int, int]:
        """Return (client, round, number of the batch in the round, batches in the round)."""
        batches = steps_of(self.local, len(turn.site.train))
        return turn.site.id, turn.message.round, number, batches


class SplitGuardProtection(BuiltInProtection):
    """The protection of `privacy.split_guard`: false labels test if a server learns from labels."""

    policy: SplitGuardConfig

    def check(self, run: ProtectedRun) -> None:
        """Refuse labels that are classes, and rounds with fewer batches than one test needs.

        Raises:
            ConfigError: says which of the two.
        """
        run.federation.refuse_many("counting batches")
        shortest = min((s.train for s in run.federation.people.values()), key=len)
        if not all(shortest.columns[name].is_floating_point() for name in run.task.labels):
            raise ConfigError(
                "privacy.split_guard moves labels that are numbers, and here they are classes; "
                "leave it out"
            )
        batches = steps_of(run.method.local, len(shortest))
        if batches < self.policy.every:
            raise ConfigError(
                f"privacy.split_guard: a block is of {self.policy.every} batches of one round, and "
                f"somebody has {batches}; take smaller batches, more local epochs, or a smaller "
                "every"
            )

    def client(self, run: ProtectedRun) -> SplitGuardHooks | None:
        """Return the hooks that test the server; None: people's data are on other machines."""
        if not run.here or not run.federation.clients:
            return None
        self.check(run)
        labels, seed = run.task.labels, run.task.seed
        watch = SplitGuardClient(self.policy, labels, run.state, seed, run.tell)
        return SplitGuardHooks(watch, run.method.local)

    def forecast(self, run: ProtectedRun) -> list[Promise]:
        """State in reports which fraction of labels is false, and what follows from a verdict."""
        then = {
            "stop": "takes no further turn",
            "report": "goes on, and results.json says so (in a deployment, the client's own "
            "events.log and nothing else)",
        }
        policy = self.policy
        return [
            Promise(
                f"labels: one batch in {policy.every} of every client has false ones, at a secret "
                "place, and no step is taken with the answer; who finds that answers do not depend "
                f"on labels {then[policy.act]}; a server that learns is accused with chance "
                f"{policy.accused:g} at most in a run"
            )
        ]

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """State in reports which servers clients detect, and which they do not."""
        return [
            Statement(
                "server",
                "Devices send false labels now and then, and notice a server that does "
                "not learn from labels at all; one that pretends to goes unnoticed.",
            )
        ]

    def spent(self, run: ProtectedRun) -> Mapping[str, object]:
        """Return the entry of results.json with the clients' verdicts, read from their logs."""
        policy, paths = self.policy, sorted((run.state / FOLDER).glob("seed*.guard.*.csv"))
        # In a deployment the logs are on the clients' machines.
        if not paths:
            return {}
        accused, counts = dict[str, int](), {"trusted": 0, "open": 0}
        for path in paths:
            verdict, blocks, _ = policy.read(entry.steps for entry in ReleaseLog(path).entries)
            if verdict == "accused":
                seed, _, client = path.name.removesuffix(".csv").split(".", 2)
                accused[f"{client}, {seed}"] = blocks * policy.every
            else:
                counts[verdict] += 1
        return {KEY: {"accused": accused, **counts, "act": policy.act}}


def verdicts(block: JsonObject) -> str:
    """Return in words the verdicts in an entry of results.json."""
    who = ", ".join(f"{name} (after {n} batches)" for name, n in block["accused"].items())
    return (
        f"accused by {who or 'nobody'}; trusted by {block['trusted']}; {block['open']} cannot tell "
        "yet"
    )
