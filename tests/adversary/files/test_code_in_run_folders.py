"""Code that somebody else's folder names does not run, in any command, unless it is trusted.

The folders are sealed anew by whoever made them: their own SHA-256 sums agree with the code.
"""

import importlib.util
import json
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vergence as package
from tests.cli.commands import Said, vergence, write
from tests.engine.toys import mostly_slow
from vergence.deployment.folders import ClientSide
from vergence.deployment.joined_node import JoinedNode
from vergence.errors import ConfigError, UntrustedCode
from vergence.experiment import checksums, provenance
from vergence.experiment.schema import load
from vergence.experiment.trust import trust_in_own_file, under

TOY = """
task       = { name = "TASK" }
model      = { name = "linear" }
federation = { name = "toy", people = 3 }
METHODS
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 2, evaluate_every = 1, workers = WORKERS }
"""
CODE = """
from pathlib import Path
Path("MARKER").write_text("the code ran")
from vergence.methods.fedavg import FedAvg

class Other(FedAvg):
    "McMahan et al. 2017."
"""

RICH = """
import math
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from vergence.core.method import Exposure
from vergence.methods.fedavg import FedAvg

T = TypeVar("T")
RATE = 0.5
WORDS = {"one": (1, [2.0]), "two": {3}}

def outer(a, b=2, *, c=3):
    return lambda x: x + a + b + c

added = outer(1)

@dataclass(frozen=True)
class Options:
    "Options."
    rate: float = RATE
    names: tuple[str, ...] = field(default_factory=tuple)

@dataclass(frozen=True)
class Other(FedAvg):
    "McMahan et al. 2017."
    exposure: ClassVar = {"train": Exposure(metrics=("loss",))}
    options: ClassVar[Options] = Options(rate=0.125)

    @property
    def half(self):
        return 0.25

    @staticmethod
    def plain(x):
        return super(Other, Other).__name__
"""
CHANGES = [
    ("RATE = 0.5", "RATE = 0.75"),
    ("(1, [2.0])", "(1, [2.5])"),
    ("b=2,", "b=4,"),
    ("c=3)", "c=5)"),
    ("x + a + b", "x - a + b"),
    ("outer(1)", "outer(7)"),
    ("rate=0.125", "rate=0.375"),
    ("return 0.25", "return 0.375"),
    ('metrics=("loss",)', "metrics=()"),
    ("default_factory=tuple", "default_factory=list"),
    ('"McMahan', '"Mc Mahan'),
    ("import math", "import cmath as math"),
    ("class Other(FedAvg):", "class Other(FedAvg, metaclass=type('M', (type(FedAvg),), {})):"),
]
"""Text of that module, and what could stand there instead."""


def toy(methods: str, task: str = "toy", workers: int = 1) -> str:
    text = TOY.replace("METHODS", methods).replace("TASK", task)
    return text.replace("WORKERS", str(workers))


def code(path: Path) -> Path:
    """Write a method that leaves a mark where it runs; return the mark's path."""
    mark = path.with_suffix(".ran")
    path.write_text(CODE.replace("MARKER", str(mark)))
    return mark


def seal_anew(out: Path) -> None:
    for folder in (out / "fedavg", out / "local_only", out):
        (folder / checksums.NAME).unlink(missing_ok=True)
        checksums.seal(folder)


def swap_in(out: Path, name: str) -> None:
    """Name a file in place of FedAvg, everywhere in a finished run."""
    for config in (out / "config.toml", out / "fedavg" / "config.toml"):
        config.write_text(config.read_text().replace('"fedavg"', json.dumps(name)))
    seal_anew(out)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("made")
    text = toy('methods = ["fedavg", "local_only"]')
    assert vergence("run", write(home, text), "--out", home / "out").code == 0
    return home / "out"


@pytest.fixture
def sent(made, tmp_path) -> tuple[Path, Path]:
    """A run folder that names code in it, and where the code would leave its mark."""
    out = tmp_path / "sent"
    shutil.copytree(made, out)
    mark = code(out / "other.py")
    of_other_data(out / "local_only")
    swap_in(out, str(out / "other.py"))
    return out, mark


def of_other_data(run: Path) -> None:
    """Let a run tell of other data: cross takes no two runs of one data set."""
    path = run / "provenance.json"
    told = json.loads(path.read_text())
    told["data"]["sha256"] = "00"
    path.write_text(json.dumps(told))


READERS = [
    "verify OUT",
    "verify OUT/fedavg",
    "resume OUT",
    "resume OUT/fedavg",
    "explain OUT/config.toml",
    "privacy matrix OUT/config.toml",
    "privacy ethics OUT",
    "privacy audit OUT/fedavg",
    "privacy forget OUT p00 --out NEW",
    "export OUT/fedavg --out NEW.onnx",
    "model prune OUT/fedavg --out NEW",
    "study calibrate OUT/fedavg --out NEW.png",
    "study cross OUT/fedavg OUT/local_only --out NEW",
    "study evaluate within OUT/config.toml --out NEW",
    "model split-plan OUT/config.toml",
    "run OUT/config.toml --out NEW",
    "study sweep OUT/config.toml --out NEW",
]


def ask(line: str, out: Path, *more: str) -> Said:
    words = line.replace("NEW", str(out.parent / "new")).replace("OUT", str(out)).split()
    try:
        return vergence(*words, *more)
    except Exception as error:
        return Said(1, "", f"a traceback of {type(error).__name__}")


@pytest.mark.parametrize("line", READERS)
def test_a_received_folder_s_code_does_not_run(sent, line):
    out, mark = sent
    said = ask(line, out)
    assert not mark.exists()
    again = " ".join(line.replace("NEW", str(out.parent / "new")).replace("OUT", str(out)).split())
    said.complains(2, str(out / "other.py"), f"`vergence {again} --trust-code`")


STARTS = [line for line in READERS if "OUT/config.toml" in line]


@pytest.mark.parametrize("where", ["sent/parts", "elsewhere"])
@pytest.mark.parametrize("line", mostly_slow(STARTS, *STARTS[-2:]))
def test_nor_does_that_of_what_its_config_extends(made, tmp_path, line, where):
    out, base = tmp_path / "sent", tmp_path / where
    shutil.copytree(made, out)
    base.mkdir()
    mark = code(base / "other.py")
    named = (out / "config.toml").read_text().replace('"fedavg"', '"other.py"')
    write(base, named, "inner.toml")
    write(base, 'extends = ["inner.toml"]\n', "outer.toml")
    write(out, f'extends = ["{base}/outer.toml"]\n', "config.toml")
    said = ask(line, out)
    assert not mark.exists()
    said.complains(2, "other.py is Python code and would run here", "--trust-code`")
    ask(line, out, "--trust-code")
    assert mark.exists() or "matrix" in line


def test_nor_does_that_of_a_config_that_is_a_link_into_a_folder_below(made, tmp_path):
    out = tmp_path / "sent"
    shutil.copytree(made, out)
    (out / "parts").mkdir()
    mark = code(out / "parts" / "other.py")
    named = (out / "config.toml").read_text().replace('"fedavg"', '"parts/other.py"')
    write(out / "parts", named, "config.toml")
    (out / "config.toml").unlink()
    (out / "config.toml").symlink_to("parts/config.toml")
    with under(trust_in_own_file()), pytest.raises(UntrustedCode, match=r"other\.py"):
        load(out / "config.toml")
    assert not mark.exists()


def test_a_config_of_one_s_own_may_extend_a_file_with_code(tmp_path):
    mark = code(tmp_path / "other.py")
    write(tmp_path, toy('method = "other.py"'), "base.toml")
    own = write(tmp_path, 'extends = ["base.toml"]\n')
    assert vergence("run", own, "--out", tmp_path / "new").code == 0
    assert mark.exists()


@pytest.mark.parametrize(
    "line",
    mostly_slow([line for line in READERS if "matrix" not in line], *READERS[:4], READERS[-1]),
)
def test_trusted_code_runs(sent, line):
    out, mark = sent
    ask(line, out, "--trust-code")
    assert mark.exists()


@pytest.mark.parametrize(
    "command",
    [
        "study unlabelled",
        "study swaps",
        "predict",
        "video summarise",
        "data skew",
        "data partition",
        "export",
        "reproduce",
    ],
)
def test_every_other_command_that_opens_experiments_offers_it(command):
    assert "--trust-code" in vergence(*command.split(), "--help").out


@pytest.mark.parametrize(
    "line", ["status OUT", "status OUT --json", "report OUT", "compare OUT --allow data"]
)
def test_whoever_looks_on_needs_no_code(sent, line):
    out, mark = sent
    said = ask(line, out)
    assert not mark.exists()
    assert said.code == 0
    assert vergence("verify", out).code == 2  # it stands there all the same


def test_status_of_an_unfinished_run_asks_no_task_of_its_own(sent):
    out, mark = sent
    config = out / "fedavg" / "config.toml"
    text = config.read_text().replace('name = "toy"', f'name = "{out}/other.py"', 1)
    config.write_text(text)
    (out / "fedavg" / "results.json").unlink()
    said = vergence("status", out / "fedavg", "--json")
    assert not mark.exists()
    assert said.code == 0
    (run,) = json.loads(said.out)["runs"]
    assert run["state"] == "interrupted"
    assert run["headline"]["metric"]


def test_a_folder_s_reader_of_data_does_not_run_either(sent):
    out, mark = sent
    text = (out / "config.toml").read_text()
    changed = text.replace('name = "toy"\npeople', f'name = "{out}/other.py"\npeople')
    assert changed != text
    (out / "config.toml").write_text(changed)
    for line in ("data skew OUT/config.toml", "data partition OUT/config.toml"):
        said = ask(line, out)
        assert not mark.exists()
        said.complains(2, "--trust-code")


def test_a_file_that_goes_over_a_received_config_does_not_launder_it(sent, tmp_path):
    out, mark = sent
    mine = write(tmp_path, f'extends = ["{out}/config.toml"]\nrun = {{ rounds = 1 }}\n')
    said = vergence("run", mine, "--out", tmp_path / "mine")
    assert not mark.exists()
    said.complains(2, "--trust-code")


def test_verify_compares_states_with_their_digests_without_the_code(sent):
    out, mark = sent
    said = vergence("verify", out)
    assert "the fingerprint was not recomputed" in said.out
    said.complains(2, "not wholly verified")
    state = next((out / "fedavg" / "state").glob("*.safetensors"))
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(bytes(data))
    vergence("verify", out).complains(2, state.name, "is damaged")
    assert not mark.exists()


@pytest.fixture(scope="module")
def made_by_me(tmp_path_factory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("mine")
    code(home / "mine.py")
    methods = f'methods = [{{ name = "{home}/mine.py", label = "fedavg" }}, "local_only"]'
    said = vergence("run", write(home, toy(methods, workers=2)), "--out", home / "own")
    assert (said.code, said.err) == (0, "")
    return home / "own", home / "mine.py"


@pytest.fixture
def own(made_by_me) -> tuple[Path, Path]:
    """The user's own run with a method of their own: its OUT, and the file."""
    code(made_by_me[1])
    return made_by_me


def test_one_s_own_experiment_runs_and_records_its_code(own):
    out, file = own
    assert file.with_suffix(".ran").exists()
    told = json.loads((out / "fedavg" / "provenance.json").read_text())["code"]
    assert told.get("files") == {str(file): digest(file)}
    alone = json.loads((out / "local_only" / "provenance.json").read_text())["code"]
    assert "files" not in alone


def test_the_refusal_tells_the_digest_that_the_run_recorded(own):
    out, file = own
    sha = digest(file)
    vergence("resume", out).complains(2, f"SHA-256 {sha}, as the run recorded")
    assert vergence("resume", out, "--trust-code").code == 0
    assert vergence("verify", out, "--trust-code").code == 0
    file.write_text(file.read_text() + "# changed\n")
    vergence("resume", out).complains(2, f"SHA-256 {digest(file)}", f"the run recorded {sha}")


@pytest.mark.parametrize("command", ["resume", "verify"])
def test_code_that_is_not_the_recorded_one_is_refused_though_trusted(own, command):
    out, file = own
    sha = digest(file)
    file.write_text(file.read_text() + "# changed\n")
    file.with_suffix(".ran").unlink(missing_ok=True)
    said = vergence(command, out, "--trust-code")
    assert not file.with_suffix(".ran").exists()
    said.complains(2, f"SHA-256 is {digest(file)}", f"recorded {sha}")


def test_other_commands_say_that_trusted_code_has_changed(own):
    out, file = own
    file.write_text(file.read_text() + "# changed\n")
    said = vergence("explain", out / "fedavg" / "config.toml", "--trust-code")
    assert said.code == 0
    assert "is not the file that the run was begun with" in said.err
    assert len(said.err.splitlines()) == 1


def test_a_compiled_file_beside_it_is_not_what_runs(tmp_path):
    """Python itself would take a .pyc for the text, unchecked: its digest is told nowhere."""
    good, bad = tmp_path / "mine.py", tmp_path / "bad.py"
    mark = code(bad)
    good.write_text("from vergence.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    'x'\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    there = importlib.util.cache_from_source(str(good))
    py_compile.compile(str(bad), there, invalidation_mode=unchecked, doraise=True)
    text = toy(f'method = {{ name = "{good}" }}')
    assert vergence("run", write(tmp_path, text), "--out", tmp_path / "out").code == 0
    assert not mark.exists()


def test_python_code_that_opens_a_file_has_to_say_so(tmp_path):
    mark = code(tmp_path / "mine.py")
    text = toy(f'method = {{ name = "{tmp_path}/mine.py" }}')
    file = write(tmp_path, text)
    with pytest.raises(Exception, match="trust_code=True"):
        package.load_experiment(file)
    assert not mark.exists()
    options: dict = {"trust_code": True}
    package.run_experiment(package.load_experiment(file, **options), tmp_path / "out")
    assert mark.exists()


def test_a_reader_that_the_user_types_is_theirs(tmp_path):
    """Red at first for its message alone: a file that raises was a traceback."""
    reader = tmp_path / "reader.py"
    reader.write_text("raise ValueError('ran')\n")
    try:
        said = vergence("data", "check", reader)
    except ValueError:
        pytest.fail("a traceback")
    said.complains(2, f"{reader}, line 1: ValueError: ran")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit(0)\n", "it ends the program (SystemExit: 0)"),
        ("def :\n", "SyntaxError"),
        ("raise ValueError('two\\nlines')\n", r"ValueError: two\nlines"),
        (b"\xff\xfe not text", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_run_is_one_line(tmp_path, text, words):
    file = tmp_path / "mine.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    experiment = write(tmp_path, toy(f'method = {{ name = "{file}" }}'))
    try:
        said = vergence("run", experiment, "--out", tmp_path / "out")
    except (ValueError, SyntaxError):
        pytest.fail("a traceback")
    said.complains(2, f"{file}, line ", words)


class Packages:
    """Packages of somebody's, as if installed: each file of them leaves a mark where it runs."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.made: list[str] = []

    def add(self, module: str, text: str = CODE) -> Path:
        """Write a module and its parent packages; return its file."""
        *parents, name = module.split(".")
        folder = self.site
        for parent in parents:
            folder /= parent
            folder.mkdir(exist_ok=True)
            file = folder / "__init__.py"
            file.write_text(f"from pathlib import Path\nPath({str(folder)!r} + '.ran').touch()\n")
        file = folder / f"{name}.py"
        file.write_text(text.replace("MARKER", str(file.with_suffix(".ran"))))
        self.made.append(module.split(".")[0])
        return file

    def ran(self) -> list[str]:
        return sorted(str(path.relative_to(self.site)) for path in self.site.rglob("*.ran"))

    def forget(self) -> None:
        """As in a new process: nothing of them is imported."""
        for name in [name for name in sys.modules if name.split(".")[0] in self.made]:
            del sys.modules[name]
        for mark in self.site.rglob("*.ran"):
            mark.unlink()


@pytest.fixture
def packages(tmp_path, monkeypatch) -> Iterator[Packages]:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    made = Packages(site)
    yield made
    made.forget()


@pytest.fixture
def sent_module(made, tmp_path, packages) -> tuple[Path, Packages, Path]:
    """A run folder that names an installed module's class; the packages, and the module's file."""
    out = tmp_path / "sent"
    shutil.copytree(made, out)
    file = packages.add("h4_theirs.inner.methods")
    of_other_data(out / "local_only")
    swap_in(out, "h4_theirs.inner.methods:Other")
    return out, packages, file


class TestModules:
    """`package.module:Class` and `my.py:Class` pass the same entry."""

    @pytest.mark.parametrize("line", READERS)
    def test_neither_the_module_nor_its_parents_run(self, sent_module, line):
        out, packages, file = sent_module
        said = ask(line, out)
        assert packages.ran() == []
        assert not any(name.startswith("h4_theirs") for name in sys.modules)
        said.complains(2, "h4_theirs.inner.methods is Python code", str(file), digest(file))
        assert "--trust-code`" in said.err

    def test_parents_that_are_namespaces_are_looked_through(self, made, tmp_path, packages):
        out = tmp_path / "sent"
        shutil.copytree(made, out)
        file = packages.add("h4_space.sub.methods")
        for parent in ("h4_space", "h4_space/sub"):
            (packages.site / parent / "__init__.py").unlink()
        swap_in(out, "h4_space.sub.methods:Other")
        vergence("resume", out).complains(2, str(file), digest(file))
        assert packages.ran() == []

    @pytest.mark.parametrize("line", ["explain OUT/config.toml", "run OUT/config.toml --out NEW"])
    def test_trusted_they_run(self, sent_module, line):
        out, packages, _ = sent_module
        assert ask(line, out, "--trust-code").code == 0
        assert packages.ran() == [
            "h4_theirs.ran",
            "h4_theirs/inner.ran",
            "h4_theirs/inner/methods.ran",
        ]

    def test_a_class_of_a_file_is_that_file_s_code(self, sent):
        out, mark = sent
        swap = str(out / "other.py")
        for config in (out / "config.toml", out / "fedavg" / "config.toml"):
            config.write_text(config.read_text().replace(f'"{swap}"', f'"{swap}:Other"'))
        seal_anew(out)
        for line in ("verify OUT", "resume OUT", "run OUT/config.toml --out NEW"):
            said = ask(line, out)
            assert not mark.exists()
            said.complains(2, f"{swap} is Python code")

    @pytest.mark.parametrize("kind", ["task", "model", "federation", "privacy"])
    def test_every_kind_of_name(self, sent_module, tmp_path, kind):
        _, packages, _ = sent_module
        theirs = tmp_path / "sent" / "fedavg" / "config.toml"
        text = toy('methods = ["fedavg"]')
        name = "h4_theirs.inner.methods:Other"
        if kind == "privacy":
            text += f'privacy = {{ robust = "{name}" }}\n'
        else:
            text = text.replace(
                f'{kind:<10} = {{ name = "', f'{kind:<10} = {{ name = "{name}", x = "'
            )
        assert name in text
        theirs.write_text(text)
        said = vergence("run", theirs, "--out", tmp_path / "new")
        assert packages.ran() == []
        said.complains(2, "h4_theirs.inner.methods is Python code")

    def test_another_class_of_a_received_module_is_not_laundered(self, sent_module, tmp_path):
        out, packages, _ = sent_module
        mine = write(
            tmp_path,
            f'extends = ["{out}/config.toml"]\nmethods = ["h4_theirs.inner.methods:FedAvg"]\n',
        )
        said = vergence("run", mine, "--out", tmp_path / "mine")
        assert packages.ran() == []
        said.complains(2, "--trust-code")

    def test_whoever_looks_on_imports_nothing(self, sent_module):
        out, packages, _ = sent_module
        for line in ("status OUT", "report OUT", "compare OUT --allow data"):
            said = ask(line, out)
            assert said.code == 0, (line, said.err)
        (out / "fedavg" / "results.json").unlink()
        assert vergence("status", out / "fedavg").code == 0
        assert packages.ran() == []

    @pytest.mark.slow
    @pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs 'mlflow'")
    def test_whoever_sends_it_to_mlflow_imports_nothing(self, sent_module, monkeypatch):
        out, packages, _ = sent_module
        monkeypatch.chdir(out.parent)
        said = ask("study mlflow OUT --to sqlite:///NEW.db", out)
        assert said.code == 0, said.err
        assert packages.ran() == []

    def test_one_s_own_runs_is_recorded_and_compared(self, tmp_path, packages):
        file = packages.add("h4_mine.methods")
        methods = 'methods = [{ name = "h4_mine.methods:Other", label = "a" }, "local_only"]'
        out = tmp_path / "own"
        said = vergence("run", write(tmp_path, toy(methods)), "--out", out)
        assert (said.code, said.err) == (0, "")
        told = json.loads((out / "a" / "provenance.json").read_text())["code"]
        assert told["files"] == {"h4_mine.methods": digest(file)}
        assert "directory" not in told
        packages.forget()
        vergence("resume", out).complains(2, f"SHA-256 {digest(file)}, as the run recorded")
        for command in ("resume", "verify"):
            assert vergence(command, out, "--trust-code").code == 0
        packages.forget()
        then = digest(file)
        file.write_text(file.read_text() + "# changed\n")
        for command in ("resume", "verify"):
            said = vergence(command, out, "--trust-code")
            said.complains(2, "h4_mine.methods is not the file", digest(file), f"recorded {then}")
        assert packages.ran() == []

    def test_the_stamp_holds_the_module_s_file(self, tmp_path, packages):
        file = packages.add("h4_stamped.methods")
        text = toy('method = { name = "h4_stamped.methods:Other" }')
        out = tmp_path / "out"
        assert vergence("run", write(tmp_path, text), "--out", out).code == 0
        table = {"method": {"name": "h4_stamped.methods:Other"}}
        described = {**table, "python": ["method"]}
        before, object_before = map(provenance.config_digest, (table, described))
        file.write_text(file.read_text() + "# changed\n")
        assert provenance.config_digest(table) != before
        assert provenance.config_digest(described) == object_before
        (out / "provenance.json").unlink()
        (out / checksums.NAME).unlink()
        (out / "results.json").unlink()
        packages.forget()
        said = vergence("resume", out, "--trust-code")
        assert said.code == 2
        assert "config" in said.err

    def test_a_compiled_file_is_not_what_runs_whoever_imports_first(self, tmp_path, packages):
        bad = tmp_path / "bad.py"
        mark = code(bad)
        text = "from vergence.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    'x'\n"
        file = packages.add("h4_compiled.methods", text)
        (file.parent / "__init__.py").write_text("from h4_compiled.methods import Mine\n")
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        there = importlib.util.cache_from_source(str(file))
        py_compile.compile(str(bad), there, invalidation_mode=unchecked, doraise=True)
        experiment = toy('method = { name = "h4_compiled.methods:Mine" }')
        assert vergence("run", write(tmp_path, experiment), "--out", tmp_path / "out").code == 0
        assert not mark.exists()

    def test_what_ran_before_it_changed_is_not_taken_for_what_is_there(self, tmp_path, packages):
        file = packages.add("h4_changed.methods")
        experiment = write(tmp_path, toy('method = { name = "h4_changed.methods:Other" }'))
        options: dict = {"trust_code": True}
        package.load_experiment(experiment, **options)
        file.write_text(file.read_text() + "# changed\n")
        with pytest.raises(ConfigError, match="start Python anew"):
            package.load_experiment(experiment, **options)

    def test_what_is_recorded_is_what_runs_whoever_imported_it_before(self, tmp_path, packages):
        """A notebook imports a module to look at it; the file is edited, and a run begins."""
        file = packages.add("h4_looked.methods")
        imported = importlib.import_module("h4_looked.methods")
        experiment = write(tmp_path, toy('method = { name = "h4_looked.methods:Other" }'))
        text, old = file.read_text(), digest(file)
        for more in ("    lr_scale: float = 2.0\n", "\n\nRATE = 0.25\n"):
            file.write_text(text + more)
            assert digest(file) != old
            found = package.load_experiment(experiment, trust_code=True)
            (method,) = found.methods.values()
            code = found.code["h4_looked.methods"]
            assert code.sha == digest(file)
            assert type(method) is not imported.Other
            assert vars(sys.modules[type(method).__module__]) is vars(code.module)
            assert ("lr_scale" in more) is hasattr(type(method), "lr_scale")
            assert ("RATE" in more) is hasattr(code.module, "RATE")

    def test_a_module_that_did_not_change_is_the_one_that_was_imported(self, tmp_path, packages):
        """Its classes are those that a notebook has: instances of theirs are of the experiment."""
        packages.add("h4_same.methods", RICH)
        imported = importlib.import_module("h4_same.methods")
        experiment = write(tmp_path, toy('method = { name = "h4_same.methods:Other" }'))
        (method,) = package.load_experiment(experiment, trust_code=True).methods.values()
        assert type(method) is imported.Other

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_anywhere_in_a_module_is_seen(self, tmp_path, packages, change):
        old, new = change
        assert RICH.count(old) == 1
        file = packages.add("h4_rich.methods", RICH)
        imported = importlib.import_module("h4_rich.methods")
        file.write_text(RICH.replace(old, new))
        experiment = write(tmp_path, toy('method = { name = "h4_rich.methods:Other" }'))
        (method,) = package.load_experiment(experiment, trust_code=True).methods.values()
        assert type(method) is not imported.Other

    def test_this_package_s_own_modules_need_no_trust(self, made, tmp_path):
        out = tmp_path / "sent"
        shutil.copytree(made, out)
        swap_in(out, "vergence.methods.fedavg:FedAvg")
        assert vergence("explain", out / "fedavg" / "config.toml").code == 0
        for config in (out / "config.toml", out / "fedavg" / "config.toml"):
            text = config.read_text()
            config.write_text(text.replace("vergence.methods.fedavg:", "vergence.cli.main:"))
        said = vergence("explain", out / "fedavg" / "config.toml")
        said.complains(2, "vergence.methods has no module 'vergence.cli.main'")


class TestDeployments:
    """An operator's experiment is received, too."""

    def test_init_copies_what_its_own_user_names_and_accepts_it_for_nobody(self, tmp_path):
        mark = code(tmp_path / "mine.py")
        file = write(tmp_path, toy(f'method = {{ name = "{tmp_path}/mine.py" }}'))
        said = vergence(
            "deploy",
            "init",
            file,
            "--clients",
            "p00,p01,p02",
            "--address",
            "127.0.0.1:18999",
            "--out",
            tmp_path / "made",
        )
        assert said.code == 0
        assert mark.exists()
        mark.unlink()
        for end in ("server", "clients/p00", "clients/p01", "clients/p02"):
            folder = tmp_path / "made" / end
            sha = digest(folder / "code" / "mine.py")
            assert sha in said.out
            verb = "serve" if end == "server" else "join"
            refused = vergence("deploy", verb, folder)
            refused.complains(2, str(folder / "code" / "mine.py"), f"--accept-code {sha}")
        assert not mark.exists()

    def test_an_end_does_not_run_what_its_operator_names(self, tmp_path):
        mark = code(tmp_path / "theirs.py")
        text = toy(f'method = {{ name = "{tmp_path}/theirs.py" }}')
        write(tmp_path, text, "experiment.toml")
        said = ""
        try:
            JoinedNode(tmp_path, ClientSide("p00", "127.0.0.1:18999", "run", "p00"))
        except Exception as error:
            said = str(error)
        assert not mark.exists()
        assert "a deployment runs none that its end has not accepted" in said

    def test_nor_a_module_that_is_installed_at_an_end(self, tmp_path, packages):
        packages.add("h4_deployed.methods")
        text = toy('method = { name = "h4_deployed.methods:Other" }')
        file = write(tmp_path, text, "experiment.toml")
        said = vergence(
            "deploy",
            "init",
            file,
            "--clients",
            "p00,p01,p02",
            "--address",
            "127.0.0.1:18999",
            "--out",
            tmp_path / "made",
        )
        said.complains(2, "h4_deployed.methods", "a deployment copies files alone")
        with pytest.raises(ConfigError, match="a deployment runs none"):
            JoinedNode(tmp_path, ClientSide("p00", "127.0.0.1:18999", "run", "p00"))
        assert packages.ran() == []


def digest(file: Path) -> str:
    from vergence.core.serialization import digest as sha

    return sha(file.read_bytes())
