"""BatchNorm whose statistics are averaged: beside torch's own layers, and in whole runs."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import vergence as vg
from tests.engine.toys import run_toy
from tests.model_tools.test_onnx_export import eyes
from vergence.core.layers.averaged_statistics import maskable
from vergence.core.layers.batch_norm import statistics_of
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.compatibility_check import check
from vergence.engine.participation import Participation
from vergence.engine.round_loop import RoundLoop
from vergence.experiment.privacy.schema import build_privacy
from vergence.model_tools.onnx_export import assembled, converted
from vergence.privacy.dp.per_sample_gradients import refuse
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.batches import batches
from vergence.training.pruning import Pruning
from vergence.training.sequential import Solver
from vergence.wire.codecs import Compression

SIZES = (24, 40)
LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.1)
STATISTICS = {"1.mean", "1.variance"}


def pictures():
    body = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(12, 1))


def network(plain=pictures):
    return vg.average_batch_norm(plain())


def task(factory=network):
    return vg.task_from(factory, nn.MSELoss())


def people(sizes=SIZES, shape=(1, 4, 4)):
    """Everybody's pictures have a mean of their own: 0, 2, 4."""
    draw, found = np.random.default_rng(0), {}
    for number, size in enumerate(sizes):
        x = (draw.normal(size=(size, *shape)) + 2 * number).astype("float32")
        found[f"p{number}"] = (x, (x - 2 * number).reshape(size, -1).sum(1, keepdims=True))
    return vg.Federation.from_arrays(found)


def trained(tmp_path, method=None, federation=None, rounds=2, **plan):
    method = method or vg.methods.FedAvg(local=LOCAL)
    data = federation or people()
    return run_toy(tmp_path, method, task=task(), federation=data, rounds=rounds, **plan)


@pytest.mark.parametrize("momentum", [0.1, 0.7])
@pytest.mark.parametrize("scaled", [True, False])
def test_it_is_torchs_layer(momentum, scaled):
    draw = torch.Generator().manual_seed(0)
    theirs = nn.BatchNorm2d(3, momentum=momentum, affine=scaled)
    ours = vg.average_batch_norm(copy.deepcopy(theirs))
    for _ in range(3):
        x = torch.randn(5, 3, 4, 2, generator=draw)
        assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.mean, theirs.running_mean)
    assert torch.equal(ours.variance, theirs.running_var)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    assert {n for n, _ in ours.named_parameters()} == set(ours.state_dict())
    assert set(statistics_of(ours)) == {"mean", "variance"}


def test_refusals():
    with pytest.raises(vg.ConfigError, match="no running statistics to average"):
        vg.average_batch_norm(nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(vg.ConfigError, match="give it a momentum between 0 and 1"):
        vg.average_batch_norm(nn.BatchNorm1d(3, momentum=None))
    with pytest.raises(vg.ConfigError, match=r"AveragedBatchNorm, which mixes .*group_norm"):
        refuse(network())
    ways = r"average_batch_norm.*group_norm.*freeze_batch_norm.*personalize_batch_norm"
    with pytest.raises(vg.ConfigError, match=ways):
        task(pictures)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"privacy": {"user": {"noise": 1.0}}}, "privacy.user adds noise"),
        ({"privacy": {"solver": {"noise": 1.0}}}, "AveragedBatchNorm, which mixes"),
        ({"privacy": {"robust": {"name": "fltrust", "root": "p0"}}}, "lengthens updates"),
        ({"wire": {"codec": "topk"}}, "leave out wire, or use vergence.group_norm"),
        ({"delivery": {"name": "fedasync"}}, "changes of old models"),
    ],
)
def test_settings_that_would_change_a_variance_refuse(plan, says):
    """FedBN sends no statistics, and may have them."""
    made = {name: MADE[name](value) for name, value in plan.items()}
    with pytest.raises(vg.ConfigError, match=says):
        check(vg.Plan(**made), vg.methods.FedAvg(), task())
    if "solver" not in plan.get("privacy", ()):
        check(vg.Plan(**made), vg.methods.FedBN(), task())


MADE = {
    "privacy": build_privacy,
    "wire": lambda options: Compression(**options),
    "delivery": lambda options: Delivery(**options),
}


def plainly(net, data, stream):
    """Train torch's own network in place, in a loop of its own."""
    optimizer = torch.optim.SGD(
        net.parameters(), LOCAL.lr, LOCAL.momentum, weight_decay=LOCAL.weight_decay
    )
    for rows in batches(data, LOCAL, stream, None):
        batch = data.take(rows)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(batch["x"]), batch["y"]).backward()
        if LOCAL.clip:
            nn.utils.clip_grad_norm_(net.parameters(), LOCAL.clip)
        optimizer.step()
    return net


def test_a_round_of_fedavg_is_the_average_of_torchs_state_dicts():
    """Two clients of unequal sizes: trained with torch's layer, averaged by hand."""
    owner, data = task(), people()
    start, solver, fedavg = owner.init(), Solver(owner), vg.methods.FedAvg(local=LOCAL)
    parts = [data.people[name].train for name in data.people]
    weights = [len(part) / sum(map(len, parts)) for part in parts]
    assert weights[0] != weights[1]
    states, ours = [], start
    for number, part in enumerate(parts):
        stream = RandomStream("client", number)
        net = pictures()
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.copy_(start[name])
        states.append(plainly(net, part, stream).state_dict())
        fitted = solver.fit(Fit(start, part, fedavg.local), stream).params
        ours = ours + weights[number] * (fitted - start)
    mean = {n: sum(w * s[n] for w, s in zip(weights, states, strict=True)) for n in states[0]}
    theirs = {"1.mean": "1.running_mean", "1.variance": "1.running_var"}
    for name in ours:
        assert torch.allclose(ours[name], mean[theirs.get(name, name)], atol=1e-5), name


def statistics(outcome):
    return {name: outcome.server.model[name] for name in STATISTICS}


def test_a_run_averages_with_the_weights_of_samples(tmp_path):
    """FedAvg's statistics in a run lie between those of its clients, nearer to the larger one."""
    equal = trained(tmp_path / "equal", vg.methods.FedAvg(local=LOCAL, weights="equal"))
    by_samples = trained(tmp_path / "samples")
    for name, value in statistics(by_samples).items():
        assert not torch.equal(value, statistics(equal)[name])
        assert not torch.equal(value, task().init()[name])


def test_engines_and_processes_give_the_same_bits(tmp_path):
    whole = trained(tmp_path / "a", rounds=3)
    assert trained(tmp_path / "b", rounds=3, engine="bytes").fingerprint == whole.fingerprint
    assert trained(tmp_path / "c", rounds=3, workers=2).fingerprint == whole.fingerprint


def test_resumed(tmp_path, monkeypatch):
    method = vg.methods.FedAdam(local=LOCAL, server_lr=0.1)
    whole, plain = trained(tmp_path / "a", method, rounds=3), RoundLoop.one_round

    def stop(self, at, server):
        if at == 2:
            raise KeyboardInterrupt
        return plain(self, at, server)

    with monkeypatch.context() as patch:
        patch.setattr(RoundLoop, "one_round", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "b", method, rounds=3)
    assert trained(tmp_path / "b", method, rounds=3).fingerprint == whole.fingerprint


def test_a_cohort_averages_over_those_who_came(tmp_path):
    data = people((24, 40, 32, 28))
    some = trained(tmp_path, federation=data, presence=Participation(cohort=2))
    assert (some.server.model["1.variance"] > 0).all()
    assert len(some.clients) <= 4


def test_stacked_clients_agree(tmp_path):
    data = people((32, 32, 32))
    one = trained(tmp_path / "a", federation=data, solver="sequential")
    many = trained(tmp_path / "b", federation=data, solver="stacked")
    for name, value in statistics(one).items():
        assert torch.allclose(value, statistics(many)[name], atol=1e-4)


def test_secure_sums_are_the_same_within_packing(tmp_path):
    data = people((24, 40, 32, 28))
    plain = trained(tmp_path / "a", federation=data)
    hidden = trained(
        tmp_path / "b", federation=data, privacy=build_privacy({"aggregation": "secure"})
    )
    for name, value in statistics(plain).items():
        assert torch.allclose(value, statistics(hidden)[name], atol=1e-4)


def test_a_newcomer_predicts_with_the_averaged_statistics():
    data = people((24, 40, 32))
    known = replace(data, people={name: data.people[name] for name in ("p0", "p1")})
    run = vg.train(vg.methods.FedAvg(local=LOCAL), task(), known, rounds=2, progress=False)
    one, two = (dict(run.model(person).named_parameters()) for person in ("p0", "p1"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    fresh = run.model("p0")(torch.from_numpy(data.people["p2"].test.columns["x"].numpy()))
    assert fresh.isfinite().all()


def test_fedbn_keeps_statistics_and_scales_at_home(tmp_path):
    for kept, home in (("layers", STATISTICS | {"1.weight", "1.bias"}), ("statistics", STATISTICS)):
        method = vg.methods.FedBN(local=LOCAL, at_home=kept)
        outcome = trained(tmp_path / kept, method)
        assert set(task().init()) - set(outcome.server.model) == home
        one, two = (outcome.clients.get(person, None).params for person in ("p0", "p1"))
        assert not torch.equal(one["1.mean"], two["1.mean"])


def test_masks_and_pruning_leave_statistics_alone(tmp_path):
    owner = task()
    layout = owner.init().layout
    where = Mask.layers(layout, *STATISTICS)
    assert not (maskable(owner, Mask.full(layout)) & where).count
    for method in (
        vg.methods.FedCPF(local=LOCAL, rate=1.0, limit=1.0),
        vg.methods.FedCPF(local=LOCAL, rate=1.0, limit=1.0, select="random"),
        vg.methods.FedSelect(local=LOCAL, rate=1.0, limit=1.0),
    ):
        name = f"{type(method).__name__}{getattr(method, 'select', '')}"
        outcome = trained(tmp_path / name, method)
        mask = outcome.clients.get("p0", None).mask
        assert mask.count == layout.n - where.count
        assert not (mask & where).count
    kept = Pruning(0.9, "both", "global").mask_of_remaining(network(), Params.of(network()))
    assert (kept & where).count == where.count


class Eyes(nn.Module):
    """Angles of 9 x 15 eye crops and a head pose."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(3 * 7 * 13 + 2, 2)

    def forward(self, image, pose):
        return self.last(torch.cat([self.body(image), pose], 1))


@dataclass(frozen=True)
class EyeModel(vg.Model):
    def build(self):
        return vg.average_batch_norm(Eyes())


def test_onnx_predicts_as_torch():
    owner, samples = GazeAngle(EyeModel()), eyes(9, 15)
    fit = Fit(owner.init(), samples, LocalTraining(optimizer="sgd", batch=8))
    params = Solver(owner).fit(fit, RandomStream("eyes")).params
    assert not torch.equal(params["body.1.variance"], owner.init()["body.1.variance"])
    first = samples.take(slice(0, 1))
    file = converted(assembled(owner, params, first), first, {})
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {n: first[n].numpy() for n in ("image", "pose")})
    wanted = Solver(owner).outputs(params, samples.subset(torch.arange(1)))
    assert np.abs(found - wanted.numpy()).max() < 1e-5


@pytest.mark.parametrize("variance", [-1e-9, -3.0])
def test_a_negative_variance_counts_as_zero(variance):
    """A malicious client's statistics move the average below zero; no honest client's can."""
    layer = vg.average_batch_norm(nn.BatchNorm1d(2)).eval()
    x = torch.tensor([[1.0, -2.0]])
    layer.variance.data.fill_(0.0)
    zero = layer(x)
    layer.variance.data.fill_(variance)
    assert zero.isfinite().all()
    assert torch.equal(layer(x), zero)
    # A batch of one value per channel is normalised by the running statistics in training, too.
    assert torch.equal(layer.train()(x), zero)
    assert layer.variance.max() < 0, "evaluation changes no statistics"
