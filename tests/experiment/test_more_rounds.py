"""More rounds for a finished run: the bits of a planned one, crashes, and what refuses them."""

import json
import shutil

import pytest

import vergence as vg
from tests.cli.commands import ONE, SEVERAL, run, vergence
from tests.engine.storage.test_resume import WRITERS
from tests.engine.toys import Interrupt, left_behind
from tests.experiment.made_up import arrays, trained
from vergence.engine.storage.more_rounds import files_of_last
from vergence.engine.storage.run_directory import read_manifest
from vergence.errors import ConfigError, PartialRun, StateError

SEEDS = ("run.seeds=[0, 1]", "run.evaluate_every=2", 'run.points=["P0", "P1", "P2"]')


def alike(one, other):
    """Everything a run says is equal, less the command that made it and where it lies."""
    ours, theirs = (left_behind(out) for out in (one, other))
    for found in (ours, theirs):
        for name in list(found):
            if name.endswith(("provenance.json", "checkpoint.json", ".html")):
                del found[name]
            # P1 is measured in a turn, and the points of the shorter run's end after it.
            elif name.endswith("curves.csv"):
                found[name] = sorted(found[name].splitlines())
            elif name.endswith("rounds.csv"):
                found[name].sort(
                    key=lambda row: (row["seed"], int(row["round"]), row["evaluation"])
                )
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize(("first", "more"), [(2, 5), (3, 4), (4, 5)])
@pytest.mark.parametrize("text", [ONE, SEVERAL], ids=["one", "several"])
def test_a_command_gives_a_run_more_rounds(text, first, more, tmp_path):
    """Two seeds, whose rows lie in one table: scores, turns, states and results are equal."""
    planned = run(tmp_path, text, *SEEDS, f"run.rounds={more}", out="planned")
    raised = run(tmp_path, text, *SEEDS, f"run.rounds={first}", out="raised")
    assert vergence("resume", raised, "--rounds", more).code == 0
    assert vergence("verify", raised).code == 0
    alike(raised, planned)
    again = vergence("resume", raised, "--rounds", more)
    assert again.code == 0


@pytest.mark.slow
def test_rounds_may_be_raised_twice(tmp_path):
    planned = run(tmp_path, ONE, "run.rounds=4", out="planned")
    raised = run(tmp_path, ONE, "run.rounds=1", out="raised")
    for rounds in (2, 4):
        assert vergence("resume", raised, "--rounds", rounds).code == 0
    alike(raised, planned)


def test_a_run_with_messages_under_way_says_why_it_has_no_more_rounds(tmp_path):
    """Each would be as large as a model, and is not kept when the run is over."""
    sets = ("delivery.name=fedbuff", "delivery.replies=2", 'methods=["fedavg"]')
    out = run(tmp_path, SEVERAL, *sets, "run.rounds=2")
    vergence("resume", out, "--rounds", 5).complains(2, "with a virtual clock (delivery)")


@pytest.mark.slow
def test_an_interruption_at_any_write_loses_nothing(tmp_path, monkeypatch):
    """The same command, made again, ends as the run that was planned with so many rounds."""
    options = (*SEEDS, 'methods=["fedavg_ft", "fedavg"]')
    planned = run(tmp_path, SEVERAL, *options, "run.rounds=3", out="planned")
    short = run(tmp_path, SEVERAL, *options, "run.rounds=2", out="short")
    for k in range(1, 400, 6):
        out = tmp_path / str(k)
        shutil.copytree(short, out)
        with monkeypatch.context() as patch:
            stop = Interrupt(k, after=k % 12 > 5)
            for module in (*WRITERS, "vergence.engine.storage.more_rounds.disk"):
                patch.setattr(f"{module}.write_whole", stop)
            code = vergence("resume", out, "--rounds", 3).code
        if stop.left > 0:
            assert code == 0
            break
        assert vergence("resume", out, "--rounds", 3).code == 0, k
        alike(out, planned)
    else:
        raise AssertionError("there were more writes than were tried")


@pytest.mark.parametrize("method", [vg.methods.FedAvgFT(), vg.methods.FedAvg(swa_start=2)])
def test_in_python_by_the_same_call_with_more_rounds(method, tmp_path):
    planned = trained(method=method, rounds=5)
    trained(tmp_path / "run", method=method, rounds=2)
    raised = trained(tmp_path / "run", method=method, rounds=5, resume=True)
    assert raised.fingerprint == planned.fingerprint
    assert raised.scores.equals(planned.scores)
    assert raised.history.drop(columns="seconds").equals(planned.history.drop(columns="seconds"))


def test_a_run_that_a_callback_stopped_goes_on(tmp_path):
    trained(tmp_path / "run", rounds=4, evaluate_every=1, on_round=lambda r: r.round == 2)
    raised = trained(tmp_path / "run", rounds=5, evaluate_every=1, resume=True)
    planned = trained(rounds=5, evaluate_every=1)
    assert raised.fingerprint == planned.fingerprint
    assert "stopped" not in json.loads((tmp_path / "run" / "results.json").read_text())
    assert raised.history.drop(columns="seconds").equals(planned.history.drop(columns="seconds"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"local": vg.LocalTraining(optimizer="sgd", schedule="cosine")},
            "this run's 2 rounds cannot become 4: local.schedule = 'cosine' depends on their "
            "number; start a new run",
        ),
        ({"privacy": {"user": {"noise": 1.0, "clip": 1.0}}}, "was chosen for 2 rounds"),
    ],
)
def test_settings_that_depend_on_the_number_of_rounds_refuse_it(options, says, tmp_path):
    first = trained(tmp_path / "run", method=vg.methods.FedAvg(), rounds=2, **options)
    with pytest.raises(ConfigError, match=says):
        trained(tmp_path / "run", method=vg.methods.FedAvg(), rounds=4, resume=True, **options)
    assert vg.open_run(first.folder).fingerprint == first.fingerprint


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_that_early_stopping_did_not_end_goes_on(every, tmp_path):
    """It may end in one of the further rounds, as a run that was planned with all of them."""
    rule = vg.EarlyStopping(patience=2, min_gain=1e9)
    options = {"evaluate_every": every, "early_stopping": rule, "method": vg.methods.FedAvgFT()}
    trained(tmp_path / "run", rounds=every, **options)
    raised = trained(tmp_path / "run", rounds=9, resume=True, **options)
    planned = trained(tmp_path / "planned", rounds=9, **options)
    alike(raised.folder, planned.folder)
    assert json.loads((raised.folder / "results.json").read_text())["stopped"]
    with pytest.raises(ConfigError, match="early_stopping ended it, however many rounds"):
        trained(tmp_path / "run", rounds=12, resume=True, **options)


def test_a_run_that_is_not_finished_is_finished_first(tmp_path):
    def stop(report):
        if report.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(PartialRun):
        trained(tmp_path / "run", rounds=3, on_round=stop)
    with pytest.raises(StateError, match="is not finished: go on with it as it was planned"):
        trained(tmp_path / "run", rounds=4, resume=True)
    trained(tmp_path / "run", rounds=3, resume=True)
    raised = trained(tmp_path / "run", rounds=4, resume=True)
    assert raised.fingerprint == trained(rounds=4).fingerprint


def test_a_run_whose_second_method_has_not_begun_is_finished_first(tmp_path):
    out = run(tmp_path, SEVERAL, "run.rounds=2")
    second = sorted(path.parent for path in out.glob("*/results.json"))[-1]
    shutil.rmtree(second)
    vergence("resume", out, "--rounds", 3).complains(2, "is not finished: go on with it")


@pytest.mark.parametrize(
    ("rounds", "changed", "says"),
    [
        (2, {}, "run.rounds: 3, now 2"),
        (4, {"evaluate_every": 1}, "run.evaluate_every"),
        (4, {"people": vg.Federation.from_arrays(arrays(seed=9))}, "other data"),
        (4, {"method": vg.methods.FedAvg()}, "other settings"),
    ],
)
def test_another_run_is_refused(rounds, changed, says, tmp_path):
    first = trained(tmp_path / "run")
    with pytest.raises(StateError, match=says):
        trained(tmp_path / "run", rounds=rounds, resume=True, **changed)
    assert vg.open_run(first.folder).fingerprint == first.fingerprint


def test_a_run_without_checkpoints_says_why(tmp_path):
    plan = vg.Plan(checkpoint_every=0)
    trained(tmp_path / "run", plan=plan)
    with pytest.raises(StateError, match="no state of its last round, as of runs with"):
        trained(tmp_path / "run", plan=plan, rounds=4, resume=True)


def test_whoever_is_erased_is_gone_from_what_a_run_goes_on_from(tmp_path):
    """FedAvgFT has states from before its last step; without the person it has no more rounds."""
    out = run(tmp_path, SEVERAL, 'methods=["fedrep"]', "run.rounds=2") / "fedrep"
    person = json.loads((out / "results.json").read_text())["people"][0]
    done = read_manifest(out)["done"]["0"]
    assert files_of_last(out, done)
    options = ("--out", tmp_path / "new", "--shadows", 0, "--erase")
    assert vergence("privacy", "forget", out, person, *options).code == 0
    assert "last" not in read_manifest(out)["done"]["0"]
    for path in (out / "state").rglob("*"):
        assert person not in path.name
        assert path.is_dir() or person.encode() not in path.read_bytes(), path
    vergence("resume", out, "--rounds", 3).complains(2, "somebody was erased")
