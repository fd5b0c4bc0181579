"""Merged runs name the runs that they are made of; somebody else may have written the names.

`verify` is for folders that one does not trust; one that was made of itself never ended.
"""

import json
import shutil

import pytest

from tests.cli.commands import TOY, vergence, write
from vergence.experiment import checksums

ONE = TOY.replace("METHODS", 'methods = ["fedavg"]').replace("rounds = 3", "rounds = 1")
NAMES = {
    "itself": {"0": "."},
    "itself, by its name": {"0": "../fedavg"},
    "itself, from above": {"0": "../../out/fedavg"},
    "a list": ["x"],
    "a number": {"0": 3},
    "elsewhere": {"0": "../../../etc/fedavg"},
    "a place from the root": {"0": "/etc/fedavg"},
    "two lines": {"0": "../a\nb/fedavg"},
    "a name too long": {"0": "../a/" + "x" * 5000},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("made")
    assert vergence("run", write(home, ONE), "--out", home / "out").code == 0
    return home / "out"


def sealed_anew(run, key, parts):
    path = run / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: parts}))
    (run / checksums.NAME).unlink()
    checksums.seal(run)


@pytest.mark.parametrize("key", ["folds", "split_folders"])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_no_run_writes_are_one_line(made, tmp_path, key, name):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    sealed_anew(out / "fedavg", key, NAMES[name])
    for command in ("verify", "export"):
        more = ("--out", tmp_path / "x.onnx") if command == "export" else ()
        vergence(command, out / "fedavg", *more).complains(2, "results.json is damaged", key)


def test_a_part_that_is_merged_in_turn_is_refused(made, tmp_path):
    """By a link the chain of parts could go on for ever."""
    out = tmp_path / "out"
    shutil.copytree(made, out)
    (out / "a").mkdir()
    (out / "a" / "b").symlink_to(out / "fedavg")
    sealed_anew(out / "fedavg", "folds", {"p00": "../a/b"})
    vergence("verify", out / "fedavg").complains(2, "results.json is damaged", "is merged itself")
