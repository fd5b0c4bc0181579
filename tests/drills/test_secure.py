"""Secure sums among processes on this machine: Flower carries a protocol's messages."""

from importlib.util import find_spec

import pytest

from tests.drills.deployment import CLIENTS, TABLE, deployed, simulated, sums_opened
from vergence.deployment.folder_setup import init
from vergence.errors import ConfigError
from vergence.experiment.schema import check

pytestmark = pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
SECURE = {**TABLE, "methods": ["fedavg", "scaffold"], "privacy": {"aggregation": "secure"}}


def test_every_client_gets_everybodys_keys_from_who_makes_the_folders(tmp_path):
    init(check(SECURE), CLIENTS, "127.0.0.1:9", tmp_path / "out")
    keys = {p.name: p.read_bytes() for p in (tmp_path / "out" / "server" / "keys").iterdir()}
    assert set(keys) == {f"{name}.pub" for name in CLIENTS}
    for name in CLIENTS:
        mine = tmp_path / "out" / "clients" / name / "keys"
        assert {p.name: p.read_bytes() for p in mine.iterdir()} == keys
    init(check(TABLE), CLIENTS, "127.0.0.1:9", tmp_path / "plain")
    assert not (tmp_path / "plain" / "clients" / "p00" / "keys").exists()


GROUPS = {"robust": "median", "aggregation": {"groups": 3}}


@pytest.mark.parametrize(
    ("privacy", "clients", "why"),
    [
        (SECURE["privacy"], CLIENTS[:2], "2 people are asked at once, and a sum is of at least 3"),
        (GROUPS, CLIENTS, "sums of groups are simulated only"),
    ],
)
def test_what_cannot_be_deployed_is_refused(privacy, clients, why, tmp_path):
    table = {**SECURE, "methods": ["fedavg"], "privacy": privacy}
    with pytest.raises(ConfigError, match=why):
        init(check(table), clients, "127.0.0.1:9", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_deployment_gives_the_simulators_bits(tmp_path):
    """A client is killed after the first round and comes back; the server is killed too."""
    table = {**SECURE, "run": {**TABLE["run"], "rounds": 3}}
    with deployed(tmp_path, table) as made:
        served = made.serve()
        joined = [made.join(name) for name in CLIENTS]
        made.until("round 1 of 3", 300)
        made.kill(made.server)
        served.wait()
        joined[1].kill()
        joined[1].wait()
        served = made.serve()
        joined[1] = made.join(CLIENTS[1])
        assert served.wait(500) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert made.fingerprints() == simulated(table, tmp_path / "here")
        assert not made.leftovers()
        state = next((made.client("p00") / "state").glob("*/fedavg"))
        assert sums_opened(state / "sum.spent") == 3
        assert not (state / "sum.attempt").exists()
