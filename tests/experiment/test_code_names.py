"""Code of one's own in experiments: files and installed modules, from any working directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import Said, vergence, write
from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.experiment.code_names import CodeName, default_label, module_file, parse
from vergence.experiment.provenance import config_digest
from vergence.experiment.registry import find
from vergence.experiment.schema import load
from vergence.experiment.trust import current_trust, python_files, trust_in_own_file, under
from vergence.methods.fedavg import FedAvg

TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 3 }
METHODS
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 2, evaluate_every = 1, workers = 1 }
"""
TWO = """
from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vergence.core.method import Method
from vergence.core.task import Model
from vergence.methods.fedavg import FedAvg
from vergence.models.linear import Linear


@dataclass(frozen=True)
class Plain(FedAvg):
    "McMahan et al. 2017."


@dataclass(frozen=True)
class Other(FedAvg):
    "McMahan et al. 2017."

    share: float = 0.5


class Half(Method):
    pass


class Network(Linear):
    pass


class Net(nn.Module):
    pass


def function():
    pass
"""


def toy(methods: str) -> str:
    return TOY.replace("METHODS", methods)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on Python's path with a package of somebody's; its modules are forgotten after."""
    folder = tmp_path / "site" / "own_lab"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "methods.py").write_text(TWO)
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "own_lab"]:
        del sys.modules[name]


# --- names


@pytest.mark.parametrize(
    ("name", "code", "label"),
    [
        ("fedavg", None, "fedavg"),
        ("my.py", CodeName("my.py"), "my"),
        ("a/my.py", CodeName("a/my.py"), "my"),
        ("a/my.py:Own", CodeName("a/my.py", "Own"), "Own"),
        ("lab.methods:Own", CodeName("lab.methods", "Own"), "Own"),
        ("lab:Own", CodeName("lab", "Own"), "Own"),
        ("a:b/my.py", CodeName("a:b/my.py"), "my"),
        ("cuda:0", None, "cuda:0"),
        ("http://host:x y", None, "host:x y"),
        ("lab/methods:Own", None, "methods:Own"),
    ],
)
def test_what_a_name_means(name, code, label):
    assert parse(name) == code
    assert default_label(name) == label
    assert python_files({"x": [{"name": name}]}) == ([code.place] if code else [])


def test_a_file_that_imports_its_neighbour_is_told_to_hold_it_all(tmp_path):
    (tmp_path / "halfway.py").touch()
    (tmp_path / "mine.py").write_text("import halfway\n")
    file = write(tmp_path, toy('method = { name = "mine.py" }'))
    with pytest.raises(ConfigError, match=r"No module named 'halfway': .*into the file") as said:
        load(file, trust_code=True)
    assert "PYTHONPATH" not in str(said.value), "code that nobody accepted would run"
    (tmp_path / "mine.py").write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match="install its package in the environment of vergence"):
        load(file, trust_code=True)


def test_a_place_is_told_once_whichever_class_and_this_package_not_at_all():
    names = ["my.py:A", "my.py:B", "my.py", "lab.x:A", "lab.x:B", "vergence.methods.fedavg:FedAvg"]
    assert python_files({"methods": names}) == ["my.py", "lab.x"]


def test_the_file_of_a_module_is_found_without_importing(site):
    (site / "deep" / "er").mkdir(parents=True)
    (site / "deep" / "er" / "net.py").touch()  # its parents are namespaces in a package
    assert module_file("own_lab.methods") == site / "methods.py"
    assert module_file("own_lab") == site / "__init__.py"
    assert module_file("own_lab.deep.er.net") == site / "deep" / "er" / "net.py"
    for none in (
        "own_lab.no",
        "no_lab.methods",
        "own_lab.methods.more",
        "own_lab.deep",
        "sys",
        "math",
    ):
        assert module_file(none) is None
    assert "own_lab" not in sys.modules


# --- classes


@pytest.mark.parametrize("place", ["own_lab.methods", "FILE"])
def test_one_of_several_classes(site, place):
    place = place.replace("FILE", str(site / "methods.py"))
    with under(trust_in_own_file()):
        one, other = (find("methods", f"{place}:{name}", Method) for name in ("Plain", "Other"))
        assert (one.__name__, other.__name__) == ("Plain", "Other")
        assert one.__module__ == other.__module__
        assert find("models", f"{place}:Network", Model).__name__ == "Network"
        assert list(current_trust().loaded_code) == [place]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_lab.no:Own", ["no module 'own_lab.no'", "PYTHONPATH"]),
        ("no_lab.methods:Own", ["no module 'no_lab.methods'"]),
        ("own_lab.methods:Othr", ["methods.py has no class 'Othr'", "did you mean 'Other'?"]),
        ("own_lab:Own", ["has no class 'Own', and no Method at all"]),
        ("own_lab.methods:Network", ["is a class over Model", "a Method is wanted", "vg.Method"]),
        ("own_lab.methods:Net", ["is a class over Module", "a Method is wanted"]),
        ("own_lab.methods:function", ["is a function", "a Method is wanted here", "name a class"]),
        ("own_lab.methods:FedAvg", ["another module", "'vergence.methods.fedavg:FedAvg'"]),
        ("own_lab.methods:Half", ["is abstract", "does not define round"]),
        ("FILE", ["exactly one Method", "defines Plain, Other", "say which", "methods.py:Plain"]),
        ("FILE:Net", ["methods.py:Net' is a class over Module"]),
        ("vergence.methods.fedavgg:FedAvg", ["has no module", "did you mean 'fedavg'?"]),
    ],
)
def test_what_is_wrong_is_one_line(site, tmp_path, name, words):
    name = name.replace("FILE", str(site / "methods.py"))
    file = write(tmp_path, toy(f'method = "{name}"'))
    vergence("run", file, "--out", tmp_path / "out").complains(2, *words)


def test_a_file_whose_one_class_is_abstract_is_told_what_it_lacks(tmp_path):
    file = tmp_path / "half.py"
    file.write_text("from vergence.core.method import Method\nclass Half(Method):\n    pass\n")
    with (
        under(trust_in_own_file()),
        pytest.raises(ConfigError, match=r"half\.py: Half is abstract.*round"),
    ):
        find("methods", str(file), Method)


@pytest.mark.usefixtures("site")
def test_ones_own_class_does_not_pass_for_the_packages():
    with under(trust_in_own_file()):
        own = find("methods", "own_lab.methods:Plain", Method)
    assert registry_name(own) == "own_lab.methods:Plain"
    assert registry_name(FedAvg) == "fedavg"


@pytest.mark.usefixtures("site")
def test_a_plain_network_is_told_how_to_become_a_model():
    with (
        under(trust_in_own_file()),
        pytest.raises(ConfigError, match=r"plain torch.nn.Module.*OwnNet\(vg\.Model\)"),
    ):
        find("models", "own_lab.methods:Net", Model)


@pytest.mark.parametrize("broken", ["__init__.py", "methods.py"])
def test_a_module_that_cannot_be_imported_is_one_line(site, tmp_path, broken):
    (site / broken).write_text("import sys\nraise ValueError('not today')\n")
    file = write(tmp_path, toy('method = "own_lab.methods:Other"'))
    said = vergence("run", file, "--out", tmp_path / "out")
    where = ", line 2" if broken == "methods.py" else ""
    said.complains(2, f"own_lab.methods{where}: ValueError: not today")


# --- working directories


@pytest.mark.slow
def test_files_beside_an_experiment_are_found_from_anywhere(tmp_path, monkeypatch):
    home, elsewhere, third = (tmp_path / name for name in ("home", "elsewhere", "third"))
    for folder in (home, elsewhere, third):
        folder.mkdir()
    (home / "mine.py").write_text(TWO)
    methods = 'methods = ["mine.py:Plain", { name = "mine.py:Other", share = 0.2 }]'
    write(home, toy(methods))
    monkeypatch.chdir(elsewhere)
    file = Path("../home/toy.toml")
    assert vergence("run", file, "--out", "out").code == 0
    told = json.loads(Path("out/Other/provenance.json").read_text())["code"]
    assert list(told["files"]) == ["../home/mine.py"]
    assert told["directory"] == str(elsewhere)
    assert "../home/mine.py:Other" in Path("out/Other/config.toml").read_text()
    monkeypatch.chdir(third)
    for command in ("verify", "resume"):
        assert vergence(command, elsewhere / "out", "--trust-code").code == 0
    assert vergence("resume", elsewhere / "out" / "Plain", "--trust-code").code == 0
    (home / "mine.py").write_text(TWO + "# changed\n")
    said = vergence("verify", elsewhere / "out", "--trust-code")
    said.complains(2, "is not the file that the run was begun with")


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_another_directory(tmp_path, monkeypatch):
    home, third = tmp_path / "home", tmp_path / "third"
    home.mkdir()
    third.mkdir()
    (home / "mine.py").write_text(TWO)
    monkeypatch.chdir(home)
    write(home, toy('methods = ["mine.py:Plain", "local_only"]'))
    assert vergence("run", "toy.toml", "--out", "out").code == 0
    for path in [Path("out/SHA256SUMS"), *Path("out").glob("*/SHA256SUMS")]:
        path.unlink()
    Path("out/Plain/results.json").unlink()
    (third / "mine.py").write_text("raise ValueError('another')\n")  # not the one recorded
    monkeypatch.chdir(third)
    assert vergence("resume", home / "out", "--trust-code").code == 0
    assert (home / "out" / "Plain" / "results.json").is_file()


def test_a_file_of_the_working_directory_is_named_as_ever(tmp_path, monkeypatch):
    """Folders of earlier runs hold such names, and their stamps the digest of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TWO)
    other = tmp_path / "experiments"
    other.mkdir()
    text = toy('method = "mine.py:Plain"')
    for file in (write(tmp_path, text, "a.toml").name, write(other, text)):
        found = load(file, trust_code=True)
        assert found.table["method"] == "mine.py:Plain"
    (other / "mine.py").write_text(TWO)
    assert load(Path("experiments/toy.toml"), trust_code=True).table["method"] == (
        "experiments/mine.py:Plain"
    )


def test_a_run_folder_s_names_are_not_looked_for_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TWO)
    write(tmp_path, toy('method = "mine.py:Plain"'))
    assert vergence("run", "toy.toml", "--out", "out").code == 0
    before = config_digest(load("out/config.toml", trust_code=True).table)
    told = json.loads(Path("out/provenance.json").read_text())
    told["code"].pop("directory")  # as an earlier version wrote it
    Path("out/provenance.json").write_text(json.dumps(told))
    Path("out/mine.py").write_text("raise ValueError('slipped in')\n")
    after = load("out/config.toml", trust_code=True).table
    assert (after["method"], config_digest(after)) == ({"name": "mine.py:Plain"}, before)


def test_files_of_one_name_in_two_folders_are_two(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(TWO.replace("share", f"{name}_share"))
    methods = ", ".join(
        f'{{ name = "{n}/mine.py:Other", label = "{n}", {n}_share = 0.1 }}' for n in ("a", "b")
    )
    file = write(tmp_path, toy(f"methods = [{methods}]"))
    found = load(file, trust_code=True)
    assert len({type(method).__module__ for method in found.methods.values()}) == 2
    assert len(found.code) == 2


# --- the real command


def real(cwd: Path, site: Path, *words: object) -> Said:
    """The command in a process of its own, with a folder of installed packages."""
    code = "from vergence.cli.main import main; main()"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(site)]),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_an_installed_package_works_from_any_directory(site, tmp_path):
    """Its module takes a sibling in, as packages do, and a worker process has the class too."""
    (site / "parts.py").write_text(TWO)
    (site / "methods.py").write_text(
        "from .parts import Other as Base\n\n\nclass Sibling(Base):\n    'McMahan et al. 2017.'\n"
    )
    text = toy('method = { name = "own_lab.methods:Sibling", share = 0.1 }')
    file = write(tmp_path, text.replace("workers = 1", "workers = 2"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = real(elsewhere, site.parent, "run", file, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    said = real(tmp_path, site.parent, "verify", "out")
    assert said.code == 2
    assert "own_lab.methods is Python code" in said.err
    assert real(tmp_path, site.parent, "verify", "out", "--trust-code").code == 0


TOY_MODEL = toy('method = "fedavg"').replace('{ name = "linear" }', "{ MODEL }")
WIDE = """
from dataclasses import dataclass

import vergence as vg
from torch import nn


@dataclass(frozen=True)
class Wide(vg.Model):
    hidden: int = 4
    width = 4

    def build(self):
        return nn.LazyLinear(1)
"""


def test_an_option_without_a_type_is_told_to_have_one(tmp_path):
    (tmp_path / "wide.py").write_text(WIDE)
    table = f'name = "{tmp_path / "wide.py"}"'
    own = TOY_MODEL.replace("MODEL", f"{table}, width = 8")
    said = vergence("run", write(tmp_path, own), "--out", tmp_path / "out")
    said.complains(
        2, "unknown key 'width'; known: hidden", "of Wide has no type", "`width: int = 4`"
    )
    own = TOY_MODEL.replace("MODEL", f"{table}, hidde = 8")
    said = vergence("run", write(tmp_path, own), "--out", tmp_path / "out")
    said.complains(2, "unknown key 'hidde' (did you mean 'hidden'?)")
    assert "no type" not in said.err


def test_a_layer_without_a_size_is_named(tmp_path):
    (tmp_path / "wide.py").write_text(WIDE)
    own = TOY_MODEL.replace("MODEL", f'name = "{tmp_path / "wide.py"}"')
    said = vergence("run", write(tmp_path, own), "--out", tmp_path / "out")
    said.complains(
        2, "the network is a LazyLinear", "use Linear with its size", "call forward once"
    )


def test_a_file_without_a_model_is_told_of_the_public_name(tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\nclass Net(nn.Linear): ...\n")
    own = TOY_MODEL.replace("MODEL", f'name = "{tmp_path / "net.py"}"')
    said = vergence("run", write(tmp_path, own), "--out", tmp_path / "out")
    said.complains(2, "`import vergence as vg`, `class OwnNet(vg.Model):`")
