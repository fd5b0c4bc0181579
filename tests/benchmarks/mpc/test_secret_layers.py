"""Layers on shares against torch, each alone and as a network, and how many numbers they open."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmarks.mpc.network_variants import strongest, thinned
from tests.benchmarks.mpc.beaver_triples import AuthenticatedShare, TripleTable
from tests.benchmarks.mpc.fixed_point import PRIME, FixedPoint, signed
from tests.benchmarks.mpc.secret_layers import affine, max_pool, patches, relu
from vergence.models.lenet import LeNet
from vergence.privacy.inference.network import parts
from vergence.privacy.secure_aggregation.session import Aborted

FORM = FixedPoint(20)
STEP = 2.0**-20


def share(table, tensor, steps=1):
    return table.share(FORM.encode(tensor.detach().numpy(), steps))


def told(table, found):
    return torch.from_numpy(FORM.decode(table.reveal(found)))


def dense(table, x, layer, keep=None):
    keep = np.ones(layer.weight.shape, bool) if keep is None else keep
    weight, bias = share(table, layer.weight), share(table, layer.bias, 2)
    return affine(table, x, weight, bias, keep, FORM.fraction)


def conv(table, x, layer):
    flat = share(table, layer.weight.flatten(1))
    keep = np.ones(flat.shape, bool)
    seen = patches(x, layer.kernel_size[0])
    found = affine(table, seen, flat, share(table, layer.bias, 2), keep, FORM.fraction)
    return found.each(lambda p: p.transpose(0, 3, 1, 2))


def test_relu_is_exact_over_the_whole_range():
    table = TripleTable(2)
    x = [0, 1, -1, 2**62, -(2**62), 12345, -12345]
    found = table.reveal(relu(table, table.share(np.array(x, object) % PRIME)))
    assert signed(found).tolist() == [max(v, 0) for v in x]


@pytest.mark.parametrize("shape", [(1, 2, 4, 6), (1, 1, 5, 3)])
def test_max_pool_takes_the_largest_and_drops_the_rest_as_torch_does(shape):
    table = TripleTable(3)
    x = torch.randint(-(2**40), 2**40, shape, generator=torch.manual_seed(0))
    x[0, 0, 0, :2] = -7  # a tie, and all of a window below 0
    x[0, 0, 1, :2] = -9
    found = table.reveal(max_pool(table, table.share(x.numpy().astype(object) % PRIME)))
    assert signed(found).astype(np.int64).tolist() == functional.max_pool2d(x.double(), 2).tolist()
    windows = found.size
    assert table.triples == {"comparison": 3 * windows * 64}  # three times: 63 bits and a choice


def test_a_lie_in_a_comparison_aborts():
    def send(step, honest):
        return honest + (1 if step == "comparison" and honest.size == 8 else 0)

    table = TripleTable(2, send)
    found = relu(table, table.share(np.arange(4).astype(object)))
    with pytest.raises(Aborted):
        table.reveal(found)


def test_a_convolution_is_torchs():
    layer = torch.nn.Conv2d(2, 3, 3)
    x = torch.rand(2, 2, 6, 5)
    table = TripleTable(2)
    found = told(table, conv(table, share(table, x), layer))
    assert (found - layer(x)).abs().max() < 18 * STEP + 1e-6
    assert table.opens["product"] == 2 * (2 * 3 * 4 * 3 * 2 * 9)  # of both images


@pytest.mark.parametrize("amount", [0.0, 0.5, 0.9])
def test_a_pruned_layer_opens_what_the_formula_says_and_not_the_weights_that_went(amount):
    """Two opens for every kept weight and sample: thesis section 3.5, (1 - p) of all products."""
    layer = torch.nn.Linear(40, 7)
    columns = strongest(layer, amount)
    keep = np.zeros((7, 40), bool)
    np.put_along_axis(keep, columns, True, 1)
    x = torch.rand(3, 40)
    table = TripleTable(2)
    found = told(table, dense(table, share(table, x), layer, keep))
    with torch.no_grad():
        layer.weight.mul_(torch.from_numpy(keep))
    assert (found - layer(x)).abs().max() < 60 * STEP
    products = 3 * 7 * (40 - round(40 * amount))
    assert table.triples == {"product": products}
    assert table.opens["product"] == 2 * products
    assert table.opens["truncation"] == 3 * 7


@pytest.mark.parametrize("amount", [0.0, 0.75])
def test_the_tail_of_a_lenet_opens_twice_the_products_that_its_description_counts(amount):
    """Linear layers with ReLU and head pose, one of them pruned, against torch."""
    torch.manual_seed(0)
    network = LeNet((1, 2)).build().eval()
    network.fc1, network.fc2 = torch.nn.Linear(144, 5), torch.nn.Linear(5 + 2, 2)
    columns = {"fc1": strongest(network.fc1, amount)}
    thinned(network, columns)
    x, pose = torch.rand(1, 2, 6, 12), torch.rand(1, 2)
    keep = (network.fc1.weight != 0).numpy()
    table = TripleTable(2)
    hidden = relu(table, dense(table, share(table, x.flatten(1)), network.fc1, keep))
    found = told(table, dense(table, joined(hidden, share(table, pose)), network.fc2))
    wanted = network.stage("fc2", network.stage("fc1", x), pose)
    assert (found - wanted).abs().max() < 1e-4
    made = parts(network, torch.rand(1, 1, 36, 60), "pool2", columns)
    assert made.products == table.triples["product"] == 5 * (144 - round(144 * amount)) + 14
    assert table.opens["product"] == 2 * made.products


def joined(one, two):
    both = ((one.shares, two.shares), (one.codes, two.codes))
    return AuthenticatedShare(*(np.concatenate(arrays, 2) for arrays in both))
