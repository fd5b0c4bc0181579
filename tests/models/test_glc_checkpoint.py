"""What of a checkpoint of GLC's authors would fit into `glc_vit`: why no such start is offered.

The checkpoint is made up; its names and shapes are those of BolinLai/GLC, `GLC_Gaze` with the
configuration of EGTEA (MViT-B, 16 blocks, 8 frames of 256 x 256).
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from vergence.models.glc.attention import GLCBlock
from vergence.models.glc.glc_vit import GlcVit

PAGE = Path(__file__).parents[2] / "docs/explanation/decisions/no-start-from-glc.md"
WIDTHS = [96, 192, 192, *[384] * 11, 768, 768, 768]
"""Of blocks 0 to 15, and of what the last one gives."""
DECODER = [(1536, 768, 8), (768, 384, 4), (384, 192, 4), (192, 96, 2)]
SHRUNK = {1, 3, 14}
"""Blocks whose queries are pooled, too."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def both(name, out, *rest):
    """A layer's weight and bias."""
    return {f"{name}.weight": (out, *rest), f"{name}.bias": (out,)}


def attention(name, dim, heads, pools):
    """Queries, keys and values of all heads, and the convolutions and norms that pool them."""
    each = dim // heads
    found = both(f"{name}.qkv", 3 * dim, dim) | both(f"{name}.proj", dim, dim)
    for pool in pools:
        found[f"{name}.{pool}.weight"] = (each, 1, 3, 3, 3)
        found |= both(f"{name}.norm_{pool[-1]}", each)
    return found


def block(name, dim, out, hidden, heads, pools):
    """A transformer block."""
    found = both(f"{name}.norm1", dim) | attention(f"{name}.attn", dim, heads, pools)
    found |= both(f"{name}.norm2", dim) | both(f"{name}.mlp.fc1", hidden, dim)
    found |= both(f"{name}.mlp.fc2", out, hidden)
    return found | (both(f"{name}.proj", out, dim) if out != dim else {})


def glc_shapes():
    """Name -> shape of all that GLC's `model_state` holds."""
    found: dict[str, tuple[int, ...]] = {"pos_embed_spatial": (1, 4096, 96)}
    found["pos_embed_temporal"] = (1, 4, 96)
    found |= both("patch_embed.proj", 96, 3, 3, 7, 7)
    for i in range(3):
        found |= both(f"global_embed.bn_{i}", 96) | both(
            f"global_embed.proj_{i + 1}", 96, 96, 3, 3, 3
        )
        found |= {f"global_embed.bn_{i}.{what}": (96,) for what in STATISTICS[:2]}
        found[f"global_embed.bn_{i}.{STATISTICS[2]}"] = ()
    found |= both("global_embed.linear", 96, 96 * 4 * 8 * 8)
    for i, (dim, out) in enumerate(pairwise(WIDTHS)):
        pools = ["pool_k", "pool_v", *(["pool_q"] if i in SHRUNK else [])]
        found |= block(f"blocks.{i}", dim, out, 4 * dim, dim // 96, pools)
    found |= block("global_fuse", 768, 768, 3072, 8, ["pool_q", "pool_k", "pool_v"])
    found |= both("norm", 1536)
    for i, (dim, out, heads) in enumerate(DECODER, 1):
        pools = ["upsample_q", "pool_k", "pool_v"]
        found |= block(f"decode_block{i}", dim, out, 4 * out, heads, pools)
    return found | both("classifier", 1, 96, 1, 1, 1)


@pytest.fixture
def checkpoint(tmp_path):
    """A file as GLC's code saves it, read as data: every tensor is one zero, repeated."""
    zero = torch.zeros(1)
    state = {
        name: torch.tensor(0) if shape == () else zero.expand(shape)
        for name, shape in glc_shapes().items()
    }
    path = tmp_path / "checkpoint_epoch_00025.pyth"
    torch.save({"epoch": 24, "model_state": state, "optimizer_state": {}, "cfg": "TRAIN: {}"}, path)
    return torch.load(path, weights_only=True)["model_state"]


def entries(tensors):
    return sum(tensor.numel() for tensor in tensors)


ROLES = {
    "embed": "patch_embed.proj",
    "spatial": "pos_embed_spatial",
    "temporal": "pos_embed_temporal",
    "glance.reduce": "",
    **{f"glance.shrink.{i}": f"global_embed.proj_{i + 1}" for i in range(3)},
    "glance.proj": "global_embed.linear",
    **{f"blocks.{i}": f"blocks.{8 + i}" for i in range(8)},
    "last": "global_fuse",
    "norm": "norm",
    "decoder": "decode_block",
}
"""Parts of `glc_vit` -> parts with the same place in GLC: its last eight blocks, of sixteen."""
INSIDE = {"attention.": "attn.", "mlp.0": "mlp.fc1", "mlp.2": "mlp.fc2"}


@pytest.fixture(scope="module")
def base():
    """Name -> tensor of `glc_vit` at its largest, without memory."""
    with torch.device("meta"):
        return dict(GlcVit(preset="base").build().named_parameters())


def twin(name):
    """The name in GLC of what has the place of a tensor of `glc_vit`; it may be no tensor's."""
    part = max((p for p in ROLES if f"{name}.".startswith(f"{p}.")), key=len)
    rest = name.removeprefix(part)
    for ours, theirs in INSIDE.items():
        rest = rest.replace(ours, theirs)
    return ROLES[part] + rest


def test_the_made_up_checkpoint_has_the_published_size(checkpoint):
    """70,181,857 parameters (egovideo note, section 1.2)."""
    counted = [t for name, t in checkpoint.items() if not name.endswith(STATISTICS)]
    assert entries(counted) == 70_181_857


def test_what_has_its_place_and_shape(base, checkpoint):
    """Three convolutions of the global token, two blocks of eight, the GLC block, the last norm."""
    alike = {
        name
        for name, tensor in base.items()
        if (other := checkpoint.get(twin(name))) is not None and other.shape == tensor.shape
    }
    whole = {part for part in ROLES if (own := named(base, part)) and own <= alike}
    assert whole == {
        *(f"glance.shrink.{i}" for i in range(3)),
        "blocks.6",
        "blocks.7",
        "last",
        "norm",
    }
    assert alike - set().union(*(named(base, part) for part in whole)) == {"blocks.5.mlp.2.bias"}
    assert round(entries(base[name] for name in alike) / 1e6) == 22


def named(base, part):
    """Names of the tensors of a part."""
    return {name for name in base if f"{name}.".startswith(f"{part}.")}


def test_the_table_of_the_decision_is_that_of_the_networks(base, checkpoint):
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [
        line.split("|")[1:-1] for line in lines if line.startswith("| `") and "preset" not in line
    ]
    told = [[re.findall(r"`([^`]+)`", cell) for cell in row[:2]] for row in rows]
    assert len(told) == 9
    for ours, theirs in told:
        for (name, *shape), tensors in ((ours, base), (theirs, checkpoint)):
            (said,) = shape
            assert [int(n) for n in said.split(" x ")] == list(tensors[name].shape), name


def glc_attention(x, weights, heads, pooled):
    """GLC's block of attention, dense; `pooled`: convolution and norm of queries, keys, values."""
    tokens, dim = x.shape[1:]
    qkv = functional.linear(x, *weights).view(len(x), tokens, 3, heads, dim // heads)
    q, k, v = (pooled(part).transpose(1, 2) for part in qkv.unbind(2))
    score = q @ k.transpose(-2, -1) / (dim // heads) ** 0.5
    seen = torch.eye(tokens, dtype=torch.bool)
    seen[:, 0] = True
    mixed = score.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(x.shape)


def test_the_same_numbers_in_the_glc_block_compute_something_else():
    """Equal with 12 heads and nothing between: with GLC's eight heads, or its norms, it is not."""
    generator = torch.Generator().manual_seed(0)
    made = GLCBlock(768, 12, glc=True)
    made.attention.qkv.weight.data.normal_(0, 0.1, generator=generator)
    weights = made.attention.qkv.weight, made.attention.qkv.bias
    x = torch.randn(1, 9, 768, generator=generator)
    torch.nn.init.eye_(made.attention.proj.weight)
    torch.nn.init.zeros_(made.attention.proj.bias)
    with torch.no_grad():
        ours = made.attention(x)

        def off(heads, pooled):
            return float((glc_attention(x, weights, heads, pooled) - ours).norm() / ours.norm())

        assert off(12, lambda part: part) < 1e-5
        assert off(8, lambda part: part) > 0.1
        assert off(12, lambda part: functional.layer_norm(part, part.shape[-1:])) > 0.1
