"""Runs whose models stay on a GPU between checkpoints, on a device that stands in for one.

They have the bits of the same run whose models come home after every training, which computes with
them in main memory. What the host reads of the device is counted, and none but the functions here
may read.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.test_methods import NAMES, build, task_of
from tests.engine.learners import LOCALS, apart
from tests.engine.toys import run_toy, table
from tests.stand_in_device import DEVICE, HostRead, StandIn
from vergence.core.masks import Mask
from vergence.core.method import Method
from vergence.core.serialization import pack
from vergence.engine import round_loop, solver_selection
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.round_loop import RunOutcome
from vergence.engine.storage import checkpoint_validation, client_states
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.training import batch_buffers

CHECKPOINT = {"serialization._body", "serialization._equal"}
"""A checkpoint brings states home; arrays of a state are compared, so that equal ones are one."""
NUMBERS = {"params.read_numbers", "masks._counts", "masks.__eq__", "cuda_graphs.fit_all"}
"""Limits of replies and states, numbers of personal entries, and losses: a few numbers each."""
SCORES = {"task.map_outputs"}
"""The outputs of networks, which are scored in main memory."""
ALLOWED = CHECKPOINT | NUMBERS | SCORES
CPF = FedCPF(local=LOCALS["clip"], rate=0.2)
BEST = EarlyStopping(patience=2)
FAST = replace(CPF, local=replace(CPF.local, lr=1.0))
"""Its models are best after round 4."""
METHODS = [FedAvg(local=LOCALS["momentum"]), FedCPF(local=LOCALS["momentum"], rate=0.2), CPF]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("deterministic")]


@pytest.fixture(autouse=True)
def _device(monkeypatch) -> None:
    """Let runs train on the stand-in device."""
    monkeypatch.setattr(solver_selection, "choose_device", lambda _: DEVICE)
    # A manifest names the kinds of devices that there are.
    shape = dict(checkpoint_validation.SHAPE, solving=object)
    monkeypatch.setattr(checkpoint_validation, "SHAPE", shape)


@pytest.fixture
def home(monkeypatch):
    """Return a function that runs a method whose models come home after every training."""

    def run(path: Path, method: Method, **plan) -> RunOutcome:
        with monkeypatch.context() as patch, StandIn():
            patch.setattr(round_loop, "stays_on", lambda *_: False)
            return run_toy(path, method, solver="sequential", **plan)

    return run


def stay(path: Path, method: Method, **plan) -> tuple[RunOutcome, StandIn]:
    """Run a method whose models stay on the device."""
    with StandIn(ALLOWED) as stand_in:
        return run_toy(path, method, **{"solver": "sequential", **plan}), stand_in


@pytest.mark.parametrize(
    "method", [FedAvg(local=LOCALS["momentum"]), CPF], ids=["fedavg", "fedcpf"]
)
def test_models_stay_and_a_turn_reads_a_few_numbers(method, home, tmp_path):
    """Five people and three rounds; the network has 41 entries of four bytes."""
    plan = {"people": 5, "inputs": 40, "rounds": 3, "checkpoint_every": 0}
    run, stand_in = stay(tmp_path / "a", method, **plan)
    turns, reads = 15, stand_in.reads
    each = 0 if isinstance(method, FedAvg) else 1
    # Outputs of one model for all people come home together.
    evaluations = 5 if each else 1
    assert reads["params.read_numbers"] == turns * (1 + each)
    assert reads["cuda_graphs.fit_all"] <= turns
    assert reads["masks._counts"] <= each * 2 * turns
    assert reads["serialization._equal"] == each * turns
    assert reads["task.map_outputs"] == each * turns + evaluations
    # Numbers of eight bytes, a few of each; one model has 164 bytes.
    assert all(stand_in.bytes[name] <= 8 * 4 * reads[name] for name in NUMBERS)
    assert run.fingerprint == home(tmp_path / "b", method, **plan).fingerprint
    # What a caller gets lies in main memory.
    assert run.server.model.flat.is_cpu
    assert all(run.clients[client].params.flat.is_cpu for client in run.clients)


@pytest.mark.parametrize("method", METHODS, ids=["fedavg", "fedcpf", "clipped"])
def test_a_run_is_near_that_of_the_processor(method, tmp_path, monkeypatch):
    run, _ = stay(tmp_path / "a", method)
    monkeypatch.undo()
    alone = run_toy(tmp_path / "b", method)
    assert apart(run.server.model, alone.server.model) <= 1e-6
    # Only the factor that clips a gradient is rounded elsewhere in a recorded step.
    if not method.local.clip:
        assert pack(run.server) == pack(alone.server)
        assert [pack(run.clients[c]) for c in run.clients] == [
            pack(alone.clients[c]) for c in alone.clients
        ]


class Killed(BaseException):
    """Ends a run as a kill would."""


@pytest.mark.parametrize(
    ("method", "more"),
    [
        (FedAvg(local=LOCALS["momentum"]), {}),
        (FAST, {"checkpoint_every": 2}),
        (FAST, {"early_stopping": BEST, "rounds": 8}),
    ],
    ids=["fedavg", "fedcpf", "fedcpf goes back"],
)
def test_a_killed_run_goes_on_with_the_same_bits(method, more, tmp_path, monkeypatch):
    plan = {"people": 6, "rounds": 6, "evaluate_every": 1, **more}
    run, _ = stay(tmp_path / "a", method, **plan)

    def kill(self, done, *rest):
        report(self, done, *rest)
        if done == 5:
            raise Killed

    report = round_loop.RoundLoop.report
    monkeypatch.setattr(round_loop.RoundLoop, "report", kill)
    with pytest.raises(Killed):
        stay(tmp_path / "b", method, **plan)
    monkeypatch.setattr(round_loop.RoundLoop, "report", report)
    again, _ = stay(tmp_path / "b", method, **plan)
    assert again.fingerprint == run.fingerprint
    assert table(tmp_path / "b", "turns.csv") == table(tmp_path / "a", "turns.csv")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def files(path: Path) -> set[str]:
    """Return the names of a run's files of states."""
    return {file.name for file in (path / "state").glob("*.client.*")}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("room", "plan"),
    [
        (0, {"checkpoint_every": 0}),
        (200, {"checkpoint_every": 3}),
        (0, {"early_stopping": BEST}),
        (200, {"checkpoint_every": 0, "early_stopping": BEST}),
        (math.inf, {"early_stopping": BEST}),
        (200, {"presence": Participation(cohort=3)}),
        (math.inf, {}),
        (math.inf, {"checkpoint_every": 4, "presence": Participation(cohort=2), "rounds": 12}),
    ],
)
def test_states_beyond_the_room_go_to_their_files(room, plan, home, tmp_path, monkeypatch):
    """A state has some 80 bytes on the device: none, two or all people's stay there."""
    sizes = []
    honest = client_states.ResidentStateStore.write

    def write(self, *rest):
        entry = honest(self, *rest)
        there = self.waiting.values()
        assert self.used["waiting"] == sum(map(client_states._bytes_there, there))
        sizes.append((len(there), sum(map(client_states._bytes_there, there)), rest[1]))
        return entry

    monkeypatch.setattr(client_states.ResidentStateStore, "write", write)
    monkeypatch.setattr(round_loop, "room_on", lambda _: room)
    plan = {"people": 6, "rounds": 7, "evaluate_every": 1, **plan}
    run, _ = stay(tmp_path / "a", FAST, **plan)
    # When a round begins to write, the states of the rounds before the last one are gone.
    begun = {stamp: many for many, _, stamp in reversed(sizes)}
    assert len(begun) == (6 if "early_stopping" in plan else plan["rounds"])
    assert max(begun.values()) <= (13 if "early_stopping" in plan else 7)
    assert all(many == 1 or size <= room for many, size, _ in sizes)
    wanted = home(tmp_path / "b", FAST, **plan)
    assert run.fingerprint == wanted.fingerprint
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("stray", [lambda flat: flat.numpy(), lambda flat: flat[0].item()])
def test_a_stray_reading_ends_a_run(stray, tmp_path, monkeypatch):
    honest = Mask.merge

    def merge(self, personal, shared):
        stray(shared.flat)
        return honest(self, personal, shared)

    monkeypatch.setattr(Mask, "merge", merge)
    with pytest.raises((TypeError, HostRead)):
        stay(tmp_path, CPF)


class Reads(FedAvg):
    """A method of one's own, which may do what it likes with the parameters."""

    def on_train(self, c, msg, site):
        msg["model"].flat.numpy()
        return (yield from super().on_train(c, msg, site))


def test_models_of_a_method_of_ones_own_come_home(tmp_path):
    with StandIn():
        run_toy(tmp_path, Reads(local=LOCALS["clip"]), solver="sequential", rounds=1)


OPTIONS = {
    "fedavg": FedAvg(local=LOCALS["plain"], swa_start=2, weights="equal"),
    "fedadam": FedAdam(local=LOCALS["plain"], adapt="auto"),
    **{
        f"fedcpf, {' '.join(map(str, options.values()))}": replace(CPF, **options)
        for options in (
            {"select": "random"},
            {"select": "inverted", "scope": "per_tensor"},
            {"relative": True, "weights": "samples"},
            {"frozen_trainable": False, "rate_of": "remaining", "window": "exclusive"},
            {"enough": 50, "restart": "if"},
            {"guard": True},
        )
    },
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, home, tmp_path):
    check(OPTIONS[name], home, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_methods(name, home, tmp_path):
    check(build(name), home, tmp_path)


def check(method: Method, home, path: Path) -> None:
    plan = {"people": 4, "rounds": 3, "task": task_of(method), "evaluate_every": 1}
    with StandIn():
        run = run_toy(path / "a", method, solver="sequential", **plan)
    assert run.fingerprint == home(path / "b", method, **plan).fingerprint


def test_a_stack_of_clients(tmp_path, monkeypatch):
    # The stand-in's tensors have no storage of their own to lay people out in.
    monkeypatch.setattr(batch_buffers, "_shared", lambda _: None)
    plan = {"people": 6, "rounds": 2, "solver": "stacked"}
    with StandIn():
        run = run_toy(tmp_path / "a", CPF, **plan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(round_loop, "stays_on", lambda *_: False)
            wanted = run_toy(tmp_path / "b", CPF, **plan)
    assert run.fingerprint == wanted.fingerprint
