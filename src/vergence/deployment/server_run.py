"""Apps that Flower finds by name: a server's run, and the node that a client's folder is."""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from vergence.core.federation import Federation
from vergence.core.files import csv_of, growing, parse_json
from vergence.core.naming import called
from vergence.core.serialization import plain
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
    awaited,
    facts,
    settings,
    tell,
)
from vergence.deployment.joined_node import deployable
from vergence.deployment.keys import genuine, party_identity
from vergence.deployment.main_server import SessionRelay
from vergence.deployment.main_server_node import MainServerNode
from vergence.deployment.protocol import miscounted
from vergence.deployment.remote_clients import absent, remote_pool
from vergence.deployment.resident_node import ResidentConnection
from vergence.deployment.transport import flower
from vergence.engine.round_loop import measured, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import PartialRun, StateError, VergenceError
from vergence.experiment import checksums
from vergence.experiment import provenance as stamp
from vergence.experiment.nothing_learned import refuse_unlearned
from vergence.experiment.privacy import spent as privacy_spent
from vergence.experiment.run import folders_of
from vergence.experiment.schema import load
from vergence.experiment.trust import deployed, under
from vergence.privacy.hooks import ProtectedRun
from vergence.results import write as results
from vergence.tracking.tensorboard import Board

MEMBERS, EXCHANGES = "members.json", "exchanges.csv"


def here() -> Path:
    """Return the folder of this process's server or node."""
    return Path(os.environ[FOLDER])


def __getattr__(name: str) -> Any:
    """Return the Flower app of a server or a node; Flower looks them up by name."""
    if name == "server":
        return flower.server_app(lead)
    if name == "client":
        return flower.client_app(lambda asked, _: end().answer(asked))
    raise AttributeError(name)


def lead(line: flower.GridTransport, _: Any) -> None:
    """Run this process's folder to its end, over a connection to the nodes."""
    run_folder(here(), line, ServerRun)


def run_folder(folder: Path, line: flower.GridTransport, kind: type[ServerRun]) -> None:
    """Run a server's folder to its end; why it stopped before stands in its events."""
    try:
        kind(folder, line).run()
    except VergenceError as error:
        tell(folder, f"stopped: {error}", "stopped")
        raise


class ServerRun:
    """A server at work: everybody it waits for, then every method and seed."""

    fit = staticmethod(deployable)
    """Check of the experiment that the folder holds."""

    def __init__(self, folder: Path, line: flower.GridTransport) -> None:
        self.folder, self.line = folder, line
        self.side = settings(folder, ServerSide)
        with under(deployed()):
            self.experiment = self.fit(load(folder / EXPERIMENT))
        self.aggregators = self.experiment.plan.privacy.aggregators
        self.registry = ClientRegistry(
            line,
            self.side.clients,
            facts(self.experiment.table),
            self.genuine,
            self.tell,
            Timeouts(self.side.answer_s, self.side.absent_s),
            (*([MAIN] if self.side.main else []), *self.aggregators),
            partial(write_exchange, folder),
            self.revoked,
        )

    def genuine(self, client: str, data: bytes, signature: str) -> bool:
        """True if a signature is a client's."""
        return genuine(self.folder / "keys" / f"{client}.pub", data, signature)

    def revoked(self, client: str) -> bool:
        """True if a client's key was taken away."""
        return not (self.folder / "keys" / f"{client}.pub").is_file()

    def awaited(self) -> int:
        """Number of clients that a run waits for."""
        return awaited(self.folder, self.side)

    def tell(self, line: str, event: str = "note", **about: Any) -> None:
        """Write one line for the operator."""
        tell(self.folder, line, event, **about)

    def run(self) -> None:
        """Wait for the quorum, then run every method and seed that is not finished."""
        self.registry.open()
        try:
            said = self.registry.gather(self.awaited())
            federation = self.members(said)
            self.registry.samples = counted(self.folder / MEMBERS, self.side.clients)
            for label in self.experiment.methods:
                self.one_method(label, federation)
            self.registry.farewell()
            ran = folders_of(self.experiment, self.folder / "run")
            refuse_unlearned(ran, self.experiment.plan)
            self.tell(f"finished; the results are in {self.folder / 'run'}", "finished")
        finally:
            self.registry.close()

    def members(self, said: Mapping[str, Mapping[str, Any]]) -> Federation:
        """Return the federation as it was when the run began: a resumed run has the same.

        Who has other data now is asked no more, and the others go on.
        """
        file = self.folder / MEMBERS
        if not file.exists():
            counts = {c: said[c]["train"] if c in said else 0 for c in self.side.clients}
            results.write_json(file, counts)
        counts = counted(file, self.side.clients)
        for client, about in said.items():
            if changed := changed_data(counts[client], about):
                self.tell(f"'{client}' is not asked: {changed}", "refused", client=client)
        people = absent(self.experiment.table["federation"]["name"], counts)
        return self.experiment.proxied(people)

    def one_method(self, label: str, federation: Federation) -> None:
        """Run one method's seeds into its run directory."""
        experiment, method = self.experiment, self.experiment.methods[label]
        plan, path = experiment.plan, self.folder / "run"
        path = path / label if experiment.several else path
        if (path / "results.json").exists():
            checksums.seal(path)
            return
        folder = self.open_run(path, label, federation)
        outcomes = {seed: self.one_seed(label, seed, federation, folder) for seed in plan.seeds}
        assert folder.solving is not None
        results.write_results(
            path,
            label,
            called(method),
            experiment.task(0),
            federation,
            measured(federation, plan),
            folder.solving,
            outcomes,
            None,
            plan.rounds,
            privacy_spent.spent(
                plan,
                ProtectedRun(
                    method, experiment.task(0), federation, plan.rounds, path / "state", here=False
                ),
            ),
        )
        checksums.seal(path)
        self.tell_result(label, path)

    def open_run(self, path: Path, label: str, federation: Federation) -> RunDirectory:
        """Run directory of a method, open, with its config and provenance."""
        table = self.experiment.one(label)
        trace = self.experiment.plan.presence.trace
        made = stamp.stamp(table, f"with {', '.join(federation.clients)}", trace)
        folder = RunDirectory(path, made, elsewhere=True)
        folder.open()
        results.write_toml(path / "config.toml", table)
        told = results.provenance(federation, made["data"], made["code"])
        results.write_json(path / "provenance.json", {**told, "deployment": self.transport()})
        return folder

    def one_seed(self, label: str, seed: int, federation: Federation, folder: RunDirectory) -> str:
        """Fingerprint of a method's seed, which is run unless that is done."""
        experiment, done = self.experiment, folder.manifest["done"].get(str(seed))
        with Board(folder.path, seed, lambda text: self.tell(text, "warning")) as board:
            if done is not None:
                return done["fingerprint"]

            def tick(seed: int, done: int, metrics: Mapping[str, float]) -> None:
                self.tell_round(label, seed, done, metrics)
                board.follow()
                self.refuse_silence(done, metrics)

            note = {"run": self.side.run, "label": label, "seed": seed}
            line = RequestQueue(self.registry, note)
            relay = SessionRelay(line) if self.side.main else None
            identity = party_identity(self.folder, note)
            pool = remote_pool(
                line,
                relay=relay,
                talk=self.side.talk_s,
                identity=identity,
                tell=self.tell,
            )
            method, task = experiment.methods[label], experiment.task(seed)
            found = run_rounds(method, task, federation, experiment.plan, folder, tick, pool)
        return found.fingerprint

    def tell_round(self, label: str, seed: int, done: int, metrics: Mapping[str, float]) -> None:
        """Tell that a round is done, with its score and how many replies counted."""
        headline = self.experiment.task(seed).headline
        score = f", {headline} {metrics[headline]:.3f}" if headline in metrics else ""
        heard = f", {metrics['replies']:g} replies" if "replies" in metrics else ""
        self.tell(
            f"{label}, seed {seed}: round {done} of {self.experiment.plan.rounds}{heard}{score}",
            "round",
            label=label,
            seed=seed,
            round=done,
        )

    def refuse_silence(self, done: int, metrics: Mapping[str, float]) -> None:
        """Refuse to keep a round in which nobody's reply counted: it is done again.

        Not where clients would refuse again: what they open only once, and what their owners'
        limits do not let them answer.

        Raises:
            PartialRun: says why replies were lost.
        """
        # A round that asks nobody loses nobody.
        lost, self.registry.lost = self.registry.lost, {}
        enough = all(reason.startswith(ENOUGH) for reason in lost.values())
        again = not enough and not any("spent: " in reason for reason in lost.values())
        if metrics.get("replies") == 0 and again:
            why = "; ".join(f"{c}: {reason}" for c, reason in lost.items())
            raise PartialRun(f"nobody's reply counted in round {done} ({why[:400]})")

    def tell_result(self, label: str, path: Path) -> None:
        """Tell the result of a finished method, where people were measured."""
        headline = self.experiment.task(0).headline
        people = results.person_means(path).get(headline, {})
        if people:
            mean = sum(people.values()) / len(people)
            self.tell(
                f"{label}: {headline} {mean:.3f}, mean of {len(people)} people and "
                f"{len(self.experiment.plan.seeds)} seeds",
                "result",
                label=label,
            )

    def transport(self) -> dict[str, Any]:
        """Description of how bytes travelled, for provenance.json."""
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
            **({"INSECURE": "nothing was encrypted"} if insecure else {}),
        }


def counted(file: Path, clients: Sequence[str]) -> dict[str, int]:
    """Read how many training samples every client of a deployment has.

    Raises:
        StateError: the file is damaged; names it, and of whom it says what cannot be.
    """
    mend = "restore it from a copy, or remove it if no round is done yet: it is written anew"
    try:
        counts = parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(f"{file} cannot be read ({plain(error)}): {mend}") from None
    if not isinstance(counts, dict):
        raise StateError(f"{file} is no table of clients and their training samples: {mend}")
    for client in (*clients, *counts):
        if client not in counts or client not in clients:
            what = (
                "does not name" if client in clients else "names, beside the deployment's clients,"
            )
            raise StateError(f"{file} {what} '{plain(client)[:40]}': {mend}")
        if wrong := miscounted(counts[client]):
            raise StateError(f"{file}: '{client}' has {wrong}: {mend}")
    return counts


def write_exchange(folder: Path, exchange: AnswerExchange) -> None:
    """Write down one exchange; where the disk is full or read-only, it is not worth a run."""
    rows = [[f"{time.time():.3f}", *vars(exchange).values()]]
    with suppress(OSError), growing(folder / EXCHANGES) as file:
        if not file.tell():
            rows.insert(0, ["time", *vars(exchange)])
        file.write(csv_of(rows).encode())


@cache
def end() -> Any:
    """Return this process's node, or the way to it; a client reads its data once."""
    side = settings(here(), ClientSide)
    return (
        ResidentConnection((here() / SECRET).read_bytes())
        if side.stays
        else AnsweringClient(here(), side)
    )


def main(
    role: Literal["server", "client", "resident"], parent: str, address: str, secret: str, root: str
) -> None:
    """Run the tasks of one server or node, until the parent process ends."""
    from vergence.deployment.transport import flower_processes

    flower_processes.begin(int(parent))
    if role == "resident":
        side = settings(here(), ClientSide)
        (AggregatorNode if side.adds else MainServerNode)(here(), side).listen(Path(secret))
    if role == "client":
        end()
        tell(here(), "data read", "ready")
    flower_processes.labour(role, address, Path(secret), Path(root) if root else None)


if __name__ == "__main__":
    # Under its own name too: Flower's apps look for `end` there, with the data in it.
    import vergence.deployment.server_run as named

    try:
        named.main(*sys.argv[1:])  # type: ignore[arg-type]
    except VergenceError as error:
        sys.exit(f"vergence: {error}")
    except KeyboardInterrupt:
        sys.exit(0)
