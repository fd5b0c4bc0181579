"""Python files of one's own: copied by `init`, shown, accepted by digest, refused otherwise."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.drills.deployment import CLIENTS, TABLE, deployed, simulated
from tests.drills.test_labs import LABS, SILOS
from vergence.deployment import folder_setup, launcher, own_code
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.client_registry import SAME, ClientRegistry
from vergence.deployment.folders import ClientSide, ServerSide, settings, write_settings
from vergence.errors import ConfigError, StateError, UntrustedCode
from vergence.experiment.schema import load
from vergence.experiment.trust import Trust, under

METHOD = """
from vergence.methods.fedavg import FedAvg

class Halved(FedAvg):
    "McMahan et al. 2017."
"""
READER = """
from dataclasses import dataclass
from vergence.data.synthetic.toy import Toy as People

@dataclass(frozen=True)
class Mine(People):
    "Toy people of a file."
"""
TOY = """
task       = { name = "toy" }
model      = { name = "linear", inputs = 4 }
federation = { name = "people.py", people = 3, inputs = 4 }
method     = { name = "halved.py" }
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
"""


@pytest.fixture(autouse=True)
def somebody(tmp_path, monkeypatch):
    """A user who has accepted nothing yet."""
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Folders of a deployment whose method and reader are files."""
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    (tmp_path / "halved.py").write_text(METHOD)
    (tmp_path / "people.py").write_text(READER)
    (tmp_path / "exp.toml").write_text(TOY)
    experiment = load(tmp_path / "exp.toml", trust_code=True)
    folder_setup.init(experiment, ["p00", "p01"], "127.0.0.1:9", tmp_path / "out")
    return tmp_path / "out"


def digests(folder: Path) -> list[str]:
    return [own_code.digest(file.read_bytes()) for file in sorted((folder / "code").iterdir())]


def digests_of(*texts: str) -> list[str]:
    return [own_code.digest(text.encode()) for text in texts]


def test_every_end_gets_the_files_and_has_accepted_none(made):
    for folder in (made / "server", made / "clients" / "p00", made / "clients" / "p01"):
        assert sorted(file.name for file in (folder / "code").iterdir()) == [
            "halved.py",
            "people.py",
        ]
        assert 'name = "code/halved.py"' in (folder / "experiment.toml").read_text()
        kind = ServerSide if folder.name == "server" else ClientSide
        assert settings(folder, kind).accepted == {}
    told = (made / "README.txt").read_text()
    assert all(sha in told for sha in digests(made / "server"))


def test_what_is_accepted_is_shown_first_kept_and_these_bytes_alone(made):
    folder = made / "clients" / "p00"
    side = settings(folder, ClientSide)
    with pytest.raises(UntrustedCode) as refused:
        own_code.accept(folder, side, [])
    for name, sha in zip(("halved.py", "people.py"), digests(folder), strict=True):
        assert f"{folder / 'code' / name} (SHA-256 {sha})" in str(refused.value)
    with pytest.raises(UntrustedCode, match=r"code/people\.py"):
        own_code.accept(folder, side, digests(folder)[:1])
    side = own_code.accept(folder, settings(folder, ClientSide), digests(folder)[1:])
    assert side == settings(folder, ClientSide) == own_code.accept(folder, side, [])
    node = AnsweringClient(folder, side)
    assert type(node.experiment.methods["halved"]).__name__ == "Halved"
    (folder / "code" / "halved.py").write_text(METHOD + "# another\n")
    with pytest.raises(StateError, match="is not the code that was accepted here"):
        AnsweringClient(folder, side)
    with pytest.raises(UntrustedCode, match=r"code/halved\.py"):
        own_code.accept(folder, side, [])
    with pytest.raises(ConfigError, match=r"no file of .* has this SHA-256"):
        own_code.accept(folder, side, ["00" * 32])


def test_a_name_that_reads_as_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "exp.toml").write_text(TOY)
    (tmp_path / "halved.py").write_text(METHOD)
    (tmp_path / "people.py").write_text(READER)
    experiment = load(tmp_path / "exp.toml", trust_code=True)
    named = replace(experiment, table={**experiment.table, "note": "v2.py"})
    with pytest.raises(ConfigError, match=r"'v2\.py' reads as a Python file"):
        own_code.portable(named)


def test_a_folder_cannot_accept_its_own_code(made):
    """Whoever makes a folder may write into its settings that its code was accepted."""
    folder = made / "clients" / "p00"
    side = replace(settings(folder, ClientSide), accepted=own_code.code_digests(folder))
    write_settings(folder, side)
    with pytest.raises(UntrustedCode, match=r"code/halved\.py"):
        own_code.accept(folder, settings(folder, ClientSide), [])
    assert settings(folder, ClientSide).accepted == {}, "no process of this end may run it"


def test_code_in_the_working_directory_is_not_taken_for_the_package(tmp_path, monkeypatch):
    """`join .` in a folder that brings a package called vergence."""
    (tmp_path / "vergence").mkdir()
    (tmp_path / "vergence" / "__init__.py").write_text("print('SHADOW')")
    monkeypatch.chdir(tmp_path)
    group = launcher.ProcessGroup(tmp_path, insecure=True)
    group.start("client", "vergence.deployment.server_run", "client", "127.0.0.1:1", "none", "")
    group.children["client"].wait(60)
    assert "SHADOW" not in (tmp_path / "log" / "client.log").read_text()


def test_code_that_lies_elsewhere_is_no_code_of_the_folder(made):
    folder = made / "clients" / "p00"
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace("code/halved.py", "../../../halved.py"))
    with pytest.raises(ConfigError, match="its code lies in"):
        own_code.accept(folder, settings(folder, ClientSide), digests(folder))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("code/../code/halved.py", "its code lies in"),
        ("code/sub/halved.py", "its code lies in"),
        ("./code/halved.py", "its code lies in"),
        ("code/ha lved.py", "its code lies in"),
        ("code/h\u0430lved.py", r"names 'code/h\\u0430lved\.py'"),
        ("code/Halved.py", "differ only in capitals"),
    ],
)
def test_a_name_that_a_reader_could_take_for_another_is_refused(made, name, said):
    """Whoever made the folder put the file where its experiment says."""
    folder = made / "clients" / "p00"
    (folder / "code" / "sub").mkdir()
    (folder / name).write_text(METHOD)
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(
        f"{text}\nnote = {json.dumps([name, 'code/halved.py'])}\n"
    )
    with pytest.raises(ConfigError, match=said):
        own_code.accept(folder, settings(folder, ClientSide), digests_of(METHOD, READER))


@pytest.mark.parametrize("linked", ["code/halved.py", "code"])
def test_code_behind_a_link_is_refused(made, tmp_path, linked):
    """What it leads to could be another file after it was accepted."""
    folder = made / "clients" / "p00"
    (folder / linked).rename(tmp_path / "elsewhere")
    (folder / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"{linked} is a link"):
        own_code.accept(folder, settings(folder, ClientSide), digests_of(METHOD, READER))


@pytest.mark.parametrize("other", ["torch.py", "notes.txt", ".hidden", "__pycache__"])
def test_what_the_experiment_does_not_name_does_not_lie_beside_its_code(made, other):
    folder = made / "clients" / "p00"
    (folder / "code" / other).mkdir()
    with pytest.raises(ConfigError, match=f"holds '{other}', which the experiment does not name"):
        own_code.accept(folder, settings(folder, ClientSide), digests_of(METHOD, READER))


def test_names_that_cannot_travel_are_refused_where_folders_are_made(tmp_path):
    (tmp_path / "exp.toml").write_text(TOY)
    (tmp_path / "halved.py").write_text(METHOD)
    (tmp_path / "people.py").write_text(READER)
    experiment = load(tmp_path / "exp.toml", trust_code=True)
    spaced = {str(tmp_path / "my file.py"): experiment.code[str(tmp_path / "halved.py")]}
    named = replace(experiment, table={"note": list(spaced)}, code={**experiment.code, **spaced})
    with pytest.raises(ConfigError, match=r"my file\.py'.*rename it"):
        own_code.portable(named)
    twins = {
        str(tmp_path / n): experiment.code[str(tmp_path / "halved.py")] for n in ("a.py", "b/A.py")
    }
    named = replace(experiment, table={"note": list(twins)}, code={**experiment.code, **twins})
    _, files = own_code.portable(named)
    assert len({name.lower() for name in files}) == 2


def test_an_end_with_other_code_is_refused_and_the_line_says_so(made):
    """An operator may read, change and accept a file; the server then takes no part of theirs."""
    folder = made / "clients" / "p00"
    (folder / "code" / "halved.py").write_text(METHOD + "# another\n")
    side = own_code.accept(folder, settings(folder, ClientSide), digests(folder))
    theirs = AnsweringClient(folder, side)
    other = made / "clients" / "p01"
    side = own_code.accept(other, settings(other, ClientSide), digests(other))
    mine = AnsweringClient(other, side)
    assert theirs.facts["own code"] != mine.facts["own code"]
    assert "own code" in SAME
    registry = ClientRegistry.__new__(ClientRegistry)
    registry.mine = mine.facts
    said = registry.refusal_of("p00", {**theirs.facts, "train": 1}, 1)
    assert said.startswith(f"its own code is {theirs.facts['own code'][:12]}, the server's")
    assert "below `code` of the server's folder" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
def test_own_code_over_flower_gives_the_simulators_fingerprint(tmp_path):
    """A method of a file, in labs; nobody accepted it at first, and nothing began."""
    (tmp_path / "halved.py").write_text(METHOD)
    table = {**SILOS, "methods": [{"name": str(tmp_path / "halved.py")}], "silos": LABS}
    assert TABLE["run"]["rounds"] == 2
    with deployed(tmp_path, table, clients=tuple(LABS)) as made:
        assert made.run("join", made.client("labA")).wait(120) != 0
        assert "--accept-code" in made.said()
        (sha,) = digests(made.server)
        served = made.run("serve", made.server, "--accept-code", sha)
        joined = [made.run("join", made.client(lab), "--accept-code", sha) for lab in LABS]
        with under(Trust(own_experiment=True)):
            here = simulated(table, tmp_path / "here")
        assert served.wait(500) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert made.fingerprints() == here
        (file,) = (made.server / "run").rglob("provenance.json")
        assert sha in json.loads(file.read_text())["code"]["files"].values()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
def test_statistics_that_stay_at_home_over_flower_give_the_simulators_fingerprint(tmp_path):
    """A network of a file with BatchNorm; each client counts means and variances of its own."""
    file = Path(__file__).parents[2] / "experiments" / "batch_norm_eyes.py"
    kept = {"name": "fedbn", "at_home": "statistics"}
    table = {**TABLE, "model": {"name": str(file)}, "methods": [kept]}
    with deployed(tmp_path, table) as made:
        (sha,) = digests(made.server)
        served = made.run("serve", made.server, "--accept-code", sha)
        joined = [made.run("join", made.client(c), "--accept-code", sha) for c in CLIENTS]
        with under(Trust(own_experiment=True)):
            here = simulated(table, tmp_path / "here")
        assert served.wait(500) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert made.fingerprints() == here
