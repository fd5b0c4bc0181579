"""A ledger is read where nobody else changes it, a run has its own, a torn line is none."""

import pytest

from tests.adversary.lies import circle, method
from tests.adversary.test_evaluations_of_any_model import evaluation
from vergence.core.local_training import LocalTraining
from vergence.core.serialization import pack
from vergence.deployment.secure_sum_client import SecureSumFiles
from vergence.errors import StateError
from vergence.privacy.secure_aggregation.session import Refused, UsedContributions


def test_each_seed_has_a_ledger_of_its_own(tmp_path):
    """The second seed of an experiment is measured as the first was."""
    made = circle(
        method("fedavg", LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4, evaluate_every=2
    )
    home = made.home("p01")
    home.answer(pack(evaluation(made, 2)))
    other = made.home("p01")
    object.__setattr__(other.runner.store, "seed", 1)
    other.answer(pack(evaluation(made, 2, shift=0.5)))
    names = {path.name for path in made.place("p01").glob("ledger.*")}
    assert names == {"ledger.seed0.json", "ledger.seed1.json"}


def test_what_is_remembered_is_read_when_it_is_a_clients_turn(tmp_path):
    """Two processes, made before either answers: the second knows what the first wrote."""
    made = circle(
        method("fedavg", LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=4, evaluate_every=2
    )
    first, second = made.home("p01"), made.home("p01")
    first.answer(pack(evaluation(made, 2)))
    with pytest.raises(StateError, match="measured after 2 rounds before, with another model"):
        second.answer(pack(evaluation(made, 2, shift=0.5)))


def test_a_torn_line_takes_no_other_with_it(tmp_path):
    """What was being written when the power went was not given away yet; what came after was."""
    path = tmp_path / "sum.spent"
    path.write_text("aa run 0.train\nbb row of run 1.tr")
    spent = UsedContributions(SecureSumFiles(path))
    spent.spend("run 2.train", "cc")
    assert path.read_text() == "aa run 0.train\ncc run 2.train\n"
    with pytest.raises(Refused, match="spent: "):
        UsedContributions(SecureSumFiles(path)).spend("run 2.train", "dd")
