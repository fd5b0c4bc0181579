"""PE-ZSL: oracle O19, the owner's gradient by hand, and who is changed by what.

The gradient: a teacher T(x) = 2 x1 - x2 + 1 with half squared errors, x = (1, 0) of class 1 (label
1) and (0, 1) of class 0 (label -1):

    T(x) = 3, 0;  errors 2, 1;  d loss / dx = (2 / 2) (2, -1), (1 / 2) (2, -1) = (2, -1), (1, -.5)
"""

from dataclasses import replace

import pytest
import torch

from tests.engine.toys import run_toy, table
from vergence.core.conversation import drive
from vergence.core.local_training import FRESH, LocalTraining
from vergence.core.messages import Message, reply, seal
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Forward, Step
from vergence.core.serialization import equal_states
from vergence.core.stages import SMASHED
from vergence.data.synthetic.zsl_synthetic import ZslSynthetic
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.methods.generative.losses import KNOWN, TEACHER, kl, mmd, moments
from vergence.methods.generative.pe_zsl import PeZsl
from vergence.methods.generative.provider import NOTHING, copy_state
from vergence.methods.generative.sample_generator import KIND
from vergence.models.linear import Linear
from vergence.models.mlp import Mlp
from vergence.tasks.toy import ToyTask
from vergence.tasks.zero_shot import ZeroShot
from vergence.training.steps import Trainers

LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05)
SMALL = PeZsl(
    LOCAL,
    generator_rounds=2,
    samples=20,
    batch=10,
    rate=0.01,
    noise=8,
    hidden=32,
    directions=2,
    classifier_rounds=1,
)
TASK = ZeroShot(Mlp(inputs=64, hidden=(16,), classes=16))
QUASI = ZslSynthetic(teacher="quasi", images=10).load()


def test_o19_how_far_made_up_samples_are_from_real_ones():
    real, made = torch.eye(2), torch.tensor([[0.5, 0.5], [0.2, 0.8]])
    assert kl(real, made).item() == pytest.approx(0.063797, abs=1e-6)
    assert kl(real, made).item() / 2 == pytest.approx(0.031898, abs=1e-6)  # the mean over entries
    assert mmd(real, made).item() == pytest.approx(2.012881, abs=1e-6)
    assert mmd(real, real).item() == pytest.approx(0, abs=1e-6)


def test_moments_by_hand_and_their_gradient():
    """Means 1 and 3, deviations 1 and 2; the second entry is the same in every row.

    Of its entry the gradient by made-up samples is 2 (3 - 1) / 2 of the mean, and of the deviation
    2 (2 - 1) (x - 3) / (2 2): 2 -+ .5.
    """
    real = torch.tensor([[0.0, 1.0], [2.0, 1.0]])
    made = torch.tensor([[1.0, 1.0], [5.0, 1.0]], requires_grad=True)
    assert moments(real, made).item() == pytest.approx(5, abs=1e-5)
    assert moments(real, real.flip(0)).item() == pytest.approx(0, abs=1e-9)
    (pull,) = torch.autograd.grad(moments(real, made), made)
    torch.testing.assert_close(pull, torch.tensor([[1.0, 0.0], [3.0, 0.0]]), atol=1e-4, rtol=0)


def test_the_owners_gradient_by_hand():
    task = ToyTask(Linear(inputs=2))
    batch = {
        SMASHED: torch.eye(2),
        KIND: torch.tensor([1, 0]),
        TEACHER: torch.tensor([2.0, -1, 1]),
        KNOWN: torch.ones(2),
    }
    asked = Step(NOTHING, FRESH, batch, SMALL.steps, SMALL.guidance, SMASHED)
    found = Trainers(task).answer(asked, 0.0)
    assert found.gradient.tolist() == [[2.0, -1.0], [1.0, -0.5]]
    assert found.loss == pytest.approx((2**2 / 2 + 1**2 / 2) / 2)


@pytest.mark.parametrize("guide", ["gradients", "scores", "student", "estimates"])
@pytest.mark.parametrize("regulariser", ["kl", "none"])
def test_a_step_changes_the_generator_and_not_the_teacher(guide, regulariser, tmp_path):
    method = replace(SMALL, guide=guide, regulariser=regulariser)
    before = method.server(ToyTask(Linear()))
    one = run_toy(tmp_path / "one", method, rounds=1)
    two = run_toy(tmp_path / "two", method, rounds=2)
    assert not equal_states(before.generator, one.server.generator)
    assert not equal_states(one.server.generator, two.server.generator)
    for client in one.clients:
        assert equal_states(one.clients[client], two.clients[client])
    learns = guide in ("scores", "student")  # in a black box the student learns beside it
    assert equal_states(before.model, two.server.model) is not learns


def test_a_teacher_that_only_answers_is_written_once(tmp_path):
    found = run_toy(tmp_path, SMALL, rounds=4)
    assert all(entry.file.split(".")[3] == "setup" for entry in found.clients.filed.values())


def provided(method, outcome):
    """Return all made-up samples of the lesson, their classes, and what is kept of them."""
    trainers, state = Trainers(TASK), outcome.server
    parts = list(method.generator_inputs(state, "lesson", 0))
    made = [trainers.answer(Forward(state.generator, part, method.synthesis), 0) for part in parts]
    return torch.cat(made), torch.cat([part[KIND] for part in parts]), state.lesson["kept"]


@pytest.mark.parametrize("verify", [True, False])
def test_kept_are_exactly_those_that_the_teacher_takes_for_their_class(verify, tmp_path):
    method = replace(SMALL, verify=verify)
    outcome = run_toy(tmp_path, method, rounds=3, task=TASK, federation=QUASI)
    made, kinds, kept = provided(method, outcome)
    owner = outcome.clients["owner"]
    known = owner.known["classes"] > 0
    output = Trainers(TASK).answer(Forward(owner.teacher, {SMASHED: made}, method.judge), 0)
    output = output.masked_fill(~known, -torch.inf)
    expected = output.argmax(1) == kinds if verify else torch.ones(len(kinds), dtype=torch.bool)
    assert torch.equal(kept.bool(), expected)
    assert expected.sum() > 0
    if verify:
        assert expected.sum() < len(expected)
    scores = outcome.server.lesson["scores"]
    assert torch.allclose(scores, output.softmax(1), atol=1e-6)
    assert not scores[:, ~known].any()  # a quasi-omniscient teacher has no such outputs


def test_a_quasi_omniscient_owner_tells_its_classes_and_a_classifier_learns_all(tmp_path):
    method = replace(SMALL, regulariser="none")
    outcome = run_toy(tmp_path, method, rounds=2, task=TASK, federation=QUASI)
    unseen = [i for i, known in enumerate(outcome.server.known["classes"].tolist()) if not known]
    assert tuple(unseen) == TASK.unseen_classes
    assert not equal_states(
        outcome.server.model, TASK.init()
    )  # two rounds are the generator's alone
    rows = {row["metric"] for row in table(tmp_path, "people.csv")}
    assert {"T1", "u", "s", "H"} <= rows


def test_estimates_point_where_the_gradient_does():
    """On a line the difference is the slope along each direction; many of them give all of it."""
    task, method = ToyTask(Linear(inputs=2)), replace(SMALL, directions=2000, radius=1e-2)
    teacher = Params.of(Linear(inputs=2).build())
    teacher = teacher.like(torch.tensor([2.0, -1, 1]))
    trainers, samples, kinds = Trainers(task), torch.eye(2), torch.tensor([1, 0])
    state = copy_state(method.server(task))

    def answer(ask):
        if isinstance(ask, Forward):
            return trainers.answer(ask, 0.0)
        (message,) = ask.to.values()
        output = trainers.answer(
            Forward(teacher, {SMASHED: message["made"]["made"]}, method.judge), 0
        )
        return {"p00": seal(reply(scores=Params.named(scores=output)), 0)}

    scores = torch.tensor([[3.0], [0.0]])
    found = drive(method.estimated_gradient(state, ["p00"], 0, samples, kinds, scores), answer)
    assert torch.allclose(found, torch.tensor([[2.0, -1.0], [1.0, -0.5]]), atol=0.25)


def test_who_judges_is_given_no_data():
    worker = ClientExecutor(SMALL, TASK, LocalData(QUASI, QUASI), RandomStream("run", 0))
    for verb, seen in (("teach", True), ("guide", True), ("judge", False)):
        site = worker.site(QUASI, "owner", Message(verb), progress=0.0)
        assert bool(len(site.train)) is seen, verb
    plain = ClientExecutor(
        replace(SMALL, regulariser="none"), TASK, LocalData(QUASI, QUASI), RandomStream("run", 0)
    )
    assert not len(plain.site(QUASI, "owner", Message("guide"), progress=0.0).train)


def test_an_owner_answers_no_verb_that_its_options_do_not_name():
    assert set(SMALL.exposure) == {"teach", "guide", "judge"}
    assert set(replace(SMALL, guide="scores").exposure) == {"teach", "compare", "judge"}
    quiet = replace(SMALL, guide="student", regulariser="none")
    assert set(quiet.exposure) == {"teach", "judge"}
