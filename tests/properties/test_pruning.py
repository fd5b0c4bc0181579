"""Pruning: which weights go, what is left when filters are taken out, and what storing takes."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.errors import ConfigError, DataError
from vergence.models.glc.glc_vit import GlcVit
from vergence.models.lenet import LeNet
from vergence.models.resnet_preact import ResNetPreact
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.pruning import (
    Pruning,
    bind_parameters,
    pack_pruned,
    prunable_weights,
    prune_request,
    removable_layers,
    remove_pruned_units,
    sparse_form,
    stored_arrays,
    stored_bytes,
    unpack_pruned,
    with_sparse_layers,
)
from vergence.training.sequential import Solver

CLIENT = {"conv1.weight", "conv1.bias"}
MIB = 2**20


def eyes(n=6, height=9, width=15, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return Samples(
        {
            "image": torch.randint(256, (n, 1, height, width), dtype=torch.uint8, generator=drawn),
            "pose": torch.randn(n, 2, generator=drawn) / 10,
            "gaze": torch.randn(n, 2, generator=drawn) / 10,
        }
    )


def noisy(task, seed=1):
    """Initial parameters with no zero among them, as training leaves them."""
    start = task.init()
    return start + start.like(
        torch.randn(start.layout.n, generator=torch.Generator().manual_seed(seed)) / 100
    )


@pytest.fixture(scope="module")
def model_2():
    task = GazeAngle(LeNet((20, 80)))
    return task.module(), noisy(task)


def pruned(model, pruning):
    return pruning.mask_of_remaining(*model).keep(model[1])


def contiguous(network):
    """torch.nn.utils.prune cannot take weights stored channels-last."""
    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()
    return network


def zeros(params):
    return int((params.flat == 0).sum())


def parts(params):
    client = params.only(CLIENT)
    return client, params.only(set(params) - CLIENT)


def coo_bytes(params):
    """As the thesis stores: int64 coordinates per dimension and a float32 value per entry."""
    return sum(int((t != 0).sum()) * (8 * t.ndim + 4) for t in params.values())


def test_model_2_is_the_thesis_s(model_2):
    client, server = parts(model_2[1])
    assert (client.layout.n, server.layout.n) == (520, 2_921_586)
    assert 4 * server.layout.n / MIB == pytest.approx(11.1, abs=0.05)


@pytest.mark.parametrize(
    ("amount", "gone", "share", "told_mb"),
    [
        (0.0, 0, 0.0, 56.3),
        (0.9, 2_592_904, 88.75, 6.87),
        (0.95, 2_736_954, 93.68, 4.13),
        (0.99, 2_852_194, 97.62, 1.93),
        (0.999, 2_878_123, 98.51, 1.43),
    ],
)
def test_linear_layers_as_in_table_4_5(model_2, amount, gone, share, told_mb):
    """fc1 has 2,880,000 weights, fc2 1,004, whose share is rounded: 903.6 -> 904.

    The thesis's sizes are those of coordinates and values, in MiB; ours are never above dense.
    """
    client, server = parts(pruned(model_2, Pruning(amount)))
    assert zeros(server) == gone
    assert zeros(client) == 0
    assert 100 * gone / server.layout.n == pytest.approx(share, abs=0.006)
    assert coo_bytes(server) / MIB == pytest.approx(told_mb, abs=0.05)
    assert stored_bytes(server) <= min(4 * server.layout.n, coo_bytes(server))
    assert stored_bytes(client) == 4 * 520


def test_convolutions_as_in_table_4_4(model_2):
    """36,000 of conv2's 40,000 go, 450 of conv1's 500; the thesis prints 55.0 for 55.095 MiB."""
    client, server = parts(pruned(model_2, Pruning(0.9, "conv")))
    assert (zeros(client), zeros(server)) == (450, 36_000)
    assert round(100 * 450 / 520, 2) == 86.54
    assert round(100 * 36_000 / 2_921_586, 2) == 1.23
    assert coo_bytes(server) / MIB == pytest.approx(55.095, abs=1e-3)
    # 50 weights with a byte each for the way to them, and 20 biases.
    assert stored_bytes(client) == 50 * 5 + 20 * 4


def test_biases_stay(model_2):
    keep = Pruning(1.0, "both").mask_of_remaining(*model_2)
    left = {name for name, count in keep.counts().items() if count}
    assert left == {f"{layer}.bias" for layer in ("conv1", "conv2", "fc1", "fc2")}


@pytest.mark.parametrize("amount", [0.0, 0.37, 0.9, 1.0])
def test_local_and_global_go_as_torch_s(amount):
    """torch.nn.utils.prune is the oracle; normal draws have no ties."""
    task = GazeAngle(SmallEye((5, 7), 11))
    network, params = task.module(), noisy(task)
    layers = ("conv1", "conv2", "conv3", "fc1", "fc2")
    for scope in ("local", "global"):
        theirs = contiguous(bind_parameters(task.module(), params))
        chosen = [(theirs.get_submodule(name), "weight") for name in layers]
        if scope == "global":
            prune.global_unstructured(chosen, prune.L1Unstructured, amount=amount)
        else:
            for module, name in chosen:
                prune.l1_unstructured(module, name, amount)
        ours = pruned((network, params), Pruning(amount, "both", scope))
        for name in layers:
            torch.testing.assert_close(
                ours[f"{name}.weight"], theirs.get_submodule(name).weight.detach(), rtol=0, atol=0
            )


def test_filters_of_smallest_norm_go_as_torch_s():
    task = GazeAngle(SmallEye((5, 8), 12))
    network, params = task.module(), noisy(task)
    ours = pruned((network, params), Pruning(0.5, "both", structured=True))
    theirs = contiguous(bind_parameters(task.module(), params))
    for name in ("conv1", "conv2", "conv3", "fc1"):
        layer = theirs.get_submodule(name)
        prune.ln_structured(layer, "weight", 0.5, n=1, dim=0)
        assert torch.equal(ours[f"{name}.weight"], layer.weight.detach())
        gone = layer.weight.flatten(1).abs().sum(1) == 0
        assert torch.equal(ours[f"{name}.bias"] == 0, gone)
    assert torch.equal(ours["fc2.weight"], params["fc2.weight"])


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (SmallEye((5, 8), 12), (9, 15)),
        (SmallEye((5, 8), 2), (9, 15)),
        (SmallEye((5, 8), 12, pose=False), (9, 15)),
        (LeNet((4, 6)), (36, 60)),
    ],
)
@pytest.mark.parametrize("amount", [0.0, 0.5, 1.0])
def test_a_network_without_its_filters_is_the_one_with_zeros(model, size, amount):
    """relu(0) = max(0, ...) = 0, so that a filter of zeros with bias 0 says nothing."""
    task, data = GazeAngle(model), eyes(4, *size)
    params = noisy(task)
    keep = Pruning(amount, "both", structured=True).mask_of_remaining(task.module(), params)
    whole = bind_parameters(task.module(), keep.keep(params))
    small = remove_pruned_units(whole, keep)
    counts = {n: len(p) for n, p in small.named_parameters() if n.endswith("weight")}
    for name in counts.keys() - {"fc2.weight"}:
        full = len(params[name])
        assert counts[name] == max(full - round(amount * full), 1)
    assert counts["fc2.weight"] == 2
    batch = data.take(slice(0, 4))
    with torch.no_grad():
        torch.testing.assert_close(
            task.forward(small, batch), task.forward(whole, batch), rtol=1e-5, atol=1e-6
        )
    if amount:
        assert sum(p.numel() for p in small.parameters()) < params.layout.n


def test_what_cannot_be_taken_out_is_set_to_zero():
    task = GazeAngle(ResNetPreact(4, 2))
    network, params = task.module(), noisy(task)
    keep = Pruning(0.5, "conv", structured=True).mask_of_remaining(network, params)
    assert removable_layers(network) is None
    assert not keep.keep(params)["stage1.conv1.weight"].flatten(1).any(1).all()
    with pytest.raises(ConfigError, match="ResNetPreactNet is no row of plain layers"):
        remove_pruned_units(network, keep)
    video = GlcVit().build()
    assert removable_layers(video) is None
    keep = Pruning(0.5, "both", structured=True).mask_of_remaining(video, Params.of(video))
    counts = keep.counts()
    # 48 rows of 3 x 2 x 8 x 8; the last linear layer makes the map.
    assert counts["embed.weight"] == 24 * 384
    assert counts["embed.bias"] == 48
    assert counts["decoder.head.weight"] == 16


def test_the_sparse_network_says_the_same():
    task, data = GazeAngle(SmallEye()), eyes(4)
    params = noisy(task)
    dense = bind_parameters(
        task.module(), Pruning(0.9).mask_of_remaining(task.module(), params).keep(params)
    )
    batch = data.take(slice(0, 4))
    with torch.no_grad():
        torch.testing.assert_close(
            task.forward(with_sparse_layers(dense), batch),
            task.forward(dense, batch),
            rtol=1e-5,
            atol=1e-6,
        )
    assert isinstance(dense.fc1, nn.Linear)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_what_went_stays_away_in_training(optimiser):
    task, data = GazeAngle(SmallEye((4, 4), 8)), eyes(16)
    params = noisy(task)
    keep = Pruning(0.8, "both").mask_of_remaining(task.module(), params)
    local = LocalTraining(steps=4, batch=8, optimizer=optimiser, lr=0.01, weight_decay=0.01)
    head = Mask.layers(params.layout, "fc*")
    fitted = (
        Solver(task)
        .fit(prune_request(Fit(params, data, local, head), keep), RandomStream("t"))
        .params
    )
    gone = ~keep
    assert gone.take(fitted).abs().max() == 0
    frozen = keep & ~head
    assert torch.equal(frozen.take(fitted), frozen.take(params))
    assert not torch.equal((keep & head).take(fitted), (keep & head).take(params))


def test_stored_and_read_back_to_the_bit(model_2):
    params = pruned(model_2, Pruning(0.95, "both", "global"))
    params.flat[7] = -0.0
    params["fc2.bias"].zero_()
    data = pack_pruned(params, {"why": "test"})
    back = unpack_pruned(data)
    assert list(back) == list(params)
    for name, tensor in params.items():
        assert torch.equal(back[name].view(torch.int32), tensor.contiguous().view(torch.int32))
    header = int.from_bytes(data[:8], "little")
    assert len(data) == 8 + header + stored_bytes(params)
    assert json.loads(data[8 : 8 + header])["__metadata__"]["why"] == "test"


@pytest.mark.parametrize(
    ("at", "n", "width"), [([0, 256], 400, 1), ([0, 257], 400, 2), ([70_000], 70_001, 4)]
)
def test_the_narrowest_width_that_holds_all_skips(at, n, width):
    """Entries 0 and 256 have 255 zeros between them, which one byte can say."""
    array = np.zeros(n, np.float32)
    array[at] = 1
    skips, values = sparse_form(array)
    assert skips.itemsize == width
    assert skips.nbytes + values.nbytes == len(at) * (4 + width)


def test_dense_where_sparse_is_more():
    """A byte of way per value of 4: sparse is less from a share of zeros above 1/5 on."""
    array = np.ones(1000, np.float32)
    array[:200] = 0
    assert sparse_form(array) is None
    array[200] = 0
    assert sparse_form(array) is not None
    assert list(stored_arrays({"w": torch.ones(3)})) == ["w"]
    assert stored_bytes({"w": torch.zeros(5)}) == 0
    assert torch.equal(unpack_pruned(pack_pruned({"w": torch.zeros(5)}))["w"], torch.zeros(5))


@pytest.mark.parametrize("data", [b"", b"nonsense", pack_pruned({"w": torch.ones(9)})[:-4]])
def test_a_damaged_file_is_refused(data):
    with pytest.raises(DataError, match="no pruned model"):
        unpack_pruned(data)


@pytest.mark.parametrize("amount", [-0.1, 1.1, float("nan")])
def test_amounts_outside_0_to_1_are_refused(amount):
    with pytest.raises(ConfigError, match="pruning: amount must be >= 0 and <= 1"):
        Pruning(amount)


def test_other_misuse_is_named():
    with pytest.raises(ConfigError, match="layers must be one of linear, conv, both"):
        Pruning(0.5, "bias")
    with pytest.raises(ConfigError, match="scope = 'local'"):
        Pruning(0.5, "both", "global", structured=True)
    with pytest.raises(ConfigError, match="Linear has no trainable conv layer"):
        prunable_weights(nn.Linear(3, 1), "conv")
    assert prunable_weights(nn.Linear(3, 1), "linear") == ("weight",)
