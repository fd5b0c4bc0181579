"""Epsilon and noise: the tables of the specification, the closed form, and the book."""

import math
import sys
from dataclasses import replace

import pytest
from scipy.stats import norm

from vergence.errors import ConfigError, StateError
from vergence.privacy.dp import accounting
from vergence.privacy.dp.accounting import (
    Charge,
    Ledger,
    cross_checked,
    epsilon,
    gaussian_epsilon,
    gaussian_noise,
    noise_for,
)

RATE, STEPS, DELTA = 32 / 3000, 940, 1e-5
SLOW = pytest.mark.slow
LEVELS = [
    (0.5, 2.500, 2.457),
    pytest.param(1.0, 1.465, 1.452, marks=SLOW),
    pytest.param(8.0, 0.592, 0.592, marks=pytest.mark.nightly),
]
PEOPLE = [  # clients, per round, rounds, epsilon, z
    (14, 14, 10, 2, 6.30),
    (14, 14, 10, 8, 1.90),
    (1000, 50, 200, 2, 1.67),
    pytest.param(1000, 50, 200, 8, 0.79, marks=SLOW),
    pytest.param(100_000, 1000, 500, 2, 0.88, marks=pytest.mark.nightly),
]


@pytest.fixture
def libraries():
    pytest.importorskip("opacus")
    pytest.importorskip("dp_accounting")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("target", "prv", "pld"), LEVELS)
def test_noise_of_frames(target, prv, pld):
    """q = 32/3000, 940 steps, delta = 1e-5 (3,000 samples, batches of 32, 10 epochs)."""
    assert noise_for(target, DELTA, RATE, STEPS) == pytest.approx(prv, rel=0.01)
    assert noise_for(target, DELTA, RATE, STEPS, "pld") == pytest.approx(pld, rel=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("clients", "asked", "rounds", "target", "z"), PEOPLE)
def test_noise_of_people(clients, asked, rounds, target, z):
    """delta = min(1e-5, 1 / n^1.1); by PLD, as the table was made."""
    delta = min(1e-5, clients**-1.1)
    found = noise_for(target, delta, asked / clients, rounds, "pld")
    assert found == pytest.approx(z, rel=0.01)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("noise", [0.6, 1.0, 2.5])
def test_the_accountants_agree_within_five_percent(noise):
    found = cross_checked([Charge(noise, RATE, STEPS)], DELTA)
    assert set(found) == {"prv", "pld"}
    assert found["prv"] == pytest.approx(found["pld"], rel=0.05)


@pytest.mark.usefixtures("libraries")
def test_several_charges_compose():
    one = epsilon([Charge(1.5, RATE, STEPS)], DELTA)
    split = epsilon([Charge(1.5, RATE, 300), Charge(1.5, RATE, STEPS - 300)], DELTA)
    assert split == pytest.approx(one, rel=0.02)


@pytest.mark.usefixtures("libraries")
def test_the_closed_form_is_what_a_library_counts_without_sampling():
    for noise, steps in [(6.3, 10), (1.9, 10), (20.0, 100)]:
        exact = epsilon([Charge(noise, 1.0, steps)], DELTA)
        assert exact == pytest.approx(epsilon([Charge(noise, 1.0, steps)], DELTA, "pld"), rel=1e-3)


def test_the_closed_form_inverts_its_own_delta():
    """delta(eps) recomputed with scipy.stats at the epsilon that was found."""
    for mu in (0.1, 0.5, 2.0):
        eps = gaussian_epsilon(mu, DELTA)
        delta = norm.cdf(-eps / mu + mu / 2) - math.exp(eps) * norm.cdf(-eps / mu - mu / 2)
        assert delta == pytest.approx(DELTA, rel=1e-5)
    assert gaussian_epsilon(1e-7, DELTA) == 0.0


def test_fourteen_people_ten_rounds_without_any_library():
    """The table's 6.30 (eps 2) and 1.90 (eps 8) follow from the closed form."""
    assert noise_for(2, DELTA, 1.0, 10) == pytest.approx(6.30, rel=0.01)
    assert noise_for(8, DELTA, 1.0, 10) == pytest.approx(1.90, rel=0.01)


def test_noise_on_a_clipped_smashed_vector():
    """Replacing one image moves a vector of norm C by up to 2 C: 7.5 C, 1.2 C; ten epochs 23.6 C,
    3.8 C (delta = 1e-5)."""
    assert gaussian_noise(1, DELTA, 2.0) == pytest.approx(7.5, rel=0.01)
    assert gaussian_noise(8, DELTA, 2.0) == pytest.approx(1.2, rel=0.01)
    assert gaussian_noise(1, DELTA, 2.0, 10) == pytest.approx(23.6, rel=0.01)
    assert gaussian_noise(8, DELTA, 2.0, 10) == pytest.approx(3.8, rel=0.01)
    assert gaussian_epsilon(2 / gaussian_noise(3, DELTA, 2.0), DELTA) == pytest.approx(3, rel=1e-6)


def charged(book, charge):
    """Return the ledger with one more entry, joined with the last where it is alike."""
    last = book.charges[-1] if book.charges else None
    if last is not None and (last.noise, last.rate) == (charge.noise, charge.rate):
        return Ledger((*book.charges[:-1], replace(last, steps=last.steps + charge.steps)))
    return Ledger((*book.charges, charge))


def test_the_book_stops_before_it_overspends():
    book, step = Ledger(), Charge(6.31, 1.0, 1)
    rounds = 0
    while charged(book, step).epsilon(DELTA) <= 2.0:
        book, rounds = charged(book, step), rounds + 1
    assert rounds == 10
    assert book.charges == (Charge(6.31, 1.0, 10),)
    assert book.epsilon(DELTA) <= 2.0 < charged(book, step).epsilon(DELTA)
    assert len(charged(book, Charge(5.0)).charges) == 2
    assert Ledger().epsilon(DELTA) == 0.0


def test_accountants_that_differ_publish_nothing(monkeypatch):
    monkeypatch.setitem(accounting._COUNTED, "prv", lambda *_: 1.0)
    monkeypatch.setitem(accounting._COUNTED, "pld", lambda *_: 1.06)
    with pytest.raises(StateError, match=r"differ by 5\.7% \(prv 1, pld 1\.06\)"):
        cross_checked([Charge(1.0, 0.1, 10)], DELTA)


@pytest.mark.parametrize(
    ("by", "module"), [("prv", "opacus.accountants"), ("pld", "dp_accounting")]
)
def test_without_the_extra_it_says_what_to_install(monkeypatch, by, module):
    monkeypatch.setitem(sys.modules, module, None)
    accounting._counted.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'vergence\[dp\]'"):
        epsilon([Charge(1.0, 0.1, 10)], DELTA, by)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Charge(0.0), r"noise must be > 0; got 0"),
        (lambda: Charge(1.0, 1.5), r"rate must be > 0 and <= 1; got 1\.5"),
        (lambda: epsilon([Charge(1.0)], 0.0), r"delta must be >= 1e-12 and < 1; got 0"),
        (lambda: noise_for(0.0, DELTA, 1.0, 1), r"epsilon must be > 0; got 0"),
        (lambda: gaussian_noise(1.0, 1.0, 1.0), r"delta in \(0, 1\); got 1 and 1"),
    ],
)
def test_what_cannot_be_counted_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        wrong()


def test_a_budget_that_other_steps_have_spent_is_refused():
    """No noise is enough then; the search for it would never end."""
    spent = (accounting.Charge(1.0, 1.0, 10),)
    with pytest.raises(ConfigError, match=r"other steps spend epsilon \d+.* already, and 2 may"):
        noise_for(2, DELTA, 1.0, 10, other_charges=spent)
