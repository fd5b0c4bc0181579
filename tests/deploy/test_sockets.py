"""Attacks on a real server's port: every one is refused, by a reason that somebody reads."""

from importlib.util import find_spec

import pytest

from tests.deploy import attacks
from tests.deploy.deployment import CLIENTS, deployed, fedcpf, simulated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a busy machine takes minutes to start ten processes
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'"),
]
ROUNDS = 120
"""Rounds that last longer than the attacks."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """Give a server whose clients take part while it is attacked, and its process."""
    with deployed(tmp_path_factory.mktemp("attacked"), fedcpf(ROUNDS), absent_s=3.0) as made:
        at = attacks.field(made)
        served = made.serve()
        made.until("clients expected", attacks.PATIENCE)
        for name in CLIENTS:
            made.join(name)
        yield at, served


def fine(rows):
    found = list(rows)
    assert found
    assert not [row for row in found if not row.good]


def test_requests_that_nobody_may_send(attacked):
    fine(attacks.requests(attacked[0]))


def test_an_answer_that_is_announced_and_never_sent(attacked):
    fine([attacks.announced(attacked[0])])


def test_connections_that_come_to_nothing(attacked):
    fine(attacks.connections(attacked[0]))


def test_clients_that_are_not_let_in(attacked):
    fine(attacks.clients(attacked[0]))


def test_an_impostor_whose_key_is_revoked_while_it_runs(attacked):
    fine(attacks.impostor(attacked[0]))


def test_connections_that_say_nothing(attacked):
    fine([attacks.flood(attacked[0], 300)])


def test_all_that_changed_no_bit_of_the_run(attacked, tmp_path):
    deployment, served = attacked[0].deployment, attacked[1]
    want = simulated(fedcpf(ROUNDS), tmp_path / "here")
    assert served.wait(600) == 0, deployment.events()
    assert deployment.fingerprints() == want


def test_no_tls_and_an_old_certificate(tmp_path):
    with deployed(tmp_path, fedcpf(1)) as made:
        fine(attacks.undressed(made))
        fine(attacks.old_server(made))


def test_a_client_revoked_in_the_middle_of_a_run(tmp_path):
    with deployed(tmp_path, fedcpf(1000), absent_s=3.0) as made:
        at = attacks.field(made)
        made.serve()
        joined = [made.join(name) for name in CLIENTS]
        made.until("round 1 of", 300)
        fine([attacks.revoked(at, joined)])
