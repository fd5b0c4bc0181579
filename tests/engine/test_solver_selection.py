"""The precision of training: chosen once, told with its reason, part of the fingerprint."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from tests.engine import toys
from tests.engine.learners import eyes
from tests.engine.toys import CHAIN, LOCAL, run_toy
from tests.stand_in_device import DEVICE, StandIn
from vergence.core.data import Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.engine import round_loop, solver_selection
from vergence.engine.plan import Plan
from vergence.engine.silos import Silos
from vergence.engine.solver_selection import precision_for, solver_for
from vergence.errors import ConfigError, StateError
from vergence.methods.apfl import APFL
from vergence.methods.ditto import Ditto
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedprox import FedProx
from vergence.methods.fedrep import FedRep
from vergence.methods.scaffold import Scaffold
from vergence.methods.split.splitfed import SplitFed
from vergence.models.lenet import LeNet
from vergence.models.linear import Linear
from vergence.privacy.config import DpSgd, Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.robust.median import Median
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.toy import ToyTask
from vergence.training.pruning import Gradual
from vergence.wire.codecs import Compression

CPU = torch.device("cpu")
EYES = GazeAngle(LeNet((3, 4)))
PEOPLE = Federation(
    "eyes", {f"p{i}": Splits(eyes(12, i), eyes(4, i + 10), eyes(4, i + 20)) for i in range(3)}
)
SHORT = LocalTraining(optimizer="sgd", batch=6, lr=0.01)


@pytest.fixture(params=["avx512_bf16", ""], ids=["with", "without"])
def found(request, monkeypatch):
    """The bfloat16 instructions of this machine's processor, as if."""
    there = {request.param: True} if request.param else {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: there)
    return request.param


def run(path, method=None, **plan):
    method = method or FedAvg(local=SHORT)
    return run_toy(path, method, task=EYES, federation=PEOPLE, **{"rounds": 2, **plan})


def interrupted(monkeypatch, path, **plan):
    """Run until the second round begins."""
    honest = round_loop.RoundLoop.one_round

    def stop(self, at, server):
        if at == 1:
            raise KeyboardInterrupt
        return honest(self, at, server)

    with monkeypatch.context() as patch:
        patch.setattr(round_loop.RoundLoop, "one_round", stop)
        with pytest.raises(KeyboardInterrupt):
            run(path, **plan)


def test_auto_is_what_the_processor_has(found):
    chosen = precision_for(FedAvg(local=SHORT), EYES, Plan(precision="auto"), CPU)
    if found:
        assert chosen == ("half", "this processor has avx512_bf16")
    else:
        assert chosen == ("fp32", "this processor has no bfloat16 instructions that torch knows of")


@pytest.mark.parametrize("named", ["fp32", "bf16", "half"])
@pytest.mark.usefixtures("found")
def test_a_precision_that_is_named_is_taken_anywhere(named):
    assert precision_for(FedAvg(), EYES, Plan(precision=named), CPU) == (named, "")


@pytest.mark.slow
def test_tf32_is_for_gpus(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"'tf32' is a number format of GPUs.*'fp32'"):
        run(tmp_path, precision="tf32")
    monkeypatch.setattr(solver_selection, "choose_device", lambda _: DEVICE)
    during, honest = [], round_loop.RoundLoop.one_round

    def one_round(*rest):
        during.append(torch.get_float32_matmul_precision())
        return honest(*rest)

    monkeypatch.setattr(round_loop.RoundLoop, "one_round", one_round)
    with StandIn():
        run(tmp_path / "there", precision="tf32", device="cuda", solver="sequential", rounds=1)
    assert during == ["high"]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("method", "task", "plan", "why"),
    [
        (FedAvg(), ToyTask(Linear()), {}, "no 2-d convolutions"),
        (FedAvg(), EYES, {"privacy": Privacy(solver=DpSgd(noise=1.0))}, "DP-SGD"),
        (SplitFed(), EYES, {}, "batch by batch"),
    ],
)
def test_auto_is_fp32_where_half_is_of_no_use(method, task, plan, why, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    name, reason = precision_for(method, task, Plan(precision="auto", **plan), CPU)
    assert name == "fp32"
    assert why in reason


def test_auto_runs_as_what_it_found_and_says_so(found, tmp_path):
    auto = run(tmp_path / "auto", precision="auto")
    other = {p: run(tmp_path / p, precision=p).fingerprint for p in ("fp32", "half")}
    assert len(set(other.values())) == 2
    assert auto.fingerprint == other["half" if found else "fp32"]
    kept = json.loads((tmp_path / "auto/state/checkpoint.json").read_text())["solving"]
    assert kept[2] == ("half" if found else "fp32")
    assert kept[4].endswith(found or "no bfloat16 instructions that torch knows of")


def test_half_gives_the_same_bits_everywhere(tmp_path, monkeypatch):
    """Workers, the engine that sends bytes, and a run that was interrupted."""
    whole = run(tmp_path / "one", precision="half").fingerprint
    for name, plan in {"two": {"workers": 2}, "bytes": {"engine": "bytes"}}.items():
        assert run(tmp_path / name, precision="half", **plan).fingerprint == whole
    interrupted(monkeypatch, tmp_path / "again", precision="half")
    assert run(tmp_path / "again", precision="half").fingerprint == whole


@pytest.mark.parametrize("first", ["half", "fp32"])
def test_a_run_does_not_go_on_in_another_precision(first, tmp_path, monkeypatch):
    """Begun under auto on one machine, gone on with on another."""
    has = {"half": {"avx512_bf16": True}, "fp32": {}}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has[first])
    interrupted(monkeypatch, tmp_path, precision="auto")
    other = "fp32" if first == "half" else "half"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has[other])
    said = f"was begun in precision '{first}', and on this machine .* is '{other}'"
    with pytest.raises(StateError, match=said):
        run(tmp_path, precision="auto")


METHODS = [
    FedAvg(local=LOCAL),
    FedProx(local=LOCAL),
    Scaffold(local=LOCAL),
    FedCPF(local=LOCAL, rate=0.2, select="random"),
    APFL(local=LOCAL),
    Ditto(local=LOCAL),
    FedRep(local=LOCAL),
    FedAdam(local=LOCAL),
]


@pytest.mark.parametrize("solver", ["sequential", "stacked"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_methods_learn_the_same(method, solver, tmp_path):
    """A line's four rounds: within 2^-8 of the largest entry times a few steps."""
    found = {
        p: run_toy(tmp_path / p, method, people=9, task=CHAIN, solver=solver, precision=p)
        for p in ("fp32", "half")
    }
    one, other = (found[p].server.model.flat for p in ("half", "fp32"))
    assert not torch.equal(one, other)
    assert float((one - other).abs().max()) < 0.05 * float(other.abs().max())


@dataclass(frozen=True)
class Kept:
    """A state of a client with its optimiser's."""

    optimiser: OptimizerState


@pytest.mark.parametrize(
    ("method", "plan", "why"),
    [
        (FedAvg(), {"privacy": Privacy(solver=DpSgd(noise=1.0))}, "DP-SGD clips the gradient"),
        (FedAvg(), {"silos": Silos({"x": ("p0", "p1"), "y": ("p2",)})}, "people of a lab"),
        (None, {"solver": "auto"}, "clients keep their optimiser's state"),
    ],
)
def test_who_cannot_be_stacked_is_trained_one_by_one(method, plan, why, monkeypatch):
    """No trial is made, whatever the plan asks for; a worker has one client at a time."""
    monkeypatch.setattr(solver_selection, "choose_solver", None)
    if method is None:
        method = FedAvg()
        monkeypatch.setattr(FedAvg, "state_records", lambda *_: (Kept, OptimizerState))
    made = solver_for(method, EYES, PEOPLE, PEOPLE.clients, Plan(**plan), CPU)
    assert made[:4] == ("sequential", 1, "fp32", "cpu")
    assert why in made.reason


@pytest.mark.parametrize(("device", "most"), [("cpu", 3), ("cuda", 8)])
@pytest.mark.parametrize("seen", [False, True])
def test_a_trial_is_of_the_first_clients_and_their_sizes(device, most, seen, monkeypatch):
    """A GPU has at least as many clients at a time as streams; one that is seen and not used
    forbids the trial."""
    asked = []

    def choose(*given):
        asked.append(given)
        return SimpleNamespace(solver="stacked", chunk=3, reason="fast")

    monkeypatch.setattr(solver_selection, "choose_solver", choose)
    monkeypatch.setattr(solver_selection, "STREAMS", 8)
    monkeypatch.setattr(solver_selection, "CHUNK", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    method, plan = FedAvg(local=SHORT), Plan(solver="auto")
    made = solver_for(method, EYES, PEOPLE, ("p2", "p0", "p1"), plan, torch.device(device))
    assert made == ("stacked", most, "fp32", device, "fast")
    ((task, local, sizes, tried, wanted, _, precision),) = asked
    assert (task, local, sizes, wanted, precision) == (EYES, SHORT, [12] * 3, "auto", "fp32")
    few = [PEOPLE.people[name].train for name in ("p2", "p0")]
    expected = [] if device == "cpu" and seen else few
    assert [id(each) for each in tried] == [id(each) for each in expected]


def test_why_a_precision_was_chosen_stands_beside_why_a_solver_was(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    plan = Plan(precision="auto", silos=Silos({"x": ("p0", "p1", "p2")}))
    made = solver_for(FedAvg(), EYES, PEOPLE, PEOPLE.clients, plan, CPU)
    assert made.reason.endswith("one after the other; half: this processor has avx512_bf16")


PROTECTED = {
    "pads": {"privacy": Privacy(aggregation=SecureAggregationConfig())},
    "people": {"privacy": Privacy(user=UserLevelConfig(noise=1.0))},
    "median": {"privacy": Privacy(robust=Median())},
    "codec": {"wire": Compression("int8")},
    "pruning": {"pruning": Gradual(0.5)},
}


@pytest.mark.parametrize("setting", PROTECTED)
def test_what_protects_or_packs_updates_takes_those_of_half(setting, tmp_path):
    run(tmp_path, precision="half", **PROTECTED[setting])
    rows = toys.table(tmp_path, "turns.csv")
    assert {row["status"] for row in rows} == {"ok"}


def test_what_has_no_other_precision_refuses_half(tmp_path):
    with pytest.raises(ConfigError, match=r"in fp32; leave out run\.precision"):
        Plan(precision="half", privacy=Privacy(solver=DpSgd(noise=1.0)))
    with pytest.raises(ConfigError, match=r"in fp32; leave out run\.precision"):
        run_toy(tmp_path, SplitFed(local=LOCAL), task=CHAIN, precision="half")
