"""Where solvers are tested."""

import pytest
import torch

from tests.engine.learners import DEVICES


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param


@pytest.fixture(autouse=True)
def single_precision(monkeypatch):
    """A GPU's convolutions in float32, not in its 19 bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
