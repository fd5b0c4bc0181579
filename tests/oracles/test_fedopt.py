"""Server optimisers on two numbers, step by step.

FedAdam (methods design note, O4): from w = [1, 1], rate 0.1, tau 0.001, two mean updates
D1 = [0.2, -0.4] and D2 = [0.1, 0.2]. First moments are [0.02, -0.04] and [0.028, -0.016]
throughout; with one decay 0.9 and v from 0, v = [0.004, 0.016], then [0.0046, 0.0184], so that
w1 = 1 + 0.1 [0.02 / (0.063246 + 0.001), -0.04 / (0.126491 + 0.001)] = [1.031131, 0.968625].
"""

import math

import pytest
import torch

from tests.scripts import Numbers, aggregate, params, turn
from vergence.core.method import AutoMoments
from vergence.core.params import Params
from vergence.core.serialization import equal_states
from vergence.errors import ConfigError
from vergence.methods.fedadagrad import FedAdagrad
from vergence.methods.fedadam import AdamMoments, FedAdam
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavgm import FedAvgM
from vergence.methods.fedyogi import FedYogi

D1, D2 = (0.2, -0.4), (0.1, 0.2)
O4 = {"server_lr": 0.1, "beta1": 0.9, "tau": 1e-3}
SERVERS = [
    FedAdam(),
    FedAdam(variant="seed_exact"),
    FedAdam(variant="corrected"),
    FedYogi(),
    FedAdagrad(),
    FedAvgM(),
    FedAdam(adapt="auto"),
]


def close(got, expected, atol=1e-6):
    wanted = torch.tensor(expected, dtype=torch.float64)
    assert torch.allclose(got.flat, wanted, rtol=0.0, atol=atol), (got.flat, wanted)


def replies(method, server, updates, examples=(1.0, 3.0)):
    """Return what two clients of one and three samples send who moved by these updates."""
    ends = [server.model.like(server.model.flat + torch.tensor(u).double()) for u in updates]
    return [
        turn(method, method.client(None), server.model, end, examples=n)[1]
        for end, n in zip(ends, examples, strict=True)
    ]


def step(method, server, update):
    """Hold a round with two clients of unequal size whose plain mean is this update."""
    a, b = update
    return aggregate(
        method, server, replies(method, server, [(a - 0.1, b + 0.2), (a + 0.1, b - 0.2)])
    )


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        (FedAdam(variant="seed_exact", **O4), [1.031131, 0.968625], [1.071814, 0.956916]),
        (FedAdam(variant="reddi", beta2=0.99, **O4), [1.095126, 0.902468], [1.215334, 0.867345]),
        (
            FedAdam(variant="corrected", beta2=0.99, **O4),
            [1.095238, 0.902439],
            [1.184572, 0.876355],
        ),
    ],
    ids=["a", "b", "c"],
)
def test_o4_fedadam(method, first, second):
    """(a) the gaze paper's form, (b) Reddi et al., (c) bias corrected; clients count equally."""
    server = step(method, method.server(Numbers((1.0, 1.0))), D1)
    close(server.model, first)
    server = step(method, server, D2)
    close(server.model, second)
    close(server.first, [0.028, -0.016])
    if method.variant == "seed_exact":
        close(server.second, [0.0046, 0.0184])


def test_seed_exact_has_one_decay():
    """beta2 has no part in it."""
    one, other = (FedAdam(variant="seed_exact", beta2=b, **O4) for b in (0.0, 0.99))
    start = one.server(Numbers((1.0, 1.0)))
    assert equal_states(step(one, start, D1), step(other, start, D1))


def test_corrected_takes_a_full_first_step():
    """m / (1 - b1) = D and v / (1 - b2) = D^2: a step of server_lr along the sign of D, by tau."""
    method = FedAdam(server_lr=0.1, tau=1e-12, variant="corrected")
    close(step(method, method.server(Numbers((1.0, 1.0))), D1).model, [1.1, 0.9])


def test_fedadam_of_constant_second_moment_is_uniform_fedavg():
    """server_lr 1, beta1 0, v = 1 and kept (beta2 a bit below 1), tau next to nothing."""
    method = FedAdam(server_lr=1.0, beta1=0.0, beta2=math.nextafter(1, 0), tau=1e-12)
    start = AdamMoments(params(1, 1), params(0, 0), params(1, 1))
    server = step(method, start, D1)
    close(server.second, [1, 1], 1e-12)
    plain = FedAvg(weights="equal")
    wanted = aggregate(plain, start, replies(plain, start, [(0.1, -0.2), (0.3, -0.6)]))
    assert torch.allclose(server.model.flat, wanted.model.flat, rtol=0, atol=1e-9)
    close(server.model, [1.2, 0.6])


def test_updates_far_below_tau_are_only_scaled():
    """sqrt(v) = tau and stays: the step is server_lr (1 - beta1) D / (2 tau), as FedAvgM's."""
    method = FedAdam(server_lr=0.01, tau=1e-3)
    start = method.server(Numbers((0.0, 0.0)))
    small = aggregate(method, start, replies(method, start, [(1e-6, -2e-6)] * 2))
    factor = 0.01 * 0.1 / (1e-3 * (math.sqrt(0.99) + 1))
    close(small.model, [factor * 1e-6, -factor * 2e-6], 1e-12)


def test_fedyogi_two_steps():
    """tau 0.4, both decays so that roots are whole: beta1 0.5, beta2 0.75, rate 0.1.

    v0 = 0.16. D1 = [0.6, -0.224]: D^2 = [0.36, 0.050176], above and below v, so
    v1 = [0.16 + 0.09, 0.16 - 0.012544] = [0.25, 0.147456], roots [0.5, 0.384].
    D2 = [0.28, 0.576]: D^2 = [0.0784, 0.331776], now below and above:
    v2 = [0.25 - 0.0196, 0.147456 + 0.082944] = [0.2304, 0.2304], roots 0.48.
    m1 = [0.3, -0.112], m2 = [0.29, 0.232].
    """
    method = FedYogi(server_lr=0.1, beta1=0.5, beta2=0.75, tau=0.4)
    server = step(method, method.server(Numbers((1.0, 1.0))), (0.6, -0.224))
    close(server.second, [0.25, 0.147456])
    close(server.model, [1 + 0.03 / 0.9, 1 - 0.0112 / 0.784])
    server = step(method, server, (0.28, 0.576))
    close(server.first, [0.29, 0.232])
    close(server.second, [0.2304, 0.2304])
    close(server.model, [1 + 0.03 / 0.9 + 0.029 / 0.88, 1 - 0.0112 / 0.784 + 0.0232 / 0.88])


@pytest.mark.parametrize(
    ("beta1", "first", "second"),
    [(0.0, [1.05, 0.95], [1.125, 0.95]), (0.5, [1.025, 0.975], [1.06875, 0.9625])],
)
def test_fedadagrad_two_steps(beta1, first, second):
    """tau 0.3: v = 0.09 + 0.16 = 0.25, then [0.25 + 1.44, 0.25] = [1.69, 0.25]; rate 0.1.

    D1 = [0.4, -0.4] moves by 0.1 * 0.4 / (0.5 + 0.3) = 0.05; D2 = [1.2, 0] by
    0.1 * 1.2 / (1.3 + 0.3) = 0.075. With beta1 0.5, m is [0.2, -0.2], then [0.7, -0.1].
    """
    method = FedAdagrad(server_lr=0.1, beta1=beta1, tau=0.3)
    server = step(method, method.server(Numbers((1.0, 1.0))), (0.4, -0.4))
    close(server.model, first)
    server = step(method, server, (1.2, 0.0))
    close(server.second, [1.69, 0.25])
    close(server.model, second)


def test_fedavgm_two_steps():
    """beta 0.5, rate 0.5, 1 and 3 samples: D1 = [1, -2], D2 = [3, 0] by samples.

    v1 = D1, x1 = [1.5, 0]; v2 = [0.5 + 3, -1], x2 = [1.5 + 1.75, 0 - 0.5].
    """
    method = FedAvgM(beta=0.5, server_lr=0.5)
    server = method.server(Numbers((1.0, 1.0)))
    server = aggregate(method, server, replies(method, server, [(4.0, -5.0), (0.0, -1.0)]))
    close(server.model, [1.5, 0.0])
    server = aggregate(method, server, replies(method, server, [(0.0, 3.0), (4.0, -1.0)]))
    close(server.velocity, [3.5, -1.0])
    close(server.model, [3.25, -0.5])


def test_fedavgm_without_momentum_is_fedavg():
    method, plain = FedAvgM(beta=0.0, server_lr=1.0), FedAvg()
    server = method.server(Numbers((1.0, 1.0)))
    updates = [(4.0, -5.0), (0.25, -1.0)]
    moved = aggregate(method, server, replies(method, server, updates))
    assert equal_states(
        moved.model, aggregate(plain, server, replies(plain, server, updates)).model
    )


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad, FedAvgM])
@pytest.mark.parametrize(("weights", "mean"), [("samples", 2.5), ("equal", 2.0)])
def test_weights(kind, weights, mean):
    """Updates 1 and 3 of 1 and 3 samples: the first moment, or velocity, is that of the mean."""
    method = kind(weights=weights)
    server = method.server(Numbers((0.0,)))
    server = aggregate(method, server, replies(method, server, [(1.0,), (3.0,)]))
    if kind is FedAvgM:
        close(server.velocity, [mean])
    else:
        close(server.first, [(1 - method.beta1) * mean])


@pytest.mark.parametrize("method", SERVERS, ids=str)
def test_nobody_replied(method):
    """Moments, steps and model stay: no decay in a round without news."""
    server = step(method, method.server(Numbers((1.0, 1.0))), D1)
    assert equal_states(aggregate(method, server, []), server)


# --- adapt = "auto"


def test_auto_by_hand():
    """rms(D1) = sqrt((.04 + .16) / 2) = .316228: tau .0316228, rate .632456, v0 = tau^2 = .001.

    m = [.02, -.04], v = [.00139, .00259], so w = 1 + .632456 [.02 / (.037283 + .031623),
    -.04 / (.050892 + .031623)] = [1.183571, 0.693410].
    """
    method = FedAdam(adapt="auto")
    server = step(method, method.server(Numbers((1.0, 1.0))), D1)
    assert (server.tau, server.server_lr) == pytest.approx((0.0316228, 0.632456), abs=1e-6)
    close(server.model, [1.183571, 0.693410])


@pytest.mark.parametrize(
    "options", [{"variant": v} for v in ("reddi", "seed_exact", "corrected")] + [{}, None], ids=str
)
def test_auto_goes_on_as_the_numbers_that_it_chose_would(options):
    """The first update alone chooses; moments, in every round, are those of fixed settings."""
    kind = FedAdagrad if options is None else FedAdam if options else FedYogi
    auto = kind(adapt="auto", **(options or {}))
    size = math.sqrt(0.1)
    fixed = kind(tau=0.1 * size, server_lr=2 * size, **(options or {}))
    mine, theirs = (m.server(Numbers((1.0, 1.0))) for m in (auto, fixed))
    for update in (D1, D2, (3.0, 1.0)):
        mine, theirs = step(auto, mine, update), step(fixed, theirs, update)
        for part in ("model", "first", "second"):
            close(getattr(mine, part), getattr(theirs, part).flat.tolist())
    assert auto.server_metrics(mine) == pytest.approx({"tau": fixed.tau, "server_lr": 2 * size})
    assert fixed.server_metrics(theirs) == {}


def test_auto_waits_for_an_update_with_a_length():
    """A round in which nobody moved chooses nothing, and changes nothing."""
    method = FedAdam(adapt="auto")
    start = method.server(Numbers((1.0, 1.0)))
    still = aggregate(method, start, replies(method, start, [(0.0, 0.0)] * 2))
    assert equal_states(still, start)
    assert equal_states(step(method, still, D1), step(method, start, D1))


def test_auto_leaves_out_running_statistics():
    """Their updates are not along a gradient, and may be larger than all others."""
    method = FedAdam(adapt="auto")
    weights, counted = torch.tensor([1.0, 1.0]), torch.tensor([1.0])
    start = Params.named(weight=weights, mean=counted)
    server = AutoMoments(start, start * 0.0, start * 0.0, statistics=("mean",))
    update = Params.named(weight=torch.tensor(D1), mean=counted * 50)
    assert method.step(server, update).tau == pytest.approx(0.0316228, abs=1e-6)


@pytest.mark.parametrize("key", ["tau", "server_lr"])
def test_auto_refuses_numbers_of_ones_own(key):
    with pytest.raises(ConfigError, match=f"auto.*{key} = 0.5"):
        FedYogi(adapt="auto", **{key: 0.5})


# The rms of D1 is .316.
@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"tau": 0.4, "server_lr": 0.9}, "overshoot"),
        ({"tau": 0.03, "server_lr": 1.3}, "overshoot"),
        ({"tau": 1.0, "server_lr": 0.5}, "hardly adapt"),
        ({"tau": 0.9, "server_lr": 0.5}, ""),
        ({"tau": 0.4, "server_lr": 0.3}, ""),
        ({"tau": 0.03, "server_lr": 1.2}, ""),
    ],
)
@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
def test_a_server_that_overshoots_is_warned_of_once(kind, options, noun):
    method = kind(**options)
    start = method.server(Numbers((1.0, 1.0)))
    one = step(method, start, D1)
    text = method.caution(start, one)
    if noun:
        numbers = ("0.32", f"tau = {options['tau']:g}", f"server_lr = {options['server_lr']:g}")
        assert all(word in text for word in (noun, *numbers, "tau = 0.032", "server_lr = 0.63"))
    else:
        assert text == ""
    assert method.caution(one, step(method, one, D1)) == ""
    assert method.caution(start, start) == ""
