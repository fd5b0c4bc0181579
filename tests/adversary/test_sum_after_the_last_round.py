"""Methods that ask something at their end have a round more; it is not for another sum."""

from types import SimpleNamespace

import pytest

from tests.adversary.lies import circle, method, opened, question, turn
from vergence.core.local_training import LocalTraining
from vergence.deployment.client_ledger import check_plan
from vergence.deployment.client_node import check_forecast
from vergence.deployment.protocol import ClientRequest
from vergence.engine.protections.user_level import forecast
from vergence.errors import StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.release_log import ReleaseLog

USER = UserLevelConfig(clip=0.5, noise=3.0)
LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)
LAST = ("fedavg_ft", "fedrep", "fedbabu", "interpolation")


@pytest.mark.parametrize("name", LAST)
def test_nothing_is_shared_after_the_last_round(name, tmp_path):
    """Noise without a budget: only the plan says how many sums there may be."""
    made = circle(method(name, LOCAL), tmp_path, 5, user=USER, rounds=1)
    for client in made.names:
        turn(made, client, ClientRequest("turn", client, question(made, 0), "0.1"))
    opened(made, question(made, 0), dict.fromkeys(made.names, "0.1"))
    for client in made.names:
        beyond = ClientRequest("turn", client, question(made, 1), "1.1")
        with pytest.raises(StateError, match="plan: 'train' is asked for after the last round"):
            turn(made, client, beyond)
        # A method whose finish shares trees gets as far as the forecast of the noise.
        finish = (*made.method.finish_verbs, "train")
        sharing = SimpleNamespace(exposure=made.method.exposure, finish_verbs=finish)
        check_plan(beyond, made.plan, sharing)
        with pytest.raises(StateError, match="plan: 'train' of round 1 would share more"):
            check_forecast(beyond, made.plan, sharing)
        book = ReleaseLog(made.place(client) / "privacy" / "seed0.sums.csv")
        counted = forecast(USER, made.plan, made.method, 5)
        assert book.ledger.epsilon(1e-5) == pytest.approx(counted.epsilon(1e-5))


@pytest.mark.parametrize("name", LAST)
def test_what_a_method_asks_at_its_end_is_answered(name, tmp_path):
    made = circle(method(name, LOCAL), tmp_path, 4, user=USER)
    made.run_rounds(rounds=2)
    last = {e.message.verb for _, e, _ in made.asked if e.kind == "turn" and e.message.round == 2}
    assert last
    assert not any(made.method.exposure[verb].trees for verb in last)
