"""MLflow gets nothing of single people from a run that hides them, and no password is printed.

A tracking server is often everybody's; people.csv holds everybody's errors, without any noise.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import Said, vergence, write

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the extra 'mlflow'")

TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 5 }
method     = { name = "fedavg" }
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
presence   = { gone = { p04 = 1 } }
run        = { rounds = 2, evaluate_every = 1, workers = 1 }
"""
PRIVATE = """
privacy    = { user = { clip = 0.5, noise = 1.0 } }
"""
NAMES = [f"p{number:02}" for number in range(5)]


def finished(home: Path, text: str) -> Path:
    home.mkdir()
    assert vergence("run", write(home, text), "--out", home / "out").code == 0
    return home / "out"


@pytest.fixture(scope="module")
def private(tmp_path_factory) -> Path:
    return finished(tmp_path_factory.mktemp("home") / "private", TOY + PRIVATE)


def sent(out: Path, home: Path, *options: str) -> tuple[Said, dict[str, str], str]:
    """Send a run to a database of its own; return what was said, the files, and all else."""
    from mlflow.tracking import MlflowClient

    to, home = f"sqlite:///{home}/m.db", home.resolve()
    said = vergence("study", "mlflow", out, "--to", to, *options)
    assert said.code == 0, said.err
    client = MlflowClient(tracking_uri=to)
    (experiment,) = client.search_experiments(filter_string="name = 'vergence'")
    (run,) = client.search_runs([experiment.experiment_id])
    place = Path(run.info.artifact_uri.removeprefix("file://"))
    files = {path.name: path.read_text() for path in place.rglob("*") if path.is_file()}
    return said, files, f"{run.data.params} {run.data.tags} {run.data.metrics}"


@pytest.mark.slow
def test_a_run_that_hides_people_leaves_them_out(private, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said, files, told = sent(private, tmp_path)
    assert set(files) == {"config.toml", "results.json"}
    everything = told + "".join(files.values())
    assert [name for name in NAMES if name in everything] == []
    assert "worst" not in everything
    assert "nothing of single people" in said.out
    assert "--with-people" in said.out


@pytest.mark.slow
def test_who_asks_for_people_gets_them(private, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, files, _ = sent(private, tmp_path, "--with-people")
    assert {"people.csv", "report.html"} <= set(files)
    assert files["people.csv"] == (private / "people.csv").read_text()


@pytest.mark.slow
def test_a_run_that_hides_nobody_is_sent_whole(tmp_path, monkeypatch):
    """Green before and after: nothing changes here."""
    out = finished(tmp_path / "open", TOY)
    monkeypatch.chdir(tmp_path)
    said, files, _ = sent(out, tmp_path)
    assert {"config.toml", "results.json", "people.csv", "report.html"} <= set(files)
    assert files["results.json"] == (out / "results.json").read_text()
    assert "single people" not in said.out


@pytest.mark.slow
@pytest.mark.parametrize(
    "to",
    [
        "http://anna:s3cr%20et@127.0.0.1:9",
        "http://127.0.0.1:9?token=s3cret",
    ],
)
def test_an_address_is_printed_without_its_secrets(private, to):
    said = vergence("study", "mlflow", private, "--to", to)
    said.complains(5, "MLflow at http://", "127.0.0.1:9")
    assert "s3cr" not in said.err + said.out


@pytest.mark.slow
def test_the_address_of_a_database_is_printed_without_its_query(private, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = vergence("study", "mlflow", private, "--to", f"sqlite:///{tmp_path}/m.db?timeout=77")
    assert said.code == 0
    assert "m.db" in said.out
    assert "77" not in said.out.replace(str(tmp_path), "")
