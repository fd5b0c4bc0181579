"""Runs whose noise follows a tree over rounds: who is asked, what is spent, what is drawn again."""

import csv
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tests.engine.test_private_runs import LOCAL, column
from tests.engine.toys import dying_in, run_toy
from vergence.core.aggregation import Aggregate
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.engine import compatibility_check
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.protections.user_level import UserLevelMechanism, forecast
from vergence.errors import ConfigError, StateError
from vergence.methods.fedavg import FedAvg
from vergence.methods.local_only import LocalOnly
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.dp.tree_aggregation import squared

TREE = Privacy(user=UserLevelConfig(clip=0.5, noise=2.0, turns=2))


def test_whoever_had_their_turns_is_not_asked_again_and_a_tree_is_spent(tmp_path):
    """Two turns of four rounds: worst in rounds 1 and 2 or so; see test_tree_aggregation.py."""
    run_toy(tmp_path, FedAvg(local=LOCAL), privacy=TREE, presence=Participation(cohort=2))
    with (tmp_path / "turns.csv").open() as file:
        turns = Counter(row["client"] for row in csv.DictReader(file))
    assert max(turns.values()) == 2
    assert sum(turns.values()) == 6
    spent = column(tmp_path, "epsilon")
    assert spent == pytest.approx(
        [gaussian_epsilon(math.sqrt(squared(n, min(n, 2))) / 2, 1e-5) for n in range(1, 5)]
    )
    seen = forecast(TREE.user, Plan(rounds=4), FedAvg(), 3)
    assert seen.epsilon(1e-5) == pytest.approx(spent[-1])
    asked = forecast(UserLevelConfig(epsilon=4.0, turns=3), Plan(rounds=100), FedAvg(), 100)
    assert asked.epsilon(1e-5) == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_tree_goes_on_with_its_noise_and_its_counts(tmp_path, turns):
    """With one turn each, round 3 is no node that anybody was not in already: it costs nothing."""
    privacy = Privacy(user=replace(TREE.user, turns=turns))
    plan = {"privacy": privacy, "presence": Participation(cohort=2), "rounds": 5}
    whole = run_toy(tmp_path / "whole", FedAvg(local=LOCAL), **plan)
    cut = tmp_path / "cut"
    (cut / "state" / "privacy").mkdir(parents=True)
    secret = cut / "state" / "privacy" / "secret"
    secret.write_bytes((tmp_path / "whole" / "state" / "privacy" / "secret").read_bytes())
    secret.chmod(0o600)
    with dying_in(3):
        run_toy(cut, FedAvg(local=LOCAL), **plan)
    assert run_toy(cut, FedAvg(local=LOCAL), **plan).fingerprint == whole.fingerprint
    books = [
        (p / "state" / "privacy" / "seed0.sums.csv").read_text() for p in (cut, tmp_path / "whole")
    ]
    assert books[0] == books[1]


def test_who_sends_nothing_is_not_counted(tmp_path):
    run_toy(tmp_path, LocalOnly(local=LOCAL), privacy=TREE)
    with (tmp_path / "turns.csv").open() as file:
        assert sum(1 for _ in csv.DictReader(file)) == 4 * 3


def test_a_round_of_a_tree_hides_one_sum_only(tmp_path):
    user_level = UserLevelMechanism(TREE.user, Plan(rounds=4), FedAvg(), 3, tmp_path, 0)
    zero = Aggregate({"model": Params.named(a=torch.zeros(5))}, {"model": 1.0}, 1, {})
    first = user_level.release(zero, "0", 1, 3).totals["model"].flat
    again = UserLevelMechanism(TREE.user, Plan(rounds=4), FedAvg(), 3, tmp_path, 0)
    assert torch.equal(again.release(zero, "0", 1, 3).totals["model"].flat, first)
    other = Aggregate({"model": Params.named(a=torch.ones(5))}, {"model": 1.0}, 1, {})
    with pytest.raises(StateError, match="round 1 was released with another sum"):
        again.release(other, "0", 1, 3)


def test_a_tree_needs_one_sum_a_round():
    two = {"train": Exposure(), "tune": Exposure()}
    method = type("Twice", (FedAvg,), {"exposure": two, "__module__": __name__})()
    with pytest.raises(ConfigError, match="one sum a round, and Twice shows 2"):
        compatibility_check.check(Plan(rounds=4, privacy=TREE), method)
    with pytest.raises(ConfigError, match=r"privacy.aggregation hides it from the server"):
        Plan(rounds=4, privacy=replace(TREE, aggregation=SecureAggregationConfig()))
    with pytest.raises(ConfigError, match="restart is of a tree"):
        UserLevelConfig(noise=1.0, restart=3)
