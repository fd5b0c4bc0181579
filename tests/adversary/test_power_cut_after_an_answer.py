"""What an answer relies on is on the disk, with its name, before the answer leaves.

The adversary is a power cut at the moment when an answer is sent: what was not flushed is gone, and
what was taken away without a flush is back. Real ends of a deployment, each with its own folder,
take part in secure sums, spend budgets and keep books.
"""

import os
import threading
from collections import Counter
from dataclasses import replace

import pytest

from tests.engine.test_blackout import Disk
from tests.engine.toys import mostly_slow
from tests.lines import Line
from vergence.deployment import folder_setup
from vergence.deployment.aggregator_node import AggregatorNode
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.folders import EXPERIMENT, ClientSide, settings
from vergence.deployment.joined_node import deployable
from vergence.deployment.keys import party_identity
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import VergenceError
from vergence.experiment.schema import check, load

PEOPLE = ("p00", "p01", "p02", "p03")
HELPERS = ["one", "two", "three"]
BESIDE = {".turn"}
"""A lock, of which nothing is kept."""


def table(method, **privacy):
    return {
        "task": {"name": "toy"},
        "model": {"name": "linear", "inputs": 4},
        "federation": {"name": "toy", "people": len(PEOPLE)},
        "method": method,
        "local": {"optimizer": "sgd", "epochs": 1, "batch": 8, "lr": 0.05},
        "run": {"rounds": 2, "evaluate_every": 0, "seeds": [0]},
        "privacy": privacy,
    }


USER = {"clip": 0.5, "noise": 2.0}
SHARES = {"name": "additive", "aggregators": HELPERS}
MASKED = {"name": "fedcpf", "rate": 0.3}
RUNS = {
    "pads": (table("fedavg", aggregation="secure"), {"sum.row", "sum.attempt", "sum.spent"}),
    "pads with states": (table("scaffold", aggregation="secure"), {"sum.row", "sum.attempt"}),
    "shares": (table("fedavg", aggregation=SHARES), {"sum.row", "sum.spent"}),
    "shares with a threshold": (table(MASKED, aggregation=SHARES), {"sum.row", "sum.spent"}),
    "pads with noise for people": (
        table("fedavg", aggregation="secure", user=USER),
        {"sum.row", "sum.attempt", "secret"},
    ),
    "shares with noise for people": (
        table("fedavg", aggregation=SHARES, user=USER),
        {"sum.row", "sum.spent", "secret"},
    ),
    "DP-SGD": (
        table("fedavg", solver={"clip": 1.0, "noise": 2.0}),
        {"secret", "seed0.client.NAME.csv"},
    ),
    "DP-SGD in pads": (
        table("fedavg", aggregation="secure", solver={"clip": 1.0, "noise": 2.0}),
        {"secret", "seed0.client.NAME.csv", "sum.row", "sum.attempt", "sum.spent"},
    ),
    "a budget for masks": (
        table(MASKED, mask={"epsilon": 8.0, "of": "entry"}),
        {"secret", "seed0.mask.NAME.csv"},
    ),
}
"""What is run, and which files of each client must have been there when answers left."""
QUICK = ("pads", "shares", "DP-SGD", "a budget for masks")
ADDING = {"shares", "shares with a threshold", "shares with noise for people"}


class Ends(Line):
    """A line to the ends of a deployment in this process; at every answer its end loses power.

    What would be lost is kept in `lost`, the files that were looked at are counted in `seen`.
    """

    def __init__(self, out, disk):
        self.out, self.disk, self.ends = out, disk, {}
        self.lost, self.seen, self.lock = Counter(), Counter(), threading.Lock()
        self.note = {"kind": "request", "label": "", "seed": 0}

    def end(self, name):
        if name not in self.ends:
            folder = self.out / ("aggregators" if name in HELPERS else "clients") / name
            side = settings(folder, ClientSide)
            self.note["run"] = side.run
            self.ends[name] = (AggregatorNode if side.adds else AnsweringClient)(folder, side)
        return self.ends[name]

    def ask(self, client, request):
        with self.lock:
            self.look("server", self.out / "run" / "state" / "privacy")
            end = self.end(client)
            try:
                answer = end.work(self.note, request)
            except VergenceError as error:
                raise ClientLost(str(error)) from None
            self.look(client, end.folder)
            return answer

    def look(self, who, folder):
        if not folder.exists():
            return
        begun = folder if who == "server" else folder / "state"
        lost = [x for x in self.disk.lost(folder, BESIDE) if who == "server" or "state" in x]
        lost = [x for x in lost if not x.endswith("safetensors is gone")]  # harmless
        self.lost.update(text.replace(who, "NAME") for text in lost)
        files = [p.name for p in begun.rglob("*") if p.is_file()]
        self.seen.update((who, name.replace(who, "NAME")) for name in files)


@pytest.fixture
def disk(monkeypatch):
    made = Disk()
    monkeypatch.setattr(os, "fsync", made.fsync)
    return made


def run_toy(made, disk, experiment):
    """Run an experiment from a server's folder over its deployment's ends."""
    folder_setup.init(experiment, PEOPLE, "127.0.0.1:8000", made / "out")
    line = Ends(made / "out", disk)
    line.end(PEOPLE[0])
    experiment = deployable(load(made / "out" / "server" / EXPERIMENT))
    ((line.note["label"], method),) = experiment.methods.items()
    folder = RunDirectory(made / "out" / "run", {"config": "a"}, elsewhere=True)
    folder.open()
    counts = dict.fromkeys(PEOPLE, 12)
    pool_factory = remote_pool(line, identity=party_identity(made / "out" / "server", line.note))
    plan = replace(experiment.plan, solver="sequential")
    run_rounds(
        method,
        experiment.task(0),
        federation=remote_people("toy", counts),
        plan=plan,
        folder=folder,
        pool_factory=pool_factory,
    )
    return line


@pytest.mark.parametrize("name", mostly_slow(RUNS, *QUICK))
def test_no_answer_leaves_before_what_it_relies_on_outlasts_a_blackout(name, tmp_path, disk):
    wanted, files = RUNS[name]
    line = run_toy(tmp_path, disk, check(wanted))
    for client in PEOPLE:
        assert {file for who, file in line.seen if who == client} >= files
    for helper in HELPERS if name in ADDING else ():
        assert (helper, "sum.spent") in line.seen
    assert not line.lost, dict(line.lost)


def test_a_books_name_is_on_the_disk_before_the_server_tells_of_a_release(tmp_path, disk):
    """Noise by the server, and its book: the next model that it sends is a release."""
    line = run_toy(tmp_path, disk, check(table("fedavg", user=USER)))
    assert any(who == "server" and file.endswith(".csv") for who, file in line.seen)
    assert not line.lost, dict(line.lost)
