"""What all runs on this machine spent on the same people: nothing makes the register forget it."""

import json
import math
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b

import pytest
import torch

from tests.cli.commands import TOY, vergence, write
from vergence.adaptation.other_people import own_priors
from vergence.core.data import SharedRows, Splits
from vergence.core.serialization import quick_digest
from vergence.engine.storage.run_directory import read_manifest, sealed_manifest
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.experiment.newcomers import PersonPart, find_held_out
from vergence.experiment.privacy.register import (
    KEY,
    NAME,
    TABLES,
    Row,
    keyed,
    largest,
    sample_digests,
    sentences,
)
from vergence.experiment.run import RoundCallback, resume, start
from vergence.experiment.schema import check, load
from vergence.experiment.trained_run import verify
from vergence.privacy.dp.accounting import MANY, Charge, gaussian_epsilon, quick_epsilon
from vergence.privacy.dp.accounting import epsilon as by_accountant
from vergence.privacy.release_log import ReleaseLog
from vergence.studies.sweep import sweep

ROUNDS, NOISE, PEOPLE, DELTA = 3, 4.0, 4, 1e-5
USER = f"user = {{ clip = 0.5, noise = {NOISE} }}"
TEXT = f"""
{TOY.replace("METHODS", 'method = "fedavg"').replace("people = 3", f"people = {PEOPLE}")}
privacy = {{ {USER} }}
"""


def epsilon(runs, rounds=ROUNDS):
    """By hand: so many rounds in which everybody is asked are one Gaussian of mu = sqrt(n) / z."""
    return f"epsilon {gaussian_epsilon(math.sqrt(runs * rounds) / NOISE, DELTA):.3g}"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A user's folder without any register."""
    monkeypatch.setenv("VERGENCE_STATE", str(tmp_path / "home"))
    return tmp_path / "home" / "spent"


@pytest.fixture
def study(tmp_path):
    return load(write(tmp_path, TEXT))


def renamed(people, **changes):
    """Other people's data by other names: every part of them passes through `changes`."""
    return replace(people, name="elsewhere", people=changes)


def on(study, people):
    """The same experiment on these people's data."""
    return study.on_dataset(PersonPart(people, tuple(people.clients)))


def spent(study, people=None):
    (line,) = sentences(study.plan, (lambda: people) if people else study.load_data)
    return line


def test_runs_on_the_same_people_add_up_as_one(study, tmp_path):
    """The accountant composes them, which is less than the sum of their epsilons."""
    assert "not known" in spent(study)
    for runs in (1, 2, 3):
        # The same experiment, the same seed: its noise is new, so that both together tell more.
        start(study, tmp_path / str(runs))
        assert epsilon(runs) in spent(study)
        assert f"in {runs} run" in spent(study)
    one, other = (verify(tmp_path / at)[0] for at in "12")
    assert one != other
    said = vergence("explain", tmp_path / "toy.toml")
    assert epsilon(3) in said.out
    assert vergence("privacy", "ethics", tmp_path / "1").code == 0
    assert epsilon(3) in (tmp_path / "1" / "ethics.html").read_text()


def test_runs_with_many_kinds_of_noise_are_bounded_together():
    """Each kind takes seconds to compose exactly; the bound is above, and not far."""
    kinds = [Charge(2.0 + number, 0.5, 10) for number in range(MANY + 1)]
    exact, bound = by_accountant(kinds, DELTA), quick_epsilon(kinds, DELTA)
    assert exact < bound < 1.2 * exact
    assert quick_epsilon(kinds[:MANY], DELTA) == by_accountant(kinds[:MANY], DELTA)
    # Whoever reads the number reads whether it is one.
    charges = [(charge.noise, charge.rate, charge.steps) for charge in kinds]
    rows = [Row(DELTA, 1.0, json.dumps([charge])) for charge in charges]
    assert f"epsilon at most {bound:.3g} at" in largest("person", [rows])
    assert "at most" not in largest("person", [rows[:MANY]])


def test_a_bound_may_be_several_times_larger_where_little_was_spent():
    kinds = [Charge(20.0 + number, 0.01, 1) for number in range(MANY + 1)]
    assert quick_epsilon(kinds, DELTA) > 2 * by_accountant(kinds, DELTA)


def test_two_seeds_and_methods_are_runs_of_their_own(tmp_path):
    text = TEXT.replace('method = "fedavg"', 'methods = ["fedavg", "fedper"]')
    study = load(write(tmp_path, text), ["run.seeds=[0, 1]"])
    start(study, tmp_path / "out")
    assert epsilon(4) in spent(study)


def test_other_names_make_nobody_another_person(study, tmp_path):
    people = study.load_data()
    start(study, tmp_path / "a")
    other = renamed(people, **{f"q{n}": s for n, s in enumerate(people.people.values())})
    assert epsilon(1) in spent(study, other)
    start(on(study, other), tmp_path / "b")
    assert epsilon(2) in spent(study)
    # Somebody else, in between, does not count.
    moved = {n: column + 1 for n, column in people.people["p00"].train.columns.items()}
    stranger = replace(people.people["p00"].train, columns=moved)
    alone = renamed(people, p00=Splits(stranger, stranger, stranger))
    assert "nothing" in spent(study, alone)


@pytest.mark.parametrize("change", ["some samples", "another split", "renamed columns", "twice"])
def test_part_of_somebody_s_samples_is_that_person(study, tmp_path, change):
    people = study.load_data()
    start(study, tmp_path / "a")
    splits = people.people["p01"]
    few = splits.train.subset(torch.tensor([1, 3]))
    swapped = {f"other {name}": column for name, column in few.columns.items()}
    other = {
        "some samples": Splits(few, few, few),
        "another split": Splits(splits.test, splits.train, splits.val),
        "renamed columns": Splits(*[replace(few, columns=swapped)] * 3),
        "twice": splits,
    }[change]
    also = {"p09": splits} if change == "twice" else {}
    assert epsilon(1) in spent(study, renamed(people, me=other, **also))


def pictures(study, gaze):
    """Two people, each with pictures of their own, and one that both saw, in a bank."""
    people, dice = study.load_data(), torch.Generator().manual_seed(1)
    rows = torch.rand(5, 4, 4, generator=dice)
    shared = replace(people.people["p00"].train, columns={}, banks={})
    parts = {
        who: replace(
            shared,
            columns={"at": torch.tensor(at), "gaze": torch.tensor(gaze)[:, None].repeat(1, 2)},
            banks={"image": SharedRows(rows, "at")},
        )
        for who, at in (("a", [0, 1, 4]), ("b", [2, 3, 4]))
    }
    return replace(people, people={who: Splits(part, part, part) for who, part in parts.items()})


def test_a_picture_is_known_whatever_its_labels_are_and_one_that_all_saw_is_nobody_s(study):
    first = sample_digests(pictures(study, [0.1, 0.2, 0.3]), b"key")
    again = sample_digests(pictures(study, [0.4, 0.5, 0.6]), b"key")
    assert first["a"] & again["a"]
    assert first["b"] & again["b"]
    assert not first["a"] & again["b"]
    assert not first["b"] & again["a"]


def persons(study, **columns):
    """Two people with two samples each, who have these columns; the first half is a's."""
    people = study.load_data()
    empty = replace(people.people["p00"].train, columns={}, banks={})
    mine = {"a": slice(0, 2), "b": slice(2, 4)}
    parts = {
        who: replace(empty, columns={name: column[at] for name, column in columns.items()})
        for who, at in mine.items()
    }
    return replace(people, people={who: Splits(part, part, part) for who, part in parts.items()})


def test_a_few_measured_numbers_are_known_whatever_else_is_beside_them(study):
    features = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    first = persons(study, x=features, gaze=torch.zeros(4, 2))
    again = persons(study, x=features, gaze=torch.ones(4, 2), more=torch.rand(4))
    first, again = (sample_digests(people, b"key") for people in (first, again))
    assert first["a"] & again["a"]
    assert first["b"] & again["b"]
    assert not first["a"] & again["b"]
    # Few whole numbers, such as answers to questions, are the same for many.
    answers = [persons(study, x=torch.eye(4, 6).long(), y=torch.full((4,), y)) for y in (0, 1)]
    first, again = (sample_digests(people, b"key") for people in answers)
    assert not first["a"] & again["a"]


@pytest.mark.parametrize("number", [0.0, 0.5, math.nan])
@pytest.mark.parametrize("bank", [False, True])
def test_a_black_picture_makes_strangers_no_person(study, number, bank):
    def seen(y):
        dice = torch.Generator().manual_seed(int(10 * y))
        rows = torch.rand(4, 5, 5, generator=dice)
        rows[0] = number
        labels = torch.full((4, 2), y)
        if not bank:
            return sample_digests(persons(study, x=rows, gaze=labels), b"key")
        people = persons(study, at=torch.arange(4), gaze=labels)
        parts = {
            who: replace(s.train, banks={"image": SharedRows(rows, "at")})
            for who, s in people.people.items()
        }
        people = replace(people, people={who: Splits(s, s, s) for who, s in parts.items()})
        return sample_digests(people, b"key")

    assert not seen(0.1)["a"] & seen(0.2)["a"]
    assert seen(0.1)["a"] == seen(0.1)["a"]
    assert len(seen(0.1)["a"]) == 3, "one picture and two whole samples"


CAMERA = torch.tensor([[0.9, 0, 0.5], [0, 1.2, 0.4], [0, 0, 1]])
SETTINGS = {
    "a camera's matrix": CAMERA.flatten().repeat(4, 1),
    "its four numbers": torch.tensor([0.9, 1.2, 0.5, 0.4]).repeat(4, 1),
    "a class": torch.eye(5)[[0, 1, 0, 1]],
    "a place": torch.tensor([0.25, 0.25, 0.5, 0.5]).repeat(4, 1),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("of_one", [True, False])
def test_equal_settings_make_strangers_no_person(study, name, of_one):
    """Also where each data set has one person, so that nobody else there has them."""

    def seen(seed):
        dice = torch.Generator().manual_seed(seed)
        made = persons(study, x=torch.rand(4, 6, generator=dice), setting=SETTINGS[name])
        if of_one:
            part = made.people["a"]
            # A single sample for validation does not show what stands in several.
            single, none = (part.val.subset(torch.arange(n)) for n in (1, 0))
            made = replace(made, people={"a": Splits(part.train, single, none)})
        return sample_digests(made, b"key")["a"]

    assert not seen(1) & seen(2)
    assert seen(1) == seen(1)


def test_a_run_counts_before_its_first_release(study, tmp_path):
    seen = []
    start(study, tmp_path / "a", RoundCallback(on_round=lambda _: seen.append(spent(study))))
    assert len(seen) == ROUNDS + 1
    assert all(epsilon(1) in line for line in seen)


KILLED = """
import os, sys
from vergence.experiment.run import RoundCallback, start
from vergence.experiment.schema import load
def stop(report):
    if report.round == 1:
        os.kill(os.getpid(), 9)
start(load(sys.argv[1]), sys.argv[2], RoundCallback(on_round=stop, bar=False))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_a_run_that_was_killed_counts_as_planned_until_it_ends(study, tmp_path):
    args = (tmp_path / "toy.toml", tmp_path / "a")
    done = subprocess.run([sys.executable, "-c", KILLED, *map(str, args)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert epsilon(1) in spent(study)
    goes_on(tmp_path / "a")
    assert epsilon(1) in spent(study)
    assert "in 1 run " in spent(study)
    assert "does not know" not in spent(study)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_a_run_that_was_killed_and_whose_log_lost_lines_counts_as_planned(study, tmp_path):
    # In round 2, of which there is no checkpoint yet.
    args = (KILLED.replace("round == 1", "round == 2"), tmp_path / "toy.toml", tmp_path / "a")
    done = subprocess.run([sys.executable, "-c", *map(str, args)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (log,) = (tmp_path / "a" / "state" / "privacy").glob("seed*.sums.csv")
    assert len(ReleaseLog(log).entries) == 2
    log.write_bytes(b"")
    with pytest.raises(StateError, match="put back from a copy"):
        goes_on(tmp_path / "a")
    # Whoever changes the checkpoint, too, passes that.
    manifest = read_manifest(tmp_path / "a")
    del manifest["books"]
    (tmp_path / "a" / "state" / "checkpoint.json").write_bytes(sealed_manifest(manifest))
    goes_on(tmp_path / "a")
    assert len(ReleaseLog(log).entries) == ROUNDS - 1, "this attack would lower the sum"
    assert epsilon(1) in spent(study)
    # A further resume does not take it for whole either.
    goes_on(tmp_path / "a")
    assert epsilon(1) in spent(study)


def goes_on(folder, *callbacks):
    resume(load(folder / "config.toml"), folder, *callbacks)


def interrupted(study, folder, at=1):
    def stop(report):
        if report.round == at:
            raise KeyboardInterrupt

    with pytest.raises(PartialRun):
        start(study, folder, RoundCallback(on_round=stop))


def test_a_run_that_was_interrupted_counts_what_it_released(study, tmp_path):
    interrupted(study, tmp_path / "a")
    assert epsilon(1, rounds=1) in spent(study)
    goes_on(tmp_path / "a")
    assert epsilon(1) in spent(study)
    assert "in 1 run " in spent(study)


def test_a_run_that_failed_before_its_first_release_spent_nothing(study, tmp_path):
    interrupted(study, tmp_path / "a", at=0)
    assert "nothing" in spent(study)
    goes_on(tmp_path / "a")
    assert epsilon(1) in spent(study)
    assert "does not know" not in spent(study)


def test_a_copy_of_a_run_s_folder_takes_nothing_back_and_counts_once(study, tmp_path):
    """Its noise is the same, and its logs have forgotten what the other released since."""
    interrupted(study, tmp_path / "a", at=1)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    goes_on(tmp_path / "a")

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(PartialRun):
        goes_on(tmp_path / "copy", RoundCallback(on_round=stop))
    assert epsilon(1) in spent(study), "the copy released one round, and the run three"
    # Put back in its place, too.
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "copy").rename(tmp_path / "a")
    with pytest.raises(PartialRun):
        goes_on(tmp_path / "a", RoundCallback(on_round=stop))
    assert epsilon(1) in spent(study)
    assert "in 1 run " in spent(study)


def test_a_release_log_that_was_put_back_lowers_no_sum(study, tmp_path):
    """Of a run on one machine that is finished, whose log nobody reads again."""
    start(study, tmp_path / "a")
    (log,) = (tmp_path / "a" / "state" / "privacy").glob("seed*.sums.csv")
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:1]))
    assert len(ReleaseLog(log).entries) == 1
    assert epsilon(1) in spent(study)


def test_a_register_that_was_deleted_is_not_one_that_says_nothing(home, study, tmp_path):
    interrupted(study, tmp_path / "a")
    # Of the register alone: its key tells that there was one.
    (home / NAME).unlink()
    assert "not known" in spent(study)
    start(study, tmp_path / "b")
    assert "which does not know all (a register before" in spent(study)
    # With its key: a run tells that goes on.
    shutil.rmtree(home)
    assert "not known" in spent(study)
    start(study, tmp_path / "c")
    assert "does not know" not in spent(study), "nothing here tells of it any more"
    goes_on(tmp_path / "a")
    assert "does not know all (a run had begun" in spent(study)
    # Without its key it tells of nobody.
    (home / KEY).unlink()
    with pytest.raises(StateError, match="key is missing"):
        spent(study)
    with pytest.raises(StateError, match="key is missing"):
        start(study, tmp_path / "d")


@pytest.mark.parametrize("crash", ["emptied", "connected", "tables"])
def test_an_empty_register_is_not_a_new_one(home, study, tmp_path, crash):
    """Cut to no bytes; or deleted, and whoever made it anew crashed before it said so."""
    start(study, tmp_path / "a")
    assert epsilon(1) in spent(study)
    if crash == "emptied":
        (home / NAME).write_bytes(b"")
    else:
        (home / NAME).unlink()
        with closing(sqlite3.connect(home / NAME)) as base:
            base.executescript(TABLES if crash == "tables" else "")
        assert (home / NAME).exists()
    assert "does not know all (a register before" in spent(study)
    assert "does not know all (a register before" in spent(study), "it stays so"


def test_a_damaged_register_and_a_folder_that_cannot_be_written_are_refused(home, study, tmp_path):
    start(study, tmp_path / "a")
    (home / NAME).write_bytes(b"garbage" * 1000)
    with pytest.raises(StateError, match="cannot be used"):
        start(study, tmp_path / "b")
    shutil.rmtree(home.parent)
    home.parent.write_text("a file")
    with pytest.raises(StateError, match="VERGENCE_STATE"):
        start(study, tmp_path / "c")
    assert not list((tmp_path / "c").glob("state/privacy/seed*"))


def test_who_reads_the_register_does_not_learn_whose_samples_are_in_it(home, study, tmp_path):
    """An adversary who has a sample looks for its digest; the key lies in a file of its own."""
    start(study, tmp_path / "a")
    base = sqlite3.connect(home / NAME)
    listed = {digest for (digest,) in base.execute("select digest from samples")}
    assert listed
    people, key = study.load_data(), (home / KEY).read_bytes()
    assert listed == set().union(*sample_digests(people, key).values())
    # By every key that everybody has, and without any.
    for known in (b"", bytes(32), NAME.encode()):
        assert not listed & set().union(*sample_digests(people, known).values())
    row = next(iter(people.people["p00"].train.columns.values()))[0].float().numpy().tobytes()
    for digest in (blake2b(row).digest(), quick_digest(row).encode(), keyed(b"", row)):
        assert not any(one in (home / NAME).read_bytes() for one in (row, digest[:8]))
    assert "p00" not in (home / NAME).read_bytes().decode("latin-1")
    if os.name != "nt":
        assert {stat.S_IMODE((home / n).stat().st_mode) for n in (NAME, KEY)} == {0o600}
        assert stat.S_IMODE(home.stat().st_mode) == 0o700


BOTH = """
import sys
from vergence.experiment.run import RoundCallback, start
from vergence.experiment.schema import load
for n in range(3):
    start(load(sys.argv[1]), sys.argv[2] + str(n), RoundCallback(bar=False))
"""


def test_two_processes_that_begin_at_once_are_both_counted(study, tmp_path):
    file = str(tmp_path / "toy.toml")
    ends = [
        subprocess.Popen([sys.executable, "-c", BOTH, file, str(tmp_path / name)]) for name in "ab"
    ]
    assert [end.wait() for end in ends] == [0, 0]
    assert epsilon(6) in spent(study)


def test_folds_and_trials_are_in_it(tmp_path):
    """Everybody is in three of four folds; a sweep's two trials train on everybody."""
    file = write(tmp_path, TEXT)
    said = vergence("study", "evaluate", "leave-one-out", file, "--out", tmp_path / "o")
    assert said.code == 0, said.err
    assert epsilon(3) in spent(load(file))
    tuned = f'{TEXT}sweep = {{ space = {{ "local.lr" = [0.02, 0.1] }}, seeds = [0, 1] }}\n'
    sweep(load(write(tmp_path, tuned, "tuned.toml")), tmp_path / "s")
    runs = 3 + 2 * 2
    assert epsilon(runs) in spent(load(file))


def test_who_remains_after_a_forgetting_was_trained_on_twice(study, tmp_path):
    start(study, tmp_path / "a")
    args = ("--out", tmp_path / "b", "--shadows", 0)
    said = vergence("privacy", "forget", tmp_path / "a", "p03", *args)
    assert said.code == 0, said.err
    assert epsilon(2) in " ".join(said.out.split())
    assert epsilon(2) in (tmp_path / "b" / "forget.md").read_text()
    assert "p03" not in (tmp_path / "b" / "forget.md").read_text()


@pytest.mark.parametrize(
    ("privacy", "unit"),
    [
        ("solver = { clip = 1.0, epsilon = 8.0 }", "sample"),
        ('mask = { epsilon = 1.0, of = "entry" }', "mask"),
    ],
)
def test_budgets_of_samples_and_masks_are_planned_as_they_are_spent(tmp_path, privacy, unit):
    method = '{ name = "fedcpf", rate = 0.4 }' if unit == "mask" else '"fedavg"'
    text = TEXT.replace(USER, privacy).replace('"fedavg"', method)
    study, seen = load(write(tmp_path, text)), []
    start(study, tmp_path / "a", RoundCallback(on_round=lambda _: seen.append(spent(study))))
    planned, actual = (float(re.search(r"epsilon ([\d.]+)", x)[1]) for x in (seen[0], spent(study)))
    assert f"per {unit}" in seen[0]
    assert 0 < actual <= planned * 1.001
    start(study, tmp_path / "b")
    more = float(re.search(r"epsilon ([\d.]+)", spent(study))[1])
    assert actual < more <= 2.001 * actual


def test_a_start_that_learned_from_the_same_people_by_other_names_is_refused(tmp_path):
    """The earlier run need have no budget: its model lies open."""
    open_text = TEXT.replace(f"privacy = {{ {USER} }}", "")
    start(load(write(tmp_path, open_text, "open.toml")), tmp_path / "a")
    study = load(write(tmp_path, TEXT), [f"model.start={tmp_path / 'a'}"])
    people = study.load_data()
    other = renamed(people, **{f"q{n}": s for n, s in enumerate(people.people.values())})
    with pytest.raises(ConfigError, match="trained on samples of 'q0'"):
        start(on(study, other), tmp_path / "b")
    assert not (tmp_path / "b" / "config.toml").exists()


EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 4 }
federation = { name = "eye_synthetic", people = 3, samples = 40, size = "9x15" }
method     = { name = "fedavg" }
local      = { optimizer = "sgd", steps = 1, batch = 8, lr = 0.01 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.mark.parametrize("budget", ["", f"privacy = {{ {USER} }}"])
def test_no_way_to_adapt_is_fitted_to_residuals_that_no_budget_covers(tmp_path, capsys, budget):
    """They would come from other people of private folds, without any noise."""
    file = write(tmp_path, EYES + budget)
    said = vergence("study", "evaluate", "leave-one-out", file, "--out", tmp_path / "o")
    assert said.code == 0, said.err
    fitted = own_priors(find_held_out(tmp_path / "o" / "leave-one-out" / "fedavg"), ["p00"], 0)
    assert bool(fitted) == (not budget)
    assert ("no way to adapt is fitted" in capsys.readouterr().err) == bool(budget)


def test_people_who_are_generated_are_nobody():
    crowd = {"task": {"name": "toy"}, "model": {"name": "linear"}, "method": "fedavg"}
    crowd |= {"federation": {"name": "crowd", "people": 100}}
    crowd |= {"privacy": {"user": {"clip": 0.5, "noise": 4.0}}}
    study = check(crowd)
    assert sentences(study.plan, study.load_data) == []
