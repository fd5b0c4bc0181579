"""A release log, used without a run, that is put back from a copy to spend its budget again."""

import shutil
from pathlib import Path

import pytest

from tests.adversary.kill_at_fsync import KillAtFsync, Killed
from vergence.errors import StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.folder_marks import state_folder
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog, secret_in

USER = UserLevelConfig(clip=0.5, epsilon=8.0)
EARLY, ALL = 4, 24
"""Releases before the copy, and as many as the budget allows."""


@pytest.fixture(autouse=True)
def _user(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_STATE", str(tmp_path / "user"))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "run" / FOLDER
    secret_in(place)
    return place


def log_in(folder):
    return ReleaseLog(folder / "seed0.sums.csv")


def charge(log, rounds):
    for at in rounds:
        log.charge(Release(str(at), f"{at}.train", 3.0, 1.0, 1), USER)


@pytest.fixture
def spent(folder, tmp_path):
    """A log that spent its budget, of which there is a copy from before."""
    log = log_in(folder)
    charge(log, range(EARLY))
    shutil.copytree(folder, tmp_path / "copy")
    charge(log, range(EARLY, ALL))
    with pytest.raises(StateError, match="budget is spent"):
        charge(log, [ALL])
    return log


def marks():
    return sorted((state_folder() / "marks").iterdir())


@pytest.mark.parametrize("change", ["older", "empty", "other", "half a line", "missing", "folder"])
def test_a_log_that_was_put_back_is_refused_until_nothing_is_missing(
    change, spent, folder, tmp_path
):
    path, copy, whole = spent.path, tmp_path / "copy", spent.path.read_bytes()
    first, *rest = whole.splitlines(keepends=True)
    match change:
        case "older":
            shutil.copy2(copy / path.name, path)
        case "empty":
            path.write_bytes(b"")
        case "other":
            path.write_bytes(b"".join([first.replace(b"3.0", b"9.0"), *rest]))
        case "half a line":
            path.write_bytes(whole[:-4])
        case "missing":
            path.unlink()
        case "folder":
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
    lost = {"empty": ALL, "other": 1, "half a line": 1}.get(change, ALL - EARLY)
    expected = rf"{path.name} .*lacks {lost} of 24 releases; .* start a new run elsewhere"
    if change == "missing":
        expected = f"{path.name} is missing"
    with pytest.raises(StateError, match=expected) as refused:
        log_in(folder)
    assert "\n" not in str(refused.value)
    # As the message says. Then the budget is spent as before.
    (mark,) = marks()
    assert change == "missing" or str(mark) in str(refused.value)
    shutil.copy2(mark, path)
    assert path.read_bytes() == whole
    with pytest.raises(StateError, match="budget is spent"):
        charge(log_in(folder), [ALL])


def test_a_log_that_is_put_back_while_it_is_open_makes_its_mark_forget_nothing(spent, tmp_path):
    """Its process has all lines in memory, and would write a new one after the old ones."""
    (mark,), text = marks(), spent.path.read_bytes()
    shutil.copy2(tmp_path / "copy" / spent.path.name, spent.path)
    with pytest.raises(StateError, match="lacks 20 of 24 releases"):
        spent.enter(Release("other", "other", 30.0, 1.0, 1))
    with pytest.raises(StateError, match="lacks 20 of 24 releases"):
        charge(spent, [0])
    assert mark.read_bytes() == text


@pytest.mark.parametrize("after", [False, True])
def test_a_log_whose_process_was_killed_goes_on_and_its_mark_knows_what_left(
    after, folder, monkeypatch
):
    """Before or after each file is on the disk; then the same release is charged once more."""
    kill = KillAtFsync(monkeypatch, after)
    charge(log_in(folder), [-1])
    while kill.more:
        kill.next()
        kill.live = True
        older = (folder / "seed0.sums.csv").read_bytes()
        try:
            charge(log_in(folder), [kill.at])
        except Killed:
            kill.live = False
            charge(log_in(folder), [kill.at])
        kill.live = False
        path = log_in(folder).path
        now = path.read_bytes()
        path.write_bytes(older)
        with pytest.raises(StateError, match=rf"lacks 1 of {kill.at + 1} releases"):
            log_in(folder)
        path.write_bytes(now)
    assert kill.at > 3


@pytest.mark.usefixtures("spent")
def test_who_begins_anew_at_the_same_place_is_not_refused(folder):
    """With a new secret, whose noise is new. Without any secret it is the same log, deleted."""
    shutil.rmtree(folder.parent)
    secret_in(folder)
    charge(log_in(folder), range(ALL))
    assert len(marks()) == 2


def test_a_log_without_a_secret_is_not_begun_anew_at_its_place(tmp_path):
    log = ReleaseLog(tmp_path / "book.csv")
    charge(log, range(2))
    log.path.unlink()
    with pytest.raises(StateError, match="lacks 2 of 2 releases"):
        ReleaseLog(log.path)
    assert ReleaseLog(tmp_path / "other.csv").entries == []


def test_what_a_mark_does_not_tell(spent, folder, tmp_path):
    """Of a copy elsewhere, and once the mark is removed as well: the docstring says so."""
    shutil.copytree(tmp_path / "copy", tmp_path / "elsewhere")
    charge(log_in(tmp_path / "elsewhere"), [ALL])
    shutil.copy2(tmp_path / "copy" / spent.path.name, spent.path)
    shutil.rmtree(state_folder())
    charge(log_in(folder), [ALL])
    assert len(log_in(folder).entries) == EARLY + 1


def test_a_mark_that_cannot_be_read_is_not_replaced_by_that_of_an_older_log(spent, tmp_path):
    """Whoever lacks a right to read it, or has too many files open, would have spent nothing."""
    (mark,) = marks()
    mark.unlink()
    mark.symlink_to(mark)  # an error to every user, also to root
    shutil.copy2(tmp_path / "copy" / spent.path.name, spent.path)
    log = ReleaseLog(spent.path)
    for _ in range(2):
        with pytest.raises(StateError, match=r"cannot be read, .* elsewhere") as refused:
            charge(log, [ALL])
        assert "\n" not in str(refused.value)
    assert mark.is_symlink()


def test_a_user_without_a_home_reads_logs_and_releases_nothing(folder, monkeypatch):
    """As in a container that does not know the user."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("VERGENCE_STATE", "XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert log_in(folder).entries == []
    with pytest.raises(StateError, match=r"no home folder: .* VERGENCE_STATE"):
        charge(log_in(folder), [0])


def test_nothing_is_released_where_a_mark_cannot_be_written(folder, tmp_path):
    (tmp_path / "user").write_text("a file")
    log = log_in(folder)
    # Not at a second attempt either, whose line is in the log.
    for _ in range(2):
        with pytest.raises(StateError, match=r"cannot be written .* VERGENCE_STATE") as refused:
            charge(log, [0])
        assert "\n" not in str(refused.value)
        assert len(log_in(folder).entries) == 1, "who only reads it needs no mark"
    (tmp_path / "user").unlink()
    charge(log, [0])
    assert len(marks()) == 1
