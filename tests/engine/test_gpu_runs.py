"""Runs on a GPU: near those of a CPU, and the same bits each time."""

from collections.abc import Callable

import pytest
import torch

from tests.engine.learners import LOCALS, apart
from tests.engine.toys import run_toy
from vergence.api.task_from import task_from
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.engine import client_executor, round_loop, solver_selection
from vergence.methods.ditto import Ditto
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedper import FedPer
from vergence.methods.fedprox import FedProx
from vergence.methods.scaffold import Scaffold
from vergence.models.glc.glc_vit import GlcVit
from vergence.models.linear import Linear
from vergence.tasks.gaze_map import GazeMap
from vergence.tasks.toy import ToyTask
from vergence.training import device as device_module
from vergence.training.cuda_graphs import Graphed
from vergence.training.sequential import Solver

METHODS: dict[str, Method] = {
    "fedavg": FedAvg(local=LOCALS["momentum"]),
    "fedcpf": FedCPF(local=LOCALS["clip"], rate=0.2),
    "scaffold": Scaffold(local=LOCALS["clip"]),
}


pytestmark = pytest.mark.usefixtures("deterministic")


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("solver", ["sequential", "stacked"])
def test_a_run_is_near_that_of_a_cpu_and_repeats(tmp_path, name, solver):
    plan = {"people": 9, "solver": solver, "evaluate_every": 2}
    runs = {
        folder: run_toy(tmp_path / folder, METHODS[name], device=device, **plan)
        for folder, device in (("gpu", "cuda"), ("again", "cuda"), ("cpu", "cpu"))
    }
    assert runs["gpu"].fingerprint == runs["again"].fingerprint
    assert apart(runs["gpu"].server.model, runs["cpu"].server.model) <= 1e-4


RESIDENT = METHODS | {
    "fedprox": FedProx(local=LOCALS["clip"]),
    "fedadam": FedAdam(local=LOCALS["momentum"]),
    "fedper": FedPer(local=LOCALS["clip"]),
    "ditto": Ditto(local=LOCALS["clip"]),
}
DROPPING = task_from(
    lambda: torch.nn.Sequential(
        torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1)
    ),
    torch.nn.functional.mse_loss,
)


@pytest.mark.gpu
@pytest.mark.parametrize("task", [ToyTask(Linear()), DROPPING], ids=["line", "dropout"])
@pytest.mark.parametrize("name", RESIDENT)
def test_models_that_stay_have_the_bits_of_those_that_come_home(name, task, tmp_path, monkeypatch):
    """So have the same run again, and one that was killed after its second round."""
    plan = {"people": 9, "solver": "sequential", "device": "cuda", "task": task}
    runs = [run_toy(tmp_path / folder, RESIDENT[name], **plan) for folder in ("a", "again")]
    with monkeypatch.context() as patch:
        patch.setattr(round_loop.RoundLoop, "one_round", until(2))
        with pytest.raises(KeyboardInterrupt):
            run_toy(tmp_path / "killed", RESIDENT[name], **plan)
    runs.append(run_toy(tmp_path / "killed", RESIDENT[name], **plan))
    monkeypatch.setattr(round_loop, "stays_on", lambda *_: False)
    runs.append(run_toy(tmp_path / "home", RESIDENT[name], **plan))
    assert len({run.fingerprint for run in runs}) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_and_maps_repeat_with_deterministic_algorithms(precision, tmp_path):
    """Torch's fused attention has a fixed order of sums in its gradient only where one is asked."""
    task, people = GazeMap(GlcVit("tiny64")), EgoSynthetic(people=2, clips=4).load()
    local = LocalTraining(optimizer="adamw", lr=1e-3, epochs=2, batch=2)
    plan = {"rounds": 2, "task": task, "federation": people, "precision": precision}
    runs = [
        run_toy(tmp_path / folder, FedAvg(local=local), device="cuda", **plan)
        for folder in ("a", "b")
    ]
    assert runs[0].fingerprint == runs[1].fingerprint


def until(last: int) -> Callable[..., object]:
    """Return a round that is killed instead of beginning after the round `last`."""
    honest = round_loop.RoundLoop.one_round

    def one_round(self: round_loop.RoundLoop, at: int, server: object) -> object:
        if at == last:
            raise KeyboardInterrupt
        return honest(self, at, server)

    return one_round


def test_what_a_method_reads_stays_in_main_memory(tmp_path, monkeypatch):
    """The code of a run on a GPU, its device and its recordings replaced by the CPU's."""
    copied: list[Samples] = []
    trained: list[Samples] = []
    seen: list[Samples] = []

    def copies(federation: Federation, device: torch.device) -> dict[int, tuple[Samples, Samples]]:
        assert device.type == "cuda"
        moved = device_module.training_copies(federation, torch.device("cpu"))
        copied.extend(there for _, there in moved.values())
        return moved

    class OnCpu(Graphed):
        def __init__(self, task, device, *rest):
            super().__init__(task, "cpu", *rest)

        def fit_all(self, asks, *rest):
            trained.extend(ask.data for ask in asks)
            return super().fit_all(asks, *rest)

    class Reads(FedAvg):
        def on_train(self, c, msg, site):
            seen.append(site.train)
            return (yield from super().on_train(c, msg, site))

    monkeypatch.setattr(solver_selection, "choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(client_executor, "training_copies", copies)
    monkeypatch.setattr(client_executor, "Graphed", OnCpu)
    monkeypatch.setattr(client_executor, "Solver", lambda task, *_: Solver(task))
    found = run_toy(tmp_path / "a", Reads(local=LOCALS["clip"]), solver="sequential", rounds=1)
    assert {id(data) for data in trained} == {id(data) for data in copied}
    assert len(seen) == 3
    assert not {id(data) for data in seen} & {id(data) for data in copied}
    monkeypatch.undo()
    alone = run_toy(tmp_path / "b", FedAvg(local=LOCALS["clip"]), solver="sequential", rounds=1)
    assert apart(found.server.model, alone.server.model) <= 1e-6
