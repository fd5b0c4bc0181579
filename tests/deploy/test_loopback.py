"""A server and three clients as processes on this machine, over TLS with node keys."""

import json
from importlib.util import find_spec

import pytest

from tests.deploy.deployment import CLIENTS, TABLE, deployed, fedcpf, simulated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a busy machine takes minutes to start ten processes
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'"),
]


@pytest.fixture
def deployment(tmp_path):
    with deployed(tmp_path) as made:
        yield made


def test_the_same_bits_as_the_simulator_over_tls_with_node_keys(deployment, tmp_path):
    served = deployment.serve()
    joined = [deployment.join(name) for name in CLIENTS]
    here = simulated(TABLE, tmp_path / "here")
    assert served.wait(500) == 0, deployment.events()
    assert [process.wait(30) for process in joined] == [0, 0, 0]
    assert deployment.fingerprints() == here
    assert set(here) == {"fedavg", "fedcpf"}
    told = json.loads((deployment.server / "run" / "fedavg" / "provenance.json").read_text())
    assert told["deployment"]["tls"]
    assert not deployment.leftovers()


def test_kill_9_of_server_and_client_changes_no_bit(deployment, tmp_path):
    """The server is killed in a round and goes on; a client is killed and comes back."""
    want = simulated(fedcpf(2), tmp_path / "here")
    deployment.hand_out(fedcpf(2))
    served = deployment.serve()
    joined = [deployment.join(name) for name in CLIENTS]
    deployment.until("round 1 of 2", 300)
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
