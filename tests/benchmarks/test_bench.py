"""The benchmark on tiny work: what it reports, and that floor and engine do the work stated."""

import ast
import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.bench import clock, report, study
from benchmarks.bench.clock import Lane, Turn
from benchmarks.bench.floor import Floor, Steps, deal, flatten
from benchmarks.bench.gate import Gate
from benchmarks.bench.lane import run
from benchmarks.bench.others import PEERS
from benchmarks.bench.plain import NETWORKS, Job
from benchmarks.bench.workloads import WORKLOADS, Workload
from tests.benchmarks.commands import benched
from vergence.errors import ConfigError, DataError, PartialRun


def rows():
    """Three clients with 5, 4 and 2 rows of the equation y = (sum of x, 1)."""
    x = torch.rand(11, 6, generator=torch.Generator().manual_seed(3))
    return [5, 4, 2], x, torch.stack([x.sum(1), torch.ones(11)], 1)


TINY = Workload("tiny", "line", rows, cohort=3, batch=8, rounds=4, stint=2)


class Pass:
    """A gate that is always open."""

    def between_rounds(self, **more):
        return True


def learned(job, place, method="fedavg"):
    options = {"scored": 2, "saves": False, "plan": {"workers": 1}}
    return run(job, method, options, Pass(), place)


MADE = []


class FakeLane:
    """Takes 2 s a round (floor: 1 s), and tells what a lane tells."""

    def __init__(self, name, *rest):
        self.name, self.peak, self.steps = name, 5_000_000, 0
        MADE.append(name)

    def turn(self, rounds, watch=False):
        if self.name.startswith("floor"):
            self.steps += 3 * rounds if self.name == study.ALL else rounds
            return Turn(1.0, 0.5, self.steps)
        return Turn(2.0, 3.0)

    def finish(self):
        return {"steps": 15, "loss": 0.5, "bytes_up": 7, "bytes_down": 8}

    def close(self):
        pass


@pytest.fixture
def faked(monkeypatch):
    MADE.clear()
    monkeypatch.setattr(study, "Lane", FakeLane)
    monkeypatch.setattr(study, "PEERS", {})
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)


def quiet(what, share):
    assert what
    assert 0 <= share <= 1


@pytest.mark.usefixtures("faked")
def test_json_and_table():
    """The one-thread floor does 1 of 3 steps in 0.5 s of processor time: 1.5 s a round."""
    found = study.bench(["tiny"], quiet)["tiny"]
    json.dumps(found)
    assert found["wall_over_floor"] == 2.0
    assert found["cpu_over_floor"] == 2.0
    assert (found["wall_s"], found["cpu_s"]) == (2.0, 3.0)
    assert (found["floor_wall_s"], found["floor_cpu_s"]) == (1.0, 1.5)
    assert found["peak_mb"] == 5.0
    assert found["rounds"] == 4
    assert found["steps"] == 15  # three clients of one step, five rounds with the warm-up
    assert found["same_steps"]
    assert found["peers"] == {}
    assert found["machine"]["cores"] >= 1
    assert found["turns"] == [[2.0, 3.0, 1.0, 1.5]] * 2
    assert report.table({"tiny": found}).row_count == 2


@pytest.mark.usefixtures("faked")
def test_precisions_run_in_the_same_turns(monkeypatch):
    monkeypatch.setattr(study, "PEERS", PEERS)
    found = study.bench(["tiny"], quiet, precisions=["bf16", "half"])["tiny"]
    assert set(MADE) == {study.ALL, study.ONE, "fedavg", "bf16", "half"}
    assert found["precisions"]["half"]["cpu_over_floor"] == 2.0
    assert found["peers"] == {}
    assert report.table({"tiny": found}).row_count == 4


@pytest.mark.usefixtures("faked")
def test_fedcpf_beside_fedavg(monkeypatch):
    several = Workload("tiny", "line", rows, 3, 8, 1, methods=("fedcpf", "fedavg_scored", "fedavg"))
    monkeypatch.setitem(WORKLOADS, "tiny", several)
    found = study.bench(["tiny"], quiet)["tiny"]
    assert set(MADE) == {study.ALL, study.ONE, *several.methods}
    assert found["cpu_over_fedavg"] == 1.0
    assert found["scoring_wall_s"] == 0.0
    assert set(found["beside"]) == {"fedavg_scored", "fedavg"}
    assert any("both scoring" in line for line in report.notes({"tiny": found}))


@pytest.mark.usefixtures("faked")
def test_a_peer_that_is_not_installed_is_named_with_what_to_do(monkeypatch):
    """An interpreter that finds nothing stands for an environment without the peer."""
    monkeypatch.delenv("PFLLIB", raising=False)
    monkeypatch.setattr(study, "PEERS", PEERS)
    monkeypatch.setattr("benchmarks.bench.others.LOOK", "import sys; sys.exit(1); {!r}")
    found = study.bench(["tiny"], quiet)["tiny"]
    told = {name: peer["missing"] for name, peer in found["peers"].items()}
    assert "pip install torch 'flwr" in told["flower"]
    assert "pip install torch 'pfl[" in told["pfl"]
    assert "set PFLLIB" in told["pfllib"]
    assert f"tiny: pfl: {told['pfl']}" in report.notes({"tiny": found})
    assert PEERS["pfl"].missing("/nowhere/python") == "not run: no Python at /nowhere/python"


def test_a_peer_that_fails_stops_nobody(monkeypatch):
    def fail(_):
        raise PartialRun("bench: pfl ended early")

    monkeypatch.setattr(study.Start, "lane", fail)
    started = study.Start(PEERS["pfl"], "pfl", None, None)
    floors = {study.ALL: FakeLane(study.ALL), study.ONE: FakeLane(study.ONE)}
    assert study.against(started, floors, (1, 1), quiet) == {"error": "bench: pfl ended early"}


def test_peers_that_did_other_work_are_marked():
    """Training gained 0.4; a loss 0.1 away is a quarter of that."""
    ours = {"steps": 15, "start_loss": 0.9, "loss": 0.5}
    near = study.compared({"steps": 15, "loss": 0.51}, ours)
    assert near["agrees"]
    assert near["same_steps"]
    far = study.compared({"steps": 14, "loss": 0.6}, ours)
    assert far["loss_apart"] == pytest.approx(0.25)
    assert not far["agrees"]
    assert not far["same_steps"]


def test_bad_names():
    benched("gaze16").complains(2, "no workload 'gaze16'", "did you mean 'gaze15'?")
    benched("xdev", "--peer-python", "flowr=/x").complains(2, "no peer", "'flower'")
    benched("xdev", "--peer-python", "flower").complains(2, "NAME=PATH", "'flower'")
    benched("xdev", "--rounds", "0").complains(2, "--rounds", "got 0")


@pytest.mark.usefixtures("faked")
@pytest.mark.parametrize(
    ("workload", "folder"), [("logistic", "fashion_mnist"), ("cifar10", "cifar10")]
)
def test_missing_data(workload, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("VERGENCE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"no {folder} at .* set VERGENCE_DATA"):
        study.bench([workload], quiet)
    for name in set(WORKLOADS) - {workload, "tiny"}:
        monkeypatch.delitem(WORKLOADS, name)
    found = study.bench([], quiet)
    assert "VERGENCE_DATA" in found[workload]["missing"]
    assert found["tiny"]["rounds"] == 4
    assert report.table(found).row_count == 2


def test_clients_are_dealt_longest_first():
    assert [len(hand) for hand in deal([608] * 15, 2)] == [8, 7]
    assert deal([1, 5, 2, 4], 2) == [[5, 1], [4, 2]]


@pytest.mark.parametrize("processes", [1, 2])
def test_floor_steps(processes):
    """Five rows in batches of two are three steps, the last of one row."""
    job = Workload("", "line", rows, 3, 2, 1).job("tiny", 1)
    assert job.steps_of_round(0) == 3 + 2 + 1
    floor = Floor(job, processes)
    try:
        assert sum(floor.round([0, 1, 2])) == 3
        assert floor.round([0, 1, 2]) == ([3] if processes == 1 else [1, 2])
    finally:
        floor.close()
    if floor.steps is not None:
        assert floor.steps.done == 2 * 6


def test_floor_trains():
    """Its parameters are one flat vector, channels-last, and steps change it."""
    module = NETWORKS["cnn"]()
    weight = module.conv2.weight.detach().clone()
    flat = flatten(module)
    assert torch.equal(module.conv2.weight, weight)
    assert module.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    flat.zero_()
    assert not module.fc1.weight.any()
    steps = Steps(TINY.job("tiny", 1))
    before = steps.flat.clone()
    steps.client(4)
    assert not torch.equal(steps.flat, before)


def test_job_survives_its_folder(tmp_path):
    job = TINY.job("tiny", 3)
    job.save(tmp_path)
    again = Job.load(tmp_path, mapped=True)
    assert again.sizes == [5, 4, 2]
    assert again.cohorts == [[0, 1, 2]] * 3
    assert torch.equal(again.rows(1)[0], job.x[5:9])
    assert again.cost(again.module()) == job.cost(job.module())


def test_sampled_cohorts_are_the_engines(tmp_path):
    """The floor deals, round for round, the clients whom the engine asks."""
    job = Workload("", "line", rows, 2, 2, 1).job("tiny", 6)
    assert {len(cohort) for cohort in job.cohorts} == {2}
    assert len({tuple(cohort) for cohort in job.cohorts}) > 1
    assert learned(job, tmp_path)["steps"] == sum(map(job.steps_of_round, range(6)))


def test_engine_does_what_a_plain_loop_does(tmp_path):
    """One batch holds all rows of a client, so nothing depends on their order."""
    job = TINY.job("tiny", 3)
    model = job.module()
    for _ in range(3):
        mean = [torch.zeros_like(p) for p in model.parameters()]
        for client, size in enumerate(job.sizes):
            mine = job.module()
            mine.load_state_dict(model.state_dict())
            x, y = job.rows(client)
            ((mine(x) - y) ** 2).mean().backward()
            for total, p in zip(mean, mine.parameters(), strict=True):
                total += size / 11 * (p - 0.01 * p.grad).detach()
        for p, total in zip(model.parameters(), mean, strict=True):
            p.data.copy_(total)
    told = learned(job, tmp_path)
    assert told["loss"] == pytest.approx(job.cost(model), rel=1e-5)
    assert told["steps"] == 9
    assert told["bytes_up"] == told["bytes_down"] >= 4 * 14
    assert learned(job, tmp_path, "fedavg_scored")["loss"] == told["loss"]


SCRIPT = """
import sys, time
sys.path.insert(0, {!r})
from gate import Gate
gate, rounds = Gate(), 0
print("noise")
while gate.between_rounds(steps=rounds):
    rounds += 1
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
if rounds > 3:
    sys.exit("too many")
gate.tell(final=dict(rounds=rounds))
"""


@pytest.fixture
def lane(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(clock.__file__.rpartition("/")[0]))
    made = Lane("script", [sys.executable, str(script)], tmp_path / "log")
    yield made
    made.close()


def test_clock_and_gate(lane):
    """A round spins for 0.02 s of processor time."""
    turn = lane.turn(3, watch=True)
    assert turn.steps == 3
    assert turn.wall >= 0.02
    assert 0.02 <= turn.cpu < 0.2
    assert lane.peak > 1e6
    assert lane.finish() == {"rounds": 3}
    assert lane.process.returncode == 0


def test_a_process_that_ends_early_is_quoted(lane):
    lane.turn(4)
    with pytest.raises(PartialRun, match="script ended early; its last words: too many"):
        lane.finish()


def test_a_process_ends_with_its_clock(lane):
    lane.ready()
    lane.process.stdin.close()
    assert lane.process.wait(5) == 1


def test_gate_is_open_for_the_rounds_asked(monkeypatch):
    gate = Gate.__new__(Gate)
    gate._left, gate._began, told = 0, None, []
    monkeypatch.setattr(gate, "tell", lambda **what: told.append(what), raising=False)
    monkeypatch.setattr(sys, "stdin", Lines(["2\n", "0\n"]))
    assert [gate.between_rounds() for _ in range(3)] == [True, True, False]
    assert told[0] == {"ready": True}
    assert list(told[1]) == ["wall"]


class Lines:
    def __init__(self, lines):
        self.lines = list(lines)

    def readline(self):
        return self.lines.pop(0)


def test_unreadable_peer_python():
    with pytest.raises(ConfigError, match="NAME=PATH"):
        report.pythons(["=x"])
    assert report.pythons(["pfl=/a=b"]) == {"pfl": "/a=b"}


@pytest.mark.slow
def test_the_whole_thing(monkeypatch):
    """Real processes on tiny work: ratios are positive, steps are those planned."""
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)
    monkeypatch.setattr(study, "PEERS", {})
    found = study.bench(["tiny"], quiet)["tiny"]
    assert found["same_steps"]
    assert min(found["wall_over_floor"], found["cpu_over_floor"], found["peak_mb"]) > 0
    assert found["loss"] < found["start_loss"]


def test_peers_need_nothing_of_vergence():
    """Their environments hold torch and numpy at most: what they load must import no more."""
    home = Path(clock.__file__).parent
    for path in (home / "plain.py", home / "gate.py", *(home / "peers").glob("*.py")):
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
        assert "vergence" not in found, path
        assert path.parent == home / "peers" or found <= {
            *sys.stdlib_module_names,
            "torch",
            "numpy",
        }
