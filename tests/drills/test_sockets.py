"""Attacks on a real server's port: every one is refused, by a reason that somebody reads.

Those that take long are drills alone (`flower_drills.py`).
"""

from importlib.util import find_spec

import pytest

from tests.drills import attacks
from tests.drills.deployment import CLIENTS, deployed, fedcpf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a busy machine takes minutes to start ten processes
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'"),
]
ROUNDS = 240
"""Rounds that last longer than the attacks."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """Give a server whose clients take part while it is attacked."""
    with deployed(tmp_path_factory.mktemp("attacked"), fedcpf(ROUNDS), absent_s=3.0) as made:
        at = attacks.field(made)
        made.serve()
        made.until("clients expected", attacks.PATIENCE)
        for name in CLIENTS:
            made.join(name)
        yield at


def fine(rows):
    found = list(rows)
    assert found
    assert not [row for row in found if not row.good]


def test_requests_that_nobody_may_send(attacked):
    fine(attacks.requests(attacked))


def test_connections_that_come_to_nothing(attacked):
    fine(attacks.connections(attacked))


def test_clients_that_are_not_let_in(attacked):
    fine(attacks.clients(attacked))


def test_no_tls_and_an_old_certificate(tmp_path):
    with deployed(tmp_path, fedcpf(1)) as made:
        fine(attacks.undressed(made))
        fine(attacks.old_server(made))
