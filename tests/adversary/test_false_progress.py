"""A server tells all but one person that training is at its end, where nothing is learned.

The sum of all, which everybody agreed to and signed, was that one person's update.
"""

from dataclasses import replace

import numpy as np

from tests.adversary.lies import circle, cosine, method, model, opened, question, refusals, row
from vergence.deployment.protocol import ClientRequest

PEOPLE = 15


def asked(tmp_path):
    """A federation, and what its clients would be asked in the second round of two."""
    made = circle(method(), tmp_path, PEOPLE, inputs=200, rounds=2)
    message = question(made, 1)
    return made, {c: ClientRequest("turn", c, message, "1.1", progress=0.5) for c in made.names}


def test_a_client_refuses_a_progress_that_is_not_its_plans(tmp_path):
    made, requests = asked(tmp_path)
    victim = made.names[3]
    lies = {c: replace(e, progress=0.0 if c == victim else 1.0) for c, e in requests.items()}
    refused = refusals(made, lies)
    assert set(refused) == set(made.names), "a server chose how much a client learns"
    assert all("progress 0.5, and the server says" in why for why in refused.values())


def test_a_sum_of_all_tells_no_more_of_one_than_of_the_others(tmp_path):
    """What the same attack gets when everybody trains as planned: one share of fifteen."""
    made, requests = asked(tmp_path)
    assert refusals(made, requests) == {}
    message = next(iter(requests.values())).message
    form, total = opened(made, message, dict.fromkeys(made.names, "1.1"))
    whole = model(form, total.words, PEOPLE)
    found = [cosine(whole, model(form, row(made, c))) for c in made.names]
    assert np.ptp(found) < 0.5
    assert max(found) < 0.7
