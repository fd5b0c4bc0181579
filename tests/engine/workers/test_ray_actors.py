"""Ray workers: the simulator's bits for any number of them, whoever dies, nobody left behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.toys import CHAIN, LOCAL, run_toy, table, untimed
from tests.engine.workers.test_pools import Falls, running
from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation, Population
from vergence.core.method import Method
from vergence.core.serialization import Packed
from vergence.data.synthetic.toy import Toy as People
from vergence.engine import round_loop
from vergence.engine.participation import Participation
from vergence.engine.records import ClientState
from vergence.engine.round_loop import Plan, device_for
from vergence.engine.storage.run_directory import read_manifest
from vergence.engine.workers import ray_actors, ray_people, ray_transfer
from vergence.engine.workers.ray_transfer import PayloadStateStore, RemoteState
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.experiment.registry import find
from vergence.experiment.trust import trust_in_own_file, under
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.split.splitfed import SplitFed
from vergence.privacy.config import Privacy
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.robust.median import Median

ROOTS = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
needs_ray = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: extra 'cluster'"),
]


@pytest.fixture(scope="module")
def session():
    """A Ray of the caller's own: runs use it, and leave it as it was."""
    ray = ray_actors.ready()
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    ray.init(
        "local",
        num_cpus=3,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=folder,
    )
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


CASES = {
    "fedcpf": (FedCPF(local=LOCAL, rate=0.2), {"solver": "stacked", "points": ("P0", "P1")}),
    "splitfed": (SplitFed(local=LOCAL), {"task": CHAIN}),
    "judged": (
        FedCPF(local=LOCAL, rate=0.2),
        {"privacy": Privacy(robust=Median()), "poison": Poison("alie", share=0.2)},
    ),
}


class TestBits:
    pytestmark = needs_ray

    @pytest.mark.parametrize("name", CASES)
    def test_two_ray_workers_and_one_give_the_bits_of_the_simulator(self, tmp_path, session, name):
        method, plan = CASES[name]
        plan = {"people": 9, "rounds": 3, "evaluate_every": 2, **plan}
        alone = run_toy(tmp_path / "alone", method, **plan)
        for count in (1, 2):
            out = tmp_path / str(count)
            found = run_toy(out, method, engine="ray", workers=count, **plan)
            assert found.fingerprint == alone.fingerprint
            assert untimed(out) == untimed(tmp_path / "alone")
        assert session.is_initialized()

    def test_a_method_from_a_file_of_the_user_s_goes_with_it(self, tmp_path, session):
        file = tmp_path / "halved.py"
        file.write_text(HALVED)
        with under(trust_in_own_file()):
            method = find("methods", str(file), Method)(local=LOCAL)
        alone = run_toy(tmp_path / "alone", method)
        found = run_toy(tmp_path / "ray", method, engine="ray", workers=1)
        assert found.fingerprint == alone.fingerprint
        assert len(found.clients) == 3


HALVED = """
from __future__ import annotations
from dataclasses import dataclass
from vergence.core.params import Params
from vergence.core.messages import reply
from vergence.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Half:
    last: Params | None = None

class Halved(FedAvg):
    def client(self, task):
        return Half()

    def on_train(self, c, msg, site):
        _, said = yield from super().on_train(c, msg, site)
        half = said.trees["model"] * 0.5
        return Half(half), reply(model=half, weight=1.0)
"""


@dataclass(frozen=True)
class Dies(FedCPF):
    """A client whose turn kills its process in round 1; once, where a file to remember it is."""

    file: str = ""

    def on_train(self, c, msg, site):
        died = self.file and Path(self.file).exists()
        if site.id == "p01" and msg.round == 1 and not died:
            if self.file:
                Path(self.file).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from super().on_train(c, msg, site))


@dataclass(frozen=True)
class Refuses(FedAvg):
    """A method that finds its setting wrong when a client begins."""

    def on_train(self, c, msg, site):
        raise ConfigError(f"a setting of {site.id}")


class TestFaults:
    pytestmark = needs_ray

    def test_a_killed_worker_is_replaced_to_the_same_bits(self, tmp_path, session):
        method = Dies(local=LOCAL, rate=0.2, file=str(tmp_path / "died"))
        found = run_toy(tmp_path / "a", method, people=9, engine="ray", workers=2)
        assert (tmp_path / "died").exists()
        alone = run_toy(tmp_path / "b", method, people=9)
        assert found.fingerprint == alone.fingerprint
        assert untimed(tmp_path / "a") == untimed(tmp_path / "b")

    def test_clients_that_kill_every_worker_are_named_and_the_run_goes_on(self, tmp_path, session):
        method = Dies(local=LOCAL, rate=0.2)
        with pytest.raises(PartialRun, match=r"3 Ray workers died.*p01.*vergence resume"):
            run_toy(tmp_path / "run", method, engine="ray", workers=1)
        mended = Dies(local=LOCAL, rate=0.2, file=str(tmp_path))
        found = run_toy(tmp_path / "run", mended, engine="ray", workers=1)
        assert found.fingerprint == run_toy(tmp_path / "whole", mended).fingerprint

    def test_a_mistake_in_a_method_ends_the_run_with_its_name(self, tmp_path, session):
        with pytest.raises(RuntimeError, match="a mistake of p03"):
            run_toy(tmp_path / "a", Falls(local=LOCAL), people=6, engine="ray", workers=1)
        with pytest.raises(ConfigError, match=r"^a setting of p0\d$"):
            run_toy(tmp_path / "b", Refuses(local=LOCAL), engine="ray", workers=1)

    def test_a_machine_with_other_code_is_refused(self, tmp_path, session, monkeypatch):
        here = ray_actors.kind()
        monkeypatch.setattr(ray_actors, "kind", lambda *_: {**here, "torch": "1.0"})
        with pytest.raises(ConfigError, match=r"another torch.*here 1\.0"):
            run_toy(tmp_path, FedAvg(local=LOCAL), engine="ray", workers=1)

    def test_workers_that_cannot_be_had_are_refused(self, tmp_path, session, monkeypatch):
        with pytest.raises(ConfigError, match=r"asks for 4, and Ray has 3 CPUs"):
            run_toy(tmp_path / "a", FedAvg(local=LOCAL), people=6, engine="ray", workers=4)
        monkeypatch.setattr(ray_actors, "START", 0.5)
        busy = session.remote(num_cpus=3)(Idle).remote()
        session.get(busy.there.remote())
        with pytest.raises(PartialRun, match=r"gave 0 of 1 workers within 0\.5 s.*`ray status`"):
            run_toy(tmp_path / "b", FedAvg(local=LOCAL), engine="ray", workers=1)
        session.kill(busy)

    def test_a_missing_cluster_is_named(self, tmp_path, monkeypatch):
        code = (
            "import sys, torch; from pathlib import Path; from tests.engine.toys import *;"
            "from vergence.methods.fedavg import FedAvg;"
            "run_toy(Path(sys.argv[1]), FedAvg(local=LOCAL), engine='ray')"
        )
        monkeypatch.setenv(ray_actors.ADDRESS, "127.0.0.1:1")
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert "ConfigError: no Ray cluster at RAY_ADDRESS = '127.0.0.1:1'" in done.stderr
        assert "ray start --head" in done.stderr


@pytest.fixture
def fetches(monkeypatch):
    """Files of states that the driver has fetched from other processes."""
    fetched, honest = [], ray_transfer.fetched_states

    def counted(states):
        fetched.extend(states)
        return honest(states)

    monkeypatch.setattr(ray_transfer, "fetched_states", counted)
    return fetched


WIDE = 40_000
"""Inputs of a network whose clients' states are too large to go with the results."""


class TestNodes:
    """States and data lie where people's turns run."""

    pytestmark = needs_ray

    def test_states_stay_with_the_workers_until_a_checkpoint(self, tmp_path, session, fetches):
        method = FedCPF(local=LOCAL, rate=0.2)
        plan: dict[str, Any] = {"people": 5, "inputs": WIDE, "presence": Participation(0.6)}
        alone = run_toy(tmp_path / "alone", method, **plan)
        found = run_toy(tmp_path / "a", method, engine="ray", workers=2, **plan)
        assert found.fingerprint == alone.fingerprint
        assert untimed(tmp_path / "a") == untimed(tmp_path / "alone")
        people = len({row["client"] for row in table(tmp_path / "a", "turns.csv")})
        assert len(fetches) == people  # at the end, each once
        fetches.clear()
        found = run_toy(tmp_path / "b", method, engine="ray", workers=2, checkpoint_every=1, **plan)
        assert found.fingerprint == alone.fingerprint
        assert len(fetches) == len(table(tmp_path / "b", "turns.csv"))

    def test_states_that_died_with_a_machine_are_computed_again(
        self, tmp_path, session, capsys, monkeypatch
    ):
        """They are missed at the checkpoint after the last round, of which none is on the disk."""
        lost, honest = [], ray_transfer.fetched_states

        def fetched(states):
            if not lost:
                lost.extend(states)
                raise ray_transfer.LostStates("a machine died")
            return honest(states)

        monkeypatch.setattr(ray_transfer, "fetched_states", fetched)
        method = FedCPF(local=LOCAL, rate=0.2)
        found = run_toy(tmp_path / "a", method, people=5, inputs=WIDE, engine="ray", workers=2)
        assert lost
        said = capsys.readouterr().err
        assert "a machine died: the rounds since then are computed again" in said
        alone = run_toy(tmp_path / "b", method, people=5, inputs=WIDE)
        assert found.fingerprint == alone.fingerprint
        assert untimed(tmp_path / "a") == untimed(tmp_path / "b")

    def test_a_run_whose_states_vanish_each_time_ends(self, tmp_path, session, monkeypatch):
        def lost(_states):
            raise ray_transfer.LostStates("a machine died")

        monkeypatch.setattr(round_loop, "RETURNS", 1)
        monkeypatch.setattr(ray_transfer, "fetched_states", lost)
        with pytest.raises(PartialRun, match="a machine died"):
            run_toy(tmp_path, FedCPF(local=LOCAL), inputs=WIDE, engine="ray", workers=1)

    def test_the_next_run_has_the_workers_of_the_last(self, tmp_path, session):
        pids = []
        for name in ("a", "b", "c"):
            method = Signs(local=LOCAL, file=str(tmp_path / name))
            run_toy(tmp_path / f"run_{name}", method, engine="ray", workers=1)
            lines = (tmp_path / name).read_text().splitlines()
            pids += {int(line.split()[0]) for line in lines}
            if name == "b":  # one that died in between is replaced
                os.kill(pids[-1], signal.SIGKILL)
        first, second, third = pids
        assert first == second != third

    @pytest.mark.nightly
    def test_workers_of_a_closed_connection_are_not_used_again(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", ROOTS)
        subprocess.run([sys.executable, "-c", TWO_CONNECTIONS, str(tmp_path)], check=True)

    def test_workers_get_the_people_whose_data_they_have(self):
        """In the order of groups alone, the first worker would get 0 and 2, the second 1 and 3."""
        given: dict[str, list[int]] = {"first": [], "second": []}
        first, second = (
            SimpleNamespace(carry_out=SimpleNamespace(remote=partial(hand_out_to, numbers)))
            for numbers in given.values()
        )
        home = {"p0": second, "p1": second, "p2": first, "p3": first}
        cluster: Any = SimpleNamespace(
            ray=SimpleNamespace(put=id), hands=[first, second], home=home, jobs=1
        )
        groups = [[SimpleNamespace(client=f"p{n}", file=None)] for n in range(8)]
        batch: Any = SimpleNamespace(groups=groups, group=groups.__getitem__)
        ray_actors.RayBatch(cluster, batch)._hand_out(8)
        assert given == {"first": [2, 3], "second": [0, 1]}

    def test_whom_a_worker_works_for_is_remembered(self, tmp_path, session, monkeypatch):
        nearness, honest = set(), ray_actors.RayBatch._nearness

        def remembered(batch, number, hand):
            found = honest(batch, number, hand)
            nearness.add((batch.at > 1, found))
            return found

        monkeypatch.setattr(ray_actors.RayBatch, "_nearness", remembered)
        run_toy(tmp_path, FedAvg(local=LOCAL), people=4, engine="ray", workers=2)
        assert {(False, 0), (True, 1)} <= nearness


def hand_out_to(numbers: list[int], _at, _sent, number: int, _states) -> object:
    """Note the number of a group that a worker is given; return a reference to its result."""
    numbers.append(number)
    return object()


@dataclass(frozen=True)
class Signs(FedAvg):
    """Clients write down the process, the round and their name."""

    file: str = ""

    def on_train(self, c, msg, site):
        with Path(self.file).open("a") as file:
            file.write(f"{os.getpid()} {msg.round} {site.id}\n")
        return (yield from super().on_train(c, msg, site))


TWO_CONNECTIONS = """
import sys
from pathlib import Path
from tests.engine.toys import LOCAL, run_toy
from vergence.engine.workers import ray_actors
from vergence.methods.fedavg import FedAvg
ray = ray_actors.ready()
for name in ("a", "b"):
    ray.init("local", num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False)
    run_toy(Path(sys.argv[1]) / name, FedAvg(local=LOCAL), engine="ray", workers=1)
    ray.shutdown()
"""


class TestPeople:
    pytestmark = needs_ray

    def test_people_are_fetched_as_they_were(self, session):
        rows = torch.arange(12.0).reshape(6, 2)
        people = {f"p{n}": splits_of(n, rows) for n in range(4)}
        stored = ray_people.FetchedPeople(people)
        ray_actors.carry_tensors()
        away = session.get(session.put(stored))
        ray_actors.carry_tensors(False)
        assert list(away) == list(people)
        assert "p9" not in away
        for client, splits in people.items():
            for name, part in vars(splits).items():
                other = getattr(away[client], name)
                assert repr(other) == repr(part)
                assert all(torch.equal(other.columns[n], c) for n, c in part.columns.items())
                assert all(torch.equal(other.banks[n].rows, rows) for n in part.banks)
        # Rows that people share are one tensor, so that pooled samples have them once.
        parts = [away[client].test for client in people]
        assert parts[0].banks["image"].rows is parts[3].banks["image"].rows
        assert len(Samples.concatenate(parts).banks["image"].rows) == 6

    def test_no_more_than_the_room_stays_at_hand(self, session, monkeypatch):
        monkeypatch.setattr(ray_people, "BLOCK", 1)
        people = People(people=6, inputs=100).load().people
        stored = ray_people.FetchedPeople(people)
        stored.room = 2.5 * splits_bytes(people["p00"])
        for client in [*people, *people]:
            assert torch.equal(stored[client].train.columns["x"], people[client].train.columns["x"])
            assert len(stored.at_hand) <= 2
        stored.room = 0.0
        assert len(stored["p00"].train) == len(people["p00"].train)
        assert len(stored.at_hand) == 1

    def test_people_made_on_demand_are_made_there(self, session):
        federation = Federation("many", Population(5, splits_of, "five"))
        assert ray_people.fetched(federation) is federation


def splits_of(number: int, rows: torch.Tensor | None = None) -> Splits:
    """Return a person with three samples, which share rows of a bank."""
    at = torch.tensor([number, 0, 1])
    part = Samples(
        {"at": at}, {"image": SharedRows(torch.ones(6, 2) if rows is None else rows, "at")}
    )
    return Splits(part, part, part)


def splits_bytes(splits: Splits) -> int:
    return sum(part.bytes() for part in vars(splits).values())


class Idle:
    """Takes CPUs and does nothing."""

    def there(self):
        return True


SCRIPT = """
import sys
from pathlib import Path
from tests.engine.toys import LOCAL, run_toy
from vergence.engine.workers import ray_actors, ray_people, ray_transfer
from vergence.methods.fedcpf import FedCPF

honest = ray_actors.tempfile.mkdtemp
def named(**options):
    Path(sys.argv[1] + ".place").write_text(folder := honest(**options))
    return folder
ray_actors.tempfile.mkdtemp = named
run_toy(Path(sys.argv[1]), FedCPF(local=LOCAL, rate=0.01), people=4, engine="ray", workers=2,
          rounds=int(sys.argv[2]))
"""


class TestEnds:
    pytestmark = needs_ray

    @pytest.mark.parametrize(
        "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
    )
    def test_a_stopped_run_leaves_nobody_behind_and_goes_on(self, tmp_path, monkeypatch, how):
        run, rounds = tmp_path / "run", 100
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        monkeypatch.setenv("PYTHONPATH", ROOTS)
        said = tmp_path / "said"
        with said.open("w") as log:
            driver = subprocess.Popen(
                [sys.executable, str(script), str(run), str(rounds)],
                stdout=log,
                stderr=log,
                # Whoever started the tests in the background ignores it, and so would this.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        try:
            wait_for(lambda: (run / "turns.csv").exists() and len(table(run, "turns.csv")) > 8)
            others = [driver.pid, *below(driver.pid)]
            if how == signal.SIGKILL:  # Ray's agents wait for a minute for what died with them
                others = [pid for pid in others if "Agent" not in called(pid)]
            assert sum("RayWorker" in called(pid) for pid in others) == 2
            driver.send_signal(how)
            driver.wait(30)
            wait_for(lambda: not [pid for pid in others if running(pid)], 15)
        finally:
            driver.kill()
            driver.wait()
        place = Path((tmp_path / "run.place").read_text())
        assert place.exists() == (how == signal.SIGKILL)
        assert ("KeyboardInterrupt" in said.read_text()) == (how == signal.SIGINT)
        shutil.rmtree(place, ignore_errors=True)
        method = FedCPF(local=LOCAL, rate=0.01)
        done = int(table(run, "turns.csv")[-1]["round"])
        assert done < rounds
        found = run_toy(run, method, people=4, rounds=rounds)
        whole = run_toy(tmp_path / "whole", method, people=4, rounds=rounds)
        assert found.fingerprint == whole.fingerprint
        assert untimed(run) == untimed(tmp_path / "whole")


class TestMachines:
    pytestmark = needs_ray

    @pytest.mark.nightly
    @pytest.mark.parametrize("inputs", [4, WIDE])
    def test_a_machine_that_dies_in_mid_run_changes_no_bit(self, tmp_path, monkeypatch, inputs):
        """The recipe of docs/how-to/cluster.md: a head and a second machine, of one CPU each.

        The second one dies, with states that are on no disk where they are large; a third joins.
        """
        method, out, rounds = FedCPF(local=LOCAL, rate=0.05), tmp_path / "ray", 60
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "ab" * 32)
        monkeypatch.setenv("RAY_worker_niceness", "0")
        monkeypatch.setenv("PYTHONPATH", ROOTS)
        monkeypatch.setenv(ray_actors.ADDRESS, at)
        folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block"]
        port = at.partition(":")[2]
        first = [
            *start,
            "--head",
            f"--port={port}",
            f"--temp-dir={folder}",
            "--include-dashboard=false",
            "--node-ip-address=127.0.0.1",
        ]
        said = tmp_path / "said"
        log = said.open("w")
        machines = [subprocess.Popen(first, stdout=log, stderr=log)]
        try:
            wait_for(lambda: said.read_text().count(STARTED) == 1)
            joins = [*start, f"--address={at}"]
            machines.append(subprocess.Popen(joins, stdout=log, stderr=log))
            wait_for(lambda: said.read_text().count(STARTED) == 2)
            run = [sys.executable, "-c", DRIVER, str(out), str(rounds), str(inputs)]
            machines.append(driver := subprocess.Popen(run, stdout=log, stderr=log))
            wait_for(lambda: (out / "turns.csv").exists() and len(table(out, "turns.csv")) > 50)
            pids = below(machines[1].pid)
            assert any("RayWorker" in called(pid) for pid in pids)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert len(table(out, "turns.csv")) < 9 * rounds
            machines.append(subprocess.Popen(joins, stdout=log, stderr=log))
            assert driver.wait(120) == 0
            assert ("computed again" in said.read_text()) == (inputs == WIDE)
        finally:
            left = [pid for machine in machines for pid in [machine.pid, *below(machine.pid)]]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for machine in machines:
                machine.wait()
            log.close()
            shutil.rmtree(folder, ignore_errors=True)
        alone = run_toy(tmp_path / "alone", method, people=9, rounds=rounds, inputs=inputs)
        assert read_manifest(out)["done"]["0"]["fingerprint"] == alone.fingerprint
        assert untimed(out) == untimed(tmp_path / "alone")


STARTED = "Ray runtime started."
DRIVER = """
import sys
from pathlib import Path
from tests.engine.toys import LOCAL, run_toy
from vergence.methods.fedcpf import FedCPF
run_toy(Path(sys.argv[1]), FedCPF(local=LOCAL, rate=0.05), people=9, engine="ray",
          rounds=int(sys.argv[2]), inputs=int(sys.argv[3]), workers=0)
"""


def called(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    return ""


def below(pid: int) -> list[int]:
    """Return the processes that descend from one, whichever thread began them."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for above in found:  # grows as it goes
        found += [child for child, parent in parents.items() if parent == above]
    return found[1:]


def wait_for(what, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class TestSettings:
    def test_without_ray_the_extra_is_named(self, monkeypatch):
        monkeypatch.setattr(ray_actors.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=r"pip install 'vergence\[cluster\]'"):
            device_for(Plan(engine="ray"))

    def test_gpus_are_refused_and_auto_is_the_cpu(self, monkeypatch):
        with pytest.raises(ConfigError, match=r'engine = "ray" trains on CPUs.*"cuda"'):
            Plan(engine="ray", device="cuda")
        monkeypatch.setattr(ray_actors.importlib.util, "find_spec", lambda _: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        assert device_for(Plan(engine="ray")).type == "cpu"

    def test_a_state_damaged_on_its_way_is_told_of(self, tmp_path):
        """XXH3 of the bytes that arrive is that of the bytes that left, or the run ends."""
        store = PayloadStateStore(tmp_path, 0, (Tiny,))
        filed = store.write("p00", "0.1", Packed(ClientState(Tiny(torch.arange(4.0)))), None)
        data = store.new_states[filed.file].copy()
        state: Any = RemoteState(data, filed.xxh3, "p00", (Tiny,)).state.state
        assert state.values.tolist() == [0, 1, 2, 3]
        data[-1] ^= 1
        with pytest.raises(StateError, match="state of 'p00' was damaged"):
            RemoteState(data, filed.xxh3, "p00", (Tiny,)).chunks()


@dataclass(frozen=True)
class Tiny:
    values: torch.Tensor
