"""The table of equality, from errors that are known."""

import pandas as pd
import pytest

from benchmarks.half_precision import Found, errors

EXACT = pd.DataFrame({0: [0.9, 2.0, 4.1], 1: [1.1, 2.0, 3.9]}, index=["a", "b", "c"])


@pytest.mark.parametrize(("worse", "verdict"), [(1.001, "yes"), (1.03, "not shown")])
def test_a_small_difference_is_shown_to_be_small_and_a_large_one_is_not(worse, verdict):
    half = EXACT.mul([worse, worse + 0.001, worse], axis=0)
    found = Found("made", "angular_deg", EXACT, half)
    assert found.apart.to_list() == pytest.approx([worse - 1, worse - 0.999, worse - 1])
    assert found.row().endswith(f"| {verdict} |")


def test_of_an_accuracy_the_error_counts(tmp_path):
    """The other metric, and what another model predicts, do not."""
    (tmp_path / "people.csv").write_text(
        "seed,person,evaluation,metric,value\n"
        "0,01,P0,accuracy,0.75\n1,01,P0,accuracy,0.5\n0,01,P2,accuracy,0.1\n0,01,P0,loss,3\n"
    )
    assert errors(tmp_path, "accuracy").loc["01"].to_list() == [0.25, 0.5]
