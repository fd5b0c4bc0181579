"""Mixture attention: a block by its equations, ranks of the maps, frames in any order."""

import math

import pytest
import torch
from torch import nn

from vergence.models.mixture_transformer import MixtureTransformer

FRAMES, WIDTH = 12, 3


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def block(mixture):
    torch.manual_seed(1)
    return MixtureTransformer(5, WIDTH, 1, mixture).build().double().blocks[0]


def maps(layer, h):
    """Return P(Q) and P(Q^) of one clip, as Equations 4.3 and the text around 4.5 say."""
    q, k = h @ layer.query.weight.T, h @ layer.key.weight.T
    found = []
    for query in (q, torch.tanh(q @ layer.associated.weight.T)):
        weights = torch.tensor([[math.exp(float(a @ b) / WIDTH**0.5) for b in k] for a in query])
        found.append(weights.double() / weights.sum(1, keepdim=True))
    return found


@pytest.mark.parametrize("mixture", ["maps", "values"])
def test_a_block_by_its_equations(mixture):
    layer = block(mixture)
    h, before = torch.randn(2, FRAMES, WIDTH).double()
    there = torch.ones(1, FRAMES, dtype=torch.bool)
    after, attended = layer(h[None], before[None], there)
    first, second = maps(layer, h)
    v = h @ layer.value.weight.T
    if mixture == "maps":
        mixed = first @ second.T
        mixed = mixed / mixed.sum(1, keepdim=True)
    else:
        mixed = (first @ v) @ (second @ v).T / FRAMES
    a = mixed @ v
    torch.testing.assert_close(attended[0], a, rtol=1e-5, atol=1e-6)
    normed = nn.functional.layer_norm(a, (WIDTH,), layer.norm.weight, layer.norm.bias)
    torch.testing.assert_close(after[0], layer.mlp(normed + before) + h, rtol=1e-5, atol=1e-6)


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-9))


def test_what_bounds_the_rank():
    """The log of one softmax map has rank d + 1 at most, that of a product of two any.

    Equation 4.5 as printed, (P V) (P^ V)^T, has rank d.
    """
    h = 2 * torch.randn(1, FRAMES, WIDTH).double()
    there = torch.ones(1, FRAMES, dtype=torch.bool)

    def attention(mixture):
        layer = block(mixture)
        return layer.attention(h, layer.value(h), there)[0]

    assert rank(attention("none").log()) <= WIDTH + 1
    assert rank(attention("maps").log()) > WIDTH + 1
    assert rank(attention("values")) <= WIDTH
    sums = attention("maps").sum(1)
    torch.testing.assert_close(sums, torch.ones(FRAMES).double())


def test_frames_have_no_order():
    net = MixtureTransformer(5, WIDTH).build()
    x, steps = torch.randn(1, FRAMES, 5), torch.tensor([FRAMES])
    order = torch.randperm(FRAMES)
    torch.testing.assert_close(net(x[:, order], steps), net(x, steps)[:, order])
