"""FedRidge beside ridge regression on the pooled samples, and leave-one-out beside leaving out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vergence as vg
from tests.scripts import summed, taught
from vergence.core.client import ClientContext
from vergence.core.data import Samples
from vergence.core.layers.kernel_head import KernelHead, gaussian
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.core.task import Model
from vergence.methods.fedridge import FedRidge, RidgeModel
from vergence.tasks.toy import ToyTask
from vergence.training.ridge import PENALTIES, alone, kernel_ridge, solve_products

SIZES = (3, 9, 20)
INPUTS = 5


@dataclass(frozen=True)
class Kernel(Model):
    """A kernel head on x, with room for ten own samples."""

    own_centres: int = 10

    def build(self) -> nn.Module:
        return KernelHead(INPUTS, 1, features=8, own_centres=self.own_centres)


@dataclass(frozen=True)
class Body(Model):
    """A hidden layer that stays as it starts, and a linear head."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 7), nn.Tanh(), nn.Linear(7, 1))


TASKS = {"kernel head": ToyTask(Kernel()), "linear head": ToyTask(Body(), seed=3)}


def person(n: int, seed: int) -> Samples:
    """Return n samples of a person whose y is a bent function of x, with an offset of their own."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, INPUTS, generator=draw)
    return Samples({"x": x, "y": x[:, 0].sin() + x[:, 1] * x[:, 2] + 5.0 * seed})


PEOPLE = tuple(person(n, k) for k, n in enumerate(SIZES))


@torch.no_grad()
def features_of(task: ToyTask, x: Tensor) -> Tensor:
    """Return the factors of the head's weight, float64."""
    module = task.module()
    if isinstance(module, KernelHead):
        return module.features(x).double()
    assert isinstance(module, nn.Sequential)
    return module[:2](x).double()


def one_round(method: FedRidge, task: ToyTask) -> RidgeModel:
    """Return the server's state after a round of the three people."""
    server = method.server(task)
    offered = method.offer(server, "a")
    state = method.client(task)
    sealed = [taught(method, task, state, offered, samples)[1] for samples in PEOPLE]
    return summed(method, server, sealed, {"products": sealed[0].trees["products"].total})


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_sum_gives_the_pooled_solution(
    task: ToyTask, weights: Literal["samples", "equal"]
) -> None:
    """Augmented least squares on all 32 samples, rows weighted; the intercept is not penalised."""
    server = one_round(FedRidge(ridge=2.0, weights=weights), task)
    z = torch.cat([features_of(task, s.columns["x"]) for s in PEOPLE]).numpy()
    y = torch.cat([s.columns["y"] for s in PEOPLE]).double().numpy()
    counts = np.repeat([1.0 if weights == "samples" else 1 / n for n in SIZES], SIZES)
    mean_square = np.average((z**2).sum(1), weights=counts)
    rows = np.sqrt(counts)[:, None] * np.hstack([z, np.ones((len(z), 1))])
    penalty = np.sqrt(2.0 * mean_square) * np.eye(z.shape[1], z.shape[1] + 1)
    solution = np.linalg.lstsq(
        np.vstack([rows, penalty]), np.hstack([np.sqrt(counts) * y, np.zeros(z.shape[1])])
    )[0]
    name = f"{server.head}." if server.head else ""
    computed = torch.cat([server.model[f"{name}weight"][0], server.model[f"{name}bias"]])
    assert np.allclose(computed.numpy(), solution, atol=2e-4)
    # The body is the one that everybody started from.
    rest = [n for n in server.model if n not in (f"{name}weight", f"{name}bias")]
    assert all(torch.equal(server.model[n], task.init()[n]) for n in rest)


def test_leave_one_out_is_what_leaving_out_gives() -> None:
    x = person(12, 5).columns["x"].double()
    targets = torch.randn(12, 2, generator=torch.Generator().manual_seed(1)).double() + x[:, :2]
    kernel = gaussian(x, x, 0.3) + 1
    errors = {}
    for penalty in PENALTIES.tolist():
        left_out = []
        for i in range(12):
            rest = [j for j in range(12) if j != i]
            inner = kernel[rest][:, rest] + penalty * torch.eye(11)
            left_out.append(targets[i] - kernel[i, rest] @ torch.linalg.solve(inner, targets[rest]))
        errors[penalty] = float(torch.stack(left_out).square().mean())
    best = min(errors, key=errors.__getitem__)
    coefficients, error = kernel_ridge(kernel, targets)
    assert error == pytest.approx(errors[best], rel=1e-9)
    expected = torch.linalg.solve(kernel + best * torch.eye(12), targets)
    assert torch.allclose(coefficients, expected, rtol=1e-8)


def test_no_own_part_where_leave_one_out_finds_no_gain() -> None:
    """Signs that alternate along a line: neither their mean nor a neighbour's sign helps."""
    x = torch.arange(8.0).double()[:, None]
    signs = torch.tensor([1.0, -1.0] * 4).double()[:, None]
    coefficients, error = kernel_ridge(gaussian(x, x, 0.1) + 1, signs)
    assert torch.equal(coefficients, torch.zeros(8, 1).double())
    assert error == 1.0


@pytest.mark.parametrize("count", [1, 6])
def test_no_own_part_where_leaving_a_sample_out_leaves_nothing_of_it(count: int) -> None:
    """Without a kernel between samples, leave-one-out errors are the targets, up to rounding."""
    draw = torch.Generator().manual_seed(2)
    for _ in range(50):
        targets = torch.randn(count, 2, generator=draw, dtype=torch.float64)
        coefficients, error = kernel_ridge(2 * torch.eye(count).double(), targets)
        assert not coefficients.any()
        assert error == float(targets.square().mean())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_one_sample_gives_no_own_part(task: ToyTask) -> None:
    method = FedRidge()
    offered = method.offer(one_round(method, task), "a")
    for seed in range(20):
        state, _ = taught(method, task, method.client(task), offered, person(1, seed), verb="tune")
        common = method.client(task).params.put(offered["model"])
        parts = ("own_weight", "own_bias") if task is TASKS["kernel head"] else ("2.weight",)
        assert all(torch.equal(state.params[name], common[name]) for name in parts)


@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_own_part_is_added_to_the_common_one(task: ToyTask, common: bool) -> None:
    """Predictions of the person's network, against the formula on the person's residuals."""
    method = FedRidge(ridge=2.0, common=common)
    server = one_round(method, task) if common else method.server(task)
    offered = method.offer(server, "a")
    own, new = PEOPLE[1], person(6, 9)
    state, sealed = taught(method, task, method.client(task), offered, own, verb="tune")
    assert not sealed.trees
    assert not sealed.metrics
    name = f"{server.head}." if server.head else ""
    weight, bias = (server.model[f"{name}{part}"].double() for part in ("weight", "bias"))
    x, fresh = own.columns["x"], new.columns["x"]
    residuals = own.columns["y"].double()[:, None] - features_of(task, x) @ weight.T - bias
    if task is TASKS["kernel head"]:
        inner, across = (gaussian(a.double(), x.double(), 2.0) for a in (x, fresh))
    else:
        z, scale = features_of(task, x), features_of(task, x).square().sum(1).mean()
        inner, across = (features_of(task, a) @ z.T / scale for a in (x, fresh))
    # A Gaussian kernel beside a common part has no bias: the common part has one.
    constant = int(not (common and task is TASKS["kernel head"]))
    coefficients, _ = kernel_ridge(inner + constant, residuals)
    assert bool(coefficients.any())
    expected = features_of(task, fresh) @ weight.T + bias + (across + constant) @ coefficients
    site = ClientContext("a", own, own, task, 1, RandomStream("test"))
    module = task.module()
    params = method.model_on(state, Message("predict", offered), site)
    with torch.no_grad():
        for entry, parameter in module.named_parameters():
            parameter.copy_(params[entry])
        computed = module(fresh).double()
    assert torch.allclose(computed, expected, atol=1e-4)


def test_of_more_samples_than_centres_some_are_used() -> None:
    task = replace(TASKS["kernel head"], network=Kernel(own_centres=4))
    method = FedRidge()
    offered = method.offer(one_round(method, task), "a")
    state, _ = taught(method, task, method.client(task), offered, PEOPLE[2], verb="tune")
    centres = state.params["centres"]
    rows = {tuple(row) for row in PEOPLE[2].columns["x"].tolist()}
    assert {tuple(row) for row in centres.tolist()} <= rows
    assert len({tuple(row) for row in centres.tolist()}) == 4


def test_a_matrix_with_noise_still_has_a_solution() -> None:
    """Noise as large as the matrix: the penalty alone bounds the solution."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(9, 9, generator=draw, dtype=torch.float64)
    among = torch.eye(9).double() + noise + noise.T
    assert float(torch.linalg.eigvalsh(among)[0]) < 0
    solution = solve_products(among, torch.ones(9, 1).double(), 0.1)
    assert bool(solution.isfinite().all())


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999, 1.0, 1.5])
def test_negative_eigenvalues_count_as_zero_however_near_minus_the_penalty(share: float) -> None:
    """Of a diagonal matrix: the entry is - share * penalty, and its coefficient 1 / penalty."""
    diagonal = torch.tensor([3.0, 2.0, 0.0, 1.0]).double()
    # The penalty, in units of the sum of the other entries without the last.
    penalty = 0.1 * 5
    diagonal[2] = -share * penalty
    solution = solve_products(diagonal.diag(), torch.ones(4, 1).double(), 0.1).flatten()
    expected = [1 / 3.5, 1 / 2.5, 1 / penalty, 1.0]
    assert solution.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_products_that_are_no_numbers_give_a_head_that_shows_it(number: float) -> None:
    """The server goes on, and the run says that its model diverged."""
    among, ones = torch.eye(4).double(), torch.ones(4, 1).double()
    among[0, 0] = number
    assert solve_products(among, ones, 0.1).isnan().all()
    assert solve_products(torch.eye(4).double(), ones * number, 0.1).isnan().all()


def test_two_liars_whose_sum_is_infinite_do_not_stop_the_server() -> None:
    """Each reply is finite, as the server checks, and their sum in float32 is not."""
    task, method = TASKS["kernel head"], FedRidge()
    server = method.server(task)
    honest = taught(method, task, method.client(task), method.offer(server, "a"), PEOPLE[0])[1]
    products = honest.trees["products"]
    huge = products.total.like(torch.full_like(products.total.flat, 3e38))
    lie = replace(honest, trees={"products": replace(products, total=huge)})
    after = summed(method, server, [lie, lie, honest], {"products": huge})
    assert after.model["weight"].isnan().all()


@pytest.mark.parametrize("factor", [-1e6, 1e6])
def test_a_liar_s_products_give_a_finite_head(factor: float) -> None:
    """Whoever lies can spoil the common part, as in every plain sum, but not the run."""
    task, method = TASKS["kernel head"], FedRidge()
    server = method.server(task)
    offered, state = method.offer(server, "a"), method.client(task)
    honest = [taught(method, task, state, offered, samples)[1] for samples in PEOPLE]
    liar = honest[0].trees["products"]
    lie = replace(honest[0], trees={"products": replace(liar, total=liar.total * factor)})
    after = summed(method, server, [lie, *honest], {"products": liar.total})
    assert bool(after.model.flat.isfinite().all())
    assert not torch.equal(after.model.flat, one_round(method, task).model.flat)


@dataclass(frozen=True)
class NoBias(Model):
    """A head that the closed form has no intercept for."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 3), nn.Linear(3, 1, bias=False))


@dataclass(frozen=True)
class TwoOutputs(Model):
    """A head with two outputs for a task with one target."""

    def build(self) -> nn.Module:
        return KernelHead(INPUTS, 2, features=4)


def test_what_has_no_closed_form_is_refused() -> None:
    with pytest.raises(vg.ConfigError, match=r"the head 1 has no bias; use nn\.Linear"):
        FedRidge().check(ToyTask(NoBias()))
    with pytest.raises(vg.ConfigError, match="even number of features"):
        KernelHead(3, 1, features=7)
    task = ToyTask(TwoOutputs())
    offered = FedRidge().offer(FedRidge().server(task), "a")
    with pytest.raises(vg.ConfigError, match=r"targets of a are \[3, 1\], and the head returns"):
        taught(FedRidge(), task, FedRidge().client(task), offered, PEOPLE[0])


def test_the_baseline_alone_is_kernel_ridge_on_the_centred_targets() -> None:
    """Against the dual formula, sample by sample; far from all samples it gives their mean."""
    own, new = person(9, 1), person(4, 2)
    x, y, fresh = own.columns["x"].double(), own.columns["y"].double()[:, None], new.columns["x"]
    kernel = torch.exp(-2.0 * torch.cdist(x, x) ** 2) + 0.1 * torch.eye(9)
    across = torch.exp(-2.0 * torch.cdist(fresh.double(), x) ** 2)
    expected = y.mean() + across @ torch.linalg.inv(kernel) @ (y - y.mean())
    assert torch.allclose(alone(x, y, fresh), expected, atol=1e-8)
    assert alone(x, y, fresh + 100).flatten().tolist() == pytest.approx([float(y.mean())] * 4)


def test_of_many_samples_the_baseline_takes_evenly_spaced_ones(monkeypatch) -> None:
    monkeypatch.setattr("vergence.training.ridge.MOST", 5)
    x, y = torch.arange(9.0)[:, None], torch.zeros(9, 1)
    y[1] = 9.0
    # The second sample is left out of the kernel, and is in the mean.
    assert float(alone(x, y, x[1:2])) < 1.0
    assert float(alone(x * 10, y, torch.tensor([[1e3]]))) == pytest.approx(1.0)
