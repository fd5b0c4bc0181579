"""A run on a GPU: near that of a CPU, and the same bits each time."""

import pytest

from tests.engine.learners import LOCALS, apart, needs_gpu
from tests.engine.toys import run_toy
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.scaffold import Scaffold

pytestmark = needs_gpu
METHODS = {
    "fedavg": FedAvg(local=LOCALS["momentum"]),
    "fedcpf": FedCPF(local=LOCALS["clip"], rate=0.2),
    "scaffold": Scaffold(local=LOCALS["clip"]),
}


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
