"""User-level privacy under secure sums: clients add the noise, and nobody sees a sum without it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conformance.test_methods import build
from tests.engine.circle import Circle
from tests.engine.toys import mostly_slow, run_toy, table
from vergence.core.aggregation import Sum
from vergence.core.local_training import LocalTraining
from vergence.core.messages import reply, seal
from vergence.core.params import Params
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.protections.user_level import forecast
from vergence.engine.secure_sums import SecureSum, sums_for, unpack_words
from vergence.errors import ConfigError
from vergence.experiment.privacy.spent import forecast_lines, spent_block
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.local_only import LocalOnly
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import ReleaseLog
from vergence.tasks.toy import ToyTask

USER = UserLevelConfig(clip=0.5, noise=2.0)
PADS = Privacy(aggregation=SecureAggregationConfig(), user=USER)
SHARES = Privacy(aggregation=SecureAggregationConfig("additive"), user=USER)
KINDS = pytest.mark.parametrize("privacy", [PADS, SHARES], ids=["pads", "shares"])
LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)
STILL = FedAvg(local=replace(LOCAL, lr=1e-12))
"""Nobody learns: what moves the model is noise alone."""


@pytest.fixture
def same_secret(monkeypatch):
    """Secrets from the system would make two runs differ, as they should."""
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", lambda: bytes(range(32)))


@KINDS
@pytest.mark.parametrize("name", mostly_slow(["fedavg", "fedcpf", "fedadam", "scaffold"], "fedcpf"))
@pytest.mark.usefixtures("same_secret")
def test_the_protocols_give_the_simulators_bits(name, privacy, tmp_path):
    """Masks do not travel under privacy.user, so that FedCPF runs under pads too."""
    ways = {"one": {}, "two": {"workers": 2}, "bytes": {"engine": "bytes"}}
    runs = {
        how: run_toy(tmp_path / how, build(name), people=4, rounds=2, privacy=privacy, **plan)
        for how, plan in ways.items()
    }
    assert len({run.fingerprint for run in runs.values()}) == 1
    rows = table(tmp_path / "one", "turns.csv")
    assert {row["tree"] for row in rows if row["bytes_up"] not in ("", "0")} == {"words"}
    assert {row["weight"] for row in rows} <= {"", "0"}
    assert "loss" not in {row["metric"] for row in table(tmp_path / "one", "rounds.csv")}


@pytest.mark.parametrize("name", ["fedadam", "fedcpf"])
@pytest.mark.usefixtures("same_secret")
def test_clients_elsewhere_add_their_noise_at_home(name, tmp_path):
    circle = Circle(build(name), tmp_path, people=4, user=USER)
    got = circle.run_rounds(rounds=2).fingerprint
    here = run_toy(tmp_path / "here", build(name), people=4, rounds=2, privacy=PADS)
    assert got == here.fingerprint
    assert (circle.place("p00") / "privacy" / "secret").exists()


@pytest.mark.parametrize("people", [3, 12])
def test_all_of_the_noise_is_there_in_the_smallest_sum(people, tmp_path):
    """Of 3 people noise of 2 x 0.5; each of 12 adds as much, so that it is twice as wide."""
    privacy = replace(SHARES, aggregation=SecureAggregationConfig("additive", min_contributors=3))
    outcome = run_toy(
        tmp_path, STILL, people=people, rounds=1, inputs=20_000, privacy=privacy, engine="bytes"
    )
    wanted = 2.0 * 0.5 * math.sqrt(people / 3) / people
    assert float(outcome.server.model.flat.std()) == pytest.approx(wanted, rel=0.025)


def test_a_clients_row_holds_noise_that_depends_on_its_secret_round_and_reply():
    form_of = SecureSum(SecureAggregationConfig(), 4, USER.level(2.0, 3))
    like = Params.named(a=torch.zeros(4000))
    form = form_of.form(FedAvg(), "train", {"model": like})
    own, other = NoiseKey.new(), NoiseKey.new()

    def values(value, round, secret):
        update = like.like(torch.full((4000,), value))
        sealed = seal(USER.level().bounded(reply(model=update)), round)
        words = unpack_words(form_of.encode(form, sealed, lambda: secret).trees["words"].total)
        part = form.trees["model"].values(words[form.slices["model"]])
        return part - float(sealed.trees["model"].total.flat[0])

    first = values(0.001, 0, own)
    assert first.std() == pytest.approx(2.0 * 0.5 / math.sqrt(3), rel=0.05)
    assert np.array_equal(first, values(0.001, 0, own))
    for others in (values(0.001, 1, own), values(0.001, 0, other), values(0.002, 0, own)):
        assert abs(np.corrcoef(first, others)[0, 1]) < 0.06


def test_the_sum_is_that_of_the_clipped_updates_and_their_noise_exactly():
    """Noise is added as whole numbers of the grid: no rounding lies between it and the sum."""
    level = UserLevelConfig(clip=1.0, noise=50.0).level(50.0, 3)
    sums = SecureSum(SecureAggregationConfig(), 3, level)
    like = Params.named(a=torch.zeros(200))
    form, whole, wanted = sums.form(FedAvg(), "train", {"model": like}), Sum(), np.zeros(200)
    for i in range(3):
        secret, update = NoiseKey.new(), like.like(torch.randn(200))
        sealed = seal(level.bounded(reply(model=update)), 0)
        whole.add(given := sums.encode(form, sealed, lambda own=secret: own))
        row = unpack_words(given.trees["words"].total)
        value = form.trees["model"].values(row[form.slices["model"]]) / level.step
        assert np.array_equal(value, value.round()), i
        wanted += value
    learned = sums.total(form, whole)
    assert np.array_equal(
        learned.totals["model"].flat.numpy(), (wanted * level.step).astype(np.float32)
    )
    assert learned.weights == {"model": 3.0}


def test_nothing_is_claimed_for_a_draw_that_the_server_makes(tmp_path):
    plan = {"presence": Participation(cohort=0.5), "privacy": SHARES, "people": 8}
    run_toy(tmp_path, FedAvg(local=LOCAL), **plan)
    found = [
        float(row["value"]) for row in table(tmp_path, "rounds.csv") if row["metric"] == "epsilon"
    ]
    wanted = [gaussian_epsilon(math.sqrt(done) / 2.0, 1e-5) for done in (1, 2, 3, 4)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("engine", ["simulator", "bytes"])
def test_a_sum_of_too_few_is_neither_opened_nor_charged(engine, tmp_path, monkeypatch):
    lost = ("p00", "p02")
    monkeypatch.setattr(
        "vergence.engine.participation.Participation.loses",
        lambda _, client, round, __: round == 1 and client in lost,
    )
    outcome = run_toy(tmp_path, STILL, people=4, rounds=2, privacy=PADS, engine=engine)
    book = ReleaseLog(tmp_path / "state" / "privacy" / "seed0.sums.csv")
    assert [entry.draw for entry in book.entries] == ["0"]
    assert float(outcome.server.model.flat.abs().max()) > 0


def test_a_method_that_sends_nothing_needs_no_noise(tmp_path):
    run_toy(tmp_path, LocalOnly(local=LOCAL), privacy=PADS, rounds=1)
    assert {r["value"] for r in table(tmp_path, "rounds.csv") if r["metric"] == "epsilon"} == {
        "0.0"
    }


@pytest.mark.usefixtures("same_secret")
def test_a_run_that_goes_on_draws_the_same_noise(tmp_path):
    whole = run_toy(tmp_path / "whole", FedCPF(local=LOCAL), people=4, privacy=PADS)
    run_toy(tmp_path / "cut", FedCPF(local=LOCAL), people=4, privacy=PADS, rounds=2)
    cut = run_toy(tmp_path / "cut", FedCPF(local=LOCAL), people=4, privacy=PADS)
    assert cut.fingerprint == whole.fingerprint


@pytest.mark.parametrize(
    ("user", "why"),
    [
        (
            UserLevelConfig(noise=0.1, bits=4),
            r"noise in 1001 shares on a grid of 4 bits is not .* larger",
        ),
        (
            UserLevelConfig(noise=1e8, bits=24),
            r"leave too few of 64 bits for a grid of 24; take a smaller",
        ),
    ],
)
def test_grids_on_which_shares_do_not_add_up_are_refused(user, why):
    plan = Plan(rounds=1, privacy=Privacy(aggregation=SecureAggregationConfig(), user=user))
    with pytest.raises(ConfigError, match=why):
        sums_for(plan, FedAvg(), 2000)


def test_explain_and_results_say_from_whom_people_are_hidden(tmp_path):
    plan, people = Plan(rounds=1, privacy=PADS), People(people=12).load()
    (line, useful, _) = forecast_lines(plan, FedAvg(), ToyTask(Linear()), people)
    assert "all 12 people together may say" in useful
    assert "the server while at least 7 people" in line  # more than half of 12
    assert "noise of at least 2 x 0.5" in line
    assert f"{2 * 0.5 * math.sqrt(12 / 7) / 12:.3g} in every entry" in line
    assert forecast(USER, plan, FedAvg(), 12).level.shares == 7
    run_toy(tmp_path, STILL, rounds=1, privacy=PADS)
    run = ProtectedRun(STILL, ToyTask(Linear()), people, 1, tmp_path / "state")
    found = spent_block(plan, run)
    assert "the server while at least 7" in found["person"]["against"]
