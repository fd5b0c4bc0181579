"""Every command with `--out` refuses, before it computes anything, a place that it cannot have."""

import pytest
from cyclopts import App

from tests.cli.commands import vergence
from vergence.cli.app import app
from vergence.cli.commands import DAILY, GROUPS


def arguments(words):
    """Return the arguments of a command, by their first name."""
    command: App = app
    for word in words:
        command = command[word]
    return {each.name: each for each in command.assemble_argument_collection()}


def with_words(words):
    """Return a command with a word for all that it cannot do without, except --out."""
    known = arguments(words)
    needed = [name for name, each in known.items() if each.required and name != "--out"]
    return [*words, *(word for name in needed for word in (name, "1"))]


COMMANDS = [[each.name] for each in DAILY]
COMMANDS += [
    [group.name, name] for group in GROUPS for name in app[group.name] if not name.startswith("-")
]
WRITERS = [words for words in COMMANDS if "--out" in arguments(words)]
FILES = ["export", "report", "status", "data look", "data import", "study calibrate"]
FOLDERS = ["web", "adapt", "run", "model prune", "privacy ethics", "study cross", "deploy init"]


def test_there_are_commands_that_write():
    spelt = {" ".join(words) for words in WRITERS}
    assert len(spelt) > 20
    assert {*FILES, *FOLDERS} <= spelt


@pytest.mark.parametrize("words", WRITERS, ids=" ".join)
def test_nothing_is_written_below_a_file(words, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    said = vergence(*with_words(words), "--out", tmp_path / "mine.txt" / "new.png")
    said.complains(2, "mine.txt is a file", "choose another folder")
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize("command", FOLDERS)
def test_a_file_in_place_of_a_folder_is_named(command, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    said = vergence(*with_words(command.split()), "--out", tmp_path / "mine.txt")
    said.complains(2, "mine.txt is a file", "choose another folder")


def test_a_link_to_nothing_is_no_place_for_a_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    said = vergence(*with_words(["run"]), "--out", tmp_path / "link")
    said.complains(2, "link to no folder", "choose another folder")


@pytest.mark.parametrize("command", FILES)
def test_a_folder_in_place_of_a_file_is_named(command, tmp_path):
    said = vergence(*with_words(command.split()), "--out", tmp_path)
    said.complains(2, f"{tmp_path} is a folder", "add a name")


@pytest.mark.parametrize(
    ("words", "example"),
    [("export x", "mine.onnx"), ("data import x", "mine.toml"), ("web x", "runs/first")],
)
def test_a_missing_place_is_asked_for_with_an_example_of_its_kind(words, example):
    vergence(*words.split()).complains(2, "needs --out", f"such as --out {example}")


def test_a_page_of_the_report_goes_nowhere_else(tmp_path):
    said = vergence("report", tmp_path, "--out", tmp_path / "x.html")
    said.complains(2, "--figure", "report.html")
