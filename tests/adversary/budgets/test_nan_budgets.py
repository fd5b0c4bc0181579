"""NaN is no number of epsilon that a budget allows: what cannot be compared is refused."""

import math
from types import SimpleNamespace

import pytest

from tests.engine.split.test_split import LOCAL as SPLIT
from tests.engine.split.test_split import PEOPLE, SMALL
from tests.engine.split.test_split_defense import guard
from tests.engine.test_private_runs import LOCAL
from tests.engine.toys import run_toy, table
from vergence.engine.plan import Plan
from vergence.engine.protections.split_defense import outlook
from vergence.engine.protections.user_level import PrivacyForecast, forecast
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.splitfed import SplitFed
from vergence.privacy.config import DpSgd, Privacy, UserLevelConfig
from vergence.privacy.dp.budget import Budget
from vergence.privacy.dp.dp_sgd_solver import DpSgdBudgetSpent
from vergence.privacy.release_log import ReleaseLog
from vergence.privacy.split.defense import BottleneckCut

NAN = math.nan


def test_a_client_does_not_train_where_its_epsilon_is_nan(tmp_path, monkeypatch):
    spent = SimpleNamespace(epsilon=lambda _: NAN)
    monkeypatch.setattr(ReleaseLog, "with_", lambda *_: spent)
    privacy = Privacy(solver=DpSgd(noise=2.0, epsilon=3.9))
    run_toy(tmp_path, FedAvg(local=LOCAL), rounds=1, privacy=privacy, workers=1)
    said = {row["status"] for row in table(tmp_path, "turns.csv")}
    assert all("budget: training again would make epsilon nan" in each for each in said), said


def test_a_run_is_not_begun_where_a_pictures_epsilon_is_nan(monkeypatch):
    monkeypatch.setattr(BottleneckCut, "epsilon_of", lambda *_: NAN)
    plan = Plan(rounds=1, privacy=Privacy(cut=BottleneckCut(epsilon=8.0)))
    with pytest.raises(ConfigError, match="spends epsilon nan, and 8 is allowed"):
        outlook(plan, SplitFed(local=SPLIT, cut="conv3"), SMALL, PEOPLE)


@pytest.mark.parametrize("cost", [NAN, 1.0], ids=["its cost is nan", "epsilon is nan"])
def test_a_picture_is_not_sent_where_what_it_spends_is_nan(cost, tmp_path, monkeypatch):
    trainer = guard(BottleneckCut(epsilon=8.0), SplitFed(local=SPLIT, cut="conv3"), tmp_path)
    monkeypatch.setattr(BottleneckCut, "cost", lambda *_: cost)
    monkeypatch.setattr(BottleneckCut, "epsilon_of", lambda *_: NAN)
    for number in range(trainer.outlook.releases if cost == 1.0 else 0):
        trainer._spend("p00", [0], f"layers {number}", 1.0)
    with pytest.raises(DpSgdBudgetSpent, match="would make epsilon nan"):
        trainer._spend("p00", [0], "once more", 1.0)


def test_a_forecast_of_people_is_refused_where_it_is_nan(monkeypatch):
    monkeypatch.setattr(PrivacyForecast, "epsilon", lambda *_: NAN)
    monkeypatch.setattr(Budget, "refuse", lambda *_: None)  # which refuses it first
    plan = Plan(rounds=3, privacy=Privacy(user=UserLevelConfig(clip=0.5, epsilon=8.0)))
    with pytest.raises(ConfigError, match="spend epsilon nan, and 8 is allowed"):
        forecast(plan.privacy.user, plan, FedAvg(local=LOCAL), 5)
