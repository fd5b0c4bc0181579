"""`model.start`: what another run's model brings along, which no promise of the new run counts.

People whom it has learned from are no strangers, are not forgotten by training after it, and are in
no budget; and a run folder that somebody else made runs no code.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.commands import TOY, vergence, write
from vergence.audit.membership import membership_rates
from vergence.core.serialization import pack, unpack_file
from vergence.core.task import StartingModel
from vergence.errors import ConfigError, StateError
from vergence.experiment import checksums
from vergence.experiment.schema import load
from vergence.experiment.starting_model import FILE, common_model, people_learned_from
from vergence.experiment.trained_run import one_run, read_run

ONE = TOY.replace("METHODS", 'method = { name = "fedavg" }')
PEOPLE = ("p00", "p01", "p02", "p03")
ONE = ONE.replace("people = 3", "people = 4").replace("rounds = 3", "rounds = 1")
PICTURES = """
task       = { name = "gaze_map", criterion = "kl", sigma = 0.05 }
model      = { name = "glc_features", grid = [6, 8], width = 8 }
federation = { name = "osie", images = 20, viewers = [0, 1, 2], size = [64, 48] }
method     = { name = "fedavg" }
local      = { optimizer = "sgd", steps = 1, batch = 8, lr = 0.01 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


def made(folder: Path, name: str, *sets: str) -> Path:
    file = write(folder, ONE, f"{name}.toml")
    said = vergence("run", file, "--out", folder / name, *(w for s in sets for w in ("--set", s)))
    assert said.code == 0, said.err
    return folder / name


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("first"), "a")


@pytest.mark.parametrize("budget", ["privacy.user.noise=4.0", "privacy.solver.noise=2.0"])
def test_a_budget_on_people_whom_the_start_knows_is_refused(first, tmp_path, budget):
    """An epsilon of the new run alone would be told of people who lie open in its first model."""
    file = write(tmp_path, ONE)
    begun = ("--set", f"model.start={first}", "--set", budget)
    said = vergence("run", file, "--out", tmp_path / "b", *begun)
    said.complains(2, "trained on 'p00' of toy", "no budget of `privacy` would count")
    assert not (tmp_path / "b" / "config.toml").exists()
    vergence("explain", file, *begun).complains(2, "no budget of `privacy` would count")


def test_nobody_is_forgotten_whom_the_start_knows(first, tmp_path):
    """Retrained from it, a model was 'found 0 of 1': the shadow runs began with the person, too."""
    second = made(tmp_path, "b", f"model.start={first}")
    said = vergence("privacy", "forget", second, "p00", "--out", tmp_path / "n", "--shadows", 0)
    said.complains(2, "trained on 'p00' of toy", "would be remembered")
    assert not (tmp_path / "n").exists()


def test_a_start_of_a_start_is_remembered(first, tmp_path):
    """p03 taught the first run, and was away in the second, which began with it."""
    away = ("presence.gone.p03=0", "run.evaluate_people=1")
    second, file = made(tmp_path, "b", f"model.start={first}", *away), write(tmp_path, ONE)
    start = common_model(str(second), one_run(second))
    assert start.people == PEOPLE[:3]
    assert json.loads((second / "results.json").read_text())["people"] != ["p03"]
    assert people_learned_from(start, "toy", ["p03"]) == ["p03"]
    leave = ("study", "evaluate", "leave-one-out", file, "--out", tmp_path / "x")
    vergence(*leave, "--set", f"model.start={second}").complains(2, "'p00' of toy")


def test_who_was_not_measured_took_part_all_the_same(tmp_path):
    run = made(tmp_path, "a", "run.evaluate_people=1")
    assert len(json.loads((run / "results.json").read_text())["people"]) == 1
    assert common_model(str(run), one_run(run)).people == PEOPLE


def test_the_page_for_an_ethics_board_says_whose_model_it_begins_with(first, tmp_path):
    run = made(tmp_path, "b", f"model.start={first}")
    said = vergence("privacy", "ethics", run)
    assert said.code == 0, said.err
    page = (run / "ethics.html").read_text()
    assert "The 4 people whom the model had learned from before" in page


def test_a_membership_audit_is_not_tried_where_the_start_knows_everybody(first, tmp_path):
    """Its runs without somebody begin with them: the attack would find nothing, and look clean."""
    saved = read_run(made(tmp_path, "b", f"model.start={first}"))
    found, not_tried = membership_rates(saved, saved.experiment.federation(), True, lambda *_: None)
    assert not found
    assert any("model.start was trained on these people" in why for _, why in not_tried)


def test_an_erased_person_is_still_in_the_model(first, tmp_path):
    run = tmp_path / "a"
    shutil.copytree(first, run)
    new = tmp_path / "n"
    vergence("privacy", "forget", run, "p00", "--out", new, "--shadows", 0, "--erase")
    with pytest.raises(ConfigError, match="somebody was erased"):
        load(write(tmp_path, ONE), [f"model.start={run}"])
    start = load(write(tmp_path, ONE), [f"model.start={new}"]).model.start
    assert start is not None
    assert "p00" not in start.people


def test_a_copy_of_another_model_under_the_old_digest_is_found(first, tmp_path):
    second = made(tmp_path, "b", f"model.start={first}")
    path = second / FILE
    start = unpack_file(path, StartingModel)
    lie = StartingModel(start.run, start.sha, start.data, start.people, start.params * 2.0)
    path.write_bytes(pack(lie))
    with pytest.raises(StateError, match="is damaged"):
        load(second / "config.toml")


def test_another_start_than_the_copy_is_refused_and_not_ignored(first, tmp_path):
    """In the folder of a run the copy was taken, whatever run was named."""
    second = made(tmp_path, "b", f"model.start={first}")
    other = made(tmp_path, "c", "run.seeds=[5]")
    with pytest.raises(StateError, match="begun with other start"):
        load(second / "config.toml", [f"model.start={other}"])


def test_code_of_a_starting_run_does_not_run(first, tmp_path):
    """The folder is sealed anew by who made it, and names a file in itself as its method."""
    run = tmp_path / "sent"
    shutil.copytree(first, run)
    code, mark = run / "own.py", tmp_path / "ran"
    code.write_text(f"open({str(mark)!r}, 'w')\n")
    config = run / "config.toml"
    config.write_text(config.read_text().replace('"fedavg"', json.dumps(str(code))))
    (run / checksums.NAME).unlink()
    checksums.seal(run)
    file = write(tmp_path, ONE)
    for command in (["run", file, "--out", tmp_path / "b"], ["explain", file]):
        said = vergence(*command, "--set", f"model.start={run}")
        said.complains(2, "own.py")
        assert not mark.exists()


def test_a_run_that_starts_from_itself_is_one_line(first, tmp_path):
    run = tmp_path / "sent"
    shutil.copytree(first, run)
    config = run / "config.toml"
    text = config.read_text().replace("[model]\n", f"[model]\nstart = {json.dumps(str(run))}\n")
    config.write_text(text)
    (run / checksums.NAME).unlink()
    checksums.seal(run)
    said = vergence("explain", write(tmp_path, ONE), "--set", f"model.start={run}")
    assert said.code == 2
    assert "Traceback" not in said.err


def test_a_start_on_another_split_of_the_same_people_is_refused(tmp_path):
    """The pictures that the new run tests on were in the training of its first model."""
    file = write(tmp_path, PICTURES)
    vergence("run", file, "--out", tmp_path / "a", "--set", "federation.split_seed=3")
    begun = ("--set", f"model.start={tmp_path / 'a'}")
    said = vergence("run", file, "--out", tmp_path / "b", *begun)
    said.complains(2, "split_seed 3, here 0", "test samples of this run were in its training")
    both = ("--set", "run.split_seeds=[3,4]", "--set", "federation.split_seed=3")
    said = vergence("run", file, "--out", tmp_path / "c", *begun, *both)
    said.complains(2, "split_seed 3, here 4")
    same = ("--set", "federation.split_seed=3")
    assert vergence("run", file, "--out", tmp_path / "d", *begun, *same).code == 0
