"""The bits of small experiments, as they were stored for processors of this kind.

`python tools/same_bits.py --write` stores those of this checkout. Elsewhere than on a stored kind
of processor, `python tools/same_bits.py A B` compares two checkouts.
"""

import json
import re
import shutil
import subprocess
import sys

import pytest
import tomli_w

from tests.conftest import ROOT
from tests.engine.toys import mostly_slow
from tools import same_bits
from tools.same_bits import SECRET, STORED, Bits
from vergence.errors import ConfigError
from vergence.experiment.run import start
from vergence.experiment.schema import check, load, override
from vergence.privacy import release_log

LIST = same_bits.experiments()
QUICK = ("fedavg", "scaffold_bytes", "fedcpf", "split", "pads_bytes")
HOW = "python tools/same_bits.py REVISION ."


@pytest.mark.parametrize("name", mostly_slow(LIST, *QUICK))
def test_bits_stay(name, tmp_path, monkeypatch):
    kind = same_bits.processor()
    stored = same_bits.read_stored(kind).get(name)
    if stored is None:
        pytest.skip(f"no bits of '{name}' are stored for {kind}; compare checkouts instead: {HOW}")
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    out, file = tmp_path / "out", tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(LIST[name]))
    if same_bits.protected(LIST[name]):
        monkeypatch.setattr(release_log, "new_seed", lambda: SECRET)
    start(load(file), out)
    assert same_bits.read_bits(out) == stored, f"bits moved; see which: {HOW}"


def test_the_list_covers_every_way_to_run():
    """So that nobody thins it out by accident; what is stored is of experiments in it."""
    hidden = [table for table in LIST.values() if same_bits.protected(table)]
    assert len(LIST) == 39
    assert len(hidden) == 16
    words = {word for table in LIST.values() for word in re.findall(r"\w+", repr(table))}
    assert {
        "bytes",
        "workers",
        "stacked",
        "secure",
        "additive",
        "user",
        "dp_sgd",
        "mask",
        "cut",
        "robust",
        "groups",
        "quorum",
        "fedbuff",
        "splitfed",
        "pruning",
    } <= words
    assert all(table["run"]["solver"] != "auto" for table in LIST.values())
    for entry in json.loads(STORED.read_text()).values():
        assert set(entry["experiments"]) <= set(LIST)


def test_words_are_respelled_and_tables_merged():
    table = {"local": {"optimiser": "adam", "more": ["optimiser", 3]}, "name": "an optimiser"}
    assert same_bits.spelled(table, {"optimiser": "optimizer"}) == {
        "local": {"optimizer": "adam", "more": ["optimizer", 3]},
        "name": "an optimiser",
    }
    below = {"run": {"rounds": 3, "seeds": [0]}, "federation": {"name": "toy", "people": 7}}
    above = {"run": {"rounds": 5}, "federation": {"name": "crowd"}}
    assert same_bits.merged(below, above) == {
        "run": {"rounds": 5, "seeds": [0]},
        "federation": {"name": "crowd"},
    }


def test_storing_forgets_what_moved_for_other_processors(tmp_path, monkeypatch):
    monkeypatch.setattr(same_bits, "STORED", tmp_path / "stored.json")
    monkeypatch.setattr(same_bits, "ROOT", tmp_path)
    both = {"fedavg": Bits("a", "b"), "fedcpf": Bits("c", "d")}
    monkeypatch.setattr(same_bits, "processor", lambda: "another")
    same_bits.write(both, "1")
    monkeypatch.setattr(same_bits, "processor", lambda: "this")
    same_bits.write(both, "1")
    same_bits.write({"fedavg": Bits("a", "moved")}, "2")
    assert same_bits.read_stored("this") == {**both, "fedavg": Bits("a", "moved")}
    assert same_bits.read_stored("another") == {"fedcpf": both["fedcpf"]}


def test_a_secret_of_the_runs_own_is_noticed(tmp_path, monkeypatch):
    """Then two runs would differ by their noise, and nobody could say which bits moved."""
    monkeypatch.setattr(release_log, "new_seed", release_log.new_seed)  # undone at the end
    same_bits.fix_secret()
    release_log.secret_in(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps({"fingerprint": {"10": "b", "9": "a"}}))
    (tmp_path / "people.csv").write_text("")
    assert same_bits.read_bits(tmp_path).fingerprint == "a b"
    (tmp_path / "elsewhere").write_bytes(bytes(32))
    with pytest.raises(RuntimeError, match="a secret of its own in elsewhere"):
        same_bits.read_bits(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        "secret",
        "privacy.secret",
        "privacy.user.secret",
        "run.secret",
        "privacy.solver.secret",
        "privacy.mask.secret",
    ],
)
def test_no_setting_names_a_secret(key):
    """Whoever shares an experiment would share the noise that hides people."""
    table = {
        **LIST["user_tree"],
        "privacy": {
            "user": {"clip": 1.0, "noise": 1.0},
            "solver": {"noise": 1.0},
            "mask": {"epsilon": 1.0},
        },
    }
    override(table, f"{key}={SECRET.hex()}")
    with pytest.raises(ConfigError, match="unknown key 'secret'"):
        check(table)


def test_no_environment_variable_reaches_what_draws_noise():
    """Keys come from a file of the run or from the system's randomness."""
    sources = [path.read_text() for path in (ROOT / "src" / "vergence").rglob("*.py")]
    drawing = [text for text in sources if re.search(r"\b(secret_in|new_seed|Secret)\b", text)]
    assert len(drawing) > 5
    assert not [text[:80] for text in drawing if re.search(r"\b(environ|getenv)\b", text)]


def asked(*arguments):
    """Run the tool; return its exit code and its table by experiment."""
    done = subprocess.run(
        [sys.executable, same_bits.__file__, *map(str, arguments)],
        text=True,
        capture_output=True,
        check=False,
        timeout=240,
    )
    rows = (line.split() for line in done.stdout.splitlines())
    return done.returncode, {row[0]: row[-1] for row in rows if row and row[0] in LIST}, done


@pytest.mark.nightly
def test_a_changed_line_is_found_and_another_spelling_is_not_taken_for_one(tmp_path):
    """One copy calls `optimizer` otherwise; the other adds a little to the mean of FedAvg."""
    for name in ("respelled", "changed"):
        ignored = shutil.ignore_patterns("samples")
        shutil.copytree(ROOT / "src", tmp_path / name / "src", ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", tmp_path / name)
    for path in (tmp_path / "respelled" / "src").rglob("*.py"):
        text = re.sub(r"\boptimizer\b", "optimiser", before := path.read_text())
        if text != before:
            path.write_text(text)
    path = tmp_path / "changed" / "src" / "vergence" / "methods" / "fedavg.py"
    text = path.read_text()
    changed = "return replace(last, model=last.model * (1 + 2**-20))"
    assert text.count("            return last\n") == 1
    path.write_text(text.replace("return last\n", f"{changed}\n"))
    only = ("--only", "fedavg", "--only", "fedadam")
    code, table, done = asked(tmp_path / "respelled", tmp_path / "changed", *only)
    assert (code, table) == (1, {"fedavg": "NO", "fedadam": "yes"}), done.stdout + done.stderr


@pytest.mark.slow
def test_what_does_not_run_is_not_called_equal(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "src" / "vergence" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text("import sys\n\ndef main():\n    sys.exit('broken')\n")
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    code, table, done = asked(tmp_path, tmp_path, "--only", "fedavg")
    assert (code, table) == (1, {"fedavg": "NO"})
    assert "A: exit code 1: broken" in done.stdout
    code, _, done = asked(tmp_path / "src", ROOT, "--only", "fedavg")
    assert code == 2
    assert "is no checkout: it has no src/vergence" in done.stderr
