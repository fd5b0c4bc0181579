"""With one group a clustered method is FedAvg, bit for bit (methods design note, invariant 7)."""

import pytest

from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.clustered.cfedvs import CFedVS
from vergence.methods.clustered.fedgroup import FedGroup
from vergence.methods.clustered.ifca import IFCA
from vergence.methods.fedavg import FedAvg
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05)
PLAN = Plan(rounds=4, evaluate_every=0, workers=1, presence=Participation(cohort=4, lost=0.2))


def server(method, place):
    folder = RunDirectory(place, {"config": "a", "code": "b", "data": "c"})
    folder.open()
    people = People(people=5, inputs=20).load()
    return run_rounds(
        method, ToyTask(Linear(inputs=20)), federation=people, plan=PLAN, folder=folder
    ).server


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return {
        w: server(FedAvg(local=LOCAL, weights=w), tmp_path_factory.mktemp(w)).model.flat
        for w in ("samples", "equal")
    }


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (IFCA, {}),
        (IFCA, {"share_body": True}),
        (CFedVS, {}),
        (CFedVS, {"share_body": True}),
        (FedGroup, {}),
    ],
)
def test_one_group_is_fedavg_bit_for_bit(kind, options, weights, plain, tmp_path):
    method = kind(local=LOCAL, clusters=1, weights=weights, **options)
    assert plain[weights].abs().min() > 0
    assert server(method, tmp_path).models.flat.equal(plain[weights])


def test_weights_matter_in_this_comparison(plain):
    assert not plain["samples"].equal(plain["equal"])
