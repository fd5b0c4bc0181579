"""A deployment that is to be reached on its own machine alone listens there alone.

The adversary is whoever else reaches the machine: nothing of a deployment on 127.0.0.1 may listen
on an address that others can reach.
"""

import ipaddress
import tomllib

import psutil
import pytest
import tomli_w

from tests.cli.commands import vergence
from tests.drills.deployment import TABLE as SMALL
from tests.drills.deployment import deployed
from tests.drills.test_folders import TABLE
from vergence.console import out as screen
from vergence.deployment.launcher import serve
from vergence.errors import VergenceError


@pytest.fixture
def init(tmp_path):
    """Return how `deploy init` is called, for what it said and what the server's folder says."""
    (tmp_path / "exp.toml").write_text(tomli_w.dumps(TABLE))

    def given(address, *more):
        made = tmp_path / "out"
        said = vergence(
            "deploy",
            "init",
            tmp_path / "exp.toml",
            "--clients",
            "p00,p01",
            "--address",
            address,
            "--out",
            made,
            *more,
        )
        file = made / "server" / "deploy.toml"
        return said, tomllib.loads(file.read_text()) if file.is_file() else {}

    return given


@pytest.mark.parametrize("address", ["127.0.0.1:18731", "localhost:18731"])
def test_an_address_of_this_machine_alone_is_listened_to_there_alone(init, address):
    said, told = init(address)
    assert said.code == 0
    assert told["listen"] == "127.0.0.1"
    assert "will listen on 127.0.0.1, for this machine alone" in said.out


@pytest.mark.parametrize("address", ["192.168.1.5:8000", "gaze.example.org:8000", "8.8.8.8:8000"])
def test_another_address_is_listened_to_everywhere_and_init_says_so(init, address):
    said, told = init(address)
    assert said.code == 0
    assert told["listen"] == "0.0.0.0"
    assert "will listen on 0.0.0.0, for whoever reaches this machine" in said.out


@pytest.mark.parametrize("address", ["127.0.0.1:18731", "192.168.1.5:8000"])
@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_where_it_listens_may_be_said(init, address, listen):
    said, told = init(address, "--listen", listen)
    assert said.code == 0, said.err
    assert told["listen"] == listen
    assert f"will listen on {listen}, for" in said.out


@pytest.mark.parametrize("listen", ["192.168.1.5", "::", "localhost", "h", "0.0.0.0:80"])
def test_nowhere_else(init, listen):
    said, told = init("192.168.1.5:8000", "--listen", listen)
    said.complains(2, f"not on '{listen}'", "127.0.0.1", "0.0.0.0", "firewall")
    assert not told


@pytest.mark.parametrize("address", ["127.0.0.2:80", "[::1]:8000", "127.1.2.3:80"])
def test_another_loopback_address_is_not_opened_to_everybody_instead(init, address):
    said, told = init(address)
    said.complains(2, address, "give 127.0.0.1")
    assert not told


def test_serve_refuses_what_was_written_into_the_folder_by_hand(init, tmp_path):
    init("192.168.1.5:8000")
    folder = tmp_path / "out" / "server"
    file = folder / "deploy.toml"
    file.write_text(file.read_text().replace('"0.0.0.0"', '"127.0.0.9"'))
    with pytest.raises(VergenceError) as refused:
        serve(folder, screen)
    assert "not on '127.0.0.9'" in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True])
def test_nothing_of_a_deployment_on_loopback_is_heard_elsewhere(tmp_path, silent):
    """What the kernel says, of every process of the server's and of a client's folder."""
    with deployed(tmp_path, SMALL, listen="127.0.0.1") as made:
        file = made.server / "deploy.toml"
        if silent:  # as a folder is that says nothing of where to listen
            lines = file.read_text().splitlines(keepends=True)
            file.write_text("".join(x for x in lines if not x.startswith("listen")))
        made.serve()
        made.until("clients expected", 120)
        made.join("p00")
        made.until("'p00' is here", 120)
        heard = [
            at.laddr
            for folder in (made.server, made.client("p00"))
            for number in made.processes_of(folder)
            for at in psutil.Process(number).net_connections("inet")
            if at.status == psutil.CONN_LISTEN
        ]
        assert made.port in {at.port for at in heard}
        assert all(ipaddress.ip_address(at.ip).is_loopback for at in heard), heard
