"""privacy.mask: whether a mask grows is seen as well as how, so data must not decide it unpaid.

FedCPF's guard lets no mask grow after a turn that raised the validation loss: a bit about a
person's data in every turn, which no draw and no epsilon covers.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.toys import LOCAL, run_toy
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy
from vergence.errors import ConfigError
from vergence.methods.fedcpf import FedCPF
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy
from vergence.privacy.dp.mask_budget import MaskBudget
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver

GUARDED = FedCPF(rate=0.2, limit=0.6, guard=True, local=replace(LOCAL, lr=0.05))


def grown(val: Samples) -> int:
    """Entries that are personal after one turn, by a client's validation data."""
    task = ToyTask(Linear())
    splits = next(iter(Toy().load().people.values()))
    site = ClientContext("p00", splits.train, val, task, 0, RandomStream("here"))
    message = Message("train", {"model": task.init()})
    turn = GUARDED.on_train(GUARDED.client(task), message, site)
    solver, stream = Solver(task), RandomStream("turn")

    def answer(ask: Any) -> Any:
        return solver.fit(ask, stream) if isinstance(ask, Fit) else solver.compute(ask)

    state, _ = drive(turn, answer)
    return state.mask.count


def test_a_guard_tells_of_validation_data_by_the_size_of_a_mask():
    splits = next(iter(Toy().load().people.values()))
    told = splits.train.columns
    against = Samples({**told, "y": -10 * told["y"]})
    assert grown(splits.train) > grown(against) == 0


def test_it_is_refused_under_a_budget_of_masks(tmp_path):
    budget = Privacy(mask=MaskBudget(8.0, of="entry"))
    run_toy(tmp_path / "without", replace(GUARDED, guard=False), privacy=budget)
    with pytest.raises(ConfigError, match="no draw pays for"):
        run_toy(tmp_path / "with", GUARDED, privacy=budget)
