"""With one group a clustered method is FedAvg, bit for bit (methods design note, invariant 7)."""

from dataclasses import replace

import pytest

from vergence.core.fitting import Local
from vergence.data.toy import Toy as People
from vergence.engines.conduct import Plan, conduct
from vergence.engines.presence import Presence
from vergence.engines.store import Folder
from vergence.methods.cfedvs import CFedVS
from vergence.methods.fedavg import FedAvg
from vergence.methods.ifca import IFCA
from vergence.models.linear import Linear
from vergence.tasks.toy import Toy

LOCAL = Local(epochs=2, batch=8, lr=0.05)
PLAN = Plan(rounds=4, evaluate_every=0, workers=1, presence=Presence(cohort=4, lost=0.2))


def server(method, place):
    folder = Folder(place, {"config": "a", "code": "b", "data": "c"})
    folder.open()
    people = People(people=5, inputs=20).load()
    return conduct(method, Toy(Linear(inputs=20)), people, PLAN, folder).server


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("method", [
    *(kind(local=LOCAL, clusters=1, share_body=shared)
      for kind in (IFCA, CFedVS) for shared in (False, True)),
], ids=lambda m: f"{type(m).__name__} {'shared' if m.share_body else 'own'}")  # fmt: skip
def test_one_group_is_fedavg_bit_for_bit(method, weights, tmp_path):
    one = server(replace(method, weights=weights), tmp_path / "one").models
    plain = server(FedAvg(local=LOCAL, weights=weights), tmp_path / "plain").model
    assert plain.flat.abs().min() > 0
    assert one.flat.equal(plain.flat)
