"""Scores of people by round: what is written, when, and what never is."""

import numpy as np
import pytest

import vergence as vg
from tests.experiment.made_up import trained
from vergence.engine.silos import Silos
from vergence.errors import PartialRun
from vergence.privacy.config import HIDING

pytestmark = pytest.mark.slow
EVERY = {"rounds": 5, "evaluate_every": 2}


def rows(run):
    """(round, person, point) -> headline, in the order of the table."""
    frame = run.curves
    keys = zip(frame["round"], frame.person, frame.point, strict=True)
    return dict(zip(keys, frame.test_loss, strict=True))


def bytes_of(out):
    return (out / "curves.csv").read_bytes()


def test_curves_are_the_scores_of_every_evaluation(tmp_path):
    """As callbacks saw them between rounds; after the last round, those of the final models."""
    seen = {}

    def on_round(report):
        seen[report.round] = dict(report.people)

    run = trained(tmp_path / "a", on_round=on_round, **EVERY)
    expected = {
        (at, person, "P0"): metrics["test_loss"]
        for at in (0, 2, 4, 5)
        for person, metrics in seen[at].items()
    }
    assert rows(run) == expected
    assert rows(vg.open_run(tmp_path / "a")) == expected
    assert list(run.curves) == ["seed", "round", "person", "point", "test_loss"]
    means = run.curves.groupby("round").test_loss.mean()
    np.testing.assert_allclose(means, run.history.test_loss[[0, 2, 4, 5]], rtol=1e-12)
    last = run.curves[run.curves["round"] == 5].set_index("person").test_loss
    assert last.to_dict() == run.scores.test_loss.to_dict()


def test_an_interrupted_run_has_the_same_table(tmp_path):
    whole = trained(tmp_path / "whole", seeds=[0, 1], **EVERY)

    def stop(report):
        if (report.seed, report.round) == (1, 3):
            raise KeyboardInterrupt

    with pytest.raises(PartialRun):
        trained(tmp_path / "a", seeds=[0, 1], on_round=stop, **EVERY)
    # Rows of a round that no checkpoint knows are cut off.
    with (tmp_path / "a/curves.csv").open("a") as file:
        file.write("1,4,P0,p00,test_loss,0.5\n")
    run = trained(tmp_path / "a", seeds=[0, 1], resume=True, **EVERY)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "whole")
    assert run.curves.equals(whole.curves)
    assert run.curves.seed.unique().tolist() == [0, 1]


def test_more_rounds_go_on_with_the_table(tmp_path):
    short = trained(tmp_path / "a", rounds=2, evaluate_every=1)
    assert {at for at, *_ in rows(short)} == {0, 1, 2}
    longer = trained(tmp_path / "a", rounds=4, evaluate_every=1, resume=True)
    assert rows(longer) == rows(trained(tmp_path / "b", rounds=4, evaluate_every=1))
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_a_run_that_is_stopped_has_each_score_once(tmp_path):
    stopping = vg.EarlyStopping(patience=1, min_gain=1e9)
    run = trained(tmp_path / "a", rounds=9, evaluate_every=1, early_stopping=stopping)
    last = max(run.history.index)
    assert last < 9
    assert not run.curves.duplicated(["seed", "round", "person", "point"]).any()
    assert run.curves["round"].max() == last
    assert {*run.curves.point} == {"P0", "V0"}


@pytest.mark.parametrize(
    "privacy", [{"aggregation": {"name": "pairwise"}}, {"solver": {"noise": 1.0, "clip": 1.0}}]
)
def test_a_run_that_hides_people_has_the_last_round_alone(privacy, tmp_path):
    assert {*privacy} <= {*HIDING}
    method = vg.methods.FedAvg()
    run = trained(tmp_path / "a", method=method, rounds=2, evaluate_every=1, privacy=privacy)
    assert not (tmp_path / "a/curves.csv").exists()
    assert {at for at, *_ in rows(run)} == {2}


def test_results_of_labs_are_no_scores_of_people(tmp_path):
    """P1 is measured inside a lab's turn, whose result is a mean over its people."""
    labs = {"north": ("p00", "p01"), "south": ("p02", "p03", "p04")}
    plan = vg.Plan(silos=Silos(labs), points=("P0", "P1"))
    run = trained(tmp_path / "a", method=vg.methods.FedAvg(), plan=plan, **EVERY)
    assert {point for *_, point in rows(run)} == {"P0"}
    assert {person for _, person, _ in rows(run)} == {*run.people}
