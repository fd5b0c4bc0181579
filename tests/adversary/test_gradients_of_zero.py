"""Gradients of zero for all but one make a secure sum that one's; nothing may hide it."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.adversary.lies import circle, method, row
from tests.conformance.test_methods import build
from vergence.core.local_training import LocalTraining
from vergence.core.serialization import pack, quick_digest, unpack
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.engine.secure_sums import steered
from vergence.experiment.schema import check
from vergence.privacy.config import SecureAggregationConfig
from vergence.reports.ethics.wording import PrivacyMeans, assumed
from vergence.reports.explain import explain

TABLE = {
    "task": {"name": "gaze_angle"},
    "model": {"name": "small_eye"},
    "federation": {"name": "eye_synthetic", "people": 4, "samples": 40},
    "privacy": {"aggregation": "secure"},
}


def without(message):
    """The message with a gradient of zero, if it has one."""
    if "gradient" not in message.trees:
        return message
    gradient = message.trees["gradient"]
    return replace(message, trees={**message.trees, "gradient": gradient.like(gradient.flat * 0)})


def test_the_sum_of_all_is_one_persons_where_the_others_got_gradients_of_zero(tmp_path):
    """What the pages say is not promised: mended, they may promise more."""
    split = method("splitfed", LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05))
    made = circle(split, tmp_path, 5, SecureAggregationConfig(min_contributors=5), rounds=1)
    honest = made.ask

    def ask(client, request):
        what = unpack(request, ClientRequest)
        if what.kind != "turn" or client == "p02" or what.message.verb != "train":
            return honest(client, request)
        lie = replace(what, message=without(what.message), then=tuple(map(without, what.then)))
        note, body = unframed(honest(client, pack(lie)))
        return framed({**note, "to": quick_digest(request)}, body)

    made.ask = ask
    made.run_rounds(rounds=1)
    asked = next(e.message for _, e, _ in made.asked if e.message.verb == "release")
    form = made.home("p02").runner.layout(asked, {})

    def front(words):
        return form.aggregate(words, 1).totals["front"].flat.numpy().astype(float)

    whole, own = front(sum(row(made, c) for c in made.names)), front(row(made, "p02"))
    assert np.abs(own).max() > 1e-3
    assert np.abs(whole - own).max() < 1e-3 * np.abs(own).max()  # half a step of a word each


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("splitfed", "gradient"),
        ("splitfed_v2", "gradient"),
        ("splitfed_u", "gradient"),
        ("local_loss_split", "front"),
        ("smashed_average", ""),
        ("fedavg", ""),
    ],
)
def test_explain_and_the_ethics_page_say_from_whom_such_sums_hide(name, sent):
    assert (sent in steered(build(name))) == bool(sent)
    experiment, console = check({**TABLE, "method": name}), Console(width=600, record=True)
    with console.capture() as found:
        explain(experiment, console)
    assert ("hides a person only from a server that does" in found.get()) == bool(sent)
    means = PrivacyMeans(experiment.plan, experiment.methods[name], experiment.task(0))
    told = " ".join(assumed(means))
    assert ("hides a person only from a server that does" in told) == bool(sent)
