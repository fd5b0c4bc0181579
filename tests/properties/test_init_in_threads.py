"""A seed's initial parameters are the same however many threads ask for them at once."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle


@pytest.fixture
def impatient():
    """Let threads take turns a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_threads_draw_initial_parameters_of_their_own():
    """Torch's generator is one for all threads: one would draw from another's seed."""
    tasks = [GazeAngle(LeNet((3, 4)), seed=seed) for seed in range(2)]
    wanted = [task.init().flat for task in tasks]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: tasks[at % 2].init().flat, range(150)))
    assert all(torch.equal(flat, wanted[at % 2]) for at, flat in enumerate(found))
