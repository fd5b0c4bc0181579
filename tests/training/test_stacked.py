"""Stacked training gives what training one after the other gives.

Both do the same arithmetic with sums in another order. A float32 sum of some hundred terms is off
by about 1e-7 of its largest term; a few steps later parameters may differ by 1e-5 of the largest
one. In float64 the same is 1e-16 and 1e-12. AdamW divides by the root of a squared gradient and so
makes the difference of a gradient near 0 one of a whole step: its eps of 1e-8 is where that ends,
and these data stay away from it.
"""

from dataclasses import replace

import pytest
import torch

from tests.engine.learners import (
    EXTRAS,
    LOCALS,
    TASKS,
    Banked,
    Dropping,
    Odd,
    apart,
    asks_of,
    banked,
    numbers,
    streams_of,
)
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked, Unstackable, groups_of

WITHIN = {"mlp64": 1e-12}


def check(
    task, asks: list[Fit], within: float = 1e-5, progress: float = 0.3, device: str = "cpu"
) -> None:
    within *= 1 if device == "cpu" else 10
    streams, solver = streams_of(asks), Solver(task)
    together = Stacked(task, device).fit_all(asks, streams, progress)
    for ask, stream, found in zip(asks, streams, together, strict=True):
        alone = solver.fit(ask, stream, progress)
        assert apart(found.params, alone.params) <= within
        assert apart(alone.params, ask.params) > 1e-3  # something was learned
        assert (found.steps, found.examples) == (alone.steps, alone.examples)
        assert found.metrics == pytest.approx(alone.metrics, rel=max(within, 1e-9) * 10)
        if ask.trainable is not None:
            frozen = ~ask.trainable.bits
            assert torch.equal(found.params.flat[frozen], ask.params.flat[frozen])


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", ["linear", "mlp", "mlp64"])
def test_stacked_is_sequential(name, local, device):
    """12 samples in batches of 5 leave a last batch of 2."""
    asks = asks_of(*TASKS[name], LOCALS[local], "none")
    check(TASKS[name][0], asks, WITHIN.get(name, 1e-5), device=device)


@pytest.mark.parametrize("extra", EXTRAS[1:])
@pytest.mark.parametrize("name", ["linear", "mlp", "mlp64"])
def test_requests_with_extras(name, extra, device):
    """Anchor, mask, and both with a start and a score of one's own."""
    asks = asks_of(*TASKS[name], LOCALS["clip"], extra)
    check(TASKS[name][0], asks, WITHIN.get(name, 1e-5), device=device)


@pytest.mark.parametrize("local", ["clip", "momentum"])
@pytest.mark.parametrize("extra", ["none", "all"])
def test_convolutions(local, extra, device):
    """Weights stored channels-last inside a client."""
    asks = asks_of(*TASKS["lenet"], LOCALS[local], extra, clients=3)
    check(TASKS["lenet"][0], asks, device=device)


def test_shared_banks(device):
    rows = torch.randn(30, 6, generator=torch.Generator().manual_seed(3))
    task = Banked(Linear(6))
    asks = asks_of(task, lambda n, c: banked(n, c, rows), LOCALS["momentum"], "none")
    check(task, asks, device=device)


def test_banks_of_their_own():
    def make(n, client):
        generator = torch.Generator().manual_seed(client)
        return banked(n, client, torch.randn(30, 6, generator=generator))

    task = Banked(Linear(6))
    check(task, asks_of(task, make, LOCALS["momentum"], "none"))


def test_linear_layers_over_more_than_rows():
    """x as two frames of three numbers: layers see [batch, 2, 3]."""

    class Frames(ToyTask):
        def forward(self, module, batch):
            return module(batch["x"].unflatten(1, (2, 3))).mean((1, 2))

    task = Frames(Linear(3))
    check(task, asks_of(task, numbers, LOCALS["momentum"], "none"))


def test_data_laid_out_together_is_the_same():
    """Views into one tensor, the first of them not at its start."""
    task, local = TASKS["mlp"][0], LOCALS["clip"]
    asks = asks_of(*TASKS["mlp"], local, "none")
    whole = Samples.concatenate([numbers(3, 99), *(ask.data for ask in asks)])
    laid = [
        replace(ask, data=whole.subset(slice(3 + 12 * i, 15 + 12 * i)))  # type: ignore[arg-type]
        for i, ask in enumerate(asks)
    ]
    stacked, streams = Stacked(task), streams_of(asks)
    for one, other in zip(
        stacked.fit_all(asks, streams), stacked.fit_all(laid, streams), strict=True
    ):
        assert torch.equal(one.params.flat, other.params.flat)


def test_data_in_one_storage_but_not_in_rows_of_it():
    """Rows of 6 numbers that start at 0 and at 75: no row number of a common tensor says that."""
    task, local = TASKS["linear"][0], LOCALS["clip"]
    store = torch.randn(150, generator=torch.Generator().manual_seed(5))
    data = [
        Samples({"x": store[at : at + 72].view(12, 6), "y": store[at + 60 : at + 72]})
        for at in (0, 75)
    ]
    check(task, [Fit(task.init(), part, local) for part in data])


@pytest.mark.parametrize("name", ["mlp", "mlp64"])
def test_order_in_a_stack_does_not_matter(name):
    asks = asks_of(*TASKS[name], LOCALS["clip"], "all", clients=5)
    streams, stacked = streams_of(asks), Stacked(TASKS[name][0])
    forward = stacked.fit_all(asks, streams)
    backward = stacked.fit_all(asks[::-1], streams[::-1])[::-1]
    for one, other in zip(forward, backward, strict=True):
        assert torch.equal(one.params.flat, other.params.flat)


def test_smaller_stack_after_larger_one_starts_clean():
    task, make = TASKS["mlp"]
    stacked, asks = Stacked(task), asks_of(task, make, LOCALS["momentum"], "none", clients=6)
    streams = streams_of(asks)
    stacked.fit_all(asks, streams)
    again = stacked.fit_all(asks[:2], streams[:2])
    fresh = Stacked(task).fit_all(asks[:2], streams[:2])
    for one, other in zip(again, fresh, strict=True):
        assert torch.equal(one.params.flat, other.params.flat)


def test_one_client_that_diverges_leaves_the_others_alone():
    task, make = TASKS["mlp"]
    asks = asks_of(task, make, LOCALS["clip"], "none")
    bad = Samples({**asks[1].data.columns, "y": torch.full((12,), float("nan"))})
    ill = [asks[0], replace(asks[1], data=bad), *asks[2:]]
    stacked, streams = Stacked(task), streams_of(asks)
    for number, (one, other) in enumerate(
        zip(stacked.fit_all(ill, streams), stacked.fit_all(asks, streams), strict=True)
    ):
        assert torch.equal(one.params.flat, other.params.flat) == (number != 1)
        assert bool(one.params.flat.isfinite().all()) == (number != 1)


def test_bfloat16_is_near():
    """Two decimal digits of precision in the products, a rate of 0.05 and three steps."""
    task, make = TASKS["mlp"]
    asks = asks_of(task, make, LOCALS["clip"], "none")
    found = Stacked(task, precision="bf16").fit_all(asks, streams_of(asks))
    solver = Solver(task, "bf16")
    for ask, stream, one in zip(asks, streams_of(asks), found, strict=True):
        assert apart(one.params, solver.fit(ask, stream).params) < 0.02


def test_groups():
    """Sizes 12, 7, 12, 7, an optimiser's state, other settings, an anchor."""
    task = ToyTask(Linear(6))
    start, local = task.init(), LocalTraining(optimizer="sgd")
    many, few = numbers(12, 0), numbers(7, 1)
    ask = Fit(start, many, local)
    asks = [
        ask,
        Fit(start, few, local),
        replace(ask, data=numbers(12, 2)),
        Fit(start, few, local),
        replace(ask, optimiser=OptimizerState({}, 0)),
        replace(ask, local=LocalTraining(optimizer="sgd", lr=0.1)),
        replace(ask, anchor=(start, 0.1)),
        ask,
    ]
    assert groups_of(asks) == [[0, 2, 7], [1, 3], [4], [5], [6]]
    with pytest.raises(Unstackable, match="split them with groups_of"):
        Stacked(task).fit_all(asks[:2], streams_of(asks[:2]))


@pytest.mark.parametrize(
    ("network", "reason"),
    [(Odd(), "data-dependent control flow"), (Odd(Dropping), "random")],
)
def test_networks_that_cannot_be_stacked(network, reason):
    task = ToyTask(network)
    asks = asks_of(task, numbers, LOCALS["plain"], "none")
    with pytest.raises(Unstackable, match=f"{network.kind.__name__} cannot be stacked: .*{reason}"):
        Stacked(task).fit_all(asks, streams_of(asks))


def test_an_error_of_the_network_stays_what_it_is():
    """Seven inputs for a network of six."""
    task = ToyTask(Linear(5))
    asks = asks_of(task, numbers, LOCALS["plain"], "none")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Stacked(task).fit_all(asks, [RandomStream("a", i) for i in range(4)])
