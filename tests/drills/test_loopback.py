"""A server and three clients as processes on this machine, over TLS with node keys."""

import json
from importlib.util import find_spec

import pytest

from tests.drills.deployment import CLIENTS, TABLE, deployed, fedcpf, simulated

FEDSELECT = {"name": "fedselect", "rule": "published"}
"""With its rule, as `vergence deploy init` writes it: a folder without one is an older run's."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a busy machine takes minutes to start ten processes
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'"),
]


@pytest.fixture
def deployment(tmp_path):
    with deployed(tmp_path) as made:
        yield made


@pytest.mark.ci
def test_the_same_bits_as_the_simulator_over_tls_with_node_keys(deployment, tmp_path):
    table = {**TABLE, "methods": [*TABLE["methods"], FEDSELECT, "scaffold", "splitfed"]}
    deployment.hand_out(table)
    served = deployment.serve()
    joined = [deployment.join(name) for name in CLIENTS]
    here = simulated(table, tmp_path / "here")
    assert served.wait(500) == 0, deployment.events()
    assert [process.wait(30) for process in joined] == [0, 0, 0]
    assert deployment.fingerprints() == here
    assert set(here) == {"fedavg", "fedcpf", "fedselect", "scaffold", "splitfed"}
    told = json.loads((deployment.server / "run" / "fedavg" / "provenance.json").read_text())
    assert told["deployment"]["tls"]
    assert not deployment.leftovers()


@pytest.mark.nightly
def test_split_learning_in_three_roles_gives_the_same_bits(tmp_path):
    """Clients, main server and aggregator; the main server is killed in a round and comes back."""
    ahead = {"name": "splitfed", "ahead": 1}
    table = {**TABLE, "methods": [ahead], "run": {**TABLE["run"], "rounds": 3}}
    with deployed(tmp_path, table, ["--main-server"]) as made:
        main = made.folder / "out" / "main"
        served = made.serve()
        joined = [made.join(name) for name in CLIENTS]
        killed = made.run("join", main)
        made.until("round 1 of 3", 300)
        made.kill(main)
        killed.wait()
        made.run("join", main)
        assert served.wait(500) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert made.fingerprints() == simulated(table, tmp_path / "here")
        assert not made.table("turns.csv")[0]["status"].startswith("lost")


@pytest.mark.nightly
def test_kill_9_of_server_and_client_changes_no_bit(deployment, tmp_path):
    """The server is killed in a round and goes on; a client is killed and comes back."""
    want = simulated(fedcpf(4), tmp_path / "here")
    deployment.hand_out(fedcpf(4))
    served = deployment.serve()
    joined = [deployment.join(name) for name in CLIENTS]
    deployment.until("round 1 of 4", 300)
    served.kill()
    served.wait()
    joined[1].kill()
    joined[1].wait()
    served = deployment.serve()
    joined[1] = deployment.join("p01")
    assert served.wait(500) == 0, deployment.events()
    assert [process.wait(30) for process in joined] == [0, 0, 0]
    assert deployment.fingerprints() == want
    assert not deployment.leftovers()
