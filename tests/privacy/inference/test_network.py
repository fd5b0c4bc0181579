"""Networks as private inference takes them: layers, products and arrays, without any SPU."""

import numpy as np
import pytest
import torch

from benchmarks.mpc.network_variants import head, strongest, thinned
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.errors import ConfigError
from vergence.models.lenet import LeNet
from vergence.models.resnet_preact import ResNetPreact
from vergence.privacy.inference.network import parts
from vergence.training.pruning import Pruning, remove_pruned_units

IMAGE = torch.rand(1, 1, 36, 60, generator=torch.manual_seed(0))


@pytest.fixture(scope="module")
def model_2():
    return LeNet((20, 80)).build().eval()


def test_the_thesis_s_model_2_takes_15_297_004_products(model_2):
    """Output positions times filters times taps: 32*56*20*25, 12*24*80*500, 5760*500, 502*2."""
    made = parts(model_2, IMAGE)
    counts = {layer.name: layer.products for layer in made.layers if layer.products}
    assert counts == {"conv1": 896_000, "conv2": 11_520_000, "fc1": 2_880_000, "fc2": 1_004}
    assert made.products == 15_297_004
    assert sum(a.size for a in made.arrays.values()) == 2_922_106
    assert [layer.name for layer in made.layers if layer.relu] == ["fc1"]
    assert [layer.name for layer in made.layers if layer.takes_side_inputs] == ["fc2"]


@pytest.mark.parametrize(
    ("amount", "left"), [(0.9, 12_705_004), (0.95, 12_561_004), (0.99, 12_446_004)]
)
def test_pruning_fc1_leaves_the_products_of_the_formula(model_2, amount, left):
    """All but fc1's 2,880,000, and of those 500 times the inputs that each neuron keeps: 576, 288
    and 58 of 5,760."""
    made = parts(model_2, IMAGE, columns={"fc1": strongest(model_2.fc1, amount)})
    assert made.products == left
    assert made.arrays["fc1.weight"].shape == made.columns["fc1"].shape


def test_the_tail_is_what_is_behind_a_stage(model_2):
    made = parts(model_2, IMAGE, "pool1")
    assert [layer.name for layer in made.layers] == ["conv2", "pool2", "fc1", "fc2"]
    assert not any(name.startswith("conv1") for name in made.arrays)
    smashed = head(model_2, IMAGE, "pool1")
    assert smashed.shape == (1, 20, 16, 28)
    x = smashed
    for layer in made.layers:
        x = model_2.stage(layer.name, x, torch.zeros(1, 2))
    assert torch.equal(x, model_2(IMAGE, torch.zeros(1, 2)))


def test_half_of_the_filters_and_neurons_is_a_quarter_of_the_products_between_them(model_2):
    keep = Pruning(0.5, "both", structured=True).mask_of_remaining(model_2, Params.of(model_2))
    assert isinstance(keep, Mask)
    counts = {y.name: y.products for y in parts(remove_pruned_units(model_2, keep), IMAGE).layers}
    assert counts["conv1"] * 2 == 896_000
    assert counts["conv2"] * 4 == 11_520_000
    assert counts["fc1"] * 4 == 2_880_000


def test_every_neuron_keeps_its_largest_weights():
    layer = torch.nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.1, -3, 2, 0], [5, 0.5, 0.25, -6]]))
    kept = strongest(layer, 0.5)
    assert kept.tolist() == [[1, 2], [0, 3]]
    with pytest.raises(ConfigError, match="keeps no weight"):
        strongest(layer, 1.0)


def test_thinned_layers_hold_the_kept_weights_and_zeros():
    network = LeNet((2, 3)).build()
    columns = {"fc1": strongest(network.fc1, 0.9)}
    whole = network.fc1.weight.detach().clone()
    thinned(network, columns)
    left = network.fc1.weight.detach().numpy()
    assert np.count_nonzero(left) == columns["fc1"].size
    picked = np.take_along_axis(whole.numpy(), columns["fc1"], 1)
    assert np.array_equal(np.take_along_axis(left, columns["fc1"], 1), picked)


def test_other_networks_and_stages_are_refused(model_2):
    with pytest.raises(ConfigError, match=r"a tail begins after one of .*: 'fc2'"):
        parts(model_2, IMAGE, "fc2")
    with pytest.raises(ConfigError, match="take lenet"):
        parts(ResNetPreact().build().eval(), IMAGE)
