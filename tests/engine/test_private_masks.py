"""Runs whose masks are chosen under a budget: what is foreseen, chosen, spent and refused."""

from dataclasses import replace

import pytest

from tests.engine.toys import LOCAL, dying_in, run_toy
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.plan import Plan
from vergence.engine.protections.private_masks import MaskForecast, foreseen
from vergence.engine.protections.setup import check_privacy
from vergence.errors import ConfigError
from vergence.experiment.privacy.schema import build_privacy
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedselect import FedSelect
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy
from vergence.privacy.dp.mask_budget import MaskBudget
from vergence.privacy.dp.private_selection import spent
from vergence.privacy.release_log import ReleaseLog
from vergence.tasks.toy import ToyTask

CPF = FedCPF(rate=0.2, limit=0.6, local=LOCAL)
TINY = Privacy(mask=MaskBudget(8.0, of="entry"))


@pytest.fixture
def same_secret(monkeypatch):
    """Secrets from the system would make two runs differ, as they should."""
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", lambda: bytes(range(32)))


@pytest.mark.parametrize("method", [CPF, FedSelect(rate=0.2, limit=0.6, local=LOCAL)])
def test_with_a_budget_beyond_all_bounds_the_method_is_itself(tmp_path, method):
    plain = run_toy(tmp_path / "plain", method)
    loose = Privacy(mask=MaskBudget(1e9, of="entry"))
    assert run_toy(tmp_path / "loose", method, privacy=loose).fingerprint == plain.fingerprint
    tight = Privacy(mask=MaskBudget(1e-6, of="entry"))
    assert run_toy(tmp_path / "tight", method, privacy=tight).fingerprint != plain.fingerprint


@pytest.mark.usefixtures("same_secret")
def test_everybody_spends_the_budget_and_no_more_in_every_engine(tmp_path):
    """Of 5 entries 3 become personal, one a round: 3 choices of one draw in 4 rounds."""
    seen = foreseen(Plan(rounds=4, privacy=TINY), CPF, ToyTask(Linear()), People().load())
    assert seen == MaskForecast(choices=3, draws=3)
    outcome = run_toy(tmp_path / "one", CPF, privacy=TINY)
    for client in ("p00", "p01", "p02"):
        book = ReleaseLog(tmp_path / "one" / "state" / "privacy" / f"seed0.mask.{client}.csv")
        assert [entry.steps for entry in book.entries] == [1, 1, 1]
        assert spent(book.entries, TINY.mask) == pytest.approx(8.0)
    for name, how in (("two", {"workers": 2}), ("bytes", {"engine": "bytes"})):
        other = run_toy(tmp_path / name, CPF, privacy=TINY, **how)
        assert other.fingerprint == outcome.fingerprint


@pytest.mark.usefixtures("same_secret")
def test_a_run_that_dies_goes_on_with_the_same_choices_and_spends_nothing_twice(tmp_path):
    whole = run_toy(tmp_path / "whole", CPF, privacy=TINY)
    with dying_in(2):
        run_toy(tmp_path / "cut", CPF, privacy=TINY)
    assert run_toy(tmp_path / "cut", CPF, privacy=TINY).fingerprint == whole.fingerprint
    books = [
        tmp_path / run / "state" / "privacy" / "seed0.mask.p00.csv" for run in ("cut", "whole")
    ]
    assert books[0].read_text() == books[1].read_text()


@pytest.mark.parametrize(
    ("method", "of", "said"),
    [
        (replace(CPF, select="random"), "entry", "chooses in a way of its own; leave out select"),
        (FedSelect(rule="code"), "entry", r"rule = \"code\" \(fedselect\), or privacy.mask"),
        (replace(CPF, scope="per_tensor", rate=0.3), "entry", 'use scope = "global"'),
        (CPF, "filter", 'at most 1 entries personal in a round, and every filter .* of = "entry"'),
    ],
)
def test_masks_that_cannot_be_chosen_so_are_refused_before_training(method, of, said):
    plan = Plan(rounds=4, privacy=Privacy(mask=MaskBudget(8.0, of=of)))
    with pytest.raises(ConfigError, match=said):
        check_privacy(method, ToyTask(Linear()), People().load(), plan)


def test_the_table_is_checked():
    assert build_privacy({"mask": {"epsilon": 2}}).mask == MaskBudget(2.0)
    for table, said in (({}, "epsilon"), ({"epsilon": -1}, "epsilon"), ({"of": "row"}, "of")):
        with pytest.raises(ConfigError, match=said):
            build_privacy({"mask": {"epsilon": 1.0, **table} if table else {}})
