"""BatchNorm with fixed statistics is an affine layer: by hand, beside torch's own, and in a run."""

import numpy as np
import pytest
import torch
from torch import nn

import vergence as vg
from vergence.core.layers.batch_norm import FrozenBatchNorm
from vergence.privacy.dp.per_sample_gradients import refuse


def used(module):
    """A network with statistics as training leaves them."""
    draw = torch.Generator().manual_seed(3)
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean.normal_(generator=draw)
            layer.running_var.uniform_(0.5, 2.0, generator=draw)
    return module


def pretrained():
    return used(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)))


def frozen():
    return vg.freeze_batch_norm(pretrained())


class Affine(nn.Module):
    """weight * (x - mean) / sqrt(variance + eps) + bias, written out."""

    def __init__(self):
        super().__init__()
        norm = pretrained()[1]
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
        self.mean, self.deviation = norm.running_mean, (norm.running_var + 1e-5).sqrt()

    def forward(self, x):
        return self.weight * (x - self.mean) / self.deviation + self.bias


def affine():
    network = pretrained()
    network[1] = Affine()
    return network


def test_by_hand():
    """Mean 1, variance 4, weight 3, bias 2: 5 becomes 3 (5 - 1) / 2 + 2 = 8."""
    norm = nn.BatchNorm1d(1, eps=0.0)
    for tensor, value in zip((norm.running_mean, norm.running_var), (1.0, 4.0), strict=True):
        tensor.fill_(value)
    with torch.no_grad():
        norm.weight.fill_(3.0)
        norm.bias.fill_(2.0)
    layer = vg.freeze_batch_norm(norm)
    output = layer(torch.tensor([[5.0], [1.0]]))
    assert output.flatten().tolist() == [8.0, 2.0]
    output[0].sum().backward()
    assert (layer.weight.grad.item(), layer.bias.grad.item()) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d, (5, 3)), (nn.BatchNorm2d, (5, 3, 4, 2)), (nn.BatchNorm3d, (5, 3, 2, 2, 2))],
)
@pytest.mark.parametrize("scaled", [True, False])
def test_it_is_torchs_in_evaluation_and_in_training_too(norm, shape, scaled):
    before = used(norm(3, affine=scaled)).eval()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    want = before(x)
    layer = vg.freeze_batch_norm(before).train()
    assert torch.equal(layer(x), want)
    assert torch.equal(layer(x), want), "nothing is counted"


def test_layers_deep_inside_and_used_twice():
    norm = used(nn.BatchNorm1d(4))
    network = vg.freeze_batch_norm(nn.ModuleDict({"a": nn.Sequential(norm, norm), "b": norm}))
    kinds = {type(layer) for layer in network.modules()}
    assert FrozenBatchNorm in kinds
    assert nn.BatchNorm1d not in kinds
    assert network["a"][0] is network["a"][1] is network["b"]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3, track_running_stats=False), nn.LazyBatchNorm1d()]
)
def test_layers_without_statistics_are_refused(norm):
    with pytest.raises(vg.ConfigError, match="no running statistics to freeze"):
        vg.freeze_batch_norm(nn.Sequential(norm))


def people():
    draw = np.random.default_rng(0)
    inputs = {f"p{i}": draw.normal(size=(40, 4)).astype("float32") for i in range(3)}
    return vg.Federation.from_arrays({p: (x, x.sum(1, keepdims=True)) for p, x in inputs.items()})


def trained(factory, method=None):
    task = vg.task_from(factory, nn.MSELoss())
    return vg.train(method or vg.methods.FedAvg(), task, people(), rounds=2, progress=False)


def test_a_run_is_that_of_an_affine_layer():
    run, written_out = trained(frozen), trained(affine)
    network, other = run.model("p1"), written_out.model("p1")
    start = dict(frozen().named_parameters())
    for name, value in network.named_parameters():
        assert not torch.equal(value, start[name]), "all are trained"
        assert torch.allclose(value, dict(other.named_parameters())[name], atol=1e-5)
    assert torch.equal(network[1].mean, pretrained()[1].running_mean)


OWN = """
from dataclasses import dataclass
from torch import nn
import vergence as vg

@dataclass(frozen=True)
class Own(vg.Model):
    def build(self):
        return vg.freeze_batch_norm(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)))
"""
EXPERIMENT = """
task = { name = "toy" }
model = { name = "own.py" }
federation = { name = "toy", people = 3 }
method = { name = "fedavg" }
run = { rounds = 2 }
"""


def test_a_network_of_an_experiment_file(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own.toml").write_text(EXPERIMENT)
    experiment = vg.load_experiment(tmp_path / "own.toml", trust_code=True)
    (run,) = vg.run_experiment(experiment, tmp_path / "out").values()
    assert isinstance(run.model(run.people[0])[0], FrozenBatchNorm)


def test_fedbn_keeps_its_scales_at_home():
    run = trained(frozen, vg.methods.FedBN())
    one, two = (dict(run.model(p).named_parameters()) for p in ("p0", "p1"))
    assert {name for name in one if not torch.equal(one[name], two[name])} == {"1.weight", "1.bias"}


def test_it_mixes_no_samples():
    refuse(frozen())
    with pytest.raises(vg.ConfigError, match="freeze_batch_norm"):
        refuse(pretrained())
    with pytest.raises(vg.ConfigError, match="freeze_batch_norm"):
        vg.task_from(pretrained, nn.MSELoss())
