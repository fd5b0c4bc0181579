"""What theory says of whole runs (methods design note, section 7), on toy people."""

from dataclasses import replace

import pytest
import torch

from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedprox import FedProx
from vergence.methods.fedselect import FedSelect
from vergence.methods.local_only import LocalOnly
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver

TASK = ToyTask(Linear(inputs=20))
PEOPLE = People(people=3, inputs=20).load()
LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05)
WHOLE = LocalTraining(optimizer="sgd", epochs=3, batch=1000, lr=0.05, clip=0.0)


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a method and gives its outcome."""
    count = iter(range(100))

    def go(method, people: Federation = PEOPLE, rounds=5):
        folder = RunDirectory(tmp_path / str(next(count)), {"config": "a"})
        folder.open()
        plan = Plan(rounds=rounds, evaluate_every=0, workers=1)
        return run_rounds(method, TASK, federation=people, plan=plan, folder=folder)

    return go


def bits(params):
    return params.flat.numpy().tobytes()


@pytest.mark.parametrize(
    "personal", [FedCPF(local=LOCAL, limit=0.0), FedSelect(local=LOCAL, limit=0.0)]
)
def test_1_nothing_personal_is_uniform_fedavg(run, personal):
    plain = run(FedAvg(local=LOCAL, weights="equal"))
    assert bits(run(personal).server.model) == bits(plain.server.model)


def test_1_everything_personal_is_local_training_from_the_first_average(run):
    """rate = limit = 1: round 0 averages everybody; from then on each trains alone."""
    outcome = run(FedCPF(local=LOCAL, rate=1.0, limit=1.0), rounds=4)
    average = run(FedAvg(local=LOCAL, weights="equal"), rounds=1).server.model
    assert bits(outcome.server.model) == bits(average)
    solver = Solver(TASK)
    for client, splits in PEOPLE.people.items():
        params = average
        for at in range(1, 4):
            stream = RandomStream("run", 0, client, at, "train", "batches", 0)
            params = solver.fit(Fit(params, splits.train, LOCAL), stream).params
        assert bits(outcome.clients[client].params) == bits(params)


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(local=WHOLE),
        FedAvg(local=WHOLE, weights="equal"),
        FedProx(local=WHOLE, mu=0.5),
        FedCPF(local=WHOLE, rate=0.1),
        FedSelect(local=WHOLE, rate=0.1),
    ],
)
def test_2_identical_clients_are_one_client(run, method):
    """Three copies of one person, whole-batch steps: the run of one person, to rounding."""
    one = next(iter(PEOPLE.people.values()))
    copies = run(method, replace(PEOPLE, people=dict.fromkeys("abc", one)))
    single = run(method, replace(PEOPLE, people={"a": one}))
    assert torch.allclose(copies.server.model.flat, single.server.model.flat, atol=1e-5)


def test_4_masks_grow_to_the_cap_and_never_shrink(run):
    before = dict.fromkeys(PEOPLE.clients)
    for rounds in range(1, 8):
        outcome = run(FedCPF(local=LOCAL, rate=0.2, limit=0.5), rounds=rounds)
        for client, state in outcome.clients.items():
            assert state.mask.count <= 10  # floor(0.5 * 21)
            assert before[client] is None or (before[client] & ~state.mask).count == 0
            before[client] = state.mask
    assert {m.count for m in before.values()} == {10}


def test_5_fedprox_without_a_leash_is_fedavg(run):
    plain, free = run(FedAvg(local=LOCAL)), run(FedProx(local=LOCAL, mu=0.0))
    assert bits(plain.server.model) == bits(free.server.model)
    tight = run(FedProx(local=LOCAL, mu=5.0))
    assert bits(tight.server.model) != bits(plain.server.model)


def test_windows_of_one_round_are_fedselect_restated(run):
    """The printed k <- 0 on every call collapses FedCPF to single-round selection."""
    collapsed = run(FedCPF(local=LOCAL, rate=0.1, limit=0.5, restart="always"))
    selected = run(FedSelect(local=LOCAL, rule="restated", rate=0.1, limit=0.5))
    assert bits(collapsed.server.model) == bits(selected.server.model)
    for client, state in collapsed.clients.items():
        assert state.mask == selected.clients[client].mask


@pytest.mark.parametrize("select", ["random", "inverted"])
def test_controls_share_the_schedule_and_differ_in_the_choice(run, select):
    for rounds in (1, 2, 4):
        real = run(FedCPF(local=LOCAL, rate=0.2), rounds=rounds).clients
        control = run(FedCPF(local=LOCAL, rate=0.2, select=select), rounds=rounds).clients
        assert [s.mask.count for s in real.values()] == [s.mask.count for s in control.values()]
        assert any(real[c].mask != control[c].mask for c in real)


def error(outcome, people, own):
    solver = Solver(TASK)
    found = []
    for client, splits in people.people.items():
        params = outcome.clients[client].params if own else outcome.server.model
        outputs = solver.outputs(params, splits.test)
        found.append(TASK.metrics(outputs, splits.test)["error"])
    return sum(found) / len(found)


@pytest.mark.slow
def test_14_alike_people_gain_by_sharing(run):
    """Strength 0, 12 samples for 20 inputs: alone nobody can fit the line, together they can."""
    people = People(people=6, samples=20, inputs=20, strength=0.0).load()
    together = error(run(FedAvg(local=LOCAL), people, rounds=15), people, own=False)
    alone = error(run(LocalOnly(local=LOCAL), people, rounds=15), people, own=True)
    assert together < alone
