"""The commands: what they print, and the exit code of a wrong call."""

import csv
import io

import pytest

from tests.app.commands import ONE, run, vergence, write
from vergence.app.binding import names
from vergence.core.method import Method
from vergence.core.site import Dataset


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"))


def test_help_lists_the_commands_and_succeeds():
    said = vergence("--help")
    assert said.code == 0
    commands = ("run", "resume", "compare", "report", "predict", "data", "methods", "explain",
                "verify")  # fmt: skip
    for command in commands:
        assert command in said.out


def test_version():
    from importlib.metadata import version

    assert vergence("--version").out.strip() == version("vergence")


@pytest.mark.parametrize(("args", "words"), [
    (("runn",), ("runn", "run")),
    (("run",), ("config",)),
    (("run", "x.toml"), ("--out",)),
    (("run", "x.toml", "--out", "o", "--sett", "a=1"), ("--sett", "--set")),
    (("compare",), ("nothing to compare", "at least one")),
    (("compare", "x", "--format", "excel"), ("excel", "table", "csv", "markdown")),
    (("data", "check"), ("name",)),
])  # fmt: skip
def test_a_wrong_call_is_one_line_and_exit_code_2(args, words):
    vergence(*args).complains(2, *words)


def test_methods_lists_every_method_and_what_the_server_learns():
    said = vergence("methods")
    assert said.code == 0
    for name in names("methods", Method):
        assert name in said.out
    (line,) = [row for row in said.out.splitlines() if " centralised " in row]
    assert "everything" in line
    (line,) = [row for row in said.out.splitlines() if " local_only " in row]
    assert "metrics" in line


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
    (other / "results.json").parent.mkdir()
    text = (out / "fedavg" / "results.json").read_text()
    (other / "results.json").write_text(text.replace('"task": "toy"', '"task": "gaze_map"'))
    vergence("compare", out / "fedavg", other).complains(2, "task", "toy", "gaze_map")


def test_verify_prints_every_fingerprint(out):
    said = vergence("verify", out)
    assert said.code == 0
    assert said.out.count(" ok\n") == 3
    assert said.err == ""


def test_report_and_a_figure_alone(out, tmp_path):
    said = vergence("report", out)
    assert (said.code, said.err) == (0, "")
    assert str(out / "report.html") in said.out
    said = vergence("report", out, "--figure", "bytes", "--out", tmp_path / "bytes.svg")
    assert said.code == 0
    assert (tmp_path / "bytes.svg").read_text().startswith("<?xml")


def test_nothing_but_the_results_is_printed_when_piped(tmp_path):
    """Progress is for people: stderr stays empty when it is not a terminal."""
    said = vergence("run", write(tmp_path), "--out", tmp_path / "out")
    assert (said.code, said.err) == (0, "")
    assert "FedCPF" in said.out
    assert f"report: {tmp_path / 'out' / 'report.html'}" in said.out
