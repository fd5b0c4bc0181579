"""BatchNorm whose statistics stay at home: by hand, beside torch's layers, and in runs."""

import copy
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import vergence as vg
from tests.engine.learners import apart
from vergence.core.data import Samples
from vergence.core.layers.batch_norm import PersonalBatchNorm, statistics_of, tracked_norms
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.privacy.dp.per_sample_gradients import refuse
from vergence.training.batches import batches
from vergence.training.cuda_graphs import Graphed
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked

STATISTICS = {"1.mean", "1.variance", "1.batches"}
DECAYING = LocalTraining(optimizer="sgd", batch=8, lr=0.1, weight_decay=0.5, clip=0.5)
KEEPING = partial(vg.methods.FedBN, at_home="statistics")


def ordinary(**options):
    first = nn.Linear(4, 3, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(3, **options), nn.ReLU(), nn.Linear(3, 1))


def network():
    return vg.personalize_batch_norm(ordinary())


def task(factory=network):
    return vg.task_from(factory, nn.MSELoss())


def people(sizes=(40, 40, 40)):
    """Everybody's inputs have a mean of their own: 0, 5, 10."""
    draw, found = np.random.default_rng(0), {}
    for number, size in enumerate(sizes):
        x = (draw.normal(size=(size, 4)) + 5 * number).astype("float32")
        found[f"p{number}"] = (x, (x - 5 * number).sum(1, keepdims=True))
    return vg.Federation.from_arrays(found)


def trained(method, factory=network, data=None, **options):
    plan = vg.Plan(rounds=2, **options)
    return vg.train(method, task(factory), data or people(), plan=plan, progress=False)


def test_by_hand():
    """1 and 5 have mean 3 and variance 4 (8 of a sample): a tenth of it comes to 0 and 1."""
    layer = vg.personalize_batch_norm(nn.BatchNorm1d(1, eps=1e-12))
    assert layer(torch.tensor([[1.0], [5.0]])).flatten().tolist() == pytest.approx([-1, 1])
    counted = [float(p.detach()) for p in (layer.mean, layer.variance, layer.batches)]
    assert counted == pytest.approx([0.3, 0.9 + 0.8, 1.0])
    assert layer.eval()(torch.tensor([[2.0]])).item() == pytest.approx((2 - 0.3) / 1.7**0.5)
    assert layer.batches.item() == 1.0, "evaluation counts nothing"


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("scaled", [True, False])
def test_it_is_torchs_layer(momentum, scaled):
    draw = torch.Generator().manual_seed(0)
    theirs = nn.BatchNorm2d(3, momentum=momentum, affine=scaled)
    ours = vg.personalize_batch_norm(copy.deepcopy(theirs))
    for _ in range(3):
        x = torch.randn(5, 3, 4, 2, generator=draw)
        assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.mean, theirs.running_mean)
    assert torch.equal(ours.variance, theirs.running_var)
    assert int(ours.batches) == int(theirs.num_batches_tracked) == 3
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_a_batch_of_one_is_not_counted():
    layer = vg.personalize_batch_norm(nn.BatchNorm1d(2))
    layer(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)))
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(layer.train()(x), layer.eval()(x))
    assert layer.batches.item() == 1.0
    data = people((33, 33))  # a share of them trains, in batches of 1 with this setting
    trained(vg.methods.FedBN(local=LocalTraining(optimizer="sgd", batch=1)), data=data)


def test_layers_without_statistics_are_refused():
    with pytest.raises(vg.ConfigError, match="no running statistics to keep"):
        vg.personalize_batch_norm(ordinary(track_running_stats=False))


def asks(owner, clients=2, **options):
    draw = torch.Generator().manual_seed(1)
    start = owner.init()
    found = []
    for number in range(clients):
        x = torch.randn(21, 4, generator=draw) + number
        data = Samples({"x": x, "y": x.sum(1, keepdim=True)})
        found.append(Fit(start, data, DECAYING, **options))
    return found, [RandomStream("norms").child(number) for number in range(clients)]


def plainly(ask, stream):
    """Training of torch's own network with torch's own optimizer: what is to be found."""
    net, counted = ordinary(), dict(network().named_parameters())
    assert set(counted) - {n for n, _ in net.named_parameters()} == STATISTICS
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(ask.params[name])
    how = ask.local
    options = {"lr": how.lr, "momentum": how.momentum, "weight_decay": how.weight_decay}
    optimizer = torch.optim.SGD(net.parameters(), **options)
    for rows in batches(ask.data, how, stream, None):
        batch = ask.data.take(rows)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(batch["x"]), batch["y"]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), how.clip)
        optimizer.step()
    return net


def test_the_optimizer_leaves_statistics_alone():
    """Weight decay of 0.5 would move them, and a pull to the start would shorten all gradients."""
    owner = task()
    (ask, _), (stream, _) = asks(owner)
    found, net = Solver(owner).fit(ask, stream).params, plainly(ask, stream)
    for name, value in net.named_parameters():
        assert torch.allclose(found[name], value, atol=1e-5)
    assert torch.allclose(found["1.mean"], net[1].running_mean, atol=1e-5)
    assert torch.allclose(found["1.variance"], net[1].running_var, atol=1e-5)
    assert float(found["1.batches"]) == int(net[1].num_batches_tracked) == 3


@pytest.mark.parametrize("pull", [None, 0.1])
def test_engines_agree(pull):
    """Replayed steps bit for bit, stacked clients within rounding, as with other networks."""
    owner = task()
    options = {} if pull is None else {"anchor": (owner.init(), pull)}
    requests, streams = asks(owner, **options)
    alone = [Solver(owner).fit(a, s) for a, s in zip(requests, streams, strict=True)]
    together = Stacked(owner).fit_all(requests, streams)
    replayed = Graphed(owner).fit_all(requests, streams)
    for one, two, three in zip(alone, together, replayed, strict=True):
        assert apart(one.params, two.params) < 1e-5
        assert torch.allclose(one.params.flat, three.params.flat, atol=1e-6)
        assert float(one.params["1.batches"]) == float(two.params["1.batches"]) == 3
    assert not torch.equal(alone[0].params["1.mean"], alone[1].params["1.mean"])


@pytest.mark.parametrize("precision", ["bf16", "half"])
def test_other_precisions_count_in_float32(precision):
    owner = task()
    (ask, _), (stream, _) = asks(owner)
    exact, rounded = (Solver(owner, p).fit(ask, stream).params for p in ("fp32", precision))
    assert float(rounded["1.batches"]) == 3
    assert torch.allclose(exact["1.mean"], rounded["1.mean"], atol=0.02)


@pytest.mark.parametrize("kept", ["layers", "statistics"])
@pytest.mark.parametrize("solver", ["sequential", "stacked"])
def test_what_stays_at_home(kept, solver):
    run = trained(vg.methods.FedBN(at_home=kept), solver=solver)
    nets = [dict(run.model(person).named_parameters()) for person in run.people]
    apart_ = {n for n in nets[0] if not torch.equal(nets[0][n], nets[1][n])} - {"1.batches"}
    scales = {"1.weight", "1.bias"} if kept == "layers" else set()
    assert apart_ == {"1.mean", "1.variance"} | scales
    assert all(net["1.batches"].item() > 0 for net in nets)


def test_nothing_of_the_statistics_travels():
    owner, method = task(), KEEPING()
    method.check(owner)
    server, client = method.server(owner), method.client(owner)
    assert set(method.offer(server, "p0")["shared"]) == set(owner.init()) - STATISTICS
    assert set(client.personal) == STATISTICS
    data = people()
    one = data.people["p1"].train
    site = SimpleNamespace(task=owner, train=one, val=one)
    turn = method.on_train(client, Message("train", method.offer(server, "p1")), site)
    fit = Solver(owner).fit(next(turn), RandomStream("turn"))
    with pytest.raises(StopIteration) as end:
        turn.send(fit)
    state, said = end.value.value
    assert set(said.trees["shared"]) == set(owner.init()) - STATISTICS
    assert float(state.params["1.batches"]) > 0


def test_a_newcomer_counts_their_own_samples():
    """Mean 5, variance 1 of inputs are those of the first layer's outputs, through its weights."""
    owner, method, one = task(), KEEPING(), people().people["p1"].train
    new, server = method.client(owner), method.server(owner)
    site = SimpleNamespace(task=owner, train=one)
    asked = method.model_on(new, {"shared": server.model}, site)
    request = next(asked)
    assert request.want == "statistics"
    solver = Solver(owner)
    found = solver.compute(request)
    with torch.no_grad():
        inner = solver.task.module()[0](one.columns["x"])
    assert torch.allclose(found["1.mean"], inner.mean(0), atol=1e-5)
    assert torch.allclose(found["1.variance"], inner.var(0), atol=1e-5)
    assert float(found["1.batches"]) == 1
    (layer,) = tracked_norms(solver.module).values()
    assert (layer.momentum, layer.training) == (0.1, False)
    nobody = solver.statistics(new.params, one.subset(torch.arange(0)))
    assert torch.equal(nobody.flat, new.params.flat)


def test_who_has_trained_keeps_what_was_counted():
    owner, method, one = task(), KEEPING(), people().people["p1"].train
    state = method.client(owner)
    params = (
        Solver(owner)
        .fit(Fit(state.params, one, LocalTraining(optimizer="sgd")), RandomStream("x"))
        .params
    )
    site = SimpleNamespace(task=owner, train=one)
    state = type(state)(params, state.personal)
    found = method.model_on(state, {"shared": method.server(owner).model}, site)
    assert torch.equal(found["1.mean"], params["1.mean"])


def test_training_alone_takes_it():
    run = trained(vg.methods.LocalOnly())
    assert isinstance(run.model("p0")[1], PersonalBatchNorm)


@pytest.mark.parametrize("method", [vg.methods.FedAvg, vg.methods.FedPer, vg.methods.Ditto])
def test_methods_that_would_send_statistics_refuse(method):
    says = r"running statistics \(1.mean, \.\.\.\) would be sent: .* is for fedbn"
    with pytest.raises(vg.ConfigError, match=says):
        trained(method())


def test_every_method_that_does_not_keep_them_refuses():
    for name in dir(vg.methods):
        method = getattr(vg.methods, name)
        if not (isinstance(method, type) and issubclass(method, vg.Method)):
            continue
        if method.keeps_statistics:
            assert name in ("FedBN", "LocalOnly")
        else:
            says = "personalize_batch_norm|needs a base method to train by"
            with pytest.raises(vg.ConfigError, match=says):
                method().check(task())


def test_a_network_without_them_is_refused_where_they_are_asked_for():
    with pytest.raises(vg.ConfigError, match="FactoryModel has no running statistics"):
        trained(KEEPING(), lambda: vg.freeze_batch_norm(ordinary()))


def test_dp_sgd_refuses_it():
    with pytest.raises(vg.ConfigError, match="PersonalBatchNorm, which mixes the samples"):
        refuse(network())
    assert set(statistics_of(network())) == STATISTICS


@pytest.mark.parametrize("counted", [0, 3, None])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_layer_that_has_counted_batches_counts_on(counted, momentum):
    """Without a count, as in old files, it begins at none; a mean over batches needs it."""
    theirs = nn.BatchNorm1d(2, momentum=momentum)
    draw = torch.Generator().manual_seed(0)
    for _ in range(counted or 0):
        theirs(torch.randn(6, 2, generator=draw))
    if counted is None:
        theirs.num_batches_tracked = None
    ours = vg.personalize_batch_norm(copy.deepcopy(theirs))
    assert ours.batches.tolist() == [counted or 0]
    if counted is None:
        theirs.num_batches_tracked = torch.tensor(0)
    x = torch.randn(6, 2, generator=draw)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.mean, theirs.running_mean)
    assert torch.equal(ours.variance, theirs.running_var)
    assert ours.batches.tolist() == [(counted or 0) + 1]
