"""Intervals over people: Student's, cut at the bounds that a metric has."""

import math
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vergence as vg
from tests.experiment.made_up import arrays, regression
from vergence.api.task_from import NAMED_SHARE
from vergence.metrics.intervals import CORRELATION, SHARE, difference_bounds, interval
from vergence.results.layout import spread
from vergence.results.read import bounds_of, read
from vergence.results.significance import paired
from vergence.studies.compare import gather

shares = st.lists(st.floats(0, 1), min_size=2, max_size=20)


@given(shares)
def test_an_interval_of_shares_stays_inside_and_around_the_mean(values):
    low, high = interval(values, bounds=SHARE)
    free = interval(values)
    assert 0 <= low <= high <= 1
    assert (low, high) == (max(free[0], 0.0), min(free[1], 1.0))
    assert low - 1e-12 <= sum(values) / len(values) <= high + 1e-12


def test_shares_by_hand():
    """0 and 1: mean 1/2, s = 1/sqrt(2), half = 12.7062 / 2; of 1, 1, .5: 5/6 -/+ 4.3027 / 6."""
    assert interval([0, 1], bounds=SHARE) == (0, 1)
    assert interval([0, 1], bounds=CORRELATION) == (-1, 1)
    assert interval([1, 1, 0.5], bounds=SHARE) == (pytest.approx(5 / 6 - 0.717109, abs=1e-6), 1)
    assert interval([1, 1, 1], bounds=SHARE) == (1, 1)
    assert all(map(math.isnan, interval([0.5], bounds=SHARE)))
    assert spread([1, 1, 0.5], 2, SHARE) == "0.83 [0.12, 1.00]"
    assert difference_bounds(SHARE) == (-1, 1)
    assert difference_bounds(None) is None


def test_bounds_that_are_not_those_of_the_values_are_not_used():
    """An accuracy in percent, and a mean that somebody broke."""
    assert interval([100, 100, 50], bounds=SHARE) == interval([100, 100, 50])
    assert all(map(math.isnan, interval([-math.inf, 1], bounds=SHARE)))


@pytest.mark.parametrize(
    ("name", "share"),
    [
        *[(name, True) for name in ("accuracy", "Accuracy", "f1", "f1_macro", "macro_f1")],
        *[(name, True) for name in ("roc_auc", "balanced_accuracy", "top_5_accuracy", "iou")],
        *[(name, False) for name in ("accuracy_gain", "f1_gap", "loss", "error", "s", "auc_loss")],
    ],
)
def test_names_that_say_share(name, share):
    assert bool(NAMED_SHARE.fullmatch(name)) == share


def test_declared_bounds_are_read_as_pairs_of_numbers():
    declared = {"accuracy": [0.0, 1.0], "error": [0.0, math.inf]}
    assert bounds_of(declared, "pooled_accuracy") == (0, 1)
    assert bounds_of(declared, "error") is None is bounds_of(declared, "nss")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def accuracy(_, targets):
        """1 for people whose targets have a sum above 0, else 0, for every model."""
        return float(targets.sum() > 0)

    out, federation = tmp_path_factory.mktemp("runs"), vg.Federation.from_arrays(arrays(3))
    task = regression(metrics={"accuracy": accuracy, "gain": accuracy}, lower_is_better=False)
    methods = [vg.methods.FedAvg(), vg.methods.LocalOnly()]
    vg.train_all(methods, task, federation, rounds=1, workers=1, progress=False, out=out)
    return out


@pytest.mark.slow
def test_a_run_and_a_comparison_keep_shares_inside(runs):
    run = vg.open_run(runs / "fedavg")
    assert set(run.scores["accuracy"]) == {0, 1}
    free = interval(run.scores["accuracy"])
    assert free[0] < 0
    assert free[1] > 1
    ends = ["ci95_low", "ci95_high"]
    assert tuple(run.summary.loc["accuracy", ends]) == (0, 1)
    # The same values under a name that says nothing of bounds.
    assert tuple(run.summary.loc["gain", ends]) == free
    assert run.record.results["bounds"] == {"score": [0, 1], "accuracy": [0, 1]}
    # Of both methods, and of the best constant.
    table = vg.compare(runs).table
    assert table.accuracy_lo.tolist() == [0, 0, 0]
    assert table.accuracy_hi.tolist() == [1, 1, 1]


@pytest.mark.slow
def test_differences_of_shares_stay_inside(runs, tmp_path):
    """Differences 1, 1 and -1: mean 1/3, s = 1.1547, half = 2.868."""
    for label, (one, other) in (("fedavg", "10"), ("local_only", "01")):
        shutil.copytree(runs / label, tmp_path / label)
        lines = [
            f"0,p0{p},P0,{m},{v}"
            for m in ("accuracy", "gain")
            for p, v in enumerate((one, one, other))
        ]
        text = "\n".join(["seed,person,evaluation,metric,value", *lines])
        (tmp_path / label / "people.csv").write_text(f"{text}\n")
    study = gather([tmp_path])
    cut, free = (paired(study, "fedavg", "local_only", name) for name in ("accuracy", "gain"))
    assert (cut.lo, cut.hi) == (-1, 1)
    assert cut.mean == free.mean == pytest.approx(1 / 3)
    assert free.lo == pytest.approx(1 / 3 - 2.868, abs=1e-3)


@pytest.mark.slow
def test_a_run_of_an_older_version_has_no_bounds(runs):
    record = read(runs / "fedavg").runs[0]
    older = type(record)(record.folder, record.label, {**record.results, "bounds": {}})
    assert record.bounds("accuracy") == (0, 1)
    assert older.bounds("accuracy") is None
