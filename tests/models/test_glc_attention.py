"""The closed-form GLC attention against the dense matrix it stands for."""

import pytest
import torch
from torch import Tensor

from vergence.models.glc.attention import GLCBlock, SelfAttention, glc_mix

LAMBDA = 1e8


def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FedCPF's form: softmax(Q K^T / sqrt(d) - S) V, S = 0 on the diagonal and column 0."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    tokens, dim = query.shape[-2:]
    suppress = torch.full((tokens, tokens), LAMBDA, dtype=query.dtype)
    suppress[:, 0] = 0
    suppress.fill_diagonal_(0)
    scores = query @ key.transpose(-1, -2) * dim**-0.5 - suppress
    return (torch.softmax(scores, -1) @ value).transpose(1, 2)


def qkv(seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(3, 2, 129, 4, 12, generator=generator, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "scale", "bound"),
    [(torch.float32, 0.1, 1e-6), (torch.float32, 1.0, 1e-6), (torch.float64, 10.0, 1e-11)],
)
def test_closed_form_equals_the_dense_form(dtype: torch.dtype, scale: float, bound: float) -> None:
    """Largest difference; egovideo design note, 0.2 measured 1.2e-7 in float32 at scale 1."""
    parts = qkv(scale=scale, dtype=dtype)
    assert (glc_mix(*parts) - dense(*parts)).abs().max() <= bound


def test_gradients_equal_those_of_the_dense_form() -> None:
    parts = qkv(dtype=torch.float64)
    weights = torch.randn(2, 129, 4, 12, generator=torch.Generator().manual_seed(1)).double()
    gradients = []
    for form in (glc_mix, dense):
        leaf = parts.clone().requires_grad_()
        (form(*leaf) * weights).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


def test_a_token_sees_itself_and_the_global_token_only() -> None:
    """Rows of the Jacobian: token 5 depends on {0, 5}, token 0 on {0}; exactly zero elsewhere."""
    torch.manual_seed(0)
    attention = SelfAttention(8, 2, glc=True)
    for token, expected in ((5, [0, 5]), (0, [0])):
        x = torch.randn(1, 9, 8, requires_grad=True)
        attention(x)[0, token].sum().backward()
        assert x.grad is not None
        assert x.grad[0].abs().sum(-1).nonzero().flatten().tolist() == expected


def test_full_attention_sees_every_token() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 9, 8, requires_grad=True)
    SelfAttention(8, 2, glc=False)(x)[0, 5].sum().backward()
    assert x.grad is not None
    assert bool((x.grad[0].abs().sum(-1) > 0).all())


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e4), (torch.float16, 30.0)])
def test_extreme_scores_stay_finite(dtype: torch.dtype, scale: float) -> None:
    """Scores of 1e8 (float32) and thousands (float16), where lambda = 1e8 itself would be inf."""
    leaf = qkv(scale=scale).to(dtype).requires_grad_()
    out = glc_mix(*leaf)
    out.float().sum().backward()
    assert leaf.grad is not None
    assert bool(out.isfinite().all())
    assert bool(leaf.grad.isfinite().all())


def test_a_silent_block_is_the_identity_and_still_learns() -> None:
    torch.manual_seed(0)
    block, x = GLCBlock(8, 2, glc=True, silent=True), torch.randn(2, 5, 8)
    out = block(x)
    assert torch.equal(out, x)
    out.square().sum().backward()
    gradient = block.attention.proj.weight.grad
    assert gradient is not None
    assert gradient.abs().max() > 0
