"""A run that stops gaining goes back to its best evaluation: states, tables, and what is said."""

import json
import math

import pytest

import vergence as vg
from tests.cli.commands import vergence
from tests.engine.storage.test_resume import WRITERS
from tests.engine.toys import CHAIN, Interrupt, left_behind, run_toy
from tests.experiment.made_up import arrays, regression, trained
from vergence.core.local_training import LocalTraining
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.silos import Silos
from vergence.engine.storage.run_directory import read_manifest
from vergence.errors import ConfigError, PartialRun
from vergence.experiment.trained_run import verify_digests

NAN, INF = math.nan, math.inf
# So fast that the loss on validation samples rises and falls.
FAST = LocalTraining(optimizer="sgd", batch=8, lr=0.3)
METHODS = ("FedAvg", "FedCPF", "FedAvgFT", "FedRep", "LocalOnly", "Scaffold")


def stopping(out, name="FedCPF", patience=2, **options):
    """Train until the loss has not gained for two rounds; half the people take part in a round."""
    how = {"rounds": 12, "evaluate_every": 1, "participation": vg.Participation(cohort=0.5)}
    method = getattr(vg.methods, name)(local=FAST)
    how |= {"early_stopping": EarlyStopping(patience), **options}
    return trained(out, method=method, **how)


def ends(run):
    """Return a run's last round, and the round of its best evaluation, of seed 0."""
    results = json.loads((run.folder / "results.json").read_text())
    last = results.get("stopped", {}).get("0", {}).get("round", results["rounds"])
    return last, results["best_round"]["0"]


@pytest.mark.parametrize(
    ("values", "lower", "best"),
    [
        ([0.1, 0.3, 0.2], False, 1),
        ([0.1, 0.3, 0.2], True, 0),
        ([0.3, 0.3, 0.2, 0.3], False, 0),
        ([0.5, 0.2, 0.2], True, 1),
        ([NAN, 0.2, NAN, 0.3, INF], False, 3),
        ([INF, -INF, 0.3], True, 2),
        ([NAN, INF], False, None),
        ([], False, None),
    ],
)
def test_the_best_value_is_the_first_of_the_finite_ones(values, lower, best):
    """By any gain: `min_gain` ends a run, and does not choose."""
    assert EarlyStopping(2, min_gain=9.0).best(values, lower) == best


@pytest.mark.parametrize("name", ["FedCPF", pytest.param("FedAvg", marks=pytest.mark.slow)])
def test_people_have_the_scores_of_the_best_round(name, tmp_path):
    """Bit by bit, those of curves.csv, where all rounds stay."""
    state, counts = tmp_path / "run/state", []
    run = stopping(
        tmp_path / "run",
        name,
        on_round=lambda _: counts.append(len([*state.glob("*.client.*")])),
    )
    # Nothing is copied: a person has the best state, that of the checkpoint, and a spare file.
    assert max(counts) <= 3 * len(run.people)
    last, best = ends(run)
    assert best < last < 12
    values = run.history["V0_test_loss"]
    assert values.idxmin() == best
    assert values.index.max() == last
    rows = [line.split(",") for line in (tmp_path / "run/curves.csv").read_text().splitlines()]
    there = {(who, m): v for _, at, point, who, m, v in rows if (at, point) == (str(best), "P0")}
    rows = [line.split(",") for line in (tmp_path / "run/people.csv").read_text().splitlines()]
    assert {(who, m): v for _, who, _, m, v in rows[1:]} == there
    own = run.curves[run.curves.point == "P0"]
    assert not own.duplicated(["round", "person"]).any()
    assert own["round"].max() == last
    assert run.history["test_loss"][best] == pytest.approx(run.scores["test_loss"].mean())
    assert run.history["test_loss"][last] != run.history["test_loss"][best]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_it_has_the_bits_of_a_run_that_ended_in_that_round(name, tmp_path):
    """States of clients, the server's, and what `finish` makes of them; nothing else is left."""
    run = stopping(tmp_path / "back", name)
    last, best = ends(run)
    assert best < last
    plain = stopping(
        tmp_path / "plain", name, early_stopping=None, on_round=lambda r: r.round == best
    )
    assert run.fingerprint == plain.fingerprint
    assert run.scores.equals(plain.scores)
    kinds = [
        sorted(p.name.split(".")[1:3] for p in (tmp_path / o / "state").glob("*.client.*"))
        for o in ("back", "plain")
    ]
    assert kinds[0] == [list(pair) for pair in sorted({tuple(each) for each in kinds[1]})]
    files = read_manifest(tmp_path / "back")["done"]["0"]["files"]
    assert len([*(tmp_path / "back/state").glob("*.server.*")]) == 1
    assert (tmp_path / "back/state" / files["clients"][0]).read_text().count("\n") == len(kinds[0])
    assert verify_digests(tmp_path / "back") == [0]


@pytest.mark.slow
def test_without_it_the_last_round_stays(tmp_path):
    """As runs of before had it, whose configs name no `restore_best`."""
    rule = EarlyStopping(2, restore_best=False)
    run = stopping(tmp_path / "run", early_stopping=rule)
    results = json.loads((tmp_path / "run/results.json").read_text())
    last = results["stopped"]["0"]["round"]
    assert "best_round" not in results
    assert run.history["test_loss"][last] == pytest.approx(run.scores["test_loss"].mean())
    config = tmp_path / "run/config.toml"
    text = config.read_text()
    assert "restore_best = false" in text
    config.write_text(text.replace("restore_best = false\n", ""))
    people = vg.Federation.from_arrays(arrays())
    again = vg.open_run(run.folder, task=regression(), people=people)
    assert again.experiment.plan.early_stopping == rule


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "every", "step"),
    [
        ("FedAvgFT", 1, 9),
        ("FedCPF", 0, 29),
        ("FedCPF", 4, 17),
        pytest.param("FedCPF", 1, 3, marks=pytest.mark.nightly),
    ],
)
def test_interruptions_and_workers_change_nothing(name, every, step, tmp_path, monkeypatch):
    """At any write: before the best evaluation, after it, and between going back and the end."""
    how = {"plan": vg.Plan(checkpoint_every=every), "seeds": [0, 1]}
    whole = stopping(tmp_path / "whole", name, **how)
    several = stopping(tmp_path / "several", name, **{**how, "workers": 2})
    assert several.fingerprint == whole.fingerprint
    expected = left_behind(tmp_path / "whole")
    for k in range(1, 400, step):
        out = tmp_path / str(k)
        with monkeypatch.context() as patch:
            stop = Interrupt(k, after=k % 2 == 0)
            for module in WRITERS:
                patch.setattr(f"{module}.write_whole", stop)
            if stop_is_over(out, name, how):
                break
        stopping(out, name, resume=True, **how)
        assert left_behind(out) == expected, k
    else:
        raise AssertionError("there were more writes than were tried")


def stop_is_over(out, name, how):
    """Return whether a run ended although a write was to interrupt it."""
    try:
        stopping(out, name, **how)
    except (PartialRun, KeyboardInterrupt):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedCPF", "FedAvgFT"])
def test_more_rounds_may_have_a_better_evaluation(name, tmp_path):
    """A run that reached its rounds goes on after the last one, not from the best one."""
    how = {"patience": 9, "evaluate_every": 2, "seeds": [0, 1]}
    planned = stopping(tmp_path / "planned", name, **how)
    first = stopping(tmp_path / "raised", name, **how, rounds=4)
    assert ends(first)[0] == 4
    raised = stopping(tmp_path / "raised", name, **how, resume=True)
    assert raised.fingerprint == planned.fingerprint
    assert raised.scores.equals(planned.scores)
    assert raised.curves.equals(planned.curves)
    assert ends(raised) == ends(planned)


@pytest.mark.slow
def test_more_rounds_need_a_last_round_that_they_evaluate(tmp_path):
    stopping(tmp_path / "run", patience=9, evaluate_every=2, rounds=3)
    with pytest.raises(ConfigError, match="compared the models of round 3, which is no evaluation"):
        stopping(tmp_path / "run", patience=9, evaluate_every=2, rounds=5, resume=True)


@pytest.mark.slow
def test_a_run_of_few_rounds_is_evaluated_after_the_last(tmp_path):
    """Else the models before training would be the only ones that were."""
    slow = vg.methods.FedAvg(local=LocalTraining(optimizer="sgd", lr=0.01))
    run = trained(tmp_path / "run", method=slow, early_stopping=EarlyStopping(2))
    assert ends(run) == (3, 3)


@pytest.mark.slow
def test_a_model_that_nothing_improves_is_that_before_training():
    wild = vg.methods.FedAvg(local=LocalTraining(optimizer="sgd", lr=3.0))
    reports = []
    run = trained(
        method=wild,
        rounds=2,
        evaluate_every=1,
        early_stopping=EarlyStopping(3),
        on_round=reports.append,
    )
    assert ends(run) == (2, 0)
    assert run.history["test_loss"][0] == pytest.approx(run.scores["test_loss"].mean())
    assert [report.round for report in reports] == [0, 1, 2]
    assert reports[-1].metrics["test_loss"] == pytest.approx(run.scores["test_loss"].mean())
    assert "trained all 2 rounds" in repr(run)
    assert "; the models of round 0 stay" in repr(run)


@pytest.mark.slow
def test_what_is_never_finite_leaves_the_last_round(tmp_path, monkeypatch):
    monkeypatch.setattr(EarlyStopping, "best", lambda *_: None)
    run = stopping(tmp_path / "run", rounds=2)
    assert "best_round" not in json.loads((tmp_path / "run/results.json").read_text())
    assert run.history["test_loss"][2] == pytest.approx(run.scores["test_loss"].mean())


@pytest.mark.slow
def test_the_best_states_are_forgotten_too(tmp_path):
    """A run that reached its rounds has states for going on; none of the person's stays."""
    local = ("local.optimizer=sgd", "local.lr=0.2")
    sets = ("early_stopping.patience=9", "run.rounds=4", "run.evaluate_every=1", *local)
    out = tmp_path / "run"
    more = [f"--set={each}" for each in (*sets, 'methods=["fedrep"]')]
    assert vergence("run", "toy", "--out", out, *more).code == 0
    folder = out / "fedrep"
    done = read_manifest(folder)["done"]["0"]
    assert done["best_round"] < 4
    assert {"best", "files"} <= done["last"].keys()
    who = json.loads((folder / "results.json").read_text())["people"][0]
    assert [*(folder / "state").glob(f"*.client.{who}.*")]
    told = vergence(
        "privacy", "forget", out, who, "--out", tmp_path / "new", "--shadows", 0, "--erase"
    )
    assert told.code == 0, told.out
    assert not [*(folder / "state").glob(f"*.client.{who}.*")]
    assert vergence("verify", out).code == 0


def test_pruning_needs_the_last_round():
    from vergence.training.pruning import Gradual

    how = {"rounds": 9, "evaluate_every": 1, "pruning": Gradual(0.5)}
    with pytest.raises(ConfigError, match="models that are not pruned yet"):
        vg.Plan(early_stopping=EarlyStopping(2), **how)
    assert vg.Plan(early_stopping=EarlyStopping(2, restore_best=False), **how)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "how"),
    [
        (vg.methods.SplitFed, {"task": CHAIN}),
        (vg.methods.SplitFedU, {"task": CHAIN}),
        (vg.methods.FedAvg, {"delivery": Delivery("fedbuff", replies=2), "people": 5}),
        (
            vg.methods.FedCPF,
            {"silos": Silos({"a": ("p00", "p01"), "b": ("p02", "p03")}), "people": 4},
        ),
        (vg.methods.FedCPF, {"engine": "bytes"}),
    ],
    ids=["split", "without labels", "one by one", "labs", "bytes"],
)
def test_every_way_to_train_goes_back(method, how, tmp_path):
    """To the bits of a run that was planned with so many rounds."""
    local = LocalTraining(optimizer="sgd", batch=8, lr=0.12)
    until = {"rounds": 12, "evaluate_every": 1, "early_stopping": EarlyStopping(2)}
    back = run_toy(tmp_path / "back", method(local=local), **until, **how)
    best = read_manifest(tmp_path / "back")["done"]["0"]["best_round"]
    assert best < read_manifest(tmp_path / "back")["stopped"]["0"][0]
    planned = run_toy(tmp_path / "planned", method(local=local), rounds=best, **how)
    assert back.fingerprint == planned.fingerprint
