"""`vergence study sweep`: equal budgets, no test data, resumable; its winners run as written."""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from tests.cli.commands import write
from tests.conftest import ROOT
from vergence.core.data import Samples, Splits
from vergence.data.synthetic.toy import Toy
from vergence.engine.round_loop import run_rounds
from vergence.errors import ConfigError, DataError, PartialRun, StateError
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.methods.fedavg import FedAvg
from vergence.results.write import person_means
from vergence.studies import trials
from vergence.studies.protocols import evaluate
from vergence.studies.sweep import resume, show, sweep, trial_entries
from vergence.studies.trials import Log

TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 4 }
methods    = ["local_only", { name = "fedcpf", rate = 0.2, sweep = { limit = [0.2, 0.8] } }]
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 2, seeds = [0, 1], workers = 1, solver = "sequential" }

[sweep]
people = 0.5
space  = { "local.lr" = [0.02, 0.1] }
"""
SMALL = TOY.replace(
    '"local_only"', '{ name = "local_only", sweep = { "local.momentum" = [0, 0.9] } }'
)


def rows(out):
    with (out / "trials.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def said(found):
    text = io.StringIO()
    show(found, Console(file=text, width=160))
    return text.getvalue()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return sweep(load(write(folder, SMALL)), folder / "out")


# --- a whole sweep


def test_trials_are_logged_with_every_setting_and_seed(found):
    table = rows(found.out)
    assert [(r["method"], r["trial"], r["seed"]) for r in table] == [
        (method, str(trial), str(seed))
        for method in ("local_only", "fedcpf")
        for trial in range(4)
        for seed in (0, 1)
    ]
    assert list(table[0]) == [
        "method",
        "trial",
        "seed",
        "local.lr",
        "local.momentum",
        "method.limit",
        "score",
        "headline",
        "status",
    ]
    last = table[-1]
    assert (last["local.lr"], last["local.momentum"], last["method.limit"]) == ("0.1", "", "0.8")
    assert {r["status"] for r in table} == {"ok"}
    assert not (found.out / ".trials").exists()


def test_the_winner_is_the_lowest_mean_error_over_seeds(found):
    for label, tried in found.methods.items():
        mine = [r for r in rows(found.out) if r["method"] == label]
        means = [
            (float(a["headline"]) + float(b["headline"])) / 2
            for a, b in zip(mine[::2], mine[1::2], strict=True)
        ]
        assert tried.values == pytest.approx(means)
        assert tried.best == means.index(min(means))


def test_a_trial_is_a_run_on_the_people_chosen_with_half_the_validation_data_as_test(
    found, tmp_path, monkeypatch
):
    """`vergence run best.toml` on such a federation, cut by hand, gives the winner's very error."""
    honest = Toy.load

    def cut(self, root=None):
        whole = honest(self, root)
        halves = {
            p: [
                whole.people[p].val.subset(torch.arange(i, len(whole.people[p].val), 2))
                for i in (0, 1)
            ]
            for p in found.tuning.people
        }
        people = {p: Splits(whole.people[p].train, *half) for p, half in halves.items()}
        return replace(whole, people=people)

    monkeypatch.setattr(Toy, "load", cut)
    start(load(found.out / "best.toml"), tmp_path / "run")
    for label, tried in found.methods.items():
        errors = person_means(tmp_path / "run" / label)["error"]
        assert sum(errors.values()) / 2 == pytest.approx(min(tried.values), abs=1e-12)


class Sealed(Mapping):
    """Columns that nobody may look at."""

    def __getitem__(self, key):
        raise AssertionError(f"test data was read: {key}")

    def __iter__(self):
        raise AssertionError("test data was read")

    __len__ = __iter__


def test_test_data_is_never_read(found, tmp_path, monkeypatch):
    honest = Toy.load

    def sealed(self, root=None):
        whole = honest(self, root)
        people = {p: replace(s, test=Samples(Sealed())) for p, s in whole.people.items()}
        return replace(whole, people=people)

    monkeypatch.setattr(Toy, "load", sealed)
    sweep(load(write(tmp_path, SMALL)), tmp_path / "out")
    assert rows(tmp_path / "out") == rows(found.out)


@pytest.mark.slow
def test_trials_stop_early_as_the_runs_do(tmp_path):
    """By the half of validation samples that is not scored."""
    ends = "early_stopping={patience=1,min_gain=1e9,restore_best=false}"
    sets = {"ended": [ends, "run.evaluate_every=1", "run.rounds=9"], "short": ["run.rounds=1"]}
    for name, each in sets.items():
        sweep(load(write(tmp_path, SMALL), [*each, "run.seeds=[0]"]), tmp_path / name)
    assert rows(tmp_path / "ended") == rows(tmp_path / "short")


def test_a_person_with_one_validation_sample_cannot_be_scored(tmp_path):
    path = write(tmp_path, SMALL)
    with pytest.raises(DataError, match="'p00' has 1 validation samples, and 2 are needed"):
        sweep(load(path, ["federation.samples=5", "sweep.people=['p00']"]), tmp_path / "out")


def test_what_it_found_is_an_experiment_with_its_record(found):
    best = load(found.out / "best.toml")
    assert best.tuning == found.tuning
    assert (best.tuning.trials, best.tuning.search) == (4, "grid")
    assert best.tuning.chosen_on == "validation"
    assert best.sweep is None
    assert best.tuning.space == load(found.out / "sweep.toml").sweep.digest()
    assert len(best.tuning.people) == 2
    for label, tried in found.methods.items():
        one = load(found.out / "best" / f"{label}.toml")
        assert one.tuning == best.tuning
        assert one.methods == {label: best.methods[label]}
        point = tried.points[tried.best]
        assert best.methods[label].local.lr == point["local.lr"]
    assert best.methods["fedcpf"].limit == point["method.limit"]
    assert best.methods["fedcpf"].rate == 0.2


def test_a_sweep_from_what_a_sweep_found_counts_all_its_trials(found, tmp_path):
    text = (found.out / "best" / "fedcpf.toml").read_text()
    path = write(tmp_path, text + '\n[sweep]\n"local.lr" = [0.05, 0.06]\n')
    again = sweep(load(path), tmp_path / "out")
    assert again.tuning.trials == 6
    assert load(tmp_path / "out" / "best.toml").tuning.trials == 6


def test_what_is_said_and_drawn(found):
    text = said(found)
    assert "mean over 2 people and 2 seeds, lower is better; grid search, 4 trials" in text
    point = found.methods["fedcpf"].points[found.methods["fedcpf"].best]
    assert f"local.lr = {point['local.lr']}, method.limit = {point['method.limit']}" in text
    assert f"edge: fedcpf: method.limit = {point['method.limit']} is the" in text
    assert (found.out / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_random_search_with_names_of_people_and_somebody_gone(tmp_path):
    """Who is gone and not among those chosen does not matter; text values are drawn too."""
    path = write(tmp_path, TOY)
    sets = [
        "sweep.search=random",
        "sweep.trials=2",
        "sweep.people=['p03', 'p01']",
        "sweep.space.local.lr={low=0.01, high=0.1, log=true}",
        "presence.gone={p00=1}",
        "sweep.space.local.schedule=['cosine', 'constant']",
        "sweep.seeds=[9]",
        "sweep.metric=score",
    ]
    found = sweep(load(path, sets), tmp_path / "out")
    assert found.tuning.people == ("p01", "p03")
    assert found.tuning.seeds == (9,)
    table = rows(tmp_path / "out")
    assert [r["seed"] for r in table] == ["9"] * 4
    for label, tried in found.methods.items():
        scores = [float(r["score"]) for r in table if r["method"] == label]
        assert tried.best == scores.index(max(scores))


# --- interrupted, failed, mistaken


@pytest.mark.slow
def test_an_interrupted_sweep_keeps_finished_trials_and_goes_on(found, tmp_path, monkeypatch):
    calls = []

    def stopping(*args, tick, **rest):
        calls.append(args)
        return run_rounds(*args, tick=stop if len(calls) == 6 else tick, **rest)

    def stop(end):
        if end.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(trials, "run_rounds", stopping)
    path, out = write(tmp_path, SMALL), tmp_path / "out"
    with pytest.raises(PartialRun, match="finished trials are kept"):
        sweep(load(path), out)
    assert rows(out) == rows(found.out)[:5]
    assert [p.name for p in (out / ".trials").iterdir()] == ["local_only-2-1"]
    with pytest.raises(StateError, match="other config"):
        sweep(load(path, ["local.batch=4"]), out)
    sweep(load(path), out)
    assert rows(out) == rows(found.out)
    assert len(calls) == 6 + 11
    assert (out / "best.toml").read_bytes() == (found.out / "best.toml").read_bytes()
    resume(out)
    assert len(calls) == 6 + 11


def test_a_trial_that_fails_is_logged_with_its_reason_and_costs_its_budget(tmp_path, monkeypatch):
    """A huge rate gives NaN, which the guards catch or the score shows; an error has its text."""

    def failing(method, *args, **rest):
        if method.local.lr == 0.3:
            raise RuntimeError("no such kernel\nand more")
        return run_rounds(method, *args, **rest)

    monkeypatch.setattr(trials, "run_rounds", failing)
    sets = [
        "sweep.seeds=[0]",
        "methods=['fedavg']",
        "local.clip=0",
        "sweep.space.local.lr=[1e30, 0.3, 0.05]",
    ]
    found = sweep(load(write(tmp_path, TOY), sets), tmp_path / "out")
    table = rows(tmp_path / "out")
    assert table[0]["status"].startswith("failed: ")
    assert "NaN" in table[0]["status"] or "nan" in table[0]["status"]
    assert table[1]["status"] == "failed: RuntimeError: no such kernel"
    assert [r["headline"] for r in table[:2]] == ["nan", "nan"]
    assert (found.methods["fedavg"].best, found.tuning.trials) == (2, 3)
    assert "local.lr = 0.05" in said(found)


def test_a_method_of_which_every_trial_fails_is_left_out_and_named(tmp_path, monkeypatch):
    def failing(method, *args, **rest):
        if isinstance(method, FedAvg):
            raise RuntimeError("too wide")
        return run_rounds(method, *args, **rest)

    monkeypatch.setattr(trials, "run_rounds", failing)
    sets = ["sweep.seeds=[0]", 'methods=["fedavg", "local_only"]']
    found = sweep(load(write(tmp_path, TOY), sets), tmp_path / "out")
    with pytest.raises(PartialRun, match=r"every trial failed of fedavg \(RuntimeError: too wide"):
        said(found)
    assert list(load(tmp_path / "out" / "best.toml").methods) == ["local_only"]


def test_a_full_disk_stops_the_sweep_and_blames_no_trial(tmp_path, monkeypatch):
    def full(*_, **_rest):
        raise PartialRun("cannot save")

    monkeypatch.setattr(trials, "run_rounds", full)
    with pytest.raises(PartialRun, match="cannot save"):
        sweep(load(write(tmp_path, SMALL)), tmp_path / "out")
    assert not (tmp_path / "out" / "trials.csv").exists()


@pytest.mark.parametrize(
    "text",
    [
        "method,trial\n",
        "method,trial,seed,local.lr,score,headline,seconds,status\nfedavg,0\n",
    ],
)
def test_a_damaged_log_is_not_gone_on_with(tmp_path, text):
    (tmp_path / "trials.csv").write_text(text)
    with pytest.raises(StateError, match=r"trials.csv is damaged"):
        Log(tmp_path / "trials.csv", {"fedavg": [{"local.lr": 0.1}]})


def test_it_wants_a_sweep_and_a_directory_of_its_own(tmp_path):
    path = write(tmp_path, SMALL)
    start(load(path, ["run.seeds=[0]"]), tmp_path / "run")
    with pytest.raises(StateError, match="holds a run"):
        sweep(load(path), tmp_path / "run")
    plain = TOY.partition("[sweep]")[0].replace("sweep = { limit = [0.2, 0.8] }", "limit = 0.8")
    with pytest.raises(ConfigError, match="nothing to sweep"):
        sweep(load(write(tmp_path, plain)), tmp_path / "out")


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("sweep_*.toml")), ids=str)
def test_the_examples_give_every_method_the_same_number_of_trials(path):
    experiment = load(path)
    points = experiment.sweep.points()
    trial_entries(experiment, points)
    assert len({len(tried) for tried in points.values()}) == 1


# --- unseen clients


UNSEEN = SMALL.replace("people = 0.5", "unseen = ['p01']")


@pytest.mark.slow
def test_trials_are_scored_as_leave_one_out_scores_the_person(tmp_path, monkeypatch):
    """On validation data: as leave-one-out does where these take the place of test data."""
    found = sweep(load(write(tmp_path, UNSEEN), ["run.seeds=[0]"]), tmp_path / "out")
    honest = Toy.load

    def cut(self, root=None):
        whole = honest(self, root)
        people = {p: replace(s, test=s.val) for p, s in whole.people.items()}
        return replace(whole, people=people)

    monkeypatch.setattr(Toy, "load", cut)
    best = load(found.out / "best.toml")
    evaluate("leave-one-out", best, tmp_path / "folds", Console(file=io.StringIO()))
    for label, tried in found.methods.items():
        error = person_means(tmp_path / "folds" / "leave-one-out" / label)["error"]["p01"]
        assert tried.values[tried.best] == pytest.approx(error, abs=1e-12)


def test_the_record_says_that_the_choice_was_made_on_unseen_people(tmp_path):
    sets = ["run.rounds=1", "sweep.people=1.0", "sweep.unseen=2", "methods=['fedavg']"]
    found = sweep(load(write(tmp_path, TOY), sets), tmp_path / "out")
    assert found.tuning.chosen_on == "unseen"
    assert len(found.tuning.people) == 4
    assert len(found.unseen) == 2
    assert "mean over 2 unseen clients of models trained on 2 others, and 2 seeds" in said(found)


@pytest.mark.parametrize(
    ("unseen", "noun"), [("4", "all 4 people"), ("['p09']", "p09"), ("[]", "different names")]
)
def test_unseen_people_must_be_some_of_the_sweep(unseen, noun, tmp_path):
    sets = ["sweep.people=1.0", f"sweep.unseen={unseen}"]
    with pytest.raises(ConfigError, match=noun):
        sweep(load(write(tmp_path, SMALL), sets), tmp_path / "out")
