"""Real samples come back from an owner's answers, and from a profile they do not."""

from dataclasses import replace

import torch

from tests.attacks.comparisons import compared, exchanged, rebuilt
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.data.synthetic.zsl_synthetic import ZslSynthetic
from vergence.methods.generative.pe_zsl import PeZsl
from vergence.methods.generative.sg_zsl import SgZsl
from vergence.methods.generative.teacher import Owner
from vergence.models.mlp import Mlp
from vergence.tasks.zero_shot import ZeroShot
from vergence.training.steps import Trainers

TASK = ZeroShot(Mlp(inputs=64, hidden=(8,), classes=16))
TRAIN = ZslSynthetic(images=10).load().people["owner"].train
REAL = TRAIN.columns["x"]
MADE = torch.rand(40, 64, generator=RandomStream("made").torch())
KINDS = Params.named(kinds=torch.arange(40.0) % 16)
PRINTED = PeZsl(LocalTraining(optimizer="sgd"), guide="scores", alpha=0.5)
WHITE = replace(PRINTED, guide="gradients")


def answered(method, verb, question, profile=None):
    """Return the gradients that an owner answers."""
    known = Params.named(classes=torch.ones(16))
    site = ClientContext("owner", TRAIN, TRAIN, TASK, 0, RandomStream("site"))
    trees = {"made": Params.named(made=MADE), "kinds": KINDS}
    message = Message(verb, trees, {"question": question})
    turn = getattr(method, f"on_{verb}")(Owner(TASK.init(), known, profile), message, site)
    _, told = drive(turn, lambda ask: Trainers(TASK).answer(ask, 0.0))
    return told.trees["gradients"]["made"]


def nearest(found):
    """Return how far each found sample is from a training sample, entry by entry at most."""
    return (found[:, None] - REAL[None]).abs().amax(2).amin(1)


def test_a_comparison_is_a_copy_of_what_was_compared_with():
    shares = compared(MADE, answered(PRINTED, "compare", 0), 0.5)
    assert float(nearest(rebuilt(shares)).max()) < 1e-3
    assert float(nearest(MADE).min()) > 0.1


def test_asked_twice_a_white_box_tells_the_difference_of_two_real_samples():
    first, second = (answered(WHITE, "guide", number) for number in (0, 1))
    one, other = (compared(MADE, answered(PRINTED, "compare", number), 0.5) for number in (0, 1))
    assert torch.allclose(exchanged(first, second, 0.5), one - other, atol=1e-4)
    assert float((one - other).abs().max()) > 1e-3


def test_a_profile_gives_back_itself():
    """The same mean in every row: no single sample."""
    p = REAL.softmax(1).mean(0, keepdim=True)
    method = SgZsl(LocalTraining(optimizer="sgd"), guide="scores", alpha=0.5, knows="all")
    shares = compared(MADE, answered(method, "compare", 0, Params.named(shares=p)), 0.5)
    assert torch.allclose(shares, p.expand_as(shares), atol=1e-6)
