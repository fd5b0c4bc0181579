"""Where solvers are tested."""

import pytest

from tests.engine.learners import DEVICES


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param
