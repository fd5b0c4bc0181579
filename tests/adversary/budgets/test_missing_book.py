"""A run that goes on without its book, or without the secret of the noise that it released."""

import json
import shutil

import pytest

from tests.adversary.lies import circle, method, opened, question, turn
from vergence.core.local_training import LocalTraining
from vergence.deployment.protocol import ClientRequest
from vergence.errors import PartialRun, StateError
from vergence.experiment.run import RoundCallback, resume, start
from vergence.experiment.schema import check, load
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.release_log import BOOKS, FOLDER, ReleaseLog, secret_in
from vergence.results.read import read
from vergence.unlearning.data_footprint import erase, remains

TOY = {
    "task": {"name": "toy"},
    "model": {"name": "linear"},
    "federation": {"name": "toy", "people": 4},
    "method": "fedavg",
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 8, "lr": 0.05},
    "run": {"rounds": 4, "evaluate_every": 0, "workers": 1, "solver": "sequential"},
}
EYES = {
    "task": {"name": "gaze_angle"},
    "model": {"name": "small_eye"},
    "federation": {"name": "eye_synthetic", "people": 3, "samples": 40, "size": "9x15"},
    "method": "splitfed",
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 8, "lr": 0.01, "clip": 0.0},
    "run": {"rounds": 4, "evaluate_every": 0, "workers": 1, "solver": "sequential"},
}
RUNS = {
    "people": {**TOY, "privacy": {"user": {"clip": 0.5, "epsilon": 8.0}}},
    "pads": {**TOY, "privacy": {"user": {"clip": 0.5, "noise": 2.0}, "aggregation": "secure"}},
    "samples": {**TOY, "privacy": {"solver": {"name": "dp_sgd", "clip": 1.0, "noise": 2.0}}},
    "masks": {
        **TOY,
        "method": {"name": "fedselect", "rate": 0.3},
        "privacy": {"mask": {"epsilon": 20.0, "of": "entry"}},
    },
    "cut": {**EYES, "privacy": {"cut": {"name": "bottleneck", "clip": 1.0, "noise": 1.0}}},
}


def interrupted(kind, out, at=2):
    def stop(report):
        if report.round == at:
            raise KeyboardInterrupt

    with pytest.raises((PartialRun, KeyboardInterrupt)):
        start(check(RUNS[kind]), out, RoundCallback(on_round=stop))


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("gone", ["secret", "book", "both"])
def test_a_run_does_not_go_on_without_its_secret_and_its_books(kind, gone, tmp_path):
    interrupted(kind, tmp_path)
    place = tmp_path / "state" / FOLDER
    book = next(path for path in sorted(place.glob("seed0.*.csv")))
    match gone:
        case "secret":
            (place / "secret").unlink()
        case "book":
            book.unlink()
        case "both":
            shutil.rmtree(place)
    missing = {"secret": "secret", "book": book.name, "both": r"(secret|seed0\..*csv)"}[gone]
    said = rf"{missing} is missing.*start a new run elsewhere"
    with pytest.raises(StateError, match=said) as refused:
        resume(load(tmp_path / "config.toml"), tmp_path)
    assert "\n" not in str(refused.value)
    assert "restore" not in str(refused.value)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("listed", ["nothing", "the secret"])
def test_a_run_does_not_go_on_where_the_list_of_its_books_went_with_them(kind, listed, tmp_path):
    """Its checkpoint knows them; without them the run would end with half of its true epsilon."""
    interrupted(kind, tmp_path)
    for book in (tmp_path / "state" / FOLDER).glob("seed0.*.csv"):
        book.unlink()
    if listed == "nothing":
        (tmp_path / "state" / BOOKS).unlink()
    else:
        (tmp_path / "state" / BOOKS).write_text(f"{FOLDER}/secret\n")
    with pytest.raises(StateError, match=r"seed0\..*csv is missing.*start a new run elsewhere"):
        resume(load(tmp_path / "config.toml"), tmp_path)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("change", ["older", "empty", "other"])
def test_a_run_does_not_go_on_with_a_book_from_a_copy(kind, change, tmp_path):
    """The book of one person or of the run alone; what was released since would not count."""
    older = {}

    def copy(report):
        if report.round == 1:
            older.update({p.name: p.read_bytes() for p in place.glob("seed0.*.csv")})
        if report.round == 3:
            raise KeyboardInterrupt

    place = tmp_path / "state" / FOLDER
    with pytest.raises((PartialRun, KeyboardInterrupt)):
        start(check(RUNS[kind]), tmp_path, RoundCallback(on_round=copy))
    book = max(place.glob("seed0.*.csv"), key=lambda path: path.stat().st_size)
    text = book.read_bytes()
    # Of masks, all is released at once.
    assert kind == "masks" or 0 < len(older[book.name]) < len(text)
    # A writer was killed in the first line of masks.
    before = text[:9] if kind == "masks" else older[book.name]
    book.write_bytes({"older": before, "empty": b"", "other": b"7" + text}[change])
    said = rf"{book.name} is damaged or was put back from a copy: .*; start a new run elsewhere"
    with pytest.raises(StateError, match=said) as refused:
        resume(load(tmp_path / "config.toml"), tmp_path)
    assert "\n" not in str(refused.value)
    book.write_bytes(text)
    resume(load(tmp_path / "config.toml"), tmp_path)


def test_a_whole_folder_that_was_put_back_goes_on(tmp_path):
    """It repeats the releases since, with the same noise."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    interrupted("people", run, 1)
    shutil.copytree(run, kept)
    resume(load(run / "config.toml"), run)
    shutil.rmtree(run)
    shutil.copytree(kept, run)
    resume(load(run / "config.toml"), run)
    assert len(ReleaseLog(run / "state" / FOLDER / "seed0.sums.csv").entries) == 4


def test_what_was_restored_goes_on(tmp_path):
    interrupted("people", tmp_path / "run")
    place, kept = tmp_path / "run" / "state" / FOLDER, tmp_path / "kept"
    shutil.copytree(place, kept)
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    resume(load(tmp_path / "run" / "config.toml"), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]["person"]
    assert told["charges"][0][2] == 4


def test_no_new_secret_is_made_beside_a_book(tmp_path):
    """Of a run that another version began, which left no list of its books."""
    interrupted("people", tmp_path)
    (tmp_path / "state" / BOOKS).unlink()
    (tmp_path / "state" / FOLDER / "secret").unlink()
    with pytest.raises(StateError, match=r"secret is missing, and seed0.sums.csv lies there"):
        secret_in(tmp_path / "state" / FOLDER)


@pytest.mark.parametrize("gone", ["secret", "seed0.sums.csv"])
def test_a_client_elsewhere_gives_no_words_without_its_own(gone, tmp_path):
    user = UserLevelConfig(clip=0.5, epsilon=8.0)
    made = circle(
        method("fedavg", LocalTraining(optimizer="sgd", epochs=1, batch=8)), tmp_path, 5, user=user
    )
    for client in made.names:
        turn(made, client, ClientRequest("turn", client, question(made, 0), "0.1"))
    opened(made, question(made, 0), dict.fromkeys(made.names, "0.1"))
    (made.place("p01") / FOLDER / gone).unlink()
    asked = ClientRequest("turn", "p01", question(made, 1), "1.1", progress=1 / 3)
    said = f"{gone} (is missing, and this run has begun it|has 0 of 1 entries)"
    with pytest.raises(StateError, match=said):
        turn(made, "p01", asked)


def test_a_person_who_is_forgotten_is_in_no_list(tmp_path):
    start(check(RUNS["samples"]), tmp_path)
    with (tmp_path / "state" / FOLDER / "zeros.seed0.csv").open("w") as file:
        file.write("p01,0,finite: NaN\np02,0,finite: NaN\n")
    (run,) = read(tmp_path).runs
    assert {"1 line of privacy.books", "1 line of zeros.seed0.csv"} <= {*remains(run, "p01")}
    erase(tmp_path, "p01")
    (run,) = read(tmp_path).runs
    assert remains(run, "p01") == []
    assert "p01" not in (tmp_path / "state" / BOOKS).read_text()
    assert "p02" in (tmp_path / "state" / BOOKS).read_text()
