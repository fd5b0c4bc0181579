"""The two ends of a deployment: what is done in a server's, and in a client's processes."""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from vergence.app import results, seals, stamp
from vergence.app.config import Experiment, load
from vergence.app.deploy_folder import (
    EXPERIMENT,
    FOLDER,
    INSECURE,
    ClientSide,
    ServerSide,
    facts,
    settings,
    tell,
)
from vergence.app.deploy_keys import genuine, signer
from vergence.core.site import Federation
from vergence.core.stream import Stream
from vergence.engines import flower, flower_processes
from vergence.engines.conduct import conduct, device_for, measured
from vergence.engines.desk import Desk
from vergence.engines.lobby import Errands, Lobby, Patience, reply
from vergence.engines.remote import Home, absent, hired, unframed
from vergence.engines.shelf import Shelf
from vergence.engines.store import Folder
from vergence.engines.turn import Worker
from vergence.errors import ConfigError, DataError, PartialRun, StateError, VergenceError

MEMBERS = "members.json"


def __getattr__(name: str) -> Any:
    """Return the Flower app of an end; Flower looks them up by name."""
    if name == "server":
        return flower.server_app(lead)
    if name == "client":
        return flower.client_app(lambda asked: end().answer(asked))
    raise AttributeError(name)


def here() -> Path:
    """Return the folder of this end."""
    return Path(os.environ[FOLDER])


def deployable(experiment: Experiment) -> Experiment:
    """Return an experiment as it is run on many machines: clients one by one.

    Raises:
        ConfigError: it cannot be.
    """
    plan = replace(experiment.plan, solver="sequential", device="cpu")
    if plan.delivery != type(plan.delivery)():
        raise ConfigError("run.delivery: a deployment waits for everybody's reply: leave it out")
    for label, method in experiment.methods.items():
        if method.pooled:
            raise ConfigError(f"method '{label}' collects everybody's data: leave it out")
        device_for(method, plan)
    return replace(experiment, plan=plan)


def lead(line: flower.GridLine) -> None:
    """Run a server's folder to its end, over a line to the nodes."""
    folder = here()
    try:
        Leading(folder, line).run()
    except VergenceError as error:
        tell(folder, f"stopped: {error}")
        raise


class Leading:
    """A server at work: everybody it waits for, then every method and seed."""

    def __init__(self, folder: Path, line: flower.GridLine) -> None:
        self.folder, self.line = folder, line
        self.side = settings(folder, ServerSide)
        self.experiment = deployable(load(folder / EXPERIMENT))
        self.lobby = Lobby(
            line, self.side.clients, facts(self.experiment.table),
            lambda client, data, sign: genuine(folder / "keys" / f"{client}.pub", data, sign),
            lambda text: tell(folder, text), Patience(self.side.answer_s, self.side.absent_s),
        )  # fmt: skip

    def run(self) -> None:
        """Wait for the quorum, then run every method and seed that is not finished."""
        self.lobby.open()
        try:
            said = self.lobby.gather(self.side.quorum or len(self.side.clients))
            federation = self.members(said)
            for label in self.experiment.methods:
                self.one_method(label, federation)
            self.lobby.farewell()
            tell(self.folder, f"finished; the results are in {self.folder / 'run'}")
        finally:
            self.lobby.close()

    def members(self, said: Mapping[str, Mapping[str, Any]]) -> Federation:
        """Return the federation as it was when the run began: a resumed run has the same."""
        file = self.folder / MEMBERS
        if not file.exists():
            counts = {c: int(said[c]["train"]) if c in said else 0 for c in self.side.clients}
            results.write_json(file, counts)
        counts = json.loads(file.read_text())
        for client, about in said.items():
            if counts[client] not in (0, about["train"]):
                raise StateError(
                    f"'{client}' has {about['train']} training samples, and had {counts[client]} "
                    "when the run began: restore its data, or start a new deployment"
                )
        return absent(self.experiment.table["federation"]["name"], counts)

    def one_method(self, label: str, federation: Federation) -> None:
        """Run one method's seeds into its run directory."""
        experiment, method = self.experiment, self.experiment.methods[label]
        plan, path = experiment.plan, self.folder / "run"
        path = path / label if experiment.several else path
        if (path / "results.json").exists():
            return
        table = experiment.one(label)
        made = stamp.stamp(table, f"with {', '.join(federation.clients)}")
        folder = Folder(path, made, elsewhere=True)
        folder.open()
        results.write_toml(path / "config.toml", table)
        told = results.provenance(federation, made["data"], made["code"])
        results.write_json(path / "provenance.json", {**told, "deployment": self.transport()})

        def tick(seed: int, done: int, metrics: Mapping[str, float]) -> None:
            headline = experiment.task(seed).headline
            score = f", {headline} {metrics[headline]:.3f}" if headline in metrics else ""
            heard = f", {metrics['replies']:g} replies" if "replies" in metrics else ""
            tell(self.folder, f"{label}, seed {seed}: round {done} of {plan.rounds}{heard}{score}")
            if metrics.get("replies") == 0 and self.lobby.lost:  # before it is kept: done again
                why = "; ".join(f"{c}: {reason}" for c, reason in self.lobby.lost.items())
                raise PartialRun(f"nobody's reply counted in round {done} ({why[:400]})")

        outcomes = {}
        for seed in plan.seeds:
            done = folder.manifest["done"].get(str(seed))
            if done is None:
                errands = Errands(self.lobby, {"run": self.side.run, "label": label, "seed": seed})
                found = conduct(method, experiment.task(seed), federation, plan, folder, tick,
                                hired(errands))  # fmt: skip
                done = {"fingerprint": found.fingerprint}
            outcomes[seed] = done["fingerprint"]
        assert folder.solving is not None
        results.write_results(
            path, label, type(method).__module__.rpartition(".")[2], experiment.task(0),
            federation, measured(federation, plan), folder.solving, outcomes, None, plan.rounds,
        )  # fmt: skip
        seals.seal(path)

    def transport(self) -> dict[str, Any]:
        """Return how bytes travelled, for provenance.json."""
        insecure = INSECURE in os.environ
        return {"engine": f"flower {stamp.version('flwr')}", "address": self.side.address,
                "tls": not insecure, "node keys": not insecure, "signed answers": True,
                **({"INSECURE": "nothing was encrypted"} if insecure else {})}  # fmt: skip


@cache
def end() -> Answering:
    """Return this process's client end; it reads its data once."""
    return Answering(here())


class Answering:
    """A client at its own machine: its data, its key, and its states on its own disk."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder, self.side = folder, settings(folder, ClientSide)
        sets = [] if self.side.data is None else [f"federation.root={json.dumps(self.side.data)}"]
        self.experiment = deployable(load(folder / EXPERIMENT, sets))
        self.sign = signer(folder / "node")
        self.facts = facts(self.experiment.table)
        self.federation = self.own()

    def own(self) -> Federation:
        """Read this client's data, under its name in the deployment."""
        whole = self.experiment.federation()
        if self.side.person not in whole.people:
            few = ", ".join(list(whole.clients)[:8])
            raise DataError(
                f"the data of '{whole.name}' hold nobody named '{self.side.person}' (there are: "
                f"{few}); give --person, or the right --data"
            )
        alone = self.experiment.model.prepare(whole.only((self.side.person,)))
        mine = alone.people[self.side.person]
        found = replace(alone, people={self.side.client: mine})
        self.experiment.task(self.experiment.plan.seeds[0]).check(found)
        return found

    def answer(self, asked: bytes) -> bytes:
        """Answer a request; what goes wrong here is told in one line, never in full."""
        try:
            body, error = self.carried_out(asked), ""
        except VergenceError as fault:
            body, error = b"", str(fault)
        except Exception as fault:
            tell(self.folder, f"error: {type(fault).__name__}: {fault}")
            body, error = b"", f"{type(fault).__name__} at the client; its events.log says more"
        return reply(asked, self.side.client, self.sign, body, error)

    def carried_out(self, asked: bytes) -> bytes:
        """Carry out what a request asks for."""
        note, body = unframed(asked)
        match note["kind"]:
            case "errand":
                return self.home(note).answer(body)
            case "hello":
                mine = self.federation.people[self.side.client]
                return json.dumps({**self.facts, "train": len(mine.train)}).encode()
            case "welcome":
                tell(self.folder, "the server knows this client")
            case "refused":
                tell(self.folder, f"the server refuses this client: {note['text'][:300]}")
            case "bye":
                tell(self.folder, "finished")
            case _:
                raise StateError(f"a request of unknown kind '{note['kind']}'")
        return b""

    def home(self, note: Mapping[str, Any]) -> Home:
        """Return the place of one run's states and turns."""
        run, label, seed, plan = note["run"], note["label"], note["seed"], self.experiment.plan
        known = label in self.experiment.methods and seed in plan.seeds
        if not (known and isinstance(run, str) and run.isalnum()):
            raise StateError(f"no run '{run}' of method '{label}' with seed {seed} here")
        folder = self.folder / "state" / run / label
        folder.mkdir(parents=True, exist_ok=True)
        method, task = self.experiment.methods[label], self.experiment.task(seed)
        worker = Worker(
            method, task, self.federation, self.federation, Stream("run", seed), plan.precision,
            wire=plan.wire, pruning=plan.pruning,
        )  # fmt: skip
        return Home(Desk(worker, Shelf(folder, seed, worker.records)), self.side.client, folder)


def main(
    role: Literal["server", "client"], parent: str, address: str, secret: str, root: str
) -> None:
    """Be the labour of one end, until its parent ends."""
    flower_processes.begin(int(parent))
    if role == "client":
        end()
        tell(here(), "data read")
    flower_processes.labour(role, address, Path(secret), Path(root) if root else None)


if __name__ == "__main__":
    # Under its own name too: Flower's apps look for `end` there, with the data in it.
    import vergence.app.ends as named

    try:
        named.main(*sys.argv[1:])  # type: ignore[arg-type]
    except VergenceError as error:
        sys.exit(f"vergence: {error}")
    except KeyboardInterrupt:
        sys.exit(0)
