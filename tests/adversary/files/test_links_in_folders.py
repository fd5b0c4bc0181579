"""Links in a folder from somebody else lead nothing that is written there elsewhere."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversary.files import run_folders
from tests.cli.commands import vergence, write
from vergence.core import files
from vergence.core.files import (
    add_line,
    open_for_append,
    refuse_links,
    replacing,
    truncate_file,
    write_whole,
)
from vergence.deployment import folders
from vergence.errors import StateError
from vergence.experiment.run import locked

COMMANDS = (
    "resume OUT",
    "report OUT",
    "report OUT --figure persons",
    "privacy ethics OUT --method fedavg",
    "privacy audit OUT/fedavg --quick",
    "privacy forget OUT p01 --out HOME/without",
    "study evaluate late CONFIG --out OUT",
)
"""What writes into a folder that was there already."""
LINKS = {
    "a folder of states": ("local_only/state", "thesis"),
    "a lock": (".lock", "notes.txt"),
    "a file under way": ("local_only/config.toml.part", "notes.txt"),
    "the folder of an audit": ("fedavg/audit", "thesis"),
    "folds": ("late", "thesis"),
    "nothing yet": ("local_only/state", "nothing"),
}
WRITERS: dict[str, Callable[[Path], object]] = {
    "a line": lambda path: add_line(path, "words"),
    "a cut": lambda path: truncate_file(path, 0),
    "rows": open_for_append,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("made")
    assert vergence("run", write(home, run_folders.TOY), "--out", home / "out").code == 0
    return home / "out"


@pytest.fixture
def home(made, tmp_path) -> Path:
    """A user's home, and in it a run that was received, its second method not begun."""
    shutil.copytree(made, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "local_only")
    (tmp_path / "out" / "local_only").mkdir()
    for name in ("SHA256SUMS", "report.html"):
        (tmp_path / "out" / name).unlink()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "notes.txt").write_text("precious")
    return tmp_path


def link(home: Path, name: str) -> Path:
    """Put a link into the received folder that leads out of it."""
    where, target = LINKS[name]
    path = home / "out" / where
    path.unlink(missing_ok=True)
    path.symlink_to(home / target)
    return path


def intact(home: Path) -> bool:
    """True if nothing outside the received folder was touched."""
    return (
        (home / "notes.txt").read_text() == "precious"
        and [path.name for path in (home / "thesis").iterdir()] == ["chapter.tex"]
        and not (home / "nothing").exists()
    )


@pytest.mark.parametrize("name", LINKS)
def test_a_run_with_a_link_in_it_is_not_gone_on_with(home, name):
    path = link(home, name)
    said = vergence("resume", home / "out")
    assert intact(home)
    said.complains(2, f"{path} is a link to ", "take the link away")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_where_a_link_is(made, tmp_path, command):
    out, config = tmp_path / "out", write(tmp_path, run_folders.TOY)
    shutil.copytree(made, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    (out / "fedavg" / "elsewhere").symlink_to(tmp_path)
    words = command.replace("OUT", str(out)).replace("HOME", str(tmp_path))
    said = vergence(*words.replace("CONFIG", str(config)).split())
    said.complains(2, "fedavg/elsewhere is a link to ")
    (out / "fedavg" / "elsewhere").unlink()
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert after == {path: before.get(path) for path in after}


def test_a_link_to_a_run_or_above_it_is_the_users_own(home):
    (home / "disk").symlink_to(home / "out")
    assert vergence("resume", home / "disk").code == 0
    assert vergence("report", home / "disk" / "fedavg").code == 0
    assert (home / "out" / "SHA256SUMS").is_file()


def test_links_are_found_at_any_depth_and_what_cannot_be_seen_is_refused(tmp_path):
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    refuse_links(tmp_path)
    refuse_links(tmp_path / "not there")
    (deep / "d").symlink_to("nowhere")
    with pytest.raises(StateError, match=r"a/b/c/d is a link to nowhere; nothing is written"):
        refuse_links(tmp_path)
    (deep / "d").unlink()
    deep.chmod(0o300)  # entries can be made there, and not listed
    try:
        if not os.access(deep, os.R_OK):  # a superuser may look anywhere
            with pytest.raises(StateError, match=r"a/b/c cannot be looked into"):
                refuse_links(tmp_path)
    finally:
        deep.chmod(0o700)


class TestWriters:
    """Each by itself, as a link may come after a folder was looked through."""

    @pytest.fixture(autouse=True, params=["with O_NOFOLLOW", "without"])
    def system(self, request, monkeypatch):
        if request.param == "without":
            monkeypatch.setattr(files, "NOFOLLOW", 0)

    @pytest.fixture
    def victim(self, tmp_path) -> Path:
        (tmp_path / "victim").write_text("precious\n")
        return tmp_path / "victim"

    def test_a_file_under_way(self, tmp_path, victim):
        for target in (victim, tmp_path / "nothing"):
            files.part_of(tmp_path / "file").symlink_to(target)
            write_whole(tmp_path / "file", b"new")
            assert victim.read_text() == "precious\n"
            assert not (tmp_path / "nothing").exists()
            assert (tmp_path / "file").read_bytes() == b"new"
            assert not (tmp_path / "file").is_symlink()

    def test_a_file_that_is_a_link_is_replaced(self, tmp_path, victim):
        (tmp_path / "file").symlink_to(victim)
        write_whole(tmp_path / "file", b"new", secret=True)
        assert victim.read_text() == "precious\n"
        assert (tmp_path / "file").lstat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("secret", [False, True])
    def test_a_file_under_way_that_is_elsewhere_too(self, tmp_path, victim, secret):
        files.part_of(tmp_path / "file").hardlink_to(victim)
        write_whole(tmp_path / "file", b"new", secret=secret)
        assert victim.read_text() == "precious\n"
        assert (tmp_path / "file").read_bytes() == b"new"

    def test_a_plain_file_under_way_is_written_over_but_for_a_secret(self, tmp_path):
        part = files.part_of(tmp_path / "file")
        for secret in (False, True):
            part.write_bytes(b"longer than new")
            with part.open("rb") as before:
                write_whole(tmp_path / "file", b"new", secret=secret)
                same = os.fstat(before.fileno()).st_ino == (tmp_path / "file").stat().st_ino
            assert same is not secret
            assert (tmp_path / "file").read_bytes() == b"new"
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600

    def test_scratch_of_a_page(self, tmp_path, victim):
        (tmp_path / f".page.{os.getpid()}.part.html").symlink_to(victim)
        with replacing(tmp_path / "page.html") as scratch:
            scratch.write_text("page")
        assert victim.read_text() == "precious\n"
        assert (tmp_path / "page.html").read_text() == "page"

    @pytest.mark.parametrize("writer", WRITERS)
    def test_what_grows(self, tmp_path, victim, writer):
        (tmp_path / "table").symlink_to(victim)
        with pytest.raises(OSError, match="symbolic links"):
            WRITERS[writer](tmp_path / "table")
        assert victim.read_text() == "precious\n"

    def test_a_lock_empties_nothing(self, tmp_path, victim):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / ".lock").hardlink_to(victim)
        with locked(tmp_path / "out"):
            assert victim.read_text() == "precious\n"

    def test_a_lock_that_came_late_is_not_followed(self, tmp_path, victim, monkeypatch):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / ".lock").symlink_to(victim)
        monkeypatch.setattr("vergence.experiment.run.refuse_links", lambda _: None)
        with pytest.raises(files.Unsaved), locked(tmp_path / "out"):
            pass
        assert victim.read_text() == "precious\n"

    def test_a_deployment_s_folder(self, tmp_path, victim):
        (tmp_path / "client").mkdir()
        for name in (folders.EVENTS, ".lock"):
            (tmp_path / "client" / name).symlink_to(victim)
        folders.tell(tmp_path / "client", "words")
        with pytest.raises(StateError, match="is a link to"), folders.running(tmp_path / "client"):
            pass
        assert victim.read_text() == "precious\n"
