"""A robust rule of somebody's own that returns something else is named, in one line."""

from dataclasses import dataclass

import numpy as np
import pytest

from tests.cli.commands import ONE, vergence, write
from vergence.errors import ConfigError
from vergence.experiment.privacy.schema import build_rule
from vergence.privacy.robust.base import Decision, RobustRule


@dataclass(frozen=True)
class Wrong(RobustRule):
    """Return what a test gives."""

    def decide(self, votes, stream, root):
        return votes


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (np.zeros(4), r"must return Decision\(row, weight\), got ndarray"),
        (None, r"must return Decision\(row, weight\), got NoneType"),
        (Decision(np.zeros(3), 1.0), r"a row of 4 numbers.*got shape \(3,\)"),
        (
            Decision(np.array([0.0, np.nan, np.inf, 1.0]), 2.0),
            r"Wrong': decide\(\) returned a row of which 2 of 4 are NaN",
        ),
        (Decision(np.array([None] * 4), 2.0), "row of which 4 of 4 are NaN, infinite or no number"),
        (Decision(np.zeros(4), np.nan), "weight of which 1 of 1 are NaN"),
    ],
)
def test_a_wrong_decision_is_refused(decision, said):
    with pytest.raises(ConfigError, match=said) as error:
        Wrong()._check_decision(decision, 4)
    assert "\n" not in str(error.value)


RULE = """
from dataclasses import dataclass
import numpy as np
from vergence.privacy import Decision, RobustRule

@dataclass(frozen=True)
class Divided(RobustRule):
    def decide(self, votes, stream, root):
        return Decision(votes.values.mean(0) * np.nan, len(votes))
"""


def test_a_run_names_the_rule_that_returned_nan_and_not_the_learning_rate(tmp_path):
    (tmp_path / "divided.py").write_text(RULE)
    file = write(tmp_path, ONE + 'privacy = { robust = "divided.py" }\n')
    said = vergence("run", file, "--out", tmp_path / "out", "--set", 'method="fedavg"')
    said.complains(2, "divided", "decide() returned a row of which", "division by 0")
    assert "learning rate" not in said.err
    assert "local.lr" not in said.err


def test_an_object_in_a_table_is_told_where_it_belongs():
    with pytest.raises(ConfigError, match=r"Privacy\(robust=\.\.\.\)"):
        build_rule(Wrong())
