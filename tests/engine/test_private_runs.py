"""User-level privacy and DP-SGD as settings of a run: what leaves, is spent, and is refused."""

import csv
import math
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.toys import dying_in, run_toy
from vergence.core.client import ClientContext
from vergence.core.local_training import LocalTraining
from vergence.core.messages import reply, seal
from vergence.core.objectives import FeatureAlignment
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.compatibility_check import check
from vergence.engine.exchange import ClientExchange
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import check_privacy
from vergence.engine.protections.user_level import UserLevelMechanism, forecast
from vergence.errors import ConfigError, StateError
from vergence.experiment.privacy.schema import build_privacy
from vergence.methods.ditto import Ditto
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedala import FedALA
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedgen import FedGen
from vergence.methods.fedpac import FedPAC
from vergence.methods.local_only import LocalOnly
from vergence.methods.qfedavg import QFedAvg
from vergence.methods.scaffold import Scaffold
from vergence.methods.split.splitfed import SplitFed
from vergence.models.linear import Linear
from vergence.privacy.config import DpSgd, Privacy, UserLevelConfig
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass, training_schedule
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.release_log import Release, ReleaseLog, account, secret_in
from vergence.privacy.robust.median import Median
from vergence.tasks.toy import ToyTask

LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)
HIDDEN = Privacy(user=UserLevelConfig(clip=0.5, noise=2.0))
TASK = ToyTask(Linear())


@pytest.fixture
def same_secret(monkeypatch):
    """Secrets from the system would make two runs differ, as they should."""
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", lambda: bytes(range(32)))


def column(path, metric):
    with (path / "rounds.csv").open() as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["metric"] == metric]


def test_a_reply_leaves_bounded_counts_once_and_says_nothing_beside():
    """The norm is over all trees: (3, 4) and (12) of norm 13 become a 26th, cut to the grid."""
    update = {
        "model": Params.named(a=torch.tensor([3.0, 4.0])),
        "control": Params.named(b=torch.tensor([12.0])),
    }
    left = HIDDEN.leaving(reply(weight=7.0, metrics={"loss": 2.0}, **update))
    flat = torch.cat([tree.flat for tree in left.trees.values()])
    torch.testing.assert_close(flat, torch.tensor([3.0, 4, 12]) / 26, atol=2e-5, rtol=0)
    assert float(flat.double().norm()) <= 0.5
    assert (left.weight, left.metrics) == (1.0, {})
    plain = reply(weight=7.0, metrics={"loss": 2.0}, **update)
    assert Privacy().leaving(plain) is plain


def test_a_reply_from_elsewhere_that_is_not_bounded_does_not_count():
    update = {"model": Params.named(a=torch.tensor([3.0, 4.0]))}
    assert HIDDEN.user.fault(seal(HIDDEN.leaving(reply(**update)), 0)) is None
    assert str(HIDDEN.user.fault(seal(reply(**update), 0))).startswith("bound: ")
    small = {"model": Params.named(a=torch.tensor([0.1, 0.0]))}  # 0.1 is off the grid
    assert str(HIDDEN.user.fault(seal(reply(**small), 0))).startswith("bound: ")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"usr": {}}, r"privacy: unknown key 'usr'.*user"),
        ({"user": {"clip": 1.0}}, r"privacy.user needs epsilon, a budget for the whole run, or"),
        ({"user": {"epsilon": 0}}, r"epsilon"),
        ({"solver": {"name": "sgd", "noise": 1}}, r"name"),
        ({"solver": {"noise": 1.0, "clip": -1.0}}, r"clip"),
    ],
)
def test_the_table_is_checked(table, said):
    with pytest.raises(ConfigError, match=said):
        build_privacy(table)
    assert build_privacy({}) == Privacy() == Plan().privacy


@pytest.mark.usefixtures("same_secret")
def test_every_round_is_charged_and_the_noise_is_that_of_the_budget(tmp_path):
    outcome = run_toy(tmp_path, FedAdam(local=LOCAL), privacy=HIDDEN)
    spent = column(tmp_path, "epsilon")
    want = [gaussian_epsilon(math.sqrt(done) / 2.0, 1e-5) for done in (1, 2, 3, 4)]
    np.testing.assert_allclose(spent, want, rtol=1e-9)
    assert outcome.fingerprint != run_toy(tmp_path / "b", FedAdam(local=LOCAL)).fingerprint
    assert not column(tmp_path, "loss")
    made = forecast(UserLevelConfig(epsilon=2.0), Plan(rounds=10), FedAdam(), 14)
    assert made.noise == pytest.approx(6.30, rel=0.01)  # privacy.md 4.3


def test_the_sum_has_noise_of_its_size_on_every_entry(tmp_path):
    """Nobody learns, so that what moves the model is noise over the number of people alone."""
    privacy = Privacy(user=UserLevelConfig(clip=1.0, noise=3.0))
    still = FedAvg(local=replace(LOCAL, lr=1e-12))
    found = [
        run_toy(tmp_path / str(i), still, rounds=1, inputs=20_000, privacy=privacy)
        for i in range(3)
    ]
    found = [outcome.server.model.flat for outcome in found]
    for flat in found:
        assert float(flat.std()) == pytest.approx(3.0 / 3, rel=0.025)  # five deviations of 20,000
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.04  # another secret, another noise


def test_a_run_that_goes_on_draws_the_same_noise_and_spends_nothing_twice(tmp_path):
    """Killed after the noise of round 2 was drawn and before its checkpoint."""
    method = FedCPF(local=LOCAL)
    whole = run_toy(tmp_path / "whole", method, privacy=HIDDEN)
    cut = tmp_path / "cut"
    (cut / "state" / "privacy").mkdir(parents=True)
    secret = (tmp_path / "whole" / "state" / "privacy" / "secret").read_bytes()
    (cut / "state" / "privacy" / "secret").write_bytes(secret)
    (cut / "state" / "privacy" / "secret").chmod(0o600)
    with dying_in(2):
        run_toy(cut, method, privacy=HIDDEN)
    assert run_toy(cut, method, privacy=HIDDEN).fingerprint == whole.fingerprint
    books = [
        (p / "state" / "privacy" / "seed0.sums.csv").read_text() for p in (cut, tmp_path / "whole")
    ]
    assert books[0] == books[1]
    assert len(books[0].splitlines()) == 4


@pytest.mark.usefixtures("same_secret")
def test_workers_and_bytes_give_the_same_bits(tmp_path):
    ways = {"one": {}, "two": {"workers": 2}, "bytes": {"engine": "bytes"}}
    runs = [
        run_toy(tmp_path / name, Scaffold(local=LOCAL), privacy=HIDDEN, **how).fingerprint
        for name, how in ways.items()
    ]
    assert len(set(runs)) == 1


@pytest.mark.slow
def test_people_are_drawn_by_chance_and_an_empty_round_gets_noise(tmp_path, monkeypatch):
    """At chance 0.1, of 6 people half of all rounds are empty: the model moves all the same."""
    monkeypatch.setattr(UserLevelMechanism, "epsilon", 0.0)  # the accountant takes seconds
    privacy = Privacy(user=UserLevelConfig(clip=1.0, noise=1.0))
    plan = {"people": 6, "presence": Participation(cohort=0.1), "privacy": privacy, "rounds": 6}
    outcome = run_toy(tmp_path, FedAvg(local=LOCAL), **plan)
    replies = column(tmp_path, "replies")
    assert min(replies) == 0
    assert len(ReleaseLog(tmp_path / "state" / "privacy" / "seed0.sums.csv").entries) == 6
    assert float(outcome.server.model.flat.abs().min()) > 0
    seen = forecast(privacy.user, Plan(presence=Participation(cohort=0.1)), FedAvg(), 1000)
    assert (seen.rate, seen.expected) == (0.1, 100)
    away = Plan(presence=Participation(cohort=0.1, rhythm=True))
    assert forecast(privacy.user, away, FedAvg(), 1000).rate == 1  # nothing is claimed


def test_the_run_stops_before_it_spends_more_than_it_may(tmp_path, monkeypatch):
    """Told before it begins; and at the sum itself, where a method asks for more than it says."""
    poor = Privacy(user=UserLevelConfig(noise=2.0, epsilon=3.0))
    with pytest.raises(
        ConfigError, match=r"4 rounds with noise 2 would spend epsilon 4.3\d, and 3 is"
    ):
        run_toy(tmp_path / "a", FedAvg(local=LOCAL), privacy=poor)
    plain = ClientExchange.exchange

    def twice(self, request, *rest):
        plain(self, request, *rest)
        return plain(self, request, *rest)

    monkeypatch.setattr(ClientExchange, "exchange", twice)
    enough = Privacy(user=UserLevelConfig(epsilon=3.0))
    with pytest.raises(StateError, match=r"budget is spent: a sum of round 2 .* 3 is allowed"):
        run_toy(tmp_path / "b", FedAvg(local=LOCAL), privacy=enough)
    assert len(ReleaseLog(tmp_path / "b" / "state" / "privacy" / "seed0.sums.csv").entries) == 4


def checked(method, people=3, **plan):
    made = Plan(**plan)
    check(made, method)
    check_privacy(method, TASK, People(people=people).load(), made)


@pytest.mark.parametrize(
    ("method", "plan", "said"),
    [
        (SplitFed(), {}, "'train' shows every single reply"),
        (FedPAC(), {}, "'share' shows every single reply"),
        (FedAvg(), {"delivery": Delivery("fedbuff", replies=2)}, "weighs updates by their age"),
        (FedAvg(), {"people": 400}, "privacy.user.bits <= 15"),
        (FedAvg(), {"poison": Poison(share=0.4)}, "and poison replaces updates"),
        (FedAvg(), {"privacy": replace(HIDDEN, robust=Median())}, "and privacy.robust replaces"),
    ],
)
def test_what_does_not_hide_a_person_is_refused_in_one_sentence(method, plan, said):
    with pytest.raises(ConfigError, match=said):
        checked(method, **{"privacy": HIDDEN, **plan})


def test_nothing_is_spent_where_nothing_is_sent(tmp_path):
    run_toy(tmp_path, LocalOnly(local=LOCAL), privacy=HIDDEN)
    assert set(column(tmp_path, "epsilon")) == {0.0}


def test_the_secret_is_its_owners_alone(tmp_path):
    secret_in(tmp_path)
    path = tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret_in(tmp_path).words(2).tolist() == secret_in(tmp_path).words(2).tolist()
    path.chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        secret_in(tmp_path)


def test_a_book_forgets_nothing_but_a_line_that_was_never_finished(tmp_path):
    """Sums that share a draw of people are one of less noise; a torn line was no release yet."""
    book = ReleaseLog(tmp_path / "book.csv")
    for draw, mark in (("0", "a"), ("1", "b"), ("1", "c")):
        book.enter(Release(draw, mark, 2.0, 0.5, 1))
    with (tmp_path / "book.csv").open("a") as file:
        file.write("2,d,2.")
    torn = (tmp_path / "book.csv").read_bytes()
    again = ReleaseLog(tmp_path / "book.csv")
    assert again.entries == book.entries
    assert (tmp_path / "book.csv").read_bytes() == torn, "who reads must not write"
    assert [(c.noise, c.rate, c.steps) for c in again.ledger.charges] == [
        (pytest.approx(math.sqrt(2)), 0.5, 1),
        (2.0, 0.5, 1),
    ]
    again.enter(Release("2", "e", 2.0, 0.5, 1))
    assert (tmp_path / "book.csv").read_text().endswith("1,c,2.0,0.5,1\n2,e,2.0,0.5,1\n")
    assert ReleaseLog(tmp_path / "book.csv").entries == again.entries
    assert account([]).charges == ()
    for damaged in (b"what\n", b"0,\xff,2.0,0.5,1\n"):
        (tmp_path / "book.csv").write_bytes(damaged)
        with pytest.raises(StateError, match="damaged"):
            ReleaseLog(tmp_path / "book.csv")


TRAINED = Privacy(solver=DpSgd(clip=1.0, noise=2.0))


@pytest.mark.usefixtures("same_secret")
def test_clients_train_by_dp_sgd_and_each_keeps_a_book(tmp_path):
    """12, 24 and 36 samples in batches of 8: 2, 3 and 5 steps a round at rates 2/3, 1/3 and 2/9."""
    outcome = run_toy(tmp_path / "a", FedAvg(local=LOCAL), rounds=2, privacy=TRAINED)
    for client, rate, steps in (("p00", 2 / 3, 4), ("p01", 1 / 3, 6), ("p02", 2 / 9, 10)):
        book = ReleaseLog(tmp_path / "a" / "state" / "privacy" / f"seed0.client.{client}.csv")
        (charge,) = book.ledger.charges
        assert (charge.noise, charge.steps) == (2.0, steps)
        assert charge.rate == pytest.approx(rate)
    again = run_toy(tmp_path / "b", FedAvg(local=LOCAL), rounds=2, privacy=TRAINED, workers=2)
    assert again.fingerprint == outcome.fingerprint
    assert not column(tmp_path / "a", "loss")


def test_a_client_whose_budget_is_spent_takes_no_further_turn(tmp_path):
    """All samples in every step, one step a round: 3 rounds spend sqrt(3) / 2, epsilon 3.67."""
    privacy = Privacy(solver=DpSgd(noise=2.0, epsilon=3.9))
    method = FedAvg(local=replace(LOCAL, batch=64))
    outcome = run_toy(tmp_path / "five", method, rounds=5, privacy=privacy)
    with (tmp_path / "five" / "turns.csv").open() as file:
        said = {(r["client"], r["round"]): r["status"] for r in csv.DictReader(file)}
    assert said["p00", "3"] == "ok"
    assert said["p00", "4"].startswith("quarantined: budget: training again would make epsilon 4.3")
    assert said["p00", "5"] == said["p00", "4"]
    book = ReleaseLog(tmp_path / "five" / "state" / "privacy" / "seed0.client.p00.csv")
    assert book.ledger.epsilon(1e-5) == pytest.approx(gaussian_epsilon(3**0.5 / 2, 1e-5))
    assert outcome.server.model.flat.abs().sum() > 0


def test_the_same_training_has_the_same_noise_and_another_one_other_noise(tmp_path):
    """Whoever asks again from another model must not get the same noise on another gradient."""
    federation = People().load()
    data = federation.people["p01"]
    solver = DpSolver(TASK, TRAINED.solver, tmp_path, 0, [TrainingPass(LOCAL, 1.0, 1)])
    site = ClientContext("p01", data.train, data.val, TASK, 0, RandomStream("x"))
    ask = Fit(TASK.init(), data.train, LOCAL)
    one = solver.train(site, ask, RandomStream("x")).params.flat
    assert torch.equal(one, solver.train(site, ask, RandomStream("x")).params.flat)
    other = solver.train(
        site, replace(ask, params=ask.params + 1e-6), RandomStream("x")
    ).params.flat
    assert float((one - other).abs().max()) > 1e-3
    assert len(ReleaseLog(tmp_path / "privacy" / "seed0.client.p01.csv").entries) == 2
    pulled = replace(ask, objective=FeatureAlignment(torch.zeros(2, 4), 1.0))
    with pytest.raises(ConfigError, match="this turn minimises another"):
        solver.train(site, pulled, RandomStream("x"))


def test_a_budget_is_spread_over_all_trainings_of_a_run():
    """Ditto trains twice a round; fedavg_ft once more at the end."""
    local = replace(LOCAL, batch=6)
    assert (
        training_schedule([TrainingPass(local, 1.0, 10), TrainingPass(local, 1.0, 10)], 24).steps
        == 80
    )
    assert (
        training_schedule([TrainingPass(local, 1.0, 10), TrainingPass(local, 0.5, 1)], 24).rate
        == 0.5
    )


@pytest.mark.parametrize(
    ("method", "plan", "said"),
    [
        (QFedAvg(), {}, "also uses the loss of training samples"),
        (Scaffold(option="I"), {}, "also uses the gradient of training samples"),
        (FedGen(), {}, "also uses the classes of training samples"),
        (FedALA(), {}, "also uses the gradient of training samples"),  # from its second turn on
    ],
)
def test_what_looks_at_samples_beside_training_is_refused(method, plan, said):
    with pytest.raises(ConfigError, match=said):
        check(Plan(privacy=TRAINED, **plan), method, TASK)
    for sound in (Ditto(), FedCPF(), Scaffold()):
        check_privacy(sound, TASK, People().load(), Plan(privacy=TRAINED))


@pytest.mark.parametrize("key", ["engine", "precision", "solver"])
def test_dp_sgd_says_where_it_does_not_run(key):
    how = {"engine": "ray", "precision": "bf16", "solver": "stacked"}[key]
    with pytest.raises(ConfigError, match=rf"leave out run\.{key}"):
        Plan(privacy=TRAINED, **{key: how})


def test_dp_sgd_does_not_run_in_half_precision():
    """Per-sample gradients and their noise are float32; `auto` resolves to that."""
    with pytest.raises(ConfigError, match=r"leave out run\.precision"):
        Plan(privacy=TRAINED, precision="half")
    Plan(privacy=TRAINED, precision="auto")
