"""Apps that Flower finds by name: the run of a server's folder, and a client's node.

Used by `deployment.flower_app`, `deployment.launcher` and `deployment.transport.flower_processes`.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from vergence.core.federation import Federation
from vergence.core.files import csv_of, open_for_append, parse_json, write_whole
from vergence.core.naming import plural
from vergence.core.serialization import printable
from vergence.deployment import own_code
from vergence.deployment.aggregator_node import AggregatorNode
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.client_registry import (
    ENOUGH,
    AnswerExchange,
    ClientRegistry,
    RequestQueue,
    Timeouts,
    changed_data,
)
from vergence.deployment.folders import (
    EXPERIMENT,
    FOLDER,
    INSECURE,
    MAIN,
    SECRET,
    ClientSide,
    ServerSide,
    clients_to_wait_for,
    facts,
    settings,
    tell,
)
from vergence.deployment.joined_node import deployable
from vergence.deployment.keys import genuine, party_identity
from vergence.deployment.main_server import SessionRelay
from vergence.deployment.main_server_node import MainServerNode
from vergence.deployment.protocol import sample_count_fault
from vergence.deployment.remote_clients import remote_people, remote_pool
from vergence.deployment.resident_node import ResidentConnection
from vergence.deployment.transport import flower
from vergence.engine.code_digest import code_digest
from vergence.engine.participation import COLUMNS
from vergence.engine.round_loop import PoolFactory
from vergence.engine.storage.run_directory import check_stamp, read_manifest
from vergence.errors import PartialRun, StateError, VergenceError
from vergence.experiment import checksums
from vergence.experiment import provenance as stamp
from vergence.experiment.nothing_learned import refuse_unlearned
from vergence.experiment.privacy.spent import noise_outlook
from vergence.experiment.run import RoundCallback, RoundReport, folders_of, run_methods
from vergence.experiment.schema import Experiment, TableOrigin, load
from vergence.experiment.trust import trust_in_deployment, under
from vergence.experiment.validation import Loaded
from vergence.results import baselines
from vergence.results import write as results
from vergence.results.baselines import OWN_CONSTANT
from vergence.results.layout import TABLES
from vergence.system.local_sockets import LOCAL

MEMBERS, EXCHANGES, JOINS = "members.json", "exchanges.csv", "joins.csv"


def this_folder() -> Path:
    """Return the folder of the server or node that runs in this process."""
    return Path(os.environ[FOLDER])


def __getattr__(name: str) -> Any:
    """Return the Flower app of a server or of a client; Flower looks up these names."""
    if name == "server":
        from vergence.deployment.transport.wakeups import Wakeups  # an ordinary app does without

        return flower.server_app(
            lambda line, _: run_folder(this_folder(), line, ServerRun),
            Wakeups((this_folder() / SECRET).read_bytes()) if LOCAL else None,
        )
    if name == "client":
        return flower.client_app(lambda asked, _: this_node().answer(asked))
    raise AttributeError(name)


def run_folder(folder: Path, line: flower.GridTransport, kind: type[ServerRun]) -> None:
    """Run the server in a folder until the experiment ends; record why, if it stops before.

    `kind` is the class of the run; `line` is the connection to the nodes.
    """
    try:
        kind(folder, line).run()
    except VergenceError as error:
        tell(folder, f"stopped: {error}", "stopped")
        raise


class ServerRun:
    """Run of a server: waits for the clients, then runs every method and seed."""

    fit = staticmethod(deployable)
    """Function that checks and adapts the experiment in the folder."""

    def __init__(self, folder: Path, line: flower.GridTransport) -> None:
        self.folder, self.line = folder, line
        self.side = settings(folder, ServerSide)
        with under(trust_in_deployment(folder, self.side.accepted)):
            self.experiment = self.fit(load(folder / EXPERIMENT))
        if self.side.joins:
            self.experiment = with_joins(self.experiment, folder / JOINS, self.side)
        self.aggregators = self.experiment.plan.privacy.aggregators
        self.guesses: dict[str, dict[str, float]] = {}
        self.registry = ClientRegistry(
            line,
            self.side.clients,
            facts(
                self.experiment.table,
                own_code.combined_digest(self.experiment.files(self.experiment.table)),
            ),
            self.genuine,
            self.tell,
            Timeouts(self.side.answer_s, self.side.absent_s),
            (*([MAIN] if self.side.main else []), *self.aggregators),
            partial(write_exchange, folder),
            self.revoked,
        )

    def genuine(self, client: str, data: bytes, signature: str) -> bool:
        """Return whether a signature of `data` was made with the client's key."""
        return genuine(self.folder / "keys" / f"{client}.pub", data, signature)

    def revoked(self, client: str) -> bool:
        """Return whether a client's key was revoked."""
        return not (self.folder / "keys" / f"{client}.pub").is_file()

    def awaited(self) -> int:
        """Return the number of clients for which the run waits before it begins."""
        return clients_to_wait_for(self.folder, self.side)

    def tell(self, line: str, event: str = "note", **about: Any) -> None:
        """Record an event for the operator."""
        tell(self.folder, line, event, **about)

    def run(self) -> None:
        """Wait until enough clients are connected, then run each unfinished method and seed."""
        out, origin = self.folder / "run", TableOrigin({"deployment": self.transport()})
        experiment = replace(self.experiment, origin=origin)
        follower = RoundCallback(
            before_saving=self.round_done,
            bar=False,
            warn=self.warn,
            finished=self.finished,
            folder_stays=False,
        )
        # Before anybody is waited for: clients of the old version would be refused one by one.
        now = {"code": code_digest(), "torch": stamp.version("torch")}
        for folder, manifest in unfinished_runs(experiment, out).items():
            then = manifest.get("stamp", now)
            check_stamp(folder, {what: then.get(what, "") for what in now}, now)
        self.registry.open()
        try:
            people = self.members(self.registry.gather(self.awaited()))
            self.registry.samples = read_sample_counts(self.folder / MEMBERS, self.side.clients)
            first = ", ".join(name for name in people.clients if name not in self.side.joins)
            loaded = Loaded(people, people, f"with {first}")
            for line in noise_outlook(experiment, people):
                self.warn(line)
            run_methods(experiment, loaded, out, follower, self.pool)
            self.registry.farewell()
            ran = folders_of(experiment, out)
            # A process that was killed may have finished a method without sealing its folder.
            for folder in ran.values():
                checksums.seal(folder)
            refuse_unlearned(ran, experiment.plan)
            self.tell(f"finished; the results are in {out}", "finished")
        finally:
            self.registry.close()

    def members(self, facts_of: Mapping[str, Mapping[str, Any]]) -> Federation:
        """Return the federation as it was when the run began, with clients that were added since.

        A resumed run gets the same one, as numbers of samples decide the order of additions.
        `facts_of` holds what connected clients report about themselves. A client whose data have
        changed since the beginning takes no further part.
        """
        file, clients, joins = self.folder / MEMBERS, self.side.clients, self.side.joins
        known = read_sample_counts(file, clients, joins) if file.exists() else {}
        new = {c: facts_of[c]["train"] if c in facts_of else 0 for c in clients if c not in known}
        counts = {**known, **new}
        if new:
            results.write_json(file, counts)
        for client, about in facts_of.items():
            if changed := changed_data(counts[client], about):
                self.tell(f"'{client}' is not asked: {changed}", "refused", client=client)
        people = remote_people(self.experiment.table["federation"]["name"], counts)
        return self.experiment.with_public_data(people)

    def pool(self, label: str, seed: int) -> PoolFactory:
        """Return the worker pool of this deployment's clients, for one method and seed."""
        note = {"run": self.side.run, "label": label, "seed": seed}
        line = RequestQueue(self.registry, note)
        return remote_pool(
            line,
            relay=SessionRelay(line) if self.side.main else None,
            session_seconds=self.side.talk_s,
            identity=party_identity(self.folder, note),
            tell=self.tell,
            guesses=self.guesses,
        )

    def warn(self, text: str) -> None:
        """Record a warning; the run continues."""
        self.tell(text, "warning")

    def round_done(self, report: RoundReport) -> None:
        """Record a finished round; raise an error if no reply counted in it.

        The round loop calls this after every round.
        """
        self.tell_round(report)
        self.refuse_silence(report.round, report.metrics)

    def write_guesses(self) -> None:
        """Write priors.csv, from which `compare` reads the baseline without learning."""
        rows = [
            (OWN_CONSTANT, client, metric, repr(value))
            for client, found in sorted(self.guesses.items())
            for metric, value in found.items()
        ]
        file = self.folder / "run" / "priors.csv"
        if rows or not file.exists():
            results.write_csv(file, TABLES["priors.csv"], rows)

    def finished(self, label: str, path: Path) -> None:
        """Seal a finished method's results (write checksums), and record them for the operator.

        The runner of the methods calls this after each method.
        """
        # Clients score their constants in the same evaluations as their models.
        self.write_guesses()
        checksums.seal(path)
        self.tell_result(label, path)

    def tell_round(self, report: RoundReport) -> None:
        """Record a finished round, with its score and the number of replies that counted."""
        label, seed, done, rounds, metrics, *_ = report
        headline = self.experiment.task(seed).headline
        score = f", {headline} {metrics[headline]:.3f}" if headline in metrics else ""
        replies = f", {plural(int(metrics['replies']), 'reply')}" if "replies" in metrics else ""
        self.tell(
            f"{label}, seed {seed}: round {done} of {rounds}{replies}{score}",
            "round",
            label=label,
            seed=seed,
            round=done,
        )

    def refuse_silence(self, done: int, metrics: Mapping[str, float]) -> None:
        """Stop a run after a round in which no reply counted, so that the round can be repeated.

        Raises:
            PartialRun: no reply counted; the message says why replies were lost.
        """
        # Some refusals come again each time: a contribution is opened only once, and an owner's
        # limit does not grow. Repeating such a round would end the run here for ever.
        lost, self.registry.lost = self.registry.lost, {}
        enough = all(reason.startswith(ENOUGH) for reason in lost.values())
        again = not enough and not any("spent: " in reason for reason in lost.values())
        if metrics.get("replies") == 0 and again:
            why = "; ".join(f"{c}: {reason}" for c, reason in lost.items())
            raise PartialRun(f"nobody's reply counted in round {done} ({why[:400]})")

    def tell_result(self, label: str, path: Path) -> None:
        """Record the result of a finished method, if people were evaluated."""
        headline = self.experiment.task(0).headline
        people = results.person_means(path).get(headline, {})
        if people:
            mean = sum(people.values()) / len(people)
            plan = self.experiment.plan
            guesses = [self.guesses.get(who, {}).get(headline, math.nan) for who in people]
            lower = headline in self.experiment.task(0).lower_is_better
            end = compare_with_constant(mean, guesses, lower)
            self.tell(
                f"{label}: {headline} {mean:.3f}, mean of "
                f"{plural(len(people), 'lab' if plan.silos else 'person')} and "
                f"{plural(len(plan.seeds), 'seed')}{end}",
                "result",
                label=label,
            )

    def transport(self) -> dict[str, Any]:
        """Return a description of the transport, for provenance.json."""
        insecure = INSECURE in os.environ
        return {
            "engine": f"flower {stamp.version('flwr')}",
            "run": self.side.run,
            "address": self.side.address,
            "tls": not insecure,
            "node keys": not insecure,
            "signed answers": True,
            "main server": self.side.main,
            "aggregators": list(self.aggregators),
            "joined later, in round": dict(self.side.joins),
            **({"INSECURE": "nothing was encrypted"} if insecure else {}),
        }


def unfinished_runs(experiment: Experiment, run: Path) -> dict[Path, Mapping[str, Any]]:
    """Return the directory of each unfinished method of a run, with its checkpoint's manifest.

    The manifest is empty if there is no checkpoint yet.
    """
    return {
        folder: read_manifest(folder) if (folder / "state" / "checkpoint.json").exists() else {}
        for folder in folders_of(experiment, run).values()
        if not (folder / "results.json").exists()
    }


def with_joins(experiment: Experiment, file: Path, side: ServerSide) -> Experiment:
    """Return an experiment in which added clients are away until the round in which they join.

    The presence trace that says so is written to `file`. The table of the experiment, and so its
    digest, stay the same.
    """
    rows = [(client, side.joins.get(client, 0), 1, 1) for client in side.clients]
    write_whole(file, csv_of([COLUMNS, *rows]).encode())
    plan = experiment.plan
    presence = replace(plan.presence, trace=str(file.resolve()))
    return replace(experiment, plan=replace(plan, presence=presence))


def compare_with_constant(mean: float, constants: Sequence[float], lower_is_better: bool) -> str:
    """Return a text that compares the models' mean with that of constant predictions.

    Args:
        mean: mean over people of the models' headline metric.
        constants: the metric of each person's own constant prediction.
        lower_is_better: whether lower values of the metric are better.

    Returns:
        The text; "" if a constant's metric is not known.
    """
    if not constants or not all(map(math.isfinite, constants)):
        return ""
    constant = sum(constants) / len(constants)
    better = mean < constant if lower_is_better else mean > constant
    end = "" if better else ": WORSE THAN A CONSTANT, this model is of no use"
    return f"; {baselines.description(OWN_CONSTANT)}, has {constant:.3f}{end}"


def read_sample_counts(
    file: Path, clients: Sequence[str], joins: Collection[str] = ()
) -> dict[str, int]:
    """Read the number of training samples of every client of a deployment.

    Clients in `joins`, which were added later, may be missing.

    Raises:
        StateError: the file is damaged; the message names the client.
    """
    mend = "restore it from a copy, or remove it if no round is done yet: it is written anew"
    try:
        counts = parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(f"{file} cannot be read ({printable(error)}): {mend}") from None
    if not isinstance(counts, dict):
        raise StateError(f"{file} is no table of clients and their training samples: {mend}")
    for client in (*clients, *counts):
        if client not in counts and client in joins:
            continue
        if client not in counts or client not in clients:
            what = (
                "does not name" if client in clients else "names, beside the deployment's clients,"
            )
            raise StateError(f"{file} {what} '{printable(client)[:40]}': {mend}")
        if wrong := sample_count_fault(counts[client]):
            raise StateError(f"{file}: '{client}' has {wrong}: {mend}")
    return counts


def write_exchange(folder: Path, exchange: AnswerExchange) -> None:
    """Append size and time of one exchange to exchanges.csv; write errors are ignored."""
    rows = [[f"{time.time():.3f}", *vars(exchange).values()]]
    with suppress(OSError), open_for_append(folder / EXCHANGES) as file:
        if not file.tell():
            rows.insert(0, ["time", *vars(exchange)])
        file.write(csv_of(rows).encode())


@cache
def this_node() -> Any:
    """Return the node of this process, or a connection to the node's process.

    The node is made only once, so that a client reads its data once.
    """
    side = settings(this_folder(), ClientSide)
    return (
        ResidentConnection((this_folder() / SECRET).read_bytes())
        if side.stays
        else AnsweringClient(this_folder(), side)
    )


def main(
    role: Literal["server", "client", "resident", "task-server", "task-client"],
    parent: str,
    address: str,
    secret: str,
    root: str,
) -> None:
    """Run one task, or all tasks of a server or node until the parent process ends.

    Args:
        role: what this process does. `server`, `client`: run all tasks. `resident`: answer as a
            main server or aggregator. `task-server`, `task-client`: run a single task.
        parent: id of the parent process.
        address: address of Flower's process that hands out tasks.
        secret: file of the secret that the processes of the folder share.
        root: file of the authority's certificate; "": without TLS.
    """
    from vergence.deployment.transport import flower_processes  # an ordinary app does without

    flower_processes.begin(int(parent))
    certificate = Path(root) if root else None
    if role == "task-server" or role == "task-client":
        flower_processes.import_flower_runtime()
        if role == "task-client":
            this_node()
        kind = "server" if role == "task-server" else "client"
        flower_processes.task(kind, address, certificate, flower_processes.stand_by())
        return
    if role == "resident":
        side = settings(this_folder(), ClientSide)
        (AggregatorNode if side.adds else MainServerNode)(this_folder(), side).listen(Path(secret))
    if role == "client":
        this_node()
        tell(this_folder(), "data read", "ready")
    flower_processes.run_tasks(role, address, Path(secret), certificate)


if __name__ == "__main__":
    # Flower imports this module by its own name: run as `__main__` alone, it would be loaded again,
    # without the data that `this_node` has cached.
    import vergence.deployment.server_run as named

    try:
        named.main(*sys.argv[1:])  # type: ignore[arg-type]
    except VergenceError as error:
        sys.exit(f"vergence: {error}")
    except KeyboardInterrupt:
        sys.exit(0)
