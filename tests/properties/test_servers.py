"""Servers that do more than average (methods design note, section 7: invariants 2, 3 and 5)."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripts import Numbers, params
from vergence.core.aggregation import add_up
from vergence.core.conversation import drive
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.messages import reply, seal
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.fedadagrad import FedAdagrad
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavgm import FedAvgM
from vergence.methods.fedprox import FedProx
from vergence.methods.fedyogi import FedYogi
from vergence.methods.qfedavg import QFedAvg
from vergence.methods.scaffold import Scaffold
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver

TASK = ToyTask(Linear(inputs=20))
PEOPLE = People(people=3, inputs=20).load()
LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05)
WHOLE = LocalTraining(optimizer="sgd", epochs=3, batch=1000, lr=0.05, clip=0.0)
BARE = replace(WHOLE, momentum=0.0, weight_decay=0.0)
AHEAD = replace(WHOLE, nesterov=True)
PLAIN, SECURE = Privacy(), Privacy(aggregation=SecureAggregationConfig())
SERVERS = [
    FedAvg(),
    FedAvg(swa_start=2),
    FedAdam(),
    FedAdam(variant="seed_exact"),
    FedAdam(variant="corrected"),
    FedYogi(),
    FedAdagrad(beta1=0.5),
    FedAdam(adapt="auto"),
    FedAvgM(),
    QFedAvg(),
    Scaffold(),
]


def server_after(method, rounds):
    """Return the server after rounds whose replies are (weight, update, control) each."""
    server = drive(method.setup(method.server(Numbers((1.0, -2.0))), range(9)), None)
    two = "control" in method.offer(server, "")
    for answers in rounds:
        sealed = [
            seal(reply(weight=w, model=params(*d), **({"control": params(*e)} if two else {})), 0)
            for w, d, e in answers
        ]
        heard = add_up(sealed, method.offer(server, ""))
        cohort = [str(i) for i in range(len(answers))]
        server = drive(method.round(server, cohort), lambda _, heard=heard: heard)
    return server


def vectors(state):
    return [v.flat for v in vars(state).values() if hasattr(v, "flat")]


NUMBER = st.floats(-1.0, 1.0, allow_subnormal=False).filter(lambda x: abs(x) > 1e-3)
PAIR = st.tuples(NUMBER, NUMBER)
ROUNDS = st.lists(
    st.lists(st.tuples(st.floats(0.5, 50.0), PAIR, PAIR), min_size=1, max_size=6),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("method", SERVERS, ids=lambda m: type(m).__name__)
@settings(max_examples=15)
@given(rounds=ROUNDS, shuffle=st.randoms(use_true_random=False))
def test_3_permuting_clients_changes_nothing(method, rounds, shuffle):
    plain = server_after(method, rounds)
    mixed = server_after(method, [shuffle.sample(answers, len(answers)) for answers in rounds])
    for one, other in zip(vectors(plain), vectors(mixed), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a method and gives the server's last model."""
    count = iter(range(100))

    def go(method, people: Federation = PEOPLE, rounds=5, privacy=PLAIN, **presence):
        folder = RunDirectory(tmp_path / str(next(count)), {"config": "a"})
        folder.open()
        who = {"presence": Participation(**presence), "privacy": privacy}
        plan = Plan(rounds=rounds, evaluate_every=0, workers=1, **who)
        return run_rounds(method, TASK, federation=people, plan=plan, folder=folder).server.model

    return go


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(local=WHOLE),
        FedAvg(local=WHOLE, weights="equal"),
        FedProx(local=WHOLE, mu=0.5),
        Scaffold(local=BARE),
        Scaffold(local=WHOLE),
        Scaffold(local=AHEAD),
        Scaffold(local=WHOLE, option="I"),
        QFedAvg(local=WHOLE, q=0.0),
    ],
)
def test_2_identical_clients_are_single_client_sgd(run, method):
    """Three copies of one person, whole batches: the solver alone, five fits in a row."""
    one = PEOPLE.people["p00"]
    copies = run(method, replace(PEOPLE, people=dict.fromkeys("abc", one)))
    alone, solver = TASK.init(), Solver(TASK)
    for _ in range(5):
        anchor = (alone, method.mu) if isinstance(method, FedProx) else None
        alone = solver.fit(
            Fit(alone, one.train, method.local, anchor=anchor), RandomStream()
        ).params
    assert torch.allclose(copies.flat, alone.flat, atol=1e-5)
    assert (alone - TASK.init()).norm() > 0.1


@pytest.mark.parametrize("local", [LOCAL, WHOLE, replace(LOCAL, nesterov=True)])
def test_5_scaffolds_round_0_is_uniform_fedavg(run, local):
    """With part of the people and lost replies, too; from round 1 on controls tell them apart."""
    some = {"cohort": 0.7, "lost": 0.2}
    plain, scaffold = FedAvg(local=local, weights="equal"), Scaffold(local=local)
    assert torch.equal(run(scaffold, rounds=1, **some).flat, run(plain, rounds=1, **some).flat)
    assert not torch.equal(run(scaffold, rounds=2).flat, run(plain, rounds=2).flat)


def test_the_final_model_is_the_mean_of_the_models_since_swa_start(run):
    plain, mean = FedAvg(local=LOCAL), FedAvg(local=LOCAL, swa_start=3)
    third, fourth, fifth = (run(plain, rounds=n).flat for n in (3, 4, 5))
    expected = (third + fourth + fifth) / 3
    assert torch.allclose(run(mean).flat, expected, atol=1e-6)
    assert not torch.allclose(fifth, expected, atol=1e-3)
    secure = run(mean, privacy=SECURE)
    assert torch.allclose(secure.flat, expected, atol=1e-4)
    # A run that ends before that round has the last model.
    assert torch.equal(run(replace(mean, swa_start=6)).flat, fifth)
