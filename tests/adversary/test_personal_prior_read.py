"""A server that lies reads a person's own prior from one update, where training sees the prior.

docs/how-to/personal_prior.md says so, and names what helps; with `prior_in = "prediction"` and
`personal_prior = "auto"` it cannot.
"""

import tomllib
from dataclasses import replace

import pytest
import torch

from vergence.engine.evaluation import scored
from vergence.experiment.schema import check
from vergence.experiment.validation import prepare_data
from vergence.tasks.gaze_angle import SPREAD

EYES = """
task       = {{ name = "gaze_angle", {options} }}
model      = {{ name = "small_eye", channels = [4, 4], hidden = 8 }}
federation = {{ name = "eye_synthetic", people = 3, samples = 40, days = [3, 3], size = "9x15" }}
method     = {{ name = "fedavg" }}
"""


def read_by_the_server(options):
    """What one gradient of the last bias tells of a person's spread, and the person's own."""
    experiment = check(tomllib.loads(EYES.format(options=options)))
    task = experiment.task(0)
    train = prepare_data(experiment, task, experiment.federation()).people["p00"].train
    batch, module = train.take(torch.arange(len(train))), task.module()
    *_, last = (layer for layer in module.modules() if isinstance(layer, torch.nn.Linear))
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(50.0)  # far to one side: every sample's error has the same sign
    task.loss(task.forward(module, batch), batch).backward()
    return 2 * last.bias.grad * SPREAD, batch["prior"][:, 1].mean(0)


def test_an_update_tells_the_spread_where_the_loss_sees_it():
    told, own = read_by_the_server("personal_prior = 1.0")
    torch.testing.assert_close(told, own, rtol=1e-4, atol=1e-5)
    assert float((own - SPREAD).abs().max()) > 0.003


@pytest.mark.parametrize(
    "options", ['personal_prior = 1.0, prior_in = "prediction"', 'personal_prior = "auto"']
)
def test_an_update_tells_what_everybody_knows_where_only_predictions_see_it(options):
    told, _ = read_by_the_server(options)
    assert told.tolist() == pytest.approx(SPREAD.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    "options", ['personal_prior = 1.0, prior_in = "prediction"', 'personal_prior = "auto"']
)
def test_scores_tell_of_the_prior_whatever_updates_do(options):
    """A server that sends a model of one answer is told how far one's own mean is from the gaze."""
    experiment = check(tomllib.loads(EYES.format(options=options)))
    task = experiment.task(0)
    federation = experiment.federation()
    own = federation.people["p00"]
    turned = {**own.train.columns, "gaze": own.train.columns["gaze"] + 0.2}
    other = replace(own, train=replace(own.train, columns=turned))
    found = []
    for splits in (own, other):  # they differ in training gaze alone, which is the prior's
        changed = replace(federation, people={**federation.people, "p00": splits})
        ready = prepare_data(experiment, task, changed).people["p00"]
        with torch.no_grad():
            found.append(scored(task, lambda part: constant(task, part), ready))
    assert found[0]["pitch_error_deg"] != pytest.approx(found[1]["pitch_error_deg"], abs=0.1)


def constant(task, samples):
    """Outputs of a network with the same answer for every picture."""
    module = task.module().eval()
    for parameter in module.parameters():
        parameter.data.zero_()
    return task.forward(module, samples.take(slice(0, len(samples))))
