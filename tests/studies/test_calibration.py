"""`vergence study calibrate`: recorded predictions, and a run that never saw a person."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.cli.commands import run
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError, DataError
from vergence.experiment.newcomers import find_held_out
from vergence.experiment.schema import load
from vergence.metrics.angles import mean_direction
from vergence.metrics.calibration import FittedCalibration, orders
from vergence.studies.adaptation_curves import adaptation_figure, harmed, show_gains
from vergence.studies.calibration import (
    CalibrationOptions,
    best_for_others,
    calibrate,
    own_priors,
)
from vergence.studies.curves import Curves
from vergence.studies.protocols import evaluate

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 120, days = [3, 3], size = "9x15" }
methods    = ["fedavg", "local_only", "fedper", { name = "per_fedavg", alpha = 0.2, steps = 3 }]
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 2, evaluate_every = 0, workers = 1 }
"""


def quiet():
    return Console(file=io.StringIO(), width=120)


def table(path):
    with path.open(newline="") as file:
        return {
            (r["kind"], r["person"], int(r["count"])): float(r["value"])
            for r in csv.DictReader(file)
        }


def write_npz(folder: Path, n=80) -> Path:
    """Two people whose predictions are off by 0.1 in pitch, the right eyes' the other way."""
    rng = np.random.default_rng(0)
    gaze = rng.normal(0, 0.1, (2, n, 2))
    shift = np.where(np.arange(n) < n // 2, 0.1, -0.1)
    pred = gaze + np.stack([shift, 0 * shift], 1)
    pred[1] += 0.15
    path = folder / "predictions.npz"
    np.savez(path, gaze=gaze, mine=pred, person=np.array(["ann", "bob"]))
    return path


@pytest.fixture(scope="module")
def left_out(tmp_path_factory):
    """A leave-one-out evaluation of three synthetic people."""
    folder = tmp_path_factory.mktemp("loo")
    (folder / "eyes.toml").write_text(EYES)
    evaluate("leave-one-out", load(folder / "eyes.toml"), folder / "out", quiet())
    return folder / "out" / "leave-one-out"


def test_predictions_get_a_table_a_figure_and_numbers(tmp_path):
    source, out, said = write_npz(tmp_path), tmp_path / "cal.png", io.StringIO()
    options = CalibrationOptions(prediction="mine", counts=(0, 2, 20), draws=5)
    (curves,) = calibrate([source], out, options, Console(file=said, width=120))
    assert out.stat().st_size > 5000
    told = table(out.with_suffix(".csv"))
    assert {person for _, person, _ in told} == {"ann", "bob"}
    assert told["offset", "ann", 0] == pytest.approx(np.rad2deg(0.1), rel=0.01)
    # Both eyes together: ann's biases cancel, bob's common part goes.
    assert told["offset", "ann", 20] == pytest.approx(np.rad2deg(0.1), rel=0.05)
    assert told["offset", "bob", 20] < told["offset", "bob", 0] - 1
    assert curves.values["offset"][1, 0] == told["offset", "bob", 0]
    assert "shrunk offset" in said.getvalue()


def test_eyes_apart_and_one_person(tmp_path):
    out = tmp_path / "cal.svg"
    options = CalibrationOptions("bob", "mine", "each", (0, 2), 3)
    calibrate([write_npz(tmp_path)], out, options, quiet())
    told = table(out.with_suffix(".csv"))
    assert {person for _, person, _ in told} == {"bob"}
    assert told["offset", "bob", 2] < 1e-6


def test_the_same_choice_the_same_numbers(tmp_path):
    source = write_npz(tmp_path)
    for name in ("one.png", "two.png"):
        options = CalibrationOptions(prediction="mine", counts=(3,), draws=2, seed=4)
        calibrate([source], tmp_path / name, options, quiet())
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_bad_predictions_are_named(tmp_path):
    source, out = write_npz(tmp_path), tmp_path / "x.png"
    with pytest.raises(DataError, match="pred_lenet"):
        calibrate([source], out, CalibrationOptions(), quiet())
    with pytest.raises(ConfigError, match=r"no person 'an'.*did you mean 'ann'"):
        calibrate([source], out, CalibrationOptions("an", "mine"), quiet())
    with pytest.raises(ConfigError, match="draws must be >= 0; got -1"):
        CalibrationOptions(draws=-1)
    with pytest.raises(ConfigError, match="steps must be >= 1; got 0"):
        CalibrationOptions(steps=0)
    with pytest.raises(ConfigError, match="lr must be > 0; got 0"):
        CalibrationOptions(lr=0.0)
    with pytest.raises(ConfigError, match="--steps is for fine-tuning a run"):
        calibrate([source], out, CalibrationOptions(prediction="mine", steps=50), quiet())
    with pytest.raises(ConfigError, match="--lr is for fine-tuning a run"):
        calibrate([source], out, CalibrationOptions(prediction="mine", lr=0.1), quiet())
    np.savez(source, gaze=np.zeros((2, 9, 2)), mine=np.zeros((2, 8, 2)))
    with pytest.raises(DataError, match="the same shape"):
        calibrate([source], out, CalibrationOptions(prediction="mine"), quiet())


def test_a_run_is_calibrated_for_those_it_never_saw(left_out, tmp_path):
    out = tmp_path / "cal.png"
    options = CalibrationOptions(counts=(0, 5, 20), draws=2, steps=4)
    (curves,) = calibrate([left_out / "fedavg"], out, options, quiet())
    assert curves.people == ("p00", "p01", "p02")
    kinds = ["offset", "shrunk offset", "affine", "shrunk affine", "fitted offset", "fitted affine"]
    closed = ["residual kernel", "kernel ridge alone"]
    assert list(curves.values) == [*kinds, "fitted eyes", *closed, "last layer", "whole model"]
    people = (left_out / "fedavg" / "people.csv").read_text()
    for row, person in enumerate(curves.people):
        starts = {float(values[row, 0]) for values in curves.values.values()}
        assert len(starts) == 1
        assert f"0,{person},P0,angle_error_deg,{starts.pop()!r}" in people
    assert not np.allclose(curves.values["last layer"], curves.values["whole model"])
    assert curves.values["offset"][1, 2] == pytest.approx(by_hand(left_out / "fedavg", "p01", 20))


def by_hand(folder: Path, person: str, k: int) -> float:
    """The server's outputs plus the mean residual of the k samples of either draw."""
    trained = find_held_out(folder).run(person)
    data, errors = trained.ready.people[person], []
    near, far = (trained.outputs(trained.server.model, part) for part in (data.train, data.test))
    for rows in orders(len(data.train), 2, RandomStream("calibrate", 0, 0, person).numpy())[:, :k]:
        offset = (data.train.columns["gaze"][rows] - near[rows]).mean(0)
        errors.append(trained.task.metrics(far + offset, data.test)["angle_error_deg"])
    return float(np.mean(errors))


def test_priors_are_those_of_the_others_as_strangers(left_out):
    """Of p00 they are made of p01 and p02, each predicted by the run without them."""
    everybody, seen = find_held_out(left_out / "fedavg"), []
    for person in ("p01", "p02"):
        run = everybody.run(person)
        train = run.ready.people[person].train
        outputs = run.outputs(run.server.model, train).double()
        seen.append((outputs, train.columns["gaze"].double(), train.columns["side"]))
    wanted = FittedCalibration.of(seen, "slopes")
    got = own_priors(everybody, ["p00"], 0)["p00"]["fitted affine"]
    assert got.spread.tolist() == wanted.spread.tolist()
    assert everybody.others_in_training("p00") == ("p01", "p02")


def test_a_pull_is_chosen_by_what_is_best_for_the_others():
    """Of the first person by the second one's errors, and the other way round; 3 is no pull."""
    tried = {1.0: np.array([[3.0, 1.0], [3.0, 9.0]]), 5.0: np.array([[3.0, 2.0], [3.0, 2.0]])}
    before = np.array([[3.0], [3.0]])
    assert best_for_others(tried, before).tolist() == [[3.0, 2.0], [3.0, 9.0]]
    assert best_for_others({1.0: tried[1.0]}, before).tolist() == [[3.0, 3.0], [3.0, 9.0]]


def test_a_pulled_model_is_one_row(left_out, tmp_path):
    options = CalibrationOptions(counts=(0, 5), draws=1, steps=2, lr=1e-3, pulls=(0.1, 1.0))
    (curves,) = calibrate([left_out / "fedavg"], tmp_path / "cal.png", options, quiet())
    assert list(curves.values)[-1] == "pulled model"
    assert not [kind for kind in curves.values if kind.startswith("pull ")]
    alone = CalibrationOptions("p01", counts=(0, 5), draws=1, pulls=(1.0,))
    with pytest.raises(ConfigError, match="chosen on other people"):
        calibrate([left_out / "fedavg"], tmp_path / "cal.png", alone, quiet())


def test_one_fold_and_one_person(left_out, tmp_path):
    fold = left_out / "folds" / "p01" / "fedavg"
    assert list(find_held_out(fold).folders) == ["p01"]
    with pytest.raises(ConfigError, match="'p00' was not left out"):
        find_held_out(fold, "p00")
    options = CalibrationOptions("p01", counts=(0,), draws=1)
    (curves,) = calibrate([fold], tmp_path / "cal.png", options, quiet())
    assert curves.people == ("p01",)


@pytest.mark.parametrize(("label", "warns"), [("fedavg", False), ("fedper", True)])
def test_a_start_with_untrained_parts_is_said(left_out, tmp_path, label, warns):
    said = io.StringIO()
    options = CalibrationOptions("p01", counts=(0,), draws=1)
    calibrate([left_out / label], tmp_path / "cal.png", options, Console(file=said, width=200))
    assert ("k = 0 starts from parts never trained for anybody" in said.getvalue()) is warns


@pytest.mark.parametrize(
    ("people", "told"),
    [
        (("ann", "bob"), ""),
        (("p04", "p12"), "for p04 the shrunk rows are no independent result"),
        (("p11", "p14"), ""),
        (None, "for these, if the file holds any (it names nobody), the shrunk rows are no"),
    ],
)
def test_those_on_whom_the_priors_were_fitted_are_no_independent_result(people, told, tmp_path):
    source, said = write_npz(tmp_path), io.StringIO()
    with np.load(source) as file:
        held = {name: file[name] for name in ("gaze", "mine")}
    np.savez(source, **held, **({} if people is None else {"person": np.array(people)}))
    options = CalibrationOptions(prediction="mine", counts=(0, 2), draws=2)
    calibrate([source], tmp_path / "cal.png", options, Console(file=said, width=300))
    assert told in said.getvalue()
    assert ("independent" in said.getvalue()) is bool(told)


def test_strangers_of_other_data_are_an_independent_result(left_out, tmp_path):
    """Synthetic people are called p00 to p02, and are nobody of MPIIGaze's."""
    said = io.StringIO()
    options = CalibrationOptions("p01", counts=(0, 5), draws=1, steps=1)
    (curves,) = calibrate([left_out / "fedavg"], tmp_path / "cal.png", options, Console(file=said))
    assert "shrunk offset" in curves.values
    assert "independent" not in said.getvalue()


def test_what_cannot_be_calibrated_is_said(left_out, tmp_path):
    out = tmp_path / "cal.png"
    with pytest.raises(ConfigError, match="--prediction is for an npz"):
        calibrate([left_out / "fedavg"], out, CalibrationOptions(prediction="pred_lenet"), quiet())
    with pytest.raises(ConfigError, match="shares no model"):
        calibrate([left_out / "local_only"], out, CalibrationOptions(counts=(0,)), quiet())
    with pytest.raises(ConfigError, match=r"99 samples, but 'p00' has \d\d for training"):
        calibrate([left_out / "fedavg"], out, CalibrationOptions(counts=(99,)), quiet())
    with pytest.raises(ConfigError, match="column side"):
        calibrate([left_out / "fedavg"], out, CalibrationOptions(eyes="each", counts=(5,)), quiet())
    whole = run(tmp_path, EYES)
    with pytest.raises(ConfigError, match="everybody took part"):
        calibrate([whole / "fedavg"], out, CalibrationOptions(), quiet())


def test_a_method_adapts_to_the_k_samples_alone(left_out, tmp_path):
    """k = 0 is the model as sent; all samples give what the run itself measured for a stranger."""
    options = CalibrationOptions(counts=(0, 4, 36), draws=2, steps=1)
    (found,) = calibrate([left_out / "per_fedavg"], tmp_path / "c.png", options, quiet())
    own = found.values["the method's own"]
    assert np.array_equal(own[:, 0], found.values["whole model"][:, 0])
    row, trained = found.people.index("p01"), find_held_out(left_out / "per_fedavg").run("p01")
    assert len(trained.ready.people["p01"].train) == 36
    at_home = trained.measure(trained.model("p01", known=False), "p01")
    assert own[row, 2] == pytest.approx(at_home[trained.task.headline], rel=1e-4)
    assert own[row, 0] == trained.measure(trained.newcomer("p01"), "p01")[trained.task.headline]
    assert own[row, 1] != own[row, 0]


def test_a_method_that_sends_what_strangers_predict_with_has_no_row_of_its_own(left_out, tmp_path):
    options = CalibrationOptions(counts=(0, 4), draws=1, steps=1)
    (found,) = calibrate([left_out / "fedavg"], tmp_path / "c.png", options, quiet())
    assert "the method's own" not in found.values


def test_adapt_is_measured_beside_the_ways_it_chooses_among(left_out, tmp_path):
    options = CalibrationOptions(counts=(0, 1, 6), draws=1, steps=3, adapt=True)
    said = io.StringIO()
    (curves,) = calibrate(
        [left_out / "fedavg"], tmp_path / "cal.png", options, Console(file=said, width=120)
    )
    chosen, ways = curves.values["adapt, as it chooses"], list(curves.values)
    assert ways[-3:-1] == ["constant mean of the k samples", "training alone on the k samples"]
    assert not any(way.startswith("pull ") for way in ways), "those are tried, and not shown"
    fitted = curves.values["residual kernel"]
    assert np.array_equal(chosen[:, 1], fitted[:, 1]), "one sample follows the other people"
    others = np.stack([curves.values[way][:, 2] for way in ways[:-3]])
    for person in range(3):
        assert chosen[person, 2] == chosen[person, 0] or chosen[person, 2] in others[:, person]
    assert "People of 3 whom samples make worse off" in said.getvalue()


def test_a_constant_is_the_mean_direction_of_the_samples(left_out, tmp_path):
    options = CalibrationOptions("p01", counts=(4,), draws=1, steps=1, adapt=True)
    (curves,) = calibrate([left_out / "fedavg"], tmp_path / "cal.png", options, quiet())
    trained = find_held_out(left_out / "fedavg").run("p01")
    data = trained.ready.people["p01"]
    (rows,) = orders(len(data.train), 1, RandomStream("calibrate", 0, 0, "p01").numpy())[:, :4]
    mean = mean_direction(data.train.columns["gaze"][rows].double())
    wanted = trained.task.metrics(mean.expand(len(data.test), 2), data.test)["angle_error_deg"]
    assert curves.values["constant mean of the k samples"][0, 0] == pytest.approx(wanted)


def test_gains_are_told_with_their_interval_over_people():
    """Errors 10 and 8 become 9 and 8: 0.5 less in the mean, -/+ t(1) 0.5 = 12.7 * 0.5 = 6.35."""
    values = {
        "adapt, as it chooses": np.array([[10.0, 9.0], [8.0, 8.0]]),
        "training alone on the k samples": np.array([[np.nan, 10.0], [np.nan, 12.0]]),
        "constant mean of the k samples": np.array([[np.nan, 9.0], [np.nan, 9.0]]),
    }
    said = io.StringIO()
    curves = Curves("angle_error_deg", "calibration samples", ("a", "b"), (0, 5), values, "")
    show_gains(curves, True, Console(file=said, width=120))
    assert "than the shared model 0.50 [−5.85, 6.85]" in " ".join(said.getvalue().split())
    assert "than training alone 2.50 [" in " ".join(said.getvalue().split())
    show_gains(curves, False, Console(file=said, width=120))
    assert "than the shared model −0.50 [" in " ".join(said.getvalue().split())


def test_several_runs_are_panels_of_one_figure(left_out, tmp_path):
    options = CalibrationOptions("p01", counts=(0, 4), draws=1, steps=1, adapt=True)
    sources = [left_out / "fedavg", left_out / "per_fedavg"]
    found = calibrate(sources, tmp_path / "two.png", options, quiet())
    page = adaptation_figure(found)
    assert [axes.get_title("left") for axes in page.axes] == ["eye_synthetic, 1 new person"] * 2
    drawn = {line.get_label(): line.get_ydata() for line in page.axes[0].get_lines()}
    assert drawn["adapt, as it chooses"][1] == found[0].values["adapt, as it chooses"][0, 1]
    assert drawn["shared model, as it is"].tolist() == [drawn["adapt, as it chooses"][0]] * 2
    with (tmp_path / "two.csv").open(newline="") as file:
        assert {row["data"] for row in csv.DictReader(file)} == {"eye_synthetic"}
    with pytest.raises(ConfigError, match="several runs with --adapt; got 2"):
        calibrate(sources, tmp_path / "two.png", replace(options, adapt=False), quiet())


def test_harm_is_counted_against_the_shared_model():
    """Of errors 10: 10.05 is within one percent, 10.2 is not; where more is better, 9.8 is not."""
    values = np.array([[10.0, 10.05], [10.0, 10.2], [10.0, 9.8]])
    curves = Curves("m", "k", ("a", "b", "c"), (0, 5), {"adapt, as it chooses": values}, "")
    assert harmed(curves, True) == {"adapt, as it chooses": [1]}
    assert harmed(curves, False) == {"adapt, as it chooses": [1]}
    assert harmed(replace(curves, values={"adapt, as it chooses": values[:2]}), False) == {
        "adapt, as it chooses": [0]
    }
