"""What `deploy init` writes, the gate, and what is refused with which words."""

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cryptography import x509
from rich.console import Console

from tests.drills.test_three_roles import SPLIT
from vergence.deployment import folder_setup, folders, launcher
from vergence.deployment.folders import (
    EVENTS,
    ClientSide,
    LogTail,
    ServerSide,
    clients_to_wait_for,
    facts,
    runner,
    running,
    settings,
    tell,
)
from vergence.deployment.keys import SealedBox, genuine, signer
from vergence.deployment.transport.flower_processes import FlowerControl
from vergence.errors import ConfigError, StateError
from vergence.experiment.schema import check

TABLE = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 4},
    "federation": {"name": "toy", "people": 3},
    "method": {"name": "fedavg"},
}


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    folder_setup.init(check(TABLE), ["p00", "p01"], "192.168.1.5:8000", tmp_path / "out")
    return tmp_path / "out"


def test_init_writes_what_each_end_needs_and_no_more(made):
    server = {p.name for p in (made / "server").rglob("*") if p.is_file()}
    client = {p.name for p in (made / "clients" / "p00").rglob("*")}
    assert server == {
        "ca.crt",
        "server.pem",
        "server.key",
        "deploy.toml",
        "experiment.toml",
        "p00.pub",
        "p01.pub",
    }
    assert client == {"ca.crt", "node", "deploy.toml", "experiment.toml"}
    for secret in ("server/server.key", "clients/p00/node", "clients/p01/node"):
        assert stat.S_IMODE((made / secret).stat().st_mode) == 0o600
    for folder in ("server", "server/keys", "clients/p00", "clients/p01"):
        assert stat.S_IMODE((made / folder).stat().st_mode) == 0o700
    assert settings(made / "server", ServerSide).clients == ("p00", "p01")
    assert settings(made / "clients" / "p01", ClientSide).person == "p01"


def test_the_certificate_is_for_this_address_and_loopback_and_signed_by_its_authority(made):
    ca, server = (
        x509.load_pem_x509_certificate((made / "server" / name).read_bytes())
        for name in ("ca.crt", "server.pem")
    )
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == [
        "192.168.1.5",
        "127.0.0.1",
    ]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]


def test_a_key_signs_for_nobody_else_and_others_may_not_read_it(made):
    private = made / "clients" / "p00" / "node"
    mark = signer(private)(b"data")
    keys = made / "server" / "keys"
    assert genuine(keys / "p00.pub", b"data", mark)
    assert not genuine(keys / "p00.pub", b"date", mark)
    assert not genuine(keys / "p01.pub", b"data", mark)
    assert not genuine(keys / "p00.pub", b"data", "no base64!")
    private.chmod(0o644)
    with pytest.raises(StateError, match="chmod 600"):
        signer(private)


def test_a_revoked_key_is_gone_from_the_list(made):
    launcher.revoke(made / "server", "p00")
    assert [p.name for p in (made / "server" / "keys").iterdir()] == ["p01.pub"]
    with pytest.raises(StateError, match="there are: p01"):
        launcher.revoke(made / "server", "p00")


@pytest.mark.parametrize(
    ("clients", "address", "words"),
    [
        (["a", "a"], "h:1", "different names"),
        (["../a"], "h:1", "letters, digits"),
        (["a"], "h", "HOST:PORT"),
        (["a"], "h:99999", "HOST:PORT"),
        (["a"], "http://h:80", "HOST:PORT"),
        (["a"], "0.0.0.0:80", "as clients reach it"),
    ],
)
def test_init_refuses(tmp_path, monkeypatch, clients, address, words):
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    with pytest.raises(ConfigError, match=words):
        folder_setup.init(check(TABLE), clients, address, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_init_refuses_pooled_data_and_a_used_folder(made, tmp_path):
    with pytest.raises(ConfigError, match="collects everybody's data"):
        folder_setup.init(
            check({**TABLE, "method": {"name": "centralised"}}), ["a"], "h:1", tmp_path / "other"
        )
    with pytest.raises(StateError, match="not empty"):
        folder_setup.init(check(TABLE), ["a"], "h:1", made)


def test_a_folder_of_the_other_kind_is_named(made, tmp_path):
    with pytest.raises(StateError, match="not a server's folder"):
        settings(made / "clients" / "p00", ServerSide)
    with pytest.raises(StateError, match="no deployment's folder"):
        settings(tmp_path, ClientSide)


def test_a_setting_that_is_unknown_or_unfit_is_named(made):
    file = made / "server" / "deploy.toml"
    whole = file.read_text()
    for line, words in (("answers = 5", "answers"), ('absent_s = "long"', "absent_s.*'long'")):
        file.write_text(f"{line}\n{whole.replace('absent_s', '#')}")
        with pytest.raises(ConfigError, match=words):
            settings(made / "server", ServerSide)


def test_where_data_lie_is_no_difference_but_a_setting_is():
    same = facts({**TABLE, "federation": {**TABLE["federation"], "root": "/elsewhere"}})
    assert same == facts({**TABLE, "presence": {"lost": 0.5}}) == facts(TABLE)
    assert facts({**TABLE, "local": {"optimizer": "sgd", "lr": 0.1}})["config"] != same["config"]


def test_one_runner_per_folder(made):
    folder = made / "server"
    assert runner(folder) is None
    hold = "import sys, pathlib; from vergence.deployment.folders import running\n"
    hold += "with running(pathlib.Path(sys.argv[1])): print('in', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout.readline() == "in\n"
        assert runner(folder) == other.pid
        (folder / ".lock").write_text("1234567")  # the system knows who holds it
        assert runner(folder) == other.pid
        assert runner(folder) == other.pid
        with pytest.raises(StateError, match="running already"), running(folder):
            pass
        other.stdin.write("\n")
    assert runner(folder) is None


def test_a_tail_shows_whole_new_lines(made):
    tell(made, "before")
    tail = LogTail(made)
    tell(made, "one\ntwo")
    tell(made, "three")
    assert tail.lines() == ["one two", "three"]
    assert tail.lines() == []
    os.truncate(made / EVENTS, 0)  # as logrotate does with copytruncate
    tell(made, "new")
    assert tail.lines() == ["new"]


def test_nobody_waits_for_a_revoked_client(made):
    server, side = made / "server", settings(made / "server", ServerSide)
    assert clients_to_wait_for(server, side) == 2
    assert clients_to_wait_for(server, replace(side, quorum=1)) == 1
    launcher.revoke(server, "p00")
    assert [clients_to_wait_for(server, replace(side, quorum=n)) for n in (0, 2)] == [1, 1]
    launcher.revoke(server, "p01")
    with pytest.raises(StateError, match="every client's key is revoked"):
        clients_to_wait_for(server, side)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Ends that made their own keys, and a folder of the public ones."""
    monkeypatch.setattr(launcher, "check_flower", lambda: None)
    keys = tmp_path / "keys"
    for name in ("p00", "p01", "main"):
        folder_setup.make_key(tmp_path / name)
        shutil.copytree(tmp_path / name / "public", keys, dirs_exist_ok=True)
    return tmp_path, keys


@pytest.mark.parametrize("main", [False, True])
def test_ends_may_make_their_own_keys(own, main):
    """No private key leaves its machine: what `init` writes for a client holds no secret."""
    home, keys = own
    table = check(SPLIT if main else TABLE)
    folder_setup.init(table, ["p00", "p01"], "h:1", home / "out", main, keys)
    for folder in (home / "out" / "clients" / "p00", *([home / "out" / "main"] if main else [])):
        assert not {"node", "box"} & {file.name for file in folder.iterdir()}
        for file in folder.rglob("*"):
            assert file.is_dir() or b"PRIVATE" not in file.read_bytes()
    sign = signer(home / "p00" / "node")
    assert genuine(home / "out" / "server" / "keys" / "p00.pub", b"data", sign(b"data"))
    for secret in ("node", "box"):
        assert stat.S_IMODE((home / "p00" / secret).stat().st_mode) == 0o600
    assert "beside NAME's own key" in (home / "out" / "README.txt").read_text()
    if main:
        theirs = SealedBox(
            home / "p00" / "box", home / "out" / "clients" / "p00" / "main.box", "p00"
        )
        mains = SealedBox(home / "main" / "box", home / "out" / "main" / "peers" / "p00.box", "p00")
        assert theirs.open(mains.close(b"data", "x"), "x") == b"data"


def test_keys_that_are_missing_or_none_are_named(own):
    home, keys = own
    with pytest.raises(StateError, match="has a key already"):
        folder_setup.make_key(home / "p00")
    with pytest.raises(ConfigError, match=r"'p07' at .*p07.pub: `vergence deploy key p07`"):
        folder_setup.init(check(TABLE), ["p00", "p07"], "h:1", home / "out", keys=keys)
    (keys / "p01.pub").write_bytes((home / "p01" / "node").read_bytes())
    with pytest.raises(ConfigError, match="no usable key of 'p01'"):
        folder_setup.init(check(TABLE), ["p00", "p01"], "h:1", home / "out", keys=keys)
    assert not (home / "out").exists()


def test_stop_of_another_users_run_is_one_line(made, monkeypatch):
    def refused(_):
        raise PermissionError(1, "Operation not permitted")

    folder = made / "clients" / "p00"
    monkeypatch.setattr(folders, "runner", lambda _: 4711)
    monkeypatch.setattr(folders, "ask_to_end", refused)
    with pytest.raises(StateError, match=r"another user of this machine \(Operation not permitted"):
        folders.stop(folder)


class BusyLink:
    """A link that answers only some of the commands of `serve`, as one with a thousand clients.

    One that `obeys` carries out a command to which it gives no answer in time.
    """

    def __init__(self, obeys):
        self.obeys = obeys
        self.expelled, self.states = [], ["running", "finished"]
        self.silent = {"UnregisterNode", "ListRuns"}

    def answer(self, command):
        if command in self.silent:
            import httpx

            self.silent.remove(command)
            raise httpx.ReadTimeout("The read operation timed out")

    def UnregisterNode(self, request):
        if request.node_id in self.expelled:
            import httpx

            wrong = httpx.Response(404, request=httpx.Request("POST", "https://link"))
            wrong.raise_for_status()
        if self.obeys:
            self.expelled.append(request.node_id)
        self.answer("UnregisterNode")
        self.expelled.append(request.node_id)

    def ListRuns(self, request):
        self.answer("ListRuns")
        status = SimpleNamespace(status=self.states.pop(0), sub_status="completed", details="")
        return SimpleNamespace(run_dict={request.run_id: SimpleNamespace(status=status)})


@pytest.mark.parametrize("obeys", [False, True])
def test_a_link_that_is_busy_ends_no_server_and_forgets_no_revoked_key(made, monkeypatch, obeys):
    """Each of two commands is without an answer once; a key is revoked meanwhile."""
    pytest.importorskip("flwr", reason="needs the extra 'deploy'")
    link, console = BusyLink(obeys), Console(quiet=True)
    control = FlowerControl.__new__(FlowerControl)
    control.client = link
    numbers = iter((11, 12))
    control.admit = lambda *_: next(numbers)
    control.start = lambda: launcher.revoke(made / "server", "p01") or 1
    monkeypatch.setattr(launcher, "start_link", lambda *_: control)
    monkeypatch.setattr(launcher.ProcessGroup, "start", lambda *_, **__: None)
    monkeypatch.setattr(launcher, "check_port", lambda *_: None)
    monkeypatch.setattr(launcher.time, "sleep", lambda _: None)
    launcher.serve(made / "server", console)
    assert (link.expelled, link.silent, link.states) == ([12], set(), [])
    events = (made / "server" / EVENTS).read_text()
    assert events.count("'p01' is revoked") == 1
