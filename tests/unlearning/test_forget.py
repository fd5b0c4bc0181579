"""`vergence privacy forget`: a model without a person, what it remembers, what a folder keeps."""

import csv
import json
import shutil

import pytest
import torch

from tests.cli.commands import ONE, SEVERAL, run, vergence
from vergence.console import out as console
from vergence.core.params import Params
from vergence.errors import ConfigError, PartialRun
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.experiment.trained_run import verify
from vergence.methods.fedpac import Collaboration
from vergence.results.read import read
from vergence.unlearning import forget as forgetting
from vergence.unlearning.data_footprint import remains, stripped
from vergence.unlearning.forget import ForgetOptions, experiment_without, forget, open_case

SIX = SEVERAL.replace("people = 3", "people = 6").replace(
    "rounds = 3, evaluate_every = 0", "rounds = 3, seeds = [0, 1], evaluate_every = 1"
)
QUICK = ForgetOptions(shadows=0)


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    return run(tmp_path_factory.mktemp("before"), SIX)


@pytest.fixture(scope="module")
def retrained(before):
    forget(before, "p05", before.parent / "without", console, QUICK)
    return before.parent / "without"


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def naming(folder, person):
    """Files whose path or content names a person."""
    return [
        str(path)
        for path, data in contents(folder).items()
        if person in str(path) or person.encode() in data
    ]


def fingerprints(folder):
    return {run.label: run.results["fingerprint"] for run in read(folder).runs}


def test_retrained_is_the_run_that_never_had_them(before, retrained, tmp_path):
    never = run(tmp_path, SIX.replace("people = 6", "people = 5"))
    assert fingerprints(retrained) == fingerprints(never) != fingerprints(before)
    for label in ("local_only", "fedavg", "fedcpf"):
        assert len(verify(retrained / label)) == 2
        told = json.loads((retrained / label / "provenance.json").read_text())
        assert told["forgotten"] == {"people": 1, "way": "retrain", "from": fingerprints(before)}


def test_a_label_poor_person_is_forgotten(tmp_path):
    poor = ONE + 'few_data = { label_poor = ["p01", "p02"], label_poor_samples = 4 }\n'
    folder = run(tmp_path, poor, "run.rounds=1")
    forget(folder, "p02", tmp_path / "new", console, QUICK)
    rest = poor.replace("people = 3", "people = 2").replace(', "p02"', "")
    never = run(tmp_path, rest, "run.rounds=1", out="never")
    assert fingerprints(tmp_path / "new") == fingerprints(never) != fingerprints(folder)
    assert naming(tmp_path / "new", "p02") == []


def test_a_label_poor_person_whose_data_is_gone_is_forgotten(tmp_path):
    poor = ONE + 'few_data = { label_poor = ["p02"], label_poor_samples = 4 }\n'
    folder = run(tmp_path, poor, "run.rounds=1")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("people = 3", "people = 2"))
    case = open_case(folder, "p02")
    assert case.everybody is None
    assert experiment_without(case, 0).few_data.label_poor == ()


@pytest.mark.slow
def test_nothing_under_the_new_folder_names_the_person(before, tmp_path):
    said = vergence("privacy", "forget", before, "p05", "--out", tmp_path / "new", "--shadows", 0)
    assert said.code == 0, said.err
    assert naming(tmp_path / "new", "p05") == []
    assert len(naming(tmp_path / "new", "p04")) > 10
    command = json.loads((tmp_path / "new" / "fedcpf" / "provenance.json").read_text())["command"]
    assert command[:3] == ["vergence", "privacy", "forget"]
    assert command[4] == "PERSON"


@pytest.mark.slow
def test_the_old_folder_is_left_alone_unless_erasing_is_asked_for(before, tmp_path):
    untouched = contents(before)
    said = vergence("privacy", "forget", before, "p02", "--out", tmp_path / "new", "--shadows", 0)
    assert said.code == 0, said.err
    assert contents(before) == untouched
    for words in ("2 states, 2 masks", "rows of people.csv", "rows of turns.csv", "--erase"):
        assert words in said.out, said.out


def test_erasing_takes_out_this_person_and_nothing_else(tmp_path):
    folder = run(tmp_path, SIX)
    kept = folder / "fedcpf" / "state" / "privacy"
    kept.mkdir(parents=True)
    ends = (".csv", f".{'0' * 64}")
    for name in (f"seed0.mask.{who}{end}" for who in ("p05", "p05.1") for end in ends):
        (kept / name).touch()
    (kept / "seed0.guard.p05.csv").touch()
    (kept / "seed0.guard.p05.3-10.block").touch()
    were = contents(folder)
    forget(folder, "p05", tmp_path / "new", console, ForgetOptions(shadows=0, erase=True))
    assert {path.name for path in kept.iterdir()} == {f"seed0.mask.p05.1{end}" for end in ends}
    shutil.rmtree(kept)
    # The checkpoint names the log of p05.1, who is somebody else.
    assert naming(folder, "p05") == ["fedcpf/state/checkpoint.json"]
    checkpoint = (folder / "fedcpf" / "state" / "checkpoint.json").read_text()
    assert "p05" not in checkpoint.replace("seed0.mask.p05.1.csv", "")
    now = contents(folder)
    kept = {path: data for path, data in were.items() if ".client." in path.name}
    assert {path for path in kept if path in now} == {p for p in kept if "p05" not in p.name}
    assert all(now[path] == data for path, data in kept.items() if path in now)
    for run_ in read(folder).runs:
        assert remains(run_, "p05") == []
        assert run_.people == ["p00", "p01", "p02", "p03", "p04"]
        assert len(verify(run_.folder)) == 2
        rows = were[(run_.folder / "people.csv").relative_to(folder)].decode().splitlines()
        assert (run_.folder / "people.csv").read_text().splitlines() == [
            row for row in rows if ",p05," not in row
        ]
        errors = list(run_.scores("error").values())
        assert run_.results["metrics"]["error"]["mean"] == pytest.approx(sum(errors) / 5)
        assert run_.results["harmed_vs_local"] is not None
    kept = {(seed, f"p0{i}") for seed in (0, 1) for i in range(5)}
    assert read(folder).run("fedcpf").masks.packed.keys() == kept
    vergence("privacy", "forget", folder, "p04", "--out", tmp_path / "newer").complains(
        2, "erased here"
    )
    forget(tmp_path / "new", "p04", tmp_path / "newer", console, ForgetOptions(shadows=0))
    assert read(tmp_path / "newer").runs[0].people == ["p00", "p01", "p02", "p03"]


@pytest.mark.slow
def test_a_patch_begins_where_the_run_ended_and_trains_the_others(before, tmp_path):
    forget(before, "p05", tmp_path / "new", console, ForgetOptions(patch=2, shadows=0))
    assert naming(tmp_path / "new", "p05") == []
    for label in ("local_only", "fedavg", "fedcpf"):
        old, new = read(before).run(label), read(tmp_path / "new").run(label)
        ended = [v for who, v in old.scores("error").items() if who != "p05"]
        rounds, curve = new.curve("error")
        assert rounds.tolist() == [0, 1, 2]
        assert curve[:, 0].mean() == pytest.approx(sum(ended) / 5, rel=1e-6)
        assert {*new.turns.client} == {f"p0{i}" for i in range(5)}
        assert len(verify(new.folder)) == 2
        assert new.provenance["forgotten"]["way"] == "patch"


@pytest.mark.slow
def test_a_patch_goes_on_by_the_same_command_alone(before, tmp_path, monkeypatch):
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    forget(before, "p05", whole, console, ForgetOptions(patch=2, shadows=0))
    begin = forgetting._begin

    def stopped(case, label, seed, state):
        if (label, seed) == ("fedavg", 1):
            raise KeyboardInterrupt
        return begin(case, label, seed, state)

    monkeypatch.setattr(forgetting, "_begin", stopped)
    with pytest.raises(PartialRun):
        start(experiment_without(open_case(before, "p05"), 2), torn)
    monkeypatch.undo()
    vergence("resume", torn).complains(2, "was begun with other")
    rest = SIX.replace("people = 6", "people = 5").replace("rounds = 3", "rounds = 2")
    (torn / "config.toml").write_text(rest)
    vergence("resume", torn).complains(2, "was begun with other")
    (torn / "config.toml").write_bytes((whole / "config.toml").read_bytes())
    forget(before, "p05", torn, console, ForgetOptions(patch=2, shadows=0))
    assert fingerprints(torn) == fingerprints(whole)


@pytest.mark.slow
def test_data_that_is_gone_already_is_no_obstacle(before, retrained, tmp_path, monkeypatch):
    whole = load(before / "config.toml")
    fewer = type(whole.dataset)(people=5)
    monkeypatch.setattr(forgetting, "load", lambda _: forgetting.replace(whole, dataset=fewer))
    case = open_case(before, "p05")
    assert case.everybody is None
    assert case.others.people == tuple(f"p0{i}" for i in range(5))
    start(experiment_without(case, 0), tmp_path / "new")
    assert fingerprints(tmp_path / "new") == fingerprints(retrained)


@pytest.mark.slow
def test_what_cannot_be_forgotten_is_refused(before, retrained, tmp_path):
    new = tmp_path / "new"
    vergence("privacy", "forget", before, "p50", "--out", new).complains(
        2, "nobody called 'p50'", "p00, p01, p02, p03, p04, p05"
    )
    vergence("privacy", "forget", tmp_path / "none", "p05", "--out", new).complains(2, "no folder")
    vergence("privacy", "forget", before, "p05", "--out", before / "new").complains(
        2, "another place"
    )
    vergence("privacy", "forget", before, "p04", "--out", retrained).complains(2, "another run")
    vergence("privacy", "forget", before, "p05", "--out", retrained, "--patch", 1).complains(
        2, "another run"
    )
    vergence("privacy", "forget", before, "p05", "--out", new, "--patch", -1).complains(
        2, "--patch", "-1"
    )
    vergence("privacy", "forget", before, "p05", "--out", new, "--shadows", 2).complains(
        2, "3 runs", "2"
    )
    assert not new.exists()
    lone = run(tmp_path, SIX.replace("people = 6", "people = 1"), out="lone")
    vergence("privacy", "forget", lone, "p00", "--out", new).complains(2, "alone")
    private = SIX.replace("methods = [", 'methods = ["fedavg"] #') + (
        "privacy = { user = { noise = 1.0, clip = 1.0 } }\n"
    )
    hidden = run(tmp_path, private, out="hidden")
    vergence("privacy", "forget", hidden, "p05", "--out", new, "--patch", 1).complains(2, "retrain")


@pytest.mark.slow
def test_a_name_in_the_plan_goes_too(tmp_path):
    text = SIX + "presence = { gone = { p05 = 1, p01 = 2 } }\n"
    folder = run(tmp_path, text, "run.seeds=[0]")
    forget(folder, "p05", tmp_path / "new", console, QUICK)
    assert naming(tmp_path / "new", "p05") == []
    assert load(tmp_path / "new" / "config.toml").plan.presence.gone == {"p01": 2}


@pytest.mark.slow
def test_an_interrupted_retraining_goes_on_by_the_same_command(before, retrained, tmp_path):
    case = open_case(before, "p05")
    start(experiment_without(case, 0), tmp_path / "new")
    for path in (tmp_path / "new" / "fedcpf", tmp_path / "new"):
        (path / "SHA256SUMS").unlink()
    (tmp_path / "new" / "fedcpf" / "results.json").unlink()
    vergence("resume", tmp_path / "new").complains(2, "other data")
    forget(before, "p05", tmp_path / "new", console, QUICK)
    assert fingerprints(tmp_path / "new") == fingerprints(retrained)


def test_entries_under_a_name_leave_the_servers_state():
    one = Params.of(torch.nn.Linear(1, 1))
    state = Collaboration(one, {"p00": one, "p05": one})
    left = stripped(state, "p05")
    assert left == Collaboration(one, {"p00": one})
    assert stripped(left, "p05") is left


@pytest.mark.slow
def test_the_audit_finds_who_was_learned_by_heart(tmp_path):
    text = (
        SIX.replace("people = 6", "people = 8, samples = 20, inputs = 30")
        .replace('name = "linear"', 'name = "linear", inputs = 30')
        .replace("epochs = 1", "epochs = 20")
        .replace("seeds = [0, 1]", "seeds = [0]")
        .replace("lr = 0.05", "lr = 0.02")
        .replace(', { name = "fedcpf", rate = 0.2 }', "")
    )
    folder = run(tmp_path, text)
    said = vergence("privacy", "forget", folder, "p03", "--out", tmp_path / "new", "--shadows", 4)
    assert said.code == 0, said.err
    with (tmp_path / "new" / "forget.csv").open(newline="") as file:
        lines = {(row["label"], row["model"]): row for row in csv.DictReader(file)}
    was, now = lines["fedavg", "before"], lines["fedavg", "retrained"]
    assert float(was["chance"]) < 0.01 < float(now["chance"])
    assert (was["found"], now["found"]) == ("1", "0")
    assert lines["local_only", "before"]["chance"] == ""
    assert "Not audited: its server offers unseen clients no whole model" in said.out
    assert naming(tmp_path / "new", "p03") == []
    again = vergence("privacy", "forget", folder, "p03", "--out", tmp_path / "new", "--shadows", 4)
    assert again.code == 0
    assert "chance" not in again.out


@pytest.mark.slow
def test_leave_one_out_is_made_again_of_the_others(tmp_path):
    """The new folds are those of data that never had the person, and name them nowhere."""
    text = SEVERAL.replace("people = 3", "people = 4")
    plan, never = tmp_path / "plan.toml", tmp_path / "never.toml"
    plan.write_text(text)
    never.write_text(SEVERAL)
    for file, place in ((plan, "old"), (never, "never")):
        said = vergence("study", "evaluate", "leave-one-out", file, "--out", tmp_path / place)
        assert said.code == 0, said.err
    old = next((tmp_path / "old").glob("*/index.json")).parent
    said = vergence("privacy", "forget", old, "p03", "--out", tmp_path / "new")
    assert said.code == 0, said.err
    assert "3 other folds" in said.out
    prints = [
        fingerprints(next((tmp_path / place).glob("*/index.json")).parent)
        for place in ("new", "never")
    ]
    assert prints[0] == prints[1]
    assert not naming(tmp_path / "new", "p03")
    vergence("privacy", "forget", old, "p07", "--out", tmp_path / "x").complains(
        2, "nobody called 'p07'"
    )
    vergence("privacy", "forget", old, "p03", "--out", old / "x").complains(
        2, "choose another place"
    )
    vergence("privacy", "forget", old, "p03", "--out", tmp_path / "x", "--erase").complains(
        2, "--erase"
    )


def test_a_deployments_folder_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "deploy.toml").write_text("")
    vergence("privacy", "forget", tmp_path, "anna", "--out", tmp_path / "x").complains(
        2, "their machine", "deploy revoke", "delete this folder"
    )


def test_merged_splits_name_the_runs_that_can_forget(tmp_path):
    file = tmp_path / "toy.toml"
    file.write_text(SEVERAL.replace("rounds = 3", "rounds = 1, split_seeds = [0, 1]"))
    out = tmp_path / "out"
    vergence("run", file, "--out", out)
    with pytest.raises(ConfigError, match=r"out/split0, .*out/split1, then delete"):
        forget(out, "p01@0", tmp_path / "new", console, QUICK)
    with pytest.raises(ConfigError, match="out/split0/fedavg, "):
        forget(out / "fedavg", "p01@0", tmp_path / "new", console, QUICK)
