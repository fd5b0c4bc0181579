"""Forecasts and releases of user-level privacy, worked by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vergence.core.aggregation import Aggregate
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.protections import user_level
from vergence.engine.protections.user_level import (
    LAB,
    PERSON,
    UserLevelMechanism,
    UserLevelProtection,
    against,
    forecast,
    other_noise_of,
)
from vergence.engine.silos import NO_LABS, Silos
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.local_only import LocalOnly
from vergence.methods.scaffold import Scaffold
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.dp.accounting import Charge, Ledger
from vergence.privacy.dp.user_level import UserLevel
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog

FINE = UserLevelConfig(noise=4.0, bits=24)
"""On this grid a sum of one person is exact in float32, and none of two."""
LABS = Silos({"x": ("a", "b"), "y": ("c", "d", "e", "f", "g"), "z": ("h", "i", "j")})
SECURE = SecureAggregationConfig()


@pytest.mark.parametrize(
    ("clients", "plan", "most"),
    [
        (50, {}, 50),
        (1000, {"presence": Participation(cohort=0.1)}, 160),  # 100 + 6 x 10
        (10_000, {"presence": Participation(cohort=30)}, 63),  # 30 + 6 x 5.48
        (10, {"presence": Participation(cohort=0.5)}, 10),  # 5 + 6 x 2.24, of 10
        (3, {"presence": Participation(cohort=4)}, 3),
        (1000, {"presence": Participation(cohort=0.1, rhythm=True)}, 100),
        (1000, {"presence": Participation(cohort=0.1, gone={"a": 1})}, 100),
        (3, {"silos": LABS}, 10),
        (3, {"silos": LABS, "presence": Participation(cohort=2)}, 8),  # 5 + 3
        (3, {"silos": LABS, "presence": Participation(cohort=0.3)}, 5),
        (3, {"silos": LABS, "presence": Participation(cohort=0.4)}, 8),  # of 1.2 labs
    ],
)
def test_sums_must_be_exact_for_the_most_people_that_a_round_can_have(clients, plan, most):
    """The draw may bring six standard deviations more than the mean, and the largest labs."""
    with pytest.raises(ConfigError, match=f"sums of {most} people on a grid of 24 bits"):
        forecast(FINE, Plan(**plan), FedAvg(), clients)


def test_labs_that_are_hidden_count_once_in_a_sum():
    lab = replace(FINE, unit="lab")
    with pytest.raises(ConfigError, match="sums of 3 people"):
        forecast(lab, Plan(silos=LABS), FedAvg(), 3)
    with pytest.raises(ConfigError, match="sums of 2 people"):
        forecast(lab, Plan(silos=LABS, presence=Participation(cohort=2, rhythm=True)), FedAvg(), 3)


@pytest.mark.usefixtures("booked")
def test_one_person_fits_where_two_do_not(monkeypatch):
    checked = []
    monkeypatch.setattr(UserLevel, "check_shares", lambda level: checked.append(level.shares))
    assert forecast(FINE, Plan(), FedAvg(), 1).expected == 1
    secure = Plan(privacy=Privacy(user=FINE, aggregation=SECURE), rounds=1)
    # Each client's own words must be exact: of one person, or of the largest lab.
    assert forecast(FINE, secure, FedAvg(), 4).expected == 4
    assert checked == [1, 3]
    assert forecast(FINE, Plan(), LocalOnly(), 1).sums == 0
    assert checked == [1, 3]
    labs = Silos({name: (f"{name}1", f"{name}2") for name in "pqrs"})
    with pytest.raises(ConfigError, match="sums of 2 people"):
        forecast(FINE, replace(secure, silos=labs), FedAvg(), 4)


USER = UserLevelConfig(clip=0.5, noise=3.0)


@pytest.fixture
def booked(monkeypatch):
    """Charges whose epsilon was asked for, with the delta; the accountant takes seconds."""
    asked = []

    class Book:
        def __init__(self, charges=()):
            self.charges = charges

        def epsilon(self, delta):
            asked.append((*self.charges, delta))
            return 1.0

    monkeypatch.setattr(user_level, "Ledger", Book)
    return asked


@pytest.mark.parametrize(
    ("user", "method", "cohort", "charge"),
    [
        (USER, FedAvg(), 1.0, Charge(3.0, 1.0, 9)),
        (USER, FedAvg(), 5, Charge(3.0, 0.25, 9)),
        (USER, FedAvg(), 0.25, Charge(3.0, 0.25, 9)),
        (USER, FedAvg(), 30, Charge(3.0, 1.0, 9)),
        (USER, Scaffold(), 1.0, Charge(3.0, 1.0, 9)),
        (replace(USER, turns=1), FedAvg(), 0.25, Charge(3.0 / 2)),  # a turn is in four nodes
    ],
)
def test_what_a_run_is_charged_by_hand(booked, user, method, cohort, charge):
    """More sums of a round are charged as one, with as much more noise on each."""
    plan = Plan(rounds=9, presence=Participation(cohort=cohort))
    made = forecast(user, plan, method, 20)
    ((found, delta),) = booked
    assert (found.rate, found.steps, delta) == (charge.rate, charge.steps, 1e-5)
    assert found.noise == pytest.approx(charge.noise)
    sums = sum(1 for exposed in method.exposure.values() if exposed.trees)
    assert (made.sums, made.rounds, made.each, made.other_noise) == (sums, 9, 1.0, 0.0)
    assert made.noise == pytest.approx(3.0 if user.turns else 3.0 * math.sqrt(sums))
    assert made.expected == min(5 if cohort in (5, 0.25) else 20, 20)
    assert made.squared == (4 if user.turns else 0)


@pytest.mark.parametrize(
    ("user", "silos", "times"),
    [
        (USER, NO_LABS, 0.0),
        (USER, LABS, 1 / 5),
        (replace(USER, unit="lab"), LABS, 2.0),
    ],
)
def test_the_other_unit_has_the_noise_of_the_worst_lab(user, silos, times):
    assert other_noise_of(user, silos) == times


def test_labs_in_a_forecast_by_hand(booked):
    """10 people in 3 labs; with 2 labs asked 2/3 of all people are in a sum."""
    plan = Plan(silos=LABS, presence=Participation(cohort=2), rounds=4)
    people = forecast(USER, plan, FedAvg(), 3)
    assert (people.rate, people.each, people.level.people) == (1.0, 10 / 3, 5)
    assert people.expected == pytest.approx(20 / 3)
    people.epsilon_of_other(1e-6)
    labs = forecast(replace(USER, unit="lab"), plan, FedAvg(), 3)
    assert (labs.each, labs.expected, labs.level.people) == (1.0, 2.0, 1)
    labs.epsilon_of_other(1e-7)
    charges = [(each.noise, round(each.rate, 9), each.steps, delta) for each, delta in booked]
    assert charges == [
        (3.0, 1.0, 4, 1e-5),
        (pytest.approx(3 / 5), 1.0, 4, 1e-6),
        (3.0, 0.666666667, 4, 1e-5),
        (6.0, 1.0, 4, 1e-7),
    ]


def test_a_budget_is_kept_up_to_its_last_digit():
    spent = forecast(USER, Plan(rounds=3), FedAvg(), 5).epsilon(USER.delta)
    forecast(replace(USER, epsilon=spent), Plan(rounds=3), FedAvg(), 5)
    less = replace(USER, epsilon=spent * (1 - 1e-9))
    with pytest.raises(ConfigError, match=f"3 rounds with noise 3 would spend epsilon {spent:.3g}"):
        forecast(less, Plan(rounds=3), FedAvg(), 5)


def mechanism(tmp_path, user=USER, clients=8, **plan):
    return UserLevelMechanism(user, Plan(**plan), FedAvg(), clients, tmp_path, 0)


EMPTY = Aggregate({}, {}, 4, {"loss": 1.0})


@pytest.mark.parametrize(
    ("phase", "plan", "asked", "count"),
    [
        ("0", {}, 7, 7),
        ("0", {"presence": Participation(cohort=0.3)}, 7, 2),  # .3 x 8 = 2.4
        ("setup", {"presence": Participation(cohort=0.3)}, 7, 7),
        ("finish", {"presence": Participation(cohort=0.3)}, 0, 1),
        ("0", {"presence": Participation(cohort=0.05)}, 7, 1),
    ],
)
@pytest.mark.usefixtures("booked")
def test_a_sum_of_nothing_tells_the_number_expected_alone(tmp_path, phase, plan, asked, count):
    made = mechanism(tmp_path, **plan).release(EMPTY, phase, 1, asked)
    assert (made.count, made.metrics, made.totals) == (count, {}, {})


@pytest.mark.parametrize(
    ("unit", "other", "times"), [("person", "lab", 1 / 5), ("lab", "person", 2.0)]
)
def test_results_tell_of_both_units_in_labs(tmp_path, monkeypatch, unit, other, times):
    """Of two seeds the one that spent more counts; the other unit has no draw and other noise."""
    (tmp_path / FOLDER).mkdir()
    for seed, noises in ((3, (2.0, 3.0)), (8, (4.0,))):
        book = ReleaseLog(tmp_path / FOLDER / f"seed{seed}.sums.csv")
        for at, noise in enumerate(noises):
            book.enter(Release(str(at), f"{seed}.{at}", noise, 0.5, 1))
    seen = []

    def largest(ledgers, delta):
        seen.append([[(c.noise, c.rate, c.steps) for c in one.charges] for one in ledgers])
        return {"epsilon": delta}

    monkeypatch.setattr(user_level, "largest_epsilon", largest)
    monkeypatch.setattr(Ledger, "epsilon", lambda self, _: len(self.charges))
    user = replace(USER, unit=unit, epsilon=9.0)
    plan = Plan(seeds=(3, 8), silos=LABS, privacy=Privacy(user=user))
    run = SimpleNamespace(state=tmp_path)
    made = UserLevelProtection(plan, user)
    told = made.spent(run)
    assert list(told) == [unit, other]
    assert (told[unit]["allowed"], told[other]["allowed"]) == (9.0, None)
    assert (told[unit]["seeds_together"], told[unit]["delta"]) == (3, 1e-5)
    assert seen[0] == [[(2.0, 0.5, 1), (3.0, 0.5, 1)], [(4.0, 0.5, 1)]]
    others = [[(2.0 * times, 1.0, 1), (3.0 * times, 1.0, 1)], [(4.0 * times, 1.0, 1)]]
    assert seen[1] == [[pytest.approx(charge) for charge in one] for one in others]
    assert [told[name]["neighbours"] for name in ("lab", "person")] == [LAB, PERSON]
    ((name, who, charges),) = made.spendings(tmp_path / FOLDER, 8)
    assert (name, who, charges) == (unit, "", ((4.0, 0.5, 1),))


@pytest.mark.parametrize(
    ("shares", "labs", "said"),
    [
        (1, False, "not against the server, which adds up before the noise"),
        (1, True, "adds up before the noise, nor against the lab that somebody is in"),
        (4, False, "while at least 4 people in every sum keep their part of the noise to"),
        (4, True, "while at least 4 labs in every sum"),
        (2, True, "to themselves, not against the lab that somebody is in"),
    ],
)
def test_against_whom_people_are_hidden(shares, labs, said):
    assert said in against(shares, labs)


def test_turns_are_counted_anew_after_a_resume(tmp_path, booked):
    """Each may take part in 2 of 4 rounds; b is away at first. Asked once more, it is the same."""
    user, rounds = replace(USER, turns=2), ["ab", "b", "ab", "ab"]
    draw = lambda _, at: list(rounds[at])  # noqa: E731
    for begin in (0, 2):
        made = mechanism(tmp_path, user, rounds=4)
        found = ["".join(made.cohort("abc", at, draw)) for at in range(begin, 4)]
        assert found == ["ab", "b", "a", ""][begin:]
        assert "".join(made.cohort("abc", 3, draw)) == ""
    free = mechanism(tmp_path, rounds=4)
    assert [free.cohort("abc", at, draw) for at in range(4)] == [list(each) for each in rounds]
    assert booked


def test_drawn_cohorts_are_those_of_the_secret_key(tmp_path, booked):
    made = mechanism(tmp_path, presence=Participation(cohort=0.5))
    clients = [f"p{i}" for i in range(8)]
    for at in (0, 5):
        uniform = made.secret.child("cohort", at).draws().uniform(8)
        assert made.cohort(clients, at, None) == [
            c for c, u in zip(clients, uniform, strict=True) if u < 0.5
        ]
    assert booked
