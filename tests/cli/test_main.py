"""The commands: what they print, and the exit code of a wrong call."""

import csv
import io
import json
import shutil
import subprocess
import sys

import pytest
from cyclopts import App

from tests.cli.commands import ONE, run, vergence, write
from vergence.cli import extensions
from vergence.cli.app import app
from vergence.cli.commands import DAILY, GROUPS, full_spellings, help_page
from vergence.cli.suggestions import MOVED_INTO_GROUPS, SYNONYMS
from vergence.core.federation import Dataset
from vergence.core.method import Method
from vergence.errors import ConfigError
from vergence.experiment.packaged import packaged
from vergence.experiment.registry import names
from vergence.experiment.schema import load


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands_and_succeeds(words):
    said = vergence(*words)
    assert said.code == 0
    lines = [line.split()[:1] for line in said.out.splitlines()]
    for each in (*DAILY, *GROUPS):
        assert [each.name] in lines
        for inner in each.subcommands:
            assert inner in said.out


def first_line(text):
    return " ".join((text or "").partition("\n\n")[0].split())


@pytest.mark.parametrize("each", [*DAILY, *GROUPS], ids=lambda each: each.name)
def test_the_page_of_help_says_what_the_commands_say(each):
    command = app[each.name]
    if each.subcommands:
        assert first_line(command.help) == each.summary
        assert sorted(each.subcommands) == sorted(n for n in command if not n.startswith("-"))
    else:
        assert first_line(command.help) == each.summary


def test_every_command_is_on_the_page_of_help():
    assert {n for n in app if not n.startswith("-")} == {e.name for e in (*DAILY, *GROUPS)}


@pytest.mark.parametrize("width", [20, 60, 100])
def test_the_page_of_help_is_as_wide_as_the_terminal(width):
    longest = max(len(line) for line in help_page(width).splitlines())
    assert longest <= max(width, 70)


def test_version():
    from importlib.metadata import version

    assert vergence("--version").out.strip() == version("vergence")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("runn",), ("runn", "run")),
        (("run",), ("an experiment",)),
        (("privacy", "forget", "x", "p00"), ("--out",)),
        (("run", "x.toml", "--out", "o", "--sett", "a=1"), ("--sett", "--set")),
        (("compare",), ("nothing to compare", "at least one")),
        (("compare", "x", "--format", "excel"), ("excel", "table", "csv", "markdown")),
        (("data", "check"), ("needs NAME", "vergence data list")),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(args, words):
    vergence(*args).complains(2, *words)


@pytest.mark.parametrize("words", [("bench",), ("bench", "--help"), ("bench", "mpc", "aby3")])
def test_a_command_that_left_names_the_new_one(words):
    vergence(*words).complains(2, "no command 'bench' any more", "`python -m benchmarks.bench`")


def test_reproduce_without_the_papers_says_what_to_install(monkeypatch):
    monkeypatch.setattr(extensions, "entry_points", lambda **_: ())
    alone = App(name="vergence")
    alone.command("vergence.cli.extensions:reproduce")
    for words in (["--list"], ["fedcpf/table1", "--on", "osie", "--seeds", "3"]):
        with pytest.raises(ConfigError, match=r"install vergence-papers.*pip install \./papers"):
            alone(["reproduce", *words], exit_on_error=False)
    assert first_line(alone["reproduce"].help) == first_line(app["reproduce"].help)


@pytest.mark.parametrize("old", sorted(MOVED_INTO_GROUPS))
def test_a_command_that_went_into_a_group_names_its_new_spelling(old):
    new = full_spellings()[old]
    vergence(old, "x").complains(2, f"no command '{old}' any more: it is now `vergence {new}`")
    assert vergence(*new.split(), "--help").code == 0


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (("report", "x", "--for", "ethics"), "it is now `vergence privacy ethics`"),
        (("report", "x", "--for=ethics"), "`vergence privacy ethics`"),
        (("explain", "x.toml", "--matrix"), "`vergence privacy matrix`"),
        (("live", "m.onnx", "--landmarker", "f.task"), "any more: give `--face`"),
        (
            ("data", "patches", "a", "b.npz", "--landmarker", "f.task"),
            "any more: leave it out: faces are found by networks that docs/how-to/patches.md says",
        ),
    ],
)
def test_an_option_that_is_no_more_says_what_to_do(words, new):
    vergence(*words).complains(2, "any more", new)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            "run --rounds 5",
            "no option '--rounds': settings are given with --set, here --set run.ro",
        ),
        ("run toy --rounds 5", "here --set run.rounds=5"),
        ("run toy --rounds=5", "here --set run.rounds=5"),
        ("run toy --rounds", "here --set run.rounds=VALUE"),
        ("study sweep toy --rounds 5 --out x", "here --set run.rounds=5"),
        ("explain toy --lr .1", "here --set local.lr=.1"),
        ("run toy --local.lr .1", "here --set local.lr=.1"),
        ("run toy --seeds 5", "here --set 'run.seeds=[5]'"),
        ("run toy --points P0,P1", """here --set 'run.points=["P0", "P1"]'"""),
        ("run toy --split-seeds [0,1]", "here --set 'run.split_seeds=[0,1]'"),
        (
            "run toy rounds=5",
            "run does not take the word 'rounds=5': settings are given with --set, ",
        ),
        ("run toy fedavg", "run does not take the word 'fedavg': methods stand in the experiment"),
        ("run toy fedavg", """write --set "methods=['fedavg']\" (--set method=fedavg in a file"""),
        (
            "run toy other",
            "does not take the word 'other': `vergence run --help` says what it takes",
        ),
        ("verify a b", "verify does not take the word 'b': `vergence verify --help` says what it"),
    ],
)
def test_a_setting_or_method_given_as_a_word_is_answered_with_what_to_write(words, answer):
    vergence(*words.split()).complains(2, answer)


@pytest.mark.parametrize("words", ["resume x --rounds 5", "run toy --sett a=1", "verify x --lr 1"])
def test_where_no_setting_was_meant_none_is_named(words):
    assert "settings are given" not in vergence(*words.split()).err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("runn", "'run'"),
        ("swep", "'study sweep'"),
        ("audti", "'privacy audit'"),
        ("ethics", "'privacy ethics'"),
        ("matrix", "'privacy matrix'"),
        ("serve", "'deploy serve'"),
        ("tune", "'study sweep', vergence's word for tune"),
        ("train", "'run', vergence's word"),
    ],
)
def test_an_unknown_command_is_answered_with_the_near_one(given, meant):
    vergence(given).complains(2, f"no command '{given}' (did you mean {meant}")


def test_what_other_programs_say_is_answered_with_commands_that_there_are():
    for new in SYNONYMS.values():
        assert app.parse_commands(new.split())[0] == tuple(new.split())


def test_an_experiment_of_the_package_runs_by_name_and_goes_to_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = vergence("run", "toy", "--set", "run.rounds=1", "--set", "methods=['fedavg']")
    assert said.code == 0, said.err
    assert (tmp_path / "runs" / "toy" / "report.html").is_file()
    again = vergence("run", "toy")
    again.complains(2, "runs/toy holds a run already", "--out")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("sweep", "sweep_toy"), "sweep_toy_sweep"),
        (("evaluate", "within", "toy", "--set", "run.rounds=1"), "toy_protocols"),
    ],
)
@pytest.mark.slow
def test_a_study_goes_to_runs(words, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = vergence("study", *words)
    assert said.code == 0, said.err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder]


def test_a_file_of_that_name_comes_before_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "task = 3", name="toy")
    vergence("explain", "toy").complains(2, "task")


def test_an_experiment_that_is_not_there_lists_what_there_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("no experiment 'quickstrt'", "did you mean 'quickstart'?", *packaged())
    vergence("run", "quickstrt").complains(2, *words)
    assert not (tmp_path / "runs").exists()
    vergence("explain", "here/toy").complains(2, "no experiment file at here/toy")
    vergence("study", "sweep", "toy.toml", "--out", "x").complains(2, "no experiment file at toy.t")


@pytest.mark.parametrize("name", packaged())
def test_experiments_of_the_package_are_sound(name):
    assert load(name).methods


def test_new_writes_a_folder_that_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = vergence("new", "mine")
    assert said.code == 0, said.err
    names = {"experiment.toml", "method.py", "task.py", "notebook.ipynb"}
    assert {path.name for path in (tmp_path / "mine").iterdir()} == names
    vergence("new", "mine").complains(2, "mine is there already")
    monkeypatch.chdir(tmp_path / "mine")
    said = vergence("run", "experiment.toml", "--set", "run.rounds=2", "--set", "run.seeds=[0]")
    assert said.code == 0, said.err
    assert "mine" in said.out
    cells = json.loads((tmp_path / "mine" / "notebook.ipynb").read_text())["cells"]
    for cell in cells:
        compile("".join(cell["source"]), "<cell>", "exec")


def test_methods_lists_every_method_and_what_the_server_learns():
    said = vergence("methods")
    assert said.code == 0
    for name in names("methods", Method):
        assert name in said.out
    (line,) = [row for row in said.out.splitlines() if " centralised " in row]
    assert "everything" in line
    (line,) = [row for row in said.out.splitlines() if " local_only " in row]
    assert "metrics" in line
    assert "the server needs" in said.out
    assert "it sees each reply, also where a sum would do" in said.out


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_diverged_says_so(tmp_path):
    sets = "run.rounds=9", "local.lr=100.0", "local.clip=0.0"
    args = [word for each in sets for word in ("--set", each)]
    said = vergence("run", write(tmp_path, ONE), "--out", tmp_path / "out", *args)
    assert "3 of 3 people is not finite at the end; lower local.lr" in said.out, said


def test_a_command_without_its_experiment_names_one():
    vergence("run").complains(2, "run needs an experiment: a file, or one", "`vergence run toy`")


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ("adapt --data x.csv", "adapt needs FOLDER, run directory of one method"),
        ("new", "new needs NAME, a new folder"),
        ("data import", "data import needs FOLDER, recordings of people"),
        ("resume", "resume needs FOLDER, the folder of the run"),
        ("live --camera 0", "live needs MODEL, what `vergence export` wrote"),
    ],
)
def test_a_command_without_what_it_works_on_says_what_that_is(words, needs):
    vergence(*words.split()).complains(2, needs, "--help` says more")


def test_one_method_is_shown_with_its_options():
    said = vergence("methods", "fedcpf")
    assert said.code == 0, said.err
    assert said.out.startswith("fedcpf: Parameters that change most on average stay personal")
    (line,) = [row for row in said.out.splitlines() if " rate " in row and "0.05" in row]
    assert "share of all entries that become personal per round" in line
    assert "vergence.methods.FedCPF()" in said.out
    assert "`always` makes every window one" in said.out
    assert "no options of its own" in vergence("methods", "local_only").out
    vergence("methods", "fedcfp").complains(2, "no method named 'fedcfp' (did you mean 'fedcpf'?)")


def test_data_list_names_every_data_set():
    said = vergence("data", "list")
    assert said.code == 0
    for name in names("data", Dataset):
        assert f" {name} " in said.out


def test_data_check_of_packaged_and_of_missing_data(tmp_path):
    assert vergence("data", "check", "aria").code == 0
    said = vergence("data", "check", "osie", "--root", tmp_path / "none")
    assert said.code == 3
    assert "osie" in said.err
    vergence("data", "check", "osi").complains(2, "osi", "did you mean 'osie'?")


def test_explain_names_the_parties_the_verb_and_the_sizes(tmp_path):
    said = vergence("explain", write(tmp_path))
    assert said.code == 0
    assert "server --- model (0.00 MB) ---> client        [train]" in said.out
    assert "raw frames" in said.out
    vergence("explain", write(tmp_path), "--set", "task.name=to").complains(2, "task", "'to'")


def test_compare_prints_csv_with_one_row_per_method_and_prior(out):
    said = vergence("compare", out, "--format", "csv")
    assert said.code == 0
    found = [row for row in csv.reader(io.StringIO(said.out)) if row]
    assert len({len(row) for row in found}) == 1
    cells = {cell for row in found for cell in row}
    assert {"local_only", "fedavg", "fedcpf", "global mean"} <= cells


def test_compare_of_one_method_alone_still_shows_the_priors(tmp_path):
    alone = run(tmp_path, ONE)
    assert "global mean" in vergence("compare", alone).out


def test_compare_of_different_tasks_names_both(out, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(out / "fedavg", other)
    text = (out / "fedavg" / "results.json").read_text()
    (other / "results.json").write_text(text.replace('"task": "toy"', '"task": "gaze_map"'))
    vergence("compare", out / "fedavg", other).complains(2, "task", "toy", "gaze_map")


def test_verify_prints_every_fingerprint(out):
    said = vergence("verify", out)
    assert said.code == 0
    assert said.out.count(" ok\n") == 3
    assert said.err == ""


@pytest.mark.slow
def test_report_and_a_figure_alone(out, tmp_path):
    said = vergence("report", out)
    assert (said.code, said.err) == (0, "")
    assert str(out / "report.html") in said.out
    said = vergence("report", out, "--figure", "bytes", "--out", tmp_path / "bytes.svg")
    assert said.code == 0
    assert (tmp_path / "bytes.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_nothing_but_the_results_is_printed_when_piped(tmp_path):
    """Progress is for people: stderr stays empty when it is not a terminal."""
    said = vergence("run", write(tmp_path), "--out", tmp_path / "out")
    assert (said.code, said.err) == (0, "")
    assert "FedCPF" in said.out
    assert f"report: {tmp_path / 'out' / 'report.html'}" in said.out


def test_a_network_that_no_memory_holds_is_one_line(tmp_path):
    """torch's allocator raises a RuntimeError; `explain` builds the network of 10^12 units."""
    text = """
    task = { name = "gaze_angle" }
    model = { name = "small_eye", hidden = 1000000000000 }
    federation = { name = "eye_synthetic", people = 3, samples = 40, days = [3, 3], size = "9x15" }
    method = "fedavg"
    run = { rounds = 1 }
    """
    vergence("explain", write(tmp_path, text)).complains(2, "out of memory", "a smaller network")


def test_a_former_name_is_one_plain_line_and_no_place_in_our_code(tmp_path):
    """In a process of its own, as what a program prints of warnings is set for all of it."""
    file = tmp_path / "old.toml"
    file.write_text(
        'task = { name = "gaze_angle", personal_prior = "chosen" }\n'
        'model = { name = "small_eye" }\n'
        'federation = { name = "eye_synthetic", people = 3, samples = 60, size = "9x15" }\n'
        'methods = ["earned"]\nrun = { rounds = 1, workers = 1 }\n'
    )
    command = [sys.executable, "-m", "vergence", "explain", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    assert sorted(line for line in said if "now" in line) == [
        "vergence: 'earned' in methods is called 'interpolation' now",
        'vergence: personal_prior = "chosen" is written "auto" now',
    ]
    assert not [line for line in said if ".py:" in line]
