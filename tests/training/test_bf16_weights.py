"""Steps with bfloat16 weights are float32 arithmetic on gradients that were rounded on their way.

bfloat16 holds 8 bits: a product is off by 2^-8 of it, so after a few steps at a rate of 0.05
parameters differ from float32's by less than 0.02 of the largest.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from tests.engine.learners import EXTRAS, LOCALS, TASKS, apart, asks_of, numbers, streams_of
from tests.stand_in_device import DEVICE, StandIn
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Model
from vergence.models.glc.attention import GLCBlock
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask
from vergence.training import bf16_weights
from vergence.training.bf16_weights import bf16_instructions, float32_parameters
from vergence.training.cuda_graphs import Graphed
from vergence.training.sequential import FlatNetwork, Solver
from vergence.training.stacked import Stacked

NEAR = 0.02


@dataclass(frozen=True)
class Attending(Model):
    """Six numbers as three tokens of two, through a GLC block or full attention."""

    glc: bool = True

    def build(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (3, 2)),
            nn.Linear(2, 8),
            GLCBlock(8, 2, glc=self.glc),
            nn.Flatten(),
            nn.Linear(24, 1),
        )


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


def test_a_step_is_the_one_by_hand():
    """Loss (w x + b - y)^2 / 2: every tensor that enters a product is rounded, and no sum is.

    What the step adds, -0.1 (gradient + 0.01 parameter), is off by the last bit of a gradient that
    was added up in another order before it was rounded: 2^-8 of it.
    """
    task, data = ToyTask(Linear(6)), numbers(8, 1)
    local = LocalTraining(
        optimizer="sgd", batch=8, lr=0.1, momentum=0.9, weight_decay=0.01, clip=0.0
    )
    start = task.init()
    found = Solver(task, "half").fit(Fit(start, data, local), RandomStream("hand")).params
    x, y = rounded(data.columns["x"]), data.columns["y"].double()
    w, b = rounded(start["weight"][0]), rounded(start["bias"])
    error = rounded((rounded(x @ w + b) - y) / 8)
    for name, gradient in {"weight": rounded(error @ x), "bias": rounded(error.sum())}.items():
        moved = -0.1 * (gradient + 0.01 * start[name].double())
        step = found[name].double() - start[name].double()
        assert torch.allclose(step.flatten(), moved.flatten(), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("make", [Solver, Stacked, Graphed])
def test_steps_too_small_for_the_weights_add_up(make):
    """Each moves by a thousandth of what bfloat16 can tell: all 60 of them, by as much as in
    float32. Without float32 parameters nothing would move."""
    task = ToyTask(Linear(6))
    start = task.init()
    start = start.like(torch.ones_like(start.flat))
    local = LocalTraining(
        optimizer="sgd", batch=12, steps=60, lr=1e-6, momentum=0.0, weight_decay=0.0, clip=0.0
    )
    ask = Fit(start, numbers(12, 0), local)
    found = {
        precision: make(task, precision=precision).fit_all([ask], [RandomStream("small")])[0]
        if make is not Solver
        else Solver(task, precision).fit(ask, RandomStream("small"))
        for precision in ("fp32", "half")
    }
    moved = {name: one.params.flat - start.flat for name, one in found.items()}
    assert float(moved["fp32"].abs().max()) < 2**-9
    assert float((moved["half"] - moved["fp32"]).abs().max()) < 0.05 * float(
        moved["fp32"].abs().max()
    )


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_solvers_are_near_float32(name, extra, device):
    task, local = TASKS[name][0], LOCALS["clip"]
    asks = asks_of(*TASKS[name], local, extra, clients=3)
    exactly, half = Solver(task), Solver(task, "half")
    expected = [exactly.fit(ask, s) for ask, s in zip(asks, streams_of(asks), strict=True)]
    ways = {
        "sequential": [half.fit(a, s) for a, s in zip(asks, streams_of(asks), strict=True)],
        "stacked": Stacked(task, device, "half").fit_all(asks, streams_of(asks)),
        "graphed": Graphed(task, device, "half", streams=2).fit_all(asks, streams_of(asks)),
    }
    for found in ways.values():
        for ask, one, other in zip(asks, found, expected, strict=True):
            assert 0 < apart(one.params, other.params) < NEAR
            assert one.params.flat.dtype == torch.float32
            if ask.trainable is not None:
                frozen = ~ask.trainable.bits
                assert torch.equal(one.params.flat[frozen], ask.params.flat[frozen])


@pytest.mark.parametrize("local", ["adam", "adamw", "momentum"])
def test_optimisers_keep_float32_buffers(local):
    """Adam's root of a small square makes much of little: a step may differ by its whole size."""
    task = TASKS["mlp"][0]
    asks = asks_of(*TASKS["mlp"], LOCALS[local], "none", clients=1)
    solver = Solver(task, "half")
    found = solver.fit(asks[0], RandomStream("o")).params
    assert apart(found, Solver(task).fit(asks[0], RandomStream("o")).params) < 0.1
    assert {flat.dtype for flat, _ in solver.slots.values()} == {torch.float32}


@pytest.mark.parametrize("glc", [True, False])
@pytest.mark.parametrize("make", [Stacked, Graphed])
def test_attention_and_norms(make, glc):
    """Norms read float32 parameters, everything else bfloat16 ones."""
    task = ToyTask(Attending(glc))
    asks = asks_of(task, numbers, LOCALS["momentum"], "none", clients=2)
    half = Solver(task, "half")
    assert half.half is not None
    kept = float32_parameters(half.half.module)
    assert kept == {f"2.norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias")}
    for name, parameter in half.half.module.named_parameters():
        assert parameter.dtype == (torch.float32 if name in kept else torch.bfloat16)
    together = make(task, precision="half").fit_all(asks, streams_of(asks))
    for ask, stream, one in zip(asks, streams_of(asks), together, strict=True):
        exactly = Solver(task).fit(ask, stream).params
        assert 0 < apart(one.params, exactly) < NEAR
        assert 0 < apart(half.fit(ask, stream).params, exactly) < NEAR


@dataclass(frozen=True)
class Filming(Model):
    """A video of two frames through a convolution whose bfloat16 gradient torch gets wrong."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Conv3d(16, 4, 3, padding=1), nn.Flatten(), nn.Linear(1152, 1))


def test_convolutions_over_time_are_bfloat16_where_their_kernels_are_right():
    with StandIn():
        here, there = (FlatNetwork(ToyTask(Filming()), "bf16", d) for d in ("cpu", DEVICE))
    assert ["forward" in vars(network.module[0]) for network in (here, there)] == [True, False]


@pytest.mark.parametrize("precision", ["bf16", "half"])
@pytest.mark.parametrize("make", [Stacked, Graphed])
def test_convolutions_over_time_are_float32(make, precision):
    task, local = ToyTask(Filming()), LocalTraining(optimizer="sgd", batch=4, lr=1e-3, clip=0.0)
    asks = []
    for client in range(2):
        draws = torch.Generator().manual_seed(client)
        x = torch.randn(8, 16, 2, 12, 12, generator=draws)
        asks.append(Fit(task.init(), Samples({"x": x, "y": x.mean((1, 2, 3, 4))}), local))
    together = make(task, precision=precision).fit_all(asks, streams_of(asks))
    for ask, stream, one in zip(asks, streams_of(asks), together, strict=True):
        exactly = Solver(task).fit(ask, stream).params
        assert 0 < apart(one.params, exactly) < NEAR
        assert 0 < apart(Solver(task, precision).fit(ask, stream).params, exactly) < NEAR


def test_a_fit_leaves_nothing_for_the_next():
    task, local = TASKS["mlp"][0], LOCALS["momentum"]
    first, second = asks_of(*TASKS["mlp"], local, "none", clients=2)
    used = Solver(task, "half")
    used.fit(first, RandomStream("a"))
    fresh = Solver(task, "half").fit(second, RandomStream("b")).params
    assert torch.equal(used.fit(second, RandomStream("b")).params.flat, fresh.flat)


def test_what_is_measured_is_measured_in_float32():
    task = TASKS["lenet"][0]
    (ask,) = asks_of(*TASKS["lenet"], LOCALS["clip"], "none", clients=1)
    half, exactly = Solver(task, "half"), Solver(task)
    trained = half.fit(ask, RandomStream("m")).params
    for want in ("outputs", "features", "loss", "score"):
        one, other = (getattr(solver, want)(trained, ask.data) for solver in (half, exactly))
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other)), want
    one, other = (solver.gradient(trained, ask.data) for solver in (half, exactly))
    assert torch.equal(one.flat, other.flat)


class Own:
    """An objective that a method brings: the task's loss and a pull to zero."""

    def loss(self, task, module, batch, draw):
        own = sum(p.square().sum() for p in module.parameters())
        return task.loss(task.forward(module, batch), batch) + 0.1 * own


def test_another_objective_is_minimised_in_float32():
    task = TASKS["mlp"][0]
    (ask,) = asks_of(*TASKS["mlp"], LOCALS["clip"], "none", clients=1)
    ask = replace(ask, objective=Own())  # type: ignore[arg-type]
    one, other = (Solver(task, p).fit(ask, RandomStream("o")) for p in ("half", "fp32"))
    assert torch.equal(one.params.flat, other.params.flat)


@pytest.mark.parametrize(
    ("there", "name"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "avx512_bf16"),
        ({"avx512_bf16": True, "amx_bf16": True}, "amx_bf16"),
        ({"avx512_bf16": False}, ""),
        ({}, ""),
    ],
)
def test_instructions_of_a_processor(there, name, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: there)
    assert bf16_instructions(torch.device("cpu")) == name


@pytest.mark.parametrize("known", [True, False])
def test_instructions_of_a_gpu(known, monkeypatch):
    """One that computes bfloat16 by float32 counts as without."""
    monkeypatch.setattr(
        bf16_weights.torch.cuda,
        "is_bf16_supported",
        lambda including_emulation: known or including_emulation,
    )
    assert bool(bf16_instructions(torch.device("cuda"))) == known
