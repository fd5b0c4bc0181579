"""DP-SGD on networks as other people write them: right sums, or a refusal in one line."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import vergence as vg
from vergence.core.data import Samples
from vergence.core.local_training import FRESH
from vergence.core.objectives import loss_per_sample
from vergence.core.requests import Step
from vergence.core.stages import PULL, SMASHED, Staged, pieces
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import client_hooks
from vergence.errors import ConfigError
from vergence.models.siamese import Siamese
from vergence.privacy.config import DpSgd, Privacy
from vergence.privacy.dp.mixing_probe import refuse_mixing
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.privacy.dp.private_step import PrivateGradients, clipped_sum
from vergence.privacy.keyed_noise import NoiseKey
from vergence.tasks.siamese import SiameseTask
from vergence.training.steps import Trainer

VECTOR, TOKENS, PICTURE = (6,), (7,), (3, 8, 8)


class Cosine(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(6, 8), nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return 10 * F.linear(F.normalize(torch.relu(self.a(x))), F.normalize(self.fc.weight))


class CellText(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.words, self.cell, self.out = nn.Embedding(11, 5), cell(5, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        state = None
        for word in self.words(tokens).unbind(1):
            state = self.cell(word, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class Recurrent(nn.Module):
    def __init__(self, kind, batch_first=True):
        super().__init__()
        self.words, self.first = nn.Embedding(11, 5), batch_first
        self.rnn, self.out = kind(5, 4, batch_first=batch_first), nn.Linear(4, 3)

    def forward(self, tokens):
        x = self.words(tokens)
        x, _ = self.rnn(x if self.first else x.transpose(0, 1))
        return self.out(x[:, -1] if self.first else x[-1])


class Residual(nn.Module):
    def __init__(self, inplace):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.skip, self.out = nn.Conv2d(3, 6, 1), nn.Linear(6, 3)
        self.n1, self.n2, self.act = nn.GroupNorm(2, 6), nn.GroupNorm(3, 6), nn.ReLU(inplace)

    def forward(self, x):
        y = self.n2(self.two(self.act(self.n1(self.one(x)))))
        return self.out(self.act(y + self.skip(x)).mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(11, 8), nn.Parameter(0.1 * torch.randn(7, 8))
        self.qkv, self.mix = nn.Linear(8, 24), nn.Linear(8, 8)
        self.l1, self.l2, self.drop = nn.LayerNorm(8), nn.LayerNorm(8), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, tokens):
        x = self.words(tokens) + self.place
        q, k, v = self.qkv(self.l1(x)).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.out(self.drop(x + self.mlp(self.l2(x))).mean(1))


class TorchEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, tokens):
        return self.out(self.layer(self.words(tokens)).mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.up.weight = self.down.weight

    def forward(self, x):
        return self.out(self.up(torch.tanh(self.down(x))))


class TiedByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.out = nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(F.linear(torch.tanh(self.down(x)), self.down.weight.T))


class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.makes, self.body = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x):
        return torch.einsum("boi,bi->bo", self.makes(x).view(-1, 3, 6), torch.relu(self.body(x)))


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.a, self.b = nn.Parameter(0.5 * torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.out(torch.tanh(self.base(x) + x @ self.a.T @ self.b.T))


class Squeeze(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = nn.Conv2d(3, 6, 3, groups=3, padding=1, padding_mode="reflect")
        self.wide = nn.Conv2d(6, 6, 3, dilation=2, padding="same", padding_mode="circular")
        self.less, self.more, self.out = nn.Linear(6, 2), nn.Linear(2, 6), nn.Linear(6, 3)
        self.norm, self.act = nn.InstanceNorm2d(6, affine=True), nn.PReLU(6)

    def forward(self, x):
        x = self.act(self.norm(self.wide(self.deep(x))))
        gate = torch.sigmoid(self.more(F.silu(self.less(x.mean((2, 3))))))
        return self.out((x * gate[..., None, None]).mean((2, 3)))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 6, 4, stride=4), nn.LayerNorm(6)
        self.tokens, self.channels, self.out = nn.Linear(4, 4), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.out((x + F.gelu(self.channels(x))).mean(1))


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.ws = nn.ParameterList([0.3 * torch.randn(6, 6), 0.3 * torch.randn(6, 3)])

    def forward(self, x):
        return torch.tanh(x @ self.ws[0]) @ self.ws[1]


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.pair = nn.Linear(6, 4), nn.Bilinear(4, 6, 3)

    def forward(self, x):
        return self.pair(self.a(x), x)


class Scaled(nn.Linear):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale


class Both(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Odd(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.a, self.out = (Both if kind == "tuple" else Scaled)(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        if self.kind == "tuple":
            return self.out(self.a(x)[0])
        return self.out(torch.relu(self.a(x, scale=2.0)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.a(torch.tanh(self.a(x)))))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(11, 5, mode="mean"), nn.Linear(5, 3)

    def forward(self, tokens):
        return self.out(self.bag(tokens))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out, self.steps = nn.Linear(6, 6), nn.Linear(6, 3), 0

    def forward(self, x):
        self.steps += 1
        x = self.a(x)
        return self.out(F.dropout(x + 0.1 * torch.randn_like(x), 0.5 / self.steps, self.training))


def mlp(*, first=lambda layer: layer, between=()):
    return nn.Sequential(first(nn.Linear(6, 6)), nn.Tanh(), *between, nn.Linear(6, 3))


def bias_alone():
    net = mlp()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return net


OLD_NORM = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
SLOW_LAYER = pytest.mark.filterwarnings("ignore:There is a performance drop")
NETWORKS = {
    "cosine head": (Cosine, VECTOR),
    "LSTM cell": (lambda: CellText(nn.LSTMCell), TOKENS),
    "GRU cell": (lambda: CellText(nn.GRUCell), TOKENS),
    "LSTM": (lambda: Recurrent(nn.LSTM), TOKENS),
    "GRU, time first": (lambda: Recurrent(nn.GRU, False), TOKENS),
    "residual block": (lambda: Residual(False), PICTURE),
    "residual block in place": (lambda: Residual(True), PICTURE),
    "encoder by hand": (Encoder, TOKENS),
    "encoder of torch": (TorchEncoder, TOKENS),
    "tied by hand": (TiedByHand, VECTOR),
    "hypernetwork": (Hyper, VECTOR),
    "biases alone": (bias_alone, VECTOR),
    "LoRA": (Lora, VECTOR),
    "weight norm": (lambda: mlp(first=parametrizations.weight_norm), VECTOR),
    "old weight norm": (lambda: mlp(first=nn.utils.weight_norm), VECTOR),
    "embedding bag": (Bag, TOKENS),
    "mixer": (Mixer, PICTURE),
    "squeeze and excite": (Squeeze, PICTURE),
    "parameter list": (Lists, VECTOR),
    "bilinear": (Bilinear, VECTOR),
    "keyword": (lambda: Odd("keyword"), VECTOR),
    "tuple": (lambda: Odd("tuple"), VECTOR),
    "twice": (Twice, VECTOR),
    "noise and a schedule": (Noisy, VECTOR),
}


def task_of(build, loss=F.cross_entropy):
    return vg.task_from(build, loss)


def samples(shape, count=9):
    draw = torch.Generator().manual_seed(4)
    tokens = shape == TOKENS
    x = torch.randint(0, 11, (count, *shape), generator=draw) if tokens else None
    x = torch.randn(count, *shape, generator=draw) if x is None else x
    return Samples({"x": x, "y": torch.arange(count) % 3})


def calm(module):
    """No dropout, so that sums can be compared; all else as in training."""
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0
    return module.train()


def one_by_one(task, module, batch, clip):
    """The definition: a forward and a backward pass of every sample alone."""
    named = {n: p for n, p in module.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for at in range(len(batch["y"])):
        row = {name: column[at : at + 1] for name, column in batch.items()}
        loss = task.loss(task.forward(module, row), row)
        own = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        length = math.sqrt(sum(float(g.double().square().sum()) for g in own))
        for name, gradient in zip(total, own, strict=True):
            total[name] += gradient * min(1.0, clip / max(length, 1e-12))
    return total


@OLD_NORM
@SLOW_LAYER
@pytest.mark.parametrize("name", [name for name in NETWORKS if not name.startswith("noise")])
def test_clipped_sums_are_those_of_one_backward_pass_a_sample(name):
    build, shape = NETWORKS[name]
    task = task_of(build)
    module, batch = calm(task.module()), samples(shape).take(torch.arange(9))
    for clip in (1e6, 0.4):
        wanted = one_by_one(task, module, batch, clip)
        into = {name: torch.full_like(g, math.nan) for name, g in wanted.items()}
        for _ in range(2):
            with Clipper(module, clip) as clipper:
                clipped_sum(clipper, task, batch, into)
                assert bool(clipper.fault) is False
        scale = max(float(gradient.abs().max()) for gradient in wanted.values())
        for parameter, gradient in wanted.items():
            torch.testing.assert_close(into[parameter], gradient, rtol=1e-5, atol=1e-5 * scale)


@OLD_NORM
@SLOW_LAYER
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_keep_samples_apart_are_taken(name):
    build, shape = NETWORKS[name]
    refuse_mixing(task_of(build), samples(shape), 6)


BRANCHES = {
    "a decoder of the encoder's weight": lambda net, h: F.linear(h, net.body.weight.T),
    "a weight beside its layer": lambda net, h: h @ net.body.weight,
    "a cosine": lambda net, h: F.linear(F.normalize(h), F.normalize(net.body.weight)),
    "another layer": lambda net, h: net.more(h),
}


class Closed(nn.Module):
    """No gradient reaches the branch, or anything below the head, before what is zero moves."""

    def __init__(self, branch, zero):
        super().__init__()
        self.branch, self.body, self.more = branch, nn.Linear(6, 6), nn.Linear(6, 6)
        self.open, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        for parameter in getattr(self, zero).parameters():
            nn.init.zeros_(parameter)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.out(h + self.open(BRANCHES[self.branch](self, h)))


@pytest.mark.parametrize("zero", ["open", "out"])
@pytest.mark.parametrize("branch", BRANCHES)
def test_clipped_sums_stay_right_when_what_begins_at_zero_moves(branch, zero):
    task = task_of(lambda: Closed(branch, zero))
    module, batch = calm(task.module()), samples(VECTOR).take(torch.arange(9))
    for _ in range(6):
        wanted = one_by_one(task, module, batch, 0.4)
        into = {name: torch.full_like(g, math.nan) for name, g in wanted.items()}
        with Clipper(module, 0.4) as clipper:
            clipped_sum(clipper, task, batch, into)
        for name, gradient in wanted.items():
            torch.testing.assert_close(into[name], gradient, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter -= 0.3 * wanted[name]


def test_mixing_behind_a_head_that_begins_at_zero_is_refused():
    def build():
        net = Mixing("centred")
        nn.init.zeros_(net.out.weight)
        return net

    with pytest.raises(ConfigError, match=r"dp: one sample of a batch .*privacy\.user"):
        refuse_mixing(task_of(build), samples(VECTOR), 8)


def test_weights_that_two_layers_share_count_once():
    net, batch = Tied(), samples(VECTOR).take(torch.arange(9))
    task = task_of(TiedByHand)  # its loss alone
    loss = lambda rows: loss_per_sample(task, net(rows["x"]), rows)  # noqa: E731
    alone = lambda at: loss({n: c[at : at + 1] for n, c in batch.items()})[0]  # noqa: E731
    wanted = one_by_one(task, net, batch, 0.4)
    into = {name: torch.zeros_like(g) for name, g in wanted.items()}
    with Clipper(net, 0.4) as clipper:
        clipper.gradients(loss(batch), into, alone)
    for name, gradient in wanted.items():
        torch.testing.assert_close(into[name], gradient, rtol=1e-5, atol=1e-5)
    with Clipper(net, 0.4) as clipper, pytest.raises(ConfigError, match="cannot be told apart"):
        clipper.gradients(loss(batch), into)


class Halves(Staged):
    """Two stages, each with a weight that is used beside its layer; the second may mix."""

    stages = {"one": ("one",), "two": ("two",)}  # noqa: RUF012

    def __init__(self, mixes=False):
        super().__init__()
        self.one, self.two, self.mixes = nn.Linear(6, 4), nn.Linear(4, 3), mixes

    def stage(self, name, x, *beside):
        layer = self.one if name == "one" else self.two
        x = F.linear(torch.tanh(x), F.normalize(layer.weight), layer.bias)
        return x - x.mean(0) if self.mixes and name == "two" else x


def test_halves_of_a_cut_network_take_the_same_sums():
    """With room for every gradient and no noise, a private step is a plain one."""
    task, batch = task_of(Halves), samples(VECTOR).take(torch.arange(9))
    front, back = pieces(task, "one")
    smashed = front.forward(front.module(), batch).detach()
    pull = torch.randn(smashed.shape, generator=torch.Generator().manual_seed(0)) / 9
    told = {SMASHED: smashed, "y": batch["y"]}
    local = vg.LocalTraining(optimizer="sgd", lr=1.0, momentum=0.0, weight_decay=0.0, clip=0.0)
    for piece, given, wrt in ((back, told, SMASHED), (front, {**batch, PULL: pull}, None)):
        start = piece.init()
        ask = Step(start.copy(), FRESH, given, local, lambda _, piece=piece: piece, wrt)
        plain = Trainer(piece).step(ask)
        private = PrivateGradients(1e6, 0.0, 9.0, NoiseKey(bytes(range(32))))
        found = Trainer(piece).step(replace(ask, params=start.copy(), gradients=private))
        torch.testing.assert_close(found.params.flat, plain.params.flat, atol=1e-5, rtol=1e-4)
        assert not torch.equal(plain.params.flat, start.flat)


PRIVATE = Privacy(solver=DpSgd(noise=1.0, delta=1e-3))


def people(count=40):
    draw = np.random.default_rng(0)
    rows = {name: draw.normal(size=(count, 6)).astype("float32") for name in ("a", "b")}
    return vg.Federation.from_arrays({name: (x, x.argmax(1) % 3) for name, x in rows.items()})


@pytest.mark.parametrize("method", [vg.methods.FedAvg(), vg.methods.SplitFed(cut="one")])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_is_refused_before_it_trains(method, workers):
    task = task_of(partial(Halves, mixes=True))
    with pytest.raises(
        ConfigError, match=r"dp: one sample of a batch changes .*, between its layers"
    ):
        vg.train(
            method,
            task,
            people(),
            rounds=1,
            workers=workers,
            on_round=lambda *_: pytest.fail("it trains"),
            privacy={"solver": {"name": "dp_sgd", "noise": 1.0, "delta": 1e-3}},
        )


def test_a_deployed_client_refuses_before_it_trains(tmp_path):
    """Its own data are checked where its hooks are made; nobody has validated an experiment."""
    task, plan = task_of(partial(Halves, mixes=True)), Plan(privacy=PRIVATE)
    with pytest.raises(ConfigError, match=r"dp: one sample .*, between its layers"):
        client_hooks(plan, vg.methods.FedAvg(), task, people().only(["b"]), tmp_path)


@pytest.mark.parametrize("build", [Cosine, bias_alone])
def test_what_layers_do_not_give_is_trained_all_the_same(build, monkeypatch):
    """Without noise every trained parameter moves."""
    mean_alone = lambda flat, _, expected, __: flat.div_(expected)  # noqa: E731
    monkeypatch.setattr("vergence.privacy.dp.dp_sgd_solver.noised", mean_alone)
    task = task_of(build)
    run = vg.train(
        vg.methods.FedAvg(),
        task,
        people(),
        rounds=1,
        progress=False,
        local=vg.LocalTraining(optimizer="sgd", batch=24, lr=0.1),
        privacy={"solver": {"name": "dp_sgd", "noise": 1.0, "delta": 1e-3}},
    )
    after, before = run.model(), task.init()
    for name, parameter in after.named_parameters():
        if parameter.requires_grad:
            assert float((parameter.detach() - before[name]).norm()) > 1e-3, name


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_one_by_one_a_sample_that_is_not_finite_counts_as_zero_and_changes_no_other(kind):
    task, batch = task_of(Cosine), samples(VECTOR).take(torch.arange(9))
    module = task.module().train()
    wanted = one_by_one(task, module, {n: c[1:] for n, c in batch.items()}, 0.4)
    batch["x"][0] = float(kind)
    into = {name: torch.full_like(g, 7.0) for name, g in wanted.items()}
    with Clipper(module, 0.4) as clipper:
        clipped_sum(clipper, task, batch, into)
    assert clipper.norms[0] == 0
    for name, gradient in wanted.items():
        torch.testing.assert_close(into[name], gradient, rtol=1e-5, atol=1e-5)


def attention(h):
    return (h @ h.T).softmax(1) @ h


def straight_through(h):
    return h + (h.mean(0) - h.mean(0).detach())


def scaled_gradient(h):
    scale = h.detach().abs().amax()
    return h + (scale * h - (scale * h).detach())


MIXERS = {
    "centred": lambda h, _: h - h.mean(0),
    "barely": lambda h, _: h - 1e-6 * h.mean(0),
    "function of a norm": lambda h, _: F.batch_norm(h, None, None, training=True),
    "normalised": lambda h, _: F.normalize(h, dim=0) * 6,
    "softmax": lambda h, _: h.softmax(0) * 6,
    "attention": lambda h, _: attention(h),
    "running sum": lambda h, _: h.cumsum(0),
    "running sum from behind": lambda h, _: h.flip(0).cumsum(0).flip(0),
    "sorted": lambda h, _: h.sort(0).values,
    "rolled": lambda h, _: h.roll(1, 0),
    "shuffled": lambda h, _: h[torch.randperm(len(h))],
    "greatest": lambda h, _: h / h.abs().amax(),
    "greatest without gradient": lambda h, x: h / x.abs().amax().detach(),
    "least": lambda h, x: h - x.amin(0).sum(),
    "median": lambda h, _: h - h.median(0).values,
    "ranks": lambda h, _: h + h.argsort(0).argsort(0),
    "in large batches": lambda h, _: h - h.mean(0) if len(h) > 4 else h,
    "at an outlier": lambda h, x: h - h.mean(0) if x.abs().max() > 50 else h,
    "by size": lambda h, _: h / len(h),
    "gradient alone": lambda h, _: straight_through(h),
    "size of gradients alone": lambda h, _: scaled_gradient(h),
    "neighbours": lambda h, _: torch.cat([h[:1], 0.5 * (h[1:] + h[:-1])]),
}


class Mixing(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.a, self.out = kind, nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        h = self.drop(torch.tanh(self.a(x)))
        return self.out(MIXERS[self.kind](h, x) if self.training else h)


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out, self.mean = nn.Linear(6, 6), nn.Linear(6, 3), torch.zeros(6)

    def forward(self, x):
        h = self.a(x) - self.mean
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return self.out(h)


@pytest.mark.parametrize("kind", MIXERS)
def test_networks_that_mix_a_batch_are_refused(kind):
    with pytest.raises(ConfigError, match=r"dp: one sample of a batch .*privacy\.user") as caught:
        refuse_mixing(task_of(lambda: Mixing(kind)), samples(VECTOR), 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("build", [Remembering, lambda: mlp(between=[nn.BatchNorm1d(6)])])
def test_layers_and_memories_that_mix_are_refused(build):
    task = task_of(Cosine)
    object.__setattr__(task.network, "factory", build)
    with pytest.raises(ConfigError, match=r"first by 'out' \(Linear\)|'2' is a BatchNorm1d"):
        refuse_mixing(task, samples(VECTOR), 8)


def test_the_first_layer_that_gives_something_else_is_named():
    with pytest.raises(ConfigError, match=r"for the others, first by 'out' \(Linear\)"):
        refuse_mixing(task_of(lambda: Mixing("centred")), samples(VECTOR), 8)


def contrastive(output, _):
    z = F.normalize(output, dim=1)
    alike = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(alike, torch.arange(len(z)).roll(1))


def correlation(output, target):
    one, other = output[:, 0] - output[:, 0].mean(), target - target.float().mean()
    return 1 - (one * other).sum() / (one.norm() * other.norm() + 1e-8)


def beside(output, target):
    return F.cross_entropy(output, target) + contrastive(output, target)


LOSSES = {
    "weighted": lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([1.0, 5.0, 0.2])),
    "some left out": lambda o, t: F.cross_entropy(o, t, ignore_index=2),
    "sum": lambda o, t: F.cross_entropy(o, t, reduction="sum"),
    "root": lambda o, t: F.mse_loss(o, F.one_hot(t, 3).float()).sqrt(),
    "smoothed": lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1),
    "branch on values": lambda o, t: o.square().mean() if (t == 2).any() else o.abs().mean(),
}


@pytest.mark.parametrize("loss", [contrastive, correlation, beside])
def test_losses_that_compare_samples_are_refused(loss):
    with pytest.raises(ConfigError, match="no mean of losses of single samples"):
        refuse_mixing(task_of(Cosine, loss), samples(VECTOR), 8)


def test_simclr_is_refused_and_byol_is_not():
    eyes = torch.randint(0, 256, (6, 2, 1, 36, 60), dtype=torch.uint8)
    with pytest.raises(ConfigError, match="no mean of losses of single samples"):
        refuse_mixing(SiameseTask(Siamese()), Samples({"eyes": eyes}), 4)
    byol = SiameseTask(Siamese(target=True), objective="byol")
    refuse_mixing(byol, Samples({"eyes": eyes}), 4)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "branch on values"])
def test_losses_that_are_means_over_samples_are_taken(name):
    refuse_mixing(task_of(Cosine, LOSSES[name]), samples(VECTOR), 8)


def test_a_loss_that_looks_at_values_is_taken_sample_by_sample():
    task, batch = task_of(Cosine, LOSSES["branch on values"]), samples(VECTOR).take(torch.arange(4))
    output = torch.randn(4, 3)
    rows = [LOSSES["branch on values"](output[i : i + 1], batch["y"][i : i + 1]) for i in range(4)]
    torch.testing.assert_close(loss_per_sample(task, output, batch), torch.stack(rows))
