"""A server with two clients invites those and one more, in a federation of any size."""

import pytest

from tests.adversary.lies import circle, method, opened, question, turn
from vergence.core.local_training import LocalTraining
from vergence.deployment.protocol import ClientRequest
from vergence.engine.plan import Plan
from vergence.engine.secure_sums import sums_for
from vergence.errors import StateError
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.privacy.secure_aggregation.pairwise import colluders


@pytest.mark.parametrize("invited", [3, 4, 5])
def test_a_sum_of_few_is_not_opened_in_a_federation_of_many(invited, tmp_path):
    """Of eleven people six must be in every sum, unless the experiment says otherwise."""
    made = circle(method("fedavg", LocalTraining(optimizer="sgd")), tmp_path, 11)
    names = made.names[:invited]
    for client in names:
        turn(made, client, ClientRequest("turn", client, question(made, 0), "0.1"))
    made.sums = sums_for(Plan(), made.method, 11) or made.sums  # the server's own is unbounded
    lower = sums_for(
        Plan(privacy=Privacy(aggregation=SecureAggregationConfig(min_contributors=3))),
        made.method,
        11,
    )
    clients, made.sums = made.home, lower

    def home(client):
        made.sums, own = sums_for(made.plan, made.method, 11), made.sums
        try:
            return clients(client)
        finally:
            made.sums = own

    made.home = home
    with pytest.raises(StateError, match=f"threshold: a sum of {max(3, 2 * invited // 3 + 1)} "):
        opened(made, question(made, 0), dict.fromkeys(names, "0.1"))


@pytest.mark.parametrize(
    ("people", "least", "few"),
    [
        (5, 3, 2),
        (7, 4, 3),
        (15, 8, 5),
        (30, 16, 9),
        (100, 51, 26),
        (15, 3, 2),
        (100, 3, 2),
    ],
)
def test_how_many_must_collude_is_the_fewest_over_all_rosters(people, least, few):
    """By hand for 15 and 8: a roster of 11 has threshold 8, and 2 * 8 - 11 = 5."""
    assert colluders(people, least) == few


@pytest.mark.parametrize(
    ("people", "asked", "least"),
    [
        (5, 1.0, 3),
        (15, 1.0, 8),
        (100, 1.0, 51),
        (100, 0.2, 11),
        (1000, 30, 16),
        (4, 1.0, 3),
    ],
)
def test_the_default_grows_with_the_federation(people, asked, least):
    from vergence.engine.participation import Participation

    plan = Plan(
        privacy=Privacy(aggregation=SecureAggregationConfig()), presence=Participation(cohort=asked)
    )
    sums = sums_for(plan, method("fedavg", LocalTraining(optimizer="sgd")), people)
    assert sums.policy.min_contributors == least
