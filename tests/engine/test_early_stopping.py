"""Early stopping: when a run ends, what it leaves behind, and what refuses it."""

import json

import pytest

import vergence as vg
from tests.cli.commands import ONE, vergence, write
from tests.experiment.made_up import arrays, regression, trained
from vergence.engine.early_stopping import EarlyStopping
from vergence.errors import ConfigError

UP = [0.1, 0.3, 0.2, 0.25, 0.29]


@pytest.mark.parametrize(
    ("rule", "values", "lower", "ends"),
    [
        (EarlyStopping(3), UP, False, True),
        (EarlyStopping(4), UP, False, False),
        (EarlyStopping(3), UP[:4], False, False),
        (EarlyStopping(4), UP, True, True),
        (EarlyStopping(1), [0.5], False, False),
        (EarlyStopping(2, min_gain=0.05), [0.5, 0.52, 0.54], False, True),
        (EarlyStopping(2, min_gain=0.01), [0.5, 0.52, 0.54], False, False),
        (EarlyStopping(2), [float("nan"), float("nan")], False, True),
        (EarlyStopping(2), [0.5, float("nan"), 0.6], False, False),
        (EarlyStopping(2), [0.5, float("inf"), 0.6], False, False),
        (EarlyStopping(2), [0.5, float("inf"), float("inf")], False, True),
        (EarlyStopping(), [0.5] * 99, False, False),
    ],
)
def test_when_a_run_ends(rule, values, lower, ends):
    """Patience counts evaluations since the best value; equal values are no gain."""
    assert rule.ends(values, lower) is ends


def test_a_run_ends_where_its_validation_score_stops_to_gain(tmp_path):
    """With a learning rate of 0 nothing ever gains: patience 2 ends the run after round 2."""
    local = vg.LocalTraining(optimizer="sgd", lr=1e-30)
    run = trained(
        tmp_path / "run",
        method=vg.methods.FedAvg(local=local),
        rounds=9,
        evaluate_every=1,
        early_stopping=EarlyStopping(patience=2),
    )
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    why = "test_loss on validation samples has not gained for 2 evaluations"
    assert results["stopped"] == {"0": {"round": 2, "reason": why}}
    assert run.history["V0_test_loss"].notna().sum() == 3


def test_a_stopped_run_has_the_bits_of_a_shorter_one(tmp_path):
    """Its tables, too, but for what only early stopping measures."""
    stopped = trained(
        tmp_path / "a", rounds=9, evaluate_every=1, on_round=lambda report: report.round == 2
    )
    planned = trained(tmp_path / "b", rounds=2, evaluate_every=1)
    assert stopped.fingerprint == planned.fingerprint
    assert stopped.scores.equals(planned.scores)
    columns = [c for c in planned.history if c != "seconds"]
    assert stopped.history[columns].equals(planned.history[columns])


@pytest.mark.parametrize("name", ["FedAvgFT", "FedRep", "FedCPF"])
def test_methods_with_a_last_step_take_it(name, tmp_path):
    method = getattr(vg.methods, name)()
    stopped = trained(
        tmp_path / "a", method=method, rounds=9, evaluate_every=1, on_round=lambda r: r.round == 2
    )
    assert stopped.fingerprint == trained(method=method, rounds=2).fingerprint


def test_the_callback_gets_everybody_s_scores_and_the_last_round_s():
    """Once for every round, round 0 among them; the last one with the final models' scores."""
    reports = []
    run = trained(rounds=3, evaluate_every=2, on_round=reports.append)
    assert [report.round for report in reports] == [0, 1, 2, 3]
    assert ["test_loss" in report.metrics for report in reports] == [True, False, True, True]
    assert reports[-1].metrics["test_loss"] == pytest.approx(run.scores["test_loss"].mean())
    assert {"loss", "replies"} <= reports[-1].metrics.keys()
    people = {person: scores["test_loss"] for person, scores in reports[-1].people.items()}
    assert people == pytest.approx(run.scores["test_loss"].to_dict())
    assert reports[1].people == reports[0].people
    assert {report.processes for report in reports} == {1}


def test_an_interrupted_run_stops_where_the_whole_one_does(tmp_path):
    def interrupt(report):
        if report.round == 1:
            raise KeyboardInterrupt

    options = {
        "method": vg.methods.FedAvg(local=vg.LocalTraining(optimizer="sgd", lr=1e-30)),
        "rounds": 9,
        "evaluate_every": 1,
        "early_stopping": EarlyStopping(patience=2),
    }
    whole = trained(tmp_path / "whole", **options)
    with pytest.raises(vg.PartialRun):
        trained(tmp_path / "cut", on_round=interrupt, **options)
    cut = trained(tmp_path / "cut", resume=True, **options)
    assert cut.fingerprint == whole.fingerprint
    one, other = (json.loads((run.folder / "results.json").read_text()) for run in (whole, cut))
    assert (
        one["stopped"]
        == other["stopped"]
        == {"0": {"round": 2, "reason": one["stopped"]["0"]["reason"]}}
    )


def test_a_run_that_was_killed_after_it_stopped_does_not_go_on(tmp_path, monkeypatch):
    """The decision is in the checkpoint of its round."""

    def die(*_):
        raise KeyboardInterrupt

    options = {"rounds": 9, "evaluate_every": 1}
    with monkeypatch.context() as patched:
        patched.setattr("vergence.engine.round_loop.RoundLoop.final", die)
        with pytest.raises(vg.PartialRun):
            trained(tmp_path / "run", on_round=lambda report: report.round == 2, **options)
    again = trained(tmp_path / "run", resume=True, **options)
    assert again.fingerprint == trained(rounds=2).fingerprint


@pytest.mark.parametrize(
    "privacy",
    [
        {"user": {"noise": 1.0, "clip": 1.0}},
        {"solver": {"noise": 1.0}},
        {"aggregation": {"name": "pairwise"}},
    ],
)
def test_budgets_and_secure_sums_refuse_both(privacy):
    with pytest.raises(ConfigError, match="early_stopping: "):
        trained(privacy=privacy, early_stopping=EarlyStopping(patience=2), evaluate_every=1)
    with pytest.raises(ConfigError, match="on_round returned True, which ends a run: early_stop"):
        trained(privacy=privacy, on_round=lambda report: report.round == 1, rounds=3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"early_stopping": 3}, r"write vergence.EarlyStopping\(patience=3\)"),
        ({"patience": 3}, "early_stopping=vergence.EarlyStopping"),
        (
            {"early_stopping": EarlyStopping(3), "evaluate_every": 0},
            "run.evaluate_every = 0 evaluates at the end only",
        ),
        (
            {"early_stopping": EarlyStopping(3, "accuracy"), "evaluate_every": 1},
            "metric = 'accuracy' is not measured on validation samples, and test samples never end "
            "a run; choose one of what is measured there: test_loss",
        ),
    ],
)
def test_what_is_refused(options, says):
    with pytest.raises((ConfigError, TypeError), match=says):
        trained(**options)


def test_a_deployment_refuses_it():
    from vergence.deployment.joined_node import deployable
    from vergence.experiment.schema import load

    sets = ["early_stopping.patience=2", "run.evaluate_every=1"]
    with pytest.raises(ConfigError, match="early_stopping: clients of a deployment agree"):
        deployable(load("toy", sets))


@pytest.mark.slow
def test_an_early_end_is_said_wherever_the_run_is_shown(tmp_path, capsys):
    """On the console, by the runs in text and HTML, and for each method of a comparison."""
    options = {"rounds": 9, "evaluate_every": 1, "workers": 1, "seeds": [0, 1]}
    people, rule = vg.Federation.from_arrays(arrays()), EarlyStopping(2, min_gain=1e9)
    methods = [vg.methods.FedAvg(), vg.methods.LocalOnly()]
    runs = vg.train_all(methods, regression(), people, early_stopping=rule, **options)
    why = "test_loss on validation samples has not gained for 2 evaluations"
    ends = "ended after round 2 (seed 0), 2 (seed 1) of 9 (2 steps a person)"
    best = {m: run.record.results["best_round"] for m, run in runs.items()}
    lines = [
        f"{m} {ends}: {why}; the models of round {at['0']} (seed 0), {at['1']} (seed 1) stay"
        for m, at in best.items()
    ]
    printed = [line for line in capsys.readouterr().err.splitlines() if "ended" in line]
    assert printed == [f"vergence: {line}" for line in lines]
    for line, run in zip(lines, runs.values(), strict=True):
        assert line in repr(run).splitlines()
        assert f"<p>{line}</p>" in run._repr_html_()
    assert vg.compare(runs).notes == tuple(lines)
    whole = trained(rounds=1, progress=True)
    assert "ended" not in repr(whole) + capsys.readouterr().err
    stopped = trained(tmp_path / "a", rounds=3, on_round=lambda report: report.round == 1)
    assert "FedPer" not in capsys.readouterr().err
    assert "fedper ended after round 1 of 3 (1 step a person): on_round returned" in repr(stopped)


@pytest.mark.slow
def test_the_command_says_it_too(tmp_path):
    sets = ("early_stopping.patience=1", "early_stopping.min_gain=9.0", "run.evaluate_every=1")
    out = tmp_path / "out"
    said = vergence("run", write(tmp_path, ONE), "--out", out, *(f"--set={s}" for s in sets))
    line = "a person): error on validation samples has not gained for 1 evaluation"
    assert line in said.out
    assert line in vergence("compare", out).out
