"""A robust rule of somebody's own that returns something else is named, in one line."""

from dataclasses import dataclass

import numpy as np
import pytest

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
    ],
)
def test_a_wrong_decision_is_refused(decision, said):
    with pytest.raises(ConfigError, match=said) as error:
        Wrong()._check_decision(decision, 4)
    assert "\n" not in str(error.value)


def test_an_object_in_a_table_is_told_where_it_belongs():
    with pytest.raises(ConfigError, match=r"Privacy\(robust=\.\.\.\)"):
        build_rule(Wrong())
